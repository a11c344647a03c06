/* libshmdc: see shmdc.h. docs/protocol/shmd.md specifies the frames, and when a client may open an
 * object without a request. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shmdc.h"

enum {
    VERSION = 1,
    LENGTH_BYTES = 4,
    HEAD_BYTES = 12, /* version, kind, flags, number of the request */
    FRAME_MAX_BYTES = 8 << 10,
    NAME_MAX_BYTES = 256,
    PATH_MAX_BYTES = 4095,
    REASON_MAX_BYTES = 1024,
    ID_MAX_BYTES = 128,
    TIMEOUT_MS = 30000,
    TIMEOUT_MAX_MS = 3600000,
    SLACK_MS = 500,         /* the daemon itself reports a timeout, if it can */
    NAMED_MIN_BYTES = 1 << 20, /* a file of this size has the sticky bit if it may be opened */
};
enum kind { LOAD = 1, WRITE, COMMIT, OK, FAIL, ABANDON };
enum { RECURSIVE = 1, DESCRIBED = 2, ONLY_MAPPED = 1 }; /* flags of frames */

/* The connection ended before the answer; callers get only positive statuses. */
enum { LOST = -1 };

struct shmdc {
    pthread_mutex_t lock;
    int fd;         /* the connection; -1: none */
    int objects_fd; /* the directory of the objects in memory; -1: not known */
    uint32_t timeout_ms;
    uint64_t number; /* of the last request */
    size_t in_bytes; /* received, and not read yet */
    unsigned char in[LENGTH_BYTES + FRAME_MAX_BYTES];
    char directory[PATH_MAX_BYTES + 1];
    char objects[PATH_MAX_BYTES + 1]; /* the path of `objects_fd` */
    char attempt[NAME_MAX_BYTES + 1];
};

struct request {
    enum kind kind;
    int flags;
    uint64_t size_bytes;  /* of a write */
    const char *texts[2]; /* NULL: the kind has no second one */
};

__attribute__((format(printf, 3, 4))) static int fail(struct shmdc_reply *reply, int status,
                                                      const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(reply->reason, sizeof reply->reason, format, arguments);
    va_end(arguments);
    return status;
}

static void clear(struct shmdc_reply *reply)
{
    reply->size_bytes = 0;
    reply->path[0] = reply->checksum[0] = reply->reason[0] = '\0';
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Return when a request that begins now has timed out. */
static int64_t deadline_ms(const struct shmdc *store)
{
    return now_ms() + store->timeout_ms;
}

/* --- frames --- */

static unsigned char *put_number(unsigned char *to, uint64_t number, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, number >>= 8)
        to[i] = (unsigned char)number;
    return to + bytes;
}

static uint64_t get_number(const unsigned char *from, int bytes)
{
    uint64_t number = 0;

    for (int i = 0; i < bytes; i++)
        number = number << 8 | from[i];
    return number;
}

/* Write a request to `frame`, which has room for the longest texts; return its size. */
static size_t encode(const struct request *request, uint64_t number, uint32_t timeout_ms,
                     unsigned char *frame)
{
    unsigned char *at = put_number(frame + LENGTH_BYTES, VERSION, 1);

    at = put_number(at, request->kind, 1);
    at = put_number(at, (uint64_t)request->flags, 2);
    at = put_number(at, number, 8);
    at = put_number(at, timeout_ms, 4);
    if (request->kind == WRITE)
        at = put_number(at, request->size_bytes, 8);
    for (int i = 0; i < 2 && request->texts[i] != NULL; i++) {
        size_t size = strlen(request->texts[i]);

        at = put_number(at, size, 2);
        memcpy(at, request->texts[i], size);
        at += size;
    }
    put_number(frame, (uint64_t)(at - frame - LENGTH_BYTES), LENGTH_BYTES);
    return (size_t)(at - frame);
}

struct text {
    const unsigned char *bytes;
    size_t size;
};

/* An answer of the daemon; its texts lie in the frame. `value`: the size, or the code. */
struct answer {
    enum kind kind;
    uint64_t number;
    uint64_t value;
    struct text texts[2];
};

