/* asking.h: asks the cores of an image for space. */
#ifndef SCC_TOOLS_ASKING_H
#define SCC_TOOLS_ASKING_H

#include <stdint.h>

/* Let the cores of the image with this control file move objects to their disks, the least recently
 * used ones first, until so many bytes are free. Returns how many bytes they say they have freed.
 * Returns 0 at once if no core serves the image, and ends when no core can free more, or when none
 * has freed anything for ten seconds. Any thread may call it. */
uint64_t cores_free(const char *control_path, uint64_t wanted_bytes);

#endif
