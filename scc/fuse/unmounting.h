/* unmounting.h: removes the mount of a process that was killed. */
#ifndef SCC_FUSE_UNMOUNTING_H
#define SCC_FUSE_UNMOUNTING_H

#include <stdbool.h>

/* Return whether the topmost mount at a path is shmfs. Accesses no file system, so it cannot
 * hang. */
bool is_mounted_on(const char *place);

/* Unmount shmfs at a path if its process has died. */
void unmount_dead(const char *place);

/* Start a small process that calls `unmount_dead` when the current process ends, in whatever way.
 * Returns false, with errno, on failure. Call this before opening the image: a process that has the
 * image's files open counts as the client. */
bool unmount_when_dead(const char *place);

#endif
