// A memory pool of Arrow whose buffers lie in the file of a task's output (POOL-1, POOL-4).
//
// A process has one pool, and the pool has an arena for each task that asked for one. An arena maps a
// part of an output's file, which it extends. While it is open, the pool allocates there; otherwise,
// and if the file cannot grow, the pool passes calls on to another pool of Arrow. A buffer may be
// freed at any time: a closed arena is unmapped when its last buffer is gone.
//
// The file may be one of an image of shmfs, whose blocks need not be adjacent. Then the arena extends
// it and finds its blocks by functions of `scc/include/shmfs.h`. The image must keep the blocks until
// the arena is unmapped, so Python is told of that.
//
// Nothing here is linked with Arrow. The classes below have the layout of arrow::Status, std::string
// and arrow::MemoryPool; `pool.py` compares the declaration of the last one with the header of the
// pyarrow that is installed.

#include <new>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

// Not in the namespace below: the compiler must not assume that it sees all classes of pools.
namespace arrow_layout {

// Returned through memory, since they have destructors. They are only made where the caller wants
// them, so nothing here copies them, and their size does not matter.
struct EXPORTED Status {
    void *state = nullptr; // no error
    Status() = default;
    Status(const Status &) = delete;
    ~Status() {}
};

struct EXPORTED Text {
    Text(const Text &) = delete;
    ~Text() {}
};

struct EXPORTED Pool {
    virtual ~Pool() {}
    virtual Status Allocate(int64_t size, int64_t alignment, uint8_t **out) = 0;
    virtual Status Reallocate(int64_t old_size, int64_t new_size, int64_t alignment,
                              uint8_t **ptr) = 0;
    virtual void Free(uint8_t *buffer, int64_t size, int64_t alignment) = 0;
    virtual void ReleaseUnused() = 0;
    virtual void PrintStats() = 0;
    virtual int64_t bytes_allocated() const = 0;
    virtual int64_t max_memory() const = 0;
    virtual int64_t total_bytes_allocated() const = 0;
    virtual int64_t num_allocations() const = 0;
    virtual Text backend_name() const = 0;
};

} // namespace arrow_layout

