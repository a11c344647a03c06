/* device.h: an image in memory that several kernels map, such as a PCI device of virtual machines.
 *
 * The kernels share neither files nor a clock, and no kernel knows when a process of another kernel
 * dies. The memory therefore begins with slots. A process owns a slot for each client of shmfs and
 * for each core of message passing that it is, and a thread counts the heartbeats of its slots up.
 * The same thread observes the heartbeats of all other slots. An owner whose heartbeat has stood
 * still for DEVICE_DEAD_MS, by the clock of the observer, is dead, and another process may take the
 * slot. A process that could not count in time ends itself, because others may believe that it is
 * dead. The functions use no lock of a kernel, and no sleep that another kernel has to end.
 *
 *     struct device *device;
 *     struct device_layout layout;
 *     device_attach(&device, storage, sizeof storage, base, size_bytes, device_kernel());
 *     device_layout_of(base, size_bytes, &layout);
 *     struct shmfs_memory memory = {base + layout.control_offset, layout.control_bytes,
 *                                   base + layout.data_offset, layout.data_bytes, -1};
 *     struct shmfs_options options = {.is_alive = device_lives, .is_alive_argument = device,
 *                                     .claim = device_claim, .begins_change = device_begins_change};
 *     shmfs_attach(&fs, ..., &memory, &options);
 *     ...
 *     shmfs_detach(fs);
 *     device_detach(device);
 *
 * The memory also holds a table of the cores of the store `scc`. A core has an incarnation, a random
 * number, which lives while a live slot names it.
 *
 * Errors are negative numbers. Threads: any thread may call any function, except that no other
 * thread uses the device while one attaches or detaches. A child of fork attaches for itself.
 *
 * Requirements CIB-21, CIB-30.
 */
#ifndef DEVICE_H
#define DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEVICE_CLIENT_MAX_COUNT 1024 /* as SHMFS_CLIENT_MAX_COUNT */
#define DEVICE_MESSAGE_MAX_COUNT 64  /* as MPB_CORE_MAX_COUNT */
#define DEVICE_CORE_MAX_COUNT 1024
#define DEVICE_HEAD_BYTES 212992     /* of the head, the slots and the table of cores */
#define DEVICE_DEAD_MS 2000          /* without a heartbeat, until an owner is dead */

enum device_error {
    DEVICE_ERROR_ARGUMENT = -1,  /* an argument is invalid: the caller's mistake */
    DEVICE_ERROR_EMPTY = -2,     /* the memory is empty: no image was made yet */
    DEVICE_ERROR_FORMAT = -3,    /* the memory holds other data, or an image of another version */
    DEVICE_ERROR_TOO_SMALL = -4, /* the memory is too small */
    DEVICE_ERROR_BUSY = -5,      /* another process did not release the lock in time */
    DEVICE_ERROR_SYSTEM = -6,    /* a system call failed; see `errno` */
};

/* The kernels that use an image. With DEVICE_SHARED it is one kernel: locks on the file show that
 * clients of shmfs live, as in an image of two files. */
enum device_kernels { DEVICE_SHARED = 1, DEVICE_SEPARATE = 2 };

/* The parts of an image. All offsets are multiples of a page. */
struct device_layout {
    uint64_t control_offset, control_bytes; /* of shmfs */
    uint64_t message_offset, message_bytes; /* a segment of mpb.h */
    uint64_t data_offset, data_bytes;       /* of shmfs */
    uint32_t core_count;    /* of the store */
    uint32_t message_count; /* cores of the segment: the first half belongs to the store's cores */
    uint32_t kernels;       /* see enum device_kernels */
    uint32_t kernel;        /* the kernel that made the image */
    uint64_t identity;      /* random; no other image has the same */
};

/* A core of the store. */
struct device_core {
    uint32_t incarnation;  /* 0: no process uses the core */
    uint32_t kernel;       /* of its processes */
    uint32_t object_count; /* see device_count */
    bool is_living;
};

