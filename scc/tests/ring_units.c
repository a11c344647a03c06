/* ring_units: single steps of a ring, and its reaction to memory that the peer has overwritten. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ring.h"

#define CAPACITY 4096
#define CHECK(what)                                                                               \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #what);                    \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

struct pair {
    struct ring *side[2];
    void *storage[2];
    int bells[2];
    int segment;
};

static void open_pair(struct pair *pair)
{
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair->bells) == 0);
    pair->segment = ring_make(CAPACITY);
    CHECK(pair->segment >= 0);
    for (int side = 0; side < 2; side++) {
        pair->storage[side] = aligned_alloc(64, (ring_size() + 63) / 64 * 64);
        CHECK(ring_open(&pair->side[side], pair->storage[side], ring_size(), pair->segment, side,
                        pair->bells[side], pair->bells[side]) == 0);
    }
}

static void close_pair(struct pair *pair)
{
    for (int side = 0; side < 2; side++) {
        ring_close(pair->side[side]);
        ring_close(pair->side[side]); /* closing twice is harmless */
        free(pair->storage[side]);
        if (pair->bells[side] >= 0)
            close(pair->bells[side]);
    }
    close(pair->segment);
}

static int bells_at(int fd)
{
    char bells[100];
    ssize_t came = recv(fd, bells, sizeof bells, MSG_DONTWAIT);
    return came < 0 ? 0 : (int)came;
}

static void check_bytes(void)
{
    struct pair pair;
    char sent[CAPACITY + 100], got[CAPACITY + 100];
    open_pair(&pair);
    struct ring *one = pair.side[0], *other = pair.side[1];
    CHECK(ring_capacity(one) == CAPACITY && ring_readable(one) == 0 && ring_room(one) == CAPACITY);
    CHECK(ring_read(one, got, sizeof got) == 0 && ring_write(one, sent, 0) == 0);
    uint32_t state = 1;
    for (int step = 0; step < 3000; step++) { /* every offset, with many wrap-arounds */
        size_t size = (size_t)(step % 97) + 1;
        for (size_t index = 0; index < size; index++)
            sent[index] = (char)((state = state * 1103515245 + 12345) >> 16);
        CHECK(ring_write(one, sent, size) == (int64_t)size);
        CHECK(ring_readable(other) == (int64_t)size && ring_readable(one) == 0);
        CHECK(ring_read(other, got, sizeof got) == (int64_t)size);
        CHECK(memcmp(sent, got, size) == 0);
    }
    CHECK(ring_write(one, sent, sizeof sent) == CAPACITY); /* exactly the capacity */
    CHECK(ring_write(one, sent, 1) == 0 && ring_room(one) == 0);
    CHECK(ring_write(other, sent, 10) == 10); /* an independent ring in this direction */
    CHECK(ring_read(other, got, 1) == 1 && ring_room(one) == 1);
    CHECK(ring_read(other, got, sizeof got) == CAPACITY - 1);
    CHECK(memcmp(sent + 1, got, CAPACITY - 1) == 0);
    close_pair(&pair);
}

static void check_bells(void)
{
    struct pair pair;
    char bytes[CAPACITY];
    memset(bytes, 'x', sizeof bytes);
    open_pair(&pair);
    struct ring *one = pair.side[0], *other = pair.side[1];
    CHECK(ring_write(one, bytes, 5) == 5 && bells_at(pair.bells[1]) == 0); /* no side sleeps */
    CHECK(ring_sleep(other, false) == 0);                                  /* nor needs to sleep */
    CHECK(ring_read(other, bytes, 5) == 5);
    CHECK(ring_sleep(other, false) == 1 && ring_sleep(other, false) == 1);
    CHECK(ring_write(one, bytes, 5) == 5 && ring_write(one, bytes, 5) == 5);
    CHECK(bells_at(pair.bells[1]) == 1); /* one bell for one sleep */
    ring_wake(other);
    ring_wake(other);
    CHECK(ring_write(one, bytes, 5) == 5 && bells_at(pair.bells[1]) == 0);
    CHECK(ring_wait(other, NULL, false) == 1 && ring_read(other, bytes, 100) == 15);
    CHECK(ring_sleep(other, false) == 1); /* a second sleep gets a second bell */
    CHECK(ring_write(one, bytes, 1) == 1 && bells_at(pair.bells[1]) == 1);
    ring_wake(other);
    CHECK(ring_write(one, bytes, CAPACITY) == CAPACITY - 1);
    CHECK(ring_sleep(one, false) == 1); /* no bell for room that no side waits for */
    CHECK(ring_read(other, bytes, 1) == 1 && bells_at(pair.bells[0]) == 0);
    CHECK(ring_write(one, bytes, 1) == 1 && ring_sleep(one, true) == 1);
    CHECK(ring_read(other, bytes, 1) == 1 && bells_at(pair.bells[0]) == 1);
    CHECK(ring_sleep(one, true) == 0 && ring_wait(one, NULL, true) == 1);
    close(pair.bells[1]);
    pair.bells[1] = -1;
    CHECK(ring_write(one, bytes, 1) == 1); /* the peer is gone; no signal, no error */
    CHECK(ring_wait(one, NULL, false) == 0);
    close_pair(&pair);
}

