/* shmfs_races: at each store of a call, another client acts between a check and a lock, closes
 * handles that are being closed, changes names that are being looked up, or ends a wait.
 */
#include "shmfs_watch.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

/* --- between a check and a lock -------------------------------------------------------------- */

static struct shmfs_handle mine, theirs;
static int met[2]; /* how often a listing returned "a", and "b" */

/* Return the n-th of a series of names in a group, or in a bucket if there is only one group. */
static const char *text_in(struct shmfs *fs, uint32_t group, uint32_t bucket, int n)
{
    static char text[16];
    struct name name;
    for (uint32_t i = 0; n >= 0; i++) {
        snprintf(text, sizeof text, "in %u", i);
        IS(name_read(fs, text, &name), 0);
        n -= name.group == group && (bucket == UINT32_MAX || name.bucket == bucket);
    }
    return text;
}

static void create_theirs(void)
{
    acted = shmfs_create(clients[1], NULL, 0, &theirs);
}

static void close_theirs(void)
{
    acted = shmfs_close(clients[1], &theirs);
}

static void create_named(void)
{
    acted = shmfs_create(clients[1], "theirs", 0, &theirs);
}

/* The client has a file with all blocks of one shard, and takes blocks of the second shard. */
static void reserve_more(void)
{
    acted = shmfs_reserve(clients[2], &theirs, 52 * BLOCK);
}

static void commit_theirs(void)
{
    acted = shmfs_commit(clients[1], &theirs, "new");
}

static void commit_draft(void)
{
    acted = shmfs_commit(clients[1], &theirs, NULL);
}

static void unlink_a(void)
{
    acted = shmfs_unlink(clients[1], "a");
}

/* Afterwards its inode number belongs to another file. */
static void replace_a(void)
{
    unlink_a();
    if (!acted)
        IS(shmfs_create(clients[1], NULL, 0, &theirs), 0);
}

static void replace_half(void)
{
    acted = shmfs_rename(clients[1], "a", "half", true);
}

enum race {
    LAST_INODE, NO_INODE, LAST_ENTRY, LAST_ROW, LAST_BLOCKS, ONE_NAME, DRAFT, OPEN, LIST, SWEEP, RACES
};

static void set_up(enum race race, struct shmfs *fs)
{
    struct shmfs_handle file;
    for (int i = 0; i < 3 && race <= NO_INODE; i++)
        IS(shmfs_create(fs, NULL, 0, &file), 0);
    for (int i = 0; i < 3 && race == LAST_ENTRY; i++) /* the last is in the second shard */
        make_file(fs, text_in(fs, 0, UINT32_MAX, i), 0);
    if (race >= OPEN)
        make_file(fs, "a", 1);
    for (int i = 0; i < 2 && race == LIST; i++)
        IS(shmfs_link(fs, "a", i ? "b" : "c"), 0);
    if (race == LAST_BLOCKS || race == ONE_NAME)
        IS(shmfs_create(fs, NULL, 0, &mine), 0);
    if (race == LAST_ROW || race == LAST_BLOCKS)
        IS(shmfs_create(clients[2], NULL, 32 * BLOCK, &theirs), 0);
    if (race == NO_INODE || race == ONE_NAME)
        IS(shmfs_create(clients[1], NULL, 0, &theirs), 0);
    if (race == ONE_NAME)
        IS(shmfs_write(fs, &mine, content, 1, 0), 1);
    if (race == DRAFT) { /* both free their reserved blocks */
        IS(shmfs_create(fs, "a", 4 * BLOCK, &mine), 0);
        IS(shmfs_write(fs, &mine, content, 1, 0), 1);
        IS(shmfs_set_writing(fs, &mine, false), 0);
        IS(shmfs_open_draft(clients[1], "a", &theirs), 0);
    }
    if (race == SWEEP) {
        IS(shmfs_create(clients[2], "half", BLOCK, &file), 0);
        port_drop(&clients[2]->port);
        is_dead[2] = true;
    }
}

