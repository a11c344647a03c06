#include "page_server.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <netinet/in.h>
#include <netinet/tcp.h>

enum {
    PAYLOAD_MAX_BYTES = EXTENT_PAGES * (PAGE_BYTES + 4),
    HELLO_BYTES = TOKEN_BYTES + 8, /* the token, then the number of the session */
    EXTENT_BUCKETS = 1 << 14,
    SESSION_BUCKETS = 1 << 12,
    SESSIONS_MAX = 1 << 16,
    TOKENS_MAX = 256,
    STRANGERS_MAX = 64,    /* connections that have not sent a token yet */
    STRANGER_S = 5,
    EVENTS_MAX = 1 << 16,
    READ_BYTES = 1 << 16,
    SYNC_PAGES = 32,       /* in one frame */
    SYNCS_MAX = 64,        /* frames of one peer that are not acknowledged */
    HELD_MAX_BYTES = 64 << 20, /* of replies that a client does not take */
};

/* --- structures ------------------------------------------------------------------------------- */

struct buffer {
    uint8_t *bytes;
    size_t start, end, capacity;
};

enum kind { LISTENER, STRANGER, CLIENT, PEER };

struct connection {
    struct connection *next, *previous;
    enum kind kind;
    int fd;
    int peer;              /* its number, if this server has connected to it; else -1 */
    int is_closing;        /* it is freed at the end of the turn */
    int waits_for_room;    /* to send */
    int references;        /* of pending writes */
    double since_s;
    uint64_t session;
    struct buffer in, out;
};

/* A write that its backups have not all acknowledged. */
struct pending {
    struct pending *next;
    struct connection *from; /* gets the reply; NULL: it has gone */
    struct frame frame;
    uint64_t waits;          /* bit n: for peer n */
    uint8_t *payload;        /* NULL: a trim */
};

struct extent {
    struct extent *next; /* in its bucket */
    uint64_t volume;
    uint32_t number;
    uint32_t epoch;
    uint64_t copy;           /* another number when the pages were forgotten and fetched again */
    uint8_t role;
    uint8_t backup_count;
    uint8_t backups[BACKUPS_MAX];
    uint8_t joining;         /* bit n: backup n is joining, and is not synchronised yet */
    struct pending *first, **last;
    uint32_t slots[EXTENT_PAGES]; /* the page's place in memory, from 1; 0: zeros */
};

/* The pages of one extent on the way to a joining backup. */
struct sync {
    struct sync *next;
    uint64_t volume;
    uint32_t extent, epoch;
    int peer;
    uint64_t after;  /* starts when earlier writes, up to this sequence, are complete */
    int page;        /* the next one */
    int unacknowledged;
};

struct session {
    struct session *next;
    uint64_t number;
    uint64_t last_id; /* of its last completed write */
    uint64_t copy;    /* of the extent that has this write */
};

struct token {
    uint8_t bytes[TOKEN_BYTES];
    double until_s; /* 0: free */
};

struct page_server {
    pthread_mutex_t mutex;
    pthread_t thread;
    int epoll, wake, has_events;
    int is_closing, has_thread;

    uint8_t *pages;
    uint32_t *checksums, *free_slots;
    uint32_t slot_count, free_count;
    uint32_t released; /* so many of the free slots, from the first, have no memory */
    int is_locked;
    uint32_t zeros_checksum;

    struct extent *extents[EXTENT_BUCKETS];
    struct session *sessions[SESSION_BUCKETS];
    int session_count;
    struct token tokens[TOKENS_MAX];
    struct connection *connections;
    struct connection *peers[PEERS_MAX];
    int unacknowledged[PEERS_MAX]; /* frames of syncs */
    struct sync *syncs;
    uint64_t sequence, copies;
    double lease_until_s;

    struct event *events; /* a ring */
    uint32_t first_event, event_count;
    struct figures figures;
};

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* --- buffers ---------------------------------------------------------------------------------- */

/* gcc's analyzer loses track of buffers of connections that it reaches through two pointers. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

static size_t held(const struct buffer *buffer) { return buffer->end - buffer->start; }

/* Make room for so many bytes at the end. 0: no memory. */
static int make_room(struct buffer *buffer, size_t bytes)
{
    if (buffer->start == buffer->end)
        buffer->start = buffer->end = 0;
    if (buffer->capacity - buffer->end >= bytes)
        return 1;
    if (buffer->start > 0) {
        memmove(buffer->bytes, buffer->bytes + buffer->start, held(buffer));
        buffer->end -= buffer->start;
        buffer->start = 0;
    }
    if (buffer->capacity - buffer->end < bytes) {
        size_t capacity = buffer->capacity < READ_BYTES ? READ_BYTES : buffer->capacity;
        while (capacity - buffer->end < bytes)
            capacity *= 2;
        uint8_t *longer = realloc(buffer->bytes, capacity);
        if (longer == NULL)
            return 0;
        buffer->bytes = longer;
        buffer->capacity = capacity;
    }
    return 1;
}

/* --- events ----------------------------------------------------------------------------------- */

static void tell(struct page_server *server, struct event event)
{
    uint64_t one = 1;

    if (server->event_count == EVENTS_MAX)
        return; /* nobody reads them: the owner finds out by its own connections */
    server->events[(server->first_event + server->event_count++) % EVENTS_MAX] = event;
    (void)!write(server->has_events, &one, sizeof one);
}

/* --- pages ------------------------------------------------------------------------------------ */

