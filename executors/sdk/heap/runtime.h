/* What the parts of the run-time share.
 *
 * The heap is a range of addresses. Each page of it is fresh (all zeros, and nowhere), stored, or
 * resident. A table has a byte for each granule of 16 KiB of all addresses: 0 lets any access pass,
 * so that code checks an address without knowing what it belongs to. Pages that are absent are also
 * protected: whoever touches one without a check (a library, or a thread that was overtaken by an
 * eviction) gets a signal, and the page comes in then. So checks make accesses fast, and never
 * right or wrong. */
#ifndef CIEL_HEAP_RUNTIME_H
#define CIEL_HEAP_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifndef __x86_64__
#error "the heap in a store is made for x86-64"
#endif

/* --- addresses; pass.cpp knows the first two, too --- */

#define GRANULE_SHIFT 14
#define TABLE ((unsigned char *)0x100000000000)
#define TABLE_BYTES (1ULL << (47 - GRANULE_SHIFT))
#define MAIN 0x200000000000ULL
#define BLOCKS_BYTES (128ULL << 30)
#define TAGS (MAIN + BLOCKS_BYTES)
#define TAGS_BYTES (64ULL << 30)
#define STACKS (TAGS + TAGS_BYTES)
#define STACK_BYTES (256ULL << 20)
#define STACKS_MAX 256
#define MAIN_BYTES (BLOCKS_BYTES + TAGS_BYTES + STACK_BYTES * STACKS_MAX)

/* The bits of the table. A load asks if COLD is set, a store if either is. */
enum { COLD = 1, CLEAN = 2, ABSENT = COLD | CLEAN };

static inline int in_main(const void *address)
{
    return (uint64_t)address - MAIN < MAIN_BYTES;
}

static inline unsigned char *table_of(const void *address)
{
    return TABLE + ((uint64_t)address >> GRANULE_SHIFT);
}

/* --- pager.c --- */

/* Let the page of an address come in, for reading or also for writing. */
void pager_read(const void *address);
void pager_write(void *address);

static inline void touch_read(const void *address)
{
    if (__builtin_expect(__atomic_load_n(table_of(address), __ATOMIC_RELAXED) & COLD, 0))
        pager_read(address);
}

static inline void touch_write(void *address)
{
    if (__builtin_expect(__atomic_load_n(table_of(address), __ATOMIC_RELAXED), 0))
        pager_write(address);
}

/* Let the page of an address come in after a signal; 0 if it is not paged. */
int pager_fault(void *address, int is_written);

struct store;

/* Begin, with pages of so many bytes, of which `limit_pages` may be in memory; 0: no limit, and no
 * store. Globals between two addresses are paged, too. */
void pager_start(struct store *store, uint64_t page_bytes, uint64_t limit_pages, char *globals,
                 char *globals_end);
void pager_end(void);
uint64_t pager_page_bytes(void);

/* Announce that fresh memory will be used. */
void pager_expect(const void *address, uint64_t size_bytes);

/* Let whole pages within a range be fresh again. */
void pager_discard(char *address, uint64_t size_bytes);

/* Keep memory in place until `pager_unpin`, for the kernel, which gets no signals. Return how many
 * bytes from `address` on stay: all of them if they are not paged. At least 1, unless `size_bytes`
 * is 0. */
size_t pager_pin(const void *address, size_t size_bytes, int is_written);
uint64_t pager_pins_max_bytes(void); /* for one call */
void pager_unpin(const void *address, size_t pinned_bytes);
int pager_is_paged(const void *address);
int pager_needs_pin(const void *address);

/* Write all pages that lie below the ends; then let the store commit them with `header`, to which
 * this appends where each page is. 0 or -1. */
int pager_commit(const void *header, size_t header_bytes, uint64_t blocks_end, uint64_t tags_end);
int pager_restore(void *header, size_t header_bytes, uint64_t *blocks_end, uint64_t *tags_end);

/* --- allocator.c --- */

void allocator_start(int is_bump);
uint64_t allocator_used_bytes(void);
void *ciel_heap_malloc(size_t size_bytes);
void *ciel_heap_calloc(size_t count, size_t size_bytes);
void *ciel_heap_realloc(void *block, size_t size_bytes);
void ciel_heap_free(void *block);
void *ciel_heap_aligned(size_t alignment, size_t size_bytes);
void allocator_before_fork(void);
void allocator_after_fork(void);

/* --- stacks.c: frames of functions under full translation --- */

void *ciel_heap_enter(uint64_t size_bytes, uint64_t alignment);
void *ciel_heap_mark(void);
void ciel_heap_leave(void *mark);

/* --- memory.c --- */

void *ciel_heap_memcpy(void *to, const void *from, size_t size_bytes);
void *ciel_heap_memmove(void *to, const void *from, size_t size_bytes);
void *ciel_heap_memset(void *to, int byte, size_t size_bytes);

/* --- calls.c: functions of libc and of the kernel that are told about pages --- */

void calls_start(void);

/* --- signals.c: the program's own handlers and masks --- */

void signals_start(void);

/* Keep the program's handlers from running in this thread, if it has any. */
void signals_block(void);
void signals_unblock(void);

/* --- start.c --- */

/* End the program with a message: status 74 if the store failed, 78 for wrong settings. */
_Noreturn void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum { STORE_FAILED = 74, WRONG_SETTING = 78 };

/* --- a store of pages --- */

/* Keeps pages by number. Calls come one at a time. Each returns 0, or -1 after it has set `why`. */
struct store {
    int (*read)(struct store *, const uint64_t *numbers, char *const *to, unsigned count);
    int (*write)(struct store *, const uint64_t *numbers, char *const *from, unsigned count);
    void (*forget)(struct store *, const uint64_t *numbers, unsigned count); /* frees space */
    /* Make all writes durable, and then, at one moment, `header`. NULL: it cannot. */
    int (*commit)(struct store *, const void *header, size_t header_bytes);
    /* Return the last header, which the caller frees; NULL: there is none, or `why` is set. */
    void *(*restore)(struct store *, size_t *header_bytes);
    /* Forget what is not durable. */
    void (*close)(struct store *);
    uint64_t page_bytes;
    uint64_t own_bytes; /* of memory that it needs itself, which counts as memory of the heap */
    const char *name;   /* as in CIEL_HEAP */
    char why[256];
};

enum { BATCH = 32 }; /* pages in one call, at most */

struct store *store_lmdb(const char *path, uint64_t page_bytes, char *why, size_t why_bytes);
struct store *store_kv(const char *name, uint64_t page_bytes, char *why, size_t why_bytes);
struct store *store_memory(const char *name, uint64_t page_bytes, char *why, size_t why_bytes);

#endif
