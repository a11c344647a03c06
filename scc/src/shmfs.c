/* shmfs.c: the public calls for files and names. Each checks its arguments, locks the client, acts,
 * and releases all locks. */
#include "core.h"

static void enter(struct shmfs *fs)
{
    pthread_mutex_lock(&fs->mutex);
}

/* Return a result; afterwards the log is empty and no lock is held. */
static int leave(struct shmfs *fs, int result)
{
    log_discard(fs);
    lock_drop_all(fs);
    pthread_mutex_unlock(&fs->mutex);
    return result;
}

/* Let other threads run while content is copied; in the strict build they share one cache. */
static void step_out(struct shmfs *fs)
{
#ifndef PORT_STRICT
    pthread_mutex_unlock(&fs->mutex);
#else
    (void)fs;
#endif
}

static void step_in(struct shmfs *fs)
{
#ifndef PORT_STRICT
    pthread_mutex_lock(&fs->mutex);
#else
    (void)fs;
#endif
}

static uint64_t free_blocks(struct shmfs *fs)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < fs->shape.geometry.shard_count; i++) {
        const struct image_group *group = group_at(fs, i);
        port_invalidate(&fs->port, group, sizeof *group);
        count += port_load32(&fs->port, &group->block_free_count);
    }
    return count;
}

/* Let other processes free space for so many blocks. Return whether they have freed any. */
static bool others_freed(struct shmfs *fs, uint64_t blocks)
{
    const struct shmfs_options *options = &fs->options;
    if (!options->free_space)
        return false;
    const uint64_t free = free_blocks(fs);
    const uint64_t lacking = blocks > free ? blocks - free : 1;
    step_out(fs);
    const bool freed = options->free_space(options->free_space_argument,
                                           lacking * fs->shape.geometry.block_bytes);
    step_in(fs);
    return freed;
}

/* Return whether space was found for so many more blocks, so that the caller should retry. Sweeping
 * frees files of dead clients, and files that this client could not free because a lock was not
 * available. */
static bool found_room(struct shmfs *fs, int64_t error, uint64_t blocks)
{
    if (error != SHMFS_ERROR_NO_BLOCKS && error != SHMFS_ERROR_NO_INODES &&
        error != SHMFS_ERROR_NO_ENTRIES)
        return false;
    log_discard(fs);
    lock_drop_all(fs);
    const uint32_t owed = fs->has_orphans + fs->lost_count;
    return client_sweep(fs) > 0 || fs->has_orphans + fs->lost_count < owed ||
           others_freed(fs, blocks);
}

static uint64_t blocks_for(const struct shmfs *fs, uint64_t size_bytes)
{
    const uint64_t block_bytes = fs->shape.geometry.block_bytes;
    return size_bytes / block_bytes + (size_bytes % block_bytes != 0);
}

static bool is_writer(struct shmfs *fs, const struct shmfs_handle *handle)
{
    if (fs->options.is_read_only)
        return false;
    const struct image_handle *own = handle_at(fs, fs->client, handle->slot);
    return port_load32(&fs->port, &own->flags) & HANDLE_WRITING;
}

/* --- opening and closing --------------------------------------------------------------------- */

static int create(struct shmfs *fs, const struct name *name, uint64_t size_hint_bytes,
                  struct shmfs_handle *handle)
{
    struct place place;
    struct run row = {0, 0};
    const uint64_t blocks = blocks_for(fs, size_hint_bytes);
    const int64_t slot = handle_find(fs);
    if (slot < 0)
        return (int)slot;
    int64_t entry = name ? directory_lock_free(fs, name, &place, 1) : 0;
    if (entry < 0 && entry != SHMFS_ERROR_NO_ENTRIES)
        return (int)entry;
    if (name && place.entry)
        return SHMFS_ERROR_EXISTS;
    if (entry < 0)
        return (int)entry;
    if (blocks > fs->shape.geometry.block_count)
        return SHMFS_ERROR_NO_BLOCKS;
    const int64_t number = inode_find(fs);
    if (number < 0)
        return (int)number;
    const int has_row = blocks ? fat_find_row(fs, (uint32_t)blocks, &row) : 0;
    if (has_row < 0)
        return has_row;
    if (has_row)
        fat_take(fs, &row, 1);
    inode_take(fs, (uint32_t)number, row, name ? 1 : 0);
    handle_take(fs, (uint32_t)slot, (uint32_t)number, HANDLE_OPEN | HANDLE_WRITING);
    if (name)
        directory_add(fs, name, (uint32_t)entry, (uint32_t)number);
    *handle = (struct shmfs_handle){
        .inode = (uint32_t)number,
        .generation = port_load32(&fs->port, &inode_refresh(fs, (uint32_t)number)->generation),
        .slot = (uint32_t)slot,
    };
    log_commit(fs);
    lock_drop_all(fs);
    if (!blocks || has_row)
        return 0;
    int error = inode_grow(fs, handle, (uint32_t)blocks);
    if (error) {
        if (handle_close(fs, fs->client, handle->slot, true) == SHMFS_ERROR_BUSY)
            handle_lose(fs, handle->slot);
        handle->inode = 0;
    }
    return error;
}