static struct extent **bucket_of(struct page_server *server, uint64_t volume, uint32_t number)
{
    uint64_t hash = (volume * 0x9e3779b97f4a7c15u ^ number) * 0xff51afd7ed558ccdu;

    return &server->extents[hash >> 50 & (EXTENT_BUCKETS - 1)];
}

static struct extent *find(struct page_server *server, uint64_t volume, uint32_t number)
{
    struct extent *extent = *bucket_of(server, volume, number);

    while (extent != NULL && (extent->volume != volume || extent->number != number))
        extent = extent->next;
    return extent;
}

static uint8_t *page_at(struct page_server *server, uint32_t slot)
{
    return server->pages + (uint64_t)(slot - 1) * PAGE_BYTES;
}

static void clear_page(struct page_server *server, struct extent *extent, int page)
{
    if (extent->slots[page] != 0) {
        server->free_slots[server->free_count++] = extent->slots[page];
        extent->slots[page] = 0;
    }
}

static void clear(struct page_server *server, struct extent *extent)
{
    for (int page = 0; page < EXTENT_PAGES; page++)
        clear_page(server, extent, page);
}

/* Whether there is space for the pages of a write that have none yet. */
static int fits(const struct page_server *server, const struct extent *extent, int first, int count)
{
    uint32_t needed = 0;

    for (int page = first; page < first + count; page++)
        needed += extent->slots[page] == 0;
    return needed <= server->free_count;
}

/* Change the pages of an extent. `payload`: checksums and pages; NULL: they become zeros. */
static void apply(struct page_server *server, struct extent *extent, int first, int count,
                  const uint8_t *payload)
{
    for (int n = 0; n < count; n++) {
        int page = first + n;
        if (payload == NULL) {
            clear_page(server, extent, page);
            continue;
        }
        if (extent->slots[page] == 0)
            extent->slots[page] = server->free_slots[--server->free_count];
        if (server->released > server->free_count)
            server->released = server->free_count;
        uint32_t slot = extent->slots[page];
        memcpy(&server->checksums[slot - 1], payload + 4 * n, 4);
        memcpy(page_at(server, slot), payload + 4 * count + (size_t)n * PAGE_BYTES, PAGE_BYTES);
    }
    server->figures.pages_written += payload == NULL ? 0 : (uint64_t)count;
}

static int is_intact(int count, const uint8_t *payload)
{
    for (int n = 0; n < count; n++) {
        uint32_t checksum;
        memcpy(&checksum, payload + 4 * n, 4);
        if (page_checksum(payload + 4 * count + (size_t)n * PAGE_BYTES, PAGE_BYTES) != checksum)
            return 0;
    }
    return 1;
}

/* --- sessions --------------------------------------------------------------------------------- */

/* Return a session, which is made if it is new; NULL: no memory. */
static struct session *session_of(struct page_server *server, uint64_t number)
{
    uint64_t hash = number * 0x9e3779b97f4a7c15u >> 52 & (SESSION_BUCKETS - 1);
    struct session *session = server->sessions[hash];

    while (session != NULL && session->number != number)
        session = session->next;
    if (session != NULL)
        return session;
    if (server->session_count == SESSIONS_MAX) { /* forget the oldest of this bucket */
        struct session **link = &server->sessions[hash];
        while (*link != NULL && (*link)->next != NULL)
            link = &(*link)->next;
        free(*link);
        server->session_count -= *link != NULL;
        *link = NULL;
    }
    session = calloc(1, sizeof *session);
    if (session != NULL) {
        session->number = number;
        session->next = server->sessions[hash];
        server->sessions[hash] = session;
        server->session_count++;
    }
    return session;
}

static void completed(struct page_server *server, const struct extent *extent, uint64_t number,
                      uint64_t id)
{
    struct session *session = session_of(server, number);

    if (session != NULL && session->last_id <= id) {
        session->last_id = id;
        session->copy = extent->copy;
    }
}

/* Whether a write is in the pages of an extent. A backup may have taken over a write that never
 * took effect, and then forgotten it with the pages. */
static int is_completed(const struct session *session, const struct extent *extent, uint64_t id)
{
    return id < session->last_id || (id == session->last_id && session->copy == extent->copy);
}

/* --- connections ------------------------------------------------------------------------------ */

static void watch(struct page_server *server, struct connection *connection, int waits_for_room)
{
    struct epoll_event event = {
        .events = EPOLLIN | (waits_for_room ? EPOLLOUT : 0), .data.ptr = connection};

    connection->waits_for_room = waits_for_room;
    epoll_ctl(server->epoll, EPOLL_CTL_MOD, connection->fd, &event);
}

/* Close a connection; it is freed at the end of the turn. */
static void give_up(struct page_server *server, struct connection *connection)
{
    if (connection->is_closing)
        return;
    connection->is_closing = 1;
    epoll_ctl(server->epoll, EPOLL_CTL_DEL, connection->fd, NULL);
    shutdown(connection->fd, SHUT_RDWR);
    if (connection->peer >= 0 && server->peers[connection->peer] == connection) {
        server->peers[connection->peer] = NULL;
        server->unacknowledged[connection->peer] = 0;
        tell(server, (struct event){.kind = EVENT_PEER_LOST, .peer = (uint32_t)connection->peer});
    }
}

