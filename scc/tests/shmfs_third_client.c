/* shmfs_third_client: locks whose owner is stopped; and clients that die in the middle of a call,
 * while a second client cleans up after them and a third client works.
 */
#include "shmfs_watch.h"

#include <fcntl.h>
#include <unistd.h>

/* Make every call while another client holds a lock: it changes nothing, or did not need the
 * lock. */
static int busy_calls(struct shmfs *fs, struct shmfs_handle *own)
{
    struct shmfs_handle file;
    struct shmfs_info info;
    char name[SHMFS_NAME_MAX_BYTES + 1];
    uint64_t cursor = 0;
    const int64_t results[] = {
        shmfs_create(fs, "new", BLOCK, &file), shmfs_open(fs, "a", &file), shmfs_lookup(fs, "a"),
        shmfs_stat(fs, "a", &info), shmfs_stat_handle(fs, own, &info), shmfs_link(fs, "a", "new"),
        shmfs_unlink(fs, "a"), shmfs_rename(fs, "a", "b", true), shmfs_commit(fs, own, "new"),
        shmfs_commit(fs, own, NULL), shmfs_write(fs, own, content, 4 * BLOCK, 0),
        shmfs_reserve(fs, own, 4 * BLOCK), shmfs_truncate(fs, own, 0), shmfs_set_tag(fs, own, 1),
        shmfs_list(fs, &cursor, name, &info), shmfs_io_begin(fs, 0, 0), shmfs_close(fs, own),
    };
    int count = 0;
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        count += results[i] == SHMFS_ERROR_BUSY;
    return count;
}

static void stopped(uint32_t shards, enum lock_kind kind, uint32_t shard)
{
    patience_ms = 1;
    struct shmfs *fs = start((struct shmfs_geometry){
        .block_count = 128, .inode_count = 4, .entry_count = 4, .handle_count = 4,
        .shard_count = shards});
    struct shmfs_handle own;
    make_file(fs, "a", BLOCK);
    make_file(fs, "b", BLOCK);
    IS(shmfs_create(fs, NULL, BLOCK, &own), 0);
    IS(shmfs_write(fs, &own, content, 2 * BLOCK + 1, 0), 2 * BLOCK + 1);
    IS(lock_take(clients[1], kind, bit(shard)), 0);
    const int count = busy_calls(fs, &own);
    /* the number of calls that need a lock of this kind */
    static const int wanted[LOCK_KINDS] = {1, PORT_COHERENT ? 7 : 9, 14, 3};
    if (shards == 1)
        IS(count, wanted[kind]);
    is_dead[2] = true;
    const int swept = shmfs_sweep(fs);
    IS(swept == 1 || swept == SHMFS_ERROR_BUSY, true);
    lock_drop_all(clients[1]);
    is_dead[2] = false;
    is_dead[0] = true;
    IS(shmfs_sweep(clients[3]) >= 0, true);
    check();
    end();
}

static struct shmfs *third;
static int asked, acts_at;

/* Let another client work in the middle of a call. */
static void look_on(void)
{
    struct shmfs_handle file;
    if (++asked != acts_at)
        return;
    meanwhile = NULL;
    shmfs_io_begin(third, 0, 0);
    shmfs_io_end(third);
    if (!shmfs_create(third, "third", 4 * BLOCK, &file)) {
        shmfs_write(third, &file, content, 3 * BLOCK, 0);
        shmfs_close(third, &file);
    }
    shmfs_unlink(third, "third");
    meanwhile = look_on;
}

static void jump(void *argument)
{
    __builtin_longjmp(argument, 1);
}

/* A client dies with open files and a disk job; a second dies at its n-th store while it sweeps up;
 * a third sweeps up, and a fourth works in between. Returns false if the second finished before
 * that. */
