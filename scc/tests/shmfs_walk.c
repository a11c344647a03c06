/* shmfs_walk: several clients of one small image make random calls of every kind, checked against a
 * model; meanwhile, clients die at every store of a call, alone and in pairs.
 *
 *     shmfs_walk SEED STEPS CRASH_EVERY PAIRS SHARDS
 *
 * A crash experiment: client 0 dies at its n-th store within a call, for every n. Another client
 * sweeps up, or continues to work. The check must then be clean, and the state must equal the state
 * before the call or the state after it. With PAIRS the sweeper dies as well, at every store, and a
 * third client sweeps. All clients live in this process, and "death" is a jump out of the call.
 */
#include "core.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CLIENTS = 3, FILES = 64, NAMES = 10, HANDLES = 4, BLOCK = 4096, SIZE_MAX_BYTES = 6 * BLOCK };

struct file {
    bool is_committed;
    uint32_t size_bytes;
    uint8_t bytes[SIZE_MAX_BYTES];
};

struct open_file {
    struct shmfs_handle handle;
    int file; /* index in the model; -1: closed */
    bool writes;
};

/* All state that an experiment must restore, in one struct. */
struct world {
    struct shmfs *clients[CLIENTS];
    bool is_dead[64]; /* by slot */
    struct open_file open[CLIENTS][HANDLES];
    struct file files[FILES];
    int names[NAMES]; /* the file of each name, -1: none */
    uint64_t random;
};

static struct world world;
static struct shmfs_memory memory;
static uint8_t *storage[CLIENTS];
static size_t storage_bytes;
static uint64_t states;
static jmp_buf death;

static uint64_t step;
static const struct call *doing;

static void tell(void);

static void fail(const char *what, int64_t detail)
{
    printf("failed: %s (%lld)\n", what, (long long)detail);
    tell();
    fflush(stdout);
    abort();
}

static uint32_t chance(uint32_t limit)
{
    world.random = world.random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(world.random >> 33) % limit;
}

static bool is_alive(void *argument, uint32_t client, uint32_t generation)
{
    (void)argument, (void)generation;
    return !world.is_dead[client];
}

static void died(void *argument)
{
    (void)argument;
    longjmp(death, 1);
}

static void attach(int client)
{
    struct shmfs_options options = {.is_alive = is_alive, .seed = (uint32_t)client};
    int error = shmfs_attach(&world.clients[client], storage[client], storage_bytes, &memory,
                             &options);
    if (error)
        fail("attach", error);
    world.is_dead[shmfs_client_of(world.clients[client])] = false;
    for (int i = 0; i < HANDLES; i++)
        world.open[client][i].file = -1;
}

/* --- the state ------------------------------------------------------------------------------- */

static void check(const char *when)
{
    static uint8_t scratch[1 << 16] __attribute__((aligned(8)));
    struct shmfs_problem problems[4];
    int64_t count = shmfs_check(memory.control, memory.control_bytes, memory.data_bytes, scratch,
                                sizeof scratch, problems, 4);
    if (count) {
        for (int i = 0; i < count && i < 4; i++)
            printf("%s %llu %llu: %s\n", problems[i].code, (unsigned long long)problems[i].place,
                   (unsigned long long)problems[i].detail, shmfs_problem_text(problems[i].code));
        fail(when, count);
    }
}

static const char *name_text(int number)
{
    static char text[NAMES][SHMFS_NAME_MAX_BYTES + 1];
    /* short, long, and of maximal length */
    if (number == 0)
        memset(text[0], 'x', SHMFS_NAME_MAX_BYTES);
    else
        snprintf(text[number], sizeof text[number], number % 3 ? "n%d" : "a/rather-long-name-%d" + 2,
                 number);
    return text[number];
}

static uint64_t fold(uint64_t sum, const void *bytes, size_t size_bytes)
{
    for (const uint8_t *place = bytes; size_bytes--; place++)
        sum = (sum ^ *place) * 0x100000001b3u;
    return sum;
}