/* Return the number of this kernel: a hash of its boot id, never 0; or 0, with `errno`. */
uint32_t device_kernel(void);

/* Compute the offsets of an image with parts of these sizes and this number of cores, and the number
 * of its message cores. `message_bytes` is for as many as device_message_count returns. Fails with
 * ARGUMENT. */
uint32_t device_message_count(uint32_t core_count);
int device_plan(struct device_layout *layout);

/* Return how many bytes an image takes. */
uint64_t device_bytes(const struct device_layout *layout);

/* Read the parts of an image. Fails with EMPTY, FORMAT, TOO_SMALL. */
int device_layout_of(const void *base, uint64_t size_bytes, struct device_layout *layout);

/* --- one process ----------------------------------------------------------------------------- */

struct device; /* one process's use of the memory */

/* Return how many bytes of private memory `device_attach` needs; they must be aligned to 64. */
size_t device_size(void);

/* Use memory: start the thread of the heartbeats. The caller maps the memory, shared and writable,
 * and keeps it mapped, and also keeps `storage`. `kernel` is what device_kernel returns; tests may
 * pass another number. Fails with ARGUMENT, TOO_SMALL, SYSTEM. */
int device_attach(struct device **device, void *storage, size_t storage_bytes, void *base,
                  uint64_t size_bytes, uint32_t kernel);

/* Release all slots and end the thread. */
void device_detach(struct device *device);

/* Call this after a failure: if this process stood still, others may have closed its files. The
 * thread of the heartbeats then ends the process. */
void device_await_verdict(struct device *device);

/* --- making an image ------------------------------------------------------------------------- */

/* Take the only lock of the memory, which all kernels respect, or fail with BUSY. The process that
 * has it may make an image, or register cores. It is taken over from a dead process. */
int device_lock(struct device *device, int64_t timeout_ms);
void device_unlock(struct device *device);

/* Start to make an image, and complete it. Between the calls the caller formats its parts. The caller
 * has the lock. An image that was there is lost, and processes that use it end themselves. Fails with
 * SYSTEM; then nothing has changed. */
int device_begin_image(struct device *device, const struct device_layout *layout);
void device_complete_image(struct device *device);

/* --- clients of shmfs: functions for `struct shmfs_options` ---------------------------------- */

/* Return whether the owner of a slot is alive. Waits if this process has not yet observed the owner
 * for long enough, at most for DEVICE_DEAD_MS after `device_attach`. */
bool device_lives(void *device, uint32_t client, uint32_t generation);

/* Make this process the owner of a slot, or release it. Returns false if another process that is
 * alive owns it. */
bool device_claim(void *device, uint32_t client, bool wants);

void device_begins_change(void *device);

/* --- cores of messages: functions for `struct mpb_options` ----------------------------------- */

/* Claim a core's slot before mpb_attach and release it after mpb_detach. `device_message_ready`
 * follows mpb_attach. */
bool device_message_claim(struct device *device, uint32_t core, bool wants);
void device_message_ready(struct device *device, uint32_t core);

/* Return whether the process of a core is alive. Never waits: an owner lives until it is known to be
 * dead. */
bool device_message_lives(void *device, uint32_t core, uint32_t incarnation);

/* --- cores of the store ---------------------------------------------------------------------- */

/* Return a core. `waits`: as device_lives; otherwise as device_message_lives. */
struct device_core device_core_of(struct device *device, uint32_t core, bool waits);

/* Let a core have this incarnation, in this kernel and without objects; 0: none. The caller has the
 * lock. */
void device_set_core(struct device *device, uint32_t core, uint32_t incarnation);

/* Name a core's incarnation in the slot of a client of this process. */
void device_name_core(struct device *device, uint32_t client, uint32_t core, uint32_t incarnation);

/* Count objects of a core; `more` may be negative. */
void device_count(struct device *device, uint32_t core, int32_t more);

#ifdef __cplusplus
}
#endif

#endif
