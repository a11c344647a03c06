#include "page_client.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    REPLY_SLICE_MS = 100, /* so often, a call that waits asks where its extent is now */
    AGAIN_MIN_US = 500,
    AGAIN_MAX_US = 20000,
    DAMAGED_MAX = 3, /* tries to read a page that arrives damaged */
};

struct place {
    uint32_t epoch; /* 0: not known */
    uint32_t server;
};

struct page_volume {
    pthread_mutex_t mutex; /* for the companion, and the places */
    int companion;
    uint64_t number;
    uint32_t extents;
    double timeout_s;
    struct place places[];
};

struct page_session {
    struct page_volume *volume;
    uint64_t number, last_id;
    int connections[PEERS_MAX]; /* by server; -1: none */
    uint8_t *payload;           /* room for an extent: checksums and pages */
    char why[WHY_BYTES];
};

enum outcome { DONE, AGAIN, FAILED };

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void say(struct page_session *session, const char *format, ...)
{
    va_list values;

    va_start(values, format);
    vsnprintf(session->why, sizeof session->why, format, values);
    va_end(values);
}

/* --- the companion ---------------------------------------------------------------------------- */

/* Ask the companion. Return the descriptor that came with the answer, or -1. */
static int ask(struct page_volume *volume, const struct question *question, struct answer *answer)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {answer, sizeof *answer};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    int fd = -1;

    *answer = (struct answer){.status = ANSWER_FAILED, .why = "the companion has ended"};
    if (send(volume->companion, question, sizeof *question, MSG_NOSIGNAL) < 0)
        return -1;
    ssize_t size;
    do
        size = recvmsg(volume->companion, &message, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size != sizeof *answer) {
        *answer = (struct answer){.status = ANSWER_FAILED, .why = "the companion has ended"};
        return -1;
    }
    answer->why[WHY_BYTES - 1] = 0;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

/* Find out where an extent is, if that is not known, or not later than `epoch`. */
static enum outcome find(struct page_session *session, uint32_t extent, uint32_t epoch,
                         struct place *place)
{
    struct page_volume *volume = session->volume;
    struct question question = {.kind = ASK_PLACE, .extent = extent};
    struct answer answer = {.status = ANSWER_OK};

    pthread_mutex_lock(&volume->mutex);
    *place = volume->places[extent];
    if (place->epoch <= epoch) {
        ask(volume, &question, &answer);
        if (answer.status == ANSWER_OK && answer.server < PEERS_MAX) {
            *place = (struct place){answer.epoch, answer.server};
            volume->places[extent] = *place;
        }
    }
    pthread_mutex_unlock(&volume->mutex);
    if (answer.status != ANSWER_OK && answer.why[0] != 0)
        say(session, "%s", answer.why);
    return answer.status == ANSWER_OK ? DONE : answer.status == ANSWER_WAIT ? AGAIN : FAILED;
}

static enum outcome connect_to(struct page_session *session, uint32_t server)
{
    struct question question = {
        .kind = ASK_CONNECTION, .server = server, .session = session->number};
    struct answer answer;

    if (session->connections[server] >= 0)
        return DONE;
    pthread_mutex_lock(&session->volume->mutex);
    session->connections[server] = ask(session->volume, &question, &answer);
    pthread_mutex_unlock(&session->volume->mutex);
    if (session->connections[server] < 0)
        say(session, "%s", answer.why);
    return session->connections[server] >= 0 ? DONE : AGAIN;
}

static enum outcome hang_up(struct page_session *session, uint32_t server)
{
    if (session->connections[server] >= 0)
        close(session->connections[server]);
    session->connections[server] = -1;
    say(session, "the connection to a memory server has ended");
    return AGAIN;
}

/* --- requests --------------------------------------------------------------------------------- */

static int send_all(int fd, const struct frame *frame, const uint8_t *payload)
{
    struct iovec parts[2] = {{(void *)frame, sizeof *frame}, {(void *)payload, frame->size_bytes}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = frame->size_bytes > 0 ? 2 : 1};

    while (message.msg_iovlen > 0) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return 0;
        while (message.msg_iovlen > 0 && (size_t)sent >= message.msg_iov->iov_len) {
            sent -= (ssize_t)message.msg_iov->iov_len;
            message.msg_iov++;
            message.msg_iovlen--;
        }
        if (message.msg_iovlen > 0) {
            message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + sent;
            message.msg_iov->iov_len -= (size_t)sent;
        }
    }
    return 1;
}

