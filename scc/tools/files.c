/* files.c: maps the two files of an image for one client. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "asking.h"
#include "image.h"
#include "tool.h"

enum { CONTROL, DATA, PART_COUNT };

#define CUT_TEXT "the image was truncated while it was in use"

/* Data for `end_cut`, which must not allocate or format. */
static struct {
    const uint8_t *from;
    uint64_t size_bytes;
    char text[PATH_MAX + 128];
} parts[PART_COUNT];
static int cut_status;

/* Handle SIGBUS, which the kernel sends to a thread that touches a page beyond the end of a
 * file. */
static void end_cut(int number, siginfo_t *info, void *context)
{
    (void)context;
    for (int i = 0; i < PART_COUNT; i++)
        if ((uintptr_t)info->si_addr - (uintptr_t)parts[i].from < parts[i].size_bytes) {
            ssize_t written = write(STDERR_FILENO, parts[i].text, strlen(parts[i].text));
            (void)written;
            _exit(cut_status);
        }
    signal(number, SIG_DFL); /* other memory: the repeated access ends the process */
}

/* On SIGBUS, end the program with a message about the truncated file. */
static bool watch(struct tool *tool, const struct tool_image *image)
{
    const struct shmfs_memory *memory = &image->memory;
    const struct sigaction action = {.sa_sigaction = end_cut, .sa_flags = SA_SIGINFO};
    cut_status = tool->cut_status ? tool->cut_status : TOOL_FAILED;
    for (int i = 0; i < PART_COUNT; i++) {
        parts[i].from = i == CONTROL ? memory->control : memory->data;
        parts[i].size_bytes = i == CONTROL ? memory->control_bytes : memory->data_bytes;
        snprintf(parts[i].text, sizeof parts[i].text, "%s: %s: %s\n", tool->name,
                 i == CONTROL ? image->control_path : image->data_path, CUT_TEXT);
    }
    if (!sigaction(SIGBUS, &action, NULL))
        return true;
    tool_failed(tool, "cannot install a signal handler: %s", strerror(errno));
    return false;
}

void tool_paths(const struct tool *tool, struct tool_image *image)
{
    const char *name = tool->image_name;
    if (!*name || !strcmp(name, ".") || !strcmp(name, "..") || (*name != '/' && strchr(name, '/')))
        tool_misused(tool, "an image has a plain name, or a path that begins with a slash, not '%s'",
                     name);
    if (device_is(tool)) {
        snprintf(image->control_path, sizeof image->control_path, "%s", name);
        snprintf(image->data_path, sizeof image->data_path, "%s", name);
        return;
    }
    const char *folder = *name == '/' ? "" : "/dev/shm/";
    if (strlen(folder) + strlen(name) + sizeof "-control" > PATH_MAX)
        tool_misused(tool, "the name of the image is too long");
    struct stat status;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s%.*s", folder, PATH_MAX - 32, name);
    char joint = !stat(path, &status) && S_ISDIR(status.st_mode) ? '/' : '-';
    snprintf(image->control_path, sizeof image->control_path, "%.*s%ccontrol", PATH_MAX - 32, path,
             joint);
    snprintf(image->data_path, sizeof image->data_path, "%.*s%cdata", PATH_MAX - 32, path, joint);
}

/* Open and map a whole file. Allocate its space first: a process that writes into a hole dies by
 * SIGBUS when no memory is left. */