int shmfs_create(struct shmfs *fs, const char *text, uint64_t size_hint_bytes,
                 struct shmfs_handle *handle)
{
    struct name name;
    const uint64_t blocks = blocks_for(fs, size_hint_bytes);
    handle->inode = 0;
    int error = text ? name_read(fs, text, &name) : 0;
    if (error || fs->options.is_read_only)
        return error ? error : SHMFS_ERROR_READ_ONLY;
    enter(fs);
    do
        error = create(fs, text ? &name : NULL, size_hint_bytes, handle);
    while (blocks <= fs->shape.geometry.block_count && found_room(fs, error, blocks));
    return leave(fs, error);
}

enum open_mode { OPEN_COMMITTED, OPEN_DRAFT, OPEN_TO_WRITE };

/* Return the error if a file's state does not allow this mode, otherwise 0. Readers of an
 * uncommitted file prevent other clients from writing to it. */
static int refused(const struct image_inode *inode, enum open_mode mode)
{
    if (inode->flags & INODE_COMMITTED)
        return mode == OPEN_TO_WRITE ? SHMFS_ERROR_COMMITTED : 0;
    if (inode->flags & INODE_WRITING || mode == OPEN_COMMITTED ||
        (mode == OPEN_TO_WRITE && inode->handle_count))
        return SHMFS_ERROR_WRITING;
    return 0;
}

static int open_file(struct shmfs *fs, const struct name *name, enum open_mode mode,
                     struct shmfs_handle *handle)
{
    const bool to_write = mode == OPEN_TO_WRITE;
    struct found found;
    struct image_inode *inode, copy;
    const int64_t slot = handle_find(fs);
    if (slot < 0)
        return (int)slot;
    int error = directory_look(fs, name, &found);
    if (!error)
        error = lock_take(fs, LOCK_INODES, bit(inode_group(fs, found.inode)));
    if (error)
        return error;
    inode = inode_refresh(fs, found.inode);
    error = inode_content(fs, inode, &copy);
    if (!copy.flags || copy.generation != found.generation ||
        (!copy.link_count && !copy.handle_count))
        return SHMFS_ERROR_NOT_FOUND; /* it was removed between the lookup and the lock */
    if (error || (error = refused(&copy, mode)))
        return error;
    log_set32(fs, &inode->handle_count, copy.handle_count + 1);
    if (to_write)
        log_set32(fs, &inode->flags, copy.flags | INODE_WRITING);
    handle_take(fs, (uint32_t)slot, found.inode,
                to_write ? HANDLE_OPEN | HANDLE_WRITING : HANDLE_OPEN);
    log_commit(fs);
    *handle = (struct shmfs_handle){
        .inode = found.inode,
        .generation = found.generation,
        .slot = (uint32_t)slot,
    };
    lock_drop_all(fs);
    error = file_renew(fs, handle, &copy);
    if (error) {
        handle_close(fs, fs->client, handle->slot, false);
        handle->inode = 0;
    }
    return error;
}

/* Open a file for a read-only client, which creates no handle in the image. */
static int open_read_only(struct shmfs *fs, const struct name *name, enum open_mode mode,
                          struct shmfs_handle *handle)
{
    struct found found;
    struct image_inode *inode, copy;
    if (mode == OPEN_TO_WRITE)
        return SHMFS_ERROR_READ_ONLY;
    int error = directory_look(fs, name, &found);
    if (error)
        return error;
    *handle = (struct shmfs_handle){.inode = found.inode, .generation = found.generation};
    if (!(error = handle_inode(fs, handle, &inode)))
        return 0;
    handle->inode = 0;
    inode_snapshot(fs, inode_refresh(fs, found.inode), &copy);
    return copy.generation == found.generation && copy.flags && !(copy.flags & INODE_COMMITTED)
               ? SHMFS_ERROR_WRITING
               : SHMFS_ERROR_NOT_FOUND; /* it was removed after the lookup */
}