static void send_now(struct page_server *server, struct connection *connection)
{
    struct buffer *out = &connection->out;

    while (held(out) > 0 && !connection->is_closing) {
        ssize_t sent = send(connection->fd, out->bytes + out->start, held(out),
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            out->start += (size_t)sent;
        } else if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
            break;
        } else {
            give_up(server, connection);
        }
    }
    if (!connection->is_closing && (held(out) > 0) != connection->waits_for_room)
        watch(server, connection, held(out) > 0);
}

/* Add a frame, and room for its payload, to the bytes to send; return the room, or NULL. */
static uint8_t *put_frame(struct page_server *server, struct connection *connection,
                          const struct frame *frame)
{
    struct buffer *out = &connection->out;
    size_t bytes = sizeof *frame + frame->size_bytes;

    if (held(out) > HELD_MAX_BYTES || !make_room(out, bytes)) {
        give_up(server, connection);
        return NULL;
    }
    memcpy(out->bytes + out->end, frame, sizeof *frame);
    out->end += bytes;
    return out->bytes + out->end - frame->size_bytes;
}

static void reply(struct page_server *server, struct connection *connection,
                  const struct frame *frame, enum status status)
{
    struct frame answer = *frame;

    if (connection == NULL || connection->is_closing)
        return;
    server->figures.refused += status != STATUS_OK;
    answer.size_bytes = 0;
    answer.status = (uint16_t)status;
    if (put_frame(server, connection, &answer) != NULL)
        send_now(server, connection);
}

static struct connection *add_connection(struct page_server *server, enum kind kind, int fd)
{
    struct connection *connection = calloc(1, sizeof *connection);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};

    if (connection == NULL)
        return NULL;
    *connection = (struct connection){
        .kind = kind, .fd = fd, .peer = -1, .since_s = now_s(), .next = server->connections};
    if (epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(connection);
        return NULL;
    }
    if (server->connections != NULL)
        server->connections->previous = connection;
    server->connections = connection;
    if (kind != LISTENER) {
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    return connection;
}

static void free_connection(struct page_server *server, struct connection *connection)
{
    if (connection->previous != NULL)
        connection->previous->next = connection->next;
    else
        server->connections = connection->next;
    if (connection->next != NULL)
        connection->next->previous = connection->previous;
    close(connection->fd);
    free(connection->in.bytes);
    free(connection->out.bytes);
    free(connection);
}

/* --- writes and their backups ----------------------------------------------------------------- */

static int is_primary(const struct page_server *server, const struct extent *extent,
                      uint32_t epoch)
{
    return extent != NULL && extent->role == ROLE_PRIMARY && extent->epoch == epoch &&
           now_s() < server->lease_until_s;
}

static void forget(struct pending *pending)
{
    if (pending->from != NULL)
        pending->from->references--;
    free(pending->payload);
    free(pending);
}

/* Complete the writes that no backup delays any more, in order. */
static void complete(struct page_server *server, struct extent *extent)
{
    while (extent->first != NULL && extent->first->waits == 0) {
        struct pending *done = extent->first;
        const struct frame *frame = &done->frame;
        int first = (int)(frame->page % EXTENT_PAGES);

        extent->first = done->next;
        if (extent->first == NULL)
            extent->last = &extent->first;
        if (done->payload != NULL && !fits(server, extent, first, (int)frame->count)) {
            reply(server, done->from, frame, STATUS_NO_SPACE);
        } else {
            apply(server, extent, first, (int)frame->count, done->payload);
            completed(server, extent, frame->session, frame->id);
            reply(server, done->from, frame, STATUS_OK);
        }
        forget(done);
    }
}

/* Send a write to the backups; return which ones have to acknowledge it. */
static uint64_t forward(struct page_server *server, const struct extent *extent,
                        const struct frame *frame, const uint8_t *payload)
{
    uint64_t waits = 0;

    for (int n = 0; n < extent->backup_count; n++) {
        int number = extent->backups[n];
        struct connection *peer = server->peers[number];
        waits |= (uint64_t)1 << number; /* if it is lost, the owner's next decision ends the wait */
        if (peer == NULL)
            continue;
        struct frame sent = *frame;
        sent.op = payload == NULL ? OP_FORWARD_TRIM : OP_FORWARD;
        uint8_t *at = put_frame(server, peer, &sent);
        if (at == NULL)
            continue;
        if (payload != NULL)
            memcpy(at, payload, frame->size_bytes);
        send_now(server, peer);
        server->figures.pages_forwarded += frame->count;
    }
    return waits;
}

/* Return the write that a client has sent before, through another connection. */
static struct pending *earlier(const struct extent *extent, const struct frame *frame)
{
    struct pending *pending = extent->first;

    while (pending != NULL &&
           (pending->frame.session != frame->session || pending->frame.id != frame->id))
        pending = pending->next;
    return pending;
}

