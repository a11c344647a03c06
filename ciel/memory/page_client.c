#include "page_client.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "page_cache.h"

enum {
    SLICE_MS = 100, /* so often, a call that waits asks where its extent is now */
    LOCAL_SEND_BYTES = 2 << 20, /* room in the kernel for the longest write, at a UNIX socket */
    AGAIN_MIN_US = 500,
    AGAIN_MAX_US = 20000,
    DAMAGED_MAX = 3, /* tries to read a page that arrives damaged */
    PIECE_BYTES = 128 << 10, /* received at a time, so that the cache has it for the checksums */
};

struct place {
    uint32_t epoch; /* 0: not known */
    uint32_t server;
};

_Static_assert(sizeof(struct place) == 8, "is read and written at once");

struct page_volume {
    pthread_mutex_t mutex; /* for the companion */
    int companion;
    uint64_t number;
    uint32_t extents;
    struct page_options options;
    struct page_cache *cache; /* NULL: none */
    _Atomic struct place places[]; /* which requests read without the mutex */
};

struct page_session {
    struct page_volume *volume;
    uint64_t number, last_id;
    int connections[PEERS_MAX]; /* by server; -1: none */
    uint32_t checksums[EXTENT_PAGES];
    uint16_t lengths[EXTENT_PAGES]; /* of packed pages */
    struct packer *packer;          /* NULL: pages are not packed */
    uint8_t *packed;                /* room for an extent */
    uint8_t *pages;                 /* room for an extent, for calls with incomplete pages */
    uint8_t *ahead;                 /* room for pages that are read ahead */
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

    *place = atomic_load(&volume->places[extent]);
    if (place->epoch > epoch)
        return DONE;
    pthread_mutex_lock(&volume->mutex);
    *place = atomic_load(&volume->places[extent]); /* another thread may have asked meanwhile */
    if (place->epoch <= epoch) {
        ask(volume, &question, &answer);
        if (answer.status == ANSWER_OK && answer.server < PEERS_MAX) {
            *place = (struct place){answer.epoch, answer.server};
            atomic_store(&volume->places[extent], *place);
        }
    }
    pthread_mutex_unlock(&volume->mutex);
    if (answer.status != ANSWER_OK && answer.why[0] != 0)
        say(session, "%s", answer.why);
    return answer.status == ANSWER_OK ? DONE : answer.status == ANSWER_WAIT ? AGAIN : FAILED;
}

/* Limit each wait, and let a long write take few calls. TCP adapts its buffer by itself. */
static void tune(int fd)
{
    struct timeval slice = {.tv_usec = SLICE_MS * 1000};
    int domain = 0, bytes = LOCAL_SEND_BYTES;
    socklen_t size = sizeof domain;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof slice);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
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
    if (session->connections[server] < 0) {
        say(session, "%s", answer.why);
        return AGAIN;
    }
    tune(session->connections[server]);
    return DONE;
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

/* A request and its pages. The session has room for their checksums. */
struct request {
    struct frame frame;
    uint32_t asked_epoch; /* of the last try: another one needs a later epoch */
    double until_s;
    uint8_t *pages;    /* of the caller */
    uint32_t intact;   /* pages of a read that have arrived with their checksums, in a row */
};

/* Skip bytes that were sent or received; return whether all are. */
static int skip(struct msghdr *message, size_t bytes)
{
    while (message->msg_iovlen > 0 && bytes >= message->msg_iov->iov_len) {
        bytes -= message->msg_iov->iov_len;
        message->msg_iov++;
        message->msg_iovlen--;
    }
    if (message->msg_iovlen == 0)
        return 1;
    message->msg_iov->iov_base = (char *)message->msg_iov->iov_base + bytes;
    message->msg_iov->iov_len -= bytes;
    return 0;
}

/* Whether to go on waiting: a call on the socket was interrupted, or has waited for SLICE_MS, and
 * the extent is still there. */
static int may_wait(struct page_session *session, const struct request *request)
{
    struct place place;

    if (errno == EINTR)
        return 1;
    if (errno != EAGAIN || now_s() > request->until_s)
        return 0;
    uint32_t extent = (uint32_t)(request->frame.page / EXTENT_PAGES);
    return find(session, extent, request->frame.epoch, &place) == AGAIN ||
           place.epoch == request->frame.epoch;
}

/* Return how many bytes of a payload precede its pages. */
static size_t head_bytes(const struct frame *frame)
{
    return (size_t)frame->count * (frame->is_packed ? 6 : 4);
}

/* Return where the pages of a payload are: in the caller's memory, unless they are packed. */
static uint8_t *content_of(const struct page_session *session, const struct request *request)
{
    return request->frame.is_packed ? session->packed : request->pages;
}