static int receive_all(int fd, void *bytes, size_t size)
{
    char *at = bytes;

    while (size > 0) {
        ssize_t count = recv(fd, at, size, MSG_WAITALL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return 0;
        at += count;
        size -= (size_t)count;
    }
    return 1;
}

/* Wait for a reply, until the extent has another place or the time is over. */
static int has_reply(struct page_session *session, int fd, uint32_t extent, uint32_t epoch,
                     double until_s)
{
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    struct place place;

    while (poll(&polled, 1, REPLY_SLICE_MS) <= 0) {
        if (now_s() > until_s)
            return 0;
        if (find(session, extent, epoch, &place) != AGAIN && place.epoch != epoch)
            return 0;
    }
    return 1;
}

/* Send a request once, to the server that the companion names. */
static enum outcome try_once(struct page_session *session, struct frame *frame, uint32_t *epoch,
                             double until_s)
{
    uint32_t extent = (uint32_t)(frame->page / EXTENT_PAGES);
    struct place place;
    struct frame reply;
    uint32_t expected = frame->op == OP_READ ? frame->count * (PAGE_BYTES + 4) : 0;
    enum outcome found = find(session, extent, *epoch, &place);

    if (found != DONE)
        return found;
    *epoch = place.epoch; /* another try begins with a question to the companion */
    if (connect_to(session, place.server) != DONE)
        return AGAIN;
    int fd = session->connections[place.server];
    frame->epoch = place.epoch;
    if (!send_all(fd, frame, session->payload) ||
        !has_reply(session, fd, extent, place.epoch, until_s) ||
        !receive_all(fd, &reply, sizeof reply) || reply.id != frame->id || reply.op != frame->op ||
        (reply.size_bytes != 0 && reply.size_bytes != expected) ||
        !receive_all(fd, session->payload, reply.size_bytes))
        return hang_up(session, place.server);
    switch (reply.status) {
    case STATUS_OK:
        return reply.size_bytes == expected ? DONE : hang_up(session, place.server);
    case STATUS_STALE:
        say(session, "the memory servers do not agree yet");
        return AGAIN;
    case STATUS_NO_SPACE:
        say(session, "a memory server has no space");
        return FAILED;
    default:
        say(session, "pages were damaged on their way to a memory server");
        return hang_up(session, place.server);
    }
}

/* Send a request until it is carried out. A write's payload lies in `session->payload`. */
static int carry_out(struct page_session *session, enum op op, uint64_t page, uint32_t count)
{
    struct frame frame = {
        .size_bytes = op == OP_WRITE ? count * (PAGE_BYTES + 4) : 0, .op = (uint16_t)op,
        .id = ++session->last_id, .volume = session->volume->number, .page = page,
        .count = count};
    double until_s = now_s() + session->volume->timeout_s;
    useconds_t delay_us = AGAIN_MIN_US;
    uint32_t epoch = 0; /* of the last try */

    for (;;) {
        enum outcome outcome = try_once(session, &frame, &epoch, until_s);
        if (outcome == DONE)
            return 0;
        if (outcome == FAILED || now_s() > until_s)
            return -1;
        usleep(delay_us);
        delay_us = delay_us * 2 > AGAIN_MAX_US ? AGAIN_MAX_US : delay_us * 2;
    }
}

static int read_pages(struct page_session *session, uint64_t page, uint32_t count)
{
    for (int tries = 0; tries < DAMAGED_MAX; tries++) {
        uint32_t intact = 0, checksum;
        if (carry_out(session, OP_READ, page, count) != 0)
            return -1;
        for (; intact < count; intact++) {
            memcpy(&checksum, session->payload + 4 * intact, 4);
            if (page_checksum(session->payload + 4 * count + (uint64_t)intact * PAGE_BYTES,
                              PAGE_BYTES) != checksum)
                break;
        }
        if (intact == count)
            return 0;
    }
    say(session, "page %llu is damaged", (unsigned long long)page);
    return -1;
}

/* Write the pages in the payload, whose checksums are still missing. */
static int write_pages(struct page_session *session, uint64_t page, uint32_t count)
{
    for (uint32_t n = 0; n < count; n++) {
        uint32_t checksum = page_checksum(
            session->payload + 4 * count + (uint64_t)n * PAGE_BYTES, PAGE_BYTES);
        memcpy(session->payload + 4 * n, &checksum, 4);
    }
    return carry_out(session, OP_WRITE, page, count);
}

/* --- calls ------------------------------------------------------------------------------------ */

/* A part of a call, within one extent. */
struct part {
    uint64_t page;
    uint32_t count;
    uint32_t offset; /* in the first page */
    uint64_t size;
};

static struct part first_part(uint64_t address, uint64_t size)
{
    struct part part = {.page = address / PAGE_BYTES, .offset = (uint32_t)(address % PAGE_BYTES)};
    uint64_t room = (EXTENT_PAGES - part.page % EXTENT_PAGES) * PAGE_BYTES - part.offset;

    part.size = size < room ? size : room;
    part.count = (uint32_t)((part.offset + part.size + PAGE_BYTES - 1) / PAGE_BYTES);
    return part;
}

static int is_inside(struct page_session *session, uint64_t size, uint64_t address)
{
    uint64_t end = (uint64_t)session->volume->extents * EXTENT_PAGES * PAGE_BYTES;

    if (address <= end && size <= end - address)
        return 1;
    say(session, "the volume has %llu bytes", (unsigned long long)end);
    errno = ENOSPC;
    return 0;
}

int page_session_read(struct page_session *session, void *bytes, uint64_t size, uint64_t address)
{
    uint8_t *to = bytes;

    if (!is_inside(session, size, address))
        return -1;
    while (size > 0) {
        struct part part = first_part(address, size);
        errno = EIO;
        if (read_pages(session, part.page, part.count) != 0)
            return -1;
        memcpy(to, session->payload + 4 * part.count + part.offset, part.size);
        to += part.size;
        address += part.size;
        size -= part.size;
    }
    return 0;
}

/* Write a part, whose first and last page may be incomplete. `from` NULL: zeros. */
static int write_part(struct page_session *session, const struct part *part, const uint8_t *from)
{
    uint8_t edges[2][PAGE_BYTES];
    uint64_t end = part->offset + part->size;
    uint32_t last = part->count - 1;
    uint8_t *pages = session->payload + 4 * part->count;
    int keeps_first = part->offset != 0, keeps_last = end % PAGE_BYTES != 0;

    if (keeps_first && read_pages(session, part->page, 1) != 0)
        return -1;
    if (keeps_first)
        memcpy(edges[0], session->payload + 4, PAGE_BYTES);
    if (keeps_last && read_pages(session, part->page + last, 1) != 0)
        return -1;
    if (keeps_last)
        memcpy(edges[1], session->payload + 4, PAGE_BYTES);
    if (keeps_last)
        memcpy(pages + (uint64_t)last * PAGE_BYTES, edges[1], PAGE_BYTES);
    if (keeps_first)
        memcpy(pages, edges[0], part->offset);
    if (from != NULL)
        memcpy(pages + part->offset, from, part->size);
    else
        memset(pages + part->offset, 0, part->size);
    return write_pages(session, part->page, part->count);
}

int page_session_write(struct page_session *session, const void *bytes, uint64_t size,
                       uint64_t address)
{
    const uint8_t *from = bytes;

    if (!is_inside(session, size, address))
        return -1;
    while (size > 0) {
        struct part part = first_part(address, size);
        errno = EIO;
        if (write_part(session, &part, from) != 0)
            return -1;
        from += part.size;
        address += part.size;
        size -= part.size;
    }
    return 0;
}

int page_session_trim(struct page_session *session, uint64_t size, uint64_t address)
{
    if (!is_inside(session, size, address))
        return -1;
    while (size > 0) {
        struct part part = first_part(address, size);
        errno = EIO;
        uint64_t step = part.size / PAGE_BYTES * PAGE_BYTES; /* whole pages, or a part of one */
        if (part.offset != 0)
            step = PAGE_BYTES - part.offset;
        part = first_part(address, step == 0 || step > part.size ? part.size : step);
        int is_whole = part.offset == 0 && part.size % PAGE_BYTES == 0;
        if (is_whole ? carry_out(session, OP_TRIM, part.page, part.count) != 0
                     : write_part(session, &part, NULL) != 0)
            return -1;
        address += part.size;
        size -= part.size;
    }
    return 0;
}

const char *page_session_why(const struct page_session *session) { return session->why; }

/* --- volumes and sessions --------------------------------------------------------------------- */

struct page_volume *page_volume_open(int companion, uint64_t number, uint32_t extents,
                                     double timeout_s)
{
    struct page_volume *volume = calloc(1, sizeof *volume + extents * sizeof(struct place));

    if (volume == NULL)
        return NULL;
    pthread_mutex_init(&volume->mutex, NULL);
    volume->companion = companion;
    volume->number = number;
    volume->extents = extents;
    volume->timeout_s = timeout_s;
    return volume;
}

void page_volume_close(struct page_volume *volume)
{
    close(volume->companion);
    pthread_mutex_destroy(&volume->mutex);
    free(volume);
}

struct page_session *page_session_open(struct page_volume *volume)
{
    struct page_session *session = calloc(1, sizeof *session);

    if (session != NULL)
        session->payload = malloc(EXTENT_PAGES * (PAGE_BYTES + 4));
    if (session == NULL || session->payload == NULL ||
        getrandom(&session->number, sizeof session->number, 0) != sizeof session->number) {
        if (session != NULL)
            free(session->payload);
        free(session);
        return NULL;
    }
    session->number |= 1; /* 0 is a server */
    session->volume = volume;
    for (int n = 0; n < PEERS_MAX; n++)
        session->connections[n] = -1;
    return session;
}

void page_session_close(struct page_session *session)
{
    for (int n = 0; n < PEERS_MAX; n++)
        if (session->connections[n] >= 0)
            close(session->connections[n]);
    free(session->payload);
    free(session);
}
