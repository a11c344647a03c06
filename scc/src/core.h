/* core.h: the interfaces between the layers of shmfs. Lower layers never call upper ones:
 *
 *   shmfs.c      public calls: check arguments, lock the client, act, release all locks
 *   client.c     attach, detach, sweep, disk jobs          copy.c   copy files in and out
 *   file.c       content of open files                     check.c  independent, trusts nothing
 *   directory.c  names                                     inode.c  files
 *   fat.c        blocks
 *   log.c        transactions
 *   lock.c       mutual exclusion
 *   superblock.c geometry
 *
 * Mutual exclusion. There are four kinds of locks, taken in this order: statistics, directory,
 * inodes, FAT. The statistics lock is single; each other kind has `shard_count` shards, taken in
 * the order of their numbers. An operation takes the locks it needs in that order, makes all its
 * changes in one transaction, and then releases all locks (CIB-24).
 *
 * A shard of the directory guards the buckets of its group and the entries that lie in its group.
 * If an entry is in a bucket of another group, the shards of both groups guard it. A shard of the
 * inodes guards the inodes of its group with their chains, and the handles on them in the table of
 * any client. A free slot in a handle table belongs to the client, or to the client that sweeps it,
 * once the sweeper has held all inode locks. A shard of the FAT guards which blocks of its group
 * are free.
 *
 * No lock guards content. A file has one writer until it is committed, and none afterwards. Readers
 * of a committed file take no lock, because it does not change. An uncommitted file has either one
 * writer or any number of readers; a reader takes the lock to read its chain, because each reader
 * may commit the file and thereby free its reserved blocks. On coherent memory, clients look up
 * names without a lock: a group's `sequence` shows whether its names changed during the lookup.
 *
 * If the owner of a lock dies, the next client that wants the lock completes or discards the
 * owner's transaction and then owns the lock. A read-only client takes no lock: it reads names
 * between two equal values of `sequence`, and after it has read content it checks that the file
 * still exists.
 */
#ifndef SCC_CORE_H
#define SCC_CORE_H

#include "image.h"

#include <pthread.h>

enum lock_kind { LOCK_STATISTICS, LOCK_DIRECTORY, LOCK_INODES, LOCK_FAT, LOCK_KINDS };

#define SHARDS_ALL UINT64_MAX
#define LOST_LIMIT 64 /* further ones are closed when their client detaches */

struct shmfs {
    struct port port;
    pthread_mutex_t mutex; /* serializes the threads of this client */
    struct shmfs_memory memory;
    struct shmfs_options options;
    struct shape shape;
    uint8_t *control;
    uint8_t *data;
    uint32_t client;
    uint32_t generation;
    uint32_t owner; /* the value that this client stores in a lock to own it */
    uint32_t group; /* the group to allocate from first */
    uint32_t handle_hint;
    bool has_orphans; /* a file could not be freed, because a lock was not available */
    uint32_t lost_count; /* open handles that the caller does not know of: see handle_lose */
    uint32_t lost_slots[LOST_LIMIT];
    uint32_t log_count;
    uint64_t log_groups;
    struct image_record records[IMAGE_LOG_RECORDS];
    uint64_t held[LOCK_KINDS];
};

/* A name after validation, padding and hashing. */
struct name {
    uint64_t words[IMAGE_NAME_WORDS];
    uint32_t word_count; /* words that contain bytes of the name */
    uint32_t size_bytes;
    uint64_t hash;
    uint32_t bucket;
    uint32_t group;
};

/* --- addresses; the `visit` functions drop stale lines, and need the lock -------------------- */

static inline struct image_client *client_at(const struct shmfs *fs, uint32_t client)
{
    return (struct image_client *)(fs->control + fs->shape.clients +
                                   client * fs->shape.client_bytes);
}

static inline struct image_handle *handle_at(const struct shmfs *fs, uint32_t client, uint32_t slot)
{
    return (struct image_handle *)(client_at(fs, client) + 1) + slot;
}

static inline struct image_group *group_at(const struct shmfs *fs, uint32_t group)
{
    return (struct image_group *)(fs->control + fs->shape.groups) + group;
}

static inline struct image_statistics *statistics_of(const struct shmfs *fs)
{
    return (struct image_statistics *)(fs->control + fs->shape.statistics);
}

static inline uint32_t *fat_at(const struct shmfs *fs, uint32_t block)
{
    return (uint32_t *)(fs->control + fs->shape.fat) + (block - 1);
}

static inline uint64_t bit(uint32_t shard)
{
    return (uint64_t)1 << shard;
}

/* Let the caller of the library find out whether this client stood still for too long. */
static inline void begin_change(const struct shmfs *fs)
{
    if (fs->options.begins_change)
        fs->options.begins_change(fs->options.is_alive_argument);
}

/* --- lock.c ---------------------------------------------------------------------------------- */

/* Take shards of a kind. Fails with BUSY; then it holds none of them. */
int lock_take(struct shmfs *fs, enum lock_kind kind, uint64_t shards);

