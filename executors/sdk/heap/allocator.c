/* The heap's blocks (KVM-3): a first-fit free list by size, and a bump allocator.
 *
 * Blocks are made of units of 32 bytes. What the allocator knows of them lies in tags, one for each
 * unit, far from the blocks, so no program overwrites it by writing behind a block. Tags are paged
 * like the heap. Only those of the first and the last unit of a block are used. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ciel_heap.h"
#include "runtime.h"

#define UNIT_BYTES 32ULL
#define UNITS (BLOCKS_BYTES / UNIT_BYTES - 1) /* numbers of units have 32 bits; 0 is no unit */
#define EXACT 64                              /* lists of blocks of exactly so many units */
#define LISTS (EXACT + 4 * 26)                /* then four for each doubling */
#define STEP_BYTES (1ULL << 20)
#define TRIES_MAX 16
#define WHOLE_BYTES (64ULL << 10) /* a free block of this size gives its pages back */

struct tag {
    uint32_t units;   /* of the block, shifted by one; the lowest bit: it is in use */
    uint32_t next;    /* free block of the list */
    uint32_t back;    /* in the last unit of a free block: its units; otherwise 0 */
    uint32_t previous;
};

/* What a durable heap has to keep of the allocator. */
static struct state {
    uint64_t root;
    uint64_t top;     /* the first unit that is in no block */
    uint64_t high;    /* no unit from here on was ever in a block, so they are zeros */
    uint64_t used_bytes;
    uint32_t is_bump;
    uint32_t first[LISTS];
    uint64_t filled[(LISTS + 63) / 64]; /* which lists have blocks */
} state = {.top = 1, .high = 1};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t expected; /* the pager knows of units below this one */

void allocator_start(int is_bump)
{
    state.is_bump = (uint32_t)is_bump;
}

uint64_t allocator_used_bytes(void)
{
    return __atomic_load_n(&state.used_bytes, __ATOMIC_RELAXED);
}

void allocator_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

void allocator_after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static char *block_at(uint32_t unit)
{
    return (char *)MAIN + unit * UNIT_BYTES;
}

static uint32_t unit_at(const void *block)
{
    return (uint32_t)(((uint64_t)block - MAIN) / UNIT_BYTES);
}

static struct tag *tag_to_read(uint32_t unit)
{
    struct tag *tag = (struct tag *)TAGS + unit;
    touch_read(tag);
    return tag;
}

static struct tag *tag_to_write(uint32_t unit)
{
    struct tag *tag = (struct tag *)TAGS + unit;
    touch_write(tag);
    return tag;
}

static int is_free(uint32_t unit)
{
    return unit < state.top && !(tag_to_read(unit)->units & 1);
}

static uint32_t units_of(uint32_t unit)
{
    return tag_to_read(unit)->units >> 1;
}

static uint64_t units_for(uint64_t size_bytes)
{
    return size_bytes ? (size_bytes + UNIT_BYTES - 1) / UNIT_BYTES : 1;
}

/* --- lists of free blocks --- */

static unsigned list_of(uint32_t units)
{
    if (units < EXACT)
        return units;
    unsigned doubling = 31U - (unsigned)__builtin_clz(units); /* at least 6 */
    return EXACT + (doubling - 6) * 4 + ((units >> (doubling - 2)) & 3);
}

/* Return the first list from `list` on that has blocks; LISTS if there is none. */
static unsigned filled_from(unsigned list)
{
    for (unsigned word = list / 64; word < sizeof state.filled / 8; word++) {
        uint64_t bits = state.filled[word] & (word == list / 64 ? ~0ULL << list % 64 : ~0ULL);
        if (bits)
            return word * 64 + (unsigned)__builtin_ctzll(bits);
    }
    return LISTS;
}

static void add(uint32_t unit, uint32_t units)
{
    unsigned list = list_of(units);
    uint32_t next = state.first[list];
    struct tag *tag = tag_to_write(unit);
    tag->units = units << 1;
    tag->next = next;
    tag->previous = 0;
    tag_to_write(unit + units - 1)->back = units;
    if (next)
        tag_to_write(next)->previous = unit;
    state.first[list] = unit;
    state.filled[list / 64] |= 1ULL << list % 64;
}

static void take_out(uint32_t unit)
{
    struct tag tag = *tag_to_read(unit);
    unsigned list = list_of(tag.units >> 1);
    if (tag.previous)
        tag_to_write(tag.previous)->next = tag.next;
    else if (!(state.first[list] = tag.next))
        state.filled[list / 64] &= ~(1ULL << list % 64);
    if (tag.next)
        tag_to_write(tag.next)->previous = tag.previous;
    tag_to_write(unit + (tag.units >> 1) - 1)->back = 0;
}