static int open_named(struct shmfs *fs, const char *text, enum open_mode mode,
                      struct shmfs_handle *handle)
{
    struct name name;
    handle->inode = 0;
    int error = name_read(fs, text, &name);
    if (error)
        return error;
    enter(fs);
    return leave(fs, (fs->options.is_read_only ? open_read_only : open_file)(fs, &name, mode,
                                                                             handle));
}

int shmfs_open(struct shmfs *fs, const char *name, struct shmfs_handle *handle)
{
    return open_named(fs, name, OPEN_COMMITTED, handle);
}

int shmfs_open_draft(struct shmfs *fs, const char *name, struct shmfs_handle *handle)
{
    return open_named(fs, name, OPEN_DRAFT, handle);
}

int shmfs_reopen(struct shmfs *fs, const char *name, struct shmfs_handle *handle)
{
    return open_named(fs, name, OPEN_TO_WRITE, handle);
}

int shmfs_set_writing(struct shmfs *fs, struct shmfs_handle *handle, bool writes)
{
    struct image_inode *inode, copy;
    enter(fs);
    int error = handle_lock(fs, handle, &inode);
    if (!error)
        error = inode_content(fs, inode, &copy);
    if (!error && copy.flags & INODE_COMMITTED)
        error = SHMFS_ERROR_COMMITTED;
    if (!error && writes && copy.handle_count > 1)
        error = SHMFS_ERROR_WRITING;
    if (!error && !writes) /* other clients may read it */
        error = file_publish(fs, handle, &copy);
    if (!error) {
        log_set32(fs, &inode->flags, INODE_USED | (writes ? INODE_WRITING : 0));
        log_set32(fs, &handle_at(fs, fs->client, handle->slot)->flags,
                  HANDLE_OPEN | (writes ? HANDLE_WRITING : 0));
        log_commit(fs);
    }
    return leave(fs, error);
}

int shmfs_close(struct shmfs *fs, struct shmfs_handle *handle)
{
    struct image_inode *inode, copy;
    enter(fs);
    int error = handle_inode(fs, handle, &inode);
    if (!error && is_writer(fs, handle)) { /* another client may reopen it */
        error = inode_content(fs, inode, &copy);
        if (!error)
            error = file_publish(fs, handle, &copy);
    }
    if (!error && !fs->options.is_read_only)
        error = handle_close(fs, fs->client, handle->slot, false);
    if (!error || error == SHMFS_ERROR_GONE)
        handle->inode = 0;
    return leave(fs, error == SHMFS_ERROR_GONE ? 0 : error);
}

/* Return a result, or GONE if a read-only client may have read blocks of another file. */
static int checked(struct shmfs *fs, const struct shmfs_handle *handle, int result)
{
    struct image_inode *inode;
    const int error = fs->options.is_read_only ? handle_inode(fs, handle, &inode) : 0;
    return error ? error : result;
}

void file_lose(struct shmfs *fs, struct shmfs_handle *handle)
{
    if (shmfs_close(fs, handle) != SHMFS_ERROR_BUSY)
        return;
    enter(fs);
    handle_lose(fs, handle->slot);
    leave(fs, 0);
}

/* --- content --------------------------------------------------------------------------------- */

/* Copy the fields of a reader's inode. If the file is uncommitted, another client may free its
 * reserved blocks; the lock is then held on return. Fails with STALE, GONE. */
static int reading(struct shmfs *fs, struct shmfs_handle *handle, struct image_inode *copy)
{
    struct image_inode *inode;
    int error = handle_inode(fs, handle, &inode);
    if (error)
        return error;
    error = checked(fs, handle, inode_content(fs, inode, copy));
    if (error || copy->flags & INODE_COMMITTED || is_writer(fs, handle))
        return error;
    error = handle_lock(fs, handle, &inode);
    return error ? error : inode_content(fs, inode, copy);
}

/* Copy the fields of a writer's inode. Fails with STALE, COMMITTED. */
static int writing(struct shmfs *fs, struct shmfs_handle *handle, struct image_inode *copy)
{
    struct image_inode *inode;
    int error = handle_inode(fs, handle, &inode);
    if (error)
        return error;
    if (!is_writer(fs, handle))
        return SHMFS_ERROR_COMMITTED;
    return inode_content(fs, inode, copy);
}

