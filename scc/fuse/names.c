/* names.c: FUSE operations on names, and on files that need not be open. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>

#include "operations.h"

/* Reply with an error, and return true, for an invalid parent or name. There is only one
 * directory. */
static bool is_refused(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    int error = parent != FUSE_ROOT_ID ? ENOTDIR
                : strlen(name) > SHMFS_NAME_MAX_BYTES ? ENAMETOOLONG
                                                      : 0;
    if (error)
        fuse_reply_err(request, error);
    return error;
}

/* Return how long the kernel may cache attributes: other clients may write to a file that is not
 * open here. */
static double timeout_s(const struct mount *mount, const struct node *node)
{
    return node->is_committed || node->open_count ? mount->attribute_timeout_s : 0;
}

static void fill_entry(const struct mount *mount, const struct node *node,
                       const struct shmfs_info *info, struct fuse_entry_param *entry)
{
    *entry = (struct fuse_entry_param){
        .ino = node_id(info->inode, info->generation),
        .generation = info->generation,
        .attr_timeout = timeout_s(mount, node),
        .entry_timeout = mount->entry_timeout_s,
    };
    node_attributes(mount, node, info, &entry->attr);
}

/* Reply with the file that has this name now. */
static void reply_named(fuse_req_t request, const char *name)
{
    struct mount *mount = mount_of(request);
    struct shmfs_info info;
    int error = error_number(shmfs_stat(mount->fs, name, &info));
    if (error) {
        fuse_reply_err(request, error);
        return;
    }
    struct fuse_entry_param entry;
    struct node *node = node_take(mount, &info, name);
    fill_entry(mount, node, &info, &entry);
    node_drop(mount, node);
    fuse_reply_entry(request, &entry);
}

static void do_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    if (!is_refused(request, parent, name))
        reply_named(request, name);
}

/* Change the directory's attributes as `what` says, and reply with them. */
static void reply_root(fuse_req_t request, const struct stat *to, int what)
{
    struct mount *mount = mount_of(request);
    struct stat attributes = directory_change(mount, to, what);
    fuse_reply_attr(request, &attributes, mount->attribute_timeout_s);
}

static void do_getattr(fuse_req_t request, fuse_ino_t id, struct fuse_file_info *file)
{
    (void)file;
    if (id == FUSE_ROOT_ID) {
        reply_root(request, NULL, 0);
        return;
    }
    struct mount *mount = mount_of(request);
    struct node *node = node_find(mount, id);
    struct shmfs_info info;
    struct stat attributes = {0};
    double valid_s = 0;
    int error = ESTALE;
    if (node) {
        error = node_stat(mount, node, &info);
        if (!error)
            node_attributes(mount, node, &info, &attributes);
        valid_s = timeout_s(mount, node);
        node_drop(mount, node);
    }
    if (error)
        fuse_reply_err(request, error);
    else
        fuse_reply_attr(request, &attributes, valid_s);
}

/* Change the mode. Removing all write permissions commits the file, for good. */
static int change_mode(struct mount *mount, struct node *node, mode_t mode)
{
    if (!(mode & 0222)) {
        int error = node_commit(mount, node);
        if (error)
            return error;
    } else if (node->is_committed) {
        return EROFS;
    } else {
        node->is_to_commit = false;
    }
    node->mode = mode & 07777;
    return 0;
}

static int change_size(struct mount *mount, struct node *node, uint64_t size_bytes)
{
    int error = node_open(mount, node, true);
    if (error)
        return error;
    error = node->is_committed
                ? EROFS
                : error_number(shmfs_truncate(mount->fs, &node->handle, size_bytes));
    if (!error) {
        node->size_bytes = size_bytes;
        node->modified = now();
    }
    int closed = node_close(mount, node, true);
    return error ? error : closed;
}

