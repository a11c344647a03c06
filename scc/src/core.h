/* core.h: what the layers of shmfs show to one another. Lower ones never call upper ones:
 *
 *   shmfs.c      public calls: check arguments, enter, do, leave
 *   client.c     attach, detach, sweep, disk jobs          copy.c   files in and out
 *   file.c       content of open files                     check.c  alone, trusts nothing
 *   directory.c  names                                     inode.c  files
 *   fat.c        blocks
 *   log.c        transactions
 *   lock.c       mutual exclusion
 *   superblock.c geometry
 *
 * Mutual exclusion. There are four kinds of locks in one order: statistics, directory, inodes, FAT;
 * and `shard_count` of each but the first, in the order of their numbers. An operation takes what it
 * needs in that order, changes everything in one transaction, and then lets go of all of it
 * (CIB-24). A shard of the directory guards the buckets of its group and the entries that lie in its
 * group: an entry in use, in another group's bucket, by both. A shard of the inodes guards the
 * inodes of its group and what belongs to them: their chains and their handles, in whichever
 * client's table; an empty place in a table belongs to the client, or to who sweeps it up after
 * having had every lock of the inodes. A shard of the FAT guards which blocks of its group are free. Content is not
 * guarded: a file has one writer, and afterwards none. Readers of a committed file take no lock, as
 * nothing of it changes. A file that is not committed has one writer or any number of readers; they
 * look at its chain under the lock, as each of them may commit it and give back what is reserved.
 * Names are looked up without one where memory is coherent: a group's `sequence` tells whether its
 * names were changed meanwhile. When a holder dies, who wants its lock finishes or forgets its
 * transaction, and has the lock. A read-only client takes no lock: it reads names between two equal
 * values of `sequence`, and content before it has seen that the file was still there.
 */
#ifndef SCC_CORE_H
#define SCC_CORE_H

#include "image.h"

#include <pthread.h>

enum lock_kind { LOCK_STATISTICS, LOCK_DIRECTORY, LOCK_INODES, LOCK_FAT, LOCK_KINDS };

#define SHARDS_ALL UINT64_MAX
#define LOST_LIMIT 64 /* more are closed when their client detaches */

struct shmfs {
    struct port port;
    pthread_mutex_t mutex; /* between the threads of this client */
    struct shmfs_memory memory;
    struct shmfs_options options;
    struct shape shape;
    uint8_t *control;
    uint8_t *data;
    uint32_t client;
    uint32_t generation;
    uint32_t owner; /* how this client signs locks */
    uint32_t group; /* to allocate from first */
    uint32_t handle_hint;
    bool has_orphans; /* something was not freed for want of a lock */
    uint32_t lost_count; /* of handles that nobody knows of: see handle_lose */
    uint32_t lost_slots[LOST_LIMIT];
    uint32_t log_count;
    uint64_t log_groups;
    struct image_record records[IMAGE_LOG_RECORDS];
    uint64_t held[LOCK_KINDS];
};

/* A name, checked, padded and hashed. */
struct name {
    uint64_t words[IMAGE_NAME_WORDS];
    uint32_t word_count; /* of those that are not zero */
    uint32_t size_bytes;
    uint64_t hash;
    uint32_t bucket;
    uint32_t group;
};

/* --- where things lie; a visit drops stale lines, and is only for who holds the lock --------- */

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

/* --- lock.c ---------------------------------------------------------------------------------- */

/* Take shards of a kind. Fails with BUSY, and then has none of them. */
int lock_take(struct shmfs *fs, enum lock_kind kind, uint64_t shards);

/* Let go of shards under which nothing was changed. */
void lock_drop(struct shmfs *fs, enum lock_kind kind, uint64_t shards);
void lock_drop_all(struct shmfs *fs);

/* Let go of whatever was signed by those who had this place, which is ours now. */
void locks_release(struct shmfs *fs, uint32_t client);

/* Whether the client of that generation still lives. */
bool client_lives(const struct shmfs *fs, uint32_t client, uint32_t generation);

/* Finish or forget what a dead client was about; it then holds nothing that matters. */
int client_recover(struct shmfs *fs, uint32_t client, uint32_t generation);

/* Finish what the last client of this place was about, and be its next one. */
int client_renew(struct shmfs *fs);