static void write_pages(struct page_server *server, struct connection *from, struct frame *frame,
                        const uint8_t *payload)
{
    struct extent *extent = find(server, frame->volume, (uint32_t)(frame->page / EXTENT_PAGES));
    struct session *session;
    struct pending *pending;
    int first = (int)(frame->page % EXTENT_PAGES);

    frame->session = from->session;
    if (!is_primary(server, extent, frame->epoch)) {
        reply(server, from, frame, STATUS_STALE);
        return;
    }
    session = session_of(server, from->session);
    if (session != NULL && is_completed(session, extent, frame->id)) {
        reply(server, from, frame, STATUS_OK); /* the earlier reply was lost (KVB-3) */
        return;
    }
    pending = earlier(extent, frame);
    if (pending != NULL) {
        if (pending->from != NULL)
            pending->from->references--;
        pending->from = from;
        from->references++;
        return;
    }
    if (payload != NULL && !is_intact((int)frame->count, payload)) {
        reply(server, from, frame, STATUS_DAMAGED);
        return;
    }
    if (payload != NULL && !fits(server, extent, first, (int)frame->count)) {
        reply(server, from, frame, STATUS_NO_SPACE);
        return;
    }
    if (extent->backup_count == 0 && extent->first == NULL) { /* nothing to wait for */
        apply(server, extent, first, (int)frame->count, payload);
        completed(server, extent, frame->session, frame->id);
        reply(server, from, frame, STATUS_OK);
        return;
    }
    pending = calloc(1, sizeof *pending);
    if (pending != NULL && payload != NULL)
        pending->payload = malloc(frame->size_bytes);
    if (pending == NULL || (payload != NULL && pending->payload == NULL)) {
        free(pending);
        reply(server, from, frame, STATUS_NO_SPACE);
        return;
    }
    if (payload != NULL)
        memcpy(pending->payload, payload, frame->size_bytes);
    frame->sequence = ++server->sequence;
    pending->frame = *frame;
    pending->from = from;
    from->references++;
    *extent->last = pending;
    extent->last = &pending->next;
    pending->waits = forward(server, extent, frame, payload);
    complete(server, extent);
}

static void read_pages(struct page_server *server, struct connection *from,
                       const struct frame *frame)
{
    struct extent *extent = find(server, frame->volume, (uint32_t)(frame->page / EXTENT_PAGES));
    struct frame answer = *frame;
    int first = (int)(frame->page % EXTENT_PAGES), count = (int)frame->count;

    if (!is_primary(server, extent, frame->epoch)) {
        reply(server, from, frame, STATUS_STALE);
        return;
    }
    answer.size_bytes = (uint32_t)count * (PAGE_BYTES + 4);
    uint8_t *at = put_frame(server, from, &answer);
    if (at == NULL)
        return;
    for (int n = 0; n < count; n++) {
        uint32_t slot = extent->slots[first + n];
        uint8_t *page = at + 4 * count + (size_t)n * PAGE_BYTES;
        if (slot == 0) {
            memcpy(at + 4 * n, &server->zeros_checksum, 4);
            memset(page, 0, PAGE_BYTES);
        } else {
            memcpy(at + 4 * n, &server->checksums[slot - 1], 4);
            memcpy(page, page_at(server, slot), PAGE_BYTES);
        }
    }
    server->figures.pages_read += (uint64_t)count;
    send_now(server, from);
}

/* Take over a write, or pages, from the primary. */
static void follow(struct page_server *server, struct connection *from, const struct frame *frame,
                   const uint8_t *payload)
{
    struct extent *extent = find(server, frame->volume, (uint32_t)(frame->page / EXTENT_PAGES));
    int first = (int)(frame->page % EXTENT_PAGES);

    if (extent == NULL || frame->epoch < extent->epoch ||
        (extent->role != ROLE_BACKUP && extent->role != ROLE_JOINING)) {
        reply(server, from, frame, STATUS_STALE);
        return;
    }
    if (payload != NULL && !is_intact((int)frame->count, payload)) {
        reply(server, from, frame, STATUS_DAMAGED);
        return;
    }
    if (payload != NULL && !fits(server, extent, first, (int)frame->count)) {
        reply(server, from, frame, STATUS_NO_SPACE);
        return;
    }
    extent->epoch = frame->epoch; /* from now on, an earlier primary is refused */
    apply(server, extent, first, (int)frame->count, payload);
    if (frame->op != OP_SYNC)
        completed(server, extent, frame->session, frame->id);
    reply(server, from, frame, STATUS_OK);
}

/* --- synchronisation of joining backups ------------------------------------------------------- */

/* Whether a write that has been forwarded is about to change a page. */
static int is_pending(const struct extent *extent, int page)
{
    for (const struct pending *pending = extent->first; pending != NULL; pending = pending->next) {
        int first = (int)(pending->frame.page % EXTENT_PAGES);
        if (page >= first && page < first + (int)pending->frame.count)
            return 1;
    }
    return 0;
}

/* Send the next pages of an extent; return 0 when none are left. */
static int sync_some(struct page_server *server, struct extent *extent, struct sync *sync)
{
    struct connection *peer = server->peers[sync->peer];

    /* A page with a pending write is left out: the backup has got that write, which is newer. */
    while (sync->page < EXTENT_PAGES &&
           (extent->slots[sync->page] == 0 || is_pending(extent, sync->page)))
        sync->page++;
    int count = 0;
    while (count < SYNC_PAGES && sync->page + count < EXTENT_PAGES &&
           extent->slots[sync->page + count] != 0 && !is_pending(extent, sync->page + count))
        count++;
    if (count == 0)
        return 0;
    struct frame frame = {
        .size_bytes = (uint32_t)count * (PAGE_BYTES + 4), .op = OP_SYNC, .volume = sync->volume,
        .page = (uint64_t)sync->extent * EXTENT_PAGES + (uint64_t)sync->page,
        .count = (uint32_t)count, .epoch = sync->epoch, .sequence = ++server->sequence};
    uint8_t *at = put_frame(server, peer, &frame);
    if (at == NULL)
        return 1; /* the peer is lost: the owner's next decision ends this */
    for (int n = 0; n < count; n++) {
        uint32_t slot = extent->slots[sync->page + n];
        memcpy(at + 4 * n, &server->checksums[slot - 1], 4);
        memcpy(at + 4 * count + (size_t)n * PAGE_BYTES, page_at(server, slot), PAGE_BYTES);
    }
    send_now(server, peer);
    sync->page += count;
    sync->unacknowledged++;
    server->unacknowledged[sync->peer]++;
    server->figures.pages_synced += (uint64_t)count;
    return 1;
}

