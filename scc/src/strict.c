/* strict.c: simulates a core with an incoherent cache, and behaves as badly as such a cache may.
 *
 * All words go through a small private cache. A store reaches memory when its line is flushed and a
 * fence has waited for the flush, or at any other moment that this cache chooses. A core sees
 * stores of other cores once its line was dropped and fetched again. Lines are prefetched, written
 * back and dropped at random, from a seed. So a missing flush, invalidate or fence makes a test
 * fail on an ordinary coherent machine. Like a processor's cache, this cache may outlive the client
 * that used it: see port_keeps_lines.
 */
#include "port.h"

#ifdef PORT_STRICT

#include <stdio.h>
#include <stdlib.h>

#define LINE_COUNT 512  /* more than any operation needs */
#define PENDING_COUNT 64 /* lines being written back */

struct line {
    uint8_t *home; /* NULL: empty */
    bool is_dirty;
    uint8_t bytes[PORT_LINE_BYTES];
};

struct strict_cache {
    uint64_t random;
    struct port_range ranges[2];
    struct line lines[LINE_COUNT];
    struct line pending[PENDING_COUNT]; /* lines that are flushed, but not yet in memory */
};

size_t port_cache_bytes(void)
{
    return sizeof(struct strict_cache);
}

bool port_keeps_lines;

/* Drop everything except the clean lines. */
static void begin_again(struct strict_cache *cache)
{
    memset(cache->pending, 0, sizeof cache->pending);
    for (int i = 0; i < LINE_COUNT; i++)
        if (cache->lines[i].is_dirty)
            cache->lines[i] = (struct line){0};
}

void port_open(struct port *port, void *cache, struct port_range one, struct port_range other,
               uint32_t seed)
{
    const struct port_range ranges[2] = {one, other};
    memset(port, 0, sizeof *port);
    port->cache = cache;
    if (port_keeps_lines && !memcmp(port->cache->ranges, ranges, sizeof ranges))
        begin_again(port->cache);
    else
        memset(port->cache, 0, sizeof *port->cache);
    memcpy(port->cache->ranges, ranges, sizeof ranges);
    const char *given = getenv("SCC_STRICT_SEED");
    port->cache->random = (given ? strtoull(given, NULL, 10) : 1) * 0x9e3779b97f4a7c15u + seed + 1;
}

static uint32_t chance(struct strict_cache *cache)
{
    cache->random ^= cache->random << 13;
    cache->random ^= cache->random >> 7;
    cache->random ^= cache->random << 17;
    return (uint32_t)(cache->random >> 32);
}

static void refuse(const char *what, const void *place)
{
    fprintf(stderr, "strict: %s (at %p)\n", what, place);
    abort();
}

static uint8_t *home_of(const void *place)
{
    return (uint8_t *)((uintptr_t)place & ~(uintptr_t)(PORT_LINE_BYTES - 1));
}

static bool is_inside(const struct strict_cache *cache, const uint8_t *home)
{
    for (int i = 0; i < 2; i++) {
        const uint8_t *from = cache->ranges[i].from;
        if (home >= from && home + PORT_LINE_BYTES <= from + cache->ranges[i].size_bytes)
            return true;
    }
    return false;
}

static void arrive(struct line *line)
{
    memcpy(line->home, line->bytes, PORT_LINE_BYTES);
    line->home = NULL;
}

/* Earlier flushes of a line reach memory before newer stores to it. */
static void settle(struct strict_cache *cache, const uint8_t *home)
{
    for (int i = 0; i < PENDING_COUNT; i++)
        if (cache->pending[i].home == home)
            arrive(&cache->pending[i]);
}

static void evict(struct strict_cache *cache, struct line *line)
{
    settle(cache, line->home);
    if (line->is_dirty)
        memcpy(line->home, line->bytes, PORT_LINE_BYTES);
    line->home = NULL;
    line->is_dirty = false;
}

/* The address of a line selects a set of four places. */
static struct line *set_of(struct strict_cache *cache, const uint8_t *home)
{
    uintptr_t number = (uintptr_t)home / PORT_LINE_BYTES;
    return &cache->lines[(number * 0x9e3779b1u >> 7) % (LINE_COUNT / 4) * 4];
}

static struct line *find(struct strict_cache *cache, const uint8_t *home)
{
    struct line *set = set_of(cache, home);
    for (int i = 0; i < 4; i++)
        if (set[i].home == home)
            return &set[i];
    return NULL;
}

static struct line *fetch(struct strict_cache *cache, uint8_t *home)
{
    struct line *line = find(cache, home);
    if (line)
        return line;
    struct line *set = set_of(cache, home);
    line = &set[chance(cache) % 4];
    for (int i = 0; i < 4; i++)
        if (!set[i].home)
            line = &set[i];
    if (line->home)
        evict(cache, line);
    settle(cache, home);
    line->home = home;
    line->is_dirty = false;
    memcpy(line->bytes, home, PORT_LINE_BYTES);
    return line;
}