/* Read the body of a frame. Return NULL, or the mistake in it. */
static const char *decode(const unsigned char *body, size_t size, struct answer *answer)
{
    static const size_t limits[2][2] = {{PATH_MAX_BYTES, NAME_MAX_BYTES},
                                        {PATH_MAX_BYTES, REASON_MAX_BYTES}};
    size_t at = HEAD_BYTES;

    if (size < HEAD_BYTES)
        return "a frame ends inside its header";
    if (body[0] != VERSION)
        return "its version is not supported";
    if (body[1] != OK && body[1] != FAIL)
        return "a frame is not an answer";
    if (get_number(body + 2, 2) != 0)
        return "an answer has flags";
    answer->kind = body[1];
    answer->number = get_number(body + 4, 8);
    int width = answer->kind == OK ? 8 : 2;
    if (size - at < (size_t)width)
        return "a frame ends inside its numbers";
    answer->value = get_number(body + at, width);
    at += (size_t)width;
    if (answer->kind == FAIL && (answer->value < SHMDC_NOT_FOUND || answer->value > SHMDC_FAILED))
        return "there is no such code";
    for (int i = 0; i < 2; i++) {
        struct text *text = &answer->texts[i];

        if (size - at < 2)
            return "a frame ends before a text";
        text->size = get_number(body + at, 2);
        at += 2;
        text->bytes = body + at;
        if (text->size > limits[answer->kind == FAIL][i] || text->size > size - at ||
            memchr(text->bytes, 0, text->size) != NULL)
            return "a text is too long, truncated, or contains a zero byte";
        at += text->size;
    }
    return at == size ? NULL : "a frame has bytes too many";
}

static void copy(char *to, const struct text *text)
{
    memcpy(to, text->bytes, text->size);
    to[text->size] = '\0';
}

/* Take the answer to request `number` from the received bytes. Return whether it was there, or LOST
 * if the bytes are not frames. Drop answers to earlier requests. */
static int take_answer(struct shmdc *store, uint64_t number, int *status,
                       struct shmdc_reply *reply)
{
    while (store->in_bytes >= LENGTH_BYTES) {
        size_t size = get_number(store->in, LENGTH_BYTES);
        const char *problem = "a frame is too long";
        struct answer answer = {0};
        int is_ours;

        if (size <= FRAME_MAX_BYTES && store->in_bytes < LENGTH_BYTES + size)
            return 0;
        if (size <= FRAME_MAX_BYTES)
            problem = decode(store->in + LENGTH_BYTES, size, &answer);
        if (problem != NULL) {
            fail(reply, LOST, "the daemon of %.900s: invalid SHMD message: %s", store->directory,
                 problem);
            return LOST;
        }
        is_ours = answer.number == number;
        if (is_ours && answer.kind == OK) {
            *status = 0;
            reply->size_bytes = answer.value;
            copy(reply->path, &answer.texts[0]);
            copy(reply->checksum, &answer.texts[1]);
        } else if (is_ours) {
            *status = (int)answer.value;
            snprintf(reply->reason, sizeof reply->reason, "%.*s: %.*s",
                     answer.texts[0].size > 200 ? 200 : (int)answer.texts[0].size,
                     (const char *)answer.texts[0].bytes, (int)answer.texts[1].size,
                     (const char *)answer.texts[1].bytes);
        }
        store->in_bytes -= LENGTH_BYTES + size;
        memmove(store->in, store->in + LENGTH_BYTES + size, store->in_bytes);
        if (is_ours)
            return 1;
    }
    return 0;
}

/* --- the connection --- */

static void hang_up(struct shmdc *store)
{
    if (store->fd >= 0)
        close(store->fd);
    if (store->objects_fd >= 0)
        close(store->objects_fd); /* only a daemon that lives vouches for it */
    store->fd = store->objects_fd = -1;
    store->in_bytes = 0;
}

static int late(const struct shmdc *store, struct shmdc_reply *reply)
{
    return fail(reply, SHMDC_TIMEOUT,
                "the daemon of %.900s has not completed the request within %u ms: it may be "
                "stopped, or its disk may be slow",
                store->directory, store->timeout_ms);
}

static int lost(const struct shmdc *store, struct shmdc_reply *reply)
{
    return fail(reply, LOST,
                "the daemon of %.900s: it ended the connection before it answered; it may have "
                "stopped, or have too many connections",
                store->directory);
}

static int not_connected(const struct shmdc *store, struct shmdc_reply *reply)
{
    if (errno == EAGAIN || errno == EINPROGRESS)
        return late(store, reply);
    if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR)
        return fail(reply, SHMDC_GONE,
                    "no daemon serves the block store %.900s: a worker does, or `ciel shmd`",
                    store->directory);
    if (errno == EACCES || errno == EPERM)
        return fail(reply, SHMDC_DENIED, "the daemon of %.900s: it belongs to another user",
                    store->directory);
    return fail(reply, SHMDC_GONE, "the daemon of %.900s: %s", store->directory, strerror(errno));
}