namespace {

using arrow_layout::Pool;
using arrow_layout::Status;
using arrow_layout::Text;

const int64_t LINE_BYTES = 128; // of the link of POOL-3: no two buffers share one
const int64_t PAGE_BYTES = 4096;
const int64_t HUGE_BYTES = 2 << 20;
const int64_t LARGE_BYTES = 1 << 20; // larger blocks consist of whole pages
const int64_t GROWTH_MIN_BYTES = 1 << 20, GROWTH_MAX_BYTES = 64 << 20;
const int64_t ADDRESSES_MAX_BYTES = int64_t(1) << 40, ADDRESSES_MIN_BYTES = int64_t(1) << 30;
const int CLASSES = 80;

// A file of an image: `shmfs_reserve`, `shmfs_place`, and their first two arguments.
struct Growth {
    int (*reserve)(void *fs, void *handle, uint64_t size_bytes);
    int (*place)(void *fs, void *handle, uint64_t offset_bytes, uint64_t *data_offset_bytes,
                 uint64_t *run_bytes);
    void *fs;
    void *handle; // of this arena alone
    uint64_t first_bytes; // where the blocks begin in the file
};

struct Block { // at the start of a free block
    Block *next;
    int64_t room_bytes;
};

int64_t rounded(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

// A quarter of the power of two below the size, so that a size has at most a quarter of waste.
int64_t room_of(int64_t size) {
    if (size > LARGE_BYTES)
        return rounded(size, PAGE_BYTES);
    int64_t step = LINE_BYTES;
    while (size > 8 * step)
        step *= 2;
    return rounded(size, step);
}

int class_of(int64_t room) { // of a room up to LARGE_BYTES
    int64_t step = LINE_BYTES;
    int level = 0;
    while (room > 8 * step) {
        step *= 2;
        level++;
    }
    return 4 * level + int(room / step) - 1;
}

struct Arena {
    Arena *next = nullptr;
    int fd = -1;
    uint8_t *addresses = nullptr; // reserved: `base` and all that may follow it
    uint8_t *base = nullptr;
    int64_t reserved_bytes = 0;
    int64_t room_bytes = 0; // from `base`
    int64_t start = 0;      // the offset of `base` in the file
    int64_t mapped_bytes = 0;
    int64_t used_bytes = 0; // blocks lie below this offset from `base`
    int64_t buffers = 0;
    bool is_open = true;
    bool is_held = true; // by Python
    bool is_gone = false;
    Growth growth = {};
    Block *free_blocks[CLASSES] = {};
    Block *large_blocks = nullptr;

    bool contains(const uint8_t *at) const { return at >= base && at < base + mapped_bytes; }

    bool reserve() {
        for (int64_t size = ADDRESSES_MAX_BYTES; size >= ADDRESSES_MIN_BYTES; size /= 2) {
            void *found = mmap(nullptr, size_t(size), PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (found == MAP_FAILED)
                continue; // a limit on addresses
            addresses = static_cast<uint8_t *>(found);
            reserved_bytes = size;
            // Huge pages need addresses that are congruent to the offsets in the file.
            int64_t skipped = (start - int64_t(addresses)) % HUGE_BYTES;
            base = addresses + (skipped < 0 ? skipped + HUGE_BYTES : skipped);
            room_bytes = size - HUGE_BYTES;
            return true;
        }
        return false;
    }

    // Map at least so many bytes from `base`.
    bool grow(int64_t wanted_bytes) {
        if (wanted_bytes <= mapped_bytes)
            return true;
        int64_t step = mapped_bytes < GROWTH_MIN_BYTES   ? GROWTH_MIN_BYTES
                       : mapped_bytes > GROWTH_MAX_BYTES ? GROWTH_MAX_BYTES
                                                         : mapped_bytes;
        int64_t least = rounded(wanted_bytes - mapped_bytes, PAGE_BYTES);
        return extend(least > step ? least : step) || (least < step && extend(least));
    }

    bool extend(int64_t more) {
        if (mapped_bytes + more > room_bytes)
            return false;
        if (growth.reserve)
            return extend_in_image(more);
        // Without its pages, a full device would end the process with SIGBUS.
        int error = posix_fallocate(fd, start + mapped_bytes, more);
        if (error == EOPNOTSUPP || error == EINVAL)
            error = ftruncate(fd, start + mapped_bytes + more) ? errno : 0;
        if (error)
            return false;
        void *found = mmap(base + mapped_bytes, size_t(more), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_FIXED, fd, start + mapped_bytes);
        if (found == MAP_FAILED)
            return false;
        mapped_bytes += more;
        return true;
    }

    bool extend_in_image(int64_t more) {
        if (growth.reserve(growth.fs, growth.handle, uint64_t(start + mapped_bytes + more)) < 0)
            return false;
        for (int64_t done = 0; done < more;) {
            uint64_t from, run;
            if (growth.place(growth.fs, growth.handle, uint64_t(start + mapped_bytes + done), &from,
                             &run) < 0)
                return false;
            int64_t now = int64_t(run) < more - done ? int64_t(run) : more - done;
            void *found = mmap(base + mapped_bytes + done, size_t(now), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_FIXED, fd, off_t(growth.first_bytes + from));
            if (found == MAP_FAILED)
                return false;
            done += now;
        }
        mapped_bytes += more;
        return true;
    }

    uint8_t *take(int64_t size) {
        int64_t room = room_of(size);
        uint8_t *found = room > LARGE_BYTES ? take_large(room) : take_small(room);
        if (!found) {
            // Large blocks begin at a page, so that the pages of free ones can be given back.
            int64_t at = room > LARGE_BYTES ? rounded(used_bytes, PAGE_BYTES) : used_bytes;
            if (!grow(at + room))
                return nullptr;
            found = base + at;
            used_bytes = at + room;
        }
        buffers++;
        return found;
    }

    uint8_t *take_small(int64_t room) {
        Block *&first = free_blocks[class_of(room)];
        Block *found = first;
        if (found)
            first = found->next;
        return reinterpret_cast<uint8_t *>(found);
    }

    uint8_t *take_large(int64_t room) {
        for (Block **link = &large_blocks; *link; link = &(*link)->next) {
            Block *found = *link;
            if (found->room_bytes < room)
                continue;
            int64_t rest = found->room_bytes - room;
            if (rest) {
                Block *left = reinterpret_cast<Block *>(reinterpret_cast<uint8_t *>(found) + room);
                left->next = found->next;
                left->room_bytes = rest;
                *link = left;
            } else {
                *link = found->next;
            }
            return reinterpret_cast<uint8_t *>(found);
        }
        return nullptr;
    }

    void give_back(uint8_t *at, int64_t size) {
        buffers--;
        if (!is_open)
            return;
        int64_t room = room_of(size);
        if (at + room == base + used_bytes) {
            used_bytes = at - base;
            return;
        }
        put(at, room, room > LARGE_BYTES ? large_blocks : free_blocks[class_of(room)]);
    }

    void put(uint8_t *at, int64_t room, Block *&first) {
        Block *block = reinterpret_cast<Block *>(at);
        block->next = first;
        block->room_bytes = room;
        first = block;
    }

    // Change the size of a block where it is.
    bool resize(uint8_t *at, int64_t old_size, int64_t new_size) {
        int64_t old_room = room_of(old_size), new_room = room_of(new_size);
        if (old_room == new_room)
            return true;
        if (old_room <= LARGE_BYTES || new_room <= LARGE_BYTES)
            return false; // their rooms are not of pages
        if (at + old_room != base + used_bytes) {
            if (new_room > old_room)
                return false;
            put(at + new_room, old_room - new_room, large_blocks);
            return true;
        }
        if (!grow(at - base + new_room))
            return false;
        used_bytes = at - base + new_room;
        return true;
    }

    // Remove the addresses from free blocks, which become part of the object, and their pages.
    void clean() {
        for (Block *&first : free_blocks)
            clean(first);
        clean(large_blocks);
    }

    void clean(Block *&first) {
        while (Block *block = first) {
            first = block->next;
            uint8_t *at = reinterpret_cast<uint8_t *>(block);
            int64_t room = block->room_bytes;
            memset(at, 0, sizeof *block);
            int64_t from = rounded(at - base, PAGE_BYTES), to = (at - base + room) / PAGE_BYTES;
            to *= PAGE_BYTES;
            if (from < to && !growth.reserve) // where holes are impossible, the pages stay
                (void)!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start + from,
                                 to - from);
        }
    }

    bool is_over() const { return !is_open && !is_held && !buffers; }
};

class Lock {
  public:
    Lock();
    ~Lock();
};

struct StorePool : Pool {
    Pool *other;
    Arena *current = nullptr;
    Arena *arenas = nullptr;
    int (*tell)(int (*)(void *), void *) = nullptr; // Py_AddPendingCall
    int (*told)(void *) = nullptr;
    int64_t bytes = 0, peak_bytes = 0, total_bytes = 0, count = 0;

    explicit StorePool(Pool *other) : other(other) {}

    Arena *owner_of(const uint8_t *at) const {
        for (Arena *arena = arenas; arena; arena = arena->next)
            if (arena->contains(at))
                return arena;
        return nullptr;
    }

    void count_bytes(int64_t change) {
        bytes += change;
        if (bytes > peak_bytes)
            peak_bytes = bytes;
        if (change > 0)
            total_bytes += change;
    }

    uint8_t *take(int64_t size, int64_t alignment) {
        if (!current || size <= 0 || alignment > LINE_BYTES)
            return nullptr;
        uint8_t *found = current->take(size);
        if (found) {
            count++;
            count_bytes(size);
        }
        return found;
    }

    void give_back(Arena *arena, uint8_t *at, int64_t size) {
        arena->give_back(at, size);
        count_bytes(-size);
        remove_if_over(arena);
    }

    void remove_if_over(Arena *arena) {
        if (!arena->is_over())
            return;
        Arena **link = &arenas;
        while (*link != arena)
            link = &(*link)->next;
        *link = arena->next;
        munmap(arena->addresses, size_t(arena->reserved_bytes));
        if (!arena->growth.reserve) {
            free(arena);
            return;
        }
        arena->is_gone = true;
        if (tell)
            tell(told, nullptr);
    }

    Status Allocate(int64_t size, int64_t alignment, uint8_t **out) override {
        {
            Lock lock;
            if (uint8_t *found = take(size, alignment)) {
                *out = found;
                return Status();
            }
        }
        return other->Allocate(size, alignment, out);
    }

    Status Reallocate(int64_t old_size, int64_t new_size, int64_t alignment,
                      uint8_t **ptr) override {
        Arena *owner;
        {
            Lock lock;
            owner = owner_of(*ptr);
            if (owner && owner->is_open && new_size > 0 &&
                owner->resize(*ptr, old_size, new_size)) {
                count_bytes(new_size - old_size);
                return Status();
            }
        }
        if (!owner && !current)
            return other->Reallocate(old_size, new_size, alignment, ptr);
        return move(owner, old_size, new_size, alignment, ptr);
    }

    // Copy a buffer to a new place, in the current arena if possible.
    Status move(Arena *owner, int64_t old_size, int64_t new_size, int64_t alignment,
                uint8_t **ptr) {
        uint8_t *found = nullptr;
        {
            Lock lock;
            found = take(new_size, alignment);
        }
        if (!found) {
            if (!owner)
                return other->Reallocate(old_size, new_size, alignment, ptr);
            return move_out(owner, old_size, new_size, alignment, ptr);
        }
        replace(owner, old_size, new_size, alignment, ptr, found);
        return Status();
    }

    Status move_out(Arena *owner, int64_t old_size, int64_t new_size, int64_t alignment,
                    uint8_t **ptr) {
        // The result of `other` has to be returned as it is, so what follows runs as a destructor.
        struct Rest {
            StorePool *pool;
            Arena *owner;
            int64_t old_size, new_size, alignment;
            uint8_t **ptr;
            uint8_t *found = nullptr;
            ~Rest() {
                if (found)
                    pool->replace(owner, old_size, new_size, alignment, ptr, found);
            }
        } rest{this, owner, old_size, new_size, alignment, ptr};
        return other->Allocate(new_size, alignment, &rest.found);
    }

    void replace(Arena *owner, int64_t old_size, int64_t new_size, int64_t alignment,
                 uint8_t **ptr, uint8_t *found) {
        int64_t kept = old_size < new_size ? old_size : new_size;
        if (kept > 0)
            memcpy(found, *ptr, size_t(kept));
        if (owner) {
            Lock lock;
            give_back(owner, *ptr, old_size);
        } else {
            other->Free(*ptr, old_size, alignment);
        }
        *ptr = found;
    }

    void Free(uint8_t *buffer, int64_t size, int64_t alignment) override {
        {
            Lock lock;
            if (Arena *owner = owner_of(buffer)) {
                give_back(owner, buffer, size);
                return;
            }
        }
        other->Free(buffer, size, alignment);
    }

    void ReleaseUnused() override { other->ReleaseUnused(); }
    void PrintStats() override { other->PrintStats(); }
    int64_t bytes_allocated() const override { return bytes + other->bytes_allocated(); }
    int64_t max_memory() const override { return peak_bytes + other->max_memory(); }
    int64_t total_bytes_allocated() const override {
        return total_bytes + other->total_bytes_allocated();
    }
    int64_t num_allocations() const override { return count + other->num_allocations(); }
    Text backend_name() const override { return other->backend_name(); }
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
StorePool *the_pool = nullptr;
alignas(StorePool) unsigned char pool_memory[sizeof(StorePool)];

Lock::Lock() { pthread_mutex_lock(&mutex); }
Lock::~Lock() { pthread_mutex_unlock(&mutex); }

void before_fork() { pthread_mutex_lock(&mutex); }
void after_fork() { pthread_mutex_unlock(&mutex); }

// A child has the same files: it must not allocate there.
void after_fork_in_child() {
    for (Arena *arena = the_pool ? the_pool->arenas : nullptr; arena; arena = arena->next)
        arena->is_open = false;
    if (the_pool)
        the_pool->current = nullptr;
    pthread_mutex_unlock(&mutex);
}

} // namespace

extern "C" {

// Return the pool of this process. `other`: the pool of Arrow that it passes calls on to.
EXPORTED void *ciel_pool(void *other) {
    Lock lock;
    if (!the_pool) {
        the_pool = new (pool_memory) StorePool(static_cast<Pool *>(other));
        pthread_atfork(before_fork, after_fork, after_fork_in_child);
    }
    return the_pool;
}

// Open an arena in a file, from an offset that is a multiple of a page; it becomes the current one.
// The arena owns the descriptor. Return null and set errno if there are no addresses. `growth`: the
// file is one of an image, and `fd` a descriptor of its blocks; may be null. The arena copies the
// handle, which has so many bytes.
EXPORTED void *ciel_arena_open(int fd, int64_t start, const void *growth, int64_t handle_bytes) {
    void *memory = calloc(1, sizeof(Arena));
    if (!memory)
        return nullptr;
    Arena *arena = new (memory) Arena();
    arena->fd = fd;
    arena->start = start;
    if (growth) {
        memcpy(&arena->growth, growth, sizeof arena->growth);
        void *handle = malloc(size_t(handle_bytes));
        if (handle)
            memcpy(handle, arena->growth.handle, size_t(handle_bytes));
        arena->growth.handle = handle;
    }
    if ((growth && !arena->growth.handle) || !arena->reserve()) {
        free(arena->growth.handle);
        free(memory);
        return nullptr;
    }
    Lock lock;
    arena->next = the_pool->arenas;
    the_pool->arenas = the_pool->current = arena;
    return arena;
}

// Set aside whole pages of the file for other uses; return their offset, or -1.
EXPORTED int64_t ciel_arena_skip(void *opened, int64_t size) {
    Arena *arena = static_cast<Arena *>(opened);
    Lock lock;
    int64_t at = rounded(arena->used_bytes, PAGE_BYTES);
    if (!arena->grow(at + rounded(size, PAGE_BYTES)))
        return -1;
    arena->used_bytes = at + rounded(size, PAGE_BYTES);
    return arena->start + at;
}

// Allocate nothing more there. `is_final`: its memory becomes read-only. Return the offset in the
// file where the arena's blocks end.
EXPORTED int64_t ciel_arena_close(void *opened, int is_final) {
    Arena *arena = static_cast<Arena *>(opened);
    Lock lock;
    if (arena->is_open) {
        arena->clean();
        arena->is_open = false;
        if (the_pool->current == arena)
            the_pool->current = nullptr;
        close(arena->fd);
        arena->fd = -1;
        if (is_final && arena->mapped_bytes)
            mprotect(arena->base, size_t(arena->mapped_bytes), PROT_READ);
    }
    return arena->start + arena->used_bytes;
}

// Return the offset in the file of bytes in the arena, or -1 if they are elsewhere.
EXPORTED int64_t ciel_arena_place(void *opened, uint64_t address,
                                                                int64_t size) {
    Arena *arena = static_cast<Arena *>(opened);
    Lock lock;
    const uint8_t *at = reinterpret_cast<const uint8_t *>(address);
    if (at < arena->base || at + size > arena->base + arena->used_bytes)
        return -1;
    return arena->start + (at - arena->base);
}

// Let `told` be called by Py_AddPendingCall, `tell`, when an arena in an image is gone.
EXPORTED void ciel_pool_tell(void *tell, void *told) {
    Lock lock;
    the_pool->tell = reinterpret_cast<int (*)(int (*)(void *), void *)>(tell);
    the_pool->told = reinterpret_cast<int (*)(void *)>(told);
}

// Free what is left of an arena in an image if it is unmapped; return whether it is.
EXPORTED int ciel_arena_is_gone(void *opened) {
    Arena *arena = static_cast<Arena *>(opened);
    Lock lock;
    if (!arena->is_gone)
        return 0;
    free(arena->growth.handle);
    free(arena);
    return 1;
}

// Python needs the arena no longer: it is unmapped when it is closed, and its last buffer is gone.
EXPORTED void ciel_arena_let_go(void *opened) {
    Arena *arena = static_cast<Arena *>(opened);
    Lock lock;
    arena->is_held = false;
    the_pool->remove_if_over(arena);
}

} // extern "C"
