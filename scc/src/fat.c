/* fat.c: the file allocation table: which blocks are free, and the order of the blocks of a file.
 *
 * An element of the table is 0 for a free block, the number of the next block, or FAT_END. Blocks
 * are allocated in runs of adjacent blocks as long as possible, so that a file can be used in
 * place.
 */
#include "core.h"

uint64_t fat_shards(const struct shmfs *fs, struct run run)
{
    uint64_t shards = 0;
    for (uint32_t group = fat_group(fs, run.first);
         group <= fat_group(fs, run.first + run.count - 1); group++)
        shards |= bit(group);
    return shards;
}

static uint32_t group_first(const struct shmfs *fs, uint32_t group)
{
    return group * fs->shape.blocks_per_group + 1;
}

/* Return one past the last block of a group. The last groups may be short, or empty. */
static uint32_t group_end(const struct shmfs *fs, uint32_t group)
{
    const uint64_t end = (uint64_t)(group + 1) * fs->shape.blocks_per_group;
    const uint64_t count = fs->shape.geometry.block_count;
    return (uint32_t)(end < count ? end : count) + 1;
}

/* Read an element of the table, after dropping its line. */
static uint32_t fat_look(struct shmfs *fs, uint32_t block)
{
    const uint32_t *place = fat_at(fs, block);
    port_invalidate(&fs->port, place, sizeof *place);
    return port_load32(&fs->port, place);
}

int64_t fat_next(struct shmfs *fs, uint32_t block)
{
    if (block - 1 >= fs->shape.geometry.block_count) /* 0 is none; minus 1 it exceeds any count */
        return SHMFS_ERROR_CORRUPT;
    const uint32_t next = fat_look(fs, block);
    if (next == FAT_FREE || (next != FAT_END && next > fs->shape.geometry.block_count))
        return SHMFS_ERROR_CORRUPT;
    return next;
}

int64_t fat_run(struct shmfs *fs, uint32_t block, uint32_t *next)
{
    uint32_t count = 0;
    for (;;) {
        const int64_t follows = fat_next(fs, block);
        if (follows < 0)
            return follows;
        *next = (uint32_t)follows;
        count++;
        if (*next != block + 1)
            return count;
        block++;
    }
}

/* Find the first run in [from, end) with at least `wanted` blocks; if there is none, the
 * longest. */
static struct run find_row(struct shmfs *fs, uint32_t from, uint32_t end, uint32_t wanted)
{
    struct run best = {0, 0}, row = {0, 0};
    for (uint32_t block = from; block < end && best.count < wanted; block++) {
        if (fat_look(fs, block) != FAT_FREE) {
            row.count = 0;
            continue;
        }
        if (!row.count++)
            row.first = block;
        if (row.count > best.count)
            best = row;
    }
    return best;
}

/* Return how many blocks of a group are free; may be outdated unless its lock is held. */
static uint32_t free_in(struct shmfs *fs, uint32_t group)
{
    const uint32_t *count = &group_at(fs, group)->block_free_count;
    port_invalidate(&fs->port, count, sizeof *count);
    return port_load32(&fs->port, count);
}

/* Search one group, whose lock is held, starting at its hint. */
static struct run find_in_group(struct shmfs *fs, uint32_t group, uint32_t wanted)
{
    const uint32_t first = group_first(fs, group), end = group_end(fs, group);
    const uint32_t *place = &group_at(fs, group)->block_hint;
    const uint32_t hint = port_load32(&fs->port, place);
    const uint32_t from = hint >= first && hint < end ? hint : first;
    const struct run row = find_row(fs, from, end, wanted);
    if (row.count >= wanted || from == first)
        return row;
    const struct run other = find_row(fs, first, end, wanted);
    return other.count > row.count ? other : row;
}

int fat_find_row(struct shmfs *fs, uint32_t count, struct run *run)
{
    if (free_in(fs, fs->group) < count)
        return 0;
    int error = lock_take(fs, LOCK_FAT, bit(fs->group));
    if (error)
        return error;
    if (free_in(fs, fs->group) >= count) {
        const struct run found = find_in_group(fs, fs->group, count);
        if (found.count >= count) {
            *run = (struct run){found.first, count};
            return 1;
        }
    }
    lock_drop(fs, LOCK_FAT, bit(fs->group));
    return 0;
}

