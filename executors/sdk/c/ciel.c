/* libciel: the program's side of the conversation with its worker (docs/programs.md of ciel).
 *
 * The library sends queued frames when the program waits for a reply, and at the end of a task. It
 * sends spawns and lines of the log at once. The program needs no replies to published texts, so
 * the library reads these only when they precede another reply.
 */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "ciel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef CIEL_SOCKET
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#endif

enum {
    FRAME_MAX_BYTES = 16 << 20,  /* the worker's limit of a frame in both directions */
    TEXT_MAX_BYTES = 64 << 10,   /* a longer text is published through a file */
    BUFFER_BYTES = 64 << 10,     /* the capacity of a pipe */
    UNREAD_MAX = 32,             /* unread replies: so many fit into a pipe */
    CONNECT_WITHIN_MS = 10000,   /* the timeout for a descriptor that the worker has announced */
};

#ifdef JSON_ALLOW_NUL
static const size_t decoding = JSON_ALLOW_NUL;
#else
static const size_t decoding = 0;
#endif

static FILE *to_worker, *from_worker;
static int unread;       /* replies to publish_string that have not been read */
static int open_outputs; /* these must be closed before ciel_block_on_refs */
static int is_over;      /* the task has ended */

struct ciel_input {
    int fd;
    int is_unbuffered;
    int ends_here;    /* the end of the file is the end of the object */
    int is_announced; /* the worker must be notified when it is closed */
    int chunk_size;
    char *id;
    json_int_t position, size; /* bytes read; bytes known to be available */
    size_t start, end;         /* the unread part of the buffer */
    char buffer[BUFFER_BYTES];
};

struct ciel_output {
    FILE *file;
    int index;
    int is_unbuffered;
    int error; /* errno of a failed write, or 0 */
    json_int_t size;
};

_Noreturn static void fail(const char *format, ...)
{
    va_list values;

    fputs("ciel: ", stderr);
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);

    if (memory == NULL)
        fail("out of memory: %zu bytes cannot be allocated", bytes);
    return memory;
}

static json_t *checked(json_t *value)
{
    if (value == NULL)
        fail("a call cannot be encoded: an argument is NULL, or a string that is not UTF-8");
    return value;
}

/* Add a value to an object, which takes over the ownership. */
static void set(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, checked(value)) != 0)
        fail("a call cannot be encoded: out of memory");
}

/* --- frames --- */

void ciel_json_error(char *where, json_error_t *error)
{
    fail("%s: invalid JSON at character %d: %s", where, error->position, error->text);
}

void ciel_read_all(FILE *file, int len, char *buf)
{
    if (len < 0 || fread(buf, 1, (size_t)len, file) != (size_t)len)
        fail("cannot read from the worker: %s",
             ferror(file) ? strerror(errno) : "it has closed the FIFO");
}

void ciel_write_all(FILE *file, char *buf, int len)
{
    if (len < 0 || fwrite(buf, 1, (size_t)len, file) != (size_t)len)
        fail("cannot write to the worker: %s", strerror(errno));
}

/* Return the next frame; NULL at the end. */
json_t *ciel_read_framed_json(FILE *file)
{
    unsigned char prefix[4];
    int first = getc(file);
    uint32_t size;
    char *text;
    json_error_t error;
    json_t *value;

    if (first == EOF)
        return NULL;
    prefix[0] = (unsigned char)first;
    ciel_read_all(file, 3, (char *)prefix + 1);
    size = (uint32_t)prefix[0] << 24 | (uint32_t)prefix[1] << 16 | (uint32_t)prefix[2] << 8 | prefix[3];
    if (size > FRAME_MAX_BYTES)
        fail("the worker sent a frame of %lu bytes, more than the limit of %d", (unsigned long)size,
             FRAME_MAX_BYTES);
    text = allocate(size + 1);
    ciel_read_all(file, (int)size, text);
    value = json_loadb(text, size, decoding, &error);
    if (value == NULL)
        ciel_json_error("a frame of the worker", &error);
    free(text);
    return value;
}

static void put_frame(json_t *value, FILE *file)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    size_t size = text == NULL ? 0 : strlen(text);
    char prefix[4] = {(char)(size >> 24), (char)(size >> 16), (char)(size >> 8), (char)size};

    if (text == NULL)
        fail("a call cannot be encoded as JSON");
    if (size > FRAME_MAX_BYTES)
        fail("a call of %zu bytes; at most %d can be sent", size, FRAME_MAX_BYTES);
    ciel_write_all(file, prefix, 4);
    ciel_write_all(file, text, (int)size);
    free(text);
}

