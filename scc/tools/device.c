/* device.c: an image in memory that several kernels map, such as a PCI device of virtual machines.
 *
 * The kernels share no files, so no kernel can tell the others that a process has died. The device
 * therefore has a slot for each client, with a heartbeat: a process that owns a slot counts it up
 * all the time. If the count stands still for DEAD_MS, by the clock of the process that looks, the
 * owner is dead, and another process may take the slot. A process that could not count in time ends
 * itself, since others may believe that it is dead.
 *
 * Layout: the head, and the slots, up to HEAD_BYTES; the control data; the blocks, from a page on. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tool.h"

#define MAGIC UINT64_C(0x31766564666d6873) /* shmfdev1 */

enum {
    HEAD_BYTES = 64 << 10,
    SLOTS_AT = 4096,
    SLOT_BYTES = 128,
    SLOT_COUNT = (HEAD_BYTES - SLOTS_AT) / SLOT_BYTES,
    PAGE_BYTES = 4096,
    BEAT_MS = 20,
    LOOK_MS = 5,
    DEAD_MS = 2000,
    LATE_MS = DEAD_MS / 2,
};

struct head {
    _Atomic uint64_t magic; /* written last */
    uint64_t control_bytes;
    uint64_t data_offset;
    uint64_t data_bytes;
};

struct slot {
    _Atomic uint32_t owner; /* the number of a process; 0: none */
    _Atomic uint32_t beat;
    char unused[SLOT_BYTES - 8];
};

