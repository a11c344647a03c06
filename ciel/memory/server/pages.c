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

uint8_t *page_at(struct page_server *server, uint32_t place)
{
    return server->pages + (uint64_t)(place - 1) * QUARTER_BYTES;
}

/* --- places ----------------------------------------------------------------------------------- */

uint32_t take_page(struct page_server *server)
{
    uint32_t slot = server->free_slots[--server->free_count];

    if (server->released > server->free_count)
        server->released = server->free_count;
    return slot * QUARTERS + 1;
}

static int quarters_of(uint32_t length) { return (int)((length + QUARTER_BYTES - 1) / QUARTER_BYTES); }

/* Return where so many free quarters in a row begin in a slot; -1: there are not so many. */
static int find_free(uint8_t used, int quarters)
{
    int wanted = (1 << quarters) - 1;

    for (int first = 0; first + quarters <= QUARTERS; first++)
        if ((used & wanted << first) == 0)
            return first;
    return -1;
}

static int longest_free(uint8_t used)
{
    int quarters = QUARTERS;

    while (quarters > 0 && find_free(used, quarters) < 0)
        quarters--;
    return quarters;
}

/* Change which quarters of a slot are used, and move it between the lists of slots in parts. */
static void set_used(struct page_server *server, uint32_t slot, uint8_t used)
{
    struct split *split = &server->splits[slot], *splits = server->splits;
    int before = split->used == 0 ? 0 : longest_free(split->used);
    int after = used == 0 ? 0 : longest_free(used);

    split->used = used;
    if (before == after)
        return;
    if (before > 0) {
        if (split->previous != 0)
            splits[split->previous - 1].next = split->next;
        else
            server->parts[before] = split->next;
        if (split->next != 0)
            splits[split->next - 1].previous = split->previous;
    }
    if (after > 0) {
        split->previous = 0;
        split->next = server->parts[after];
        if (split->next != 0)
            splits[split->next - 1].previous = slot + 1;
        server->parts[after] = slot + 1;
    }
}

/* Return a place for a page of a length. There is one if fewer pages have a place than the server
 * has slots: no slot that is used has no page. */
static uint32_t take_place(struct page_server *server, uint32_t length)
{
    int quarters = quarters_of(length), part = quarters;

    if (quarters == QUARTERS)
        return take_page(server);
    while (part < QUARTERS && server->parts[part] == 0)
        part++;
    uint32_t slot = part < QUARTERS ? server->parts[part] - 1
                                    : (take_page(server) - 1) / QUARTERS;
    uint8_t used = server->splits[slot].used;
    int first = find_free(used, quarters);
    set_used(server, slot, (uint8_t)(used | ((1 << quarters) - 1) << first));
    return slot * QUARTERS + (uint32_t)first + 1;
}

void give_back(struct page_server *server, uint32_t place, uint32_t length)
{
    uint32_t slot = (place - 1) / QUARTERS;
    int quarters = quarters_of(length);

    if (quarters < QUARTERS) {
        int part = ((1 << quarters) - 1) << (place - 1) % QUARTERS;
        set_used(server, slot, (uint8_t)(server->splits[slot].used & ~part));
        if (server->splits[slot].used != 0)
            return;
    }
    server->free_slots[server->free_count++] = slot;
}

/* --- pages of extents ------------------------------------------------------------------------- */

static void clear_page(struct page_server *server, struct extent *extent, uint32_t page)
{
    if (extent->places[page] == 0)
        return;
    give_back(server, extent->places[page], extent->lengths[page]);
    extent->places[page] = 0;
    server->page_count--;
}

static void clear_extent(struct page_server *server, struct extent *extent)
{
    for (uint32_t page = 0; page < EXTENT_PAGES; page++)
        clear_page(server, extent, page);
}

/* How many more pages may have a place. The spare pages do not count. */
uint32_t room_of(const struct page_server *server)
{
    return server->slot_count - server->page_count;
}

/* Whether there is space for the pages of a write that have none yet. */
int has_room(const struct page_server *server, const struct extent *extent,
             const struct frame *frame)
{
    uint32_t needed = 0, first = (uint32_t)(frame->page % EXTENT_PAGES);

    for (uint32_t page = first; page < first + frame->count; page++)
        needed += extent->places[page] == 0;
    return needed <= room_of(server);
}

static void set_page(struct page_server *server, struct extent *extent, uint32_t page,
                     uint32_t checksum, uint32_t length, const uint8_t *content)
{
    if (extent->places[page] == 0 ||
        quarters_of(extent->lengths[page]) != quarters_of(length)) {
        clear_page(server, extent, page);
        extent->places[page] = take_place(server, length);
        server->page_count++;
    }
    extent->lengths[page] = (uint16_t)length;
    extent->checksums[page] = checksum;
    memcpy(page_at(server, extent->places[page]), content, length);
}

/* Change the pages of an extent. `payload` NULL: they become zeros. */
void change_pages(struct page_server *server, struct extent *extent, const struct frame *frame,
                  const uint8_t *payload)
{
    uint32_t first = (uint32_t)(frame->page % EXTENT_PAGES);
    struct page page = {.content = payload};

    for (uint32_t n = 0; n < frame->count; n++) {
        if (payload != NULL)
            page = page_of(frame, payload, n, page);
        if (payload == NULL || page.length == 0)
            clear_page(server, extent, first + n);
        else
            set_page(server, extent, first + n, page.checksum, page.length, page.content);
    }
    server->figures.pages_written += payload == NULL ? 0 : frame->count;
}

/* Give an extent the pages of an arrival. */
void place_pages(struct page_server *server, struct extent *extent, struct arrival *arrival)
{
    uint32_t first = (uint32_t)(arrival->frame.page % EXTENT_PAGES);

    for (uint32_t n = 0; n < arrival->frame.count; n++) {
        clear_page(server, extent, first + n);
        extent->places[first + n] = arrival->places[n];
        extent->lengths[first + n] = PAGE_BYTES;
        extent->checksums[first + n] = arrival->checksums[n];
        arrival->places[n] = 0;
        server->page_count++;
    }
    server->figures.pages_written += arrival->frame.count;
}

/* Return the next page of a payload. */
struct page page_of(const struct frame *frame, const uint8_t *payload, uint32_t n,
                    struct page before)
{
    struct page page = {.length = PAGE_BYTES};
    uint16_t length;

    memcpy(&page.checksum, payload + 4ul * n, 4);
    if (frame->is_packed) {
        memcpy(&length, payload + 4ul * frame->count + 2ul * n, 2);
        page.length = length;
    }
    page.content = n == 0 ? payload + frame->count * (frame->is_packed ? 6ul : 4ul)
                          : before.content + before.length;
    return page;
}

/* Whether a payload has as many bytes as its lengths say, and each page its checksum. */
int is_intact(const struct frame *frame, const uint8_t *payload)
{
    const uint8_t *end = payload + frame->size_bytes;
    struct page page = {.content = payload};

    for (uint32_t n = 0; n < frame->count; n++) {
        page = page_of(frame, payload, n, page);
        if (page.length > PAGE_BYTES || page.length > (size_t)(end - page.content) ||
            (page.length > 0 && page_checksum(page.content, page.length) != page.checksum))
            return 0;
    }
    return page.content + page.length == end;
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
