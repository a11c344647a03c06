/* shminit: creates an image in shared memory.
 *
 * It creates both files completely, without names, before it names either of them: neither a crash
 * nor a lack of memory leaves a part of an image. If two shminit run at once, the first one to name
 * the control file wins. It keeps the control file locked (flock) until the data file has its name
 * too, so that another shminit can tell a running process from a process that died between the two
 * steps. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tool.h"

enum { BLOCKS, BLOCK_SIZE, INODES, ENTRIES, SHARDS, CLIENTS, HANDLES, CORES, KERNELS, FORCE,
       OPTION_COUNT };

static void read_geometry(const struct tool *tool, struct shmfs_geometry *geometry)
{
    const struct tool_option *options = tool->options;
    *geometry = (struct shmfs_geometry){
        .block_count = tool_number(tool, &options[BLOCKS], 1, SHMFS_BLOCK_MAX_COUNT, 1024),
        .block_bytes = tool_number(tool, &options[BLOCK_SIZE], SHMFS_BLOCK_MIN_BYTES,
                                   SHMFS_BLOCK_MAX_BYTES, 1 << 20),
        .inode_count =
            (uint32_t)tool_number(tool, &options[INODES], 1, SHMFS_INODE_MAX_COUNT, 1024),
        .entry_count =
            (uint32_t)tool_number(tool, &options[ENTRIES], 1, SHMFS_INODE_MAX_COUNT, 1024),
        .shard_count = (uint32_t)tool_number(tool, &options[SHARDS], 1, SHMFS_SHARD_MAX_COUNT, 1),
        .client_count =
            (uint32_t)tool_number(tool, &options[CLIENTS], 1, SHMFS_CLIENT_MAX_COUNT, 64),
        .handle_count =
            (uint32_t)tool_number(tool, &options[HANDLES], 1, SHMFS_HANDLE_MAX_COUNT, 1024),
    };
    if (geometry->block_bytes & (geometry->block_bytes - 1))
        tool_misused(tool, "--block-size is a power of two, not %" PRIu64, geometry->block_bytes);
    if (geometry->shard_count & (geometry->shard_count - 1))
        tool_misused(tool, "--shards is a power of two, not %" PRIu32, geometry->shard_count);
}

/* Create an image in one file, for one kernel or for several. */
static bool make_in_device(struct tool *tool, struct tool_image *image,
                           struct shmfs_geometry *geometry)
{
    const struct tool_option *options = tool->options;
    const char *kernels = options[KERNELS].given ? options[KERNELS].given : "separate";
    const bool is_separate = !strcmp(kernels, "separate");
    if (!is_separate && strcmp(kernels, "shared") != 0)
        tool_misused(tool, "--kernels is separate or shared, not '%s'", kernels);
    return device_make(tool, image, geometry,
                       (uint32_t)tool_number(tool, &options[CORES], 1, DEVICE_CORE_MAX_COUNT, 48),
                       is_separate ? DEVICE_SEPARATE : DEVICE_SHARED, options[FORCE].given);
}

static void say_no_room(struct tool *tool, const struct tool_image *image, int error)
{
    char place[PATH_MAX], needed[32], left[32];
    struct statvfs room;
    snprintf(place, sizeof place, "%s", image->control_path);
    char *folder = dirname(place);
    if (error == ENOSPC && !statvfs(folder, &room))
        tool_failed(tool,
                    "%s is too small: the image takes %s and %s are free; enlarge it, or use a "
                    "smaller --blocks",
                    folder, tool_size(needed, image->memory.control_bytes + image->memory.data_bytes),
                    tool_size(left, (uint64_t)room.f_bavail * room.f_frsize));
    else
        tool_failed(tool, "cannot create an image in %s: %s", folder, strerror(error));
}

/* Create a file that has no name yet, allocate its space, and map it. */
static int make_file(const char *path, uint64_t size_bytes, int *fd, void **at)
{
    char place[PATH_MAX];
    snprintf(place, sizeof place, "%s", path);
    *fd = open(dirname(place), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd < 0)
        return errno;
    int error = posix_fallocate(*fd, 0, (off_t)size_bytes);
    if (error)
        return error;
    *at = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    return *at == MAP_FAILED ? errno : 0;
}