/* Hash the state that one client can see, in a fixed order. */
static uint64_t state_of(struct shmfs *fs)
{
    static uint8_t bytes[SIZE_MAX_BYTES];
    uint64_t sum = 0;
    for (int i = 0; i < NAMES; i++) {
        struct shmfs_info info;
        struct shmfs_handle handle;
        int error = shmfs_stat(fs, name_text(i), &info);
        if (error == SHMFS_ERROR_NOT_FOUND)
            continue;
        if (error)
            fail("stat", error);
        sum = fold(sum ^ (uint64_t)(i + 1), &info.size_bytes, sizeof info.size_bytes);
        sum = fold(sum, &info.link_count, sizeof info.link_count);
        sum = fold(sum, &info.is_committed, sizeof info.is_committed);
        sum = fold(sum, &info.tag, sizeof info.tag);
        error = shmfs_open(fs, name_text(i), &handle);
        if (error != (info.is_committed ? 0 : SHMFS_ERROR_WRITING))
            fail("open", error);
        if (error)
            continue;
        int64_t count = shmfs_read(fs, &handle, bytes, sizeof bytes, 0);
        if (count != (int64_t)info.size_bytes)
            fail("read", count);
        sum = fold(sum, bytes, (size_t)count);
        if ((error = shmfs_close(fs, &handle)))
            fail("close", error);
    }
    struct shmfs_statistics statistics;
    shmfs_statfs(fs, &statistics);
    sum = fold(sum, &statistics.free_block_count, sizeof statistics.free_block_count);
    sum = fold(sum, &statistics.free_inode_count, sizeof statistics.free_inode_count);
    return fold(sum, &statistics.free_entry_count, sizeof statistics.free_entry_count);
}

/* Compare the image with the model. */
static void compare(struct shmfs *fs)
{
    static uint8_t bytes[SIZE_MAX_BYTES];
    for (int i = 0; i < NAMES; i++) {
        struct shmfs_handle handle;
        const struct file *file = world.names[i] < 0 ? NULL : &world.files[world.names[i]];
        const int64_t number = shmfs_lookup(fs, name_text(i));
        if (file ? number <= 0 : number != SHMFS_ERROR_NOT_FOUND)
            fail("lookup", number);
        const int error = shmfs_open(fs, name_text(i), &handle);
        if (error != (!file ? SHMFS_ERROR_NOT_FOUND : !file->is_committed ? SHMFS_ERROR_WRITING
                                                                          : 0))
            fail("open", error);
        if (error)
            continue;
        if (shmfs_read(fs, &handle, bytes, sizeof bytes, 0) != file->size_bytes ||
            memcmp(bytes, file->bytes, file->size_bytes))
            fail("content", i);
        shmfs_close(fs, &handle);
    }
    uint64_t cursor = 0;
    int met = 0, known = 0;
    char text[SHMFS_NAME_MAX_BYTES + 1];
    struct shmfs_info info;
    while (shmfs_list(fs, &cursor, text, &info) == 1)
        met++;
    for (int i = 0; i < NAMES; i++)
        known += world.names[i] >= 0;
    if (met != known)
        fail("list", met);
}

/* --- one call -------------------------------------------------------------------------------- */

enum kind {
    CREATE, CREATE_NAMELESS, WRITE, COMMIT, COMMIT_AS, CLOSE, OPEN, REOPEN, LINK, UNLINK, RENAME,
    REPLACE, TRUNCATE, RESERVE, TAG, TURN, LOAD, IO, OPEN_DRAFT, KINDS
};

struct call {
    enum kind kind;
    int client, slot, name, other;
    uint32_t size_bytes, offset_bytes;
    uint8_t fill;
};

static void tell(void)
{
    if (doing)
        printf("step %llu: call %d of client %d, slot %d, names %d and %d, %u bytes at %u\n",
               (unsigned long long)step, doing->kind, doing->client, doing->slot, doing->name,
               doing->other, doing->size_bytes, doing->offset_bytes);
}