/* Connect `fd` to the socket in the store's directory; return 0, or -1 with errno. */
static int connect_to(const struct shmdc *store, int fd, int64_t until_ms)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    char place[PATH_MAX_BYTES + sizeof "/shmd"];
    int64_t left_ms = until_ms - now_ms();
    struct timeval left = {.tv_sec = left_ms / 1000, .tv_usec = left_ms % 1000 * 1000};
    int directory_fd, status;

    if (left_ms <= 0) {
        errno = EAGAIN;
        return -1;
    }
    snprintf(place, sizeof place, "%s/shmd", store->directory);
    directory_fd = open(place, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory_fd < 0)
        return -1;
    /* A short path, however deep the directory is. A connect that does not block would fail at once
     * if the daemon is busy. */
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/socket", directory_fd);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof left);
    do
        status = connect(fd, (struct sockaddr *)&address, sizeof address);
    while (status < 0 && errno == EINTR);
    int reason = errno;
    close(directory_fd);
    errno = reason;
    if (status < 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return -1;
    errno = EACCES;
    return peer.uid == geteuid() ? 0 : -1;
}

static int connected(struct shmdc *store, int64_t until_ms, struct shmdc_reply *reply)
{
    int fd;

    if (store->fd >= 0)
        return 0;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect_to(store, fd, until_ms) < 0) {
        int status = not_connected(store, reply);

        if (fd >= 0)
            close(fd);
        return status;
    }
    store->fd = fd;
    store->in_bytes = 0;
    return 0;
}

/* Wait until the connection can be read or written, or has ended; return whether that was in time.
 */
static int await(int fd, short events, int64_t until_ms)
{
    struct pollfd one = {.fd = fd, .events = events};

    for (;;) {
        int64_t left_ms = until_ms - now_ms();

        if (left_ms <= 0)
            return 0;
        if (poll(&one, 1, (int)left_ms) > 0)
            return 1;
    }
}

static int send_all(struct shmdc *store, const unsigned char *frame, size_t size, int64_t until_ms,
                    struct shmdc_reply *reply)
{
    while (size > 0) {
        ssize_t sent = send(store->fd, frame, size, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent >= 0) {
            frame += sent;
            size -= (size_t)sent;
        } else if (errno == EAGAIN) {
            if (!await(store->fd, POLLOUT, until_ms))
                return late(store, reply);
        } else if (errno != EINTR) {
            return lost(store, reply);
        }
    }
    return 0;
}

/* Send a request over the connection, and wait for its answer. */
static int ask_once(struct shmdc *store, const struct request *request, int64_t until_ms,
                    struct shmdc_reply *reply)
{
    unsigned char frame[LENGTH_BYTES + FRAME_MAX_BYTES];
    uint64_t number = ++store->number;
    int status = connected(store, until_ms, reply);

    if (status == 0)
        status = send_all(store, frame, encode(request, number, store->timeout_ms, frame), until_ms,
                          reply);
    while (status == 0) {
        int found = take_answer(store, number, &status, reply);

        if (found == 1)
            return status;
        if (found == LOST)
            return SHMDC_GONE;
        if (!await(store->fd, POLLIN, until_ms + SLACK_MS))
            return late(store, reply);
        ssize_t got = recv(store->fd, store->in + store->in_bytes,
                           sizeof store->in - store->in_bytes, MSG_DONTWAIT);
        if (got > 0)
            store->in_bytes += (size_t)got;
        else if (got == 0 || (errno != EAGAIN && errno != EINTR))
            status = lost(store, reply);
    }
    return status;
}

/* Let the daemon carry out a request. A load and a write are repeated once if the connection ends.
 */
static int ask(struct shmdc *store, const struct request *request, int64_t until_ms,
               struct shmdc_reply *reply)
{
    int status = ask_once(store, request, until_ms, reply);

    if (status == LOST && (request->kind == LOAD || request->kind == WRITE)) {
        hang_up(store);
        status = ask_once(store, request, until_ms, reply);
    }
    if (status == LOST)
        status = SHMDC_GONE;
    /* Else the next request could get a late answer to this one. */
    if (status >= SHMDC_INVALID || status == SHMDC_TIMEOUT)
        hang_up(store);
    if (status == 0)
        reply->reason[0] = '\0';
    return status;
}