static int has_pending_up_to(const struct extent *extent, uint64_t sequence)
{
    return extent->first != NULL && extent->first->frame.sequence <= sequence;
}

/* Continue all synchronisations, as far as peers have acknowledged their pages. */
static void sync_all(struct page_server *server)
{
    struct sync **link = &server->syncs;

    while (*link != NULL) {
        struct sync *sync = *link;
        struct extent *extent = find(server, sync->volume, sync->extent);
        int is_over =
            extent == NULL || extent->role != ROLE_PRIMARY || extent->epoch != sync->epoch;

        /* Writes from before the peer joined were not forwarded to it. */
        while (!is_over && !has_pending_up_to(extent, sync->after) &&
               server->peers[sync->peer] != NULL &&
               server->unacknowledged[sync->peer] < SYNCS_MAX) {
            if (sync_some(server, extent, sync))
                continue;
            if (sync->unacknowledged == 0) {
                tell(server, (struct event){.kind = EVENT_SYNCED, .volume = sync->volume,
                                            .extent = sync->extent, .epoch = sync->epoch,
                                            .peer = (uint32_t)sync->peer});
                is_over = 1;
            }
            break;
        }
        if (is_over) {
            *link = sync->next;
            free(sync);
        } else {
            link = &sync->next;
        }
    }
}

static int start_sync(struct page_server *server, const struct extent *extent, int peer)
{
    struct sync *sync = calloc(1, sizeof *sync);

    if (sync == NULL)
        return 0;
    *sync = (struct sync){.next = server->syncs, .volume = extent->volume, .extent = extent->number,
                          .epoch = extent->epoch, .peer = peer, .after = server->sequence};
    server->syncs = sync;
    return 1;
}

/* A peer has answered a forward, or pages. */
static void acknowledged(struct page_server *server, struct connection *from,
                         const struct frame *frame)
{
    uint32_t number = (uint32_t)(frame->page / EXTENT_PAGES);
    struct extent *extent = find(server, frame->volume, number);

    if (frame->status != STATUS_OK) { /* its role has changed, or it has no space */
        give_up(server, from);
        return;
    }
    if (frame->op == OP_SYNC) {
        server->unacknowledged[from->peer]--;
        for (struct sync *sync = server->syncs; sync != NULL; sync = sync->next)
            if (sync->volume == frame->volume && sync->extent == number &&
                sync->epoch == frame->epoch && sync->peer == from->peer)
                sync->unacknowledged--;
        return;
    }
    if (extent == NULL)
        return;
    for (struct pending *pending = extent->first; pending != NULL; pending = pending->next)
        if (pending->frame.sequence == frame->sequence)
            pending->waits &= ~((uint64_t)1 << from->peer);
    complete(server, extent);
}

/* --- frames ----------------------------------------------------------------------------------- */

/* Whether a header may begin a frame that its sender may send. */
static int is_valid(const struct connection *connection, const struct frame *frame)
{
    int is_reply = connection->peer >= 0;
    int has_payload =
        !is_reply && (frame->op == OP_WRITE || frame->op == OP_FORWARD || frame->op == OP_SYNC);
    uint64_t first = frame->page % EXTENT_PAGES;

    if (frame->count == 0 || frame->count > EXTENT_PAGES - first ||
        frame->page / EXTENT_PAGES > UINT32_MAX)
        return 0;
    if (frame->size_bytes != (has_payload ? frame->count * (PAGE_BYTES + 4) : 0))
        return 0;
    if (is_reply || connection->kind == PEER)
        return frame->op >= OP_FORWARD && frame->op <= OP_SYNC;
    return frame->op >= OP_READ && frame->op <= OP_TRIM && frame->id > 0;
}

static void carry_out(struct page_server *server, struct connection *connection,
                      struct frame *frame, const uint8_t *payload)
{
    const uint8_t *content = frame->size_bytes > 0 ? payload : NULL;

    server->figures.requests++;
    if (connection->peer >= 0)
        acknowledged(server, connection, frame);
    else if (connection->kind == PEER)
        follow(server, connection, frame, content);
    else if (frame->op == OP_READ)
        read_pages(server, connection, frame);
    else
        write_pages(server, connection, frame, content);
}

/* Find out who has connected: the token belongs to a client, or to a peer (session 0). The token may
 * be allowed later: the connection waits for that. */