static void flush(FILE *file)
{
    if (fflush(file) != 0)
        fail("cannot write to the worker: %s", strerror(errno));
    }

void ciel_write_framed_json(json_t *value, FILE *file)
{
    put_frame(value, file);
    flush(file);
}

/* --- calls --- */

/* Queue a call for the next flush; take over the ownership of its arguments. */
static void queue_call(const char *method, json_t *args)
{
    json_t *call = checked(json_pack("[s, o]", method, checked(args)));

    if (to_worker == NULL || is_over)
        fail("%s is called %s", method, is_over ? "after the end of the task" : "before ciel_init");
    put_frame(call, to_worker);
    json_decref(call);
}

/* Wait for the next call of the worker; NULL at the end. The caller owns the returned arguments. */
static json_t *receive_call(const char **method)
{
    static char name[64];
    json_t *call = ciel_read_framed_json(from_worker);
    json_t *args = json_array_get(call, 1);

    if (call == NULL)
        return NULL;
    if (json_array_size(call) != 2 || !json_is_string(json_array_get(call, 0)))
        fail("the worker sent a frame that is not a list of a method and arguments");
    snprintf(name, sizeof name, "%s", json_string_value(json_array_get(call, 0)));
    *method = name;
    json_incref(args);
    json_decref(call);
    return args;
}

/* Wait for the reply to a call; return its arguments. */
static json_t *reply_to(const char *method)
{
    const char *received = "";
    json_t *args = receive_call(&received);

    if (args == NULL)
        fail("the worker ended before it replied to %s", method);
    if (strcmp(received, method) != 0)
        fail("the worker sent %s instead of a reply to %s", received, method);
    return args;
}

static void read_unread(void)
{
    while (unread > 0) {
        json_t *args = reply_to("publish_string");

        unread--;
        if (!json_is_object(json_object_get(args, "ref")))
            fail("the reply to publish_string has no reference");
        json_decref(args);
    }
}

/* Make a call and return the arguments of the reply; take over the arguments of the call. */
static json_t *ask(const char *method, json_t *args)
{
    queue_call(method, args);
    flush(to_worker);
    read_unread();
    return reply_to(method);
}

static json_t *part(json_t *reply, const char *method, const char *key)
{
    json_t *value = json_object_get(reply, key);

    if (value == NULL)
        fail("the reply to %s has no %s", method, key);
    return value;
}

static const char *text_in(json_t *reply, const char *method, const char *key)
{
    const char *text = json_string_value(part(reply, method, key));

    if (text == NULL)
        fail("%s in the reply to %s is not a string", key, method);
    return text;
}

static int flag_in(json_t *reply, const char *method, const char *key)
{
    json_t *value = part(reply, method, key);

    if (!json_is_boolean(value))
        fail("%s in the reply to %s is neither true nor false", key, method);
    return json_is_true(value);
}

static json_int_t number_in(json_t *reply, const char *method, const char *key)
{
    json_t *value = part(reply, method, key);

    if (!json_is_integer(value))
        fail("%s in the reply to %s is not a number", key, method);
    return json_integer_value(value);
}

/* Return a string as valid UTF-8; if it is not, replace all bytes that are not ASCII by '?'. */
static json_t *readable(const char *text)
{
    json_t *value = json_string(text);
    char *plain, *letter;

    if (value != NULL)
        return value;
    plain = strcpy(allocate(strlen(text) + 1), text);
    for (letter = plain; *letter != '\0'; letter++)
        if ((unsigned char)*letter > 126)
            *letter = '?';
    value = checked(json_string(plain));
    free(plain);
    return value;
}

/* --- descriptors instead of names, if this is compiled with CIEL_SOCKET --- */

#ifdef CIEL_SOCKET

struct place {
    int fd;
    char directory[sizeof((struct sockaddr_un *)0)->sun_path];
    struct sockaddr_un address;
};

