/* rotating_filter: a filter of nbdkit that serves reads at the speed of a rotating disk.
 *
 *     nbdkit --filter=ROTATING_FILTER memory SIZE scale=SCALE seeks=FILE
 *
 * The disk serves one read at a time, in the order of arrival. A read takes 1/105 us for each byte,
 * and 8 ms more if it does not begin where the last one ended; SCALE divides all times. An idle disk
 * reads on into its own buffer, so a next read after a short pause takes less. Writes take no time,
 * so that a benchmark fills the disk quickly. The first 8 bytes of FILE count the seeks, as an
 * integer in the order of this machine. */
#define NBDKIT_API_VERSION 2

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <nbdkit-filter.h>

#define BYTE_NS (1000.0 / 105)
#define SEEK_NS 8e6
#define BUFFER_BYTES (8 << 20)

static struct {
    pthread_mutex_t mutex;
    double scale;
    int64_t busy_until_ns;
    uint64_t head; /* the offset at which the last read ended */
    uint64_t *seek_count; /* in a mapped file, or in `uncounted` */
    uint64_t uncounted;
} disk = {.mutex = PTHREAD_MUTEX_INITIALIZER, .scale = 1, .seek_count = &disk.uncounted};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void sleep_until(int64_t time_ns)
{
    struct timespec until = {time_ns / 1000000000, time_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

/* Queue a read behind all earlier ones; return the time at which it ends, which may be past. */
static int64_t queue_read(uint64_t offset, uint32_t count)
{
    pthread_mutex_lock(&disk.mutex);
    bool is_next = offset == disk.head;
    double time_ns = count * BYTE_NS + (is_next ? 0 : SEEK_NS);
    int64_t ahead_ns = (int64_t)(is_next ? BUFFER_BYTES * BYTE_NS / disk.scale : 0);
    int64_t earliest_ns = now_ns() - ahead_ns;
    int64_t begin_ns = earliest_ns > disk.busy_until_ns ? earliest_ns : disk.busy_until_ns;
    int64_t end_ns = begin_ns + (int64_t)(time_ns / disk.scale);
    disk.busy_until_ns = end_ns;
    disk.head = offset + count;
    *disk.seek_count += !is_next;
    pthread_mutex_unlock(&disk.mutex);
    return end_ns;
}

static int rotating_pread(nbdkit_next *next, void *handle, void *buffer, uint32_t count,
                          uint64_t offset, uint32_t flags, int *error)
{
    (void)handle;
    int64_t end_ns = queue_read(offset, count);
    int failed = next->pread(next, buffer, count, offset, flags, error);
    sleep_until(end_ns);
    return failed;
}

static int count_in(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *counter = MAP_FAILED;
    if (fd >= 0 && !ftruncate(fd, sizeof *disk.seek_count))
        counter = mmap(NULL, sizeof *disk.seek_count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (counter == MAP_FAILED)
        nbdkit_error("seeks=%s cannot be mapped: %s", path, strerror(errno));
    else
        disk.seek_count = counter;
    if (fd >= 0)
        close(fd);
    return counter == MAP_FAILED ? -1 : 0;
}

static int rotating_config(nbdkit_next_config *next, nbdkit_backend *backend, const char *key,
                           const char *value)
{
    if (strcmp(key, "seeks") == 0)
        return count_in(value);
    if (strcmp(key, "scale") != 0)
        return next(backend, key, value);
    char *end;
    disk.scale = strtod(value, &end);
    if (*end || !(disk.scale > 0)) {
        nbdkit_error("scale=%s: expected a number above 0", value);
        return -1;
    }
    return 0;
}

static struct nbdkit_filter filter = {
    .name = "rotating",
    .longname = "nbdkit filter with the speed of a rotating disk",
    .config = rotating_config,
    .config_help = "scale=NUMBER    The disk is this many times as fast (default: 1).\n"
                   "seeks=FILE      The file in which the filter counts seeks.",
    .pread = rotating_pread,
};

NBDKIT_REGISTER_FILTER(filter)