static int send_request(struct page_session *session, struct request *request, int fd)
{
    size_t count = request->frame.count, sums = head_bytes(&request->frame);
    struct iovec parts[4] = {{&request->frame, sizeof request->frame},
                             {session->checksums, 4 * count},
                             {session->lengths, sums - 4 * count},
                             {content_of(session, request), request->frame.size_bytes - sums}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = request->frame.size_bytes > 0 ? 4 : 1};

    for (;;) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent >= 0 && skip(&message, (size_t)sent))
            return 1;
        if (sent < 0 && !may_wait(session, request))
            return 0;
    }
}

/* Check the pages that have arrived, up to the first damaged one. */
static void check_pages(struct page_session *session, struct request *request, size_t bytes)
{
    while ((request->intact + 1ul) * PAGE_BYTES <= bytes) {
        const uint8_t *page = request->pages + (size_t)request->intact * PAGE_BYTES;
        if (page_checksum(page, PAGE_BYTES) != session->checksums[request->intact])
            return;
        request->intact++;
    }
}

/* Receive bytes of a reply up to an end: the frame, the checksums, then the pages, which go to the
 * caller's memory. Return how many have arrived, which may be fewer; 0: the connection is over. */
static size_t receive_up_to(struct page_session *session, const struct request *request, int fd,
                            struct frame *reply, size_t received, size_t end)
{
    size_t count = request->frame.op == OP_READ ? request->frame.count : 0;
    size_t sums = count > 0 ? head_bytes(&request->frame) : 0, sums_end = sizeof *reply + sums;
    struct iovec parts[4] = {
        {reply, sizeof *reply},
        {session->checksums, 4 * count},
        {session->lengths, sums - 4 * count},
        {content_of(session, request), end > sums_end ? end - sums_end : 0},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 4};

    skip(&message, received);
    for (;;) {
        ssize_t got = recvmsg(fd, &message, 0);
        if (got > 0)
            return received + (size_t)got;
        if (got == 0 || !may_wait(session, request))
            return 0;
    }
}

/* Whether a reply belongs to a request. */
static int is_reply(const struct request *request, const struct frame *reply)
{
    return reply->id == request->frame.id && reply->op == request->frame.op &&
           reply->is_packed == request->frame.is_packed;
}

/* Check and unpack the pages of a reply that has this many bytes of them, up to the first damaged
 * one; return whether there are as many bytes as the lengths say. */
static int unpack_pages(struct page_session *session, struct request *request, size_t bytes)
{
    const uint8_t *from = session->packed, *end = from + bytes;
    int is_damaged = 0;

    for (uint32_t n = 0; n < request->frame.count; n++) {
        uint32_t length = session->lengths[n];
        if (length > PAGE_BYTES || length > (size_t)(end - from))
            return 0;
        is_damaged |= length > 0 && page_checksum(from, length) != session->checksums[n];
        is_damaged |= !is_damaged && !unpack_page(session->packer, from, length,
                                                  request->pages + (size_t)n * PAGE_BYTES);
        request->intact += !is_damaged;
        from += length;
    }
    return from == end;
}

/* Receive the reply to a read of packed pages, whose size only its header says. */
static int receive_packed(struct page_session *session, struct request *request, int fd,
                          struct frame *reply)
{
    size_t sums = head_bytes(&request->frame), received = 0;
    size_t most = sums + (size_t)request->frame.count * PAGE_BYTES;

    request->intact = 0;
    for (;;) {
        received =
            receive_up_to(session, request, fd, reply, received, sizeof *reply + most);
        if (received == 0)
            return 0;
        if (received < sizeof *reply)
            continue;
        size_t least = reply->status == STATUS_OK ? sums : 0, size = reply->size_bytes;
        if (!is_reply(request, reply) || size < least || size > (least > 0 ? most : 0) ||
            received > sizeof *reply + size)
            return 0;
        if (received == sizeof *reply + size)
            return least == 0 || unpack_pages(session, request, size - sums);
    }
}

/* Receive a reply. A short one takes one system call. */
static int receive_reply(struct page_session *session, struct request *request, int fd,
                         struct frame *reply)
{
    size_t count = request->frame.op == OP_READ ? request->frame.count : 0;
    size_t pages_at = sizeof *reply + 4 * count, all = pages_at + PAGE_BYTES * count;
    size_t received = 0;