static bool make_image(struct tool *tool, struct tool_image *image,
                       struct shmfs_geometry *geometry)
{
    struct shmfs_memory *memory = &image->memory;
    int error = shmfs_sizes(geometry, &memory->control_bytes, &memory->data_bytes);
    if (error) {
        tool_failed(tool, "invalid geometry: %s", tool_error_text(error));
        return false;
    }
    error = make_file(image->data_path, memory->data_bytes, &image->data_fd, &memory->data);
    if (!error)
        error = make_file(image->control_path, memory->control_bytes, &memory->control_fd,
                          &memory->control);
    if (error) {
        say_no_room(tool, image, error);
        return false;
    }
    error = shmfs_format(memory, geometry);
    if (error)
        tool_failed(tool, "cannot create an image: %s", tool_error_text(error));
    return !error;
}

static int give_name(int fd, const char *path)
{
    char unnamed[64];
    snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, unnamed, AT_FDCWD, path, AT_SYMLINK_FOLLOW) ? errno : 0;
}

/* Return whether an existing image may be replaced: with --force, or if a shminit died before it
 * had named the data file. The existing control file stays locked. */
static bool may_replace(struct tool *tool, const struct tool_image *image)
{
    int fd = open(image->control_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* it may be a pipe */
    struct stat ours, named;
    if (fd < 0) {
        if (errno == ENOENT) /* removed meanwhile */
            return true;
        tool_failed(tool, "%s cannot be opened: %s", image->control_path, strerror(errno));
        return false;
    }
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        tool_failed(tool, "another shminit is creating %s right now", image->control_path);
    } else if (fstat(fd, &ours) || stat(image->control_path, &named) ||
               ours.st_ino != named.st_ino) {
        tool_failed(tool, "another shminit has just created %s", image->control_path);
    } else if (!tool->options[FORCE].given && !access(image->data_path, F_OK)) {
        tool_failed(tool, "there is an image at %s already; --force replaces it and discards its "
                          "files", image->control_path);
    } else {
        return true;
    }
    close(fd);
    return false;
}

/* Name the files. Programs that have the old files open keep using them. */
static bool name_files(struct tool *tool, const struct tool_image *image)
{
    flock(image->memory.control_fd, LOCK_EX);
    int error = give_name(image->memory.control_fd, image->control_path);
    if (error == EEXIST) {
        if (!may_replace(tool, image))
            return false;
        unlink(image->data_path);
        unlink(image->control_path);
        error = give_name(image->memory.control_fd, image->control_path);
    }
    if (error == EEXIST) {
        tool_failed(tool, "another shminit has just created %s", image->control_path);
        return false;
    }
    if (!error) {
        unlink(image->data_path); /* of an image whose control file was removed */
        error = give_name(image->data_fd, image->data_path);
        if (error)
            unlink(image->control_path);
    }
    if (error)
        tool_failed(tool, "cannot name %s: %s", image->control_path, strerror(error));
    return !error;
}

int main(int argc, char **argv)
{
    struct tool_option options[OPTION_COUNT + 1] = {
        [BLOCKS] = {"blocks", "N", "number of blocks; default 1024", "SHMFS_BLOCKS", NULL},
        [BLOCK_SIZE] = {"block-size", "SIZE", "a power of two from 4KiB; default 1MiB",
                        "SHMFS_BLOCK_SIZE", NULL},
        [INODES] = {"inodes", "N", "number of files; default 1024", "SHMFS_INODES", NULL},
        [ENTRIES] = {"entries", "N", "number of names; default 1024", "SHMFS_ENTRIES", NULL},
        [SHARDS] = {"shards", "N", "locks of each kind, a power of two up to 64; default 1",
                    "SHMFS_SHARDS", NULL},
        [CLIENTS] = {"clients", "N", "programs attached at the same time; default 64",
                     "SHMFS_CLIENTS", NULL},
        [HANDLES] = {"handles", "N", "open files of one program; default 1024",
                     "SHMFS_HANDLES", NULL},
        [CORES] = {"cores", "N", "in one file: cores of a store; default 48", NULL, NULL},
        [KERNELS] = {"kernels", "WHICH", "in one file: separate (default) or shared", NULL, NULL},
        [FORCE] = {"force", NULL, "replace an existing image and discard its files", NULL, NULL},
    };
    struct tool tool = {
        .name = "shminit",
        .text = "Create an image in shared memory: shmfs-control and shmfs-data in /dev/shm.",
        .options = options,
    };
    struct tool_image image = {.data_fd = -1, .memory = {.control_fd = -1}};
    struct shmfs_geometry geometry;
    tool_begin(&tool, argc, argv);
    tool_paths(&tool, &image);
    read_geometry(&tool, &geometry);
    if (device_is(&tool))
        return make_in_device(&tool, &image, &geometry) ? TOOL_DONE : TOOL_FAILED;
    if (!make_image(&tool, &image, &geometry) || !name_files(&tool, &image))
        return TOOL_FAILED;
    return TOOL_DONE;
}