/* The device that this process uses. */
static struct {
    struct slot *slots;
    uint32_t own; /* this process: a random number */
    _Atomic uint64_t beat_ms; /* the time of the last heartbeat */
    atomic_bool is_ours[SLOT_COUNT];
} device;

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void pause_ms(long time_ms)
{
    struct timespec time = {time_ms / 1000, time_ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* --- heartbeats ------------------------------------------------------------------------------ */

static void *beat(void *unused)
{
    (void)unused;
    static const char text[] = "this process stood still for so long that others may have taken "
                               "its place in the image, so it ends\n";
    for (;; pause_ms(BEAT_MS)) {
        const uint64_t time_ms = now_ms(), last_ms = atomic_load(&device.beat_ms);
        bool has_slots = false;
        for (int i = 0; i < SLOT_COUNT; i++)
            if (atomic_load(&device.is_ours[i])) {
                atomic_fetch_add(&device.slots[i].beat, 1);
                has_slots = true;
            }
        if (has_slots && time_ms - last_ms > LATE_MS) {
            ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
            (void)written;
            _exit(TOOL_FAILED);
        }
        atomic_store(&device.beat_ms, time_ms);
    }
    return NULL;
}

void device_await_verdict(void)
{
    while (device.own && now_ms() - atomic_load(&device.beat_ms) > LATE_MS)
        pause_ms(BEAT_MS);
}

/* The heartbeats may notice later than the thread that changes the image that time has passed. */
void device_begins_change(void *unused)
{
    (void)unused;
    device_await_verdict();
}

/* Return whether the owner of a slot lives. Waits until its heart beats, or for DEAD_MS. */
static bool lives(uint32_t number)
{
    struct slot *slot = &device.slots[number];
    const uint32_t owner = atomic_load(&slot->owner), seen = atomic_load(&slot->beat);
    if (!owner || owner == device.own)
        return owner != 0;
    for (uint64_t start_ms = now_ms(); now_ms() - start_ms < DEAD_MS; pause_ms(LOOK_MS))
        if (atomic_load(&slot->beat) != seen || atomic_load(&slot->owner) != owner)
            return true;
    return false;
}

bool device_lives(void *unused, uint32_t client, uint32_t generation)
{
    (void)unused;
    (void)generation; /* the library has compared it */
    return client < SLOT_COUNT && lives(client);
}

bool device_claim(void *unused, uint32_t client, bool wants)
{
    (void)unused;
    if (client >= SLOT_COUNT)
        return false;
    struct slot *slot = &device.slots[client];
    uint32_t owner = wants ? atomic_load(&slot->owner) : device.own;
    if (!wants) {
        atomic_store(&device.is_ours[client], false);
        atomic_compare_exchange_strong(&slot->owner, &owner, 0);
        return true;
    }
    if (owner && lives(client))
        return false;
    if (!atomic_compare_exchange_strong(&slot->owner, &owner, device.own))
        return false; /* another process was faster */
    atomic_store(&device.is_ours[client], true);
    return true;
}

/* --- the image ------------------------------------------------------------------------------- */

bool device_is(const struct tool *tool)
{
    struct stat status;
    return *tool->image_name == '/' && !stat(tool->image_name, &status) && S_ISREG(status.st_mode);
}

static bool open_device(struct tool *tool, struct tool_image *image, bool is_writable, uint8_t **at,
                        uint64_t *size_bytes)
{
    struct stat status;
    image->data_fd = open(image->control_path, (is_writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (image->data_fd < 0 || fstat(image->data_fd, &status)) {
        tool_failed(tool, "%s cannot be opened: %s", image->control_path, strerror(errno));
        return false;
    }
    *size_bytes = (uint64_t)status.st_size;
    if (*size_bytes < HEAD_BYTES) {
        tool_failed(tool, "%s is too small for an image: it has %" PRIu64 " bytes",
                    image->control_path, *size_bytes);
        return false;
    }
    *at = mmap(NULL, *size_bytes, PROT_READ | (is_writable ? PROT_WRITE : 0), MAP_SHARED,
               image->data_fd, 0);
    if (*at != MAP_FAILED)
        return true;
    tool_failed(tool, "%s cannot be mapped: %s", image->control_path, strerror(errno));
    return false;
}

static void use(struct tool_image *image, uint8_t *at, const struct head *head)
{
    image->memory = (struct shmfs_memory){
        .control = at + HEAD_BYTES,
        .control_bytes = head->control_bytes,
        .data = at + head->data_offset,
        .data_bytes = head->data_bytes,
        .control_fd = -1,
    };
    device.slots = (struct slot *)(at + SLOTS_AT);
}

bool device_map(struct tool *tool, struct tool_image *image, bool is_writable)
{
    uint8_t *at;
    uint64_t size_bytes;
    if (!open_device(tool, image, is_writable, &at, &size_bytes))
        return false;
    const struct head *head = (struct head *)at;
    const bool is_image = atomic_load(&head->magic) == MAGIC;
    const uint64_t offset = head->data_offset;
    if (!is_image || offset > size_bytes || offset < HEAD_BYTES || offset % PAGE_BYTES ||
        head->control_bytes > offset - HEAD_BYTES || head->data_bytes > size_bytes - offset) {
        tool_failed(tool, "there is no image in %s; shminit makes one", image->control_path);
        return false;
    }
    use(image, at, head);
    return true;
}

bool device_make(struct tool *tool, struct tool_image *image, struct shmfs_geometry *geometry,
                 bool replaces)
{
    uint8_t *at;
    struct head new = {0};
    uint64_t size_bytes;
    char needed[32], there[32];
    int error = shmfs_sizes(geometry, &new.control_bytes, &new.data_bytes);
    if (error || geometry->client_count > SLOT_COUNT) {
        tool_failed(tool, "invalid geometry: %s", error ? tool_error_text(error)
                                                        : "a device has room for 480 clients");
        return false;
    }
    if (!open_device(tool, image, true, &at, &size_bytes))
        return false;
    new.data_offset = HEAD_BYTES + (new.control_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (new.data_offset + new.data_bytes > size_bytes) {
        tool_failed(tool, "%s is too small: the image takes %s, and it has %s; use a smaller --blocks",
                    image->control_path, tool_size(needed, new.data_offset + new.data_bytes),
                    tool_size(there, size_bytes));
        return false;
    }
    struct head *head = (struct head *)at;
    if (atomic_load(&head->magic) == MAGIC && !replaces) {
        tool_failed(tool, "there is an image in %s already; --force replaces it and discards its "
                          "files", image->control_path);
        return false;
    }
    atomic_store(&head->magic, 0);
    memset(at + SLOTS_AT, 0, HEAD_BYTES - SLOTS_AT);
    head->control_bytes = new.control_bytes;
    head->data_offset = new.data_offset;
    head->data_bytes = new.data_bytes;
    use(image, at, head);
    memset(image->memory.control, 0, image->memory.control_bytes);
    error = shmfs_format(&image->memory, geometry);
    if (error) {
        tool_failed(tool, "cannot create an image: %s", tool_error_text(error));
        return false;
    }
    atomic_store(&head->magic, MAGIC);
    return true;
}

bool device_begin(struct tool *tool)
{
    pthread_t thread;
    while (!device.own)
        if (getrandom(&device.own, sizeof device.own, 0) < 0 && errno != EINTR)
            break;
    atomic_store(&device.beat_ms, now_ms());
    int error = device.own ? pthread_create(&thread, NULL, beat, NULL) : errno;
    if (!error)
        return true;
    tool_failed(tool, "heartbeats cannot begin: %s", strerror(error));
    return false;
}