/* Return the first block that fits; 0 if none does. Blocks of a list differ by a quarter at most,
 * so a long walk through ones that are too small is not worth the space. */
static uint32_t find(uint32_t units)
{
    unsigned list = list_of(units);
    uint32_t unit = state.first[list];
    for (int tries = 0; unit && tries < TRIES_MAX; tries++, unit = tag_to_read(unit)->next)
        if (units_of(unit) >= units)
            return unit;
    list = filled_from(list + 1); /* each block there is large enough */
    return list < LISTS ? state.first[list] : 0;
}

/* --- blocks --- */

static void expect(uint64_t end)
{
    if (end <= expected)
        return;
    uint64_t step = STEP_BYTES / UNIT_BYTES, until = (end + step - 1) / step * step;
    pager_expect(block_at((uint32_t)expected), (until - expected) * UNIT_BYTES);
    pager_expect((struct tag *)TAGS + expected, (until - expected) * sizeof(struct tag));
    expected = until < UNITS ? until : UNITS;
}

/* Return a new block at the end of the heap; 0 if there is no space. */
static uint32_t extend(uint64_t units)
{
    if (units > UNITS - state.top)
        return 0;
    uint32_t unit = (uint32_t)state.top;
    expect(unit + units);
    state.top += units;
    return unit;
}

/* Make a block of free units, of which all after `units` become another free block. */
static void use(uint32_t unit, uint32_t found, uint32_t units)
{
    if (found > units)
        add(unit + units, found - units);
    tag_to_write(unit)->units = units << 1 | 1;
    state.used_bytes += units * UNIT_BYTES;
}

/* Let the pages that only free memory overlaps now be fresh: those of a part, in a free block. */
static void discard(uint32_t unit, uint32_t units, char *part, char *part_end)
{
    uint64_t mask = pager_page_bytes() - 1;
    char *start = block_at(unit), *end = start + units * UNIT_BYTES;
    char *first = (char *)((uint64_t)part & ~mask);
    char *last = (char *)(((uint64_t)part_end + mask) & ~mask);
    start = first > start ? first : start;
    pager_discard(start, (uint64_t)((last < end ? last : end) - start));
}

static void release(uint32_t unit, uint32_t units)
{
    char *part = block_at(unit), *part_end = part + units * UNIT_BYTES;
    uint32_t behind = unit + units;
    if (is_free(behind)) {
        uint32_t more = units_of(behind);
        take_out(behind);
        units += more;
    }
    uint32_t before = tag_to_read(unit - 1)->back;
    if (before) {
        take_out(unit - before);
        unit -= before;
        units += before;
    }
    if (units * UNIT_BYTES >= WHOLE_BYTES)
        discard(unit, units, part, part_end);
    if (unit + units < state.top) {
        add(unit, units);
        return;
    }
    if (state.high < state.top)
        state.high = state.top;
    state.top = unit;
}

static uint32_t allocate(uint64_t units, int *is_zero)
{
    if (units > UNITS)
        return 0;
    uint32_t unit = find((uint32_t)units);
    if (unit) {
        uint32_t found = units_of(unit);
        take_out(unit);
        use(unit, found, (uint32_t)units);
    } else if ((unit = extend(units))) {
        *is_zero = unit >= state.high;
        use(unit, (uint32_t)units, (uint32_t)units);
    }
    return unit;
}

/* The bump allocator: an addition for each block, and no block is ever free again. */
static uint32_t bump(uint64_t units, int *is_zero)
{
    if (units > UNITS)
        return 0;
    uint64_t unit = __atomic_fetch_add(&state.top, units, __ATOMIC_RELAXED);
    if (unit + units > UNITS)
        return 0;
    if (unit + units > __atomic_load_n(&expected, __ATOMIC_RELAXED)) {
        pthread_mutex_lock(&lock);
        expect(unit + units);
        pthread_mutex_unlock(&lock);
    }
    *is_zero = 1;
    tag_to_write((uint32_t)unit)->units = (uint32_t)units << 1 | 1;
    __atomic_fetch_add(&state.used_bytes, units * UNIT_BYTES, __ATOMIC_RELAXED);
    return (uint32_t)unit;
}

static void *get(uint64_t size_bytes, int *is_zero)
{
    *is_zero = 0;
    uint32_t unit = 0;
    if (size_bytes < BLOCKS_BYTES && state.is_bump)
        unit = bump(units_for(size_bytes), is_zero);
    else if (size_bytes < BLOCKS_BYTES) {
        pthread_mutex_lock(&lock);
        unit = allocate(units_for(size_bytes), is_zero);
        pthread_mutex_unlock(&lock);
    }
    if (unit)
        return block_at(unit);
    errno = ENOMEM;
    return NULL;
}

