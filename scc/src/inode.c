/* inode.c: files and their open handles.
 *
 * The life of an inode: it is free, in its group's free list; a writer takes it, with one handle;
 * it grows; it is committed and constant from then on; clients name and read it; it becomes free
 * again when it has no names and no handles left.
 */
#include "core.h"

#define RENAMED_LIMIT 100 /* passes over all names of a file that other clients rename meanwhile */

struct image_inode *inode_refresh(struct shmfs *fs, uint32_t number)
{
    if (number < 1 || number > fs->shape.geometry.inode_count)
        return NULL;
    struct image_inode *inode =
        (struct image_inode *)(fs->control + fs->shape.inodes) + (number - 1);
    port_invalidate(&fs->port, inode, sizeof *inode);
    return inode;
}

void inode_snapshot(struct shmfs *fs, const struct image_inode *inode, struct image_inode *copy)
{
    copy->flags = port_load32(&fs->port, &inode->flags);
    copy->generation = port_load32(&fs->port, &inode->generation);
    copy->link_count = port_load32(&fs->port, &inode->link_count);
    copy->handle_count = port_load32(&fs->port, &inode->handle_count);
    copy->size_bytes = port_load64(&fs->port, &inode->size_bytes);
    copy->tag = port_load64(&fs->port, &inode->tag);
    copy->first_block = port_load32(&fs->port, &inode->first_block);
    copy->last_block = port_load32(&fs->port, &inode->last_block);
    copy->block_count = port_load32(&fs->port, &inode->block_count);
    copy->run_count = port_load32(&fs->port, &inode->run_count);
    copy->next_free = port_load32(&fs->port, &inode->next_free);
}

int inode_content(struct shmfs *fs, const struct image_inode *inode, struct image_inode *copy)
{
    const struct shmfs_geometry *geometry = &fs->shape.geometry;
    inode_snapshot(fs, inode, copy);
    const uint64_t first = copy->first_block, count = copy->block_count;
    const uint64_t end = first + (copy->run_count > 1 ? 1 : count); /* of the first run */
    if (copy->size_bytes > count * geometry->block_bytes || count > geometry->block_count ||
        (count && (!first || !copy->last_block || end > geometry->block_count + 1 ||
                   copy->last_block > geometry->block_count)))
        return SHMFS_ERROR_CORRUPT;
    return 0;
}

void inode_info(struct shmfs *fs, uint32_t number, struct shmfs_info *info)
{
    struct image_inode copy;
    inode_snapshot(fs, inode_refresh(fs, number), &copy);
    *info = (struct shmfs_info){
        .inode = number,
        .generation = copy.generation,
        .size_bytes = copy.size_bytes,
        .block_count = copy.block_count,
        .link_count = copy.link_count,
        .handle_count = copy.handle_count,
        .is_committed = copy.flags & INODE_COMMITTED,
        .is_writing = copy.flags & INODE_WRITING,
        .is_contiguous = copy.run_count <= 1,
        .tag = copy.tag,
    };
}

/* --- free inodes ----------------------------------------------------------------------------- */

/* Return a number from a free list after checking that it is free; otherwise CORRUPT. */
static int64_t free_one(struct shmfs *fs, uint32_t group, uint32_t number)
{
    const struct image_inode *inode = inode_refresh(fs, number);
    if (!inode || inode_group(fs, number) != group || port_load32(&fs->port, &inode->flags))
        return SHMFS_ERROR_CORRUPT;
    return number;
}

static uint32_t first_free(struct shmfs *fs, uint32_t group)
{
    const uint32_t *place = &group_at(fs, group)->inode_free_first;
    port_invalidate(&fs->port, place, sizeof *place);
    return port_load32(&fs->port, place);
}