static void admit(struct page_server *server, struct connection *connection)
{
    struct buffer *in = &connection->in;
    struct token *found = NULL;

    if (held(in) < HELLO_BYTES)
        return;
    for (int n = 0; n < TOKENS_MAX; n++) {
        uint8_t differs = 0; /* compared in constant time */
        for (int at = 0; at < TOKEN_BYTES; at++)
            differs |= server->tokens[n].bytes[at] ^ in->bytes[in->start + (size_t)at];
        if (!differs && server->tokens[n].until_s > now_s())
            found = &server->tokens[n];
    }
    struct epoll_event event = {.events = found == NULL ? 0 : EPOLLIN, .data.ptr = connection};
    epoll_ctl(server->epoll, EPOLL_CTL_MOD, connection->fd, &event);
    if (found == NULL)
        return;
    memset(found, 0, sizeof *found);
    memcpy(&connection->session, in->bytes + in->start + TOKEN_BYTES, 8);
    in->start += HELLO_BYTES;
    connection->kind = connection->session == 0 ? PEER : CLIENT;
    server->figures.connections++;
}

static void process(struct page_server *server, struct connection *connection)
{
    struct buffer *in = &connection->in;

    if (connection->kind == STRANGER)
        admit(server, connection);
    while (connection->kind != STRANGER && !connection->is_closing &&
           held(in) >= sizeof(struct frame)) {
        struct frame frame;
        memcpy(&frame, in->bytes + in->start, sizeof frame);
        if (!is_valid(connection, &frame)) {
            give_up(server, connection);
            return;
        }
        if (held(in) < sizeof frame + frame.size_bytes)
            return;
        const uint8_t *payload = in->bytes + in->start + sizeof frame;
        in->start += sizeof frame + frame.size_bytes;
        carry_out(server, connection, &frame, payload);
    }
}

/* How many bytes to read at least: the rest of a frame whose header is there. */
static size_t wanted(const struct connection *connection)
{
    const struct buffer *in = &connection->in;
    struct frame frame;

    if (connection->kind == STRANGER)
        return HELLO_BYTES - held(in); /* of what follows, nothing is read before it is admitted */
    if (held(in) < sizeof frame)
        return READ_BYTES;
    memcpy(&frame, in->bytes + in->start, sizeof frame);
    size_t rest = sizeof frame + frame.size_bytes - held(in);
    return rest > READ_BYTES ? rest : READ_BYTES;
}

static void receive(struct page_server *server, struct connection *connection)
{
    struct buffer *in = &connection->in;
    size_t bytes = wanted(connection);
    ssize_t count = 0;

    if (make_room(in, bytes))
        count = recv(connection->fd, in->bytes + in->end, bytes, MSG_DONTWAIT);

    if (count > 0) {
        in->end += (size_t)count;
        process(server, connection);
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        give_up(server, connection);
    }
}

static void welcome(struct page_server *server, struct connection *listener)
{
    struct connection *oldest = NULL;
    int strangers = 0;
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    for (struct connection *each = server->connections; each != NULL; each = each->next)
        if (each->kind == STRANGER && !each->is_closing) {
            strangers++;
            if (oldest == NULL || each->since_s < oldest->since_s)
                oldest = each;
        }
    if (strangers >= STRANGERS_MAX)
        give_up(server, oldest);
    if (add_connection(server, STRANGER, fd) == NULL)
        close(fd);
}

/* --- the thread ------------------------------------------------------------------------------- */

/* A connection that has gone gets no replies; its writes are completed. */
static void abandon(struct page_server *server, struct connection *connection)
{
    if (connection->references == 0)
        return;
    for (int n = 0; n < EXTENT_BUCKETS; n++)
        for (struct extent *extent = server->extents[n]; extent != NULL; extent = extent->next)
            for (struct pending *each = extent->first; each != NULL; each = each->next)
                if (each->from == connection)
                    each->from = NULL;
}

static void sweep(struct page_server *server)
{
    struct connection *next;
    double silent_since_s = now_s() - STRANGER_S;

    for (struct connection *each = server->connections; each != NULL; each = next) {
        next = each->next;
        if (each->kind == STRANGER && each->since_s < silent_since_s)
            give_up(server, each);
        if (each->is_closing) {
            abandon(server, each);
            free_connection(server, each);
        }
    }
}

static void *serve(void *argument)
{
    struct page_server *server = argument;
    struct epoll_event events[64];

    for (;;) {
        int count = epoll_wait(server->epoll, events, 64, 1000);
        pthread_mutex_lock(&server->mutex);
        if (server->is_closing) {
            pthread_mutex_unlock(&server->mutex);
            return NULL;
        }
        for (int n = 0; n < count; n++) {
            struct connection *connection = events[n].data.ptr;
            if (connection == NULL) { /* it was woken */
                uint64_t woken;
                (void)!read(server->wake, &woken, sizeof woken);
                continue;
            }
            if (connection->is_closing)
                continue;
            if (connection->kind == LISTENER) {
                welcome(server, connection);
                continue;
            }
            if (events[n].events & EPOLLOUT)
                send_now(server, connection);
            if (connection->kind == STRANGER && held(&connection->in) >= HELLO_BYTES)
                give_up(server, connection); /* it has ended while it waited */
            else if (events[n].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !connection->is_closing)
                receive(server, connection);
        }
        sync_all(server);
        sweep(server);
        pthread_mutex_unlock(&server->mutex);
    }
}

/* --- the functions for Python ----------------------------------------------------------------- */

static void wake(struct page_server *server)
{
    uint64_t one = 1;

    (void)!write(server->wake, &one, sizeof one);
}

static void refuse_pending(struct page_server *server, struct extent *extent)
{
    while (extent->first != NULL) {
        struct pending *pending = extent->first;
        extent->first = pending->next;
        reply(server, pending->from, &pending->frame, STATUS_STALE);
        forget(pending);
    }
    extent->last = &extent->first;
}