void *ciel_heap_malloc(size_t size_bytes)
{
    int is_zero;
    return get(size_bytes, &is_zero);
}

void *ciel_heap_calloc(size_t count, size_t size_bytes)
{
    size_t all_bytes;
    int is_zero;
    if (__builtin_mul_overflow(count, size_bytes, &all_bytes))
        all_bytes = SIZE_MAX;
    void *block = get(all_bytes, &is_zero);
    if (block && !is_zero)
        ciel_heap_memset(block, 0, all_bytes);
    return block;
}

void ciel_heap_free(void *block)
{
    if (!block || state.is_bump)
        return in_main(block) ? (void)0 : free(block);
    if (!in_main(block)) { /* libc allocated it */
        free(block);
        return;
    }
    pthread_mutex_lock(&lock);
    uint32_t unit = unit_at(block), units = tag_to_read(unit)->units;
    if (!(units & 1) || (uint64_t)block % UNIT_BYTES)
        fail(134, "free() of %p, which is no block in use", block);
    state.used_bytes -= (units >> 1) * UNIT_BYTES;
    release(unit, units >> 1);
    pthread_mutex_unlock(&lock);
}

/* Try to let a block have another size where it is. */
static int resize(uint32_t unit, uint64_t units)
{
    uint32_t has = units_of(unit), behind = unit + has;
    if (units > has && behind == state.top) {
        if (!extend(units - has))
            return 0;
    } else if (units > has) {
        if (!is_free(behind) || has + (uint64_t)units_of(behind) < units)
            return 0;
        uint32_t found = units_of(behind);
        take_out(behind);
        if (has + found > units)
            add(unit + (uint32_t)units, has + found - (uint32_t)units);
    }
    tag_to_write(unit)->units = (uint32_t)units << 1 | 1;
    state.used_bytes += (units - has) * UNIT_BYTES;
    if (units < has)
        release(unit + (uint32_t)units, has - (uint32_t)units);
    return 1;
}

void *ciel_heap_realloc(void *block, size_t size_bytes)
{
    if (!block)
        return ciel_heap_malloc(size_bytes);
    if (!in_main(block))
        return realloc(block, size_bytes);
    if (!size_bytes) {
        ciel_heap_free(block);
        return NULL;
    }
    uint32_t unit = unit_at(block);
    int is_done = 0;
    if (!state.is_bump && size_bytes < BLOCKS_BYTES) {
        pthread_mutex_lock(&lock);
        is_done = resize(unit, units_for(size_bytes));
        pthread_mutex_unlock(&lock);
    }
    if (is_done)
        return block;
    uint64_t has_bytes = units_of(unit) * UNIT_BYTES;
    void *moved = ciel_heap_malloc(size_bytes);
    if (!moved)
        return NULL;
    ciel_heap_memcpy(moved, block, has_bytes < size_bytes ? has_bytes : size_bytes);
    ciel_heap_free(block);
    return moved;
}

void *ciel_heap_aligned(size_t alignment, size_t size_bytes)
{
    if (alignment <= UNIT_BYTES)
        return ciel_heap_malloc(size_bytes);
    if (alignment & (alignment - 1) || size_bytes > BLOCKS_BYTES - alignment) {
        errno = alignment & (alignment - 1) ? EINVAL : ENOMEM;
        return NULL;
    }
    char *block = ciel_heap_malloc(size_bytes + alignment);
    if (!block)
        return NULL;
    uint64_t skipped = -(uint64_t)block & (alignment - 1);
    uint32_t unit = unit_at(block), front = (uint32_t)(skipped / UNIT_BYTES);
    if (!front)
        return block;
    uint32_t units;
    pthread_mutex_lock(&lock);
    units = units_of(unit) - front;
    tag_to_write(unit + front)->units = units << 1 | 1;
    if (!state.is_bump) {
        state.used_bytes -= skipped;
        release(unit, front);
    }
    pthread_mutex_unlock(&lock);
    return block + skipped;
}

/* --- what programs call by these names in libc --- */

int ciel_heap_posix_memalign(void **block, size_t alignment, size_t size_bytes)
{
    if (alignment % sizeof(void *) || (alignment & (alignment - 1)) || !alignment)
        return EINVAL;
    void *found = ciel_heap_aligned(alignment, size_bytes);
    if (found)
        *block = found;
    return found ? 0 : ENOMEM;
}

