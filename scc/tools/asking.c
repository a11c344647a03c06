/* asking.c: asks the cores of an image for space, with the messages of scc/neighbours.py (CIB-52).
 *
 * Each core, which is the store of a worker, listens at a socket `space-CORE.INCARNATION` in the
 * directory of the image. It moves only the objects that it has. It answers how many bytes it has
 * freed, and when it used its next object last; a question about 0 bytes only asks for the latter.
 */
#include "asking.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static const char PREFIX[] = "space-";
static const char CONTROL[] = "/control"; /* images of workers have a directory of their own */
static const double ASK_S = 10; /* as in scc/neighbours.py */

struct question {
    uint64_t wanted_bytes;
    double before_s; /* only objects that were last used before, by the monotonic clock */
};

struct answer {
    uint64_t freed_bytes;
    double next_s; /* when its next object was used last; infinite: it has none */
};

struct core {
    char name[sizeof((struct dirent *)0)->d_name];
    double next_s;
};

struct cores {
    int directory_fd;
    struct core *all;
    size_t count;
    double deadline_s;
};

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Limit each of the next waits at a socket. */
static bool set_timeout(int fd, double seconds)
{
    const struct timeval limit = {
        .tv_sec = (time_t)seconds,
        .tv_usec = 1 + (suseconds_t)((seconds - (double)(time_t)seconds) * 999998),
    };
    return !setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) &&
           !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* Ask one core. Each question has a connection, since a core answers one connection at a time. A
 * core that does not answer in time has nothing to move. */
static struct answer ask(const struct cores *cores, const char *name, struct question question)
{
    const struct answer nothing = {0, INFINITY};
    struct answer answer;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const double left_s = cores->deadline_s - now_s();
    /* The path of the directory may be too long for an address. */
    const int length = snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s",
                                cores->directory_fd, name);
    if (left_s <= 0 || length >= (int)sizeof address.sun_path)
        return nothing;
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return nothing;
    bool is_answered = set_timeout(fd, left_s);
    if (is_answered && connect(fd, (struct sockaddr *)&address, sizeof address)) {
        is_answered = false;
        if (errno == ECONNREFUSED) /* its process has died */
            unlinkat(cores->directory_fd, name, 0);
    }
    is_answered = is_answered &&
                  send(fd, &question, sizeof question, MSG_NOSIGNAL) == sizeof question &&
                  recv(fd, &answer, sizeof answer, 0) == sizeof answer;
    close(fd);
    return is_answered ? answer : nothing;
}

/* Open the directory of an image. Returns -1 if the image has none, or it is of another user, whose
 * cores would not answer. */
static int open_directory(const char *control_path)
{
    char path[PATH_MAX];
    const size_t length = strlen(control_path), ending = sizeof CONTROL - 1;
    if (length <= ending || length >= sizeof path ||
        strcmp(control_path + length - ending, CONTROL))
        return -1;
    memcpy(path, control_path, length - ending);
    path[length - ending] = 0;
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat status;
    if (fd >= 0 && (fstat(fd, &status) || status.st_uid != geteuid())) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Find all cores, and ask each when it used its oldest object last. */
static void find(struct cores *cores)
{
    const int fd = openat(cores->directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    while (names && (entry = readdir(names))) {
        if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1))
            continue;
        struct core *all = realloc(cores->all, (cores->count + 1) * sizeof *all);
        if (!all)
            break;
        cores->all = all;
        memcpy(all[cores->count++].name, entry->d_name, sizeof all->name);
    }
    if (names)
        closedir(names);
    for (size_t i = 0; i < cores->count; i++)
        cores->all[i].next_s =
            ask(cores, cores->all[i].name, (struct question){0, INFINITY}).next_s;
}

/* Return the core whose next object was used longest ago, or NULL. Sets `until_s` to when the next
 * object of all others was used. */
static struct core *oldest_of(struct cores *cores, double *until_s)
{
    struct core *oldest = NULL;
    *until_s = INFINITY;
    for (size_t i = 0; i < cores->count; i++) {
        struct core *core = &cores->all[i];
        if (!oldest || core->next_s < oldest->next_s) {
            *until_s = oldest ? oldest->next_s : INFINITY;
            oldest = core;
        } else if (core->next_s < *until_s) {
            *until_s = core->next_s;
        }
    }
    return oldest && oldest->next_s < INFINITY ? oldest : NULL;
}

uint64_t cores_free(const char *control_path, uint64_t wanted_bytes)
{
    struct cores cores = {.directory_fd = open_directory(control_path)};
    uint64_t freed_bytes = 0;
    double until_s;
    struct core *oldest;
    if (cores.directory_fd < 0)
        return 0;
    cores.deadline_s = now_s() + ASK_S;
    find(&cores);
    while (freed_bytes < wanted_bytes && (oldest = oldest_of(&cores, &until_s))) {
        const struct answer answer =
            ask(&cores, oldest->name, (struct question){wanted_bytes - freed_bytes, until_s});
        if (answer.freed_bytes)
            cores.deadline_s = now_s() + ASK_S;
        freed_bytes += answer.freed_bytes;
        /* Otherwise its objects cannot move now. */
        oldest->next_s = answer.next_s > oldest->next_s ? answer.next_s : INFINITY;
    }
    free(cores.all);
    close(cores.directory_fd);
    return freed_bytes;
}