static int64_t call(enum race race, struct shmfs *fs)
{
    char name[SHMFS_NAME_MAX_BYTES + 1];
    uint64_t cursor = 0;
    struct shmfs_info info;
    switch (race) {
    case LAST_INODE:
    case NO_INODE: return shmfs_create(fs, NULL, 0, &mine);
    case LAST_ENTRY: return shmfs_create(fs, text_in(fs, 1, UINT32_MAX, 0), 0, &mine);
    case LAST_ROW: return shmfs_create(fs, NULL, 20 * BLOCK, &mine);
    case LAST_BLOCKS: return shmfs_reserve(fs, &mine, 20 * BLOCK);
    case ONE_NAME: return shmfs_commit(fs, &mine, "new");
    case DRAFT: return shmfs_commit(fs, &mine, NULL);
    case OPEN: return shmfs_open(fs, "a", &mine);
    case SWEEP: return shmfs_sweep(fs);
    default: break;
    }
    met[0] = met[1] = 0;
    while (shmfs_list(fs, &cursor, name, &info) == 1)
        met[0] += !strcmp(name, "a"), met[1] += !strcmp(name, "b");
    return 0;
}

/* Another client acts right before the n-th store of a call. Returns false if the call ended
 * before. */
static bool gets_between(enum race race, uint64_t store)
{
    static const struct { void (*act)(void); int lost; } sides[RACES] = {
        {create_theirs, SHMFS_ERROR_NO_INODES}, {close_theirs, SHMFS_ERROR_NO_INODES},
        {create_named, SHMFS_ERROR_NO_ENTRIES}, {reserve_more, SHMFS_ERROR_NO_BLOCKS},
        {reserve_more, SHMFS_ERROR_NO_BLOCKS}, {commit_theirs, SHMFS_ERROR_EXISTS},
        {commit_draft, SHMFS_ERROR_COMMITTED}, {replace_a, SHMFS_ERROR_NOT_FOUND}, {unlink_a, 0}, {replace_half, 0},
    };
    struct shmfs_info info;
    patience_ms = 1;
    const bool has_shards = race >= LAST_ENTRY && race <= LAST_BLOCKS;
    struct shmfs *fs = start((struct shmfs_geometry){
        .block_count = has_shards ? 64 : 8, .inode_count = has_shards ? 8 : 4, .entry_count = 4,
        .handle_count = 8, .shard_count = has_shards ? 2 : 1});
    set_up(race, fs);
    before_store(fs, store, sides[race].act);
    const int64_t result = call(race, fs);
    const bool has_acted = acted != 1;
    stop_watching(fs);
    IS(!has_acted || !acted || acted == SHMFS_ERROR_BUSY || acted == sides[race].lost, true);
    if (race == NO_INODE) {
        IS(!result || result == SHMFS_ERROR_NO_INODES, true);
        IS(result && store == 1, false); /* an inode that was free before the first lock is found */
    } else if (race == LIST) {
        IS(met[1], 1); /* a name that stays is listed exactly once */
        IS(met[0] == 1 || (!met[0] && !acted), true);
        IS(store == 1 && met[0], false); /* it was removed before the lock was taken */
    } else if (race == SWEEP) {
        IS(result, 1);
        IS(shmfs_lookup(fs, acted ? "a" : "half") > 0, true);
        IS(shmfs_lookup(fs, acted ? "half" : "a"), SHMFS_ERROR_NOT_FOUND);
        IS(free_blocks(fs), 7);
        attach(2);
    } else { /* the first client wins, and the second gets the error */
        IS(result, acted ? 0 : sides[race].lost);
    }
    if (race == ONE_NAME) {
        IS(shmfs_stat(clients[3], "new", &info), 0);
        IS(info.size_bytes, acted ? 1 : 0);
    }
    end();
    return has_acted;
}

/* A lock is released, and taken before a waiting client gets it: before the waiter sleeps, and
 * after. */
static void drop_inodes(void)
{
    lock_drop_all(clients[1]);
}

