/* unmounting.c: removes the mount of a process that was killed.
 *
 * Otherwise the mount would stay, and every call on it would fail with ENOTCONN. libfuse's
 * auto_unmount checks for a dead mount as soon as the process starts to end, which may be before
 * the kernel has closed its files, and does not check again. A pidfd reports the end after the
 * kernel has closed everything. */
#include <errno.h>
#include <limits.h>
#include <mntent.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unmounting.h"

enum { PATIENCE_S = 10 };

/* Return whether the topmost mount at a path is shmfs. The list of mounts needs no file system. */
static bool is_shmfs_at(const char *real)
{
    FILE *mounts = setmntent("/proc/self/mounts", "re");
    if (!mounts)
        return false;
    bool is_shmfs = false;
    for (struct mntent *mount; (mount = getmntent(mounts));)
        if (!strcmp(mount->mnt_dir, real))
            is_shmfs = !strcmp(mount->mnt_type, "fuse.shmfs");
    endmntent(mounts);
    return is_shmfs;
}

/* Resolve a path that may lead to a dead mount. A trailing slash would access the mount. */
static bool resolve(const char *place, char real[PATH_MAX])
{
    size_t length = strlen(place);
    while (length > 1 && place[length - 1] == '/')
        length--;
    char *bare = strndup(place, length);
    bool is_resolved = bare && realpath(bare, real);
    free(bare);
    return is_resolved;
}

bool is_mounted_on(const char *place)
{
    char real[PATH_MAX];
    return resolve(place, real) && is_shmfs_at(real);
}

void unmount_dead(const char *place)
{
    char real[PATH_MAX];
    struct statfs status; /* never cached, unlike the result of stat */
    if (!resolve(place, real) || !is_shmfs_at(real) || !statfs(real, &status) || errno != ENOTCONN)
        return;
    if (!umount2(real, MNT_DETACH))
        return;
    char *words[] = {"fusermount3", "-u", "-z", "-q", "--", real, NULL}; /* without root */
    pid_t child;
    if (!posix_spawnp(&child, words[0], NULL, NULL, words, environ))
        waitpid(child, NULL, 0);
}

/* Close all descriptors except one: open copies would delay other processes that wait for their
 * end. */
static void keep_only(int fd)
{
    if (fd > 0)
        close_range(0, (unsigned)fd - 1, 0);
    close_range((unsigned)fd + 1, ~0U, 0);
}

bool unmount_when_dead(const char *place)
{
    char real[PATH_MAX];
    if (realpath(place, real))
        place = real; /* the path may lead elsewhere later */
    int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (pidfd < 0)
        return false;
    pid_t guardian = fork();
    if (guardian) {
        close(pidfd);
        return guardian > 0;
    }
    setsid(); /* signals to the parent's group or terminal must not end it */
    prctl(PR_SET_NAME, "shmfs-guardian");
    keep_only(pidfd);
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    while (poll(&end, 1, -1) < 0 && errno == EINTR)
        continue;
    alarm(PATIENCE_S); /* by then another mount may be there, and hang */
    unmount_dead(place);
    _exit(0);
}
