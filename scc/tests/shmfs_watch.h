/* shmfs_watch.h: lets another client act when a first one stores something. The port that counts
 * stores calls a function, which returns.
 */
#ifndef SCC_SHMFS_WATCH_H
#define SCC_SHMFS_WATCH_H

#include "shmfs_rig.h"

static void (*act)(void); /* the action of the second client */
static int64_t acted;     /* and its result */
static bool had;          /* whether the watched client has held an inode lock */

/* Return the lock of a kind, if there is one shard. */
static inline struct image_lock *lock(enum lock_kind kind)
{
    struct image_lock *locks =
        (struct image_lock *)(clients[0]->control + clients[0]->shape.locks);
    return &locks[kind == LOCK_STATISTICS ? 0 : kind + 1];
}

static inline void now(void *argument)
{
    ((struct shmfs *)argument)->port.dies_at = 0;
    act();
}

static inline void once_between(void *argument)
{
    struct shmfs *fs = argument;
    const bool has = port_register_load(&lock(LOCK_INODES)->owner) == fs->owner;
    if (had && !has)
        now(fs);
    had = had || has;
}

static inline void watch(struct shmfs *fs, uint64_t store, void (*seen)(void *))
{
    had = false;
    acted = 1;
    fs->port.died = seen;
    fs->port.died_argument = fs;
    fs->port.stores = 0;
    fs->port.dies_at = store;
}

/* Call a function right before a client's n-th store from now on. */
static inline void before_store(struct shmfs *fs, uint64_t store, void (*what)(void))
{
    act = what;
    watch(fs, store, now);
}

/* Call a function at the client's first store after it has released an inode lock. */
static inline void between(struct shmfs *fs, void (*what)(void))
{
    act = what;
    watch(fs, 1, once_between);
}

static inline void stop_watching(struct shmfs *fs)
{
    fs->port.dies_at = 0;
}

static inline struct shmfs *small(uint32_t blocks)
{
    return start((struct shmfs_geometry){.block_count = blocks, .inode_count = 4, .entry_count = 4,
                                         .handle_count = 8});
}

static inline struct shmfs *every_second_block(void)
{
    struct shmfs *fs = start((struct shmfs_geometry){
        .block_count = 256, .inode_count = 260, .entry_count = 260, .handle_count = 8});
    make_every_second_block(fs);
    return fs;
}

static inline void take_inodes(void)
{
    acted = lock_take(clients[1], LOCK_INODES, 1);
}

static inline uint64_t free_blocks(struct shmfs *fs)
{
    struct shmfs_statistics statistics;
    IS(shmfs_statfs(fs, &statistics), 0);
    return statistics.free_block_count;
}

#endif