static int change(struct mount *mount, struct node *node, const struct stat *to, int what)
{
    struct shmfs_info info;
    int error = node_stat(mount, node, &info);
    if (!error && what & FUSE_SET_ATTR_SIZE)
        error = change_size(mount, node, (uint64_t)to->st_size);
    if (!error && what & FUSE_SET_ATTR_MODE)
        error = change_mode(mount, node, to->st_mode);
    if (error)
        return error;
    struct timespec time = now();
    if (what & FUSE_SET_ATTR_UID)
        node->uid = to->st_uid;
    if (what & FUSE_SET_ATTR_GID)
        node->gid = to->st_gid;
    if (what & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW))
        node->accessed = what & FUSE_SET_ATTR_ATIME_NOW ? time : to->st_atim;
    if (what & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW))
        node->modified = what & FUSE_SET_ATTR_MTIME_NOW ? time : to->st_mtim;
    node->changed = what & FUSE_SET_ATTR_CTIME ? to->st_ctim : time;
    return 0;
}

/* Make the kernel write back what programs stored in mappings of a file, before it is committed.
 * The kernel replies after we have written it, so the caller must hold no lock. */
static void fetch_mapped(struct mount *mount, fuse_ino_t id)
{
    struct node *node = node_find(mount, id);
    if (!node)
        return;
    bool is_open = !node->is_committed && node->open_count;
    node_drop(mount, node);
    if (is_open)
        fuse_lowlevel_notify_inval_inode(mount->session, id, 0, 0);
}

static void do_setattr(fuse_req_t request, fuse_ino_t id, struct stat *to, int what,
                       struct fuse_file_info *file)
{
    (void)file;
    if (id == FUSE_ROOT_ID) {
        reply_root(request, to, what);
        return;
    }
    struct mount *mount = mount_of(request);
    if (what & FUSE_SET_ATTR_MODE && !(what & FUSE_SET_ATTR_SIZE) && !(to->st_mode & 0222))
        fetch_mapped(mount, id);
    struct node *node = node_find(mount, id);
    struct shmfs_info info;
    struct stat attributes = {0};
    double valid_s = 0;
    int error = ESTALE;
    if (node) {
        error = change(mount, node, to, what);
        if (!error)
            error = node_stat(mount, node, &info);
        if (!error)
            node_attributes(mount, node, &info, &attributes);
        valid_s = timeout_s(mount, node);
        node_drop(mount, node);
    }
    if (error)
        fuse_reply_err(request, error);
    else
        fuse_reply_attr(request, &attributes, valid_s);
}

/* Create a file, and open it for writing. If `mode` has no write permission, the program that
 * creates the file can still write to it until it closes it. */
static int make(fuse_req_t request, const char *name, mode_t mode, struct fuse_entry_param *entry)
{
    struct mount *mount = mount_of(request);
    struct shmfs_handle handle;
    struct shmfs_info info;
    int64_t made = shmfs_create(mount->fs, name, 0, &handle);
    if (made < 0)
        return error_number(made);
    int error = error_number(shmfs_stat_handle(mount->fs, &handle, &info));
    if (error) {
        shmfs_close(mount->fs, &handle);
        return error;
    }
    const struct fuse_ctx *context = fuse_req_ctx(request);
    struct node *node = node_take(mount, &info, name);
    node->handle = handle;
    node->open_count = node->writer_count = 1;
    mount->open_count++;
    node->size_bytes = 0;
    node->mode = mode & 07777;
    node->is_to_commit = !(mode & 0222);
    node->uid = context->uid;
    node->gid = context->gid;
    node->accessed = node->modified = node->changed = now();
    fill_entry(mount, node, &info, entry);
    node_drop(mount, node);
    directory_note(mount);
    return 0;
}

static void do_create(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *file)
{
    struct fuse_entry_param entry;
    if (is_refused(request, parent, name))
        return;
    int error = make(request, name, mode, &entry);
    if (error == EEXIST && !(file->flags & O_EXCL))
        error = ESTALE; /* another client has just created it: the kernel retries */
    if (!error && (file->flags & O_ACCMODE) == O_RDONLY) {
        struct mount *mount = mount_of(request);
        struct node *node = node_find(mount, entry.ino);
        if (node) {
            error = node_stop_writing(mount, node);
            node_drop(mount, node);
        }
    }
    file->noflush = 1;
    if (error)
        fuse_reply_err(request, error);
    else
        fuse_reply_create(request, &entry, file);
}