/* Return the free blocks directly after this one, in its group. */
static struct run row_after(struct shmfs *fs, uint32_t block, uint32_t wanted)
{
    struct run row = {block + 1, 0};
    const uint32_t end = group_end(fs, fat_group(fs, block));
    while (row.count < wanted && row.first + row.count < end &&
           fat_look(fs, row.first + row.count) == FAT_FREE)
        row.count++;
    return row;
}

/* Search all groups, which are locked. If no single run suffices, take the first runs. */
static int find_anywhere(struct shmfs *fs, uint32_t count, struct run *runs, int run_limit,
                         int *run_count, uint32_t *total)
{
    const uint32_t end = (uint32_t)fs->shape.geometry.block_count + 1;
    uint64_t free_count = 0;
    for (uint32_t group = 0; group < fs->shape.geometry.shard_count; group++)
        free_count += free_in(fs, group);
    if (free_count < count)
        return SHMFS_ERROR_NO_BLOCKS;
    runs[0] = find_row(fs, 1, end, count);
    if (runs[0].count >= count) {
        runs[0].count = count;
        *run_count = 1;
        *total = count;
        return 0;
    }
    *run_count = 0;
    *total = 0;
    for (uint32_t block = 1; block < end && *total < count; block++) {
        if (fat_look(fs, block) != FAT_FREE)
            continue;
        struct run *last = *run_count ? &runs[*run_count - 1] : NULL;
        if (last && last->first + last->count == block)
            last->count++;
        else if (*run_count < run_limit)
            runs[(*run_count)++] = (struct run){block, 1};
        else
            return 0; /* the next transaction allocates the rest */
        ++*total;
    }
    return *total ? 0 : SHMFS_ERROR_CORRUPT;
}

int fat_find(struct shmfs *fs, uint32_t count, uint32_t near, struct run *runs, int run_limit,
             int *run_count, uint32_t *total)
{
    int error;
    const uint32_t shards = fs->shape.geometry.shard_count;
    const uint64_t near_shard = near ? bit(fat_group(fs, near)) : 0; /* its element will change */
    *run_count = 1;
    *total = count;
    if (near) {
        if ((error = lock_take(fs, LOCK_FAT, near_shard)))
            return error;
        runs[0] = row_after(fs, near, count);
        if (runs[0].count == count)
            return 0;
        lock_drop(fs, LOCK_FAT, near_shard);
    }
    for (uint32_t i = 0; i < shards; i++) {
        const uint32_t group = (fs->group + i) % shards;
        if (free_in(fs, group) < count)
            continue;
        if ((error = lock_take(fs, LOCK_FAT, bit(group) | near_shard)))
            return error;
        if (free_in(fs, group) >= count) {
            runs[0] = find_in_group(fs, group, count);
            if (runs[0].count >= count) {
                runs[0].count = count;
                return 0;
            }
        }
        lock_drop(fs, LOCK_FAT, SHARDS_ALL);
    }
    if ((error = lock_take(fs, LOCK_FAT, SHARDS_ALL)))
        return error;
    return find_anywhere(fs, count, runs, run_limit, run_count, total);
}

/* Record the new number of free blocks of the groups that contain a run. */
static void count_row(struct shmfs *fs, struct run run, bool comes_back)
{
    const uint32_t last = run.first + run.count - 1;
    for (uint32_t group = fat_group(fs, run.first); group <= fat_group(fs, last); group++) {
        struct image_group *header = group_at(fs, group);
        const uint32_t first = group_first(fs, group), end = group_end(fs, group);
        const uint32_t from = run.first > first ? run.first : first;
        const uint32_t to = last + 1 < end ? last + 1 : end;
        port_invalidate(&fs->port, &header->block_free_count, sizeof header->block_free_count);
        const uint32_t now = log_get32(fs, &header->block_free_count);
        const uint32_t count = to - from;
        log_change32(fs, &header->block_free_count, comes_back ? now + count : now - count);
        log_change32(fs, &header->block_hint, comes_back ? from : to);
    }
}

void fat_take(struct shmfs *fs, const struct run *runs, int run_count)
{
    for (int i = 0; i < run_count; i++) {
        const uint32_t end = i + 1 < run_count ? runs[i + 1].first : FAT_END;
        log_chain(fs, runs[i].first, runs[i].count, end);
        count_row(fs, runs[i], false);
    }
}

void fat_give(struct shmfs *fs, const struct run *runs, int run_count)
{
    for (int i = 0; i < run_count; i++) {
        log_free(fs, runs[i].first, runs[i].count);
        count_row(fs, runs[i], true);
    }
}