int64_t inode_find(struct shmfs *fs)
{
    const uint32_t shards = fs->shape.geometry.shard_count;
    for (uint32_t i = 0; i < shards; i++) {
        const uint32_t group = (fs->group + i) % shards;
        if (!first_free(fs, group))
            continue; /* read without the lock: may be outdated */
        int error = lock_take(fs, LOCK_INODES, bit(group));
        if (error)
            return error;
        const uint32_t number = first_free(fs, group);
        if (number)
            return free_one(fs, group, number);
        lock_drop(fs, LOCK_INODES, bit(group));
    }
    int error = lock_take(fs, LOCK_INODES, SHARDS_ALL);
    if (error)
        return error;
    for (uint32_t group = 0; group < shards; group++) {
        const uint32_t number = first_free(fs, group);
        if (number)
            return free_one(fs, group, number);
    }
    return SHMFS_ERROR_NO_INODES;
}

void inode_take(struct shmfs *fs, uint32_t number, struct run row, uint32_t link_count)
{
    struct port *port = &fs->port;
    struct image_inode *inode = inode_refresh(fs, number);
    struct image_group *group = group_at(fs, inode_group(fs, number));
    const uint32_t next = port_load32(port, &inode->next_free);
    /* No client reads these fields while the inode is free. */
    port_store32(port, &inode->link_count, link_count);
    port_store32(port, &inode->handle_count, 1);
    port_store64(port, &inode->size_bytes, 0);
    port_store64(port, &inode->tag, 0);
    port_store32(port, &inode->first_block, row.count ? row.first : 0);
    port_store32(port, &inode->last_block, row.count ? row.first + row.count - 1 : 0);
    port_store32(port, &inode->block_count, row.count);
    port_store32(port, &inode->run_count, row.count ? 1 : 0);
    port_flush(port, inode, sizeof *inode);
    log_set32(fs, &inode->flags, INODE_USED | INODE_WRITING);
    log_set32(fs, &group->inode_free_first, next);
    log_set32(fs, &group->inode_free_count, port_load32(port, &group->inode_free_count) - 1);
}

static void inode_give(struct shmfs *fs, uint32_t number)
{
    struct port *port = &fs->port;
    struct image_inode *inode = inode_refresh(fs, number);
    struct image_group *group = group_at(fs, inode_group(fs, number));
    const uint32_t first = first_free(fs, inode_group(fs, number));
    log_set32(fs, &inode->flags, 0);
    log_set32(fs, &inode->generation, port_load32(port, &inode->generation) + 1);
    log_set32(fs, &inode->next_free, first);
    log_set32(fs, &group->inode_free_first, number);
    log_set32(fs, &group->inode_free_count, port_load32(port, &group->inode_free_count) + 1);
}

/* --- handles --------------------------------------------------------------------------------- */

int64_t handle_find(struct shmfs *fs)
{
    const uint32_t count = fs->shape.geometry.handle_count;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t slot = (fs->handle_hint + i) % count;
        if (!port_load32(&fs->port, &handle_at(fs, fs->client, slot)->inode)) {
            fs->handle_hint = slot + 1;
            return slot;
        }
    }
    return SHMFS_ERROR_NO_HANDLES;
}

void handle_take(struct shmfs *fs, uint32_t slot, uint32_t number, uint32_t flags)
{
    struct image_handle *handle = handle_at(fs, fs->client, slot);
    log_set32(fs, &handle->inode, number);
    log_set32(fs, &handle->flags, flags);
}

/* Return the file that a read-only client has open. Once a file has neither names nor handles, its
 * counts stay zero and its blocks may be reused. */
static int read_only_inode(struct shmfs *fs, const struct shmfs_handle *handle,
                           struct image_inode **inode)
{
    struct image_inode copy;
    *inode = inode_refresh(fs, handle->inode);
    if (!*inode)
        return SHMFS_ERROR_STALE;
    port_fence(&fs->port); /* all earlier reads of its content happened before this check */
    inode_snapshot(fs, *inode, &copy);
    port_fence(&fs->port);
    if (copy.generation != handle->generation || !(copy.flags & INODE_COMMITTED) ||
        (!copy.link_count && !copy.handle_count) ||
        port_load32(&fs->port, &(*inode)->generation) != handle->generation)
        return SHMFS_ERROR_GONE;
    return 0;
}