static void do_mknod(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode,
                     dev_t device)
{
    (void)device;
    struct fuse_entry_param entry;
    if (is_refused(request, parent, name))
        return;
    int error = S_ISREG(mode) ? make(request, name, mode | S_IWUSR, &entry) : EPERM;
    if (!error) {
        struct mount *mount = mount_of(request);
        struct node *node = node_find(mount, entry.ino);
        if (node) {
            error = node_close(mount, node, true);
            node_drop(mount, node);
        }
    }
    if (error)
        fuse_reply_err(request, error);
    else
        fuse_reply_entry(request, &entry);
}

static void do_mkdir(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode)
{
    (void)parent, (void)name, (void)mode;
    fuse_reply_err(request, EPERM);
}

static void do_symlink(fuse_req_t request, const char *target, fuse_ino_t parent, const char *name)
{
    (void)target, (void)parent, (void)name;
    fuse_reply_err(request, EPERM);
}

/* Record that a file lost a name. */
static void note_change(struct mount *mount, const struct shmfs_info *info)
{
    struct node *node = node_find(mount, node_id(info->inode, info->generation));
    if (!node)
        return;
    node->changed = now();
    node_drop(mount, node);
}

static void do_unlink(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    struct mount *mount = mount_of(request);
    struct shmfs_info info;
    if (is_refused(request, parent, name))
        return;
    bool is_there = !shmfs_stat(mount->fs, name, &info);
    int error = error_number(shmfs_unlink(mount->fs, name));
    if (!error) {
        directory_note(mount);
        if (is_there)
            note_change(mount, &info);
    }
    fuse_reply_err(request, error);
}

static void do_rmdir(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    struct shmfs_info info;
    if (!is_refused(request, parent, name)) {
        int error = error_number(shmfs_stat(mount_of(request)->fs, name, &info));
        fuse_reply_err(request, error ? error : ENOTDIR);
    }
}

static void do_rename(fuse_req_t request, fuse_ino_t parent, const char *from,
                      fuse_ino_t new_parent, const char *to, unsigned int flags)
{
    struct mount *mount = mount_of(request);
    if (is_refused(request, parent, from) || is_refused(request, new_parent, to))
        return;
    if (flags & ~(unsigned)RENAME_NOREPLACE) {
        fuse_reply_err(request, EINVAL);
        return;
    }
    struct shmfs_info info;
    bool is_replaced = !shmfs_stat(mount->fs, to, &info);
    int error = error_number(shmfs_rename(mount->fs, from, to, !(flags & RENAME_NOREPLACE)));
    if (!error) {
        directory_note(mount);
        if (is_replaced)
            note_change(mount, &info);
    }
    if (!error && !shmfs_stat(mount->fs, to, &info)) {
        struct node *node = node_take(mount, &info, to);
        node->changed = now();
        node_drop(mount, node);
    }
    fuse_reply_err(request, error);
}

static void do_link(fuse_req_t request, fuse_ino_t id, fuse_ino_t parent, const char *name)
{
    struct mount *mount = mount_of(request);
    if (is_refused(request, parent, name))
        return;
    struct node *node = node_find(mount, id);
    if (!node) {
        fuse_reply_err(request, ESTALE);
        return;
    }
    int error = node_name(mount, node);
    if (!error)
        error = error_number(shmfs_link(mount->fs, node->name, name));
    if (!error)
        node->changed = now();
    node_drop(mount, node);
    if (error) {
        fuse_reply_err(request, error);
        return;
    }
    directory_note(mount);
    reply_named(request, name);
}

void operations_of_names(struct fuse_lowlevel_ops *operations)
{
    operations->lookup = do_lookup;
    operations->getattr = do_getattr;
    operations->setattr = do_setattr;
    operations->create = do_create;
    operations->mknod = do_mknod;
    operations->mkdir = do_mkdir;
    operations->symlink = do_symlink;
    operations->unlink = do_unlink;
    operations->rmdir = do_rmdir;
    operations->rename = do_rename;
    operations->link = do_link;
}