/* Hold the byte that shows that a client lives; -1 and errno if that fails. */
int client_sign(const struct shmfs *fs, uint32_t client, bool lives);

/* --- log.c ----------------------------------------------------------------------------------- */

/* Note a store for the end of the transaction. The caller knows that there is room. */
void log_set32(struct shmfs *fs, uint32_t *word, uint32_t value);
void log_set64(struct shmfs *fs, uint64_t *word, uint64_t value);

/* The same for a word that may have been noted before. */
void log_change32(struct shmfs *fs, uint32_t *word, uint32_t value);

/* Note that so many neighbouring blocks become a chain that ends in `end`, or become free. */
void log_chain(struct shmfs *fs, uint32_t first, uint32_t count, uint32_t end);
void log_free(struct shmfs *fs, uint32_t first, uint32_t count);

/* Note that names of these groups change. */
void log_names(struct shmfs *fs, uint64_t groups);

/* What a word will be at the end of the transaction. */
uint32_t log_get32(struct shmfs *fs, const uint32_t *word);

/* Do all that was noted, or, if this process dies on the way, all or nothing. */
void log_commit(struct shmfs *fs);

/* Forget what was noted. */
void log_forget(struct shmfs *fs);

/* Do what another client's log says: 1, or 0 if it says nothing. Fails with CORRUPT. */
int log_replay(struct shmfs *fs, uint32_t client);

/* --- fat.c ----------------------------------------------------------------------------------- */

/* A row of neighbouring blocks. */
struct run {
    uint32_t first;
    uint32_t count;
};

static inline uint32_t fat_group(const struct shmfs *fs, uint32_t block)
{
    return (block - 1) / fs->shape.blocks_per_group;
}

/* The shards that guard these blocks. */
uint64_t fat_shards(const struct shmfs *fs, struct run run);

/* Which block follows, FAT_END, or CORRUPT. */
int64_t fat_next(struct shmfs *fs, uint32_t block);

/* How many neighbours follow a block in its chain, itself included, and what comes after them
 * (`next`). Fails with CORRUPT. */
int64_t fat_run(struct shmfs *fs, uint32_t block, uint32_t *next);

/* Find up to `count` blocks, as `run_limit` rows at most, best in one and after `near`, and take the
 * locks for them; sets `total`. Fails with NO_BLOCKS if there are not `count` in all. */
int fat_find(struct shmfs *fs, uint32_t count, uint32_t near, struct run *runs, int run_limit,
             int *run_count, uint32_t *total);

/* Find one row in this client's own group and take its lock: 1, or 0 if there was none. */
int fat_find_row(struct shmfs *fs, uint32_t count, struct run *run);

/* Note that rows are given out, or come back. */
void fat_take(struct shmfs *fs, const struct run *runs, int run_count);
void fat_give(struct shmfs *fs, const struct run *runs, int run_count);

/* --- inode.c --------------------------------------------------------------------------------- */

#define RUN_LIMIT 64 /* rows in one transaction */

static inline uint32_t inode_group(const struct shmfs *fs, uint32_t number)
{
    return (number - 1) / fs->shape.inodes_per_group;
}

/* An inode, or NULL where there is none of that number. */
struct image_inode *inode_visit(struct shmfs *fs, uint32_t number);

/* Find a free inode and take its lock: its number, or NO_INODES. */
int64_t inode_find(struct shmfs *fs);

/* Make that one a file being written: blocks from `row`, so many names, one handle of this client. */
void inode_take(struct shmfs *fs, uint32_t number, struct run row, uint32_t link_count);

/* Find a free place in this client's table, or NO_HANDLES; note that it is taken. */
int64_t handle_find(struct shmfs *fs);
void handle_take(struct shmfs *fs, uint32_t slot, uint32_t number, uint32_t flags);

/* Close a handle of any client, as its owner does; or, if that has died, with the names of what it
 * was writing. */
int handle_close(struct shmfs *fs, uint32_t client, uint32_t slot, bool has_died);

/* The inode of an open handle of this client; STALE, or GONE for a read-only client. The second
 * takes its lock. */
int handle_inode(struct shmfs *fs, const struct shmfs_handle *handle, struct image_inode **inode);
int handle_lock(struct shmfs *fs, const struct shmfs_handle *handle, struct image_inode **inode);

/* Note new counts of names and handles, and that the file is gone if both are zero; takes the locks
 * of its blocks. Returns 1 if there are too many of them for one transaction: then `inode_drain`
 * does the rest, afterwards. */
