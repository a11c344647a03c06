/* io_token.h: tokens for disk jobs. There is one queue for each device, shared by all processes of
 * a user on this host (CIB-40). ciel/storage/device_semaphores.py uses the same queues, and explains them. */
#ifndef SCC_IO_TOKEN_H
#define SCC_IO_TOKEN_H

#include <stdbool.h>
#include <stdint.h>

/* A device's name in the queues: its major and minor number. */
#define IO_DEVICE_NAME_BYTES 32

/* Find the device of a path, as ciel/storage/devices.py does. `in_memory` means that it has no
 * limit. Returns 0, or a negative errno if the path cannot be examined. */
int io_device_of(const char *path, char name[IO_DEVICE_NAME_BYTES], bool *in_memory);

/* Return how many disk jobs of a device run at a time where nobody says otherwise: 1 on a rotating
 * disk, else 4, as ciel/core/admission.py does at first. */
unsigned io_usual_limit(const char *device);

/* Join the queue of a device, and wait until fewer than `limit` of the processes that joined
 * earlier are in it; 0 means no limit. Fails with -ETIMEDOUT after `timeout_ms` (negative: no
 * limit). Returns a descriptor, which is the token, or a negative errno. The token is released when
 * the process dies. Do not pass it to children. */
int io_token_take(const char *device, unsigned limit, int64_t timeout_ms);

/* Release a token, and close it. */
void io_token_release(int token);

#endif
