/* contents.c: FUSE operations on the content of files. */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <sys/uio.h>

#include "cutting.h"
#include "operations.h"

enum {
    REQUEST_MAX_BYTES = 1 << 20,
    RUNS_MAX = REQUEST_MAX_BYTES / SHMFS_BLOCK_MIN_BYTES + 1,
};

static void do_init(void *data, struct fuse_conn_info *connection)
{
    const struct mount *mount = data;
    connection->max_write = REQUEST_MAX_BYTES;
    connection->max_readahead = REQUEST_MAX_BYTES;
    /* Content that the kernel keeps in its cache never changes behind its back: see open_node. */
    connection->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
    if (mount->is_writeback)
        connection->want |= connection->capable & FUSE_CAP_WRITEBACK_CACHE;
}

static bool is_writer(const struct fuse_file_info *file)
{
    return (file->flags & O_ACCMODE) != O_RDONLY;
}

static int open_node(struct mount *mount, struct node *node, struct fuse_file_info *file)
{
    bool is_first = !node->open_count;
    bool is_cut = file->flags & O_TRUNC, writes = is_writer(file) || is_cut;
    int error = node_open(mount, node, writes);
    if (error)
        return error;
    if (writes && node->is_committed)
        error = EROFS;
    else if (is_cut)
        error = error_number(shmfs_truncate(mount->fs, &node->handle, 0));
    if (!error && writes && !is_writer(file)) {
        error = node_stop_writing(mount, node);
        writes = false;
    }
    if (error) {
        node_close(mount, node, writes);
        return error;
    }
    if (is_cut) {
        node->size_bytes = 0;
        node->modified = node->changed = now();
    }
    /* Committed content never changes, and while a file is open here, every change to it goes
     * through the kernel. In all other cases the kernel must drop its cached content. */
    file->keep_cache = node->is_kept || !is_first;
    node->is_kept = node->is_committed;
    file->noflush = 1;
    return 0;
}

static void do_open(fuse_req_t request, fuse_ino_t id, struct fuse_file_info *file)
{
    struct mount *mount = mount_of(request);
    struct node *node = node_find(mount, id);
    int error = ESTALE;
    if (node) {
        error = open_node(mount, node, file);
        node_drop(mount, node);
    }
    if (error)
        fuse_reply_err(request, error);
    else
        fuse_reply_open(request, file);
}

static void do_release(fuse_req_t request, fuse_ino_t id, struct fuse_file_info *file)
{
    struct mount *mount = mount_of(request);
    struct node *node = node_find(mount, id);
    int error = ESTALE;
    if (node) {
        error = node_close(mount, node, is_writer(file));
        node_drop(mount, node);
    }
    fuse_reply_err(request, error);
}

/* Find the bytes in the mapping, as a list of runs. Returns their number, or an error of shmfs. */
static int place(struct mount *mount, struct node *node, uint64_t size_bytes, uint64_t offset_bytes,
                 struct iovec rows[RUNS_MAX])
{
    int count = 0;
    while (size_bytes && count < RUNS_MAX) {
        uint64_t data_offset_bytes, run_bytes;
        int error = shmfs_place(mount->fs, &node->handle, offset_bytes, &data_offset_bytes,
                                &run_bytes);
        if (error)
            return error;
        if (run_bytes > size_bytes)
            run_bytes = size_bytes;
        /* an iovec cannot say so, but this is only read */
        rows[count].iov_base = (void *)(uintptr_t)(mount->data + data_offset_bytes);
        rows[count++].iov_len = run_bytes;
        size_bytes -= run_bytes;
        offset_bytes += run_bytes;
    }
    return count;
}

static void do_read(fuse_req_t request, fuse_ino_t id, size_t size_bytes, off_t offset,
                    struct fuse_file_info *file)
{
    (void)file;
    struct mount *mount = mount_of(request);
    struct node *node = node_find(mount, id);
    if (!node) {
        fuse_reply_err(request, ESTALE);
        return;
    }
    struct iovec rows[RUNS_MAX];
    uint64_t begin = (uint64_t)offset;
    uint64_t left = begin < node->size_bytes ? node->size_bytes - begin : 0;
    int count = place(mount, node, left < size_bytes ? left : size_bytes, begin, rows);
    int error = error_number(count);
    /* Reply before unlocking, because the file may be truncated afterwards. */
    if (error)
        fuse_reply_err(request, error);
    else if (fuse_reply_iov(request, rows, count) == -EFAULT) /* the kernel returned EIO */
        note_cutting();
    node_drop(mount, node);
}

static void do_write(fuse_req_t request, fuse_ino_t id, const char *from, size_t size_bytes,
                     off_t offset, struct fuse_file_info *file)
{
    struct mount *mount = mount_of(request);
    struct node *node = node_find(mount, id);
    if (!node) {
        fuse_reply_err(request, ESTALE);
        return;
    }
    int64_t written = shmfs_write(mount->fs, &node->handle, from, size_bytes, (uint64_t)offset);
    int error = error_number(written);
    if (!error) {
        uint64_t end = (uint64_t)offset + size_bytes;
        node->size_bytes = end > node->size_bytes ? end : node->size_bytes;
        node->modified = node->changed = now();
    }
    bool is_late = error && file->writepage; /* no program learns of this error */
    bool is_committed = node->is_committed;
    if (is_late && !is_committed && !node->write_error)
        node->write_error = error;
    node_drop(mount, node);
    if (error)
        fuse_reply_err(request, error);
    else
        fuse_reply_write(request, (size_t)written);
    /* A program wrote to a mapping that outlived the commit: the kernel must drop those bytes. */
    if (is_late && is_committed)
        fuse_lowlevel_notify_inval_inode(mount->session, id, offset, (off_t)size_bytes);
}

static int allocate(struct mount *mount, struct node *node, int mode, uint64_t end)
{
    if (node->is_committed)
        return EROFS;
    int error = 0;
    if (mode & FALLOC_FL_KEEP_SIZE) {
        error = error_number(shmfs_reserve(mount->fs, &node->handle, end));
    } else if (end > node->size_bytes) { /* a file has no holes before its end */
        error = error_number(shmfs_truncate(mount->fs, &node->handle, end));
        if (!error)
            node->size_bytes = end;
    }
    if (!error)
        node->modified = node->changed = now();
    return error;
}

static void do_fallocate(fuse_req_t request, fuse_ino_t id, int mode, off_t offset, off_t length,
                         struct fuse_file_info *file)
{
    (void)file;
    struct mount *mount = mount_of(request);
    struct node *node = node_find(mount, id);
    int error = node ? EOPNOTSUPP : ESTALE;
    if (node) {
        if (!(mode & ~FALLOC_FL_KEEP_SIZE))
            error = allocate(mount, node, mode, (uint64_t)offset + (uint64_t)length);
        node_drop(mount, node);
    }
    fuse_reply_err(request, error);
}

/* Syncing does nothing: shared memory has no disk. */
static void do_fsync(fuse_req_t request, fuse_ino_t id, int is_data, struct fuse_file_info *file)
{
    (void)id, (void)is_data, (void)file;
    fuse_reply_err(request, 0);
}

void operations_of_contents(struct fuse_lowlevel_ops *operations)
{
    operations->init = do_init;
    operations->open = do_open;
    operations->release = do_release;
    operations->read = do_read;
    operations->write = do_write;
    operations->fallocate = do_fallocate;
    operations->fsync = do_fsync;
    operations->fsyncdir = do_fsync;
}
