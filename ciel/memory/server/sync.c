/* Sends the pages of extents to backups that are joining or rejoining. */
#include "server.h"

enum {
    SYNC_PAGES = 32, /* in one frame */
    SYNCS_MAX = 64,  /* frames of one peer that are not acknowledged */
};

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

/* Return how many pages from the next one on are alike: zeros or not, and without a write. */
static int count_alike(const struct extent *extent, const struct sync *sync, int is_zero)
{
    int count = 0, max = is_zero ? EXTENT_PAGES : SYNC_PAGES;

    while (count < max && sync->page + count < EXTENT_PAGES &&
           (extent->places[sync->page + count] == 0) == is_zero &&
           !is_pending(extent, sync->page + count))
        count++;
    return count;
}

/* Return the size of the payload of pages. */
static uint32_t size_of(const struct extent *extent, int first, int count)
{
    uint32_t size = 6 * (uint32_t)count;

    for (int page = first; page < first + count; page++)
        size += extent->lengths[page];
    return size;
}

/* Send the next pages of an extent; return 0 when none are left. */
static int sync_some(struct page_server *server, struct extent *extent, struct sync *sync)
{
    struct connection *peer = server->peers[sync->peer];

    /* A page with a pending write is left out: the backup has got that write, which is newer. */
    while (sync->page < EXTENT_PAGES &&
           ((extent->places[sync->page] == 0 && !sync->sends_zeros) ||
            is_pending(extent, sync->page)))
        sync->page++;
    if (sync->page == EXTENT_PAGES)
        return 0;
    int is_zero = extent->places[sync->page] == 0;
    int count = count_alike(extent, sync, is_zero);
    struct frame frame = {
        .size_bytes = is_zero ? 0 : size_of(extent, sync->page, count), .op = OP_SYNC,
        .is_packed = !is_zero,
        .volume = sync->volume, .page = (uint64_t)sync->extent * EXTENT_PAGES + (uint64_t)sync->page,
        .count = (uint32_t)count, .epoch = sync->epoch, .sequence = ++server->sequence};
    uint8_t *at = put_frame(server, peer, &frame);
    if (at == NULL)
        return 1; /* the peer is lost: the owner's next decision ends this */
    uint8_t *content = at + 6 * count;
    for (int n = 0; n < count && !is_zero; n++) {
        int page = sync->page + n;
        memcpy(at + 4 * n, &extent->checksums[page], 4);
        memcpy(at + 4 * count + 2 * n, &extent->lengths[page], 2);
        memcpy(content, page_at(server, extent->places[page]), extent->lengths[page]);
        content += extent->lengths[page];
    }
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
void sync_all(struct page_server *server)
{
    struct sync **link = &server->syncs;

    while (*link != NULL) {
        struct sync *sync = *link;
        struct extent *extent = find_extent(server, sync->volume, sync->extent);
        int is_over =
            extent == NULL || extent->role != ROLE_PRIMARY || extent->epoch != sync->epoch;

        /* Writes from before the peer joined were not forwarded to it. */
        while (!is_over && !has_pending_up_to(extent, sync->after) &&
               server->peers[sync->peer] != NULL &&
               server->unacknowledged[sync->peer] < SYNCS_MAX) {
            if (sync_some(server, extent, sync))
                continue;
            if (sync->unacknowledged == 0) {
                extent->unequal &= ~((uint64_t)1 << sync->peer);
                answer_waiting(server, extent);
                report_event(server, (struct event){.kind = EVENT_SYNCED, .volume = sync->volume,
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
    send_queued(server);
}

int start_sync(struct page_server *server, const struct extent *extent, int peer)
{
    struct sync *sync = calloc(1, sizeof *sync);

    if (sync == NULL)
        return 0;
    *sync = (struct sync){.next = server->syncs, .volume = extent->volume, .extent = extent->number,
                          .epoch = extent->epoch, .peer = peer, .after = server->sequence,
                          .sends_zeros = (int)(extent->unequal >> peer & 1)};
    server->syncs = sync;
    return 1;
}

/* Continue with an extent before others. */
void hurry_sync(struct page_server *server, const struct extent *extent)
{
    struct sync **link = &server->syncs, *first = NULL, **end = &first;

    while (*link != NULL) {
        struct sync *sync = *link;
        if (sync->volume == extent->volume && sync->extent == extent->number) {
            *link = sync->next;
            *end = sync;
            end = &sync->next;
        } else {
            link = &sync->next;
        }
    }
    *end = server->syncs;
    server->syncs = first;
}

/* A peer has acknowledged pages. */
void note_synced(struct page_server *server, const struct connection *from,
                 const struct frame *frame)
{
    uint32_t number = (uint32_t)(frame->page / EXTENT_PAGES);

    server->unacknowledged[from->peer]--;
    for (struct sync *sync = server->syncs; sync != NULL; sync = sync->next)
        if (sync->volume == frame->volume && sync->extent == number &&
            sync->epoch == frame->epoch && sync->peer == from->peer)
            sync->unacknowledged--;
}