static struct call choose(void)
{
    return (struct call){
        .kind = (enum kind)chance(KINDS), .client = (int)chance(CLIENTS),
        .slot = (int)chance(HANDLES), .name = (int)chance(NAMES), .other = (int)chance(NAMES),
        .size_bytes = chance(3) ? chance(2 * BLOCK) : chance(3) * BLOCK,
        .offset_bytes = chance(3) ? 0 : chance(3 * BLOCK), .fill = (uint8_t)(1 + chance(255)),
    };
}

static int new_file(void)
{
    for (int i = 0; i < FILES; i++) {
        bool is_used = false;
        for (int n = 0; n < NAMES; n++)
            is_used |= world.names[n] == i;
        for (int c = 0; c < CLIENTS; c++)
            for (int h = 0; h < HANDLES; h++)
                is_used |= world.open[c][h].file == i;
        if (!is_used) {
            memset(&world.files[i], 0, sizeof world.files[i]);
            return i;
        }
    }
    abort();
}

static int load(struct shmfs *fs, const struct call *call)
{
    static uint8_t bytes[2 * BLOCK];
    memset(bytes, call->fill, call->size_bytes);
    int fd = memfd_create("load", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, call->size_bytes) != (ssize_t)call->size_bytes)
        abort();
    lseek(fd, 0, SEEK_SET);
    int error = shmfs_load(fs, fd, name_text(call->name));
    close(fd);
    return error;
}

/* Make a call without updating the model. Returns its error, or 1 if it cannot be made now. */
static int act(const struct call *call)
{
    static uint8_t bytes[2 * BLOCK];
    struct shmfs *fs = world.clients[call->client];
    struct open_file *open = &world.open[call->client][call->slot];
    struct shmfs_handle *handle = &open->handle;
    const char *name = name_text(call->name), *other = name_text(call->other);
    const bool wants_free = call->kind == CREATE || call->kind == CREATE_NAMELESS ||
                            call->kind == OPEN || call->kind == REOPEN ||
                            call->kind == OPEN_DRAFT;
    const bool wants_open = (call->kind >= WRITE && call->kind <= CLOSE) ||
                            (call->kind >= TRUNCATE && call->kind <= TURN);
    if ((wants_free && open->file >= 0) || (wants_open && open->file < 0))
        return 1;
    switch (call->kind) {
    case CREATE: return shmfs_create(fs, name, call->size_bytes, handle);
    case CREATE_NAMELESS: return shmfs_create(fs, NULL, call->size_bytes, handle);
    case WRITE:
        memset(bytes, call->fill, sizeof bytes);
        int64_t count = shmfs_write(fs, handle, bytes, call->size_bytes, call->offset_bytes);
        return count < 0 ? (int)count : 0;
    case COMMIT: return shmfs_commit(fs, handle, NULL);
    case COMMIT_AS: return shmfs_commit(fs, handle, name);
    case CLOSE: return shmfs_close(fs, handle);
    case OPEN: return shmfs_open(fs, name, handle);
    case REOPEN: return shmfs_reopen(fs, name, handle);
    case LINK: return shmfs_link(fs, name, other);
    case UNLINK: return shmfs_unlink(fs, name);
    case RENAME: return shmfs_rename(fs, name, other, false);
    case REPLACE: return shmfs_rename(fs, name, other, true);
    case TRUNCATE: return shmfs_truncate(fs, handle, call->size_bytes + call->offset_bytes);
    case RESERVE: return shmfs_reserve(fs, handle, call->size_bytes + call->offset_bytes);
    case TAG: return shmfs_set_tag(fs, handle, call->fill);
    case TURN: return shmfs_set_writing(fs, handle, call->fill % 2);
    case OPEN_DRAFT: return shmfs_open_draft(fs, name, handle);
    case LOAD: return load(fs, call);
    case IO: return call->fill % 2 ? shmfs_io_begin(fs, 2, 0) : shmfs_io_end(fs);
    default: return 1;
    }
}

