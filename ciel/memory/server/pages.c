/* The pages of extents: where they are in memory, and their checksums. */
#include "server.h"

static struct extent **bucket_of(struct page_server *server, uint64_t volume, uint32_t number)
{
    uint64_t hash = (volume * 0x9e3779b97f4a7c15u ^ number) * 0xff51afd7ed558ccdu;

    return &server->extents[hash >> 50 & (EXTENT_BUCKETS - 1)];
}

struct extent *find_extent(struct page_server *server, uint64_t volume, uint32_t number)
{
    struct extent *extent = *bucket_of(server, volume, number);

    while (extent != NULL && (extent->volume != volume || extent->number != number))
        extent = extent->next;
    return extent;
}

uint8_t *page_at(struct page_server *server, uint32_t slot)
{
    return server->pages + (uint64_t)(slot - 1) * PAGE_BYTES;
}

uint32_t take_slot(struct page_server *server)
{
    uint32_t slot = server->free_slots[--server->free_count];

    if (server->released > server->free_count)
        server->released = server->free_count;
    return slot;
}

static void clear_page(struct page_server *server, struct extent *extent, int page)
{
    if (extent->slots[page] != 0) {
        server->free_slots[server->free_count++] = extent->slots[page];
        extent->slots[page] = 0;
    }
}

static void clear_extent(struct page_server *server, struct extent *extent)
{
    for (int page = 0; page < EXTENT_PAGES; page++)
        clear_page(server, extent, page);
}

/* How many pages of the offered ones no extent has. The spare pages do not count. */
uint32_t room_of(const struct page_server *server)
{
    return server->free_count + server->arriving - SPARE_PAGES;
}

/* Whether there is space for the pages of a write that have none yet. */
int has_room(const struct page_server *server, const struct extent *extent, int first, int count)
{
    uint32_t needed = 0;

    for (int page = first; page < first + count; page++)
        needed += extent->slots[page] == 0;
    return needed <= room_of(server);
}

/* Change the pages of an extent. `payload`: checksums and pages; NULL: they become zeros. */
void change_pages(struct page_server *server, struct extent *extent, int first, int count,
                  const uint8_t *payload)
{
    for (int n = 0; n < count; n++) {
        int page = first + n;
        if (payload == NULL) {
            clear_page(server, extent, page);
            continue;
        }
        if (extent->slots[page] == 0)
            extent->slots[page] = take_slot(server);
        uint32_t slot = extent->slots[page];
        memcpy(&server->checksums[slot - 1], payload + 4 * n, 4);
        memcpy(page_at(server, slot), payload + 4 * count + (size_t)n * PAGE_BYTES, PAGE_BYTES);
    }
    server->figures.pages_written += payload == NULL ? 0 : (uint64_t)count;
}

/* Give an extent the pages of an arrival; the arrival gets the earlier pages of the extent. */
void place_pages(struct page_server *server, struct extent *extent, struct arrival *arrival)
{
    uint32_t first = (uint32_t)(arrival->frame.page % EXTENT_PAGES);

    for (uint32_t n = 0; n < arrival->frame.count; n++) {
        uint32_t earlier = extent->slots[first + n], slot = arrival->slots[n];
        extent->slots[first + n] = slot;
        server->checksums[slot - 1] = arrival->checksums[n];
        arrival->slots[n] = earlier;
    }
    server->figures.pages_written += arrival->frame.count;
}

int is_intact(int count, const uint8_t *payload)
{
    for (int n = 0; n < count; n++) {
        uint32_t checksum;
        memcpy(&checksum, payload + 4 * n, 4);
        if (page_checksum(payload + 4 * count + (size_t)n * PAGE_BYTES, PAGE_BYTES) != checksum)
            return 0;
    }
    return 1;
}

struct extent *add_extent(struct page_server *server, const struct holding *holding)
{
    struct extent **bucket = bucket_of(server, holding->volume, holding->extent);
    struct extent *extent = calloc(1, sizeof *extent);

    if (extent == NULL)
        return NULL;
    extent->volume = holding->volume;
    extent->number = holding->extent;
    extent->copy = ++server->copies;
    extent->equal_from = holding->epoch;
    extent->last = &extent->first;
    extent->last_waiting = &extent->first_waiting;
    extent->next = *bucket;
    *bucket = extent;
    server->figures.extents++;
    return extent;
}

void free_extent(struct page_server *server, struct extent *extent)
{
    struct extent **link = bucket_of(server, extent->volume, extent->number);

    while (*link != extent)
        link = &(*link)->next;
    *link = extent->next;
    refuse_pending(server, extent);
    refuse_waiting(server, extent);
    clear_extent(server, extent);
    free(extent);
    server->figures.extents--;
}