static int set_size(struct shmfs *fs, struct shmfs_handle *handle, uint64_t size_bytes)
{
    struct image_inode *inode;
    int error = handle_lock(fs, handle, &inode);
    if (!error) {
        log_set64(fs, &inode->size_bytes, size_bytes);
        log_commit(fs);
    }
    lock_drop_all(fs);
    return error;
}

/* Ensure space up to `end_bytes`, and reserve more blocks for a writer that continues. */
static int make_room(struct shmfs *fs, struct shmfs_handle *handle, struct image_inode *copy,
                     uint64_t end_bytes, bool has_more)
{
    const uint64_t blocks = blocks_for(fs, end_bytes);
    if (blocks <= copy->block_count)
        return 0;
    if (blocks > fs->shape.geometry.block_count)
        return SHMFS_ERROR_NO_BLOCKS;
    const uint32_t spare = has_more ? (copy->block_count < 64 ? copy->block_count : 64) : 0;
    int error = SHMFS_ERROR_NO_BLOCKS;
    if (spare && blocks + spare <= fs->shape.geometry.block_count)
        error = inode_grow(fs, handle, (uint32_t)blocks + spare);
    while (error == SHMFS_ERROR_NO_BLOCKS &&
           (error = inode_grow(fs, handle, (uint32_t)blocks)) &&
           found_room(fs, error, blocks - copy->block_count))
        ;
    return error ? error : writing(fs, handle, copy);
}

static int fill(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *copy,
                const void *from, uint64_t size_bytes, uint64_t offset_bytes)
{
    int error = 0;
    step_out(fs);
    begin_change(fs); /* no lock is held */
    if (offset_bytes > copy->size_bytes)
        error = file_copy_in(fs, handle, copy, NULL, offset_bytes - copy->size_bytes,
                             copy->size_bytes);
    if (!error)
        error = file_copy_in(fs, handle, copy, from, size_bytes, offset_bytes);
    step_in(fs);
    return error;
}

int64_t shmfs_write(struct shmfs *fs, struct shmfs_handle *handle, const void *from,
                    uint64_t size_bytes, uint64_t offset_bytes)
{
    struct image_inode copy;
    const uint64_t end_bytes = offset_bytes + size_bytes;
    if (end_bytes < offset_bytes || end_bytes > INT64_MAX)
        return SHMFS_ERROR_ARGUMENT;
    enter(fs);
    int error = writing(fs, handle, &copy);
    if (!error && size_bytes)
        error = make_room(fs, handle, &copy, end_bytes, true);
    if (!error && size_bytes)
        error = fill(fs, handle, &copy, from, size_bytes, offset_bytes);
    if (!error && size_bytes && end_bytes > copy.size_bytes)
        error = set_size(fs, handle, end_bytes);
    error = leave(fs, error);
    return error ? error : (int64_t)size_bytes;
}

int64_t shmfs_read(struct shmfs *fs, struct shmfs_handle *handle, void *to, uint64_t size_bytes,
                   uint64_t offset_bytes)
{
    struct image_inode copy;
    enter(fs);
    int error = reading(fs, handle, &copy);
    lock_drop_all(fs); /* content before the end does not change */
    if (error)
        return leave(fs, error);
    const uint64_t left_bytes = copy.size_bytes > offset_bytes ? copy.size_bytes - offset_bytes : 0;
    const uint64_t now_bytes = size_bytes < left_bytes ? size_bytes : left_bytes;
    step_out(fs);
    error = file_copy_out(fs, handle, &copy, to, now_bytes, offset_bytes);
    step_in(fs);
    error = leave(fs, checked(fs, handle, error));
    return error ? error : (int64_t)now_bytes;
}

int shmfs_reserve(struct shmfs *fs, struct shmfs_handle *handle, uint64_t size_bytes)
{
    struct image_inode copy;
    enter(fs);
    int error = writing(fs, handle, &copy);
    if (!error)
        error = make_room(fs, handle, &copy, size_bytes, false);
    return leave(fs, error);
}

int shmfs_truncate(struct shmfs *fs, struct shmfs_handle *handle, uint64_t size_bytes)
{
    struct image_inode copy;
    enter(fs);
    int error = writing(fs, handle, &copy);
    if (error)
        return leave(fs, error);
    if (size_bytes > copy.size_bytes) {
        error = make_room(fs, handle, &copy, size_bytes, false);
        if (!error)
            error = fill(fs, handle, &copy, NULL, 0, size_bytes);
        if (!error)
            error = set_size(fs, handle, size_bytes);
    } else {
        error = file_publish(fs, handle, &copy); /* our cache must keep no line of a freed block */
        if (!error)
            error = set_size(fs, handle, size_bytes);
        if (!error)
            error = inode_trim(fs, handle, (uint32_t)blocks_for(fs, size_bytes));
        if (error == SHMFS_ERROR_BUSY) { /* the size is set; keeping the blocks does no harm */
            struct image_inode now;
            error = !writing(fs, handle, &now) && now.size_bytes == size_bytes ? 0 : error;
        }
    }
    return leave(fs, error);
}