    if (count > 0 && request->frame.is_packed)
        return receive_packed(session, request, fd, reply);
    request->intact = 0;
    for (;;) {
        size_t piece_end = (received > pages_at ? received : pages_at) + PIECE_BYTES;
        received = receive_up_to(session, request, fd, reply, received,
                                 all < piece_end ? all : piece_end);
        if (received == 0)
            return 0;
        if (received < sizeof *reply)
            continue;
        size_t expected = reply->status == STATUS_OK ? all : sizeof *reply;
        if (!is_reply(request, reply) || reply->size_bytes != expected - sizeof *reply ||
            received > expected)
            return 0;
        if (received > pages_at)
            check_pages(session, request, received - pages_at);
        if (received == expected)
            return 1;
    }
}

/* Send a request once, to the server that the companion names. */
static enum outcome try_once(struct page_session *session, struct request *request)
{
    struct place place;
    struct frame reply;
    uint32_t extent = (uint32_t)(request->frame.page / EXTENT_PAGES);
    enum outcome found = find(session, extent, request->asked_epoch, &place);

    if (found != DONE)
        return found;
    request->asked_epoch = request->frame.epoch = place.epoch;
    if (connect_to(session, place.server) != DONE)
        return AGAIN;
    int fd = session->connections[place.server];
    if (!send_request(session, request, fd) || !receive_reply(session, request, fd, &reply))
        return hang_up(session, place.server);
    switch (reply.status) {
    case STATUS_OK:
        return DONE;
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

static struct request request_for(struct page_session *session, enum op op, uint64_t page,
                                  uint32_t count, uint8_t *pages)
{
    return (struct request){
        .frame = {.size_bytes = op == OP_WRITE ? count * (PAGE_BYTES + 4) : 0, .op = (uint8_t)op,
                  .is_packed = op != OP_TRIM && session->packer != NULL, .id = ++session->last_id,
                  .volume = session->volume->number, .page = page, .count = count},
        .until_s = now_s() + session->volume->options.timeout_s,
        .pages = pages,
    };
}

/* Send a request until it is carried out. */
static int carry_out(struct page_session *session, struct request *request)
{
    useconds_t delay_us = AGAIN_MIN_US;

    for (;;) {
        enum outcome outcome = try_once(session, request);
        if (outcome == DONE)
            return 0;
        if (outcome == FAILED || now_s() > request->until_s)
            return -1;
        usleep(delay_us);
        delay_us = delay_us * 2 > AGAIN_MAX_US ? AGAIN_MAX_US : delay_us * 2;
    }
}

static int fetch_pages(struct page_session *session, uint64_t page, uint32_t count, uint8_t *pages)
{
    for (int tries = 0; tries < DAMAGED_MAX; tries++) {
        struct request request = request_for(session, OP_READ, page, count, pages);
        if (carry_out(session, &request) != 0)
            return -1;
        if (request.intact == count)
            return 0;
    }
    say(session, "page %llu is damaged", (unsigned long long)page);
    return -1;
}

/* Read pages: from the cache up to the first that it lacks, and from there on from a server, which
 * sends more pages if reads are sequential. */
static int read_pages(struct page_session *session, uint64_t page, uint32_t count, uint8_t *pages)
{
    struct page_cache *cache = session->volume->cache;
    uint64_t time;

    if (cache == NULL)
        return fetch_pages(session, page, count, pages);
    uint32_t got = page_cache_get(cache, page, count, pages);
    page += got;
    count -= got;
    pages += (size_t)got * PAGE_BYTES;
    if (count == 0)
        return 0;
    uint32_t planned = page_cache_plan(cache, page, count, &time);
    uint8_t *to = planned > count ? session->ahead : pages;
    if (fetch_pages(session, page, planned, to) != 0)
        return -1;
    page_cache_add(cache, page, planned, time, to);
    if (planned > count)
        memcpy(pages, to, (size_t)count * PAGE_BYTES);
    return 0;
}

/* Pack pages into the session's memory; return the size of the payload. */
static uint32_t pack_pages(struct page_session *session, uint32_t count, const uint8_t *pages)
{
    uint8_t *to = session->packed;

    for (uint32_t n = 0; n < count; n++) {
        uint32_t length = pack_page(session->packer, pages + (size_t)n * PAGE_BYTES, to);
        session->lengths[n] = (uint16_t)length;
        session->checksums[n] = page_checksum(to, length);
        to += length;
    }
    return 6 * count + (uint32_t)(to - session->packed);
}

static int store_pages(struct page_session *session, uint64_t page, uint32_t count,
                       const uint8_t *pages)
{
    struct request request = request_for(session, OP_WRITE, page, count, (uint8_t *)pages);
    if (request.frame.is_packed)
        request.frame.size_bytes = pack_pages(session, count, pages);
    for (uint32_t n = 0; n < count && !request.frame.is_packed; n++)
        session->checksums[n] = page_checksum(pages + (size_t)n * PAGE_BYTES, PAGE_BYTES);
    return carry_out(session, &request);
}

static int trim_pages(struct page_session *session, uint64_t page, uint32_t count)
{
    struct request request = request_for(session, OP_TRIM, page, count, NULL);

    return carry_out(session, &request);
}

/* Change pages. `pages` NULL: they become zeros. */
static int write_pages(struct page_session *session, uint64_t page, uint32_t count,
                       const uint8_t *pages)
{
    struct page_cache *cache = session->volume->cache;
    uint64_t time = cache == NULL ? 0 : page_cache_begin_write(cache, page, count);
    int result = pages == NULL ? trim_pages(session, page, count)
                               : store_pages(session, page, count, pages);

    if (cache != NULL)
        page_cache_written(cache, page, count, time, result == 0 ? pages : NULL);
    return result;
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

static int has_whole_pages(const struct part *part)
{
    return part->offset == 0 && part->size % PAGE_BYTES == 0;
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
        int is_whole = has_whole_pages(&part);
        if (read_pages(session, part.page, part.count, is_whole ? to : session->pages) != 0)
            return -1;
        if (!is_whole)
            memcpy(to, session->pages + part.offset, part.size);
        to += part.size;
        address += part.size;
        size -= part.size;
    }
    return 0;
}

/* Write a part, whose first and last page may be incomplete. `from` NULL: zeros. */
static int write_part(struct page_session *session, const struct part *part, const uint8_t *from)
{
    uint64_t end = part->offset + part->size;
    uint32_t last = part->count - 1;
    uint8_t *pages = session->pages;
    int keeps_first = part->offset != 0, keeps_last = end % PAGE_BYTES != 0;

    if (from != NULL && has_whole_pages(part))
        return write_pages(session, part->page, part->count, from);
    if (keeps_first && read_pages(session, part->page, 1, pages) != 0)
        return -1;
    if (keeps_last && (last > 0 || !keeps_first) &&
        read_pages(session, part->page + last, 1, pages + (uint64_t)last * PAGE_BYTES) != 0)
        return -1;
    if (from != NULL)
        memcpy(pages + part->offset, from, part->size);
    else
        memset(pages + part->offset, 0, part->size);
    return write_pages(session, part->page, part->count, pages);
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
        if (has_whole_pages(&part) ? write_pages(session, part.page, part.count, NULL) != 0
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
                                     struct page_options options)
{
    struct page_volume *volume = calloc(1, sizeof *volume + extents * sizeof(struct place));

    if (volume == NULL)
        return NULL;
    pthread_mutex_init(&volume->mutex, NULL);
    volume->companion = companion;
    volume->number = number;
    volume->extents = extents;
    volume->options = options;
    if (options.cache_pages > 0)
        volume->cache = page_cache_open(options.cache_pages);
    if (options.cache_pages > 0 && volume->cache == NULL) {
        volume->companion = -1; /* it still belongs to the caller */
        page_volume_close(volume);
        return NULL;
    }
    return volume;
}

void page_volume_close(struct page_volume *volume)
{
    if (volume->companion >= 0)
        close(volume->companion);
    page_cache_close(volume->cache);
    pthread_mutex_destroy(&volume->mutex);
    free(volume);
}

struct page_session *page_session_open(struct page_volume *volume)
{
    struct page_session *session = calloc(1, sizeof *session);

    if (session == NULL)
        return NULL;
    for (int n = 0; n < PEERS_MAX; n++)
        session->connections[n] = -1;
    session->volume = volume;
    session->pages = malloc(EXTENT_PAGES * PAGE_BYTES);
    int is_ready = session->pages != NULL &&
                   getrandom(&session->number, sizeof session->number, 0) == sizeof session->number;
    if (volume->cache != NULL) {
        session->ahead = malloc(CACHED_PAGES_MAX * PAGE_BYTES);
        is_ready &= session->ahead != NULL;
    }
    if (volume->options.codec != CODEC_NONE) {
        session->packer = packer_open(volume->options.codec);
        session->packed = malloc(EXTENT_PAGES * PAGE_BYTES);
        is_ready &= session->packer != NULL && session->packed != NULL;
    }
    if (!is_ready) {
        page_session_close(session);
        return NULL;
    }
    session->number |= 1; /* 0 is a server */
    return session;
}

void page_session_close(struct page_session *session)
{
    for (int n = 0; n < PEERS_MAX; n++)
        if (session->connections[n] >= 0)
            close(session->connections[n]);
    packer_close(session->packer);
    free(session->packed);
    free(session->ahead);
    free(session->pages);
    free(session);
}
