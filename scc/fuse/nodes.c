/* nodes.c: the mount's state of each file. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cutting.h"
#include "nodes.h"

struct timespec now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time;
}

int error_number(int64_t error)
{
    static const struct {
        int error, number;
    } numbers[] = {
        {SHMFS_ERROR_ARGUMENT, EINVAL},    {SHMFS_ERROR_NAME, EINVAL},
        {SHMFS_ERROR_NOT_FOUND, ENOENT},   {SHMFS_ERROR_EXISTS, EEXIST},
        {SHMFS_ERROR_COMMITTED, EROFS},    {SHMFS_ERROR_WRITING, ETXTBSY},
        {SHMFS_ERROR_NO_BLOCKS, ENOSPC},   {SHMFS_ERROR_NO_INODES, ENOSPC},
        {SHMFS_ERROR_NO_ENTRIES, ENOSPC},  {SHMFS_ERROR_NO_HANDLES, ENFILE},
        {SHMFS_ERROR_LINKS, EMLINK},       {SHMFS_ERROR_STALE, ESTALE},
    };
    if (image_is_cut())
        return EIO;
    if (error >= 0)
        return 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].error == error)
            return numbers[i].number;
    return EIO;
}

bool nodes_make(struct mount *mount)
{
    mount->nodes = calloc((size_t)mount->geometry.inode_count + 1, sizeof *mount->nodes);
    for (int i = 0; i < NODE_LOCKS; i++)
        pthread_mutex_init(&mount->locks[i], NULL);
    pthread_mutex_init(&mount->directory_lock, NULL);
    mount->directory = (struct stat){
        .st_ino = FUSE_ROOT_ID,
        .st_mode = S_IFDIR | 0755,
        .st_nlink = 2,
        .st_uid = mount->uid,
        .st_gid = mount->gid,
        .st_atim = mount->began,
        .st_mtim = mount->began,
        .st_ctim = mount->began,
    };
    return mount->nodes;
}

void nodes_free(struct mount *mount)
{
    /* Unused nodes of a large image are untouched zero pages, which take no memory. */
    for (uint32_t i = 1; mount->open_count && i <= mount->geometry.inode_count; i++)
        if (mount->nodes[i].open_count) {
            bool writes = mount->nodes[i].writer_count;
            mount->nodes[i].open_count = 1;
            mount->nodes[i].writer_count = writes;
            node_close(mount, &mount->nodes[i], writes);
        }
    free(mount->nodes);
}

void directory_note(struct mount *mount)
{
    pthread_mutex_lock(&mount->directory_lock);
    mount->directory.st_mtim = mount->directory.st_ctim = now();
    pthread_mutex_unlock(&mount->directory_lock);
}

struct stat directory_change(struct mount *mount, const struct stat *to, int what)
{
    struct timespec time = now();
    pthread_mutex_lock(&mount->directory_lock);
    struct stat *directory = &mount->directory;
    if (what & FUSE_SET_ATTR_MODE)
        directory->st_mode = S_IFDIR | (to->st_mode & 07777);
    if (what & FUSE_SET_ATTR_UID)
        directory->st_uid = to->st_uid;
    if (what & FUSE_SET_ATTR_GID)
        directory->st_gid = to->st_gid;
    if (what & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW))
        directory->st_atim = what & FUSE_SET_ATTR_ATIME_NOW ? time : to->st_atim;
    if (what & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW))
        directory->st_mtim = what & FUSE_SET_ATTR_MTIME_NOW ? time : to->st_mtim;
    if (what)
        directory->st_ctim = time;
    struct stat attributes = *directory;
    pthread_mutex_unlock(&mount->directory_lock);
    return attributes;
}

static struct node *lock(struct mount *mount, uint32_t inode)
{
    pthread_mutex_lock(&mount->locks[inode % NODE_LOCKS]);
    return &mount->nodes[inode];
}

void node_drop(struct mount *mount, struct node *node)
{
    pthread_mutex_unlock(&mount->locks[node_number(mount, node) % NODE_LOCKS]);
}

static void remember_name(struct node *node, const char *name)
{
    if (node->name && !strcmp(node->name, name))
        return;
    free(node->name);
    node->name = strdup(name); /* without memory, find_name searches for it later */
}

static void note_commit(struct node *node, const struct shmfs_info *info)
{
    if (node->is_committed || !info->is_committed)
        return;
    node->is_committed = true;
    node->is_to_commit = false;
    node->mode &= ~(mode_t)0222;
}

struct node *node_take(struct mount *mount, const struct shmfs_info *info, const char *name)
{
    struct node *node = lock(mount, info->inode);
    if (!node->is_known || node->generation != info->generation) {
        free(node->name);
        *node = (struct node){
            .is_known = true,
            .generation = info->generation,
            .mode = info->is_committed ? 0444 : 0644,
            .uid = mount->uid,
            .gid = mount->gid,
            .accessed = mount->began,
            .modified = mount->began,
            .changed = mount->began,
        };
    }
    remember_name(node, name);
    note_commit(node, info);
    return node;
}

