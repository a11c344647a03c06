/* loading.c: loads files of other file systems into the image. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io_token.h"
#include "tool.h"

/* Open a file to load. Prints the reason on failure. */
static int open_source(struct tool *tool, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status)) {
        tool_failed(tool, "%s cannot be read: %s", path, strerror(errno));
    } else if (S_ISDIR(status.st_mode)) {
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
    int fd = open_source(tool, path);
    if (fd < 0)
        return false;
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    int token = io_token_take(path, limit, -1);
    if (token < 0 && limit) {
        tool_failed(tool, "%s cannot be loaded: waiting for its disk failed: %s", path,
                    strerror(-token));
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
    if (token >= 0)
        io_token_release(token);
    if (error)
        tool_failed(tool, "%s cannot be loaded: %s", path, tool_error_text(error));
    close(fd);
    return !error;
}
