/* operations.h: the FUSE operations of the mount. */
#ifndef SCC_FUSE_OPERATIONS_H
#define SCC_FUSE_OPERATIONS_H

#include "nodes.h"

static inline struct mount *mount_of(fuse_req_t request)
{
    return fuse_req_userdata(request);
}

/* Fill in the operations that each file implements. */
void operations_of_names(struct fuse_lowlevel_ops *operations);
void operations_of_listing(struct fuse_lowlevel_ops *operations);
void operations_of_contents(struct fuse_lowlevel_ops *operations);

#endif