int handle_inode(struct shmfs *fs, const struct shmfs_handle *handle, struct image_inode **inode)
{
    if (fs->options.is_read_only)
        return read_only_inode(fs, handle, inode);
    if (!handle->inode || handle->slot >= fs->shape.geometry.handle_count ||
        port_load32(&fs->port, &handle_at(fs, fs->client, handle->slot)->inode) != handle->inode)
        return SHMFS_ERROR_STALE;
    *inode = inode_refresh(fs, handle->inode);
    if (!*inode || port_load32(&fs->port, &(*inode)->generation) != handle->generation)
        return SHMFS_ERROR_STALE;
    return 0;
}

int handle_lock(struct shmfs *fs, const struct shmfs_handle *handle, struct image_inode **inode)
{
    int error = handle_inode(fs, handle, inode);
    if (error)
        return error;
    error = lock_take(fs, LOCK_INODES, bit(inode_group(fs, handle->inode)));
    return error ? error : handle_inode(fs, handle, inode);
}

/* --- freeing files --------------------------------------------------------------------------- */

/* Collect the runs of a chain, at most RUN_LIMIT; sets `after` to what follows them. */
static int rows_from(struct shmfs *fs, uint32_t block, struct run *rows, uint64_t *shards,
                     uint32_t *total, uint32_t *after)
{
    int count = 0;
    *shards = 0;
    *total = 0;
    *after = block;
    while (*after != FAT_END && count < RUN_LIMIT) {
        const uint32_t first = *after;
        const int64_t length = fat_run(fs, first, after);
        if (length < 0)
            return (int)length;
        rows[count] = (struct run){first, (uint32_t)length};
        *shards |= fat_shards(fs, rows[count++]);
        *total += (uint32_t)length;
        if (*total > fs->shape.geometry.block_count)
            return SHMFS_ERROR_CORRUPT; /* the chain has a cycle */
    }
    return count;
}

/* Record that a file's blocks are free, as many as fit into the transaction. 1: some remain. */
static int give_blocks(struct shmfs *fs, struct image_inode *inode)
{
    struct run rows[RUN_LIMIT];
    uint64_t shards;
    uint32_t total, after;
    const uint32_t first = port_load32(&fs->port, &inode->first_block);
    if (!first)
        return 0;
    const int count = rows_from(fs, first, rows, &shards, &total, &after);
    if (count < 0)
        return count;
    int error = lock_take(fs, LOCK_FAT, shards);
    if (error)
        return error;
    fat_give(fs, rows, count);
    if (after == FAT_END)
        return 0;
    log_set32(fs, &inode->first_block, after);
    log_set32(fs, &inode->block_count, port_load32(&fs->port, &inode->block_count) - total);
    log_set32(fs, &inode->run_count,
              port_load32(&fs->port, &inode->run_count) - (uint32_t)count);
    return 1;
}

int inode_count(struct shmfs *fs, uint32_t number, uint32_t link_count, uint32_t handle_count)
{
    struct image_inode *inode = inode_refresh(fs, number);
    if (!link_count && !handle_count) {
        const int more = give_blocks(fs, inode);
        if (!more)
            inode_give(fs, number);
        if (more < 0)
            return more;
        if (!more)
            return 0;
        log_set32(fs, &inode->link_count, 0);
        log_set32(fs, &inode->handle_count, 0);
        return 1;
    }
    log_set32(fs, &inode->link_count, link_count);
    log_set32(fs, &inode->handle_count, handle_count);
    return 0;
}

int inode_drain(struct shmfs *fs, uint32_t number, uint32_t generation)
{
    for (int more = 1; more;) {
        struct image_inode *inode = inode_refresh(fs, number);
        int error = lock_take(fs, LOCK_INODES, bit(inode_group(fs, number)));
        if (error)
            return error;
        inode_refresh(fs, number);
        more = 0;
        if (port_load32(&fs->port, &inode->flags) &&
            port_load32(&fs->port, &inode->generation) == generation &&
            !port_load32(&fs->port, &inode->link_count) &&
            !port_load32(&fs->port, &inode->handle_count))
            more = inode_count(fs, number, 0, 0);
        if (more < 0)
            return more;
        log_commit(fs);
        lock_drop_all(fs);
    }
    return 0;
}

