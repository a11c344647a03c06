/* cutting.h: images that other programs truncate while they are mounted. */
#ifndef SCC_FUSE_CUTTING_H
#define SCC_FUSE_CUTTING_H

#include <stdbool.h>

#include "shmfs.h"

/* Survive accesses to pages of the image that are gone: without this, SIGBUS ends the mount. Returns
 * false, with errno, if that cannot be. */
bool survive_cutting(const struct shmfs_memory *memory);

/* Note that a page of the image is gone, and say so the first time. A handler of signals may. */
void note_cutting(void);

/* Whether that was noted. From then on nothing that was read from the
 * image means anything. */
bool image_is_cut(void);

#endif