/* Find a directory whose name is short enough for a socket in it. */
static void make_place(struct place *place)
{
    const char *parents[] = {getenv("CIEL_SCRATCH"), getenv("TMPDIR"), "/tmp"};
    size_t i;
    int length;

    for (i = 0; i < sizeof parents / sizeof *parents; i++) {
        if (parents[i] == NULL)
            continue;
        length = snprintf(place->directory, sizeof place->directory, "%s/ciel-XXXXXX", parents[i]);
        if (length < 0 || (size_t)length + sizeof "/socket" > sizeof place->directory)
            continue;
        if (mkdtemp(place->directory) != NULL)
            return;
    }
    fail("no directory for a socket can be created: %s", strerror(errno));
}

/* Create a socket for receiving a descriptor, and add its name to the arguments of a call. */
static void offer_socket(struct place *place, json_t *args)
{
    make_place(place);
    memset(&place->address, 0, sizeof place->address);
    place->address.sun_family = AF_UNIX;
    memcpy(place->address.sun_path, place->directory, strlen(place->directory));
    strcat(place->address.sun_path, "/socket");
    place->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (place->fd < 0 || fcntl(place->fd, F_SETFD, FD_CLOEXEC) != 0
        || bind(place->fd, (struct sockaddr *)&place->address, sizeof place->address) != 0
        || listen(place->fd, 1) != 0)
        fail("no socket can be created at %s: %s", place->address.sun_path, strerror(errno));
    set(args, "fd_socket_name", json_string(place->address.sun_path));
}

static void remove_socket(struct place *place)
{
    close(place->fd);
    unlink(place->address.sun_path);
    rmdir(place->directory);
}

static int receive_descriptor(struct place *place)
{
    struct pollfd listening = {.fd = place->fd, .events = POLLIN, .revents = 0};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    char word[2];
    struct iovec data = {.iov_base = word, .iov_len = sizeof word};
    struct msghdr message;
    struct cmsghdr *header;
    int fd, connection;

    if (poll(&listening, 1, CONNECT_WITHIN_MS) != 1)
        fail("the worker announced a descriptor, but sent none within %d ms", CONNECT_WITHIN_MS);
    connection = accept(place->fd, NULL, NULL);
    memset(&message, 0, sizeof message);
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    if (connection < 0 || recvmsg(connection, &message, 0) < 0)
        fail("no descriptor can be received: %s", strerror(errno));
    header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_type != SCM_RIGHTS || header->cmsg_len < CMSG_LEN(sizeof fd))
        fail("the worker sent something other than a descriptor");
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    close(connection);
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        fail("the descriptor of the worker cannot be used: %s", strerror(errno));
    return fd;
}

#endif

/* Request a file, by name or descriptor. Return its descriptor, and the reply in `*reply`; -1 if
 * the object is not available yet. */
static int ask_for_file(const char *method, json_t *args, int flags, json_t **reply)
{
    json_t *error;
    const char *path;
    int fd;
#ifdef CIEL_SOCKET
    struct place place;

    offer_socket(&place, args);
    *reply = ask(method, args);
    fd = json_is_true(json_object_get(*reply, "sending_fd")) ? receive_descriptor(&place) : -1;
    remove_socket(&place);
    if (fd >= 0)
        return fd;
#else
    *reply = ask(method, args);
#endif
    error = json_object_get(*reply, "error");
    if (error != NULL) {
        if (strcmp(text_in(*reply, method, "error"), "EWOULDBLOCK") != 0)
            fail("%s: %s", method, json_string_value(error));
        return -1;
    }
    path = text_in(*reply, method, "filename");
    fd = open(path, flags | O_CLOEXEC, 0666);
    if (fd < 0)
        fail("%s cannot be opened: %s", path, strerror(errno));
    return fd;
}

/* --- tasks --- */

void ciel_init(char *out_fifo, char *in_fifo)
{
    /* The worker opens the FIFOs in the same order; each open waits for the other side's. */
    to_worker = fopen(out_fifo, "w");
    from_worker = to_worker == NULL ? NULL : fopen(in_fifo, "r");
    if (from_worker == NULL)
        fail("%s: %s", to_worker == NULL ? out_fifo : in_fifo, strerror(errno));
    setvbuf(to_worker, NULL, _IOFBF, BUFFER_BYTES);
    setvbuf(from_worker, NULL, _IOFBF, BUFFER_BYTES);
    fcntl(fileno(to_worker), F_SETFD, FD_CLOEXEC);
    fcntl(fileno(from_worker), F_SETFD, FD_CLOEXEC);
}

