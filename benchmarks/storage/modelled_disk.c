/* modelled_disk: load a file, from a model of a rotating disk or from a real one.
 *
 *     modelled_disk model FILE NUMBER REQUESTS SCALE LIMIT DEVICE
 *     modelled_disk real PATH 0 0 0 LIMIT DEVICE
 *
 * The model is in FILE, which all loaders map: until when the disk is busy, and with which request.
 * A request has a mebibyte and takes 1/105 s, and 8 ms more if it does not follow the last request
 * in the same file; all times are divided by SCALE. Each loader sends some requests in advance, as a
 * kernel does. A loader starts when it gets a line, while at most LIMIT loaders hold a token of
 * DEVICE (0: any number), and answers with a line when it is done. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../../scc/tools/io_token.h"

#define REQUEST_BYTES (1 << 20)
#define TRANSFER_NS (REQUEST_BYTES * 1000.0 / 105)
#define SEEK_NS 8e6
#define AHEAD 3 /* requests that a loader sends before it waits for the oldest */

struct disk {
    pthread_mutex_t mutex;
    uint64_t is_made;
    int64_t busy_until_ns;
    uint64_t file;
    uint64_t request;
    uint64_t seek_count; /* the last field, since a test reads it there */
};

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

static struct disk *open_disk(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || lockf(fd, F_LOCK, 0) || ftruncate(fd, sizeof(struct disk)))
        return NULL;
    struct disk *disk = mmap(NULL, sizeof *disk, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (disk != MAP_FAILED && !disk->is_made) {
        pthread_mutexattr_t shared;
        pthread_mutexattr_init(&shared);
        pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
        pthread_mutex_init(&disk->mutex, &shared);
        disk->is_made = 1;
    }
    close(fd); /* and release the lock */
    return disk == MAP_FAILED ? NULL : disk;
}

/* Queue a request at the disk, behind all earlier ones; return the time at which it ends. */
static int64_t request(struct disk *disk, uint64_t file, uint64_t number, double scale)
{
    pthread_mutex_lock(&disk->mutex);
    bool is_next = disk->file == file && disk->request + 1 == number;
    int64_t now = now_ns();
    int64_t begin_ns = now > disk->busy_until_ns ? now : disk->busy_until_ns;
    int64_t end_ns = begin_ns + (int64_t)((TRANSFER_NS + (is_next ? 0 : SEEK_NS)) / scale);
    disk->busy_until_ns = end_ns;
    disk->file = file;
    disk->request = number;
    disk->seek_count += !is_next;
    pthread_mutex_unlock(&disk->mutex);
    return end_ns;
}

static int load_from_model(struct disk *disk, char **arguments)
{
    uint64_t file = strtoull(arguments[1], NULL, 10), count = strtoull(arguments[2], NULL, 10);
    double scale = atof(arguments[3]);
    int64_t end_ns = now_ns();
    for (uint64_t number = 1; number <= count; number++) {
        sleep_until(end_ns - (int64_t)(AHEAD * TRANSFER_NS / scale));
        end_ns = request(disk, file, number, scale);
    }
    sleep_until(end_ns);
    return 0;
}

static int load_from_disk(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *buffer = malloc(REQUEST_BYTES);
    ssize_t count = fd < 0 || !buffer ? -1 : 1;
    while (count > 0)
        count = read(fd, buffer, REQUEST_BYTES);
    free(buffer);
    if (fd >= 0)
        close(fd);
    return count < 0;
}

int main(int argc, char **argv)
{
    if (argc != 8)
        return 2;
    bool is_real = strcmp(argv[1], "real") == 0;
    struct disk *disk = is_real ? NULL : open_disk(argv[2]);
    if (!is_real && !disk)
        return 1;
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF)
        return 1;
    int token = io_token_take(argv[7], (unsigned)atoi(argv[6]), -1);
    if (token < 0)
        return 1;
    int failed = is_real ? load_from_disk(argv[2]) : load_from_model(disk, argv + 2);
    io_token_release(token);
    puts("done");
    return failed;
}