static void free_extent(struct page_server *server, struct extent *extent)
{
    struct extent **link = bucket_of(server, extent->volume, extent->number);

    while (*link != extent)
        link = &(*link)->next;
    *link = extent->next;
    refuse_pending(server, extent);
    clear(server, extent);
    free(extent);
    server->figures.extents--;
}

static void free_all(struct page_server *server)
{
    while (server->connections != NULL)
        free_connection(server, server->connections);
    for (int n = 0; n < EXTENT_BUCKETS; n++)
        while (server->extents[n] != NULL) {
            struct extent *extent = server->extents[n];
            for (struct pending *each = extent->first; each != NULL; each = each->next)
                each->from = NULL;
            free_extent(server, extent);
        }
    for (int n = 0; n < SESSION_BUCKETS; n++)
        while (server->sessions[n] != NULL) {
            struct session *session = server->sessions[n];
            server->sessions[n] = session->next;
            free(session);
        }
    while (server->syncs != NULL) {
        struct sync *sync = server->syncs;
        server->syncs = sync->next;
        free(sync);
    }
    if (server->pages != NULL)
        munmap(server->pages, (size_t)server->slot_count * PAGE_BYTES);
    for (int n = 0; n < 3; n++) {
        int fd = (int[]){server->epoll, server->wake, server->has_events}[n];
        if (fd >= 0)
            close(fd);
    }
    free(server->checksums);
    free(server->free_slots);
    free(server->events);
    pthread_mutex_destroy(&server->mutex);
    free(server);
}

