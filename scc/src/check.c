/* check.c: checks the invariants of an image (FORMAT.md). It trusts nothing and changes nothing:
 * every number is range-checked before use, and every loop terminates. It works on bytes, and
 * uses only the layout code of shmfs.
 */
#include "image.h"

#include <stdlib.h>

struct check {
    const uint8_t *control;
    struct shape shape;
    struct shmfs_problem *problems;
    size_t room;
    int64_t count;
    /* scratch: what the check has seen so far */
    uint8_t *block_seen;
    uint8_t *entry_seen;
    uint8_t *inode_free;
    uint32_t *link_count;
    uint32_t *handle_count;
};

static void report(struct check *check, const char *code, uint64_t place, uint64_t detail)
{
    if ((size_t)check->count < check->room) {
        struct shmfs_problem *problem = &check->problems[check->count];
        *problem = (struct shmfs_problem){.place = place, .detail = detail};
        memcpy(problem->code, code, strlen(code) + 1);
    }
    check->count++;
}

static const struct image_entry *entry_in(const struct check *check, uint32_t number)
{
    return (const struct image_entry *)(check->control + check->shape.entries) + (number - 1);
}

static const struct image_inode *inode_in(const struct check *check, uint32_t number)
{
    return (const struct image_inode *)(check->control + check->shape.inodes) + (number - 1);
}

static const struct image_group *group_in(const struct check *check, uint32_t group)
{
    return (const struct image_group *)(check->control + check->shape.groups) + group;
}

static bool is_entry(const struct check *check, uint32_t number)
{
    return number - 1 < check->shape.geometry.entry_count; /* number 0 wraps to the maximum */
}

static bool is_inode(const struct check *check, uint32_t number)
{
    return number - 1 < check->shape.geometry.inode_count;
}

/* --- names ----------------------------------------------------------------------------------- */

/* Return whether a name is valid, padded with zeros, and has the hash stored with it. */
static bool is_name(const struct image_entry *entry)
{
    const char *text = (const char *)entry->name;
    const uint32_t size_bytes = entry->name_bytes;
    if (size_bytes < 1 || size_bytes > SHMFS_NAME_MAX_BYTES || memchr(text, '/', size_bytes) ||
        memchr(text, 0, size_bytes))
        return false;
    for (uint32_t i = size_bytes; i < sizeof entry->name; i++)
        if (text[i])
            return false;
    return name_hash(entry->name, size_bytes) == entry->hash;
}

static void check_entry(struct check *check, uint32_t bucket, uint32_t number)
{
    const struct image_entry *entry = entry_in(check, number);
    if (!is_inode(check, entry->inode) || !(inode_in(check, entry->inode)->flags & INODE_USED))
        report(check, "D1", number, entry->inode);
    else
        check->link_count[entry->inode - 1]++;
    if (!is_name(entry) || (entry->hash & (check->shape.bucket_count - 1)) != bucket)
        report(check, "D2", number, entry->hash);
}

static void check_bucket(struct check *check, uint32_t bucket)
{
    const uint32_t *buckets = (const uint32_t *)(check->control + check->shape.buckets);
    for (uint32_t number = buckets[bucket]; number; number = entry_in(check, number)->next) {
        if (!is_entry(check, number) || check->entry_seen[number - 1]) {
            report(check, "D3", bucket, number); /* out of range, or already seen */
            return;
        }
        check->entry_seen[number - 1] = 1;
        check_entry(check, bucket, number);
        for (uint32_t other = buckets[bucket]; other != number;
             other = entry_in(check, other)->next)
            if (entry_in(check, other)->hash == entry_in(check, number)->hash &&
                !memcmp(entry_in(check, other)->name, entry_in(check, number)->name,
                        sizeof entry_in(check, number)->name)) {
                report(check, "D4", number, other);
                break;
            }
    }
}

static void check_free_entries(struct check *check, uint32_t group)
{
    uint32_t count = 0;
    uint32_t number = group_in(check, group)->entry_free_first;
    for (; number; number = entry_in(check, number)->next) {
        if (!is_entry(check, number) || check->entry_seen[number - 1] ||
            (number - 1) / check->shape.entries_per_group != group ||
            entry_in(check, number)->inode) {
            report(check, "D3", group, number);
            return;
        }
        check->entry_seen[number - 1] = 1;
        count++;
    }
    if (count != group_in(check, group)->entry_free_count)
        report(check, "F3", group, count);
}

/* --- files ----------------------------------------------------------------------------------- */

