/* port.h: the only place that orders memory accesses.
 *
 * All code reads and writes shared words through these functions, so the same source runs on memory
 * with and without coherent caches. There are three builds:
 *
 *   coherent   (default)            atomics and fences; flush and invalidate do nothing
 *   flushing   -DPORT_FLUSHING      writes back and drops lines with clwb, clflushopt or clflush
 *   strict     -DPORT_STRICT        each core works on a private cache, simulated by strict.c,
 *                                   which loses stores that were not flushed, and shows old values
 *                                   of lines that were not invalidated
 *
 * There are three kinds of shared memory:
 *
 *   words      port_load*, port_store*: cached. Other cores see a store only after `port_flush` of
 *              its line and then `port_fence` or `port_publish*`; this core sees the stores of
 *              other cores only after `port_invalidate`. On coherent memory all of this is as fast
 *              as plain accesses.
 *   flags      port_publish*, port_look*: cached words that signal that other words are ready. A
 *              core that reads the new value of a flag with port_look* and then invalidates the
 *              other words sees everything that was flushed before the publish. A flag has a line
 *              to itself and one writer at a time.
 *   registers  port_register_*: never cached and atomic in every build: test-and-set registers and
 *              neighbouring memory. They are slow on machines without coherent caches, so only
 *              locks and bells use them.
 *
 * Two cores must not write to the same line at the same time, even to different words (POOL-3):
 * when one core writes the line back, it overwrites the stores of the second core. Data that
 * different locks guard is therefore aligned to separate lines of PORT_LINE_BYTES.
 */
#ifndef SCC_PORT_H
#define SCC_PORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define PORT_LINE_BYTES 128 /* alignment: two lines of 64 bytes, because processors fetch pairs */

#if defined(PORT_FLUSHING) || defined(PORT_STRICT)
#define PORT_COHERENT 0
#else
#define PORT_COHERENT 1
#endif

/* One core's access to the memory. In the strict build it owns the private cache; otherwise it
 * holds only counters. Threads must not share it. */
struct port {
    uint64_t stores;      /* to shared words, flags and registers; counted for the tests */
    uint64_t dies_at;     /* number of the store at which to call `died` instead; 0: never */
    void (*died)(void *); /* exits, jumps out, or acts as another core and returns */
    void *died_argument;
    struct strict_cache *cache; /* strict build: see port_open */
    int line_instruction[2];    /* flushing build: write back, drop; cached, as cpuid takes 90 us */
};

/* A part of the memory that a port accesses. */
struct port_range {
    const void *from;
    size_t size_bytes;
};

/* Return how many bytes of private memory `port_open` needs, aligned to 64; 0 except in the strict
 * build. */
size_t port_cache_bytes(void);

/* Start to use memory. `cache` has `port_cache_bytes()` bytes and must live as long as the port.
 * The strict build seeds its random choices from the environment (SCC_STRICT_SEED) and `seed`. */
void port_open(struct port *port, void *cache, struct port_range one, struct port_range other,
               uint32_t seed);

/* Stop as a dead core does: of the stores that were not flushed, some reach memory and the rest is
 * lost. */
void port_drop(struct port *port);

#ifdef SCC_TEST
#define PORT_COUNT(port)                                                                              \
    do {                                                                                              \
        if ((port)->dies_at && ++(port)->stores >= (port)->dies_at)                                   \
            (port)->died((port)->died_argument);                                                      \
    } while (0)
#else
#define PORT_COUNT(port) ((void)(port))
#endif

/* --- words ----------------------------------------------------------------------------------- */

#ifdef PORT_STRICT

/* For tests: `port_open` keeps the clean lines that it finds in its cache, if the cache was used
 * for the same memory before. (The cache must have been used before, or be zero.) */
extern bool port_keeps_lines;

uint32_t port_load32(struct port *port, const uint32_t *word);
uint64_t port_load64(struct port *port, const uint64_t *word);
void port_store32(struct port *port, uint32_t *word, uint32_t value);
void port_store64(struct port *port, uint64_t *word, uint64_t value);
void port_read(struct port *port, void *to, const void *from, size_t size_bytes);
void port_write(struct port *port, void *to, const void *from, size_t size_bytes);
void port_flush(struct port *port, const void *from, size_t size_bytes);
void port_invalidate(struct port *port, const void *from, size_t size_bytes);
void port_fence(struct port *port);

#else

static inline uint32_t port_load32(struct port *port, const uint32_t *word)
{
    (void)port;
    return atomic_load_explicit((const _Atomic uint32_t *)word, memory_order_relaxed);
}

static inline uint64_t port_load64(struct port *port, const uint64_t *word)
{
    (void)port;
    return atomic_load_explicit((const _Atomic uint64_t *)word, memory_order_relaxed);
}

static inline void port_store32(struct port *port, uint32_t *word, uint32_t value)
{
    PORT_COUNT(port);
    atomic_store_explicit((_Atomic uint32_t *)word, value, memory_order_relaxed);
}

static inline void port_store64(struct port *port, uint64_t *word, uint64_t value)
{
    PORT_COUNT(port);
    atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_relaxed);
}