int inode_count(struct shmfs *fs, uint32_t number, uint32_t link_count, uint32_t handle_count);

/* Free a file that has neither names nor handles, if it is still that one. */
int inode_drain(struct shmfs *fs, uint32_t number, uint32_t generation);

/* Have a file of exactly, or at least, so many blocks, in as many transactions as it takes. */
int inode_trim(struct shmfs *fs, struct shmfs_handle *handle, uint32_t block_count);
int inode_grow(struct shmfs *fs, struct shmfs_handle *handle, uint32_t block_count);

/* What lies in an inode, by value; and of a file with handles: CORRUPT where its blocks cannot be. */
void inode_snapshot(struct shmfs *fs, const struct image_inode *inode, struct image_inode *copy);
int inode_content(struct shmfs *fs, const struct image_inode *inode, struct image_inode *copy);

void inode_info(struct shmfs *fs, uint32_t number, struct shmfs_info *info);

/* --- directory.c ----------------------------------------------------------------------------- */

static inline uint32_t entry_group(const struct shmfs *fs, uint32_t number)
{
    return (number - 1) / fs->shape.entries_per_group;
}

/* An entry, or NULL where there is none of that number. */
struct image_entry *entry_visit(struct shmfs *fs, uint32_t number);

/* Whether an entry, of a number that there is, names something. Without its lock: a guess. */
bool entry_is_used(struct shmfs *fs, uint32_t number, uint32_t *inode);

/* Check a name and hash it; NAME. The second takes the name of an entry in use. */
int name_read(const struct shmfs *fs, const char *text, struct name *name);
void name_of(struct shmfs *fs, const struct image_entry *entry, struct name *name);

/* A place among the names. `entry` is 0 where the name is not there. */
struct place {
    uint32_t entry;
    uint32_t before; /* the one before it in its bucket, or 0 */
    uint32_t inode;
};

/* Find names, with all locks to change them. */
int directory_lock(struct shmfs *fs, const struct name *names, struct place *places, int count);

/* The same, with a free entry to take: its number, or NO_ENTRIES. */
int64_t directory_lock_free(struct shmfs *fs, const struct name *names, struct place *places,
                            int count);

/* Note that a name is there, in a free entry; that it is gone; that it is another. */
void directory_add(struct shmfs *fs, const struct name *name, uint32_t entry, uint32_t inode);
void directory_remove(struct shmfs *fs, const struct name *name, struct place place);
void directory_rename(struct shmfs *fs, const struct name *from, struct place place,
                      const struct name *to);

/* A file as it was when its name was looked up: others may have freed its inode since. */
struct found {
    uint32_t inode;
    uint32_t generation;
};

/* Look a name up without a lock, by any thread; BUSY if names change all the time, or memory is not
 * coherent. Then with one. Fail with NOT_FOUND. */
int directory_look_once(struct shmfs *fs, const struct name *name, struct found *found);
int directory_look(struct shmfs *fs, const struct name *name, struct found *found);

/* Wait before a read-only client reads again what another client was changing; false once
 * `lock_timeout_ms` has passed. `tries` starts at 0. */
bool read_only_wait(const struct shmfs *fs, uint32_t *tries);

/* --- client.c -------------------------------------------------------------------------------- */

int client_sweep(struct shmfs *fs);

/* Have the next sweep close a handle that a call opened for itself, and had no lock to close. */
void handle_lose(struct shmfs *fs, uint32_t slot);

/* --- shmfs.c --------------------------------------------------------------------------------- */

/* Close a file that the caller's caller knows nothing of: now, or with the next sweep. */
void file_lose(struct shmfs *fs, struct shmfs_handle *handle);

/* --- file.c ---------------------------------------------------------------------------------- */

/* Which block holds that of a file's; CORRUPT. */
int64_t file_block(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode,
                   uint64_t index);

/* Copy between memory and a file's blocks, which are there. */
int file_copy_in(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode,
                 const void *from, uint64_t size_bytes, uint64_t offset_bytes);
int file_copy_out(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode,
                  void *to, uint64_t size_bytes, uint64_t offset_bytes);

/* Have memory hold what this core wrote; have this core see what memory holds. */
int file_publish(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode);
int file_renew(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode);

#endif