int shmfs_place(struct shmfs *fs, struct shmfs_handle *handle, uint64_t offset_bytes,
                uint64_t *data_offset_bytes, uint64_t *run_bytes)
{
    struct image_inode copy;
    const uint64_t block_bytes = fs->shape.geometry.block_bytes;
    const uint64_t index = offset_bytes / block_bytes;
    enter(fs);
    int error = reading(fs, handle, &copy);
    if (error)
        return leave(fs, error);
    const int64_t block = file_block(fs, handle, &copy, index);
    if (block < 0)
        return leave(fs, checked(fs, handle, (int)block));
    uint32_t after;
    const int64_t count = copy.run_count <= 1
                              ? (int64_t)(copy.block_count - index)
                              : fat_run(fs, (uint32_t)block, &after);
    if (count < 0)
        return leave(fs, checked(fs, handle, (int)count));
    *data_offset_bytes = (uint64_t)(block - 1) * block_bytes + offset_bytes % block_bytes;
    *run_bytes = (uint64_t)count * block_bytes - offset_bytes % block_bytes;
    return leave(fs, checked(fs, handle, 0));
}

int shmfs_wrote(struct shmfs *fs, struct shmfs_handle *handle, uint64_t size_bytes)
{
    struct image_inode copy;
    enter(fs);
    int error = writing(fs, handle, &copy);
    if (!error && blocks_for(fs, size_bytes) > copy.block_count)
        error = SHMFS_ERROR_ARGUMENT;
    if (!error && size_bytes > copy.size_bytes)
        error = set_size(fs, handle, size_bytes);
    return leave(fs, error);
}

int shmfs_set_tag(struct shmfs *fs, struct shmfs_handle *handle, uint64_t tag)
{
    struct image_inode *inode;
    enter(fs);
    int error = handle_lock(fs, handle, &inode);
    if (!error) {
        log_set64(fs, &inode->tag, tag);
        log_commit(fs);
    }
    return leave(fs, error);
}

static int commit(struct shmfs *fs, struct shmfs_handle *handle, const struct name *name)
{
    struct image_inode *inode, copy;
    struct place place;
    struct found found;
    int error = handle_inode(fs, handle, &inode);
    if (!error)
        error = inode_content(fs, inode, &copy);
    if (!error && copy.flags & INODE_COMMITTED)
        error = SHMFS_ERROR_COMMITTED;
    if (!error && name) { /* check this before trimming the reserved blocks */
        error = directory_look(fs, name, &found);
        error = !error ? SHMFS_ERROR_EXISTS : error == SHMFS_ERROR_NOT_FOUND ? 0 : error;
    }
    if (!error)
        error = file_publish(fs, handle, &copy);
    if (!error && copy.block_count > blocks_for(fs, copy.size_bytes))
        error = inode_trim(fs, handle, (uint32_t)blocks_for(fs, copy.size_bytes));
    lock_drop_all(fs);
    if (error)
        return error;
    const int64_t entry = name ? directory_lock_free(fs, name, &place, 1) : 0;
    if (entry < 0 && entry != SHMFS_ERROR_NO_ENTRIES)
        return (int)entry;
    if (name && place.entry)
        return SHMFS_ERROR_EXISTS;
    if (entry < 0)
        return (int)entry;
    if ((error = handle_lock(fs, handle, &inode)))
        return error;
    if (port_load32(&fs->port, &inode->flags) & INODE_COMMITTED)
        return SHMFS_ERROR_COMMITTED; /* another client that reads it has just committed it */
    const uint32_t link_count = port_load32(&fs->port, &inode->link_count);
    if (name && link_count == SHMFS_LINK_MAX)
        return SHMFS_ERROR_LINKS;
    log_set32(fs, &inode->flags, INODE_USED | INODE_COMMITTED);
    log_set32(fs, &handle_at(fs, fs->client, handle->slot)->flags, HANDLE_OPEN);
    if (name) {
        log_set32(fs, &inode->link_count, link_count + 1);
        directory_add(fs, name, (uint32_t)entry, handle->inode);
    }
    log_commit(fs);
    return 0;
}