static bool map(struct tool *tool, const char *path, bool is_writable, int *fd, void **at,
                uint64_t *size_bytes)
{
    /* The path may be a pipe or a link made by another user: do not block, do not follow links. */
    *fd = open(path, (is_writable ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    struct stat status;
    if (*fd < 0 || fstat(*fd, &status)) {
        if (errno == ENOENT)
            tool_failed(tool, "there is no %s; shminit makes an image", path);
        else if (errno == ELOOP)
            tool_failed(tool, "%s is not part of an image: it is a link", path);
        else
            tool_failed(tool, "%s cannot be opened: %s", path, strerror(errno));
        return false;
    }
    if (!S_ISREG(status.st_mode) || status.st_size == 0) {
        tool_failed(tool, "%s is not part of an image: it is %s", path,
                    S_ISREG(status.st_mode) ? "empty" : "not a file");
        return false;
    }
    if (is_writable && status.st_blocks * 512 < status.st_size) {
        int error = posix_fallocate(*fd, 0, status.st_size);
        if (error) {
            tool_failed(tool, "there is not enough memory for all of %s: %s", path,
                        strerror(error));
            return false;
        }
    }
    *size_bytes = (uint64_t)status.st_size;
    *at = mmap(NULL, (size_t)status.st_size, PROT_READ | (is_writable ? PROT_WRITE : 0), MAP_SHARED,
               *fd, 0);
    if (*at == MAP_FAILED) {
        tool_failed(tool, "%s cannot be mapped: %s", path, strerror(errno));
        return false;
    }
    return true;
}

bool tool_map(struct tool *tool, struct tool_image *image, bool is_writable)
{
    memset(image, 0, sizeof *image);
    image->memory.control_fd = image->data_fd = -1;
    tool_paths(tool, image);
    struct shmfs_memory *memory = &image->memory;
    if (device_is(tool))
        return device_map(tool, image, is_writable) && watch(tool, image);
    return map(tool, image->control_path, is_writable, &memory->control_fd, &memory->control,
               &memory->control_bytes) &&
           map(tool, image->data_path, is_writable, &image->data_fd, &memory->data,
               &memory->data_bytes) &&
           watch(tool, image);
}

bool tool_is_whole(struct tool *tool, const struct tool_image *image)
{
    const struct shmfs_memory *memory = &image->memory;
    struct image_superblock superblock = {0};
    struct shape shape;
    uint64_t has_bytes = memory->control_bytes, wanted_bytes = sizeof superblock;
    const char *path = image->control_path;
    if (has_bytes >= wanted_bytes) {
        memcpy(&superblock, memory->control, sizeof superblock);
        if (shape_read(&superblock, UINT64_MAX, UINT64_MAX, &shape))
            return true; /* the superblock is invalid, so the sizes are unknown */
        wanted_bytes = shape.control_bytes;
        if (has_bytes >= wanted_bytes) {
            path = image->data_path;
            has_bytes = memory->data_bytes;
            wanted_bytes = shape.data_bytes;
        }
    }
    if (has_bytes >= wanted_bytes)
        return true;
    tool_failed(tool,
                "%s was truncated: it has %" PRIu64 " bytes, and %s%" PRIu64
                " belong to the image (shminit --force creates a new one)",
                path, has_bytes, wanted_bytes == sizeof superblock ? "at least " : "",
                wanted_bytes);
    return false;
}

bool tool_free_space(const struct tool_image *image)
{
    return cores_free(image->control_path, image->lacking_bytes) > 0;
}

/* For `struct shmfs_options`. */
static bool free_space(void *argument, uint64_t wanted_bytes)
{
    struct tool_image *image = argument;
    if (!image->has_turn) /* several threads of the mount may be here */
        return cores_free(image->control_path, wanted_bytes) > 0;
    image->lacking_bytes = wanted_bytes;
    return false;
}

/* Attach to the mapped image. A tool that does not need to write becomes a reader if there is no place
 * for another client. */
static int attach(struct tool_image *image, size_t size_bytes, struct shmfs_options *options,
                  bool must_write)
{
    int error = shmfs_attach(&image->fs, image->storage, size_bytes, &image->memory, options);
    if (error == SHMFS_ERROR_NO_CLIENTS && !must_write) {
        options->is_read_only = true;
        error = shmfs_attach(&image->fs, image->storage, size_bytes, &image->memory, options);
    }
    image->is_client = !error && !options->is_read_only;
    return error;
}

static bool attach_mapped(struct tool *tool, struct tool_image *image, bool is_writable,
                          bool must_write)
{
    struct shmfs_options options = {
        .is_read_only = !is_writable,
        .free_space = free_space,
        .free_space_argument = image,
    };
    if (!tool_map(tool, image, is_writable) || !tool_is_whole(tool, image))
        return false;
    if (image->lives_by_heartbeats && is_writable) {
        if (!device_begin(tool, image))
            return false;
        options.is_alive = device_lives;
        options.is_alive_argument = tool->device;
        options.claim = device_claim;
        options.begins_change = device_begins_change;
    }
    size_t size_bytes = (shmfs_size() + 63) / 64 * 64;
    image->storage = aligned_alloc(64, size_bytes);
    if (!image->storage) {
        tool_failed(tool, "out of memory");
        return false;
    }
    int error = attach(image, size_bytes, &options, must_write);
    if (!error)
        return true;
    image->fs = NULL;
    if (error == SHMFS_ERROR_FORMAT)
        tool_failed(tool,
                    "%s is not an image that %s can use: it is damaged, incomplete, or of another "
                    "version or machine (shmfsck reports details; shminit --force creates a new "
                    "image)",
                    image->control_path, tool->name);
    else
        tool_failed(tool, "%s cannot be used: %s", image->control_path, tool_error_text(error));
    return false;
}

bool tool_attach(struct tool *tool, struct tool_image *image, bool is_writable)
{
    return attach_mapped(tool, image, is_writable, is_writable);
}

bool tool_attach_counted(struct tool *tool, struct tool_image *image)
{
    tool_paths(tool, image);
    const bool may_write = !access(image->control_path, R_OK | W_OK) &&
                           !access(image->data_path, R_OK | W_OK);
    return attach_mapped(tool, image, may_write, false);
}

int tool_begin_io(struct tool_image *image, uint32_t limit)
{
    image->is_counted = false;
    if (!image->is_client && !limit)
        return 0;
    int error = shmfs_io_begin(image->fs, limit, limit ? -1 : 0);
    image->is_counted = !error;
    return limit ? error : 0;
}

void tool_end_io(struct tool_image *image)
{
    int cause = errno;
    if (image->is_counted)
        shmfs_io_end(image->fs);
    image->is_counted = false;
    errno = cause;
}

int tool_end(struct tool *tool, struct tool_image *image)
{
    if (image->fs)
        shmfs_detach(image->fs);
    image->fs = NULL;
    if (tool->device)
        device_detach(tool->device);
    tool->device = NULL;
    free(image->storage);
    free(image->device_storage);
    tool_flush(tool);
    return tool->has_failed ? TOOL_FAILED : TOOL_DONE;
}

const char *tool_error_text(int error)
{
    if (error == SHMFS_ERROR_SYSTEM)
        return errno == EFAULT ? CUT_TEXT : strerror(errno); /* the page was truncated */
    return shmfs_error_text(error);
}