/* Release shards under which nothing was changed. */
void lock_drop(struct shmfs *fs, enum lock_kind kind, uint64_t shards);
void lock_drop_all(struct shmfs *fs);

/* Release all locks of previous clients of this slot, which we now own. */
void locks_release(struct shmfs *fs, uint32_t client);

/* Return whether the client of that generation is still alive. */
bool client_lives(const struct shmfs *fs, uint32_t client, uint32_t generation);

/* Complete or discard a dead client's transaction; afterwards its locks can be taken over. */
int client_recover(struct shmfs *fs, uint32_t client, uint32_t generation);

/* Complete the transaction of the slot's previous client, and start the slot's next generation. */
int client_renew(struct shmfs *fs);

/* Lock or unlock the byte that shows that a client is alive. Fails with -1 and errno. */
int client_sign(const struct shmfs *fs, uint32_t client, bool lives);

/* --- log.c ----------------------------------------------------------------------------------- */

/* Record a store for the end of the transaction. The caller ensures that the log has room. */
void log_set32(struct shmfs *fs, uint32_t *word, uint32_t value);
void log_set64(struct shmfs *fs, uint64_t *word, uint64_t value);

/* Record a store to a word that the transaction may already have recorded. */
void log_change32(struct shmfs *fs, uint32_t *word, uint32_t value);

/* Record that `count` adjacent blocks become a chain that ends in `end`, or become free. */
void log_chain(struct shmfs *fs, uint32_t first, uint32_t count, uint32_t end);
void log_free(struct shmfs *fs, uint32_t first, uint32_t count);

/* Record that names of these groups change. */
void log_names(struct shmfs *fs, uint64_t groups);

/* Return the value that a word will have at the end of the transaction. */
uint32_t log_get32(struct shmfs *fs, const uint32_t *word);

/* Apply everything recorded. If this process dies on the way, all of it takes effect, or
 * nothing. */
void log_commit(struct shmfs *fs);

/* Discard everything recorded. */
void log_discard(struct shmfs *fs);

/* Apply another client's log: returns 1, or 0 if it is empty. Fails with CORRUPT. */
int log_replay(struct shmfs *fs, uint32_t client);

/* --- fat.c ----------------------------------------------------------------------------------- */

/* A run of adjacent blocks. */
struct run {
    uint32_t first;
    uint32_t count;
};

static inline uint32_t fat_group(const struct shmfs *fs, uint32_t block)
{
    return (block - 1) / fs->shape.blocks_per_group;
}

/* Return the shards that guard these blocks. */
uint64_t fat_shards(const struct shmfs *fs, struct run run);

/* Return the block after this one, FAT_END, or CORRUPT. */
int64_t fat_next(struct shmfs *fs, uint32_t block);

/* Return how many blocks, starting with this one, are adjacent in its chain; `next` is set to what
 * follows them. Fails with CORRUPT. */
int64_t fat_run(struct shmfs *fs, uint32_t block, uint32_t *next);

/* Find up to `count` free blocks in at most `run_limit` runs, preferably in one run directly after
 * block `near`, and take the locks for them. Sets `total` to the number found. Fails with NO_BLOCKS
 * if fewer than `count` blocks are free. */
int fat_find(struct shmfs *fs, uint32_t count, uint32_t near, struct run *runs, int run_limit,
             int *run_count, uint32_t *total);

/* Find one run in this client's own group and take its lock: returns 1, or 0 if there is none. */
int fat_find_row(struct shmfs *fs, uint32_t count, struct run *run);

/* Record that runs are allocated, or freed. */
void fat_take(struct shmfs *fs, const struct run *runs, int run_count);
void fat_give(struct shmfs *fs, const struct run *runs, int run_count);

/* --- inode.c --------------------------------------------------------------------------------- */

#define RUN_LIMIT 64 /* runs in one transaction */

static inline uint32_t inode_group(const struct shmfs *fs, uint32_t number)
{
    return (number - 1) / fs->shape.inodes_per_group;
}

/* Drop the cached lines of an inode, and return it; NULL if the number is out of range. */
struct image_inode *inode_refresh(struct shmfs *fs, uint32_t number);

/* Find a free inode and take its lock. Returns its number, or NO_INODES. */
int64_t inode_find(struct shmfs *fs);

/* Record that the inode is a file being written, with the blocks of `row`, `link_count` names and
 * one handle of this client. */
void inode_take(struct shmfs *fs, uint32_t number, struct run row, uint32_t link_count);

/* Find a free slot in this client's handle table, or NO_HANDLES; record that it is taken. */
int64_t handle_find(struct shmfs *fs);
void handle_take(struct shmfs *fs, uint32_t slot, uint32_t number, uint32_t flags);

/* Close a handle of any client. If the client has died, also remove the names of the file that it
 * was writing through the handle. */
int handle_close(struct shmfs *fs, uint32_t client, uint32_t slot, bool has_died);

/* Return the inode of an open handle of this client, or STALE; GONE for a read-only client. The
 * second function also takes the inode's lock. */
