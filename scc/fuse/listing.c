/* listing.c: FUSE operations that list names and report free space. */
#include <errno.h>
#include <stdlib.h>

#include "operations.h"

enum {
    DOT = 1, /* directory offsets; the image's cursor follows these */
    DOT_DOT,
    FIRST_NAME,
};

/* Add a name to the buffer; returns false if it does not fit. */
static bool add_name(fuse_req_t request, char *to, size_t size_bytes, size_t *used,
                     const char *name, ino_t number, mode_t type, off_t next)
{
    struct stat attributes = {.st_ino = number, .st_mode = type};
    size_t more = fuse_add_direntry(request, to + *used, size_bytes - *used, name, &attributes,
                                    next);
    if (more > size_bytes - *used)
        return false;
    *used += more;
    return true;
}

static void do_readdir(fuse_req_t request, fuse_ino_t id, size_t size_bytes, off_t offset,
                       struct fuse_file_info *file)
{
    (void)file;
    char *names = id == FUSE_ROOT_ID ? malloc(size_bytes) : NULL;
    if (!names) {
        fuse_reply_err(request, id == FUSE_ROOT_ID ? ENOMEM : ENOTDIR);
        return;
    }
    size_t used = 0;
    bool fits = true;
    int found = 0;
    if (offset < DOT)
        fits = add_name(request, names, size_bytes, &used, ".", FUSE_ROOT_ID, S_IFDIR, DOT);
    if (fits && offset < DOT_DOT)
        fits = add_name(request, names, size_bytes, &used, "..", FUSE_ROOT_ID, S_IFDIR, DOT_DOT);
    uint64_t cursor = offset < FIRST_NAME ? 0 : (uint64_t)offset - DOT_DOT;
    while (fits) {
        char name[SHMFS_NAME_MAX_BYTES + 1];
        struct shmfs_info info;
        found = shmfs_list(mount_of(request)->fs, &cursor, name, &info);
        if (found <= 0)
            break;
        fits = add_name(request, names, size_bytes, &used, name, info.inode + 1, S_IFREG,
                        (off_t)cursor + DOT_DOT);
    }
    int error = error_number(found);
    if (error == EIO || (error && !used))
        fuse_reply_err(request, error);
    else
        fuse_reply_buf(request, names, used);
    free(names);
}

static void do_statfs(fuse_req_t request, fuse_ino_t id)
{
    (void)id;
    struct shmfs_statistics s;
    int error = error_number(shmfs_statfs(mount_of(request)->fs, &s));
    struct statvfs reply = {
        .f_bsize = s.block_bytes,
        .f_frsize = s.block_bytes,
        .f_blocks = s.block_count,
        .f_bfree = s.free_block_count,
        .f_bavail = s.free_block_count,
        .f_files = s.inode_count,
        .f_ffree = s.free_inode_count,
        .f_favail = s.free_inode_count,
        .f_namemax = SHMFS_NAME_MAX_BYTES,
    };
    if (error)
        fuse_reply_err(request, error);
    else
        fuse_reply_statfs(request, &reply);
}

void operations_of_listing(struct fuse_lowlevel_ops *operations)
{
    operations->readdir = do_readdir;
    operations->statfs = do_statfs;
}