/* Return whether a handle is still open; the caller holds the lock of its inode. Another sweeper
 * may have died while it closed the handle, so that taking the lock completed the close. */
static bool is_open(struct shmfs *fs, const struct image_handle *handle, uint32_t number)
{
    port_invalidate(&fs->port, handle, sizeof *handle);
    return port_load32(&fs->port, &handle->inode) == number;
}

/* Remove the name in an entry, if it still names this file, and the file is not committed. */
static int drop_name(struct shmfs *fs, const struct image_handle *handle, uint32_t entry,
                     uint32_t number)
{
    struct name name;
    struct place place;
    name_of(fs, entry_refresh(fs, entry), &name);
    int error = directory_lock(fs, &name, &place, 1);
    if (!error)
        error = lock_take(fs, LOCK_INODES, bit(inode_group(fs, number)));
    if (error)
        return error;
    struct image_inode *inode = inode_refresh(fs, number);
    const bool is_over = !is_open(fs, handle, number) ||
                         port_load32(&fs->port, &inode->flags) & INODE_COMMITTED;
    if (place.entry == entry && place.inode == number && !is_over) {
        directory_remove(fs, &name, place);
        log_set32(fs, &inode->link_count, port_load32(&fs->port, &inode->link_count) - 1);
        log_commit(fs);
    }
    lock_drop_all(fs);
    return is_over;
}

/* Remove the names of a file that will never be committed. A name that is renamed meanwhile may
 * move to an entry already visited, so repeat until none is left. A file without names gets no new
 * ones. */
static int drop_names(struct shmfs *fs, const struct image_handle *handle, uint32_t number)
{
    uint32_t named;
    const struct image_inode *inode = inode_refresh(fs, number);
    for (int tries = 0; port_load32(&fs->port, &inode->link_count); tries++) {
        if (tries == RENAMED_LIMIT)
            return SHMFS_ERROR_CORRUPT; /* its names are in no bucket */
        for (uint32_t i = 1; i <= fs->shape.geometry.entry_count; i++) {
            if (!entry_is_used(fs, i, &named) || named != number)
                continue;
            const int end = drop_name(fs, handle, i, number);
            if (end)
                return end < 0 ? end : 0;
        }
        inode_refresh(fs, number);
    }
    return 0;
}

int handle_close(struct shmfs *fs, uint32_t client, uint32_t slot, bool has_died)
{
    struct image_handle *handle = handle_at(fs, client, slot);
    const uint32_t number = port_load32(&fs->port, &handle->inode);
    const bool writes = port_load32(&fs->port, &handle->flags) & HANDLE_WRITING;
    struct image_inode *inode = inode_refresh(fs, number), copy;
    int error = inode ? 0 : SHMFS_ERROR_CORRUPT;
    if (!error && has_died && writes)
        error = drop_names(fs, handle, number);
    if (!error)
        error = lock_take(fs, LOCK_INODES, bit(inode_group(fs, number)));
    if (error)
        return error;
    if (!is_open(fs, handle, number)) {
        lock_drop_all(fs);
        return 0;
    }
    inode_snapshot(fs, inode_refresh(fs, number), &copy);
    log_set32(fs, &handle->inode, 0);
    if (writes)
        log_set32(fs, &inode->flags, copy.flags & ~(uint32_t)INODE_WRITING);
    const int more = inode_count(fs, number, copy.link_count, copy.handle_count - 1);
    if (more < 0)
        return more;
    log_commit(fs);
    lock_drop_all(fs);
    if (more && inode_drain(fs, number, copy.generation))
        fs->has_orphans = true; /* the handle is closed anyway; a sweep frees the rest */
    return 0;
}

/* --- blocks of a file ------------------------------------------------------------------------ */

