/* io_device.c: finds the device of a path; the C version of ciel/storage/devices.py. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "io_token.h"

#define DEPTH_MAX 8
#define TEXT_BYTES 4096

struct device {
    unsigned major;
    unsigned minor;
    bool in_memory;
};

static int at_path(const char *path, int depth, struct device *device);

/* Read a short file, and strip blanks at its end. */
static bool read_text(const char *path, char text[TEXT_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, TEXT_BYTES - 1);
    close(fd);
    if (length < 0)
        return false;
    while (length > 0 && strchr(" \n\t", text[length - 1]))
        length--;
    text[length] = '\0';
    return true;
}

/* Find the only device below another one, from its `slaves`; false if there are none, or
 * several. */
static bool only_carrier(const char *place, char path[PATH_MAX])
{
    char slaves[PATH_MAX];
    if (snprintf(slaves, sizeof slaves, "%s/slaves", place) >= (int)sizeof slaves)
        return false;
    DIR *directory = opendir(slaves);
    if (!directory)
        return false;
    int count = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (entry->d_name[0] == '.')
            continue;
        if (snprintf(path, PATH_MAX, "%s/%s/dev", slaves, entry->d_name) < PATH_MAX)
            count++;
    }
    closedir(directory);
    return count == 1;
}

static int numbered(unsigned major, unsigned minor, int depth, struct device *device);

/* Continue with the device whose numbers a file contains. */
static int named(const char *file, int depth, struct device *device)
{
    char text[TEXT_BYTES];
    unsigned major, minor;
    if (!read_text(file, text) || sscanf(text, "%u:%u", &major, &minor) != 2)
        return 0;
    return numbered(major, minor, depth, device);
}

/* Resolve a block device: find the device below it. */
static int numbered(unsigned major, unsigned minor, int depth, struct device *device)
{
    *device = (struct device){.major = major, .minor = minor};
    char place[64], real[PATH_MAX], file[PATH_MAX], text[TEXT_BYTES];
    snprintf(place, sizeof place, "/sys/dev/block/%u:%u", major, minor);
    if (!realpath(place, real))
        return 0;
    if (depth < DEPTH_MAX) {
        snprintf(file, sizeof file, "%s/partition", place);
        if (access(file, F_OK) == 0) {
            snprintf(file, sizeof file, "%s/../dev", place); /* the link leads to DISK/PARTITION */
            return named(file, depth + 1, device);
        }
        snprintf(file, sizeof file, "%s/loop/backing_file", place);
        struct device backing;
        if (read_text(file, text) && at_path(text, depth + 1, &backing) == 0) {
            *device = backing;
            return 0;
        }
        if (only_carrier(place, file))
            return named(file, depth + 1, device);
    }
    const char *name = strrchr(real, '/') + 1;
    device->in_memory = strncmp(name, "zram", 4) == 0 || strncmp(name, "ram", 3) == 0;
    return 0;
}

/* Undo mountinfo's escaping of spaces and other characters. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; to++) {
        unsigned code;
        if (*from == '\\' && sscanf(from + 1, "%3o", &code) == 1) {
            *to = (char)code;
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

static bool is_of_memory(const char *kind)
{
    static const char *const kinds[] = {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kind, kinds[i]) == 0)
            return true;
    return false;
}

/* Resolve a mount, from the part of its line after the dash: kind, source, options. */
static int mounted(char *rest, int depth, struct device *device)
{
    char *next = NULL;
    char *kind = strtok_r(rest, " \n", &next);
    char *source = strtok_r(NULL, " \n", &next);
    char *options = strtok_r(NULL, " \n", &next);
    if (!kind || !source)
        return 0;
    if (is_of_memory(kind)) {
        device->in_memory = true;
        return 0;
    }
    struct device carrier;
    char *upper = options && strcmp(kind, "overlay") == 0 ? strstr(options, "upperdir=") : NULL;
    if (upper) {
        upper += strlen("upperdir=");
        upper[strcspn(upper, ",")] = '\0';
        unescape(upper);
        if (at_path(upper, depth + 1, &carrier) == 0)
            *device = carrier;
        return 0;
    }
    struct stat status;
    unescape(source);
    if (stat(source, &status) == 0 && S_ISBLK(status.st_mode)) /* for example btrfs */
        return numbered(major(status.st_rdev), minor(status.st_rdev), depth + 1, device);
    return 0;
}

/* Resolve a file system that has no block device number: find its source. */
static int anonymous(unsigned major, unsigned minor, int depth, struct device *device)
{
    *device = (struct device){.major = major, .minor = minor};
    FILE *mounts = depth < DEPTH_MAX ? fopen("/proc/self/mountinfo", "re") : NULL;
    if (!mounts)
        return 0;
    char *line = NULL;
    size_t room = 0;
    int error = 0;
    while (getline(&line, &room, mounts) > 0) {
        unsigned its_major, its_minor;
        if (sscanf(line, "%*u %*u %u:%u", &its_major, &its_minor) != 2 || its_major != major ||
            its_minor != minor)
            continue;
        char *rest = strstr(line, " - ");
        if (rest)
            error = mounted(rest + 3, depth, device);
        break;
    }
    free(line);
    fclose(mounts);
    return error;
}

static int at_path(const char *path, int depth, struct device *device)
{
    struct stat status;
    if (stat(path, &status))
        return -errno;
    if (major(status.st_dev))
        return numbered(major(status.st_dev), minor(status.st_dev), depth, device);
    if (!S_ISDIR(status.st_mode)) { /* overlayfs reports its own device only for directories */
        char real[PATH_MAX];
        if (!realpath(path, real))
            return -errno;
        char *slash = strrchr(real, '/');
        slash[slash == real] = '\0';
        if (stat(real, &status))
            return -errno;
        if (major(status.st_dev))
            return numbered(major(status.st_dev), minor(status.st_dev), depth, device);
    }
    return anonymous(major(status.st_dev), minor(status.st_dev), depth, device);
}

unsigned io_usual_limit(const char *device)
{
    char file[96], text[TEXT_BYTES];
    unsigned major, minor;
    if (sscanf(device, "%u-%u", &major, &minor) != 2)
        return 4;
    snprintf(file, sizeof file, "/sys/dev/block/%u:%u/queue/rotational", major, minor);
    return read_text(file, text) && !strcmp(text, "1") ? 1 : 4;
}

int io_device_of(const char *path, char name[IO_DEVICE_NAME_BYTES], bool *in_memory)
{
    struct device device = {0};
    int error = at_path(path, 0, &device);
    if (error)
        return error;
    snprintf(name, IO_DEVICE_NAME_BYTES, "%u-%u", device.major, device.minor);
    *in_memory = device.in_memory;
    return 0;
}
