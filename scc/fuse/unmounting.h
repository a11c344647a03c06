/* unmounting.h: what becomes of a mount whose process was killed. */
#ifndef SCC_FUSE_UNMOUNTING_H
#define SCC_FUSE_UNMOUNTING_H

#include <stdbool.h>

/* Whether a mount of shmfs is uppermost at a place. Asks no file system, so that it cannot wait. */
bool is_mounted_on(const char *place);

/* Take away the mount of shmfs at a place, if its process is no more. */
void unmount_dead(const char *place);

/* Have a small process do that once this one is no more, however it ends; false, with errno, if none
 * can be started. Before the image is open, since who has its files open is taken for the client. */
bool unmount_when_dead(const char *place);

#endif