static void check_free_inodes(struct check *check, uint32_t group)
{
    uint32_t count = 0;
    uint32_t number = group_in(check, group)->inode_free_first;
    for (; number; number = inode_in(check, number)->next_free) {
        if (!is_inode(check, number) || check->inode_free[number - 1] ||
            (number - 1) / check->shape.inodes_per_group != group ||
            inode_in(check, number)->flags) {
            report(check, "I4", group, number);
            return;
        }
        check->inode_free[number - 1] = 1;
        count++;
    }
    if (count != group_in(check, group)->inode_free_count)
        report(check, "F3", group, count);
}

/* Walk a chain: returns true if it ends inside the table and contains no block twice. */
static bool walk(struct check *check, uint32_t number, const struct image_inode *inode,
                 uint32_t *blocks, uint32_t *runs, uint32_t *last)
{
    const uint32_t *fat = (const uint32_t *)(check->control + check->shape.fat);
    *blocks = *runs = *last = 0;
    for (uint32_t block = inode->first_block; block != FAT_END; block = fat[block - 1]) {
        if (block < 1 || block > check->shape.geometry.block_count) {
            if (!inode->first_block)
                return true;
            report(check, "F1", number, block);
            return false;
        }
        if (check->block_seen[block - 1]) {
            report(check, "F2", number, block);
            return false;
        }
        check->block_seen[block - 1] = 1;
        *runs += block != *last + 1 || !*last;
        *last = block;
        ++*blocks;
    }
    return true;
}

static bool are_legal(uint32_t flags)
{
    return flags == INODE_USED || flags == (INODE_USED | INODE_WRITING) ||
           flags == (INODE_USED | INODE_COMMITTED);
}

static void check_inode(struct check *check, uint32_t number)
{
    const struct image_inode *inode = inode_in(check, number);
    uint32_t blocks, runs, last;
    if (!inode->flags) { /* check_free_inodes reports used inodes in a free list */
        if (!check->inode_free[number - 1])
            report(check, "I4", number, 0);
        return;
    }
    if (!are_legal(inode->flags))
        report(check, "I2", number, inode->flags);
    if (walk(check, number, inode, &blocks, &runs, &last)) {
        const uint64_t block_bytes = check->shape.geometry.block_bytes;
        const uint64_t wanted =
            inode->size_bytes / block_bytes + (inode->size_bytes % block_bytes != 0);
        if (blocks != inode->block_count || runs != inode->run_count ||
            last != inode->last_block || blocks < wanted ||
            (inode->flags & INODE_COMMITTED && blocks != wanted))
            report(check, "I1", number, blocks);
    }
    if (inode->link_count != check->link_count[number - 1] || inode->link_count > SHMFS_LINK_MAX)
        report(check, "I3", number, check->link_count[number - 1]);
    if (inode->handle_count != check->handle_count[number - 1])
        report(check, "I5", number, check->handle_count[number - 1]);
    if (!inode->link_count && !inode->handle_count)
        report(check, "I6", number, inode->block_count);
}

static void check_free_blocks(struct check *check, uint32_t group)
{
    const uint32_t *fat = (const uint32_t *)(check->control + check->shape.fat);
    const uint64_t first = (uint64_t)group * check->shape.blocks_per_group;
    uint32_t count = 0;
    for (uint64_t i = first;
         i < first + check->shape.blocks_per_group && i < check->shape.geometry.block_count; i++) {
        if ((fat[i] != FAT_FREE) != check->block_seen[i])
            report(check, "F2", i + 1, fat[i]);
        count += fat[i] == FAT_FREE;
    }
    if (count != group_in(check, group)->block_free_count)
        report(check, "F3", group, count);
}

/* --- clients --------------------------------------------------------------------------------- */

static void check_clients(struct check *check)
{
    uint32_t io_count = 0;
    for (uint32_t i = 0; i < check->shape.geometry.client_count; i++) {
        const struct image_client *client =
            (const struct image_client *)(check->control + check->shape.clients +
                                          i * check->shape.client_bytes);
        const struct image_handle *handles = (const struct image_handle *)(client + 1);
        if (client->state > CLIENT_ATTACHED || client->log_count)
            report(check, "C1", i, client->log_count);
        for (uint32_t slot = 0; slot < check->shape.geometry.handle_count; slot++) {
            if (!handles[slot].inode)
                continue;
            if (client->state == CLIENT_FREE || !is_inode(check, handles[slot].inode))
                report(check, "C2", i, handles[slot].inode);
            else
                check->handle_count[handles[slot].inode - 1]++;
        }
        io_count += client->io_count;
    }
    const struct image_statistics *statistics =
        (const struct image_statistics *)(check->control + check->shape.statistics);
    if (statistics->io_count != io_count)
        report(check, "C3", 0, io_count);
}

