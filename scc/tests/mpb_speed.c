/* mpb_speed.c CORES ROUNDS MESSAGE_BYTES: measures messages against plain memory.
 *
 * Prints a line of five numbers for each round, measured in sequence: the round trip of 8
 * bytes in us; the same with two words that both cores poll; bandwidth in one direction in GB/s;
 * bandwidth when both send at once; and the bandwidth of memcpy.
 */
#include "mpb_core.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRIPS 20000
#define BURST_BYTES (256u << 20)

static void must(int64_t result)
{
    if (result < 0) {
        fprintf(stderr, "%s\n", mpb_error_text((int)result));
        exit(1);
    }
}

static double since_s(uint64_t begun_us)
{
    return (double)(port_now_us() - begun_us) / 1e6;
}

static double trip_us(struct mpb *mpb, uint32_t me)
{
    uint64_t word = 0, begun_us = port_now_us();
    for (int i = 0; i < TRIPS; i++) {
        if (me == 0)
            must(mpb_send(mpb, 1, &word, sizeof word, -1));
        must(mpb_recv(mpb, me ^ 1, &word, sizeof word, NULL, -1));
        if (me == 1)
            must(mpb_send(mpb, 0, &word, sizeof word, -1));
    }
    return since_s(begun_us) * 1e6 / TRIPS;
}

static double bare_trip_us(struct mpb_flag *words, uint32_t me)
{
    /* The words keep counting from round to round: a core that reset its word could do so before
     * the peer has seen the last value. */
    const uint64_t before = words[me].word;
    uint64_t begun_us = port_now_us();
    for (uint64_t i = before + 1; i <= before + TRIPS; i++) {
        if (me == 0)
            __atomic_store_n(&words[0].word, i, __ATOMIC_RELEASE);
        while (__atomic_load_n(&words[me ^ 1].word, __ATOMIC_ACQUIRE) != i)
            port_pause();
        if (me == 1)
            __atomic_store_n(&words[1].word, i, __ATOMIC_RELEASE);
    }
    return since_s(begun_us) * 1e6 / TRIPS;
}

static double one_way_gb_per_s(struct mpb *mpb, uint32_t me, uint8_t *bytes, uint64_t size)
{
    uint64_t begun_us = port_now_us(), done;
    for (done = 0; done < BURST_BYTES; done += size)
        must(me == 0 ? mpb_send(mpb, 1, bytes, size, -1)
                     : mpb_recv(mpb, 0, bytes, size, NULL, -1));
    return (double)done / since_s(begun_us) / 1e9;
}

static double both_ways_gb_per_s(struct mpb *mpb, uint32_t me, uint8_t *bytes, uint64_t size)
{
    uint64_t begun_us = port_now_us(), done;
    for (done = 0; done < BURST_BYTES / 2; done += size)
        must(mpb_exchange(mpb, me ^ 1, bytes, size, bytes + size, size, -1));
    return 2 * (double)done / since_s(begun_us) / 1e9;
}

static double memcpy_gb_per_s(uint8_t *bytes, uint64_t size)
{
    uint64_t begun_us = port_now_us(), done;
    for (done = 0; done < BURST_BYTES; done += size) {
        memcpy(bytes + size, bytes, size);
        __asm__ volatile("" ::"r"(bytes) : "memory");
    }
    return (double)done / since_s(begun_us) / 1e9;
}

static void be_core(int file, uint32_t me, uint32_t count, int rounds, uint64_t size,
                    struct mpb_flag *words)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    int64_t bytes_in_all = mpb_segment_bytes(count);
    struct mpb_memory memory = {
        mmap(NULL, (size_t)bytes_in_all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
        (uint64_t)bytes_in_all, fd};
    struct mpb *mpb;
    must(mpb_attach(&mpb, aligned_alloc(64, (mpb_size() + 63) / 64 * 64), mpb_size(), &memory, me,
                    NULL));
    uint8_t *bytes = malloc(2 * size);
    if (!bytes)
        abort();
    memset(bytes, 1, 2 * size);
    cpu_set_t set; /* pin each core to its own processor, if there are enough */
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 1) {
        uint32_t skip = me;
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &set) && skip-- == 0) {
                CPU_ZERO(&set);
                CPU_SET(cpu, &set);
                sched_setaffinity(0, sizeof set, &set);
                break;
            }
    }
    for (int round = 0; round < rounds; round++) {
        double figures[5];
        must(mpb_barrier(mpb, 3, -1));
        figures[0] = trip_us(mpb, me);
        must(mpb_barrier(mpb, 3, -1));
        figures[1] = bare_trip_us(words, me);
        must(mpb_barrier(mpb, 3, -1));
        figures[2] = one_way_gb_per_s(mpb, me, bytes, size);
        must(mpb_barrier(mpb, 3, -1));
        figures[3] = both_ways_gb_per_s(mpb, me, bytes, size);
        must(mpb_barrier(mpb, 3, -1));
        figures[4] = me == 0 ? memcpy_gb_per_s(bytes, size) : 0;
        must(mpb_barrier(mpb, 3, -1));
        if (me == 0)
            printf("%.4f %.4f %.4f %.4f %.4f\n", figures[0], figures[1], figures[2], figures[3],
                   figures[4]);
    }
    mpb_detach(mpb);
    exit(0);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    uint32_t count = (uint32_t)atoi(argv[1]);
    int64_t size = mpb_segment_bytes(count);
    must(size);
    int file = memfd_create("mpb", 0);
    if (ftruncate(file, size) < 0)
        return 1;
    struct mpb_memory memory = {
        mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), (uint64_t)size, -1};
    must(mpb_format(&memory, count));
    struct mpb_flag *words =
        mmap(NULL, sizeof *words * 2, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (uint32_t me = 0; me < 2; me++)
        if (fork() == 0)
            be_core(file, me, count, atoi(argv[2]), strtoull(argv[3], NULL, 10), words);
    int status, worst = 0;
    while (wait(&status) > 0)
        worst |= status;
    return worst != 0;
}
