/* Writes of clients: each waits until its backups have acknowledged it. */
#include "server.h"

int is_primary(const struct page_server *server, const struct extent *extent,
               uint32_t epoch)
{
    return extent != NULL && extent->role == ROLE_PRIMARY && extent->epoch == epoch &&
           now_s() < server->lease_until_s;
}

static void free_pending(struct pending *pending)
{
    if (pending->from != NULL)
        pending->from->references--;
    free(pending->payload);
    free(pending);
}

/* Complete the writes that no backup delays any more, in order. */
void complete_writes(struct page_server *server, struct extent *extent)
{
    while (extent->first != NULL && extent->first->waits == 0) {
        struct pending *done = extent->first;
        const struct frame *frame = &done->frame;

        extent->first = done->next;
        if (extent->first == NULL)
            extent->last = &extent->first;
        if (done->payload != NULL && !has_room(server, extent, frame)) {
            reply(server, done->from, frame, STATUS_NO_SPACE);
        } else {
            change_pages(server, extent, frame, done->payload);
            note_completed(server, extent, frame);
            reply(server, done->from, frame, STATUS_OK);
        }
        free_pending(done);
    }
}

/* Send a write to the backups; return which ones have to acknowledge it. */
static uint64_t forward_write(struct page_server *server, const struct extent *extent,
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
        server->figures.pages_forwarded += frame->count;
    }
    return waits;
}

/* Return the write that a client has sent before, through another connection. */
static struct pending *earlier_write(const struct extent *extent, const struct frame *frame)
{
    struct pending *pending = extent->first;

    while (pending != NULL &&
           (pending->frame.session != frame->session || pending->frame.id != frame->id))
        pending = pending->next;
    return pending;
}

/* Answer a write that changes nothing: return whether it was one. */
static int is_answered(struct page_server *server, struct extent *extent,
                       struct connection *from, struct frame *frame)
{
    struct session *session;
    struct pending *pending;

    frame->session = from->session;
    if (!is_primary(server, extent, frame->epoch)) {
        reply(server, from, frame, STATUS_STALE);
        return 1;
    }
    session = session_of(server, from->session);
    if (session != NULL && is_completed(session, extent, frame->id)) {
        /* The earlier reply was lost (KVB-3). */
        if (extent->unequal != 0)
            wait_until_equal(server, extent, from, frame);
        else
            reply(server, from, frame, STATUS_OK);
        return 1;
    }
    pending = earlier_write(extent, frame);
    if (pending == NULL)
        return 0;
    if (pending->from != NULL)
        pending->from->references--;
    pending->from = from;
    from->references++;
    return 1;
}

/* Let a write wait for its backups, which get it now. */
static void hold_write(struct page_server *server, struct extent *extent, struct connection *from,
                       struct frame *frame, uint8_t *payload)
{
    struct pending *pending = calloc(1, sizeof *pending);

    if (pending == NULL || (payload == NULL && frame->size_bytes > 0)) {
        free(pending);
        free(payload);
        reply(server, from, frame, STATUS_NO_SPACE);
        return;
    }
    frame->sequence = ++server->sequence;
    *pending = (struct pending){.from = from, .frame = *frame, .payload = payload};
    from->references++;
    *extent->last = pending;
    extent->last = &pending->next;
    pending->waits = forward_write(server, extent, frame, payload);
    complete_writes(server, extent);
}

static void end_write(struct page_server *server, const struct extent *extent,
                      struct connection *from, const struct frame *frame)
{
    note_completed(server, extent, frame);
    reply(server, from, frame, STATUS_OK);
}

/* Carry out a write whose payload is in a buffer; NULL: a trim. */
void write_pages(struct page_server *server, struct connection *from, struct frame *frame,
                 const uint8_t *payload)
{
    struct extent *extent = extent_of(server, frame);

    if (is_answered(server, extent, from, frame))
        return;
    if (payload != NULL && !is_intact(frame, payload)) {
        reply(server, from, frame, STATUS_DAMAGED);
    } else if (payload != NULL && !has_room(server, extent, frame)) {
        reply(server, from, frame, STATUS_NO_SPACE);
    } else if (extent->backup_count == 0 && extent->first == NULL) { /* nothing to wait for */
        change_pages(server, extent, frame, payload);
        end_write(server, extent, from, frame);
    } else {
        uint8_t *copy = payload == NULL ? NULL : malloc(frame->size_bytes);
        if (copy != NULL)
            memcpy(copy, payload, frame->size_bytes);
        hold_write(server, extent, from, frame, copy);
    }
}

/* Carry out a write whose payload is in spare pages. */
void write_arrived(struct page_server *server, struct connection *from, struct arrival *arrival)
{
    struct frame *frame = &arrival->frame;
    struct extent *extent = extent_of(server, frame);
    size_t count = frame->count;

    if (is_answered(server, extent, from, frame))
        return;
    if (arrival->intact < count) {
        reply(server, from, frame, STATUS_DAMAGED);
    } else if (!has_room(server, extent, frame)) {
        reply(server, from, frame, STATUS_NO_SPACE);
    } else if (extent->backup_count == 0 && extent->first == NULL) {
        place_pages(server, extent, arrival);
        end_write(server, extent, from, frame);
    } else {
        uint8_t *copy = malloc(frame->size_bytes);
        if (copy != NULL)
            memcpy(copy, arrival->checksums, 4 * count);
        for (size_t n = 0; copy != NULL && n < count; n++)
            memcpy(copy + 4 * count + n * PAGE_BYTES, page_at(server, arrival->places[n]),
                   PAGE_BYTES);
        hold_write(server, extent, from, frame, copy);
    }
}

/* A peer has acknowledged a write. */
void note_acknowledged(struct page_server *server, struct connection *from,
                       const struct frame *frame)
{
    struct extent *extent = extent_of(server, frame);

    if (extent == NULL)
        return;
    for (struct pending *pending = extent->first; pending != NULL; pending = pending->next)
        if (pending->frame.sequence == frame->sequence)
            pending->waits &= ~((uint64_t)1 << from->peer);
    complete_writes(server, extent);
}

void refuse_pending(struct page_server *server, struct extent *extent)
{
    while (extent->first != NULL) {
        struct pending *pending = extent->first;
        extent->first = pending->next;
        reply(server, pending->from, &pending->frame, STATUS_STALE);
        free_pending(pending);
    }
    extent->last = &extent->first;
}

/* A connection that has gone gets no replies; its writes are completed. */
void detach_writes(struct page_server *server, struct connection *connection)
{
    if (connection->references == 0)
        return;
    for (int n = 0; n < EXTENT_BUCKETS; n++)
        for (struct extent *extent = server->extents[n]; extent != NULL; extent = extent->next) {
            for (struct pending *each = extent->first; each != NULL; each = each->next)
                if (each->from == connection)
                    each->from = NULL;
            for (struct waiting *each = extent->first_waiting; each != NULL; each = each->next)
                if (each->from == connection)
                    each->from = NULL;
        }
}