/* Update the model after a successful call. */
static void note(const struct call *call)
{
    struct open_file *open = &world.open[call->client][call->slot];
    struct file *file = open->file >= 0 ? &world.files[open->file] : NULL;
    const uint32_t end_bytes = call->size_bytes + call->offset_bytes;
    switch (call->kind) {
    case CREATE:
    case CREATE_NAMELESS:
        open->file = new_file();
        open->writes = true;
        if (call->kind == CREATE)
            world.names[call->name] = open->file;
        break;
    case WRITE:
        memset(file->bytes + call->offset_bytes, call->fill, call->size_bytes);
        if (call->size_bytes && end_bytes > file->size_bytes)
            file->size_bytes = end_bytes;
        break;
    case COMMIT:
    case COMMIT_AS:
        file->is_committed = true;
        open->writes = false;
        if (call->kind == COMMIT_AS)
            world.names[call->name] = open->file;
        break;
    case CLOSE: open->file = -1; break;
    case TURN: open->writes = call->fill % 2; break;
    case OPEN:
    case OPEN_DRAFT:
    case REOPEN:
        open->file = world.names[call->name];
        open->writes = call->kind == REOPEN;
        break;
    case LINK: world.names[call->other] = world.names[call->name]; break;
    case UNLINK: world.names[call->name] = -1; break;
    case RENAME:
    case REPLACE:
        if (world.names[call->name] == world.names[call->other])
            break; /* the same file, or the same name */
        world.names[call->other] = world.names[call->name];
        world.names[call->name] = -1;
        break;
    case TRUNCATE:
        if (end_bytes < file->size_bytes)
            memset(file->bytes + end_bytes, 0, sizeof file->bytes - end_bytes);
        file->size_bytes = end_bytes;
        break;
    case LOAD:
        file = &world.files[world.names[call->name] = new_file()];
        file->is_committed = true;
        file->size_bytes = call->size_bytes;
        memset(file->bytes, call->fill, call->size_bytes);
        break;
    default: break;
    }
}

/* Update the model after a client died. */
static void note_death(int client)
{
    for (int i = 0; i < HANDLES; i++) {
        struct open_file *open = &world.open[client][i];
        if (open->file >= 0 && open->writes)
            for (int n = 0; n < NAMES; n++)
                if (world.names[n] == open->file)
                    world.names[n] = -1;
        open->file = -1;
    }
}

/* --- crash experiments ----------------------------------------------------------------------- */

struct snapshot {
    struct world world;
    uint8_t *bytes;
};

static size_t snapshot_bytes(void)
{
    return memory.control_bytes + memory.data_bytes + CLIENTS * storage_bytes;
}

static void save(struct snapshot *snapshot)
{
    uint8_t *to = snapshot->bytes;
    snapshot->world = world;
    memcpy(to, memory.control, memory.control_bytes), to += memory.control_bytes;
    memcpy(to, memory.data, memory.data_bytes), to += memory.data_bytes;
    for (int i = 0; i < CLIENTS; i++)
        memcpy(to, storage[i], storage_bytes), to += storage_bytes;
}

static void restore(const struct snapshot *snapshot)
{
    const uint8_t *from = snapshot->bytes;
    world = snapshot->world;
    memcpy(memory.control, from, memory.control_bytes), from += memory.control_bytes;
    memcpy(memory.data, from, memory.data_bytes), from += memory.data_bytes;
    for (int i = 0; i < CLIENTS; i++)
        memcpy(storage[i], from, storage_bytes), from += storage_bytes;
}

static void clean_up(int client)
{
    port_drop(&world.clients[client]->port);
    world.is_dead[shmfs_client_of(world.clients[client])] = true;
}

/* Return the state after all clients but the last have died and been swept. */
static uint64_t settled(void)
{
    int count = shmfs_sweep(world.clients[CLIENTS - 1]);
    if (count < 0)
        fail("sweep", count);
    states++;
    check("after a sweep");
    return state_of(world.clients[CLIENTS - 1]);
}

static uint64_t now;

/* Let a client make a call and die at its n-th store. Returns false if the call ended before. */
static bool dies(int client, uint64_t n, const struct call *call)
{
    struct port *port = &world.clients[client]->port;
    port->stores = 0;
    port->dies_at = n;
    port->died = died;
    if (!setjmp(death)) {
        if (call)
            act(call);
        else
            shmfs_sweep(world.clients[client]);
        port->dies_at = 0;
        clean_up(client);
        return false;
    }
    port->dies_at = 0;
    clean_up(client);
    return true;
}

