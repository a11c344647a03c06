/* io_token.c: the C version of ciel/storage/device_semaphores.py. */
#include "io_token.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ROOT "/dev/shm"
#define JOIN_TRIES 1000 /* retries, since the last process in a queue removes its directory */

/* Processes that joined the queue before us. */
struct earlier {
    struct pollfd *polls;
    uint64_t *numbers;
    size_t count;
    size_t room;
};

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Open a private directory, and create it if it is missing. Refuse other users' directories and
 * links. */
static int open_private(int parent, const char *name)
{
    if (mkdirat(parent, name, 0700) && errno != EEXIST)
        return -errno;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    struct stat status;
    if (fstat(fd, &status) || status.st_uid != geteuid()) {
        close(fd);
        return -EPERM;
    }
    return fd;
}

/* Open a device's directory, locked until it is closed. */
static int open_line(const char *device)
{
    char top[64];
    snprintf(top, sizeof top, ROOT "/ciel-io-%u", (unsigned)geteuid());
    int parent = open_private(AT_FDCWD, top);
    if (parent < 0)
        return parent;
    int fd = open_private(parent, device);
    close(parent);
    if (fd < 0)
        return fd;
    while (flock(fd, LOCK_EX)) {
        if (errno != EINTR) {
            int error = -errno;
            close(fd);
            return error;
        }
    }
    return fd;
}

/* Return the number that a name consists of, or 0. */
static uint64_t number_of(const char *name)
{
    uint64_t number = 0;
    for (const char *digit = name; *digit; digit++) {
        if (*digit < '0' || *digit > '9' || number > UINT64_MAX / 10 - 1)
            return 0;
        number = number * 10 + (uint64_t)(*digit - '0');
    }
    return number;
}

static int add_earlier(struct earlier *earlier, int fd, uint64_t number)
{
    if (earlier->count == earlier->room) {
        size_t room = earlier->room ? 2 * earlier->room : 16;
        struct pollfd *polls = realloc(earlier->polls, room * sizeof *polls);
        if (polls)
            earlier->polls = polls;
        uint64_t *numbers = realloc(earlier->numbers, room * sizeof *numbers);
        if (numbers)
            earlier->numbers = numbers;
        if (!polls || !numbers)
            return -ENOMEM;
        earlier->room = room;
    }
    earlier->polls[earlier->count] = (struct pollfd){.fd = fd}; /* poll always reports hang-ups */
    earlier->numbers[earlier->count++] = number;
    return 0;
}

static void forget_earlier(struct earlier *earlier)
{
    for (size_t i = 0; i < earlier->count; i++)
        close(earlier->polls[i].fd);
    free(earlier->polls);
    free(earlier->numbers);
    *earlier = (struct earlier){0};
}

/* Open the FIFO of a process in the queue, or remove it if the process has died. */
static int look_at(int line, const char *name, struct earlier *earlier)
{
    int fd = openat(line, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno; /* it has just left */
    int error = 0;
    if (flock(fd, LOCK_SH | LOCK_NB) == 0)
        unlinkat(line, name, 0);
    else if (errno != EWOULDBLOCK)
        error = -errno;
    else if ((error = add_earlier(earlier, fd, number_of(name))) == 0)
        return 0;
    close(fd);
    return error;
}

/* Find the processes in the queue, and the next free `number`. */
static int look_around(int line, struct earlier *earlier, uint64_t *number)
{
    int copy = fcntl(line, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return -errno;
    DIR *directory = fdopendir(copy);
    if (!directory) {
        int error = -errno;
        close(copy);
        return error;
    }
    int error = 0;
    *number = 1;
    for (struct dirent *entry; !error && (entry = readdir(directory));) {
        uint64_t found = number_of(entry->d_name);
        if (found >= *number)
            *number = found + 1;
        if (found)
            error = look_at(line, entry->d_name, earlier);
    }
    closedir(directory);
    return error;
}

/* Create our own FIFO, and lock it. */
static int enter(int line, uint64_t number)
{
    char name[24];
    snprintf(name, sizeof name, "%llu", (unsigned long long)number);
    if (mkfifoat(line, name, 0600))
        return -errno;
    int fd = openat(line, name, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        int error = -errno;
        close(fd);
        return error;
    }
    return fd;
}

static int join(const char *device, struct earlier *earlier)
{
    for (int tries = 0; tries < JOIN_TRIES; tries++) {
        uint64_t number = 0;
        int line = open_line(device);
        if (line == -ENOENT && access(ROOT, F_OK) == 0)
            continue; /* removed by the last process of the queue before we opened it */
        if (line < 0)
            return line;
        int own = look_around(line, earlier, &number);
        if (own == 0)
            own = enter(line, number);
        close(line);
        if (own >= 0)
            return own;
        forget_earlier(earlier);
        if (own != -ENOENT) /* the last process has just left and removed the directory */
            return own;
    }
    return -EBUSY;
}

/* Drop processes that have left. If a process died, its FIFO is still there; remove it. */
static void drop_gone(struct earlier *earlier, const char *device)
{
    for (size_t i = 0; i < earlier->count;) {
        if (!earlier->polls[i].revents) {
            i++;
            continue;
        }
        char path[128];
        snprintf(path, sizeof path, ROOT "/ciel-io-%u/%s/%llu", (unsigned)geteuid(), device,
                 (unsigned long long)earlier->numbers[i]);
        unlink(path);
        close(earlier->polls[i].fd);
        earlier->count--;
        earlier->polls[i] = earlier->polls[earlier->count];
        earlier->numbers[i] = earlier->numbers[earlier->count];
    }
}

static int await_turn(struct earlier *earlier, const char *device, unsigned limit,
                      int64_t timeout_ms)
{
    int64_t until_ms = now_ms() + timeout_ms;
    while (earlier->count >= limit) {
        int64_t left_ms = timeout_ms < 0 ? -1 : until_ms - now_ms();
        if (timeout_ms >= 0 && left_ms < 0)
            left_ms = 0;
        int found = poll(earlier->polls, earlier->count, left_ms > INT_MAX ? INT_MAX : (int)left_ms);
        if (found < 0 && errno != EINTR)
            return -errno;
        if (found == 0 && left_ms <= INT_MAX)
            return -ETIMEDOUT;
        if (found > 0)
            drop_gone(earlier, device);
    }
    return 0;
}

int io_token_take(const char *device, unsigned limit, int64_t timeout_ms)
{
    if (limit == 0)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct earlier earlier = {0};
    int own = join(device, &earlier);
    if (own >= 0) {
        int error = await_turn(&earlier, device, limit, timeout_ms);
        if (error) {
            io_token_release(own);
            own = error;
        }
    }
    forget_earlier(&earlier);
    return own;
}

void io_token_release(int token)
{
    struct stat status;
    char link[40], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", token);
    ssize_t length = readlink(link, path, sizeof path - 1);
    bool is_place = fstat(token, &status) == 0 && S_ISFIFO(status.st_mode) && status.st_nlink > 0;
    if (!is_place || length <= 0) {
        close(token);
        return;
    }
    path[length] = '\0';
    unlink(path);
    close(token);
    for (int level = 0; level < 2; level++) { /* the last process removes them */
        char *slash = strrchr(path, '/');
        if (!slash)
            return;
        *slash = '\0';
        if (rmdir(path))
            return;
    }
}
