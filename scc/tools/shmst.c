/* shmst: stores a file of shared memory in an ordinary file. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io_token.h"
#include "tool.h"

/* Create the file that will replace `target`. If the file system supports it, the file has no name
 * yet, so that nothing is left if this program is killed. */
static int make_beside(const char *target, const char *beside, bool *has_name)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", target);
    int fd = open(dirname(folder), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    unlink(beside); /* left by a dead process with our number */
    *has_name = fd < 0;
    return fd < 0 ? open(beside, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666) : fd;
}

static int give_name(int fd, const char *name)
{
    char unnamed[64];
    snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, unnamed, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

/* Copy owner and mode of the target to the file that replaces it, as far as permitted. */
static void resemble(int fd, const char *target)
{
    struct stat status;
    if (stat(target, &status))
        return; /* there is no old file */
    if (fchown(fd, status.st_uid, status.st_gid))
        errno = 0; /* it stays ours */
    fchmod(fd, status.st_mode & 0777);
}

/* Store a file, and let the image count that, once fewer than `limit` operations are under way. */
static int64_t store_counted(struct tool_image *image, const char *name, int fd, uint32_t limit)
{
    int64_t stored = tool_begin_io(image, limit);
    if (!stored)
        stored = shmfs_store(image->fs, name, fd);
    tool_end_io(image);
    return stored;
}

/* Store a file while this program has a turn at the disk of the target. */
static int64_t store_in_turn(struct tool *tool, struct tool_image *image, const char *name, int fd,
                             const char *target, uint32_t limit)
{
    char folder[PATH_MAX];
    struct shmfs_info info;
    int error = shmfs_stat(image->fs, name, &info);
    if (error)
        return error;
    snprintf(folder, sizeof folder, "%s", target);
    int token = tool_await_turn(tool, dirname(folder), (int64_t)info.size_bytes, true, limit);
    if (token < 0)
        return token;
    int64_t stored = store_counted(image, name, fd, tool->io_shared);
    int cause = errno;
    if (token != TOOL_NO_TURN)
        io_token_release(token);
    errno = cause;
    return stored;
}

/* Write the file next to its target, and rename it: readers see the old file or the new one, and a
 * store that fails or dies leaves the old one. */
static void store_file(struct tool *tool, struct tool_image *image, const char *name,
                       const char *out, uint32_t limit)
{
    char target[PATH_MAX], beside[PATH_MAX + 32];
    bool has_name;
    if (!realpath(out, target)) /* follow links to the real target */
        snprintf(target, sizeof target, "%s", out);
    snprintf(beside, sizeof beside, "%s.%ld~", target, (long)getpid());
    int fd = make_beside(target, beside, &has_name);
    if (fd < 0) {
        tool_failed(tool, "%s cannot be written: %s", out, strerror(errno));
        return;
    }
    resemble(fd, target);
    int64_t stored = store_in_turn(tool, image, name, fd, target, limit);
    if (tool->has_failed) {
        /* it could not wait for the disk, and has said so */
    } else if (stored < 0) {
        tool_failed(tool, "%s cannot be stored in %s: %s", name, out,
                    tool_error_text((int)stored));
    } else if ((!has_name && give_name(fd, beside)) || rename(beside, target)) {
        tool_failed(tool, "%s cannot be written: %s", out, strerror(errno));
    }
    unlink(beside); /* if it was not renamed */
    close(fd);
}

/* Write to an existing target that is not a regular file: a pipe, a terminal, a device. */
static void store_into(struct tool *tool, struct tool_image *image, const char *name, int fd,
                       const char *out)
{
    int64_t stored = store_counted(image, name, fd, tool->io_shared);
    if (stored < 0)
        tool_failed(tool, "%s cannot be stored in %s: %s", name, out,
                    tool_error_text((int)stored));
}

int main(int argc, char **argv)
{
    struct tool_option options[] = {TOOL_IO_OPTIONS, {0}};
    struct tool tool = {
        .name = "shmst",
        .arguments = "NAME OUT",
        .text = "Store a file of shared memory in the ordinary file OUT, whole or not at all. OUT\n"
                "may be - for standard output.",
        .least = 2,
        .most = 2,
        .options = options,
    };
    struct tool_image image;
    struct stat status;
    tool_begin(&tool, argc, argv);
    uint32_t limit = tool_io_limit(&tool, options);
    if (!(tool.io_shared ? tool_attach(&tool, &image, true) : tool_attach_counted(&tool, &image)))
        return TOOL_FAILED;
    const char *name = tool.given[0], *out = tool.given[1];
    if (!strcmp(out, "-")) {
        store_into(&tool, &image, name, STDOUT_FILENO, "standard output");
    } else if (!stat(out, &status) && S_ISDIR(status.st_mode)) {
        tool_failed(&tool, "%s cannot be written: it is a directory", out);
    } else if (stat(out, &status) && !lstat(out, &status)) {
        tool_failed(&tool, "%s cannot be written: it is a link that leads nowhere", out);
    } else if (!stat(out, &status) && !S_ISREG(status.st_mode)) {
        int fd = open(out, O_WRONLY | O_CLOEXEC);
        if (fd < 0)
            tool_failed(&tool, "%s cannot be written: %s", out, strerror(errno));
        else
            store_into(&tool, &image, name, fd, out);
    } else {
        store_file(&tool, &image, name, out, limit);
    }
    return tool_end(&tool, &image);
}
