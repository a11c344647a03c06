/* cutting.h: images that other programs truncate while they are mounted. */
#ifndef SCC_FUSE_CUTTING_H
#define SCC_FUSE_CUTTING_H

#include <stdbool.h>

#include "shmfs.h"

/* Survive accesses to pages of the image that are gone: without this, SIGBUS ends the mount. Returns
 * false, with errno, if that cannot be. */
bool survive_cutting(const struct shmfs_memory *memory);

/* Whether a page of the image was found to be gone. From then on nothing that was read from the
 * image means anything. */
bool image_is_cut(void);

#endif