int shmfs_commit(struct shmfs *fs, struct shmfs_handle *handle, const char *text)
{
    struct name name;
    int error = text ? name_read(fs, text, &name) : 0;
    if (error)
        return error;
    enter(fs);
    do
        error = commit(fs, handle, text ? &name : NULL);
    while (found_room(fs, error, 0));
    return leave(fs, error);
}

/* --- names ----------------------------------------------------------------------------------- */

int64_t shmfs_lookup(struct shmfs *fs, const char *text)
{
    struct name name;
    struct found found = {0};
    int error = name_read(fs, text, &name);
    if (error)
        return error;
    if (PORT_COHERENT && !(error = directory_look_once(fs, &name, &found)))
        return found.inode;
    if (error == SHMFS_ERROR_NOT_FOUND)
        return error;
    enter(fs);
    error = leave(fs, directory_look(fs, &name, &found));
    return error ? error : (int64_t)found.inode;
}

/* shmfs_stat for a read-only client. */
static int stat_read_only(struct shmfs *fs, const struct name *name, struct shmfs_info *info)
{
    struct found found;
    int error = directory_look(fs, name, &found);
    if (error)
        return error;
    inode_info(fs, found.inode, info);
    port_fence(&fs->port);
    if (port_load32(&fs->port, &inode_refresh(fs, found.inode)->generation) != found.generation ||
        (!info->link_count && !info->handle_count))
        return SHMFS_ERROR_NOT_FOUND; /* it was removed after the lookup */
    return 0;
}

static int stat_found(struct shmfs *fs, const struct name *name, struct shmfs_info *info)
{
    struct place place;
    int error = directory_lock(fs, name, &place, 1);
    if (!error && !place.entry)
        error = SHMFS_ERROR_NOT_FOUND;
    if (!error)
        error = lock_take(fs, LOCK_INODES, bit(inode_group(fs, place.inode)));
    if (!error)
        inode_info(fs, place.inode, info);
    return error;
}

int shmfs_stat(struct shmfs *fs, const char *text, struct shmfs_info *info)
{
    struct name name;
    int error = name_read(fs, text, &name);
    if (error)
        return error;
    enter(fs);
    return leave(fs, (fs->options.is_read_only ? stat_read_only : stat_found)(fs, &name, info));
}

int shmfs_stat_handle(struct shmfs *fs, struct shmfs_handle *handle, struct shmfs_info *info)
{
    struct image_inode *inode;
    enter(fs);
    int error = (fs->options.is_read_only ? handle_inode : handle_lock)(fs, handle, &inode);
    if (!error)
        inode_info(fs, handle->inode, info);
    return leave(fs, error ? error : checked(fs, handle, 0));
}

static int link_names(struct shmfs *fs, const struct name *names)
{
    struct place places[2];
    const int64_t entry = directory_lock_free(fs, names, places, 2);
    if (entry < 0 && entry != SHMFS_ERROR_NO_ENTRIES)
        return (int)entry;
    if (!places[0].entry)
        return SHMFS_ERROR_NOT_FOUND;
    if (places[1].entry)
        return SHMFS_ERROR_EXISTS;
    if (entry < 0)
        return (int)entry;
    const uint32_t number = places[0].inode;
    int error = lock_take(fs, LOCK_INODES, bit(inode_group(fs, number)));
    if (error)
        return error;
    struct image_inode *inode = inode_refresh(fs, number);
    const uint32_t link_count = port_load32(&fs->port, &inode->link_count);
    if (link_count == SHMFS_LINK_MAX)
        return SHMFS_ERROR_LINKS;
    log_set32(fs, &inode->link_count, link_count + 1);
    directory_add(fs, &names[1], (uint32_t)entry, number);
    log_commit(fs);
    return 0;
}

static int read_two(const struct shmfs *fs, const char *one, const char *other, struct name *names)
{
    int error = name_read(fs, one, &names[0]);
    return error ? error : name_read(fs, other, &names[1]);
}

int shmfs_link(struct shmfs *fs, const char *target, const char *text)
{
    struct name names[2];
    int error = read_two(fs, target, text, names);
    if (error)
        return error;
    enter(fs);
    do
        error = link_names(fs, names);
    while (found_room(fs, error, 0));
    return leave(fs, error);
}

