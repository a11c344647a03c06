/* Measures how fast threads read or write memory, by the width of a value and by the stride.
 *
 *     bandwidth [PATH]    the file, which must have 256 MiB, is mapped; without it, private memory
 *
 * Prints a line for each measurement: kind (read or write), threads, bytes of a value, stride in
 * values, GB/s of values that were read or written. Each is the best of several passes. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MEMORY_BYTES = 256 << 20, PASSES = 5, THREADS_MAX = 64 };

struct work {
    char *start;
    int64_t bytes;
    int width, stride, writes;
    uint64_t sum;
};

#define LOOPS(type)                                                                                \
    static void read_##type(struct work *work)                                                     \
    {                                                                                              \
        const type *values = (const type *)work->start;                                            \
        int64_t count = work->bytes / (int64_t)sizeof(type), stride = work->stride;                \
        uint64_t sum = 0;                                                                          \
        if (stride == 1)                                                                           \
            for (int64_t n = 0; n < count; n++)                                                    \
                sum += values[n];                                                                  \
        else                                                                                       \
            for (int64_t n = 0; n < count; n += stride)                                            \
                sum += values[n];                                                                  \
        work->sum = sum;                                                                           \
    }                                                                                              \
    static void write_##type(struct work *work)                                                    \
    {                                                                                              \
        type *values = (type *)work->start, value = (type)work->sum;                               \
        int64_t count = work->bytes / (int64_t)sizeof(type), stride = work->stride;                \
        if (stride == 1)                                                                           \
            for (int64_t n = 0; n < count; n++)                                                    \
                values[n] = value;                                                                 \
        else                                                                                       \
            for (int64_t n = 0; n < count; n += stride)                                            \
                values[n] = value;                                                                 \
    }

LOOPS(uint8_t)
LOOPS(uint16_t)
LOOPS(uint32_t)
LOOPS(uint64_t)

typedef void Loop(struct work *);
static Loop *const loops[2][4] = {
    {read_uint8_t, read_uint16_t, read_uint32_t, read_uint64_t},
    {write_uint8_t, write_uint16_t, write_uint32_t, write_uint64_t},
};

static void *run(void *argument)
{
    struct work *work = argument;
    loops[work->writes][work->width](work);
    return NULL;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void measure(char *memory, int writes, int threads, int width, int stride)
{
    struct work works[THREADS_MAX];
    pthread_t started[THREADS_MAX];
    double best_s = 1e9;
    for (int pass = 0; pass < PASSES; pass++) {
        int64_t bytes = MEMORY_BYTES / threads / 4096 * 4096;
        double begun_s = now_s();
        for (int n = 0; n < threads; n++) {
            works[n] = (struct work){memory + n * bytes, bytes, width, stride, writes, (uint64_t)pass};
            if (n > 0)
                pthread_create(&started[n], NULL, run, &works[n]);
        }
        run(&works[0]);
        for (int n = 1; n < threads; n++)
            pthread_join(started[n], NULL);
        double took_s = now_s() - begun_s;
        if (took_s < best_s)
            best_s = took_s;
    }
    printf("%s %d %d %d %.3f\n", writes ? "write" : "read", threads, 1 << width, stride,
           (double)MEMORY_BYTES / stride / best_s / 1e9);
}

int main(int count, char **words)
{
    int fd = count > 1 ? open(words[1], O_RDWR) : -1;
    int threads_max = (int)sysconf(_SC_NPROCESSORS_ONLN);
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    char *memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (memory == MAP_FAILED || (count > 1 && fd < 0)) {
        perror("bandwidth");
        return 1;
    }
    memset(memory, 1, MEMORY_BYTES);
    for (int writes = 0; writes < 2; writes++) {
        for (int threads = 1; threads <= threads_max && threads <= THREADS_MAX; threads *= 2)
            for (int width = 0; width < 4; width++)
                measure(memory, writes, threads, width, 1);
        for (int stride = 2; stride <= 512; stride *= 2)
            measure(memory, writes, 1, 3, stride);
    }
    return 0;
}