/* Now and then evict or write back a line at random, as a cache may do at any time. */
static void trick(struct strict_cache *cache)
{
    uint32_t dice = chance(cache);
    if (dice % 16 == 0) {
        struct line *line = &cache->lines[(dice >> 8) % LINE_COUNT];
        if (line->home)
            evict(cache, line);
    }
    if (dice % 16 == 1) {
        struct line *line = &cache->pending[(dice >> 8) % PENDING_COUNT];
        if (line->home)
            arrive(line);
    }
}

static struct line *visit(struct port *port, const void *place)
{
    struct strict_cache *cache = port->cache;
    uint8_t *home = home_of(place);
    trick(cache);
    bool was_there = find(cache, home) != NULL;
    struct line *line = fetch(cache, home);
    uint32_t dice = chance(cache);
    if (!was_there && dice % 2) { /* prefetch a neighbouring line */
        uint8_t *next = home + (dice & 2 ? PORT_LINE_BYTES : -PORT_LINE_BYTES);
        if (is_inside(cache, next)) {
            fetch(cache, next);
            line = fetch(cache, home);
        }
    }
    return line;
}

uint32_t port_load32(struct port *port, const uint32_t *word)
{
    uint32_t value;
    struct line *line = visit(port, word);
    memcpy(&value, line->bytes + ((const uint8_t *)word - line->home), sizeof value);
    return value;
}

uint64_t port_load64(struct port *port, const uint64_t *word)
{
    uint64_t value;
    struct line *line = visit(port, word);
    memcpy(&value, line->bytes + ((const uint8_t *)word - line->home), sizeof value);
    return value;
}

static void put(struct port *port, void *to, const void *from, size_t size_bytes)
{
    struct line *line = visit(port, to);
    memcpy(line->bytes + ((uint8_t *)to - line->home), from, size_bytes);
    line->is_dirty = true;
}

void port_store32(struct port *port, uint32_t *word, uint32_t value)
{
    PORT_COUNT(port);
    put(port, word, &value, sizeof value);
}

void port_store64(struct port *port, uint64_t *word, uint64_t value)
{
    PORT_COUNT(port);
    put(port, word, &value, sizeof value);
}

static size_t rest_of_line(const void *place, size_t size_bytes)
{
    size_t rest = PORT_LINE_BYTES - (uintptr_t)place % PORT_LINE_BYTES;
    return rest < size_bytes ? rest : size_bytes;
}

void port_read(struct port *port, void *to, const void *from, size_t size_bytes)
{
    uint8_t *into = to;
    for (const uint8_t *place = from; size_bytes;) {
        size_t now = rest_of_line(place, size_bytes);
        struct line *line = visit(port, place);
        memcpy(into, line->bytes + (place - line->home), now);
        into += now, place += now, size_bytes -= now;
    }
}

void port_write(struct port *port, void *to, const void *from, size_t size_bytes)
{
    const uint8_t *content = from;
    for (uint8_t *place = to; size_bytes;) {
        size_t now = rest_of_line(place, size_bytes);
        PORT_COUNT(port);
        put(port, place, content, now);
        content += now, place += now, size_bytes -= now;
    }
}

void port_flush(struct port *port, const void *from, size_t size_bytes)
{
    struct strict_cache *cache = port->cache;
    if (!size_bytes)
        return;
    const uint8_t *end = (const uint8_t *)from + size_bytes;
    for (uint8_t *home = home_of(from); home < end; home += PORT_LINE_BYTES) {
        struct line *line = find(cache, home);
        if (!line || !line->is_dirty)
            continue;
        struct line *pending = &cache->pending[chance(cache) % PENDING_COUNT];
        settle(cache, home);
        if (pending->home)
            arrive(pending);
        *pending = *line;
        line->is_dirty = false;
    }
}

void port_invalidate(struct port *port, const void *from, size_t size_bytes)
{
    struct strict_cache *cache = port->cache;
    if (!size_bytes)
        return;
    const uint8_t *end = (const uint8_t *)from + size_bytes;
    for (uint8_t *home = home_of(from); home < end; home += PORT_LINE_BYTES) {
        struct line *line = find(cache, home);
        if (!line)
            continue;
        if (line->is_dirty)
            refuse("invalidating this line would lose a store that was not flushed", home);
        settle(cache, home);
        line->home = NULL;
    }
}

void port_fence(struct port *port)
{
    for (int i = 0; i < PENDING_COUNT; i++)
        if (port->cache->pending[i].home)
            arrive(&port->cache->pending[i]);
    atomic_thread_fence(memory_order_seq_cst);
}

void port_drop(struct port *port)
{
    struct strict_cache *cache = port->cache;
    for (int i = 0; i < PENDING_COUNT; i++) {
        struct line *pending = &cache->pending[i], *line = find(cache, pending->home);
        if (!pending->home)
            continue;
        if (chance(cache) % 2)
            arrive(pending);
        else if (line && !line->is_dirty)
            line->home = NULL; /* a lost store must not stay in the cache either */
    }
    for (int i = 0; i < LINE_COUNT; i++)
        if (cache->lines[i].home && cache->lines[i].is_dirty && chance(cache) % 2)
            memcpy(cache->lines[i].home, cache->lines[i].bytes, PORT_LINE_BYTES);
    begin_again(cache);
}

#endif