json_t *ciel_get_next_task(void)
{
    const char *method = "";
    json_t *args;

    if (from_worker == NULL)
        fail("ciel_get_task or ciel_get_next_task is called before ciel_init");
    flush(to_worker);
    do { /* replies to calls of the last task may precede the task */
        args = receive_call(&method);
        is_over = args == NULL;
        if (is_over || strcmp(method, "start_task") == 0)
            return args;
        json_decref(args);
    } while (strcmp(method, "publish_string") == 0 && unread-- > 0);
    if (strcmp(method, "die") != 0)
        fail("the worker sent %s instead of a task", method);
    return NULL;
}

json_t *ciel_get_task(void)
{
    json_t *task = ciel_get_next_task();

    if (task == NULL)
        exit(0); /* the worker has no task for this program */
    return task;
}

/* --- inputs --- */

static struct ciel_input *new_input(int fd, json_t *ref)
{
    struct ciel_input *input = allocate(sizeof *input);

    memset(input, 0, offsetof(struct ciel_input, buffer));
    input->fd = fd;
    input->ends_here = 1;
    input->id = ciel_get_ref_id(ref);
    if (input->id == NULL)
        fail("the argument to open is not a reference");
    return input;
}

struct ciel_input *ciel_open_ref(json_t *ref)
{
    json_t *reply;
    json_t *args = checked(json_pack("{s: O}", "ref", ref));
    int fd = ask_for_file("open_ref", args, O_RDONLY, &reply);

    json_decref(reply);
    return fd < 0 ? NULL : new_input(fd, ref);
}

struct ciel_input *ciel_open_ref_async(json_t *ref, int chunk_size, int sole_consumer,
                                       int must_block)
{
    const char *method = "open_ref_async";
    json_t *args = checked(json_pack("{s: O, s: i, s: b, s: b}", "ref", ref, "chunk_size",
                                     chunk_size, "sole_consumer", sole_consumer, "must_block",
                                     must_block));
    struct ciel_input *input = NULL;
    json_t *reply;
    int is_done, fd = ask_for_file(method, args, O_RDONLY, &reply);

    if (fd >= 0) {
        input = new_input(fd, ref);
        is_done = flag_in(reply, method, "done");
        input->ends_here = flag_in(reply, method, "blocking") || is_done;
        input->is_announced = !is_done;
        input->chunk_size = chunk_size;
        input->size = number_in(reply, method, "size");
    }
    json_decref(reply);
    return input;
}

/* Wait until more data of an object is available, or it is complete, and return 1. Return 0 if its
 * producer has failed. */
static int await_more(struct ciel_input *input)
{
    const char *method = "wait_stream";
    json_t *reply = ask(method, checked(json_pack("{s: s, s: I}", "id", input->id, "bytes",
                                                  input->position + input->chunk_size)));
    int is_good = flag_in(reply, method, "success");

    if (is_good) {
        input->size = number_in(reply, method, "size");
        input->ends_here = flag_in(reply, method, "done");
    } else {
        fprintf(stderr, "ciel: %s broke off after %lld bytes: its producer has failed\n", input->id,
                (long long)input->position);
    }
    json_decref(reply);
    return is_good;
}

/* Read from the file; 0 at its current end. */
static ssize_t read_file(struct ciel_input *input, char *buf, size_t len)
{
    ssize_t count;

    do
        count = read(input->fd, buf, len);
    while (count < 0 && errno == EINTR);
    if (count < 0)
        fprintf(stderr, "ciel: %s cannot be read: %s\n", input->id, strerror(errno));
    else
        input->position += count;
    return count;
}

/* Read available data, at most `len` bytes, from the buffer, or else from the file. */
static ssize_t take(struct ciel_input *input, char *buf, size_t len)
{
    size_t held;

    if (input->start == input->end) {
        ssize_t count;

        if (input->is_unbuffered || len >= BUFFER_BYTES)
            return read_file(input, buf, len);
        count = read_file(input, input->buffer, BUFFER_BYTES);
        if (count <= 0)
            return count;
        input->start = 0;
        input->end = (size_t)count;
    }
    held = input->end - input->start;
    if (len > held)
        len = held;
    memcpy(buf, input->buffer + input->start, len);
    input->start += len;
    return (ssize_t)len;
}

