/* loading.c: loads files of other file systems into the image. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io_token.h"
#include "tool.h"

enum { SMALL_BYTES = 64 * 1024 }; /* as ciel/worker/disk_jobs.py */

uint32_t tool_io_limit(struct tool *tool, const struct tool_option *options)
{
    tool->io_shared = (uint32_t)tool_number(tool, options + 1, 1, UINT32_MAX - 1, 0);
    uint32_t limit = (uint32_t)tool_number(tool, options, 0, UINT32_MAX - 1, TOOL_USUAL_LIMIT);
    return tool->io_shared ? 0 : limit;
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
        tool_failed(tool, "waiting for the disk of %s failed: %s", path,
                    token == -ENOENT ? "/dev/shm is missing" : strerror(-token));
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

/* Load an open file when it is its turn at the disk. Returns an error of shmfs, or 1 if it failed
 * before that, and the reason is printed. */
static int load_in_turn(struct tool *tool, struct tool_image *image, const char *path, int fd,
                        const struct stat *status, uint32_t limit)
{
    const char *slash = strrchr(path, '/');
    int token =
        tool_await_turn(tool, path, status->st_size, S_ISREG(status->st_mode), limit);
    if (token < 0)
        return 1;
    image->has_turn = token != TOOL_NO_TURN;
    image->lacking_bytes = 0;
    int error = tool_begin_io(image, tool->io_shared);
    if (!error)
        error = shmfs_load(image->fs, fd, slash ? slash + 1 : path);
    tool_end_io(image);
    if (image->has_turn)
        io_token_release(token);
    return error;
}

bool tool_load(struct tool *tool, struct tool_image *image, const char *path, uint32_t limit)
{
    struct stat status;
    int error, fd = open_source(tool, path, &status);
    if (fd < 0)
        return false;
    do /* a file can be read again, and only a file takes turns */
        error = load_in_turn(tool, image, path, fd, &status, limit);
    while (error < 0 && image->lacking_bytes && !lseek(fd, 0, SEEK_SET) && tool_free_space(image));
    if (error < 0)
        tool_failed(tool, "%s cannot be loaded: %s", path, tool_error_text(error));
    close(fd);
    return !error;
}
