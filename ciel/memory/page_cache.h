/* Keeps the pages used last, for all sessions of a volume (NET-5, NET-6).
 *
 * A page is never older than the last write of this volume's sessions to it. The cache does not
 * notice the writes of other clients. */
#ifndef CIEL_PAGE_CACHE_H
#define CIEL_PAGE_CACHE_H

#include <stdint.h>

enum {
    CACHED_PAGES_MAX = 32, /* longer reads and writes pass it by, as they would displace too much */
};

struct page_cache;

/* Keep so many pages. NULL: no memory. */
struct page_cache *page_cache_open(uint32_t pages);
void page_cache_close(struct page_cache *cache);

/* Copy pages from the first one on, up to the first that is not there; return how many. */
uint32_t page_cache_get(struct page_cache *cache, uint64_t page, uint32_t count, uint8_t *to);

/* Return how many pages to read from a page on: more than `count`, up to CACHED_PAGES_MAX, if the
 * reads of the volume are sequential. `time` is for `page_cache_add`. */
uint32_t page_cache_plan(struct page_cache *cache, uint64_t page, uint32_t count, uint64_t *time);

/* Keep pages that were read since `time`, unless one was written meanwhile. */
void page_cache_add(struct page_cache *cache, uint64_t page, uint32_t count, uint64_t time,
                    const uint8_t *from);

/* Forget pages before they are written; the result is for `page_cache_written`. */
uint64_t page_cache_begin_write(struct page_cache *cache, uint64_t page, uint32_t count);

/* Keep pages that were written, unless another session has written there meanwhile. `from` NULL:
 * forget them. */
void page_cache_written(struct page_cache *cache, uint64_t page, uint32_t count, uint64_t time,
                        const uint8_t *from);

#endif
