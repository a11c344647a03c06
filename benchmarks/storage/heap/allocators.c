/* Measures an allocator with the tests A to D of the allocators of KVM-3.
 *
 *     allocators TEST THREADS RUNS    prints the time of a run in us, from the first thread's begin
 *                                     to the last one's end
 *
 * A: allocates 50 blocks of 1 kB, and frees them. B: the same, with blocks of 1 to 50 kB. C: ten times,
 * allocates 5 blocks of 512 bytes, and frees them. D: allocates 50 blocks of 1 kB, frees every second
 * one, and then allocates and frees 50 more, one at a time. c and d: the same with blocks of different
 * sizes. Each thread carries out all runs, after one that is not measured. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "report.h"

enum { BLOCKS = 50, FEW = 5, LOOPS = 10, THREADS_MAX = 64 };

static int runs;
static char test;
static pthread_barrier_t begin;
static volatile int has_failed;

struct span {
    double begun_s, ended_s;
};

/* Hide from the compiler that nobody uses a block. */
static void *get(size_t size_bytes)
{
    void *block = malloc(size_bytes);
    if (!block)
        has_failed = 1;
    __asm__ volatile("" : "+r"(block) : : "memory");
    return block;
}

/* Return the size of a block of a test: always the same, or from that up to `times` as much. */
static size_t size_of(int number, size_t bytes, int times)
{
    return bytes * (size_t)(times > 1 ? number * 7 % times + 1 : 1);
}

static void allocate_all(size_t bytes, int times, int count)
{
    void *blocks[BLOCKS];
    for (int i = 0; i < count; i++)
        blocks[i] = get(size_of(i, bytes, times));
    for (int i = 0; i < count; i++)
        free(blocks[i]);
}

static void allocate_between(size_t bytes, int times)
{
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = get(size_of(i, bytes, times));
    for (int i = 0; i < BLOCKS; i += 2)
        free(blocks[i]);
    for (int i = 0; i < BLOCKS; i++)
        free(get(size_of(i, bytes, times)));
    for (int i = 1; i < BLOCKS; i += 2)
        free(blocks[i]);
}

static void run_once(void)
{
    switch (test) {
    case 'A':
        allocate_all(1000, 1, BLOCKS);
        break;
    case 'B':
        allocate_all(1000, 50, BLOCKS);
        break;
    case 'C':
    case 'c':
        for (int loop = 0; loop < LOOPS; loop++)
            allocate_all(512, test == 'c' ? FEW : 1, FEW);
        break;
    default:
        allocate_between(1000, test == 'd' ? 50 : 1);
    }
}

static void *work(void *span)
{
    struct span own;
    run_once();
    pthread_barrier_wait(&begin);
    own.begun_s = now_s();
    for (int i = 0; i < runs; i++)
        run_once();
    own.ended_s = now_s();
    *(struct span *)span = own;
    return NULL;
}

int main(int argc, char **argv)
{
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    test = argc > 1 ? argv[1][0] : 'A';
    runs = argc > 3 ? atoi(argv[3]) : 100;
    if (threads < 1 || threads > THREADS_MAX)
        return 2;
    pthread_t started[THREADS_MAX];
    struct span spans[THREADS_MAX];
    pthread_barrier_init(&begin, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        pthread_create(&started[i], NULL, work, &spans[i]);
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    double begun_s = spans[0].begun_s, ended_s = 0;
    for (int i = 0; i < threads; i++) {
        begun_s = spans[i].begun_s < begun_s ? spans[i].begun_s : begun_s;
        ended_s = spans[i].ended_s > ended_s ? spans[i].ended_s : ended_s;
    }
    printf("run_us %.6f\n", (ended_s - begun_s) / runs * 1e6);
    report_memory();
    return has_failed;
}
