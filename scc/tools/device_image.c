/* device_image.c: the tools use an image in one file, such as the memory of a PCI device. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mpb.h"
#include "tool.h"

enum { LOCK_TIMEOUT_MS = 60000 }; /* the time to make the largest image on a slow machine */

bool device_is(const struct tool *tool)
{
    struct stat status;
    return *tool->image_name == '/' && !stat(tool->image_name, &status) && S_ISREG(status.st_mode);
}

static bool open_device(struct tool *tool, struct tool_image *image, bool is_writable)
{
    struct stat status;
    image->data_fd = open(image->control_path, (is_writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (image->data_fd < 0 || fstat(image->data_fd, &status)) {
        tool_failed(tool, "%s cannot be opened: %s", image->control_path, strerror(errno));
        return false;
    }
    image->device_bytes = (uint64_t)status.st_size;
    if (image->device_bytes < DEVICE_HEAD_BYTES) {
        tool_failed(tool, "%s is too small for an image: it has %" PRIu64 " bytes",
                    image->control_path, image->device_bytes);
        return false;
    }
    image->device_base = mmap(NULL, image->device_bytes, PROT_READ | (is_writable ? PROT_WRITE : 0),
                              MAP_SHARED, image->data_fd, 0);
    if (image->device_base != MAP_FAILED)
        return true;
    tool_failed(tool, "%s cannot be mapped: %s", image->control_path, strerror(errno));
    return false;
}

/* Clients of an image that one kernel uses live by locks on the file; others by heartbeats. */
static void use(struct tool_image *image, const struct device_layout *layout)
{
    uint8_t *base = image->device_base;
    image->lives_by_heartbeats = layout->kernels == DEVICE_SEPARATE;
    image->memory = (struct shmfs_memory){
        .control = base + layout->control_offset,
        .control_bytes = layout->control_bytes,
        .data = base + layout->data_offset,
        .data_bytes = layout->data_bytes,
        .control_fd = image->lives_by_heartbeats ? -1 : image->data_fd,
    };
}

bool device_map(struct tool *tool, struct tool_image *image, bool is_writable)
{
    struct device_layout layout;
    if (!open_device(tool, image, is_writable))
        return false;
    if (device_layout_of(image->device_base, image->device_bytes, &layout)) {
        tool_failed(tool, "there is no image in %s, or one of another version; shminit makes one",
                    image->control_path);
        return false;
    }
    if (layout.kernels == DEVICE_SHARED && layout.kernel != device_kernel()) {
        tool_failed(tool, "the image in %s was made for one kernel, and this is another one; make it "
                          "again: shminit --force --kernels separate", image->control_path);
        return false;
    }
    use(image, &layout);
    return true;
}

bool device_begin(struct tool *tool, struct tool_image *image)
{
    const uint32_t kernel = device_kernel();
    const size_t size_bytes = device_size();
    image->device_storage = aligned_alloc(64, size_bytes);
    if (kernel && image->device_storage &&
        !device_attach(&tool->device, image->device_storage, size_bytes, image->device_base,
                       image->device_bytes, kernel))
        return true;
    tool->device = NULL;
    tool_failed(tool, "heartbeats cannot begin: %s", strerror(errno));
    return false;
}

/* Find the parts of the image, and return whether it fits. */
static bool plan(struct tool *tool, const struct tool_image *image,
                 struct shmfs_geometry *geometry, struct device_layout *layout)
{
    char needed[32], there[32];
    int error = shmfs_sizes(geometry, &layout->control_bytes, &layout->data_bytes);
    if (error) {
        tool_failed(tool, "invalid geometry: %s", tool_error_text(error));
        return false;
    }
    layout->message_bytes =
        (uint64_t)mpb_segment_bytes(device_message_count(layout->core_count));
    if (device_plan(layout)) {
        tool_failed(tool, "invalid geometry: an image in one file has 1 to 1024 cores");
        return false;
    }
    if (device_bytes(layout) > image->device_bytes) {
        tool_failed(tool, "%s is too small: the image takes %s, and it has %s; use a smaller --blocks",
                    image->control_path, tool_size(needed, device_bytes(layout)),
                    tool_size(there, image->device_bytes));
        return false;
    }
    return true;
}

/* Make the image, while this process has the lock of the device. */
static bool make(struct tool *tool, struct tool_image *image, struct shmfs_geometry *geometry,
                 const struct device_layout *layout, bool replaces)
{
    struct device_layout found;
    if (!replaces && !device_layout_of(image->device_base, image->device_bytes, &found)) {
        tool_failed(tool, "there is an image in %s already; --force replaces it and discards its "
                          "files", image->control_path);
        return false;
    }
    uint8_t *base = image->device_base;
    use(image, layout);
    int error = device_begin_image(tool->device, layout) ? SHMFS_ERROR_SYSTEM
                                                         : shmfs_format(&image->memory, geometry);
    if (!error) {
        const struct mpb_memory messages = {base + layout->message_offset, layout->message_bytes,
                                            -1};
        if (mpb_format(&messages, layout->message_count))
            error = SHMFS_ERROR_SYSTEM;
    }
    if (error) {
        tool_failed(tool, "cannot create an image: %s", tool_error_text(error));
        return false;
    }
    device_complete_image(tool->device);
    return true;
}

bool device_make(struct tool *tool, struct tool_image *image, struct shmfs_geometry *geometry,
                 uint32_t cores, uint32_t kernels, bool replaces)
{
    struct device_layout layout = {.core_count = cores, .kernels = kernels};
    if (!open_device(tool, image, true) || !plan(tool, image, geometry, &layout) ||
        !device_begin(tool, image))
        return false;
    bool is_made = false;
    if (device_lock(tool->device, LOCK_TIMEOUT_MS)) {
        tool_failed(tool, "another process is making an image in %s right now",
                    image->control_path);
    } else {
        is_made = make(tool, image, geometry, &layout, replaces);
        device_unlock(tool->device);
    }
    device_detach(tool->device);
    tool->device = NULL;
    return is_made;
}