/* Record that a file loses a name; then commit the transaction. */
static int lose_name(struct shmfs *fs, uint32_t number)
{
    struct image_inode copy;
    inode_snapshot(fs, inode_refresh(fs, number), &copy);
    const int more = inode_count(fs, number, copy.link_count - 1, copy.handle_count);
    if (more < 0)
        return more;
    log_commit(fs);
    lock_drop_all(fs);
    if (more && inode_drain(fs, number, copy.generation))
        fs->has_orphans = true; /* the name is removed anyway; a sweep frees the rest */
    return 0;
}

static int unlink_name(struct shmfs *fs, const struct name *name)
{
    struct place place;
    int error = directory_lock(fs, name, &place, 1);
    if (!error && !place.entry)
        error = SHMFS_ERROR_NOT_FOUND;
    if (!error)
        error = lock_take(fs, LOCK_INODES, bit(inode_group(fs, place.inode)));
    if (error)
        return error;
    directory_remove(fs, name, place);
    return lose_name(fs, place.inode);
}

int shmfs_unlink(struct shmfs *fs, const char *text)
{
    struct name name;
    int error = name_read(fs, text, &name);
    if (error)
        return error;
    enter(fs);
    return leave(fs, unlink_name(fs, &name));
}

static int rename_names(struct shmfs *fs, const struct name *names, bool replace)
{
    struct place places[2];
    int error = directory_lock(fs, names, places, 2);
    if (error)
        return error;
    if (!places[0].entry)
        return SHMFS_ERROR_NOT_FOUND;
    if (places[1].entry && !replace)
        return SHMFS_ERROR_EXISTS;
    if (!places[1].entry) {
        directory_rename(fs, &names[0], places[0], &names[1]);
        log_commit(fs);
        return 0;
    }
    if (places[0].inode == places[1].inode)
        return 0; /* as in POSIX: both names of the same file stay */
    error = lock_take(fs, LOCK_INODES, bit(inode_group(fs, places[1].inode)));
    if (error)
        return error;
    log_set32(fs, &entry_refresh(fs, places[1].entry)->inode, places[0].inode);
    log_names(fs, bit(names[1].group));
    directory_remove(fs, &names[0], places[0]);
    return lose_name(fs, places[1].inode);
}

int shmfs_rename(struct shmfs *fs, const char *from, const char *to, bool replace)
{
    struct name names[2];
    int error = read_two(fs, from, to, names);
    if (error)
        return error;
    enter(fs);
    return leave(fs, rename_names(fs, names, replace));
}

/* Read one entry for a listing: returns 1 if it is in use. */
static int list_one(struct shmfs *fs, uint32_t number, char *text, struct shmfs_info *info)
{
    struct name name;
    uint32_t inode;
    if (!entry_is_used(fs, number, &inode))
        return 0; /* it may change during the listing */
    int error = lock_take(fs, LOCK_DIRECTORY, bit(entry_group(fs, number)));
    if (error || !entry_is_used(fs, number, &inode))
        return error;
    name_of(fs, entry_refresh(fs, number), &name);
    memcpy(text, name.words, name.size_bytes);
    text[name.size_bytes] = 0;
    if (!inode_refresh(fs, inode))
        return SHMFS_ERROR_CORRUPT;
    error = lock_take(fs, LOCK_INODES, bit(inode_group(fs, inode)));
    if (error)
        return error;
    inode_info(fs, inode, info);
    return 1;
}

/* list_one for a read-only client: BUSY if the name changed meanwhile. */
static int list_read_only(struct shmfs *fs, uint32_t number, char *text, struct shmfs_info *info)
{
    struct name name;
    uint32_t inode;
    const struct image_entry *entry = entry_refresh(fs, number);
    name_of(fs, entry, &name); /* may be outdated; it selects the group whose sequence to watch */
    const uint32_t group = name.group;
    const uint32_t *place = &group_at(fs, group)->sequence;
    const uint32_t sequence = port_look32(&fs->port, place);
    if (!entry_is_used(fs, number, &inode))
        return 0;
    port_fence(&fs->port);
    name_of(fs, entry, &name);
    const bool is_inode = inode_refresh(fs, inode);
    if (is_inode)
        inode_info(fs, inode, info);
    port_fence(&fs->port);
    if (sequence & 1 || name.group != group || port_load32(&fs->port, place) != sequence)
        return SHMFS_ERROR_BUSY;
    memcpy(text, name.words, name.size_bytes);
    text[name.size_bytes] = 0;
    return is_inode ? 1 : SHMFS_ERROR_CORRUPT;
}