/* A lock whose owner is not attached would never be released. */
static void check_locks(struct check *check)
{
    const struct image_lock *locks =
        (const struct image_lock *)(check->control + check->shape.locks);
    for (uint32_t i = 0; i < check->shape.lock_count; i++) {
        if (!locks[i].owner)
            continue;
        const uint32_t number = (locks[i].owner & 0x7ff) - 1;
        const struct image_client *client =
            (const struct image_client *)(check->control + check->shape.clients +
                                          number * check->shape.client_bytes);
        if (number >= check->shape.geometry.client_count || client->state == CLIENT_FREE)
            report(check, "C4", i, locks[i].owner);
    }
}

/* --- entry points ---------------------------------------------------------------------------- */

static int read_shape(const void *control, uint64_t control_bytes, uint64_t data_bytes,
                      struct shape *shape)
{
    struct image_superblock superblock;
    if (!control || (uintptr_t)control % 8 || control_bytes < sizeof superblock)
        return SHMFS_ERROR_FORMAT;
    memcpy(&superblock, control, sizeof superblock);
    return shape_read(&superblock, control_bytes, data_bytes, shape);
}

static size_t scratch_bytes_of(const struct shape *shape)
{
    const struct shmfs_geometry *geometry = &shape->geometry;
    return (size_t)geometry->inode_count * (2 * sizeof(uint32_t) + 1) + geometry->entry_count +
           geometry->block_count;
}

size_t shmfs_check_scratch_bytes(const void *control, uint64_t control_bytes)
{
    struct shape shape;
    if (read_shape(control, control_bytes, UINT64_MAX, &shape))
        return 0;
    return scratch_bytes_of(&shape);
}

static void divide(struct check *check, void *scratch)
{
    const struct shmfs_geometry *geometry = &check->shape.geometry;
    memset(scratch, 0, scratch_bytes_of(&check->shape));
    check->link_count = scratch;
    check->handle_count = check->link_count + geometry->inode_count;
    check->inode_free = (uint8_t *)(check->handle_count + geometry->inode_count);
    check->entry_seen = check->inode_free + geometry->inode_count;
    check->block_seen = check->entry_seen + geometry->entry_count;
}

int64_t shmfs_check(const void *control, uint64_t control_bytes, uint64_t data_bytes, void *scratch,
                    size_t scratch_bytes, struct shmfs_problem *problems, size_t problem_count)
{
    struct check check = {.control = control, .problems = problems, .room = problem_count};
    if (read_shape(control, control_bytes, data_bytes, &check.shape)) {
        report(&check, "S1", 0, 0);
        return check.count;
    }
    if (scratch_bytes < scratch_bytes_of(&check.shape) || (uintptr_t)scratch % sizeof(uint32_t))
        return SHMFS_ERROR_ARGUMENT;
    divide(&check, scratch);
    const struct shmfs_geometry *geometry = &check.shape.geometry;
    check_clients(&check);
    check_locks(&check);
    for (uint32_t i = 0; i < check.shape.bucket_count; i++)
        check_bucket(&check, i);
    for (uint32_t i = 0; i < geometry->shard_count; i++) {
        check_free_entries(&check, i);
        check_free_inodes(&check, i);
    }
    for (uint32_t i = 1; i <= geometry->entry_count; i++)
        if (!check.entry_seen[i - 1])
            report(&check, "D3", i, entry_in(&check, i)->inode);
    for (uint32_t i = 1; i <= geometry->inode_count; i++)
        check_inode(&check, i);
    for (uint32_t i = 0; i < geometry->shard_count; i++)
        check_free_blocks(&check, i);
    return check.count;
}

const char *shmfs_problem_text(const char *code)
{
    static const struct {
        char code[4];
        const char *text;
    } texts[] = {
        {"S1", "the superblock does not match this version and machine, or memory is missing"},
        {"C1", "a client has an unfinished transaction"},
        {"C2", "a handle belongs to no attached client, or to no file"},
        {"C3", "the number of disk jobs is wrong"},
        {"C4", "the owner of a lock is not attached"},
        {"D1", "a name belongs to no file"},
        {"D2", "a name is invalid, or in the wrong bucket"},
        {"D3", "an entry is in no list, in two, or in the wrong one"},
        {"D4", "a name exists twice"},
        {"I1", "the number of blocks does not match the chain"},
        {"I2", "a file's state is impossible"},
        {"I3", "the number of names is wrong"},
        {"I4", "a free inode is in no free list, in two, or in the wrong one"},
        {"I5", "the number of handles is wrong"},
        {"I6", "a file has neither names nor handles"},
        {"F1", "a chain of blocks leaves the table"},
        {"F2", "a block is in two chains, or used but in none, or free but in one"},
        {"F3", "a count of free entries, inodes or blocks is wrong"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!strcmp(texts[i].code, code))
            return texts[i].text;
    return "an unknown problem";
}