/* Record that the runs after block `keep` are free, or all runs if `keep` is 0. */
static int cut(struct shmfs *fs, struct image_inode *inode, uint32_t keep)
{
    struct run rows[RUN_LIMIT];
    uint64_t shards;
    uint32_t total, after;
    int64_t from = keep ? fat_next(fs, keep) : port_load32(&fs->port, &inode->first_block);
    if (from < 0)
        return (int)from;
    const int count = rows_from(fs, (uint32_t)from, rows, &shards, &total, &after);
    if (count < 0)
        return count;
    if (!count)
        return SHMFS_ERROR_CORRUPT; /* its block count is wrong */
    int error = lock_take(fs, LOCK_FAT, shards | (keep ? bit(fat_group(fs, keep)) : 0));
    if (error)
        return error;
    fat_give(fs, rows, count);
    uint32_t run_count = port_load32(&fs->port, &inode->run_count) - (uint32_t)count;
    if (keep && rows[0].first == keep + 1)
        run_count++; /* only a part of its run is freed */
    if (keep && after == keep + 1)
        run_count--; /* two runs have become one */
    if (keep)
        log_set32(fs, fat_at(fs, keep), after);
    else
        log_set32(fs, &inode->first_block, after == FAT_END ? 0 : after);
    if (after == FAT_END)
        log_set32(fs, &inode->last_block, keep);
    log_set32(fs, &inode->run_count, run_count);
    log_set32(fs, &inode->block_count, port_load32(&fs->port, &inode->block_count) - total);
    return 0;
}

int inode_trim(struct shmfs *fs, struct shmfs_handle *handle, uint32_t block_count)
{
    for (;;) {
        struct image_inode *inode, copy;
        int error = handle_lock(fs, handle, &inode);
        if (error)
            return error;
        if ((error = inode_content(fs, inode, &copy)))
            return error;
        if (copy.block_count <= block_count)
            return 0;
        handle->place_block = 0;
        const int64_t keep = block_count ? file_block(fs, handle, &copy, block_count - 1) : 0;
        if (keep < 0)
            return (int)keep;
        if ((error = cut(fs, inode, (uint32_t)keep)))
            return error;
        log_commit(fs);
        lock_drop_all(fs);
    }
}

static int grow_once(struct shmfs *fs, struct shmfs_handle *handle, uint32_t block_count)
{
    struct image_inode *inode, copy;
    struct run rows[RUN_LIMIT];
    int count;
    uint32_t total;
    int error = handle_lock(fs, handle, &inode);
    if (error)
        return error;
    if ((error = inode_content(fs, inode, &copy)))
        return error;
    if (copy.block_count >= block_count)
        return 0;
    error = fat_find(fs, block_count - copy.block_count, copy.last_block, rows, RUN_LIMIT, &count,
                     &total);
    if (error)
        return error;
    fat_take(fs, rows, count);
    if (copy.last_block)
        log_set32(fs, fat_at(fs, copy.last_block), rows[0].first);
    else
        log_set32(fs, &inode->first_block, rows[0].first);
    const bool goes_on = copy.last_block && rows[0].first == copy.last_block + 1;
    log_set32(fs, &inode->last_block, rows[count - 1].first + rows[count - 1].count - 1);
    log_set32(fs, &inode->block_count, copy.block_count + total);
    log_set32(fs, &inode->run_count, copy.run_count + (uint32_t)count - goes_on);
    log_commit(fs);
    lock_drop_all(fs);
    return 1;
}

int inode_grow(struct shmfs *fs, struct shmfs_handle *handle, uint32_t block_count)
{
    struct image_inode *inode;
    int error = handle_inode(fs, handle, &inode);
    if (error)
        return error;
    const uint32_t had_count = port_load32(&fs->port, &inode->block_count);
    do
        error = grow_once(fs, handle, block_count);
    while (error > 0);
    if (error < 0) {
        log_discard(fs);
        lock_drop_all(fs);
        inode_trim(fs, handle, had_count);
    }
    lock_drop_all(fs);
    return error;
}