static int set_up(struct page_server *server, int64_t offered_bytes, int is_locked)
{
    struct epoll_event woken = {.events = EPOLLIN, .data.ptr = NULL};
    static const uint8_t zeros[PAGE_BYTES];

    server->slot_count = (uint32_t)(offered_bytes / PAGE_BYTES);
    server->free_count = server->slot_count;
    server->zeros_checksum = page_checksum(zeros, PAGE_BYTES);
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->has_events = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->checksums = malloc((size_t)server->slot_count * 4);
    server->free_slots = malloc((size_t)server->slot_count * 4);
    server->events = malloc(EVENTS_MAX * sizeof *server->events);
    if (server->epoll < 0 || server->wake < 0 || server->has_events < 0 ||
        server->checksums == NULL || server->free_slots == NULL || server->events == NULL)
        return 0;
    void *pages = mmap(NULL, (size_t)server->slot_count * PAGE_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        return 0;
    server->pages = pages;
    server->is_locked = is_locked;
    if (is_locked && mlock(pages, (size_t)server->slot_count * PAGE_BYTES) != 0)
        return 0;
    for (uint32_t n = 0; n < server->slot_count; n++) /* the first pages are used first */
        server->free_slots[n] = server->slot_count - n;
    return epoll_ctl(server->epoll, EPOLL_CTL_ADD, server->wake, &woken) == 0;
}

struct page_server *page_server_open(int64_t offered_bytes, int is_locked)
{
    struct page_server *server;

    if (offered_bytes < EXTENT_PAGES * PAGE_BYTES ||
        offered_bytes / PAGE_BYTES >= (int64_t)UINT32_MAX) {
        errno = EINVAL;
        return NULL;
    }
    server = calloc(1, sizeof *server);
    if (server == NULL)
        return NULL;
    server->epoll = server->wake = server->has_events = -1;
    pthread_mutex_init(&server->mutex, NULL);
    int error = set_up(server, offered_bytes, is_locked)
                    ? pthread_create(&server->thread, NULL, serve, server)
                    : errno;
    if (error != 0) {
        free_all(server);
        errno = error;
        return NULL;
    }
    server->figures.pages_offered = server->slot_count;
    return server;
}

void page_server_close(struct page_server *server)
{
    pthread_mutex_lock(&server->mutex);
    server->is_closing = 1;
    pthread_mutex_unlock(&server->mutex);
    wake(server);
    pthread_join(server->thread, NULL);
    free_all(server);
}

int page_server_listen(struct page_server *server, int fd)
{
    pthread_mutex_lock(&server->mutex);
    int is_added = add_connection(server, LISTENER, fd) != NULL;
    pthread_mutex_unlock(&server->mutex);
    return is_added ? 0 : -1;
}

int page_server_allow(struct page_server *server, const uint8_t token[TOKEN_BYTES], double for_s)
{
    double now = now_s();
    int is_kept = 0;

    pthread_mutex_lock(&server->mutex);
    for (int n = 0; n < TOKENS_MAX && !is_kept; n++)
        if (server->tokens[n].until_s <= now) {
            memcpy(server->tokens[n].bytes, token, TOKEN_BYTES);
            server->tokens[n].until_s = now + for_s;
            is_kept = 1;
        }
    for (struct connection *each = server->connections; each != NULL; each = each->next)
        if (each->kind == STRANGER && !each->is_closing)
            process(server, each);
    pthread_mutex_unlock(&server->mutex);
    if (!is_kept)
        errno = EAGAIN;
    return is_kept ? 0 : -1;
}

void page_server_lease(struct page_server *server, double until_s)
{
    pthread_mutex_lock(&server->mutex);
    server->lease_until_s = until_s;
    pthread_mutex_unlock(&server->mutex);
}

int page_server_connect(struct page_server *server, int peer, int fd)
{
    if (peer < 0 || peer >= PEERS_MAX) {
        errno = EINVAL;
        return -1;
    }
    pthread_mutex_lock(&server->mutex);
    struct connection *connection = add_connection(server, PEER, fd);
    if (connection != NULL) {
        if (server->peers[peer] != NULL)
            give_up(server, server->peers[peer]);
        connection->peer = peer;
        server->peers[peer] = connection;
        server->unacknowledged[peer] = 0;
    }
    pthread_mutex_unlock(&server->mutex);
    wake(server);
    return connection == NULL ? -1 : 0;
}

static int is_possible(const struct holding *holding)
{
    if (holding->role > ROLE_JOINING || holding->backup_count > BACKUPS_MAX)
        return 0;
    for (int n = 0; n < holding->backup_count; n++)
        if (holding->backups[n] >= PEERS_MAX)
            return 0;
    return 1;
}

static struct extent *add_extent(struct page_server *server, const struct holding *holding)
{
    struct extent **bucket = bucket_of(server, holding->volume, holding->extent);
    struct extent *extent = calloc(1, sizeof *extent);

    if (extent == NULL)
        return NULL;
    extent->volume = holding->volume;
    extent->number = holding->extent;
    extent->copy = ++server->copies;
    extent->last = &extent->first;
    extent->next = *bucket;
    *bucket = extent;
    server->figures.extents++;
    return extent;
}

/* Take over one role. 0: no memory. */
static int hold(struct page_server *server, const struct holding *holding)
{
    struct extent *extent = find(server, holding->volume, holding->extent);
    uint64_t remaining = 0;

    if (extent != NULL && holding->epoch < extent->epoch)
        return 1; /* an earlier decision, which is late */
    if (extent != NULL && (holding->role == ROLE_NONE || holding->role == ROLE_JOINING)) {
        free_extent(server, extent);
        extent = NULL;
    }
    if (holding->role == ROLE_NONE)
        return 1;
    if (extent == NULL)
        extent = add_extent(server, holding);
    if (extent == NULL)
        return 0;
    extent->epoch = holding->epoch;
    extent->role = holding->role;
    extent->joining = holding->joining;
    extent->backup_count = holding->backup_count;
    memcpy(extent->backups, holding->backups, sizeof extent->backups);
    for (int n = 0; n < extent->backup_count; n++) {
        remaining |= (uint64_t)1 << extent->backups[n];
        if (extent->joining >> n & 1 && !start_sync(server, extent, extent->backups[n]))
            return 0;
    }
    /* A joining backup gets the earlier writes with the pages. */
    for (int n = 0; n < extent->backup_count; n++)
        if (extent->joining >> n & 1)
            remaining &= ~((uint64_t)1 << extent->backups[n]);
    for (struct pending *pending = extent->first; pending != NULL; pending = pending->next)
        pending->waits &= remaining;
    if (extent->role == ROLE_PRIMARY)
        complete(server, extent);
    else
        refuse_pending(server, extent);
    return 1;
}

int page_server_hold(struct page_server *server, const struct holding *holdings, int count)
{
    for (int n = 0; n < count; n++)
        if (!is_possible(&holdings[n])) {
            errno = EINVAL;
            return -1;
        }
    pthread_mutex_lock(&server->mutex);
    int is_done = 1;
    for (int n = 0; n < count && is_done; n++)
        is_done = hold(server, &holdings[n]);
    pthread_mutex_unlock(&server->mutex);
    wake(server);
    if (!is_done)
        errno = ENOMEM;
    return is_done ? 0 : -1;
}

int page_server_event_fd(struct page_server *server) { return server->has_events; }

int page_server_events(struct page_server *server, struct event *events, int max)
{
    uint64_t told;
    int count = 0;

    pthread_mutex_lock(&server->mutex);
    while (count < max && server->event_count > 0) {
        events[count++] = server->events[server->first_event];
        server->first_event = (server->first_event + 1) % EVENTS_MAX;
        server->event_count--;
    }
    if (server->event_count == 0)
        (void)!read(server->has_events, &told, sizeof told);
    pthread_mutex_unlock(&server->mutex);
    return count;
}

void page_server_figures(struct page_server *server, struct figures *figures)
{
    pthread_mutex_lock(&server->mutex);
    *figures = server->figures;
    figures->pages_used = server->slot_count - server->free_count;
    pthread_mutex_unlock(&server->mutex);
}

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24 /* since Linux 5.18: the pages are locked again when they are used */
#endif

int page_server_release(struct page_server *server, uint32_t count)
{
    int advice = server->is_locked ? MADV_DONTNEED_LOCKED : MADV_DONTNEED;
    int failed = 0;

    if (sysconf(_SC_PAGESIZE) != PAGE_BYTES) { /* the kernel would release other pages, too */
        errno = ENOTSUP;
        return -1;
    }
    pthread_mutex_lock(&server->mutex);
    uint32_t left = server->free_count - server->released;
    uint32_t end = server->released + (left < count ? left : count);
    while (server->released < end && !failed) {
        const uint32_t *slots = server->free_slots + server->released;
        uint32_t run = 1; /* slots of pages that are adjacent, the last one first */
        while (server->released + run < end && slots[run] == slots[run - 1] - 1)
            run++;
        failed = madvise(page_at(server, slots[run - 1]), (size_t)run * PAGE_BYTES, advice);
        if (!failed)
            server->released += run;
    }
    int has_more = server->released < server->free_count;
    pthread_mutex_unlock(&server->mutex);
    return failed ? -1 : has_more;
}
