/* ring_two: two threads that send to each other at once, or a process that is killed meanwhile.
 *
 *     ring_two threads SEED BYTES     both directions at once, in pieces of any size
 *     ring_two kill SEED ROUNDS       a peer killed at any moment: no byte is lost, no side hangs
 *     ring_two trip ROUNDS LOOKS      round trips between two processes; prints microseconds
 *
 * With -DONE_MAPPING the threads see the segment at the same addresses: a thread sanitizer does not
 * recognize two mappings of the same memory.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef ONE_MAPPING
#include "../src/ring.c"
#else
#include "ring.h"
#endif

#define CAPACITY 4096
#define CHECK(what)                                                                               \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #what);                    \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

struct end {
    struct ring *ring;
    struct ring_patience patience;
    uint64_t seed;
    uint64_t size_bytes;
    int bell;
};

static uint32_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

static char byte_at(uint64_t place, int side)
{
    return (char)((place * 2654435761u >> 7) + (uint64_t)side);
}

static void open_end(struct end *end, int segment, int side, int bell)
{
    void *storage = aligned_alloc(64, (ring_size() + 63) / 64 * 64);
    CHECK(ring_open(&end->ring, storage, ring_size(), segment, side, bell, bell) == 0);
    end->bell = bell;
}

static void close_end(struct end *end)
{
    void *storage = end->ring;
    ring_close(end->ring);
    free(storage);
}

/* Send and receive `size_bytes`, in any order. */
static void *exchange(void *argument)
{
    struct end *end = argument;
    int side = (int)(end->seed & 1);
    uint64_t sent = 0, received = 0;
    char piece[CAPACITY + 500];
    while (sent < end->size_bytes || received < end->size_bytes) {
        bool moved = false;
        uint64_t size = next(&end->seed) % sizeof piece;
        if (size > end->size_bytes - sent)
            size = end->size_bytes - sent;
        for (uint64_t index = 0; index < size; index++)
            piece[index] = byte_at(sent + index, side);
        int64_t done = ring_write(end->ring, piece, size);
        CHECK(done >= 0);
        sent += (uint64_t)done;
        moved |= done > 0;
        done = ring_read(end->ring, piece, next(&end->seed) % sizeof piece);
        CHECK(done >= 0);
        for (int64_t index = 0; index < done; index++)
            CHECK(piece[index] == byte_at(received + (uint64_t)index, 1 - side));
        received += (uint64_t)done;
        moved |= done > 0;
        if (!moved)
            CHECK(received == end->size_bytes && sent == end->size_bytes
                      ? true
                      : ring_wait(end->ring, &end->patience, sent < end->size_bytes) == 1);
    }
    return NULL;
}

static void threads(uint64_t seed, uint64_t size_bytes)
{
    int bells[2], segment = ring_make(CAPACITY);
    struct end ends[2];
    pthread_t other;
    CHECK(segment >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, bells) == 0);
    for (int side = 0; side < 2; side++) {
        open_end(&ends[side], segment, side, bells[side]);
        ends[side].seed = seed * 2 + (uint64_t)side;
        ends[side].size_bytes = size_bytes;
        uint32_t looks = seed % 2 ? 100 : 0;
        ends[side].patience = (struct ring_patience){.looks_max = looks, .looks = looks};
    }
#ifdef ONE_MAPPING
    CHECK(munmap(ends[1].ring->segment, ends[1].ring->segment_bytes) == 0);
    ends[1].ring->segment = ends[0].ring->segment;
    place_end(&ends[1].ring->out, ends[1].ring, 1);
    place_end(&ends[1].ring->in, ends[1].ring, 0);
#endif
    CHECK(pthread_create(&other, NULL, exchange, &ends[1]) == 0);
    exchange(&ends[0]);
    CHECK(pthread_join(other, NULL) == 0);
#ifdef ONE_MAPPING
    ends[1].ring->segment = NULL;
#endif
    for (int side = 0; side < 2; side++) {
        close_end(&ends[side]);
        close(bells[side]);
    }
    close(segment);
}

/* The child sends numbers, and reports outside the ring how many it has sent; it also receives
 * numbers, and answers each. Whenever it is killed, all reported numbers are there, and no side
 * hangs. */
