#include "page_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "page_server.h"

enum {
    CLOCKS = 256, /* of writes; an extent has the clock of its number modulo this */
    STREAMS = 8,  /* so many sequential readers are known */
};

/* A page, by its index from 1. All are in the list of uses, the one used last first. */
struct entry {
    uint64_t page;
    uint32_t next, previous;
    uint32_t next_in_bucket;
    uint32_t is_used;
};

struct page_cache {
    pthread_mutex_t mutex;
    uint32_t count, bucket_count; /* the latter is a power of two */
    uint32_t first, last;
    uint32_t *buckets;
    struct entry *entries;
    uint8_t *pages;
    uint64_t clocks[CLOCKS];
    uint64_t ends[STREAMS]; /* of the latest reads */
    uint32_t latest;
};

static uint32_t *bucket_of(struct page_cache *cache, uint64_t page)
{
    uint64_t hash = page * 0x9e3779b97f4a7c15u;

    return &cache->buckets[hash >> 32 & (cache->bucket_count - 1)];
}

static uint64_t *clock_of(struct page_cache *cache, uint64_t page)
{
    return &cache->clocks[page / EXTENT_PAGES % CLOCKS];
}

static uint8_t *content_of(struct page_cache *cache, uint32_t index)
{
    return cache->pages + (size_t)(index - 1) * PAGE_BYTES;
}

static uint32_t find(struct page_cache *cache, uint64_t page)
{
    uint32_t index = *bucket_of(cache, page);

    while (index != 0 && cache->entries[index].page != page)
        index = cache->entries[index].next_in_bucket;
    return index;
}

static void unlink_entry(struct page_cache *cache, uint32_t index)
{
    struct entry *entry = &cache->entries[index];

    *(entry->previous ? &cache->entries[entry->previous].next : &cache->first) = entry->next;
    *(entry->next ? &cache->entries[entry->next].previous : &cache->last) = entry->previous;
}

/* Put an entry at one end of the list. */
static void link_entry(struct page_cache *cache, uint32_t index, int is_first)
{
    struct entry *entry = &cache->entries[index];

    entry->previous = is_first ? 0 : cache->last;
    entry->next = is_first ? cache->first : 0;
    *(entry->previous ? &cache->entries[entry->previous].next : &cache->first) = index;
    *(entry->next ? &cache->entries[entry->next].previous : &cache->last) = index;
}

static void drop(struct page_cache *cache, uint32_t index)
{
    struct entry *entry = &cache->entries[index];
    uint32_t *link = bucket_of(cache, entry->page);

    if (!entry->is_used)
        return;
    while (*link != index)
        link = &cache->entries[*link].next_in_bucket;
    *link = entry->next_in_bucket;
    entry->is_used = 0;
    unlink_entry(cache, index);
    link_entry(cache, index, 0);
}

static void put(struct page_cache *cache, uint64_t page, const uint8_t *from)
{
    uint32_t index = find(cache, page);

    if (index == 0) {
        index = cache->last; /* the one used longest ago, or a free one */
        drop(cache, index);
        uint32_t *bucket = bucket_of(cache, page);
        cache->entries[index].page = page;
        cache->entries[index].is_used = 1;
        cache->entries[index].next_in_bucket = *bucket;
        *bucket = index;
    }
    unlink_entry(cache, index);
    link_entry(cache, index, 1);
    memcpy(content_of(cache, index), from, PAGE_BYTES);
}

static void put_all(struct page_cache *cache, uint64_t page, uint32_t count, const uint8_t *from)
{
    for (uint32_t n = 0; n < count && count <= CACHED_PAGES_MAX; n++)
        put(cache, page + n, from + (size_t)n * PAGE_BYTES);
}

static void drop_all(struct page_cache *cache, uint64_t page, uint32_t count)
{
    for (uint32_t n = 0; n < count; n++) {
        uint32_t index = find(cache, page + n);
        if (index != 0)
            drop(cache, index);
    }
}

/* --- reads ------------------------------------------------------------------------------------ */

