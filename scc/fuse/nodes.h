/* nodes.h: what the mount knows of each file, beside what the image knows.
 *
 * The kernel speaks of files by a number that it was given; shmfs speaks of names and handles. A
 * node stands between: one for each inode of the image, of which it remembers a name, the handle
 * that all who opened the file through this mount share, and what shmfs has no room for (mode, owner,
 * times). Other programs may take the file away at any time, so a node is only ever of one
 * generation of its inode, and the kernel's number holds both. */
#ifndef SCC_FUSE_NODES_H
#define SCC_FUSE_NODES_H

#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdatomic.h>

#include "shmfs.h"

enum { NODE_LOCKS = 64 };

struct node {
    uint32_t generation; /* of the file that this is about */
    bool is_known;       /* the rest means something */
    bool is_kept;        /* the kernel's cache may hold content that will never change */
    bool is_committed;   /* once true, always */
    bool is_to_commit;   /* made without permission to write: committed after its last writer */
    int write_error;     /* errno of the first write that failed after its program was told that it
                            succeeded: the file is never committed */
    uint32_t open_count; /* through this mount; all share `handle` */
    uint32_t writer_count; /* of these, open for writing: then `handle` is a writer's */
    uint64_t size_bytes; /* true while `handle` is open */
    struct shmfs_handle handle;
    char *name; /* one that it had; NULL: none is known */
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
    pthread_mutex_t locks[NODE_LOCKS]; /* node n is guarded by that of n % NODE_LOCKS */
    double entry_timeout_s, attribute_timeout_s;
    bool is_writeback;
    uid_t uid; /* of files that others made */
    gid_t gid;
    struct timespec began;
    _Atomic uint32_t open_count;       /* nodes with an open handle */
    pthread_mutex_t directory_lock;
    struct stat directory; /* what is told of the only directory */
};

/* The number by which the kernel knows a file; 1 is the directory. */
static inline fuse_ino_t node_id(uint32_t inode, uint32_t generation)
{
    return (fuse_ino_t)generation << 32 | (inode + 1);
}

static inline uint32_t node_inode(fuse_ino_t id)
{
    return (uint32_t)id - 1;
}

bool nodes_make(struct mount *mount);

/* Close what is open. An unfinished file that has a name stays, for somebody to go on with. */
void nodes_free(struct mount *mount);

/* Lock the node of a file that was looked up, new if its inode is another file's now, and remember
 * its name. */
struct node *node_take(struct mount *mount, const struct shmfs_info *info, const char *name);

/* Note that names changed. */
void directory_note(struct mount *mount);

/* Set what `what`, of FUSE_SET_ATTR_*, says of the directory; 0 sets nothing. Returns how it is. */
struct stat directory_change(struct mount *mount, const struct stat *to, int what);

/* Lock the node that the kernel speaks of, or NULL if that file is no more. */
struct node *node_find(struct mount *mount, fuse_ino_t id);

void node_drop(struct mount *mount, struct node *node);

/* The rest is for who has locked the node. All return an errno, or 0. */

static inline uint32_t node_number(const struct mount *mount, const struct node *node)
{
    return (uint32_t)(node - mount->nodes);
}

/* What is known of the file now. */
int node_stat(struct mount *mount, struct node *node, struct shmfs_info *info);

/* Have the shared handle open, counted once more; `node_close` counts once less. To write to what is
 * not committed, it takes that nobody else has it open. */
int node_open(struct mount *mount, struct node *node, bool writes);
int node_close(struct mount *mount, struct node *node, bool writes);

/* Have one who has it open for writing go on reading. After the last writer other clients may read
 * the file, and commit it; it is committed here if it was made without permission to write. */
int node_stop_writing(struct mount *mount, struct node *node);

/* Commit the file, if it is not. Fails with `write_error` if content is missing. */
int node_commit(struct mount *mount, struct node *node);

/* A name that the file has now, or ESTALE. */
int node_name(struct mount *mount, struct node *node);

void node_attributes(const struct mount *mount, const struct node *node,
                     const struct shmfs_info *info, struct stat *attributes);

/* The errno for what a call of shmfs returned; EIO, also for success, once the image is cut. */
int error_number(int64_t error);

struct timespec now(void);

#endif
