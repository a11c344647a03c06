/* port.h: the only place that orders memory.
 *
 * All shared words are read and written through here, so that one source runs on memory that keeps
 * caches coherent and on memory that does not. Three builds:
 *
 *   coherent   (default)            atomics and fences; flush and invalidate are nothing
 *   flushing   -DPORT_FLUSHING      write back and drop lines with clwb, clflushopt or clflush
 *   strict     -DPORT_STRICT        every core works on a private cache, kept by strict.c, that loses
 *                                   what nobody flushed and shows what nobody invalidated
 *
 * Three kinds of shared memory:
 *
 *   words      port_load*, port_store*: cached. Others see a store only after `port_flush` of its
 *              line and then `port_fence` or `port_publish*`; this core sees theirs only after
 *              `port_invalidate`. Where memory is coherent all of it is as fast as a plain access.
 *   flags      port_publish*, port_look*: cached words that carry the news that other words are
 *              there. What was flushed before a publish is seen by whoever looks, sees its value,
 *              and then invalidates. A flag has a line to itself and one writer at a time.
 *   registers  port_register_*: never cached and atomic everywhere: test-and-set registers and what
 *              lies beside them. Slow on such a machine, so for locks and bells alone.
 *
 * Two cores must not write to one line at a time, whichever words they mean (POOL-3): what one of
 * them writes back would undo the other. Everything that is guarded apart is aligned apart, to
 * PORT_LINE_BYTES.
 */
#ifndef SCC_PORT_H
#define SCC_PORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define PORT_LINE_BYTES 128 /* of alignment: two lines of 64 bytes, which processors fetch in pairs */

#if defined(PORT_FLUSHING) || defined(PORT_STRICT)
#define PORT_COHERENT 0
#else
#define PORT_COHERENT 1
#endif

/* One core's way to the memory. In the strict build it owns the private cache; otherwise it is only
 * counters. Not to be shared between threads. */
struct port {
    uint64_t stores;      /* to shared words and flags and registers, counted for the tests */
    uint64_t dies_at;     /* the store at which `died` is called instead; 0: never */
    void (*died)(void *); /* ends this core: exits, jumps out, or acts as another and returns */
    void *died_argument;
    struct strict_cache *cache; /* strict build: see port_open */
    int line_instruction[2];    /* flushing build: to write back, to drop; asking costs 90 us */
};

/* Part of the memory that a port reaches. */
struct port_range {
    const void *from;
    size_t size_bytes;
};

/* Bytes of private memory that `port_open` wants, aligned to 64; none but in the strict build. */
size_t port_cache_bytes(void);

/* Begin to use memory. `cache` is `port_cache_bytes()`, kept as long as the port. The strict build
 * seeds its tricks from the environment (SCC_STRICT_SEED) and `seed`. */
void port_open(struct port *port, void *cache, struct port_range one, struct port_range other,
               uint32_t seed);

/* End as a dead core does: of what was stored and not flushed some arrives, the rest is lost. */
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

/* For tests: `port_open` finds in its cache the clean lines that were there, if it was a cache of the
 * same memory before (it must have been, or be zero). */
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

/* Copies of any size, for content and names; a copy is not one store but as many as it takes. */
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

void port_choose(struct port *port); /* flushing.c: which instructions there are */
void port_flush(struct port *port, const void *from, size_t size_bytes);
void port_invalidate(struct port *port, const void *from, size_t size_bytes);

/* Wait until what was flushed has arrived, and begin no load before. */
static inline void port_fence(struct port *port)
{
    (void)port;
    atomic_thread_fence(memory_order_seq_cst);
}

#else

/* Begin to write the lines of these bytes back. */
static inline void port_flush(struct port *port, const void *from, size_t size_bytes)
{
    (void)port, (void)from, (void)size_bytes;
}

/* Drop the lines of these bytes, which must not have been written to since they were flushed. */
static inline void port_invalidate(struct port *port, const void *from, size_t size_bytes)
{
    (void)port, (void)from, (void)size_bytes;
}

/* Wait until what was flushed has arrived, and begin no load before. */
static inline void port_fence(struct port *port)
{
    (void)port;
    atomic_thread_fence(memory_order_acq_rel);
}

#endif
#endif

/* --- flags ----------------------------------------------------------------------------------- */

/* Say something: whoever sees this value sees what was stored and flushed before. */
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

/* Look what was said last. What was stored before is seen after `port_invalidate` of it. Never used
 * on a flag of one's own. */
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

/* The same for 64 bits; only where memory is coherent. */
static inline uint64_t port_register_load64(const uint64_t *place)
{
    return atomic_load_explicit((const _Atomic uint64_t *)place, memory_order_seq_cst);
}

static inline void port_register_store64(struct port *port, uint64_t *place, uint64_t value)
{
    PORT_COUNT(port);
    atomic_store_explicit((_Atomic uint64_t *)place, value, memory_order_seq_cst);
}

/* Put a value there if `expected` is there; return what was there. */
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

/* Sleep while a register holds `seen`; a futex stands in for an interrupt. Negative timeout: for
 * ever. Returns false when the time was over. */
bool port_wait(const uint32_t *place, uint32_t seen, int64_t timeout_us);

/* Wake at most `count` who sleep on a register. */
void port_wake(uint32_t *place, int count);

/* A breath between two looks. */
static inline void port_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

uint64_t port_now_us(void); /* monotonic */

#endif