int ciel_read_ref(struct ciel_input *input, char *buf, int len)
{
    int total = 0;

    while (total < len) {
        ssize_t count = take(input, buf + total, (size_t)(len - total));

        if (count > 0) {
            total += (int)count;
        } else if (total > 0) {
            break; /* the next call returns the error */
        } else if (count < 0) {
            return -1;
        } else if (input->ends_here) {
            if (input->position >= input->size)
                break;
            fprintf(stderr, "ciel: %s ended after %lld of %lld bytes\n", input->id,
                    (long long)input->position, (long long)input->size);
            return -1;
        } else if (!await_more(input)) {
            return -1;
        }
    }
    return total;
}

void ciel_set_input_unbuffered(struct ciel_input *input)
{
    input->is_unbuffered = 1;
}

int ciel_input_fd(struct ciel_input *input)
{
    return input->fd;
}

void ciel_close_ref(struct ciel_input *input)
{
    if (input->is_announced && !is_over)
        queue_call("close_stream",
                   json_pack("{s: s, s: i}", "id", input->id, "chunk_size", input->chunk_size));
    close(input->fd);
    free(input->id);
    free(input);
}

void ciel_block_on_refs(int n, ...)
{
    json_t *refs = checked(json_array());
    json_t *keywords =
        checked(json_pack("{s: o, s: b}", "extra_dependencies", refs, "is_fixed", 1));
    json_t *task;
    va_list values;
    int i;

    if (open_outputs > 0)
        fail("ciel_block_on_refs: %d outputs are still open", open_outputs);
    va_start(values, n);
    for (i = 0; i < n; i++)
        if (json_array_append(refs, va_arg(values, json_t *)) != 0)
            fail("ciel_block_on_refs: argument %d is not a reference", i + 2);
    va_end(values);
    ciel_tail_spawn("proc", keywords);
    json_decref(keywords);
    ciel_exit_keep("must_keep", NULL);
    task = ciel_get_task();
    json_decref(task);
}

json_t *ciel_package_lookup(char *key)
{
    json_t *reply = ask("package_lookup", json_pack("{s: s}", "key", key));
    json_t *value = json_incref(part(reply, "package_lookup", "value"));

    json_decref(reply);
    return json_is_null(value) ? NULL : value;
}

char *ciel_get_ref_id(json_t *ref)
{
    const char *id = json_string_value(json_array_get(json_object_get(ref, "__ref__"), 1));

    return id == NULL ? NULL : strcpy(allocate(strlen(id) + 1), id);
}

/* --- outputs --- */

struct ciel_output *ciel_open_output(int index, int may_stream, int may_pipe, int make_sweetheart)
{
    json_t *reply;
    json_t *args = checked(json_pack("{s: i, s: b, s: b, s: b}", "index", index, "may_stream",
                                     may_stream, "may_pipe", may_pipe, "make_local_sweetheart",
                                     make_sweetheart));
    int fd = ask_for_file("open_output", args, O_WRONLY | O_CREAT | O_TRUNC, &reply);
    struct ciel_output *output;

    json_decref(reply);
    if (fd < 0)
        return NULL;
    output = allocate(sizeof *output);
    *output = (struct ciel_output){.file = fdopen(fd, "w"), .index = index};
    if (output->file == NULL)
        fail("output %d cannot be opened: %s", index, strerror(errno));
    setvbuf(output->file, NULL, _IOFBF, BUFFER_BYTES);
    open_outputs++;
    return output;
}

int ciel_write_output(struct ciel_output *output, char *buf, int len)
{
    int count = len <= 0 ? 0 : (int)fwrite(buf, 1, (size_t)len, output->file);

    if (count < len || (output->is_unbuffered && fflush(output->file) != 0))
        output->error = errno;
    output->size += count;
    return count;
}

int ciel_write_output_at(struct ciel_output *output, char *buf, int len, long offset)
{
    int count = 0;

    if (fflush(output->file) == 0) {
        ssize_t written = pwrite(fileno(output->file), buf, (size_t)len, offset);

        count = written < 0 ? 0 : (int)written;
    }
    if (count < len)
        output->error = errno;
    return count;
}

int ciel_skip_output(struct ciel_output *output, long bytes)
{
    if (fseek(output->file, bytes, SEEK_CUR) != 0) {
        output->error = errno;
        return -1;
    }
    output->size += bytes;
    return 0;
}