static bool chain_of_deaths(uint64_t store, int act)
{
    static void *here[5];
    patience_ms = 0;
    volatile bool was_done = false;
    struct shmfs *fs = start((struct shmfs_geometry){
        .block_count = 16, .inode_count = 6, .entry_count = 6, .handle_count = 4});
    struct shmfs_handle file;
    struct shmfs_statistics statistics;
    make_file(fs, "whole", BLOCK);
    IS(shmfs_open(fs, "whole", &file), 0);
    IS(shmfs_create(fs, "half", 2 * BLOCK, &file), 0);
    IS(shmfs_statfs(clients[3], &statistics), 0);
    IS(statistics.io_count, 0);
    IS(shmfs_io_begin(fs, 0, 0), 0);
    IS(shmfs_statfs(clients[3], &statistics), 0);
    IS(statistics.io_count, 1);
    port_drop(&fs->port);
    is_dead[0] = true;
    clients[1]->port.died = jump;
    clients[1]->port.died_argument = here;
    clients[1]->port.stores = 0;
    clients[1]->port.dies_at = store;
    if (!__builtin_setjmp(here)) {
        IS(shmfs_sweep(clients[1]), 1);
        was_done = true;
    }
    clients[1]->port.dies_at = 0;
    port_drop(&clients[1]->port);
    is_dead[1] = true;
    third = clients[3];
    third->options.lock_timeout_ms = 1; /* the asking client may hold a lock */
    asked = 0;
    acts_at = act;
    meanwhile = look_on;
    IS(shmfs_sweep(clients[2]) >= 1, true);
    meanwhile = NULL;
    check();
    IS(shmfs_lookup(clients[2], "half"), SHMFS_ERROR_NOT_FOUND);
    IS(shmfs_lookup(clients[2], "whole") > 0, true);
    for (int i = 2; i < CLIENTS; i++)
        shmfs_detach(clients[i]);
    munmap(memory.control, memory.control_bytes);
    munmap(memory.data, memory.data_bytes);
    return !was_done;
}

/* A client dies while it frees a file with so many runs that this takes several transactions. */
static bool dies_freeing(uint64_t store)
{
    static void *here[5];
    volatile bool was_done = false;
    patience_ms = 0;
    struct shmfs *fs = start((struct shmfs_geometry){
        .block_count = 256, .inode_count = 260, .entry_count = 260, .handle_count = 4});
    struct shmfs_handle file;
    struct shmfs_statistics statistics;
    make_every_second_block(fs);
    IS(shmfs_create(fs, "rows", 100 * BLOCK, &file), 0);
    IS(shmfs_unlink(fs, "rows"), 0);
    fs->port.died = jump;
    fs->port.died_argument = here;
    fs->port.stores = 0;
    fs->port.dies_at = store;
    if (!__builtin_setjmp(here)) {
        IS(shmfs_close(fs, &file), 0);
        was_done = true;
    }
    fs->port.dies_at = 0;
    port_drop(&fs->port);
    is_dead[0] = true;
    IS(shmfs_sweep(clients[1]), 1);
    check();
    IS(shmfs_statfs(clients[1], &statistics), 0);
    IS(statistics.free_block_count, 128);
    for (int i = 1; i < CLIENTS; i++)
        shmfs_detach(clients[i]);
    munmap(memory.control, memory.control_bytes);
    munmap(memory.data, memory.data_bytes);
    return !was_done;
}

static void free_at_last(void)
{
    IS(shmfs_sweep(clients[1]), 1);
}

static struct shmfs_handle next; /* another file that gets its inode number */

static void free_and_take(void)
{
    free_at_last();
    IS(shmfs_create(clients[1], NULL, 0, &next), 0);
}

/* A file is freed in several transactions. In between another client takes its lock and stops, or
 * frees the rest of the file and gets its inode number for a new one. */
static void freed_in_pieces(bool by_name)
{
    static void (*const acts[])(void) = {take_inodes, free_at_last, free_and_take};
    struct shmfs_handle file;
    patience_ms = 1;
    struct shmfs *fs = every_second_block();
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        IS(shmfs_create(fs, by_name ? "rows" : NULL, 100 * BLOCK, &file), 0);
        const uint32_t number = file.inode;
        IS(by_name ? shmfs_close(fs, &file) : 0, 0);
        is_dead[2] = i > 0; /* so that a sweep finds a dead client */
        between(fs, acts[i]);
        IS(by_name ? shmfs_unlink(fs, "rows") : shmfs_close(fs, &file), 0);
        IS(fs->port.dies_at, 0); /* the act was called */
        IS(fs->has_orphans, i == 0);
        IS(free_blocks(fs), i ? 128 : 128 - 100 + RUN_LIMIT);
        if (i == 2) {
            IS(next.inode, number);
            IS(shmfs_close(clients[1], &next), 0);
        }
        if (!i) {
            IS(shmfs_sweep(fs), SHMFS_ERROR_BUSY);
            lock_drop_all(clients[1]);
            IS(shmfs_sweep(fs), 0);
            IS(fs->has_orphans, false);
        } else {
            attach(2);
        }
        IS(free_blocks(fs), 128);
        check();
    }
    end();
}