static void experiment(const struct call *call, bool pairs)
{
    static struct snapshot start, middle;
    if (!start.bytes) {
        start.bytes = malloc(snapshot_bytes());
        middle.bytes = malloc(snapshot_bytes());
        if (!start.bytes || !middle.bytes)
            abort();
    }
    save(&start);
    clean_up(call->client);
    const uint64_t before = settled();
    restore(&start);
    dies(call->client, 0, call);
    const uint64_t after = settled();
    for (uint64_t n = 1;; n++) {
        restore(&start);
        const bool has_died = dies(call->client, n, call);
        save(&middle);
        now = settled();
        if (now != before && now != after)
            fail("the state is neither the old nor the new one", (int64_t)n);
        for (uint64_t m = 1; pairs; m++) {
            restore(&middle);
            const int other = call->client == 1 ? 0 : 1;
            const bool too = dies(other, m, NULL);
            now = settled();
            (void)now; /* the second client's files may be gone too: only the check counts */
            if (!too)
                break;
        }
        if (!has_died)
            break;
    }
    restore(&start);
}

/* --- the walk -------------------------------------------------------------------------------- */

static void set_up(uint32_t shards)
{
    struct shmfs_geometry geometry = {
        .block_bytes = BLOCK, .block_count = shards > 1 ? 96 : 16, .inode_count = 12,
        .entry_count = 8, .client_count = CLIENTS, .handle_count = 6, .shard_count = shards,
    };
    if (shmfs_sizes(&geometry, &memory.control_bytes, &memory.data_bytes))
        abort();
    const int flags = MAP_SHARED | MAP_ANONYMOUS, rights = PROT_READ | PROT_WRITE;
    memory.control = mmap(NULL, memory.control_bytes, rights, flags, -1, 0);
    memory.data = mmap(NULL, memory.data_bytes, rights, flags, -1, 0);
    memory.control_fd = -1;
    int error = shmfs_format(&memory, &geometry);
    if (error)
        fail("format", error);
    storage_bytes = (shmfs_size() + 63) / 64 * 64;
#ifdef PORT_STRICT
    port_keeps_lines = true;
#endif
    for (int i = 0; i < NAMES; i++)
        world.names[i] = -1;
    for (int i = 0; i < CLIENTS; i++) {
        storage[i] = memset(aligned_alloc(64, storage_bytes), 0, storage_bytes);
        attach(i);
    }
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    const uint64_t seed = strtoull(argv[1], NULL, 10), steps = strtoull(argv[2], NULL, 10);
    const uint64_t crash_every = strtoull(argv[3], NULL, 10);
    const bool pairs = atoi(argv[4]);
    set_up((uint32_t)atoi(argv[5]));
    world.random = seed * 0x9e3779b97f4a7c15u + 1;
    uint64_t done = 0;
    for (; step < steps; step++) {
        const struct call call = choose();
        doing = &call;
        if (crash_every && step % crash_every == 0 && call.client != CLIENTS - 1)
            experiment(&call, pairs);
        const int error = act(&call);
        if (error == SHMFS_ERROR_CORRUPT || error == SHMFS_ERROR_BUSY)
            fail("a call", error);
        if (!error) {
            note(&call);
            done++;
        }
        check("after a call");
        if (step % 5 == 0)
            compare(world.clients[chance(CLIENTS)]);
        if (chance(40) == 0) { /* a client dies between two calls, and returns */
            const int client = (int)chance(CLIENTS);
            clean_up(client);
            note_death(client);
            if (chance(2))
                shmfs_sweep(world.clients[(client + 1) % CLIENTS]);
            attach(client); /* there is no other slot: it replaces the dead client */
        }
        if (chance(60) == 0) {
            const int client = (int)chance(CLIENTS);
            shmfs_detach(world.clients[client]);
            note_death(client);
            attach(client);
        }
    }
    printf("%llu calls done, %llu crash states\n", (unsigned long long)done,
           (unsigned long long)states);
    return 0;
}