struct node *node_find(struct mount *mount, fuse_ino_t id)
{
    uint32_t inode = node_inode(id);
    if (inode == 0 || inode > mount->geometry.inode_count)
        return NULL;
    struct node *node = lock(mount, inode);
    if (node->is_known && node->generation == id >> 32)
        return node;
    node_drop(mount, node);
    return NULL;
}

static bool is_of(const struct mount *mount, const struct node *node, uint32_t inode,
                  uint32_t generation)
{
    return inode == node_number(mount, node) && generation == node->generation;
}

/* Find a name of the file. Other clients may have renamed the file or removed the remembered name;
 * then search all names. */
static int find_name(struct mount *mount, struct node *node, struct shmfs_info *info)
{
    if (node->name && !shmfs_stat(mount->fs, node->name, info) &&
        is_of(mount, node, info->inode, info->generation))
        return 0;
    uint64_t cursor = 0;
    char name[SHMFS_NAME_MAX_BYTES + 1];
    int found;
    while ((found = shmfs_list(mount->fs, &cursor, name, info)) > 0)
        if (is_of(mount, node, info->inode, info->generation)) {
            remember_name(node, name);
            return node->name ? 0 : ENOMEM;
        }
    return found < 0 ? error_number(found) : ESTALE;
}

int node_name(struct mount *mount, struct node *node)
{
    struct shmfs_info info;
    return find_name(mount, node, &info);
}

int node_stat(struct mount *mount, struct node *node, struct shmfs_info *info)
{
    int error = node->handle.inode
                    ? error_number(shmfs_stat_handle(mount->fs, &node->handle, info))
                    : find_name(mount, node, info);
    if (!error)
        note_commit(node, info);
    return error;
}

int node_open(struct mount *mount, struct node *node, bool writes)
{
    struct shmfs_info info;
    for (int tries = 0; !node->handle.inode; tries++) {
        int error = node_stat(mount, node, &info);
        if (error)
            return error;
        int opened = info.is_committed ? shmfs_open(mount->fs, node->name, &node->handle)
                     : writes          ? shmfs_reopen(mount->fs, node->name, &node->handle)
                                       : shmfs_open_draft(mount->fs, node->name, &node->handle);
        if (!opened && !is_of(mount, node, node->handle.inode, node->handle.generation)) {
            shmfs_close(mount->fs, &node->handle);
            opened = SHMFS_ERROR_NOT_FOUND; /* the name now belongs to another file */
        }
        if (opened) {
            node->handle.inode = 0;
            bool has_changed = opened == SHMFS_ERROR_NOT_FOUND ||
                               (opened == SHMFS_ERROR_WRITING && info.is_committed) ||
                               (opened == SHMFS_ERROR_COMMITTED && !info.is_committed);
            if (!has_changed || tries == 3)
                return opened == SHMFS_ERROR_NOT_FOUND ? ESTALE : error_number(opened);
        }
    }
    int error = node_stat(mount, node, &info);
    if (!error && writes && !node->is_committed && !node->writer_count)
        error = error_number(shmfs_set_writing(mount->fs, &node->handle, true));
    if (error && !node->open_count) {
        shmfs_close(mount->fs, &node->handle);
        node->handle.inode = 0;
    }
    if (error)
        return error;
    node->size_bytes = info.size_bytes;
    mount->open_count += node->open_count++ == 0;
    node->writer_count += writes;
    return 0;
}

int node_stop_writing(struct mount *mount, struct node *node)
{
    if (--node->writer_count || node->is_committed)
        return 0;
    return node->is_to_commit
               ? node_commit(mount, node)
               : error_number(shmfs_set_writing(mount->fs, &node->handle, false));
}

int node_close(struct mount *mount, struct node *node, bool writes)
{
    int error = writes ? node_stop_writing(mount, node) : 0;
    if (--node->open_count)
        return error;
    mount->open_count--;
    int closed = error_number(shmfs_close(mount->fs, &node->handle));
    node->handle.inode = 0;
    return error ? error : closed;
}

int node_commit(struct mount *mount, struct node *node)
{
    if (node->is_committed)
        return 0;
    if (node->write_error)
        return node->write_error;
    bool is_open = node->handle.inode;
    int error = is_open ? 0 : node_open(mount, node, false);
    if (error)
        return error;
    int committed = node->is_committed ? 0 : shmfs_commit(mount->fs, &node->handle, NULL);
    if (committed == SHMFS_ERROR_COMMITTED)
        committed = 0; /* another client that reads it committed it first */
    if (!committed)
        note_commit(node, &(struct shmfs_info){.is_committed = true});
    error = is_open ? 0 : node_close(mount, node, false);
    return committed ? error_number(committed) : error;
}

void node_attributes(const struct mount *mount, const struct node *node,
                     const struct shmfs_info *info, struct stat *attributes)
{
    *attributes = (struct stat){
        .st_ino = info->inode + 1,
        .st_mode = S_IFREG | node->mode,
        .st_nlink = info->link_count,
        .st_uid = node->uid,
        .st_gid = node->gid,
        .st_size = (off_t)info->size_bytes,
        .st_blksize = 1 << 20,
        .st_blocks = (blkcnt_t)(info->block_count * (mount->geometry.block_bytes / 512)),
        .st_atim = node->accessed,
        .st_mtim = node->modified,
        .st_ctim = node->changed,
    };
}
