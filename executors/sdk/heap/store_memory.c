/* Pages of the heap in a volume of memory servers (`ciel memory`), which has one copy of each. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ciel_memory.h"
#include "runtime.h"

/* A volume is smaller than the range of the heap: each page that is written gets a slot of it. */
struct volume {
    struct store store;
    struct ciel_memory *memory;
    uint32_t *slots; /* by page number; 0: none, otherwise one more than the slot */
    uint32_t *idle;  /* slots that were given back */
    uint64_t idle_count, used, count;
};

static uint64_t place_of(const struct volume *volume, uint64_t number)
{
    return (volume->slots[number] - 1ULL) * volume->store.page_bytes;
}

static int take_slot(struct volume *volume, uint64_t number)
{
    if (volume->slots[number])
        return 0;
    if (!volume->idle_count && volume->used == volume->count) {
        snprintf(volume->store.why, sizeof volume->store.why, "the volume is full: it has %llu MiB",
                 (unsigned long long)(ciel_memory_size_bytes(volume->memory) >> 20));
        return -1;
    }
    volume->slots[number] = (uint32_t)(volume->idle_count ? volume->idle[--volume->idle_count]
                                                          : ++volume->used);
    return 0;
}

/* Return how many pages from the first on lie side by side, in the volume and in memory. */
static unsigned neighbours(const struct volume *volume, const uint64_t *numbers,
                           char *const *addresses, unsigned count)
{
    unsigned found = 1;
    while (found < count && volume->slots[numbers[found]] == volume->slots[*numbers] + found &&
           addresses[found] == addresses[0] + found * volume->store.page_bytes)
        found++;
    return found;
}

static int fail_with(struct volume *volume)
{
    snprintf(volume->store.why, sizeof volume->store.why, "%s",
             errno == EIO ? ciel_memory_why() : strerror(errno));
    return -1;
}

static int read_pages(struct store *store, const uint64_t *numbers, char *const *to, unsigned count)
{
    struct volume *volume = (struct volume *)store;
    for (unsigned done = 0, part; done < count; done += part) {
        part = neighbours(volume, numbers + done, to + done, count - done);
        if (ciel_memory_read(volume->memory, to[done], part * store->page_bytes,
                             place_of(volume, numbers[done])))
            return fail_with(volume);
    }
    return 0;
}

static int write_pages(struct store *store, const uint64_t *numbers, char *const *from,
                       unsigned count)
{
    struct volume *volume = (struct volume *)store;
    for (unsigned i = 0; i < count; i++)
        if (take_slot(volume, numbers[i]))
            return -1;
    for (unsigned done = 0, part; done < count; done += part) {
        part = neighbours(volume, numbers + done, from + done, count - done);
        if (ciel_memory_write(volume->memory, from[done], part * store->page_bytes,
                              place_of(volume, numbers[done])))
            return fail_with(volume);
    }
    return 0;
}

static void forget_pages(struct store *store, const uint64_t *numbers, unsigned count)
{
    struct volume *volume = (struct volume *)store;
    for (unsigned i = 0; i < count; i++)
        if (volume->slots[numbers[i]]) {
            volume->idle[volume->idle_count++] = volume->slots[numbers[i]];
            volume->slots[numbers[i]] = 0;
        }
}

static void close_volume(struct store *store)
{
    struct volume *volume = (struct volume *)store;
    ciel_memory_trim(volume->memory, volume->used * store->page_bytes, 0);
    ciel_memory_close(volume->memory);
}

static uint32_t *sparse(uint64_t count)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *found = mmap(NULL, count * sizeof(uint32_t), PROT_READ | PROT_WRITE, flags, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

struct store *store_memory(const char *name, uint64_t page_bytes, char *why, size_t why_bytes)
{
    struct volume *volume = calloc(1, sizeof *volume);
    if (!volume || !(volume->memory = ciel_memory_open())) {
        snprintf(why, why_bytes, "the volume %s could not be opened: %s", name, strerror(errno));
        free(volume);
        return NULL;
    }
    volume->store = (struct store){.read = read_pages, .write = write_pages, .forget = forget_pages,
                                   .close = close_volume, .page_bytes = page_bytes};
    volume->count = ciel_memory_size_bytes(volume->memory) / page_bytes;
    volume->slots = sparse(2 * (MAIN_BYTES / page_bytes) + (1 << 24));
    volume->idle = sparse(volume->count + 1);
    if (!volume->slots || !volume->idle) {
        snprintf(why, why_bytes, "%s", strerror(errno));
        free(volume);
        return NULL;
    }
    return (struct store *)volume;
}
