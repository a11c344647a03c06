/* Checks frames, and carries out the requests of clients and peers. */
#include "server.h"

/* Send pages from where they are; pages in a row are one part. */
void read_pages(struct page_server *server, struct connection *from, const struct frame *frame)
{
    static const uint8_t zeros[PAGE_BYTES];
    struct {
        struct frame frame;
        uint32_t checksums[EXTENT_PAGES];
    } head = {.frame = *frame};
    struct iovec parts[1 + EXTENT_PAGES];
    struct extent *extent = extent_of(server, frame);
    uint32_t first = (uint32_t)(frame->page % EXTENT_PAGES), before = 0;
    int last = 0;

    if (!is_primary(server, extent, frame->epoch)) {
        reply(server, from, frame, STATUS_STALE);
        return;
    }
    if (extent->unequal != 0) {
        wait_until_equal(server, extent, from, frame);
        return;
    }
    head.frame.size_bytes = frame->count * (PAGE_BYTES + 4);
    parts[0] = (struct iovec){&head, sizeof head.frame + 4 * frame->count};
    for (uint32_t n = 0; n < frame->count; n++) {
        uint32_t slot = extent->slots[first + n];
        head.checksums[n] = slot == 0 ? server->zeros_checksum : server->checksums[slot - 1];
        if (before != 0 && slot == before + 1)
            parts[last].iov_len += PAGE_BYTES;
        else
            parts[++last] = (struct iovec){
                slot == 0 ? (uint8_t *)zeros : page_at(server, slot), PAGE_BYTES};
        before = slot;
    }
    server->figures.pages_read += frame->count;
    send_parts(server, from, parts, last + 1);
}

/* Take over a write, or pages, from the primary. */
static void follow(struct page_server *server, struct connection *from, const struct frame *frame,
                   const uint8_t *payload)
{
    struct extent *extent = extent_of(server, frame);
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
    if (payload != NULL && !has_room(server, extent, first, (int)frame->count)) {
        reply(server, from, frame, STATUS_NO_SPACE);
        return;
    }
    extent->epoch = frame->epoch; /* from now on, an earlier primary is refused */
    if (frame->op == OP_SYNC && frame->epoch > extent->equal_from) {
        /* The pages replace writes that the primary has not completed: they are not done here. */
        extent->equal_from = frame->epoch;
        extent->copy = ++server->copies;
    }
    change_pages(server, extent, first, (int)frame->count, payload);
    if (frame->op != OP_SYNC)
        note_completed(server, extent, frame);
    reply(server, from, frame, STATUS_OK);
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
    int may_be_zeros = !is_reply && frame->op == OP_SYNC && frame->size_bytes == 0;
    if (!may_be_zeros &&
        frame->size_bytes != (has_payload ? frame->count * (PAGE_BYTES + 4) : 0))
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
            if (frame.op == OP_WRITE && start_arrival(server, connection, &frame)) {
                copy_arrived(server, connection, payload, held(in) - sizeof frame);
                in->start = in->end;
            }
            return;
        }
        in->start += sizeof frame + frame.size_bytes;
        carry_out(server, connection, &frame, payload);
    }
}
