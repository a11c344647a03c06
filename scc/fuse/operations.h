/* operations.h: what the kernel may ask of the mount. */
#ifndef SCC_FUSE_OPERATIONS_H
#define SCC_FUSE_OPERATIONS_H

#include "nodes.h"

static inline struct mount *mount_of(fuse_req_t request)
{
    return fuse_req_userdata(request);
}

/* Each file fills in its own. */
void operations_of_names(struct fuse_lowlevel_ops *operations);
void operations_of_listing(struct fuse_lowlevel_ops *operations);
void operations_of_contents(struct fuse_lowlevel_ops *operations);

#endif