static void steal(void *argument)
{
    const uint64_t store = ((struct shmfs *)argument)->port.stores;
    if (store == 2)
        drop_inodes();
    if (store == 3 || store == 5)
        IS(lock_take(clients[1], LOCK_INODES, 1), 0);
}

static void stolen_lock(void)
{
    struct shmfs_handle file;
    struct shmfs_statistics statistics;
    patience_ms = 0;
    struct shmfs *fs = small(8);
    take_inodes();
    watch(fs, 1, steal);
    meanwhile = drop_inodes;
    IS(shmfs_create(fs, NULL, 0, &file), 0);
    meanwhile = NULL;
    IS(fs->port.stores > 7, true);
    stop_watching(fs);
    IS(shmfs_statfs(fs, &statistics), 0);
    IS(statistics.lock_wait_count, 1);
    end();
}

static void detach_one(void)
{
    meanwhile = NULL;
    shmfs_detach(clients[1]);
    is_dead[1] = true;
}

/* A client that detaches while another checks whether it is alive is not swept. */
static void detached_meanwhile(void)
{
    patience_ms = 0;
    struct shmfs *fs = small(8);
    meanwhile = detach_one;
    IS(shmfs_sweep(fs), 0);
    IS(is_dead[1], true);
    attach(1);
    end();
}

static void jump(void *argument)
{
    __builtin_longjmp(argument, 1);
}

/* Run a call until its n-th store. Returns false if it ended before. */
static bool runs_until(struct shmfs *fs, uint64_t store, int64_t (*what)(struct shmfs *))
{
    static void *here[5];
    watch(fs, store, jump);
    fs->port.died_argument = here;
    if (!__builtin_setjmp(here)) {
        IS(what(fs), 0);
        stop_watching(fs);
        return false;
    }
    stop_watching(fs);
    return true;
}

static int64_t rename_a(struct shmfs *fs)
{
    return shmfs_rename(fs, "a", "b", false);
}

static int64_t close_mine(struct shmfs *fs)
{
    return shmfs_close(fs, &mine);
}

/* Names are looked up while a client is stopped in the middle of a rename; then that client
 * dies. */
static bool stopped_renaming(uint64_t store)
{
    struct shmfs_handle file;
    patience_ms = 1;
    struct shmfs *fs = small(8);
    make_file(fs, "a", 1);
    const int64_t number = shmfs_lookup(fs, "a");
    const bool is_stopped = runs_until(clients[1], store, rename_a);
    for (int i = 0; i < 2; i++) {
        const int64_t found = shmfs_lookup(fs, i ? "b" : "a");
        const int error = shmfs_open(fs, i ? "b" : "a", &file);
        IS(found == number || found == SHMFS_ERROR_NOT_FOUND || found == SHMFS_ERROR_BUSY, true);
        IS(error, found == number ? 0 : found);
    }
    port_drop(&clients[1]->port);
    is_dead[1] = true;
    const int64_t a = shmfs_lookup(fs, "a"), b = shmfs_lookup(fs, "b");
    IS(a == number ? b : a, SHMFS_ERROR_NOT_FOUND);
    IS(a == number ? a : b, number);
    IS(shmfs_sweep(fs), 1);
    attach(1);
    end();
    return is_stopped;
}

/* A client that closes a handle of a dead client finds it closed, if the dead client had closed it,
 * or another client had, before it died: taking its lock applies its log. The name of a file that
 * its owner has closed stays. */