void *ciel_heap_reallocarray(void *block, size_t count, size_t size_bytes)
{
    size_t all_bytes;
    if (__builtin_mul_overflow(count, size_bytes, &all_bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return ciel_heap_realloc(block, all_bytes);
}

size_t ciel_heap_malloc_usable_size(void *block)
{
    if (!in_main(block))
        return malloc_usable_size(block);
    return units_of(unit_at(block)) * UNIT_BYTES;
}

char *ciel_heap_strndup(const char *text, size_t bytes_max)
{
    size_t size_bytes = strnlen(text, bytes_max);
    char *copy = ciel_heap_malloc(size_bytes + 1);
    if (!copy)
        return NULL;
    ciel_heap_memcpy(copy, text, size_bytes);
    touch_write(copy + size_bytes);
    copy[size_bytes] = 0;
    return copy;
}

char *ciel_heap_strdup(const char *text)
{
    return ciel_heap_strndup(text, SIZE_MAX);
}

/* --- operators of C++; libstdc++ calls them, too --- */

void cpp_bad_alloc(void) __asm__("_ZSt17__throw_bad_allocv") __attribute__((weak));

static void *or_throw(void *block)
{
    if (!block && cpp_bad_alloc)
        cpp_bad_alloc();
    return block;
}

#define OPERATOR(result, name, symbol, ...) \
    result name(__VA_ARGS__) __asm__(symbol); \
    result name(__VA_ARGS__)

OPERATOR(void *, new_one, "_Znwm", size_t size_bytes)
{
    return or_throw(ciel_heap_malloc(size_bytes));
}

OPERATOR(void *, new_aligned, "_ZnwmSt11align_val_t", size_t size_bytes, size_t alignment)
{
    return or_throw(ciel_heap_aligned(alignment, size_bytes));
}

void *ciel_heap_new_array(size_t size_bytes)
{
    return or_throw(ciel_heap_malloc(size_bytes));
}

void *ciel_heap_new_array_aligned(size_t size_bytes, size_t alignment)
{
    return or_throw(ciel_heap_aligned(alignment, size_bytes));
}

void *ciel_heap_new_nothrow(size_t size_bytes, const void *unused)
{
    (void)unused;
    return ciel_heap_malloc(size_bytes);
}

OPERATOR(void, delete_one, "_ZdlPv", void *block)
{
    ciel_heap_free(block);
}

OPERATOR(void, delete_array, "_ZdaPv", void *block)
{
    ciel_heap_free(block);
}

OPERATOR(void, delete_sized, "_ZdlPvm", void *block, size_t size_bytes)
{
    (void)size_bytes;
    ciel_heap_free(block);
}

OPERATOR(void, delete_array_sized, "_ZdaPvm", void *block, size_t size_bytes)
{
    (void)size_bytes;
    ciel_heap_free(block);
}

OPERATOR(void, delete_aligned, "_ZdlPvSt11align_val_t", void *block, size_t alignment)
{
    (void)alignment;
    ciel_heap_free(block);
}

OPERATOR(void, delete_array_aligned, "_ZdaPvSt11align_val_t", void *block, size_t alignment)
{
    (void)alignment;
    ciel_heap_free(block);
}

OPERATOR(void, delete_sized_aligned, "_ZdlPvmSt11align_val_t", void *block, size_t size_bytes,
         size_t alignment)
{
    (void)size_bytes, (void)alignment;
    ciel_heap_free(block);
}

OPERATOR(void, delete_array_sized_aligned, "_ZdaPvmSt11align_val_t", void *block,
         size_t size_bytes, size_t alignment)
{
    (void)size_bytes, (void)alignment;
    ciel_heap_free(block);
}

/* --- durability --- */

int ciel_heap_sync(void *root)
{
    pthread_mutex_lock(&lock);
    state.root = (uint64_t)root;
    struct tag *tags_end = (struct tag *)TAGS + state.top;
    int result = pager_commit(&state, sizeof state, MAIN + state.top * UNIT_BYTES,
                              (uint64_t)tags_end);
    pthread_mutex_unlock(&lock);
    return result;
}

void *ciel_heap_restore(void)
{
    struct state found;
    uint64_t blocks_end, tags_end;
    if (state.used_bytes) {
        errno = EBUSY;
        return NULL;
    }
    pthread_mutex_lock(&lock);
    int result = pager_restore(&found, sizeof found, &blocks_end, &tags_end);
    if (result == 0) {
        state = found;
        expected = state.top;
    }
    pthread_mutex_unlock(&lock);
    return result ? NULL : (void *)state.root;
}