static void check_loop(void)
{
    struct pair pairs[3];
    struct ring_watch watches[3];
    struct ring_patience patience = {.looks_max = 1000, .looks = 1000};
    char bytes[10];
    for (int index = 0; index < 3; index++) {
        open_pair(&pairs[index]);
        watches[index] = (struct ring_watch){pairs[index].side[0], 1, 0};
    }
    CHECK(ring_before_wait(watches, 3, &patience) == 0); /* all asleep, after a long poll */
    CHECK(patience.lost == 1 && patience.looks == 1000);
    CHECK(ring_write(pairs[1].side[1], "x", 1) == 1 && bells_at(pairs[1].bells[0]) == 1);
    CHECK(ring_after_wait(watches, 3, &patience) == 1);
    CHECK(watches[0].found == 0 && watches[1].found == 1 && watches[2].found == 0);
    CHECK(ring_before_wait(watches, 3, &patience) == 1); /* no side sleeps while there is work */
    CHECK(ring_write(pairs[2].side[1], "x", 1) == 1 && bells_at(pairs[2].bells[0]) == 0);
    CHECK(ring_before_wait(watches, 3, NULL) == 2);
    CHECK(ring_read(pairs[1].side[0], bytes, 10) == 1 && ring_read(pairs[2].side[0], bytes, 10) == 1);
    watches[0].wants = 2;
    watches[1].wants = 0;
    CHECK(ring_before_wait(watches, 3, NULL) == 1 && watches[0].found == 2);
    for (int times = 0; times < 20; times++) { /* polling in vain: less and less */
        CHECK(ring_before_wait(watches + 1, 2, &patience) == 0);
        CHECK(usleep(100) == 0);
        CHECK(ring_after_wait(watches + 1, 2, &patience) == 0);
    }
    CHECK(patience.looks == 0 && patience.won == 0);
    patience.soon_us = 1000000;
    for (int times = 0; times < 20; times++) { /* data comes soon: more and more polling */
        CHECK(ring_before_wait(watches + 2, 1, &patience) == 0);
        CHECK(ring_write(pairs[2].side[1], "x", 1) == 1 && bells_at(pairs[2].bells[0]) == 1);
        CHECK(ring_after_wait(watches + 2, 1, &patience) == 1);
        CHECK(ring_read(pairs[2].side[0], bytes, 10) == 1);
    }
    CHECK(patience.looks == patience.looks_max);
    CHECK(write(pairs[0].bells[1], "x", 1) == 1);
    struct ring_patience endless = {
        .looks_max = UINT32_MAX, .looks = UINT32_MAX, .also_fd = pairs[0].bells[0]};
    CHECK(ring_before_wait(watches + 1, 2, &endless) == 0); /* an event at also_fd ended it */
    for (int index = 0; index < 3; index++)
        close_pair(&pairs[index]);
}

static int open_error(int segment, int side, size_t bytes)
{
    struct ring *ring = NULL;
    void *storage = aligned_alloc(64, (ring_size() + 63) / 64 * 64);
    int error = ring_open(&ring, storage, bytes, segment, side, -1, -1);
    CHECK(error < 0 && ring == NULL && strlen(ring_error_text(error)) > 10);
    free(storage);
    return error;
}

static void check_formats(void)
{
    static const uint64_t wrong[] = {0, 1, 4095, 4097, 5000, 1ull << 27, ~0ull};
    for (size_t index = 0; index < sizeof wrong / sizeof *wrong; index++)
        CHECK(ring_make(wrong[index]) == RING_ERROR_ARGUMENT);
    int segment = ring_make(CAPACITY);
    CHECK(open_error(segment, 2, ring_size()) == RING_ERROR_ARGUMENT);
    CHECK(open_error(segment, 0, ring_size() - 1) == RING_ERROR_ARGUMENT);
    CHECK(ftruncate(segment, 100) != 0); /* sealed */
    for (size_t word = 0; word < 3; word++) {
        uint64_t was, is = 12345;
        CHECK(pread(segment, &was, 8, (off_t)word * 8) == 8);
        CHECK(pwrite(segment, &is, 8, (off_t)word * 8) == 8);
        CHECK(open_error(segment, 0, ring_size()) == RING_ERROR_FORMAT);
        is = 8192; /* a valid capacity, but not the file's */
        CHECK(pwrite(segment, &is, 8, (off_t)word * 8) == 8);
        CHECK(open_error(segment, 0, ring_size()) == RING_ERROR_FORMAT);
        CHECK(pwrite(segment, &was, 8, (off_t)word * 8) == 8);
    }
    char bytes[1 << 14] = {0};
    CHECK(pread(segment, bytes, 100, 0) == 100);
    int open_one = memfd_create("ring", MFD_ALLOW_SEALING); /* valid, but not sealed */
    CHECK(write(open_one, bytes, 4096 + 2 * CAPACITY) == 4096 + 2 * CAPACITY);
    CHECK(open_error(open_one, 0, ring_size()) == RING_ERROR_FORMAT);
    int nothing = open("/dev/null", O_RDWR);
    CHECK(open_error(nothing, 0, ring_size()) == RING_ERROR_FORMAT);
    close(nothing);
    CHECK(open_error(nothing, 0, ring_size()) == RING_ERROR_SYSTEM && errno == EBADF);
    for (int error = 1; error > -10; error--)
        CHECK(strlen(ring_error_text(error)) > 3);
    close(open_one);
    close(segment);
}