/* --- objects in memory --- */

/* Write the name of an object's file; return whether the name is an id. */
static int file_name(const char *name, char *file)
{
    size_t size = strnlen(name, ID_MAX_BYTES + 1);

    if (size == 0 || size > ID_MAX_BYTES || strchr(":.-", name[0]) != NULL)
        return 0;
    for (size_t i = 0; i <= size; i++) {
        char c = name[i];

        if (i < size && !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || strchr("_:.-", c) != NULL))
            return 0;
        file[i] = c;
        if (c == ':')
            file[i] = '+';
    }
    return 1;
}

/* Return whether a file is a committed object that a client may open without a request. The daemon
 * marks larger files before it returns their path, since it reuses the memory of others. */
static int may_open(const struct stat *file)
{
    return S_ISREG(file->st_mode) && file->st_uid == geteuid() && (file->st_mode & 0222) == 0 &&
           (file->st_size < NAMED_MIN_BYTES || (file->st_mode & S_ISVTX) != 0);
}

/* Remember the directory of an object that the daemon has made readable. */
static void learn_directory(struct shmdc *store, const char *name, const char *path)
{
    char file[ID_MAX_BYTES + 1];
    const char *last = strrchr(path, '/');

    if (last == NULL || last == path || !file_name(name, file) || strcmp(last + 1, file) != 0)
        return;
    if (store->objects_fd >= 0)
        close(store->objects_fd);
    memcpy(store->objects, path, (size_t)(last - path));
    store->objects[last - path] = '\0';
    store->objects_fd = open(store->objects, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* Return whether the daemon still holds the connection, and has sent nothing unasked. */
static int is_alive(const struct shmdc *store)
{
    char byte;

    return recv(store->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

/* Find an object in memory without the daemon, and open it unless `fd` is NULL; return whether that
 * worked. */
static int found_in_memory(struct shmdc *store, const char *name, int *fd,
                           struct shmdc_reply *reply)
{
    char file[ID_MAX_BYTES + 1];
    struct stat status;
    int opened;

    if (store->objects_fd < 0 || !file_name(name, file) || !is_alive(store) ||
        strlen(store->objects) + 1 + strlen(file) > PATH_MAX_BYTES)
        return 0;
    if (fd == NULL) {
        if (fstatat(store->objects_fd, file, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
            !may_open(&status))
            return 0;
    } else {
        opened =
            openat(store->objects_fd, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (opened < 0)
            return 0;
        if (fstat(opened, &status) < 0 || !may_open(&status)) {
            close(opened);
            return 0;
        }
        *fd = opened;
    }
    reply->size_bytes = (uint64_t)status.st_size;
    strcpy(stpcpy(stpcpy(reply->path, store->objects), "/"), file);
    return 1;
}

static int load(struct shmdc *store, const char *name, int flags, int *fd,
                struct shmdc_reply *reply)
{
    struct request request = {.kind = LOAD,
                              .flags = (flags & SHMDC_HERE) != 0 ? 0 : RECURSIVE,
                              .texts = {name, NULL}};
    int64_t until_ms;
    int status = 0;

    if (found_in_memory(store, name, fd, reply))
        return 0;
    until_ms = deadline_ms(store);
    for (int tries = 0; tries < 2; tries++) { /* it may be deleted or moved before it is open */
        status = ask(store, &request, until_ms, reply);
        if (status != 0)
            break;
        learn_directory(store, name, reply->path);
        if (fd == NULL)
            return 0;
        *fd = open(reply->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (*fd >= 0)
            return 0;
        status = fail(reply, errno == EACCES ? SHMDC_DENIED : SHMDC_FAILED,
                      "%.128s: its file cannot be opened: %s", name, strerror(errno));
    }
    reply->path[0] = '\0';
    return status;
}

/* --- public functions --- */

/* Check arguments, lock the store, and clear the reply; return 0, or SHMDC_INVALID. */
static int begin(struct shmdc *store, int flags, int known, const char *name, const char *path,
                 struct shmdc_reply *reply)
{
    clear(reply);
    if ((flags & ~known) != 0)
        return fail(reply, SHMDC_INVALID, "the flags %#x are not known", (unsigned)flags);
    if (name == NULL || strnlen(name, NAME_MAX_BYTES + 1) > NAME_MAX_BYTES)
        return fail(reply, SHMDC_INVALID, "a name is missing, or has more than %d bytes",
                    NAME_MAX_BYTES);
    if (path == NULL || strnlen(path, PATH_MAX_BYTES + 1) > PATH_MAX_BYTES)
        return fail(reply, SHMDC_INVALID, "a path is missing, or has more than %d bytes",
                    PATH_MAX_BYTES);
    pthread_mutex_lock(&store->lock);
    return 0;
}

static int end(struct shmdc *store, int status)
{
    pthread_mutex_unlock(&store->lock);
    return status;
}

struct shmdc *shmdc_open(const char *directory, const char *attempt)
{
    const char *task = getenv("CIEL_TASK"), *number = getenv("CIEL_ATTEMPT");
    const char *place = directory != NULL ? directory : getenv("CIEL_SHMD");
    struct shmdc *store;
    int size;

    if (place == NULL) {
        errno = ENOENT;
        return NULL;
    }
    store = calloc(1, sizeof *store);
    if (store == NULL)
        return NULL;
    store->fd = store->objects_fd = -1;
    store->timeout_ms = TIMEOUT_MS;
    if (attempt != NULL)
        size = snprintf(store->attempt, sizeof store->attempt, "%s", attempt);
    else if (directory == NULL && task != NULL && number != NULL)
        size = snprintf(store->attempt, sizeof store->attempt, "%s.%s", task, number);
    else
        size = 0;
    if (strnlen(place, PATH_MAX_BYTES + 1) > PATH_MAX_BYTES || size > NAME_MAX_BYTES) {
        free(store);
        errno = ENAMETOOLONG;
        return NULL;
    }
    strcpy(store->directory, place);
    pthread_mutex_init(&store->lock, NULL);
    return store;
}

void shmdc_close(struct shmdc *store)
{
    if (store == NULL)
        return;
    hang_up(store);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

void shmdc_set_timeout(struct shmdc *store, uint32_t timeout_ms)
{
    pthread_mutex_lock(&store->lock);
    store->timeout_ms = timeout_ms < 1               ? 1
                        : timeout_ms > TIMEOUT_MAX_MS ? TIMEOUT_MAX_MS
                                                      : timeout_ms;
    pthread_mutex_unlock(&store->lock);
}

int shmdc_load(struct shmdc *store, const char *name, int flags, struct shmdc_reply *reply)
{
    int status = begin(store, flags, SHMDC_HERE, name, "", reply);

    return status != 0 ? status : end(store, load(store, name, flags, NULL, reply));
}

int shmdc_read(struct shmdc *store, const char *name, int flags, int *fd,
               struct shmdc_reply *reply)
{
    int status = begin(store, flags, SHMDC_HERE, name, "", reply);

    *fd = -1;
    return status != 0 ? status : end(store, load(store, name, flags, fd, reply));
}

int shmdc_info(struct shmdc *store, const char *name, struct shmdc_reply *reply)
{
    struct request request = {.kind = LOAD, .flags = DESCRIBED, .texts = {name, NULL}};
    int status = begin(store, 0, 0, name, "", reply);

    if (status != 0)
        return status;
    status = ask(store, &request, deadline_ms(store), reply);
    reply->path[0] = '\0'; /* it is for other stores, which may understand more than paths */
    return end(store, status);
}

int shmdc_write(struct shmdc *store, const char *name, uint64_t size_bytes, int flags,
                struct shmdc_reply *reply)
{
    struct request request = {.kind = WRITE,
                              .flags = (flags & SHMDC_MAPPED) != 0 ? ONLY_MAPPED : 0,
                              .size_bytes = size_bytes,
                              .texts = {name, store->attempt}};
    int status = begin(store, flags, SHMDC_MAPPED, name, "", reply);

    return status != 0 ? status : end(store, ask(store, &request, deadline_ms(store), reply));
}

int shmdc_commit(struct shmdc *store, const char *path, const char *name,
                 struct shmdc_reply *reply)
{
    struct request request = {.kind = COMMIT, .texts = {path, name}};
    int status = begin(store, 0, 0, name, path, reply);

    if (status != 0)
        return status;
    status = ask(store, &request, deadline_ms(store), reply);
    if (status == 0)
        learn_directory(store, name, reply->path);
    return end(store, status);
}

int shmdc_abandon(struct shmdc *store, const char *path, struct shmdc_reply *reply)
{
    struct request request = {.kind = ABANDON, .texts = {path, NULL}};
    int status = begin(store, 0, 0, "", path, reply);

    return status != 0 ? status : end(store, ask(store, &request, deadline_ms(store), reply));
}
