/* nodes.h: the mount's state of each file.
 *
 * The kernel identifies a file by a number that the mount chose; shmfs uses names and handles. A
 * node connects the two. There is one node for each inode of the image. It remembers a name, the
 * handle that all openers of the file through this mount share, and attributes that shmfs does not
 * store (mode, owner, times). Other programs may remove the file at any time, so a node belongs to
 * one generation of its inode, and the kernel's number contains both inode and generation. */
#ifndef SCC_FUSE_NODES_H
#define SCC_FUSE_NODES_H

#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdatomic.h>

#include "shmfs.h"

enum { NODE_LOCKS = 64 };

struct node {
    uint32_t generation; /* of the inode */
    bool is_known;       /* all fields are valid */
    bool is_kept;        /* the kernel's cache may hold content that will never change */
    bool is_committed;   /* once true, always */
    bool is_to_commit;   /* created without write permission: commit it after its last writer */
    int write_error;     /* errno of the first write that failed after the kernel had reported
                            success to its program: the file is never committed */
    uint32_t open_count; /* opens through this mount; they share `handle` */
    uint32_t writer_count; /* opens for writing; if nonzero, `handle` is open for writing */
    uint64_t size_bytes; /* valid while `handle` is open */
    struct shmfs_handle handle;
    char *name; /* a name that it has or had; NULL: unknown */
    mode_t mode;
    uid_t uid;
    gid_t gid;
    struct timespec accessed, modified, changed;
};

struct mount {
    struct shmfs *fs;
    struct fuse_session *session;
    const uint8_t *data;
    struct shmfs_geometry geometry;
    struct node *nodes;                /* by inode number */
    pthread_mutex_t locks[NODE_LOCKS]; /* lock n % NODE_LOCKS guards node n */
    double entry_timeout_s, attribute_timeout_s;
    bool is_writeback;
    uid_t uid; /* owner of files that other clients created */
    gid_t gid;
    struct timespec began;
    _Atomic uint32_t open_count;       /* nodes with an open handle */
    pthread_mutex_t directory_lock;
    struct stat directory; /* attributes of the only directory */
};

/* The number that identifies a file to the kernel; 1 is the directory. */
static inline fuse_ino_t node_id(uint32_t inode, uint32_t generation)
{
    return (fuse_ino_t)generation << 32 | (inode + 1);
}

static inline uint32_t node_inode(fuse_ino_t id)
{
    return (uint32_t)id - 1;
}

bool nodes_make(struct mount *mount);

/* Close open files. An uncommitted file that has a name stays, and another program may continue
 * it. */
void nodes_free(struct mount *mount);

/* Lock the node of a file that was looked up, and remember its name. Resets the node if its inode
 * now belongs to another file. */
struct node *node_take(struct mount *mount, const struct shmfs_info *info, const char *name);

/* Record that names changed. */
void directory_note(struct mount *mount);

/* Set the directory's attributes that `what` (FUSE_SET_ATTR_*) selects; 0 sets none. Returns
 * them. */
struct stat directory_change(struct mount *mount, const struct stat *to, int what);

/* Lock the node with the kernel's number, or return NULL if that file no longer exists. */
struct node *node_find(struct mount *mount, fuse_ino_t id);

void node_drop(struct mount *mount, struct node *node);

/* The caller of the following functions has locked the node. They return 0 or an errno. */

static inline uint32_t node_number(const struct mount *mount, const struct node *node)
{
    return (uint32_t)(node - mount->nodes);
}

/* Return the current status of the file. */
int node_stat(struct mount *mount, struct node *node, struct shmfs_info *info);

/* Open the shared handle, or increase its count; `node_close` decreases the count. To open an
 * uncommitted file for writing, no other client may have it open. */
int node_open(struct mount *mount, struct node *node, bool writes);
int node_close(struct mount *mount, struct node *node, bool writes);

/* Turn an open for writing into one for reading. After the last writer, other clients may read the
 * file and commit it; if the file was created without write permission, this commits it. */
int node_stop_writing(struct mount *mount, struct node *node);

/* Commit the file unless it is committed. Fails with `write_error` if content is missing. */
int node_commit(struct mount *mount, struct node *node);

/* Find a current name of the file, or fail with ESTALE. */
int node_name(struct mount *mount, struct node *node);

void node_attributes(const struct mount *mount, const struct node *node,
                     const struct shmfs_info *info, struct stat *attributes);

/* Return the errno for an error of shmfs. Once the image is truncated, always returns EIO. */
int error_number(int64_t error);

struct timespec now(void);

#endif