/* Creating a file takes several transactions, and its lock is available neither to continue nor to
 * undo it: the next sweep frees it. */
static void made_in_pieces(void)
{
    struct shmfs_handle file;
    patience_ms = 1;
    struct shmfs *fs = every_second_block();
    between(fs, take_inodes);
    IS(shmfs_create(fs, "rows", 100 * BLOCK, &file), SHMFS_ERROR_BUSY);
    IS(fs->lost_count, 1);
    IS(shmfs_close(fs, &file), SHMFS_ERROR_STALE);
    IS(shmfs_sweep(fs), SHMFS_ERROR_BUSY);
    lock_drop_all(clients[1]);
    IS(shmfs_sweep(fs), 0);
    IS(fs->lost_count, 0);
    IS(shmfs_lookup(fs, "rows"), SHMFS_ERROR_NOT_FOUND);
    IS(free_blocks(fs), 128);
    end();
}

/* A dead client's lock cannot be taken while its transaction cannot be completed. */
static void recovery_stopped(void)
{
    patience_ms = 1;
    struct shmfs *fs = start((struct shmfs_geometry){.block_count = 4, .inode_count = 4,
                                                     .entry_count = 4, .handle_count = 4});
    struct image_lock *locks = (struct image_lock *)(fs->control + fs->shape.locks);
    struct shmfs_handle file;
    IS(lock_take(clients[2], LOCK_INODES, 1), 0);
    is_dead[2] = true;
    port_register_store(&fs->port, &locks[1].owner, clients[1]->owner);
    IS(shmfs_create(fs, NULL, 0, &file), SHMFS_ERROR_BUSY);
    IS(shmfs_sweep(fs), SHMFS_ERROR_BUSY);
    is_dead[1] = true;
    IS(shmfs_create(fs, NULL, 0, &file), 0);
    IS(shmfs_sweep(fs), 2);
    attach(1);
    attach(2);
    end();
}

/* Log records that a client has discarded must not come out of its cache later and overwrite the
 * records of the slot's next client. Returns false if that client finished before its n-th
 * store. */
static bool late_lines(uint64_t store, uint32_t notes)
{
    static void *here[5];
    static struct port old;
    volatile bool was_done = false;
    patience_ms = 0;
    struct shmfs *fs = start((struct shmfs_geometry){
        .block_count = 16, .inode_count = 6, .entry_count = 6, .handle_count = 4});
    uint8_t *const mine = storage[0], *const next = new_storage();
    make_file(fs, "a", 1);
    for (uint32_t i = 0; i < notes; i++)
        log_set32(fs, &handle_at(fs, 0, 3)->flags, i);
    log_discard(fs);
    shmfs_detach(fs);
    old = fs->port;
    storage[0] = next;
    attach(0);
    clients[0]->port.died = jump;
    clients[0]->port.died_argument = here;
    clients[0]->port.dies_at = store;
    if (!__builtin_setjmp(here)) {
        IS(shmfs_rename(clients[0], "a", "b", false), 0);
        was_done = true;
    }
    clients[0]->port.dies_at = 0;
    port_drop(&old);
    port_drop(&clients[0]->port);
    is_dead[0] = true;
    IS(shmfs_sweep(clients[1]), 1);
    check();
    IS((shmfs_lookup(clients[1], "a") > 0) + (shmfs_lookup(clients[1], "b") > 0), 1);
    for (int i = 1; i < CLIENTS; i++)
        shmfs_detach(clients[i]);
    munmap(memory.control, memory.control_bytes);
    munmap(memory.data, memory.data_bytes);
    storage[0] = mine;
    free(next);
    return !was_done;
}

