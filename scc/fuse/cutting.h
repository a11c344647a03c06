/* cutting.h: handles images that other programs truncate while they are mounted. */
#ifndef SCC_FUSE_CUTTING_H
#define SCC_FUSE_CUTTING_H

#include <stdbool.h>

#include "shmfs.h"

/* Install a SIGBUS handler, so that accesses to truncated pages of the image do not end the mount.
 * Returns false, with errno, on failure. */
bool survive_cutting(const struct shmfs_memory *memory);

/* Record that the image is truncated, and print a message the first time. Async-signal-safe. */
void note_cutting(void);

/* Return whether the truncation was recorded. Values read from the image are then meaningless. */
bool image_is_cut(void);

#endif