int handle_inode(struct shmfs *fs, const struct shmfs_handle *handle, struct image_inode **inode);
int handle_lock(struct shmfs *fs, const struct shmfs_handle *handle, struct image_inode **inode);

/* Record new counts of names and handles. If both are zero, record that the file is free, and take
 * the locks of its blocks. Returns 1 if the file has too many blocks for one transaction; the
 * caller then calls `inode_drain` after the commit. */
int inode_count(struct shmfs *fs, uint32_t number, uint32_t link_count, uint32_t handle_count);

/* Free a file with no names and no handles, if the inode still has that generation. */
int inode_drain(struct shmfs *fs, uint32_t number, uint32_t generation);

/* Shrink a file to `block_count` blocks, or grow it to at least as many, in as many transactions as
 * that takes. */
int inode_trim(struct shmfs *fs, struct shmfs_handle *handle, uint32_t block_count);
int inode_grow(struct shmfs *fs, struct shmfs_handle *handle, uint32_t block_count);

/* Copy the fields of an inode. `inode_content` also fails with CORRUPT if the blocks of a file with
 * handles are impossible. */
void inode_snapshot(struct shmfs *fs, const struct image_inode *inode, struct image_inode *copy);
int inode_content(struct shmfs *fs, const struct image_inode *inode, struct image_inode *copy);

void inode_info(struct shmfs *fs, uint32_t number, struct shmfs_info *info);

/* --- directory.c ----------------------------------------------------------------------------- */

static inline uint32_t entry_group(const struct shmfs *fs, uint32_t number)
{
    return (number - 1) / fs->shape.entries_per_group;
}

/* Drop the cached lines of an entry, and return it; NULL if the number is out of range. */
struct image_entry *entry_refresh(struct shmfs *fs, uint32_t number);

/* Return whether an entry, whose number must be in range, is in use. Without its lock, the result
 * may be outdated. */
bool entry_is_used(struct shmfs *fs, uint32_t number, uint32_t *inode);

/* Validate and hash a name, or fail with NAME. `name_of` reads the name of an entry in use. */
int name_read(const struct shmfs *fs, const char *text, struct name *name);
void name_of(struct shmfs *fs, const struct image_entry *entry, struct name *name);

/* The position of a name. `entry` is 0 if the name does not exist. */
struct place {
    uint32_t entry;
    uint32_t before; /* the previous entry in its bucket, or 0 */
    uint32_t inode;
};

/* Find names, and take all locks needed to change them. */
int directory_lock(struct shmfs *fs, const struct name *names, struct place *places, int count);

/* Also find a free entry. Returns its number, or NO_ENTRIES. */
int64_t directory_lock_free(struct shmfs *fs, const struct name *names, struct place *places,
                            int count);

/* Record that a name is added in a free entry, that it is removed, or that it is renamed. */
void directory_add(struct shmfs *fs, const struct name *name, uint32_t entry, uint32_t inode);
void directory_remove(struct shmfs *fs, const struct name *name, struct place place);
void directory_rename(struct shmfs *fs, const struct name *from, struct place place,
                      const struct name *to);

/* A file at the moment its name was looked up. Its inode may have been freed since. */
struct found {
    uint32_t inode;
    uint32_t generation;
};

/* Look a name up. `directory_look_once` takes no lock, and any thread may call it; it fails with
 * BUSY if names change all the time, or if memory is not coherent. `directory_look` then takes the
 * lock. Both fail with NOT_FOUND. */
int directory_look_once(struct shmfs *fs, const struct name *name, struct found *found);
int directory_look(struct shmfs *fs, const struct name *name, struct found *found);

/* Wait before a read-only client retries a read that collided with another client's change. Returns
 * false once `lock_timeout_ms` has passed. `tries` starts at 0. */
bool read_only_wait(const struct shmfs *fs, uint32_t *tries);

/* --- client.c -------------------------------------------------------------------------------- */

int client_sweep(struct shmfs *fs);

/* Mark a handle for the next sweep. A call opened it for its own use, and could not take the lock
 * to close it. */
void handle_lose(struct shmfs *fs, uint32_t slot);

/* --- shmfs.c --------------------------------------------------------------------------------- */

/* Close a file that a call opened for its own use: now, or in the next sweep. */
void file_lose(struct shmfs *fs, struct shmfs_handle *handle);

/* --- file.c ---------------------------------------------------------------------------------- */

/* Return the block at `index` of a file, or CORRUPT. */
int64_t file_block(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode,
                   uint64_t index);

/* Copy between private memory and a file's blocks, which must be allocated. */
int file_copy_in(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode,
                 const void *from, uint64_t size_bytes, uint64_t offset_bytes);
int file_copy_out(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode,
                  void *to, uint64_t size_bytes, uint64_t offset_bytes);

/* Write this core's stores back to memory; drop stale lines so that this core sees memory. */
int file_publish(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode);
int file_renew(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode);

#endif
