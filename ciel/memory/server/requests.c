/* Checks frames, and carries out the requests of clients and peers. */
#include "server.h"

/* Whether a client that does not unpack pages can read these. */
static int are_whole(const struct extent *extent, uint32_t first, uint32_t count)
{
    for (uint32_t page = first; page < first + count; page++)
        if (extent->places[page] != 0 && extent->lengths[page] != PAGE_BYTES)
            return 0;
    return 1;
}

/* Send pages from where they are; pages in a row are one part. */
static void send_pages(struct page_server *server, struct connection *to,
                       const struct frame *frame, const struct extent *extent)
{
    static const uint8_t zeros[PAGE_BYTES];
    struct {
        struct frame frame;
        uint32_t checksums[EXTENT_PAGES];
    } head = {.frame = *frame};
    uint16_t lengths[EXTENT_PAGES];
    struct iovec parts[2 + EXTENT_PAGES];
    uint32_t first = (uint32_t)(frame->page % EXTENT_PAGES);
    int last = 0;

    head.frame.status = STATUS_OK;
    head.frame.size_bytes = 4 * frame->count;
    parts[0] = (struct iovec){&head, sizeof head.frame + 4 * frame->count};
    if (frame->is_packed) {
        head.frame.size_bytes += 2 * frame->count;
        parts[++last] = (struct iovec){lengths, 2 * frame->count};
    }
    for (uint32_t n = 0; n < frame->count; n++) {
        uint32_t place = extent->places[first + n];
        uint8_t *page = place == 0 ? (uint8_t *)zeros : page_at(server, place);
        lengths[n] = place != 0 ? extent->lengths[first + n] : frame->is_packed ? 0 : PAGE_BYTES;
        head.checksums[n] = place == 0 ? server->zeros_checksum : extent->checksums[first + n];
        head.frame.size_bytes += lengths[n];
        if (last > 0 && page != zeros &&
            (uint8_t *)parts[last].iov_base + parts[last].iov_len == page)
            parts[last].iov_len += lengths[n];
        else if (lengths[n] > 0)
            parts[++last] = (struct iovec){page, lengths[n]};
    }
    server->figures.pages_read += frame->count;
    send_parts(server, to, parts, last + 1);
}

void read_pages(struct page_server *server, struct connection *from, const struct frame *frame)
{
    struct extent *extent = extent_of(server, frame);

    if (!is_primary(server, extent, frame->epoch))
        reply(server, from, frame, STATUS_STALE);
    else if (extent->unequal != 0)
        wait_until_equal(server, extent, from, frame);
    else if (!frame->is_packed &&
             !are_whole(extent, (uint32_t)(frame->page % EXTENT_PAGES), frame->count))
        end_connection(server, from); /* it does not know that the volume is compressed */
    else
        send_pages(server, from, frame, extent);
}

/* Take over a write, or pages, from the primary. */
static void follow(struct page_server *server, struct connection *from, const struct frame *frame,
                   const uint8_t *payload)
{
    struct extent *extent = extent_of(server, frame);

    if (extent == NULL || frame->epoch < extent->epoch ||
        (extent->role != ROLE_BACKUP && extent->role != ROLE_JOINING)) {
        reply(server, from, frame, STATUS_STALE);
        return;
    }
    if (payload != NULL && !is_intact(frame, payload)) {
        reply(server, from, frame, STATUS_DAMAGED);
        return;
    }
    if (payload != NULL && !has_room(server, extent, frame)) {
        reply(server, from, frame, STATUS_NO_SPACE);
        return;
    }
    extent->epoch = frame->epoch; /* from now on, an earlier primary is refused */
    if (frame->op == OP_SYNC && frame->epoch > extent->equal_from) {
        /* The pages replace writes that the primary has not completed: they are not done here. */
        extent->equal_from = frame->epoch;
        extent->copy = ++server->copies;
    }
    change_pages(server, extent, frame, payload);
    if (frame->op != OP_SYNC)
        note_completed(server, extent, frame);
    reply(server, from, frame, STATUS_OK);
}

/* Whether a frame can have the size that its header says. Only `is_intact` knows the exact size of
 * packed pages. */
static int is_valid_size(const struct frame *frame, int has_pages)
{
    uint32_t size = frame->size_bytes, count = frame->count;

    if (!has_pages)
        return size == 0;
    if (frame->is_packed)
        return size >= 6 * count && size <= (PAGE_BYTES + 6) * count;
    return size == (PAGE_BYTES + 4) * count;
}

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
    int is_of_zeros = frame->op == OP_SYNC && frame->size_bytes == 0;
    if (frame->is_packed > 1 || !is_valid_size(frame, has_payload && !is_of_zeros))
        return 0;
    if (is_reply || connection->kind == PEER)
        return frame->op >= OP_FORWARD && frame->op <= OP_SYNC;
    return frame->op >= OP_READ && frame->op <= OP_TRIM && frame->id > 0;
}

/* A peer has answered a forward, or pages. */
static void take_reply(struct page_server *server, struct connection *from,
                       const struct frame *frame)
{
    if (frame->status != STATUS_OK) /* its role has changed, or it has no space */
        end_connection(server, from);
    else if (frame->op == OP_SYNC)
        note_synced(server, from, frame);
    else
        note_acknowledged(server, from, frame);
}

static void carry_out(struct page_server *server, struct connection *connection,
                      struct frame *frame, const uint8_t *payload)
{
    const uint8_t *content = frame->size_bytes > 0 ? payload : NULL;

    server->figures.requests++;
    if (connection->peer >= 0)
        take_reply(server, connection, frame);
    else if (connection->kind == PEER)
        follow(server, connection, frame, content);
    else if (frame->op == OP_READ)
        read_pages(server, connection, frame);
    else
        write_pages(server, connection, frame, content);
}

void process_frames(struct page_server *server, struct connection *connection)
{
    struct buffer *in = &connection->in;

    if (connection->kind == UNAUTHENTICATED)
        admit(server, connection);
    while (connection->kind != UNAUTHENTICATED && !connection->is_closing &&
           held(in) >= sizeof(struct frame)) {
        struct frame frame;
        memcpy(&frame, in->bytes + in->start, sizeof frame);
        if (!is_valid(connection, &frame)) {
            end_connection(server, connection);
            return;
        }
        const uint8_t *payload = in->bytes + in->start + sizeof frame;
        if (held(in) < sizeof frame + frame.size_bytes) {
            if (frame.op == OP_WRITE && !frame.is_packed &&
                start_arrival(server, connection, &frame)) {
                copy_arrived(server, connection, payload, held(in) - sizeof frame);
                in->start = in->end;
            }
            return;
        }
        in->start += sizeof frame + frame.size_bytes;
        carry_out(server, connection, &frame, payload);
    }
}
