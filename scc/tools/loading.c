/* loading.c: loads files of other file systems into the image. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io_token.h"
#include "tool.h"

enum { SMALL_BYTES = 64 * 1024 }; /* as ciel/worker/disk_jobs.py */

uint32_t tool_io_limit(const struct tool *tool, const struct tool_option *option)
{
    return (uint32_t)tool_number(tool, option, 0, UINT32_MAX - 1, TOOL_USUAL_LIMIT);
}

int tool_await_turn(struct tool *tool, const char *path, int64_t size_bytes, bool is_regular,
                    uint32_t limit)
{
    char device[IO_DEVICE_NAME_BYTES];
    bool in_memory;
    if (limit == 0 || (limit == TOOL_USUAL_LIMIT && (!is_regular || size_bytes <= SMALL_BYTES)))
        return TOOL_NO_TURN;
    int token = io_device_of(path, device, &in_memory);
    if (token == 0 && in_memory)
        return TOOL_NO_TURN;
    if (token == 0)
        token = io_token_take(device,
                                 limit == TOOL_USUAL_LIMIT ? io_usual_limit(device) : limit, -1);
    if (token < 0)
        tool_failed(tool, "waiting for the disk of %s failed: %s", path, strerror(-token));
    return token;
}

/* Open a file to load. Prints the reason on failure. */
static int open_source(struct tool *tool, const char *path, struct stat *status)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, status)) {
        tool_failed(tool, "%s cannot be read: %s", path, strerror(errno));
    } else if (S_ISDIR(status->st_mode)) {
        tool_failed(tool, "%s cannot be loaded: it is a directory", path);
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

bool tool_load(struct tool *tool, struct tool_image *image, const char *path, uint32_t limit)
{
    struct stat status;
    int fd = open_source(tool, path, &status);
    if (fd < 0)
        return false;
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    int token = tool_await_turn(tool, path, status.st_size, S_ISREG(status.st_mode), limit);
    if (token < 0) {
        close(fd);
        return false;
    }
    int error = shmfs_io_begin(image->fs, 0, -1); /* no limit: only counts the job */
    if (!error) {
        error = shmfs_load(image->fs, fd, name);
        int cause = errno;
        shmfs_io_end(image->fs);
        errno = cause;
    }
    if (token != TOOL_NO_TURN)
        io_token_release(token);
    if (error)
        tool_failed(tool, "%s cannot be loaded: %s", path, tool_error_text(error));
    close(fd);
    return !error;
}