static void child_of_kill(struct end *end, _Atomic uint64_t *acknowledged)
{
    uint64_t sent = 0, number;
    for (;;) {
        if (ring_room(end->ring) >= 8) {
            CHECK(ring_write(end->ring, (char *)&sent, 8) == 8);
            atomic_store(acknowledged, ++sent);
        } else if (ring_wait(end->ring, NULL, true) == 0)
            _exit(0);
        while (ring_readable(end->ring) >= 8)
            CHECK(ring_read(end->ring, (char *)&number, 8) == 8);
    }
}

static void kill_once(uint64_t *seed, _Atomic uint64_t *acknowledged)
{
    int bells[2], segment = ring_make(CAPACITY);
    struct end end = {0};
    CHECK(segment >= 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bells) == 0);
    atomic_store(acknowledged, 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(bells[0]);
        open_end(&end, segment, 1, bells[1]);
        child_of_kill(&end, acknowledged);
    }
    close(bells[1]);
    open_end(&end, segment, 0, bells[0]);
    uint64_t received = 0, sent = 0, number;
    uint64_t until = next(seed) % 3000; /* this many numbers, then the kill */
    for (int way = 1; way > 0;) {
        way = ring_wait(end.ring, NULL, next(seed) % 2);
        CHECK(way >= 0);
        while (ring_readable(end.ring) >= 8) {
            CHECK(ring_read(end.ring, (char *)&number, 8) == 8 && number == received);
            received++;
            if (received == until) {
                for (uint32_t pause = next(seed) % 2000; pause > 0; pause--)
                    atomic_signal_fence(memory_order_seq_cst);
                CHECK(kill(child, SIGKILL) == 0);
            }
        }
        if (until == 0)
            kill(child, SIGKILL);
        if (ring_room(end.ring) >= 8 && ring_write(end.ring, (char *)&sent, 8) == 8)
            sent++;
    }
    int64_t rest = ring_readable(end.ring);
    CHECK(rest >= 0 && rest % 8 == 0);
    received += (uint64_t)rest / 8;
    CHECK(received >= atomic_load(acknowledged)); /* no acknowledged number is lost */
    CHECK(waitpid(child, NULL, 0) == child);
    close_end(&end);
    close(bells[0]);
    close(segment);
}

static void kills(uint64_t seed, uint64_t rounds)
{
    _Atomic uint64_t *acknowledged =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(acknowledged != MAP_FAILED);
    for (; rounds > 0; rounds--)
        kill_once(&seed, acknowledged);
    CHECK(munmap((void *)acknowledged, 4096) == 0);
}

static void trips(uint64_t rounds, uint32_t looks)
{
    int bells[2], segment = ring_make(CAPACITY);
    struct end end = {.patience = {.looks_max = looks, .looks = looks}};
    struct timespec begun, ended;
    char byte;
    CHECK(segment >= 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bells) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    int side = child == 0;
    close(bells[1 - side]);
    open_end(&end, segment, side, bells[side]);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (uint64_t round = 0; round < rounds; round++) {
        if (side == 0)
            CHECK(ring_write(end.ring, "x", 1) == 1);
        CHECK(ring_wait(end.ring, &end.patience, false) == 1);
        CHECK(ring_read(end.ring, &byte, 1) == 1);
        if (side == 1)
            CHECK(ring_write(end.ring, "x", 1) == 1);
    }
    if (side == 1)
        _exit(0);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double us = (double)(ended.tv_sec - begun.tv_sec) * 1e6 +
                (double)(ended.tv_nsec - begun.tv_nsec) / 1e3;
    printf("%.3f\n", us / (double)rounds);
    CHECK(waitpid(child, NULL, 0) == child);
    close_end(&end);
    close(bells[0]);
    close(segment);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    uint64_t first = strtoull(argv[2], NULL, 10), second = strtoull(argv[3], NULL, 10);
    if (strcmp(argv[1], "threads") == 0)
        threads(first, second);
    else if (strcmp(argv[1], "kill") == 0)
        kills(first, second);
    else
        trips(first, (uint32_t)second);
    return 0;
}