/* The peer writes arbitrary values anywhere. */
static void check_hostile(uint32_t seed)
{
    for (int round = 0; round < 200; round++) {
        struct pair pair;
        char bytes[CAPACITY * 2];
        memset(bytes, 'x', sizeof bytes);
        open_pair(&pair);
        size_t all = 4096 + 2 * CAPACITY;
        char *memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, pair.segment, 0);
        CHECK(memory != MAP_FAILED);
        for (int step = 0; step < 200; step++) {
            uint32_t random = seed = seed * 1664525 + 1013904223;
            uint64_t value = (uint64_t)(random >> 8) * ((random & 4) ? 1 : 0x123456789abcull);
            memcpy(memory + (random >> 3) % (640 / 4) * 4, &value, 4 + (random & 1) * 4);
            int64_t done[] = {ring_write(pair.side[0], bytes, random % sizeof bytes),
                              ring_read(pair.side[0], bytes, random % sizeof bytes),
                              ring_readable(pair.side[0]), ring_room(pair.side[0]),
                              ring_sleep(pair.side[0], random & 8)};
            for (size_t index = 0; index < sizeof done / sizeof *done; index++)
                CHECK(done[index] == RING_ERROR_CORRUPT ||
                      (done[index] >= 0 && done[index] <= CAPACITY));
            bells_at(pair.bells[0]), bells_at(pair.bells[1]);
        }
        CHECK(munmap(memory, all) == 0);
        close_pair(&pair);
    }
}

static void check_counters(void)
{
    /* The words at 128 and 384: the state that side 0 computes after side 1 has written the
     * value. */
    struct { size_t offset; uint64_t value; int64_t readable, room; } cases[] = {
        {384, 1, 1, CAPACITY}, {384, CAPACITY, CAPACITY, CAPACITY},
        {384, CAPACITY + 1, RING_ERROR_CORRUPT, CAPACITY}, {384, ~0ull, RING_ERROR_CORRUPT, CAPACITY},
        {256, 0, 0, CAPACITY}, {256, 1, 0, RING_ERROR_CORRUPT}, {256, ~0ull, 0, RING_ERROR_CORRUPT},
    };
    for (size_t index = 0; index < sizeof cases / sizeof *cases; index++) {
        struct pair pair;
        open_pair(&pair);
        CHECK(pwrite(pair.segment, &cases[index].value, 8, (off_t)cases[index].offset) == 8);
        CHECK(ring_readable(pair.side[0]) == cases[index].readable);
        CHECK(ring_room(pair.side[0]) == cases[index].room);
        struct ring_watch watch = {pair.side[0], cases[index].room < 0 ? 2 : 1, 0};
        bool is_bad = cases[index].readable < 0 || cases[index].room < 0;
        if (is_bad) {
            CHECK(ring_before_wait(&watch, 1, NULL) == 1 && watch.found == RING_ERROR_CORRUPT);
            CHECK(ring_wait(pair.side[0], NULL, true) == RING_ERROR_CORRUPT);
            CHECK(ring_sleep(pair.side[0], true) == RING_ERROR_CORRUPT);
        }
        close_pair(&pair);
    }
    /* A counter must not decrease. */
    struct pair pair;
    char byte;
    open_pair(&pair);
    CHECK(ring_write(pair.side[1], "abc", 3) == 3 && ring_readable(pair.side[0]) == 3);
    CHECK(ring_read(pair.side[0], &byte, 1) == 1 && byte == 'a');
    for (uint64_t tail = 0; tail < 3; tail++) {
        CHECK(pwrite(pair.segment, &tail, 8, 384) == 8);
        CHECK(ring_read(pair.side[0], &byte, 1) == RING_ERROR_CORRUPT);
    }
    close_pair(&pair);
}

int main(int argc, char **argv)
{
    check_bytes();
    check_bells();
    check_loop();
    check_formats();
    check_counters();
    check_hostile(argc > 1 ? (uint32_t)atoi(argv[1]) : 1);
    puts("all well");
    return 0;
}
