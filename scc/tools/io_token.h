/* io_token.h: tokens for disk jobs, one line for each device, among all processes of a user on this
 * host (CIB-40). The same lines as those of ciel/storage/tokens.py, which says how they work. */
#ifndef SCC_IO_TOKEN_H
#define SCC_IO_TOKEN_H

#include <stdbool.h>
#include <stdint.h>

/* A device's name in the lines: its major and its minor number. */
#define IO_DEVICE_NAME_BYTES 32

/* Find the device that a path lies on, as ciel/storage/devices.py does. `in_memory`: it has no
 * limit. Returns 0, or a negative errno where the path cannot be looked at. */
int io_device_of(const char *path, char name[IO_DEVICE_NAME_BYTES], bool *in_memory);

/* Join the line of the device that a path lies on, and wait until fewer than `limit` are left of
 * those that were there before; 0 means no limit. At most so long (negative: for ever), else
 * -ETIMEDOUT. Returns a descriptor that is the token, or a negative errno. A process that dies gives
 * its tokens back. Not to be handed to children. */
int io_token_take(const char *path, unsigned limit, int64_t timeout_ms);

/* The same for a device by its name. */
int io_token_take_of(const char *device, unsigned limit, int64_t timeout_ms);

/* Give it back, and close it. */
void io_token_release(int token);

#endif