int shmfs_list(struct shmfs *fs, uint64_t *cursor, char *name, struct shmfs_info *info)
{
    int result = 0;
    uint32_t tries = 0;
    enter(fs);
    while (!result && *cursor < fs->shape.geometry.entry_count) {
        result = (fs->options.is_read_only ? list_read_only : list_one)(fs, (uint32_t)*cursor + 1,
                                                                       name, info);
        lock_drop_all(fs);
        if (result >= 0)
            ++*cursor;
        else if (result == SHMFS_ERROR_BUSY && fs->options.is_read_only &&
                 read_only_wait(fs, &tries))
            result = 0;
    }
    return leave(fs, result);
}

/* --- sweeping and statistics ----------------------------------------------------------------- */

int shmfs_sweep(struct shmfs *fs)
{
    if (fs->options.is_read_only)
        return SHMFS_ERROR_READ_ONLY;
    enter(fs);
    return leave(fs, client_sweep(fs));
}

struct shmfs_geometry shmfs_geometry_of(const struct shmfs *fs)
{
    return fs->shape.geometry;
}

uint32_t shmfs_client_of(const struct shmfs *fs)
{
    return fs->client;
}

int shmfs_statfs(struct shmfs *fs, struct shmfs_statistics *statistics)
{
    const struct shmfs_geometry *geometry = &fs->shape.geometry;
    struct image_statistics *shared = statistics_of(fs);
    *statistics = (struct shmfs_statistics){
        .block_bytes = geometry->block_bytes,
        .block_count = geometry->block_count,
        .inode_count = geometry->inode_count,
        .entry_count = geometry->entry_count,
        .client_count = geometry->client_count,
        .recovery_count = port_register_load(&shared->recovery_count),
        .sweep_count = port_register_load(&shared->sweep_count),
        .lock_wait_count = port_register_load(&shared->lock_wait_count),
    };
    enter(fs);
    port_invalidate(&fs->port, shared, sizeof shared->io_count);
    statistics->io_count = port_load32(&fs->port, &shared->io_count);
    for (uint32_t i = 0; i < geometry->client_count; i++)
        statistics->attached_count +=
            port_register_load(&client_at(fs, i)->state) == CLIENT_ATTACHED;
    statistics->free_block_count = free_blocks(fs);
    for (uint32_t i = 0; i < geometry->shard_count; i++) {
        const struct image_group *group = group_at(fs, i);
        statistics->free_inode_count += port_load32(&fs->port, &group->inode_free_count);
        statistics->free_entry_count += port_load32(&fs->port, &group->entry_free_count);
    }
    return leave(fs, 0);
}

const char *shmfs_error_text(int error)
{
    switch (error) {
    case 0: return "success";
    case SHMFS_ERROR_ARGUMENT: return "invalid argument";
    case SHMFS_ERROR_NAME: return "a name has 1 to 255 bytes, and no slash";
    case SHMFS_ERROR_NOT_FOUND: return "there is no file of that name";
    case SHMFS_ERROR_EXISTS: return "a file of that name exists already";
    case SHMFS_ERROR_COMMITTED: return "the file is committed and can no longer change";
    case SHMFS_ERROR_WRITING: return "the file is not committed";
    case SHMFS_ERROR_NO_BLOCKS: return "the image has no free blocks for more content";
    case SHMFS_ERROR_NO_INODES: return "the image has no free inode for another file";
    case SHMFS_ERROR_NO_ENTRIES: return "the image has no free entry for another name";
    case SHMFS_ERROR_NO_HANDLES: return "this process has too many files open";
    case SHMFS_ERROR_NO_CLIENTS: return "too many processes are attached";
    case SHMFS_ERROR_LINKS: return "the file has too many names";
    case SHMFS_ERROR_STALE: return "the file is not open";
    case SHMFS_ERROR_CORRUPT: return "the image is damaged; shmfsck says where";
    case SHMFS_ERROR_FORMAT: return "not an image, or a different version, geometry or machine";
    case SHMFS_ERROR_BUSY:
        return "another process did not finish its change in time; if it died, run shmfsck --sweep";
    case SHMFS_ERROR_TOO_SMALL: return "the memory is too small for an image of this geometry";
    case SHMFS_ERROR_SYSTEM: return "a system call failed";
    case SHMFS_ERROR_LIMIT: return "the maximum number of disk jobs is running";
    case SHMFS_ERROR_READ_ONLY: return "the image is attached read-only";
    case SHMFS_ERROR_GONE: return "the file was removed while it was read";
    default: return "an unknown error";
    }
}