/* Locks on the control file show which clients are alive. */
static void signed_places(void)
{
    struct shmfs_geometry geometry = {.block_bytes = BLOCK, .block_count = 4, .inode_count = 4,
                                      .entry_count = 4, .client_count = 2, .handle_count = 4};
    struct shmfs *fs[3];
    struct shmfs_handle file;
    char path[64];
    IS(shmfs_sizes(&geometry, &memory.control_bytes, &memory.data_bytes), 0);
    const int fd = memfd_create("control", MFD_CLOEXEC);
    IS(ftruncate(fd, (off_t)memory.control_bytes), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    memory.control = mmap(NULL, memory.control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memory.data = mmap(NULL, memory.data_bytes, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    IS(shmfs_format(&memory, &geometry), 0);
    memory.control_fd = 1 << 20;
    IS(shmfs_attach(&fs[0], storage[0], shmfs_size(), &memory, NULL), SHMFS_ERROR_SYSTEM);
    for (int i = 0; i < 2; i++) {
        memory.control_fd = open(path, O_RDWR | O_CLOEXEC);
        IS(shmfs_attach(&fs[i], storage[i], shmfs_size(), &memory, NULL), 0);
    }
    IS(shmfs_create(fs[1], "half", BLOCK, &file), 0);
    IS(lock_take(fs[1], LOCK_INODES, 1), 0);
    memory.control_fd = open(path, O_RDWR | O_CLOEXEC);
    IS(shmfs_attach(&fs[2], storage[2], shmfs_size(), &memory, NULL), SHMFS_ERROR_NO_CLIENTS);
    port_drop(&fs[1]->port);
    close(fs[1]->memory.control_fd); /* so it counts as dead */
    IS(shmfs_attach(&fs[2], storage[2], shmfs_size(), &memory, NULL), 0);
    IS(shmfs_lookup(fs[2], "half"), SHMFS_ERROR_NOT_FOUND);
    IS(shmfs_sweep(fs[0]), 0);
    shmfs_detach(fs[2]);
    shmfs_detach(fs[0]);
    close(fs[0]->memory.control_fd);
    close(memory.control_fd);
    close(fd);
    check();
}

static void disk_jobs(void)
{
    struct shmfs *fs = start((struct shmfs_geometry){.block_count = 4, .inode_count = 4,
                                                     .entry_count = 4, .handle_count = 4});
    IS(shmfs_io_end(fs), SHMFS_ERROR_ARGUMENT);
    IS(shmfs_io_begin(clients[1], 1, 0), 0);
    IS(shmfs_io_begin(fs, 1, 0), SHMFS_ERROR_LIMIT);
    IS(shmfs_io_begin(fs, 1, 1), SHMFS_ERROR_LIMIT);
    is_dead[1] = true;
    IS(shmfs_io_begin(fs, 1, -1), 0); /* a dead client rings no bell */
    IS(shmfs_io_end(fs), 0);
    attach(1);
    end();
}

int main(void)
{
    alarm(300); /* ends an endless loop */
    fill_content();
    for (uint32_t shards = 1; shards <= 4; shards *= 2) {
        stopped(shards, LOCK_STATISTICS, 0);
        for (enum lock_kind kind = LOCK_DIRECTORY; kind < LOCK_KINDS; kind++)
            for (uint32_t shard = 0; shard < shards; shard++)
                stopped(shards, kind, shard);
    }
    int deaths = 0;
    for (int act = 0; act < 8; act++)
        for (uint64_t store = 1; chain_of_deaths(store, act); store++)
            deaths++;
    for (uint64_t store = 1; late_lines(store, 90 + store % 16); store++) /* the late lines vary */
        deaths++;
    for (uint64_t store = 1; dies_freeing(store); store += 37)
        deaths++;
    freed_in_pieces(false);
    freed_in_pieces(true);
    made_in_pieces();
    recovery_stopped();
    signed_places();
    disk_jobs();
    printf("%d chains of deaths\n", deaths);
    return 0;
}
