/* file.c: content of open files. Takes no lock: a file has one writer until commit, then none. */
#include "core.h"

int64_t file_block(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode,
                   uint64_t index)
{
    if (index >= inode->block_count)
        return SHMFS_ERROR_ARGUMENT;
    if (inode->run_count <= 1) /* `inode_content` has checked that the run is valid */
        return (int64_t)(inode->first_block + index);
    int64_t block = inode->first_block;
    uint64_t at = 0;
    if (handle->place_block && handle->place_index <= index)
        block = (int64_t)handle->place_block, at = handle->place_index;
    for (; at < index; at++)
        if ((block = fat_next(fs, (uint32_t)block)) < 0 || block == FAT_END)
            return SHMFS_ERROR_CORRUPT;
    handle->place_block = (uint64_t)block;
    handle->place_index = index;
    return block;
}

/* Return where a byte is, and limit `size_bytes` to what follows it in its block, or in the run. */
static int64_t place_of(struct shmfs *fs, struct shmfs_handle *handle,
                        const struct image_inode *inode, uint64_t offset_bytes,
                        uint64_t *size_bytes)
{
    const uint64_t block_bytes = fs->shape.geometry.block_bytes;
    const int64_t block = file_block(fs, handle, inode, offset_bytes / block_bytes);
    if (block < 0)
        return block;
    const uint64_t row_bytes = (inode->run_count <= 1 ? inode->block_count * block_bytes
                                                      : (offset_bytes / block_bytes + 1) *
                                                            block_bytes) -
                               offset_bytes;
    if (*size_bytes > row_bytes)
        *size_bytes = row_bytes;
    return (block - 1) * (int64_t)block_bytes + (int64_t)(offset_bytes % block_bytes);
}

int file_copy_in(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode,
                 const void *from, uint64_t size_bytes, uint64_t offset_bytes)
{
    static const uint8_t zeros[4096];
    const uint8_t *content = from;
    while (size_bytes) {
        uint64_t now_bytes = size_bytes;
        if (!from && now_bytes > sizeof zeros)
            now_bytes = sizeof zeros;
        const int64_t place = place_of(fs, handle, inode, offset_bytes, &now_bytes);
        if (place < 0)
            return (int)place;
        port_write(&fs->port, fs->data + place, from ? content : zeros, now_bytes);
        if (from)
            content += now_bytes;
        offset_bytes += now_bytes;
        size_bytes -= now_bytes;
    }
    return 0;
}

int file_copy_out(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode,
                  void *to, uint64_t size_bytes, uint64_t offset_bytes)
{
    uint8_t *content = to;
    while (size_bytes) {
        uint64_t now_bytes = size_bytes;
        const int64_t place = place_of(fs, handle, inode, offset_bytes, &now_bytes);
        if (place < 0)
            return (int)place;
        port_read(&fs->port, content, fs->data + place, now_bytes);
        content += now_bytes;
        offset_bytes += now_bytes;
        size_bytes -= now_bytes;
    }
    return 0;
}

static int over_content(struct shmfs *fs, struct shmfs_handle *handle,
                        const struct image_inode *inode, uint64_t end_bytes,
                        void (*act)(struct port *, const void *, size_t))
{
    for (uint64_t offset_bytes = 0; !PORT_COHERENT && offset_bytes < end_bytes;) {
        uint64_t now_bytes = end_bytes - offset_bytes;
        const int64_t place = place_of(fs, handle, inode, offset_bytes, &now_bytes);
        if (place < 0)
            return (int)place;
        act(&fs->port, fs->data + place, now_bytes);
        offset_bytes += now_bytes;
    }
    return 0;
}

int file_publish(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode)
{
    /* All blocks: the writer may not have reported its stores in place, and no line may stay in
     * our cache of a block that is freed. The fence of the transaction waits for these flushes. */
    return over_content(fs, handle, inode, inode->block_count * fs->shape.geometry.block_bytes,
                        port_flush);
}

int file_renew(struct shmfs *fs, struct shmfs_handle *handle, const struct image_inode *inode)
{
    return over_content(fs, handle, inode, inode->size_bytes, port_invalidate);
}