/* Copies of any size, for content and names. A copy is several stores, not one. */
static inline void port_read(struct port *port, void *to, const void *from, size_t size_bytes)
{
    (void)port;
    memcpy(to, from, size_bytes);
}

static inline void port_write(struct port *port, void *to, const void *from, size_t size_bytes)
{
    PORT_COUNT(port);
    memcpy(to, from, size_bytes);
}

#ifdef PORT_FLUSHING

void port_choose(struct port *port); /* flushing.c: select the instructions */
void port_flush(struct port *port, const void *from, size_t size_bytes);
void port_invalidate(struct port *port, const void *from, size_t size_bytes);

/* Wait until flushed lines have reached memory, and start no load before that. */
static inline void port_fence(struct port *port)
{
    (void)port;
    atomic_thread_fence(memory_order_seq_cst);
}

#else

/* Start to write back the lines of these bytes. */
static inline void port_flush(struct port *port, const void *from, size_t size_bytes)
{
    (void)port, (void)from, (void)size_bytes;
}

/* Drop the lines of these bytes. They must not have been written to since they were flushed. */
static inline void port_invalidate(struct port *port, const void *from, size_t size_bytes)
{
    (void)port, (void)from, (void)size_bytes;
}

/* Wait until flushed lines have reached memory, and start no load before that. */
static inline void port_fence(struct port *port)
{
    (void)port;
    atomic_thread_fence(memory_order_acq_rel);
}

#endif
#endif

/* --- flags ----------------------------------------------------------------------------------- */

/* Set a flag. A core that reads this value sees everything that was stored and flushed before. */
static inline void port_publish32(struct port *port, uint32_t *flag, uint32_t value)
{
#if PORT_COHERENT
    PORT_COUNT(port);
    atomic_store_explicit((_Atomic uint32_t *)flag, value, memory_order_release);
#else
    port_fence(port);
    port_store32(port, flag, value);
    port_flush(port, flag, sizeof *flag);
    port_fence(port);
#endif
}

static inline void port_publish64(struct port *port, uint64_t *flag, uint64_t value)
{
#if PORT_COHERENT
    PORT_COUNT(port);
    atomic_store_explicit((_Atomic uint64_t *)flag, value, memory_order_release);
#else
    port_fence(port);
    port_store64(port, flag, value);
    port_flush(port, flag, sizeof *flag);
    port_fence(port);
#endif
}

/* Read the last published value of a flag. The stores made before the publish are visible after
 * `port_invalidate` of their lines. A core must never call this on a flag that it writes itself. */
static inline uint32_t port_look32(struct port *port, const uint32_t *flag)
{
#if PORT_COHERENT
    (void)port;
    return atomic_load_explicit((const _Atomic uint32_t *)flag, memory_order_acquire);
#else
    port_invalidate(port, flag, sizeof *flag);
    uint32_t value = port_load32(port, flag);
    port_fence(port);
    return value;
#endif
}

static inline uint64_t port_look64(struct port *port, const uint64_t *flag)
{
#if PORT_COHERENT
    (void)port;
    return atomic_load_explicit((const _Atomic uint64_t *)flag, memory_order_acquire);
#else
    port_invalidate(port, flag, sizeof *flag);
    uint64_t value = port_load64(port, flag);
    port_fence(port);
    return value;
#endif
}

/* --- registers ------------------------------------------------------------------------------- */

static inline uint32_t port_register_load(const uint32_t *place)
{
    return atomic_load_explicit((const _Atomic uint32_t *)place, memory_order_seq_cst);
}

static inline void port_register_store(struct port *port, uint32_t *place, uint32_t value)
{
    PORT_COUNT(port);
    atomic_store_explicit((_Atomic uint32_t *)place, value, memory_order_seq_cst);
}

/* 64-bit registers; only on coherent memory. */
static inline uint64_t port_register_load64(const uint64_t *place)
{
    return atomic_load_explicit((const _Atomic uint64_t *)place, memory_order_seq_cst);
}

static inline void port_register_store64(struct port *port, uint64_t *place, uint64_t value)
{
    PORT_COUNT(port);
    atomic_store_explicit((_Atomic uint64_t *)place, value, memory_order_seq_cst);
}

/* Store a value if the register holds `expected`; return the previous value. */
static inline uint32_t port_register_swap(struct port *port, uint32_t *place, uint32_t expected,
                                          uint32_t value)
{
    PORT_COUNT(port);
    atomic_compare_exchange_strong((_Atomic uint32_t *)place, &expected, value);
    return expected;
}

static inline uint32_t port_register_add(struct port *port, uint32_t *place, uint32_t more)
{
    PORT_COUNT(port);
    return atomic_fetch_add((_Atomic uint32_t *)place, more);
}

/* --- waiting (port.c) ------------------------------------------------------------------------ */

/* Sleep while a register holds `seen`; a futex stands in for an interrupt. A negative timeout means
 * no limit. Returns false on timeout. */
bool port_wait(const uint32_t *place, uint32_t seen, int64_t timeout_us);

/* Wake at most `count` threads that sleep on a register. */
void port_wake(uint32_t *place, int count);

/* Pause between two polls. */
static inline void port_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

uint64_t port_now_us(void); /* monotonic */

#endif