uint32_t page_cache_get(struct page_cache *cache, uint64_t page, uint32_t count, uint8_t *to)
{
    uint32_t got = 0, index;

    pthread_mutex_lock(&cache->mutex);
    while (got < count && (index = find(cache, page + got)) != 0) {
        memcpy(to + (size_t)got++ * PAGE_BYTES, content_of(cache, index), PAGE_BYTES);
        unlink_entry(cache, index);
        link_entry(cache, index, 1);
    }
    for (int n = 0; n < STREAMS && got > 0; n++)
        if (cache->ends[n] == page)
            cache->ends[n] = page + got;
    pthread_mutex_unlock(&cache->mutex);
    return got;
}

uint32_t page_cache_plan(struct page_cache *cache, uint64_t page, uint32_t count, uint64_t *time)
{
    uint32_t planned = count, room = EXTENT_PAGES - (uint32_t)(page % EXTENT_PAGES);

    pthread_mutex_lock(&cache->mutex);
    uint32_t stream = cache->latest;
    for (uint32_t n = 0; n < STREAMS; n++)
        if (cache->ends[n] == page && page > 0) {
            stream = n;
            if (planned < CACHED_PAGES_MAX)
                planned = room < CACHED_PAGES_MAX ? room : CACHED_PAGES_MAX;
        }
    if (stream == cache->latest)
        cache->latest = (cache->latest + 1) % STREAMS;
    cache->ends[stream] = page + count;
    *time = *clock_of(cache, page);
    pthread_mutex_unlock(&cache->mutex);
    return planned < count ? count : planned;
}

void page_cache_add(struct page_cache *cache, uint64_t page, uint32_t count, uint64_t time,
                    const uint8_t *from)
{
    pthread_mutex_lock(&cache->mutex);
    if (*clock_of(cache, page) == time)
        put_all(cache, page, count, from);
    pthread_mutex_unlock(&cache->mutex);
}

/* --- writes ----------------------------------------------------------------------------------- */

uint64_t page_cache_begin_write(struct page_cache *cache, uint64_t page, uint32_t count)
{
    pthread_mutex_lock(&cache->mutex);
    uint64_t time = ++*clock_of(cache, page);
    drop_all(cache, page, count);
    pthread_mutex_unlock(&cache->mutex);
    return time;
}

void page_cache_written(struct page_cache *cache, uint64_t page, uint32_t count, uint64_t time,
                        const uint8_t *from)
{
    pthread_mutex_lock(&cache->mutex);
    uint64_t *clock = clock_of(cache, page);
    drop_all(cache, page, count); /* a read may have added them meanwhile */
    if (*clock == time && from != NULL)
        put_all(cache, page, count, from);
    ++*clock;
    pthread_mutex_unlock(&cache->mutex);
}

/* --- the cache -------------------------------------------------------------------------------- */

struct page_cache *page_cache_open(uint32_t pages)
{
    struct page_cache *cache = calloc(1, sizeof *cache);

    if (cache == NULL)
        return NULL;
    pthread_mutex_init(&cache->mutex, NULL);
    cache->count = pages;
    for (cache->bucket_count = 64; cache->bucket_count < pages;)
        cache->bucket_count *= 2;
    cache->buckets = calloc(cache->bucket_count, sizeof *cache->buckets);
    cache->entries = calloc(pages + 1ul, sizeof *cache->entries);
    void *memory = mmap(NULL, (size_t)pages * PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cache->pages = memory == MAP_FAILED ? NULL : memory;
    if (cache->buckets == NULL || cache->entries == NULL || cache->pages == NULL) {
        page_cache_close(cache);
        return NULL;
    }
    for (uint32_t index = 1; index <= pages; index++)
        link_entry(cache, index, 0);
    return cache;
}

void page_cache_close(struct page_cache *cache)
{
    if (cache == NULL)
        return;
    if (cache->pages != NULL)
        munmap(cache->pages, (size_t)cache->count * PAGE_BYTES);
    pthread_mutex_destroy(&cache->mutex);
    free(cache->buckets);
    free(cache->entries);
    free(cache);
}
