/* Which pages are in memory: what comes in, what leaves, and the table that tells the code so. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ciel_heap.h"
#include "runtime.h"

enum { FRESH, STORED, RESIDENT };

/* A page has up to two copies in the store: of the last commit, and a later one. They lie on two
 * sides, with numbers of their own; 0: there is none, 1 or 2: on that side. */
struct page {
    uint32_t place; /* in `ring`, if it is resident */
    uint16_t pins;
    uint8_t where;
    uint8_t is_dirty : 1, current : 2, committed : 2;
};

/* Pages that are read one after another, upwards or downwards. */
struct stream {
    uint64_t next, below; /* the page after, and before, those that came in last */
    unsigned count;       /* that came in */
};

enum { STREAMS = 8, PINS_MAX = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread volatile int has_lock; /* the handler of a fault reads it */
static __thread int cancel_state;
static struct store *store;
static unsigned shift;            /* of a page's bytes */
static uint64_t limit;            /* of resident pages; 0: none */
static struct page *pages;        /* those of the main range, then those of globals */
static char *globals, *globals_end; /* whole pages */
static uint64_t *ring;            /* the resident pages */
static uint64_t resident, hand;
static char *window;              /* where pages are filled that nobody may see yet */
static unsigned batch;            /* pages that come in, or leave, together */
static struct stream streams[STREAMS];
static unsigned oldest_stream;
static int is_forked;             /* a child of fork: the store is its parent's */
static int is_ending;             /* the store has forgotten the pages */
static uint64_t read_pages, written_pages, faults;

#define MAIN_PAGES (MAIN_BYTES >> shift)
#define PAGE_BYTES (1ULL << shift)

static uint64_t page_of(const void *address)
{
    if (in_main(address))
        return ((uint64_t)address - MAIN) >> shift;
    return MAIN_PAGES + ((uint64_t)((const char *)address - globals) >> shift);
}

static char *address_of(uint64_t page)
{
    if (page < MAIN_PAGES)
        return (char *)(MAIN + (page << shift));
    return globals + ((page - MAIN_PAGES) << shift);
}

static uint64_t number_of(uint64_t page, unsigned side)
{
    return page << 1 | (side - 1);
}

int pager_is_paged(const void *address)
{
    return in_main(address) || ((const char *)address >= globals && (const char *)address < globals_end);
}

/* Neither a signal handler of the program, which may need a page, nor the end of the thread comes
 * while a thread has the lock. */
static void take_lock(void)
{
    if (has_lock) /* it would wait for itself */
        fail(STORE_FAILED, "the run-time touched memory that is not there");
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    signals_block();
    pthread_mutex_lock(&lock);
    has_lock = 1;
}

static void give_lock(void)
{
    has_lock = 0;
    pthread_mutex_unlock(&lock);
    signals_unblock();
    pthread_setcancelstate(cancel_state, NULL);
}

/* --- the table, and protection --- */

static uint64_t granules(void)
{
    return 1ULL << (shift - GRANULE_SHIFT);
}

static void show(uint64_t page, int value)
{
    memset(table_of(address_of(page)), value, granules());
}

static int is_cold(uint64_t page)
{
    const unsigned char *values = table_of(address_of(page));
    for (uint64_t i = 0; i < granules(); i++)
        if (!(__atomic_load_n(&values[i], __ATOMIC_RELAXED) & COLD))
            return 0;
    return 1;
}

static void show_resident(uint64_t page, int cold)
{
    show(page, (pages[page].is_dirty ? 0 : CLEAN) | cold);
}

static void protect(char *address, uint64_t size_bytes, int protection)
{
    if (mprotect(address, size_bytes, protection) == 0)
        return;
    if (errno == ENOMEM)
        fail(STORE_FAILED, "no memory for pages of the heap; the limit of maps of a process "
                           "(vm.max_map_count) may be too low");
    fail(STORE_FAILED, "mprotect: %s", strerror(errno));
}

static void unmap(char *address, uint64_t size_bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(address, size_bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED)
        fail(STORE_FAILED, "a page could not leave memory: %s", strerror(errno));
}

/* --- eviction --- */

static void join_ring(uint64_t page)
{
    pages[page].place = (uint32_t)resident;
    pages[page].where = RESIDENT;
    ring[resident++] = page;
}

static void leave_ring(uint64_t page)
{
    uint64_t last = ring[--resident];
    ring[pages[page].place] = last;
    pages[last].place = pages[page].place;
}

/* Choose up to `wanted` pages that nobody has used since the hand last passed them. */
static unsigned choose(uint64_t *victims, unsigned wanted)
{
    unsigned count = 0;
    for (uint64_t looked = 0; count < wanted && looked < 3 * resident; looked++) {
        hand = hand + 1 < resident ? hand + 1 : 0;
        uint64_t page = ring[hand];
        if (pages[page].pins)
            continue;
        if (!is_cold(page)) {
            show_resident(page, COLD);
            continue;
        }
        unsigned i = count;
        while (i > 0 && victims[i - 1] > page)
            i--;
        if (i > 0 && victims[i - 1] == page)
            continue; /* the hand has passed it before */
        memmove(victims + i + 1, victims + i, (count - i) * sizeof *victims);
        victims[i] = page;
        count++;
    }
    return count;
}

/* Do something with each run of neighbours among pages in order. */
static void for_runs(const uint64_t *chosen, unsigned count, void (*act)(char *, uint64_t, int),
                     int argument)
{
    for (unsigned first = 0, i = 1; i <= count; i++)
        if (i == count || chosen[i] != chosen[i - 1] + 1 || chosen[i] == MAIN_PAGES) {
            act(address_of(chosen[first]), (uint64_t)(i - first) << shift, argument);
            first = i;
        }
}

static void drop(char *address, uint64_t size_bytes, int unused)
{
    (void)unused;
    unmap(address, size_bytes);
}

/* Write resident pages, which are in order, to the store. Nobody can change them meanwhile. */
static void write_back(const uint64_t *dirty, unsigned count)
{
    uint64_t numbers[BATCH];
    char *from[BATCH];
    for_runs(dirty, count, protect, PROT_READ);
    for (unsigned i = 0; i < count; i++) {
        struct page *page = &pages[dirty[i]];
        if (!page->current || page->current == page->committed) /* the committed copy must stay */
            page->current = page->committed == 1 ? 2 : 1;
        numbers[i] = number_of(dirty[i], page->current);
        from[i] = address_of(dirty[i]);
    }
    if (count && store->write(store, numbers, from, count))
        fail(STORE_FAILED, "pages could not be written to %s: %s", store->name, store->why);
    written_pages += count;
    for (unsigned i = 0; i < count; i++)
        pages[dirty[i]].is_dirty = 0;
}

static void evict(unsigned wanted)
{
    uint64_t victims[BATCH], dirty[BATCH];
    unsigned dirty_count = 0;
    unsigned count = choose(victims, wanted);
    if (!count)
        fail(WRONG_SETTING, "CIEL_HEAP_RAM is too small: the kernel uses all %llu pages in memory",
             (unsigned long long)limit);
    for (unsigned i = 0; i < count; i++) {
        show(victims[i], ABSENT);
        if (pages[victims[i]].is_dirty)
            dirty[dirty_count++] = victims[i];
    }
    write_back(dirty, dirty_count);
    for_runs(victims, count, drop, 0);
    for (unsigned i = 0; i < count; i++) {
        leave_ring(victims[i]);
        pages[victims[i]].where = pages[victims[i]].current ? STORED : FRESH;
    }
}

static void make_room(unsigned count)
{
    while (limit && !is_forked && resident + count > limit)
        evict(count > batch ? count : batch);
}

/* --- what comes in --- */

static int may_come_along(uint64_t page)
{
    return pages[page].where == STORED;
}

/* Return how many pages to read, from `*first` on, since `page` is read. */
static unsigned foresee(uint64_t page, uint64_t *first)
{
    struct stream *stream = NULL;
    for (unsigned i = 0; i < STREAMS; i++)
        if (streams[i].count && (streams[i].next == page || streams[i].below == page))
            stream = &streams[i];
    unsigned ahead = 1;
    int is_downwards = 0;
    if (stream) {
        ahead = stream->count * 2 < batch ? stream->count * 2 : batch;
        is_downwards = stream->next != page;
    } else {
        stream = &streams[oldest_stream];
        oldest_stream = (oldest_stream + 1) % STREAMS;
    }
    unsigned count = 1;
    *first = page;
    while (count < ahead) {
        if (!is_downwards && may_come_along(page + count))
            count++;
        else if (is_downwards && *first > 0 && may_come_along(*first - 1)) {
            (*first)--;
            count++;
        } else
            break;
    }
    *stream = (struct stream){*first + count, *first - 1, count};
    return count;
}

/* Read stored pages. They become visible at once, when they are complete. */
static void read_in(uint64_t page)
{
    uint64_t first, numbers[BATCH];
    char *to[BATCH];
    if (is_forked)
        fail(STORE_FAILED, "a child of fork() used memory that is in its parent's store; start "
                           "another program in it, or use threads");
    if (is_ending)
        fail(STORE_FAILED, "memory of the heap was used after the end of main()");
    unsigned count = foresee(page, &first);
    make_room(count);
    for (unsigned i = 0; i < count; i++) {
        numbers[i] = number_of(first + i, pages[first + i].current);
        to[i] = window + ((uint64_t)i << shift);
    }
    if (store->read(store, numbers, to, count))
        fail(STORE_FAILED, "pages could not be read from %s: %s", store->name, store->why);
    read_pages += count;
    uint64_t size_bytes = (uint64_t)count << shift;
    protect(window, size_bytes, PROT_READ);
    int crosses = first < MAIN_PAGES && first + count > MAIN_PAGES;
    unsigned here = crosses ? (unsigned)(MAIN_PAGES - first) : count;
    for (unsigned done = 0; done < count; done += here, here = count - done) {
        uint64_t part = (uint64_t)here << shift;
        if (mremap(window + ((uint64_t)done << shift), part, part, MREMAP_MAYMOVE | MREMAP_FIXED,
                   address_of(first + done)) == MAP_FAILED)
            fail(STORE_FAILED, "pages could not be moved into place: %s", strerror(errno));
    }
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(window, size_bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
        fail(STORE_FAILED, "no memory to read pages: %s", strerror(errno));
    for (unsigned i = 0; i < count; i++) {
        pages[first + i].is_dirty = 0;
        join_ring(first + i);
        show_resident(first + i, COLD); /* those that nobody uses leave first */
    }
}

/* Let a page be in memory, and writable if asked. The lock is held. */
static void settle(uint64_t page, int is_written)
{
    struct page *it = &pages[page];
    if (it->where == STORED)
        read_in(page);
    else if (it->where == FRESH) {
        make_room(1);
        if (!is_written)
            protect(address_of(page), PAGE_BYTES, PROT_READ);
        it->is_dirty = 0;
        join_ring(page);
    }
    if (is_written && !it->is_dirty) {
        protect(address_of(page), PAGE_BYTES, PROT_READ | PROT_WRITE);
        it->is_dirty = 1;
    }
    show_resident(page, 0);
}

void pager_read(const void *address)
{
    int before = errno;
    take_lock();
    settle(page_of(address), 0);
    give_lock();
    errno = before;
}

void pager_write(void *address)
{
    int before = errno;
    take_lock();
    settle(page_of(address), 1);
    give_lock();
    errno = before;
}

/* What checks in compiled code call. They keep registers, so that the checks take few. */
#ifdef __clang__
#define KEEPS_REGISTERS __attribute__((preserve_most))
#else
#define KEEPS_REGISTERS /* for analyses by gcc only */
#endif

KEEPS_REGISTERS void ciel_heap_check_read(const void *address)
{
    pager_read(address);
}

KEEPS_REGISTERS void ciel_heap_check_write(void *address)
{
    pager_write(address);
}

int pager_fault(void *address, int is_written)
{
    if (!pager_is_paged(address))
        return 0;
    take_lock();
    faults++;
    settle(page_of(address), is_written);
    give_lock();
    return 1;
}

/* --- ranges --- */

void pager_expect(const void *address, uint64_t size_bytes)
{
    const char *end = (const char *)address + size_bytes;
    take_lock();
    for (uint64_t page = page_of(address); page < MAIN_PAGES && address_of(page) < end; page++)
        if (pages[page].where != RESIDENT)
            show(page, ABSENT);
    give_lock();
}

static void forget(const uint64_t *numbers, unsigned count)
{
    if (count && !is_forked)
        store->forget(store, numbers, count);
}

void pager_discard(char *address, uint64_t size_bytes)
{
    uint64_t first = page_of(address + PAGE_BYTES - 1), end = page_of(address + size_bytes);
    if (!store || first >= end)
        return;
    uint64_t numbers[BATCH];
    unsigned count = 0;
    take_lock();
    for (uint64_t page = first; page < end; page++) {
        struct page *it = &pages[page];
        if (it->where == FRESH || it->pins)
            continue;
        if (it->where == RESIDENT) {
            show(page, ABSENT);
            unmap(address_of(page), PAGE_BYTES);
            leave_ring(page);
        }
        if (it->current && it->current != it->committed)
            numbers[count++] = number_of(page, it->current);
        it->where = FRESH;
        it->current = it->is_dirty = 0;
        if (count == BATCH) {
            forget(numbers, count);
            count = 0;
        }
    }
    forget(numbers, count);
    give_lock();
}

uint64_t pager_pins_max_bytes(void)
{
    return limit ? (limit / 4) << shift : UINT64_MAX;
}

int pager_needs_pin(const void *address)
{
    return !has_lock && pager_is_paged(address); /* pages stay while their store is at work */
}

size_t pager_pin(const void *address, size_t size_bytes, int is_written)
{
    if (!size_bytes || !pager_needs_pin(address))
        return size_bytes;
    uint64_t most = limit && limit / 8 < PINS_MAX ? limit / 8 : PINS_MAX;
    uint64_t first = page_of(address), end = first + (most ? most : 1);
    const char *until = (const char *)address;
    take_lock();
    for (uint64_t page = first; page < end && until < (const char *)address + size_bytes; page++) {
        settle(page, is_written);
        pages[page].pins++;
        until = address_of(page) + PAGE_BYTES;
    }
    give_lock();
    size_t pinned_bytes = (size_t)(until - (const char *)address);
    return pinned_bytes < size_bytes ? pinned_bytes : size_bytes;
}

void pager_unpin(const void *address, size_t pinned_bytes)
{
    if (!pinned_bytes || !pager_needs_pin(address))
        return;
    uint64_t end = page_of((const char *)address + pinned_bytes - 1);
    take_lock();
    for (uint64_t page = page_of(address); page <= end; page++)
        pages[page].pins--;
    give_lock();
}

/* --- durability --- */

struct trailer {
    uint64_t page_bytes, blocks_end, tags_end; /* addresses */
};

static uint64_t pages_below(uint64_t start, uint64_t end)
{
    return (end - start + PAGE_BYTES - 1) >> shift;
}

static void write_all(uint64_t first, uint64_t count)
{
    uint64_t dirty[BATCH];
    unsigned chosen = 0;
    for (uint64_t page = first; page < first + count; page++) {
        if (pages[page].where == RESIDENT && pages[page].is_dirty) {
            dirty[chosen++] = page;
            show(page, CLEAN);
        }
        if (chosen == BATCH || (chosen && page + 1 == first + count)) {
            write_back(dirty, chosen);
            chosen = 0;
        }
    }
}

int pager_commit(const void *header, size_t header_bytes, uint64_t blocks_end, uint64_t tags_end)
{
    if (!store || !store->commit) {
        errno = ENOTSUP;
        return -1;
    }
    uint64_t tags = page_of((void *)TAGS);
    uint64_t count = pages_below(MAIN, blocks_end), tag_count = pages_below(TAGS, tags_end);
    size_t size_bytes = header_bytes + sizeof(struct trailer) + count + tag_count;
    char *record = malloc(size_bytes);
    if (!record)
        return -1;
    take_lock();
    write_all(0, count);
    write_all(tags, tag_count);
    memcpy(record, header, header_bytes);
    struct trailer trailer = {PAGE_BYTES, blocks_end, tags_end};
    memcpy(record + header_bytes, &trailer, sizeof trailer);
    char *sides = record + header_bytes + sizeof trailer;
    for (uint64_t i = 0; i < count; i++)
        *sides++ = (char)pages[i].current;
    for (uint64_t i = 0; i < tag_count; i++)
        *sides++ = (char)pages[tags + i].current;
    int result = store->commit(store, record, size_bytes);
    for (uint64_t page = 0; result == 0 && page < tags + tag_count; page++) {
        if (page == count)
            page = tags;
        pages[page].committed = pages[page].current;
    }
    give_lock();
    free(record);
    if (result)
        errno = EIO;
    return result;
}

int pager_restore(void *header, size_t header_bytes, uint64_t *blocks_end, uint64_t *tags_end)
{
    if (!store || !store->restore) {
        errno = ENOTSUP;
        return -1;
    }
    struct trailer trailer = {0};
    size_t size_bytes;
    take_lock();
    for (uint64_t i = resident; i-- > 0;) { /* what was used and freed */
        uint64_t page = ring[i];
        if (address_of(page) >= (char *)STACKS)
            continue;
        unmap(address_of(page), PAGE_BYTES);
        leave_ring(page);
        pages[page].where = FRESH;
        pages[page].is_dirty = 0;
    }
    store->why[0] = 0;
    char *record = store->restore(store, &size_bytes);
    if (record && size_bytes >= header_bytes + sizeof trailer)
        memcpy(&trailer, record + header_bytes, sizeof trailer);
    if (!record || trailer.page_bytes != PAGE_BYTES) {
        errno = record ? EINVAL : store->why[0] ? EIO : ENOENT;
        give_lock();
        free(record);
        return -1;
    }
    memcpy(header, record, header_bytes);
    *blocks_end = trailer.blocks_end;
    *tags_end = trailer.tags_end;
    uint64_t tags = page_of((void *)TAGS), count = pages_below(MAIN, trailer.blocks_end);
    const char *sides = record + header_bytes + sizeof trailer;
    for (uint64_t page = 0; sides < record + size_bytes; page++, sides++) {
        if (page == count)
            page = tags;
        pages[page].current = pages[page].committed = (unsigned char)*sides & 3;
        pages[page].where = *sides ? STORED : FRESH;
        show(page, ABSENT);
    }
    give_lock();
    free(record);
    return 0;
}

void ciel_heap_count(struct ciel_heap_counts *counts)
{
    take_lock();
    struct ciel_heap_counts now = { /* `counts` may lie in a page */
        .page_bytes = PAGE_BYTES, .limit_pages = limit, .resident_pages = resident,
        .read_pages = read_pages, .written_pages = written_pages, .faults = faults,
    };
    give_lock();
    now.used_bytes = allocator_used_bytes();
    *counts = now;
}

uint64_t pager_page_bytes(void)
{
    return PAGE_BYTES;
}

/* --- the beginning and the end --- */

void pager_end(void)
{
    take_lock();
    is_ending = 1;
    store->close(store);
    give_lock();
}

static void *reserve(uint64_t address, uint64_t size_bytes, int protection)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (address ? MAP_FIXED_NOREPLACE : 0);
    void *found = mmap((void *)address, size_bytes, protection, flags, -1, 0);
    if (found == MAP_FAILED || (address && found != (void *)address))
        fail(WRONG_SETTING, "%llu MiB of addresses could not be reserved (%s); a limit on the "
                            "addresses of the process must be lifted",
             (unsigned long long)(size_bytes >> 20), strerror(errno));
    madvise(found, size_bytes, MADV_NOHUGEPAGE); /* a byte of a table would take 2 MiB */
    return found;
}

static void before_fork(void)
{
    allocator_before_fork();
    take_lock();
}

static void in_parent(void)
{
    give_lock();
    allocator_after_fork();
}

static void in_child(void)
{
    is_forked = 1;
    in_parent();
}

/* Let globals be pages that can leave. All of them leave now. */
static void page_globals(char *start, char *end)
{
    uint64_t mask = PAGE_BYTES - 1;
    globals = (char *)(((uint64_t)start + mask) & ~mask);
    globals_end = (char *)((uint64_t)end & ~mask);
    if (!store || globals >= globals_end) {
        globals = globals_end = NULL;
        return;
    }
    for (char *address = globals; address < globals_end; address += PAGE_BYTES) {
        uint64_t page = page_of(address);
        const char *byte = address;
        while (byte < address + PAGE_BYTES && !*byte)
            byte++;
        pages[page].is_dirty = 1;
        join_ring(page);
        if (byte < address + PAGE_BYTES)
            write_back(&page, 1);
        show(page, ABSENT);
        unmap(address, PAGE_BYTES);
        leave_ring(page);
        pages[page].is_dirty = 0;
        pages[page].where = pages[page].current ? STORED : FRESH;
    }
}

void pager_start(struct store *given, uint64_t page_bytes, uint64_t limit_pages, char *start,
                 char *end)
{
    store = given;
    limit = limit_pages;
    shift = (unsigned)__builtin_ctzll(page_bytes);
    batch = limit / 8 < BATCH ? (unsigned)(limit / 8) : BATCH;
    batch = batch ? batch : 1;
    reserve((uint64_t)TABLE, TABLE_BYTES, PROT_READ | PROT_WRITE);
    reserve(MAIN, MAIN_BYTES, PROT_NONE);
    uint64_t global_pages = (uint64_t)(end - start) >> shift;
    uint64_t count = MAIN_PAGES + global_pages;
    pages = reserve(0, (count + 1) * sizeof *pages, PROT_READ | PROT_WRITE);
    ring = reserve(0, (count + 1) * sizeof *ring, PROT_READ | PROT_WRITE);
    window = reserve(0, (uint64_t)BATCH << shift, PROT_READ | PROT_WRITE);
    page_globals(start, end);
    pthread_atfork(before_fork, in_parent, in_child);
}