int ciel_output_fd(struct ciel_output *output)
{
    return fileno(output->file);
}

void ciel_set_output_unbuffered(struct ciel_output *output)
{
    output->is_unbuffered = 1;
    if (fflush(output->file) != 0)
        output->error = errno;
}

json_t *ciel_close_output(struct ciel_output *output)
{
    json_t *reply, *ref;

    if (fclose(output->file) != 0 && output->error == 0)
        output->error = errno;
    if (output->error != 0)
        fail("output %d cannot be written completely: %s", output->index, strerror(output->error));
    open_outputs--;
    reply = ask("close_output",
                json_pack("{s: i, s: I}", "index", output->index, "size", output->size));
    free(output);
    ref = json_incref(part(reply, "close_output", "ref"));
    json_decref(reply);
    return ref;
}

/* Publish a long text, which may not fit into a frame, through a file. */
static void write_text(int index, char *text, size_t length)
{
    struct ciel_output *output = ciel_open_output(index, 0, 0, 0);

    if (output == NULL)
        fail("output %d cannot be opened", index);
    while (length > 0) {
        int step = length > FRAME_MAX_BYTES ? FRAME_MAX_BYTES : (int)length;

        if (ciel_write_output(output, text, step) < step)
            break; /* ciel_close_output reports the error */
        text += step;
        length -= (size_t)step;
    }
    json_decref(ciel_close_output(output));
}

static char *base64_of(const char *text, size_t length)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *from = (const unsigned char *)text;
    char *encoded = allocate((length + 2) / 3 * 4 + 1);
    char *to = encoded;

    for (; length > 0; from += 3) {
        size_t count = length < 3 ? length : 3;
        unsigned group = (unsigned)from[0] << 16;

        if (count > 1)
            group |= (unsigned)from[1] << 8;
        if (count > 2)
            group |= from[2];
        *to++ = letters[group >> 18];
        *to++ = letters[group >> 12 & 63];
        *to++ = count > 1 ? letters[group >> 6 & 63] : '=';
        *to++ = count > 2 ? letters[group & 63] : '=';
        length -= count;
    }
    *to = '\0';
    return encoded;
}

void ciel_define_output_with_plain_string(int index, char *text)
{
    size_t length = strlen(text);
    char *encoded;

    if (length > TEXT_MAX_BYTES) {
        write_text(index, text, length);
        return;
    }
    if (unread == UNREAD_MAX) {
        flush(to_worker);
        read_unread();
    }
    encoded = base64_of(text, length);
    queue_call("publish_string", json_pack("{s: i, s: s}", "index", index, "str", encoded));
    free(encoded);
    unread++;
}

int ciel_allocate_output(const char *prefix)
{
    json_t *reply = ask("allocate_output", json_pack("{s: s}", "prefix", prefix));
    json_int_t index = number_in(reply, "allocate_output", "index");

    json_decref(reply);
    return (int)index;
}

/* --- children --- */

static json_t *spawn_args(const char *executor, json_t *keywords)
{
    json_t *args = checked(keywords == NULL ? json_object() : json_copy(keywords));

    set(args, "executor_name", json_string(executor));
    return args;
}

json_t *ciel_spawn(const char *executor, json_t *keywords)
{
    return ask("spawn", spawn_args(executor, keywords));
}

void ciel_tail_spawn(const char *executor, json_t *keywords)
{
    queue_call("tail_spawn", spawn_args(executor, keywords));
}

/* --- the end --- */

static void end_task(void)
{
    fflush(stdout); /* so that the output is not attributed to the next task */
    flush(to_worker);
    is_over = 1;
}

void ciel_exit_keep(const char *keep, json_t *soft_cache_keys)
{
    json_t *args = checked(json_pack("{s: s}", "keep_process", keep));

    if (soft_cache_keys != NULL)
        set(args, "soft_cache_keys", json_incref(soft_cache_keys));
    queue_call("exit", args);
    end_task();
}

void ciel_exit(void)
{
    ciel_exit_keep("no", NULL);
}

void ciel_error(const char *report)
{
    queue_call("error", json_pack("{s: o}", "report", readable(report)));
    end_task();
}

void ciel_log(const char *message)
{
    queue_call("log", json_pack("{s: o}", "message", readable(message)));
    flush(to_worker);
}