static bool closed_twice(bool by_other, uint64_t store)
{
    patience_ms = 0;
    struct shmfs *fs = small(8);
    IS(shmfs_create(fs, "half", BLOCK, &mine), 0);
    const uint32_t slot = mine.slot;
    const bool has_died = runs_until(fs, store, close_mine);
    port_drop(&fs->port);
    is_dead[0] = true;
    const bool is_closed = /* or will be, once the log is applied */
        port_look32(&clients[2]->port, &client_at(fs, 0)->log_count) ||
        !port_look32(&clients[2]->port, &handle_at(fs, 0, slot)->inode);
    if (by_other && has_died) {
        static void *here[5];
        watch(clients[1], store, jump);
        clients[1]->port.died_argument = here;
        if (!__builtin_setjmp(here))
            handle_close(clients[1], 0, slot, true);
        stop_watching(clients[1]);
        port_drop(&clients[1]->port);
        is_dead[1] = true;
    }
    if (port_load32(&clients[2]->port, &handle_at(clients[2], 0, slot)->inode))
        IS(handle_close(clients[2], 0, slot, true), 0);
    IS(port_load32(&clients[2]->port, &handle_at(clients[2], 0, slot)->inode), 0);
    IS(shmfs_sweep(clients[2]) >= 1, true);
    check();
    IS(shmfs_lookup(clients[2], "half") > 0, is_closed);
    IS(free_blocks(clients[2]), is_closed ? 7 : 8);
    IS(has_died || is_closed, true);
    attach(0);
    if (is_dead[1])
        attach(1);
    end();
    return has_died;
}

static void rename_once(int signal)
{
    static bool is_b;
    (void)signal;
    IS(shmfs_rename(clients[1], is_b ? "b" : "a", is_b ? "a" : "b", false), 0);
    is_b = !is_b;
}

/* Look a name up without a lock while other names change: a name that stays is always found, though
 * its chain leads over entries that come and go. A signal interrupts the lookup. */
static void look_while_renamed(void)
{
    const struct sigaction action = {.sa_handler = rename_once};
    const struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    patience_ms = 0;
    struct shmfs *fs = small(8);
    struct name name;
    IS(name_read(fs, "a", &name), 0);
    const char *const text = text_in(fs, 0, name.bucket, 0);
    make_file(fs, text, 1);
    make_file(fs, "a", 1);
    const int64_t stays = shmfs_lookup(fs, text), moves = shmfs_lookup(fs, "a");
    IS(sigaction(SIGALRM, &action, NULL), 0);
    IS(setitimer(ITIMER_REAL, &often, NULL), 0);
    const uint64_t end_us = port_now_us() + 50000;
    while (port_now_us() < end_us)
        for (int i = 0; i < 100; i++) {
            IS(shmfs_lookup(fs, text), stays);
            const int64_t found = shmfs_lookup(fs, "b");
            IS(found == moves || found == SHMFS_ERROR_NOT_FOUND, true);
        }
    IS(setitimer(ITIMER_REAL, &never, NULL), 0);
    signal(SIGALRM, SIG_DFL);
    alarm(300);
    end();
}

static void *end_io_soon(void *argument)
{
    (void)argument;
    usleep(5000);
    IS(shmfs_io_end(clients[1]), 0);
    return NULL;
}

/* The end of a disk job wakes the waiting client. */
static void woken(void)
{
    uint32_t bell = 1;
    pthread_t thread;
    patience_ms = 0;
    struct shmfs *fs = small(8);
    IS(port_wait(&bell, 0, -1), true); /* the bell has rung already */
    IS(shmfs_io_begin(clients[1], 1, 0), 0);
    IS(pthread_create(&thread, NULL, end_io_soon, NULL), 0);
    IS(shmfs_io_begin(fs, 1, INT64_MAX), 0);
    IS(pthread_join(thread, NULL), 0);
    IS(shmfs_io_end(fs), 0);
    end();
}

int main(void)
{
    alarm(300); /* ends an endless loop */
    fill_content();
    int count = 0;
    for (enum race race = 0; race < RACES; race++)
        for (uint64_t store = 1; gets_between(race, store); store++)
            count++;
    stolen_lock();
    detached_meanwhile();
    for (uint64_t store = 1; stopped_renaming(store); store += 5)
        count++;
    for (int by_other = 0; by_other < 2; by_other++)
        for (uint64_t store = 1; closed_twice(by_other, store); store++)
            count++;
    if (PORT_COHERENT)
        look_while_renamed();
    woken();
    printf("another client acted %d times in the middle of a call\n", count);
    return 0;
}
