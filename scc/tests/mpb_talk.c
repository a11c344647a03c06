/* mpb_talk.c: cores communicate while all of them live. */
#include "mpb_cores.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

static uint8_t *space(uint64_t size_bytes)
{
    uint8_t *bytes = calloc(1, size_bytes + 1);
    if (!bytes)
        abort();
    return bytes;
}

/* With many cores there are fewer rounds: the number of messages grows with the square of theirs. */
static bool are_many(const struct core *core)
{
    return core->count > 16;
}

/* --- two cores, back and forth, with all lengths that could cause off-by-one errors ---------- */

static void ping(struct core *core)
{
    static const uint64_t sizes[] = {0,    1,    15,   16,   17,   111,  112,   113,    127,  128,
                                     129,  239,  240,  241,  2000, 4079, 4080,  4081,   8159, 8160,
                                     8161, 8176, 8191, 8192, 8193, 9999, 65536, 100000, 5,    0};
    uint8_t *bytes = space(100000);
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const uint64_t size = sizes[i];
        if (core->number == 0) {
            fill(bytes, size, 0, i);
            EXPECT(mpb_send(core->mpb, 1, bytes, size, WAIT_US), 0);
            EXPECT(mpb_recv(core->mpb, 1, bytes, 100000, NULL, WAIT_US), size);
            expect_filled(bytes, size, 1, i);
        } else if (core->number == 1) {
            uint32_t from = 99;
            memset(bytes, 0, size);
            EXPECT(mpb_recv(core->mpb, MPB_ANY, bytes, size, &from, WAIT_US), size);
            EXPECT(from, 0);
            expect_filled(bytes, size, 0, i);
            fill(bytes, size, 1, i);
            EXPECT(mpb_send(core->mpb, 0, bytes, size, WAIT_US), 0);
        }
    }
    struct mpb_counters counters = mpb_counters_of(core->mpb);
    EXPECT(counters.messages_sent, core->number < 2 ? 30 : 0);
    EXPECT(counters.messages_received, core->number < 2 ? 30 : 0);
    free(bytes);
}

/* --- all cores send to all cores at once ----------------------------------------------------- */

#define CROSSING_BYTES 300001

/* Blocking sends that exceed the buffer, with receives posted; then exchanges in pairs. */
static void cross(struct core *core)
{
    uint8_t *out = space(CROSSING_BYTES), *in = space((uint64_t)CROSSING_BYTES * core->count);
    struct mpb_request requests[MPB_CORE_MAX_COUNT];
    for (uint32_t other = 0; other < core->count; other++)
        if (other != core->number)
            EXPECT(mpb_irecv(core->mpb, &requests[other], other,
                             in + (uint64_t)CROSSING_BYTES * other, CROSSING_BYTES), 0);
    for (uint32_t i = 1; i < core->count; i++) {
        uint32_t other = (core->number + i) % core->count;
        fill(out, CROSSING_BYTES, core->number, other);
        EXPECT(mpb_send(core->mpb, other, out, CROSSING_BYTES, WAIT_US), 0);
    }
    for (uint32_t other = 0; other < core->count; other++) {
        if (other == core->number)
            continue;
        EXPECT(mpb_wait(core->mpb, &requests[other], WAIT_US), 0);
        EXPECT(requests[other].size_bytes, CROSSING_BYTES);
        expect_filled(in + (uint64_t)CROSSING_BYTES * other, CROSSING_BYTES, other, core->number);
    }
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t other = core->number ^ 1;
        if (other >= core->count)
            continue;
        fill(out, CROSSING_BYTES, core->number, i);
        EXPECT(mpb_exchange(core->mpb, other, out, CROSSING_BYTES, in, CROSSING_BYTES, WAIT_US),
               CROSSING_BYTES);
        expect_filled(in, CROSSING_BYTES, other, i);
    }
    free(out);
    free(in);
}

/* Many concurrent requests of random lengths, posted in random order. */
static void mix(struct core *core)
{
    enum { DEPTH = 3, ROOM = 20000 };
    const uint32_t rounds = are_many(core) ? 1 : 12, most_bytes = are_many(core) ? 1000 : ROOM;
    struct mpb_request sends[MPB_CORE_MAX_COUNT][DEPTH], receives[MPB_CORE_MAX_COUNT][DEPTH];
    uint8_t *out = space((uint64_t)ROOM * DEPTH * core->count);
    uint8_t *in = space((uint64_t)ROOM * DEPTH * core->count);
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t i = 0; i < DEPTH; i++) {
            for (uint32_t other = 0; other < core->count; other++) {
                if (other == core->number)
                    continue;
                uint64_t place = ((uint64_t)other * DEPTH + i) * ROOM;
                uint64_t size = draw(core, 4) ? draw(core, 300) : draw(core, most_bytes);
                fill(out + place, size, core->number, round * DEPTH + i);
                EXPECT(mpb_isend(core->mpb, &sends[other][i], other, out + place, size), 0);
                EXPECT(mpb_irecv(core->mpb, &receives[other][i], other, in + place, ROOM), 0);
            }
        }
        for (uint32_t i = 0; i < DEPTH; i++) {
            for (uint32_t other = 0; other < core->count; other++) {
                if (other == core->number)
                    continue;
                uint64_t place = ((uint64_t)other * DEPTH + i) * ROOM;
                EXPECT(mpb_wait(core->mpb, &receives[other][i], WAIT_US), 0);
                expect_filled(in + place, receives[other][i].size_bytes, other, round * DEPTH + i);
            }
        }
        for (uint32_t i = 0; i < DEPTH; i++)
            for (uint32_t other = 0; other < core->count; other++)
                if (other != core->number)
                    EXPECT(mpb_wait(core->mpb, &sends[other][i], WAIT_US), 0);
        EXPECT(mpb_push(core->mpb), 0);
    }
    free(out);
    free(in);
}

/* --- receiving from any core ----------------------------------------------------------------- */

/* Receive the messages that did not fit into the buffers, in the order of each sender. */
static void receive_rest(struct core *core, uint32_t first, uint32_t end)
{
    uint32_t next[MPB_CORE_MAX_COUNT], number, from;
    for (uint32_t other = 0; other < core->count; other++)
        next[other] = other * 100 + first;
    for (uint32_t i = 0; i < (end - first) * (core->count - 1); i++) {
        EXPECT(mpb_recv(core->mpb, MPB_ANY, &number, sizeof number, &from, WAIT_US),
               sizeof number);
        EXPECT(number, next[from]++);
    }
}

/* When all cores have sent something, each is served once before any is served twice. */
static void any(struct core *core)
{
    enum { EACH = 4 };
    const uint32_t lines = MPB_BUFFER_BYTES / PORT_LINE_BYTES / (core->count - 1);
    const uint32_t fit = lines < EACH ? lines : EACH; /* a message takes a line of the buffer */
    uint32_t numbers[EACH];
    struct mpb_request requests[EACH];
    for (uint32_t i = 0; i < EACH; i++)
        numbers[i] = core->number * 100 + i;
    if (core->number != 0) {
        for (uint32_t i = 0; i < EACH; i++)
            EXPECT(mpb_isend(core->mpb, &requests[i], 0, &numbers[i], sizeof numbers[i]), 0);
        while (!requests[fit - 1].moved_bytes)
            mpb_push(core->mpb);
    }
    EXPECT(mpb_barrier(core->mpb, 0, WAIT_US), 0); /* the buffers hold what fits */
    if (core->number != 0) {
        for (uint32_t i = 0; i < EACH; i++)
            EXPECT(mpb_wait(core->mpb, &requests[i], WAIT_US), 0);
        return;
    }
    uint32_t from;
    uint64_t size;
    EXPECT(mpb_probe(core->mpb, MPB_ANY, &from, &size), 1);
    EXPECT(size, sizeof numbers[0]);
    for (uint32_t i = 0; i < fit; i++) {
        uint64_t served = 0;
        for (uint32_t other = 1; other < core->count; other++) {
            uint32_t number;
            EXPECT(mpb_recv(core->mpb, MPB_ANY, &number, sizeof number, &from, WAIT_US),
                   sizeof number);
            EXPECT(number, from * 100 + i);
            served |= (uint64_t)1 << from;
        }
        EXPECT(served, (UINT64_MAX >> (64 - core->count)) & ~(uint64_t)1);
    }
    receive_rest(core, fit, EACH);
    EXPECT(mpb_probe(core->mpb, MPB_ANY, &from, &size), 0);
}

/* --- barriers and locks ---------------------------------------------------------------------- */

static void dawdle(struct core *core)
{
    uint32_t dice = draw(core, 16);
    if (dice == 0)
        usleep(300);
    else if (dice < 8)
        sched_yield();
}

static void barrier(struct core *core)
{
    enum { ROUNDS = 60 };
    _Atomic uint32_t *come = core->oracle;
    const uint64_t pair = (uint64_t)3 << (core->number & ~1u);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        dawdle(core);
        come[core->number] = round;
        EXPECT(mpb_barrier(core->mpb, 0, WAIT_US), 0);
        for (uint32_t other = 0; other < core->count; other++)
            if (come[other] < round || come[other] > round + 1)
                fail(__FILE__, __LINE__, "the round of another core", come[other], round);
        if (round % 3 == 0 && (core->number | 1) < core->count) /* some pairs on their own */
            EXPECT(mpb_barrier(core->mpb, pair, WAIT_US), 0);
    }
}

static void lock(struct core *core)
{
    const uint32_t rounds = are_many(core) ? 20 : 300;
    _Atomic uint32_t *counts = core->oracle;
    const uint32_t number = core->count - 1;
    for (uint32_t round = 0; round < rounds; round++) {
        EXPECT(mpb_lock(core->mpb, number, WAIT_US), 0);
        uint32_t before = atomic_load_explicit(&counts[0], memory_order_relaxed);
        dawdle(core);
        atomic_store_explicit(&counts[0], before + 1, memory_order_relaxed);
        EXPECT(mpb_lock(core->mpb, number, 0), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_unlock(core->mpb, number), 0);
    }
    EXPECT(mpb_unlock(core->mpb, number), MPB_ERROR_ARGUMENT);
    EXPECT(mpb_barrier(core->mpb, 0, WAIT_US), 0);
    EXPECT(counts[0], rounds * core->count);
    EXPECT(mpb_counters_of(core->mpb).stolen, 0);
}

/* --- timeouts, cancelled and refused messages ------------------------------------------------ */

#define LARGE 50000
#define MOMENT_US 2000
#define SMALL 40

static void meet_other(struct core *core)
{
    EXPECT(mpb_barrier(core->mpb, 3, WAIT_US), 0);
}

/* Synchronize with the peer without pushing. */
static void say(struct core *core)
{
    atomic_fetch_add((_Atomic uint32_t *)core->oracle + core->number, 1);
}

static void await(struct core *core, uint32_t count)
{
    while (atomic_load((_Atomic uint32_t *)core->oracle + (core->number ^ 1)) < count)
        sched_yield();
}

static void cancel_sends(struct core *core, uint8_t *bytes)
{
    struct mpb_request first, second;
    if (core->number == 0) {
        fill(bytes, LARGE, 0, 1);
        EXPECT(mpb_isend(core->mpb, &first, 1, bytes, LARGE), 0);
        meet_other(core); /* part of the message is in the buffer */
        EXPECT(first.moved_bytes > 0 && first.moved_bytes < LARGE, 1);
        EXPECT(mpb_cancel(core->mpb, &first), 0);
        EXPECT(first.status, MPB_ERROR_CANCELLED);
        EXPECT(mpb_cancel(core->mpb, &first), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_send(core->mpb, 1, bytes, LARGE, MOMENT_US), MPB_ERROR_TIMEOUT);
        fill(bytes, SMALL, 0, 2);
        EXPECT(mpb_isend(core->mpb, &second, 1, bytes, SMALL), 0);
        meet_other(core);
        EXPECT(mpb_wait(core->mpb, &second, WAIT_US), 0);
        EXPECT(mpb_isend(core->mpb, &first, 1, bytes, SMALL), 0); /* the whole message fits */
        EXPECT(mpb_cancel(core->mpb, &first), MPB_ERROR_TOO_LATE);
        EXPECT(first.status, MPB_PENDING);
        EXPECT(mpb_send(core->mpb, 1, bytes, SMALL, MOMENT_US), MPB_ERROR_UNSURE);
        meet_other(core);
        EXPECT(mpb_wait(core->mpb, &first, WAIT_US), 0);
    } else {
        meet_other(core);
        meet_other(core);
        EXPECT(mpb_recv(core->mpb, MPB_ANY, bytes, LARGE, NULL, WAIT_US), SMALL);
        expect_filled(bytes, SMALL, 0, 2);
        meet_other(core);
        EXPECT(mpb_recv(core->mpb, 0, bytes, LARGE, NULL, WAIT_US), SMALL);
        EXPECT(mpb_recv(core->mpb, 0, bytes, LARGE, NULL, WAIT_US), SMALL); /* the unsure one */
    }
    meet_other(core);
}

static void cancel_receives(struct core *core, uint8_t *bytes)
{
    struct mpb_request first, second;
    if (core->number == 0) {
        EXPECT(mpb_recv(core->mpb, 1, bytes, LARGE, NULL, 0), MPB_ERROR_TIMEOUT);
        EXPECT(mpb_recv(core->mpb, MPB_ANY, bytes, LARGE, NULL, MOMENT_US), MPB_ERROR_TIMEOUT);
        EXPECT(mpb_irecv(core->mpb, &first, MPB_ANY, bytes, LARGE), 0);
        EXPECT(mpb_irecv(core->mpb, &second, 1, bytes, LARGE), 0);
        EXPECT(mpb_cancel(core->mpb, &first), 0);
        say(core);
        while (!second.moved_bytes)
            EXPECT(mpb_test(core->mpb, &second), MPB_PENDING);
        EXPECT(mpb_cancel(core->mpb, &second), 0); /* after it has started */
        EXPECT(second.status, MPB_ERROR_CANCELLED);
        say(core);
        EXPECT(mpb_recv(core->mpb, 1, bytes, LARGE, NULL, WAIT_US), SMALL);
        expect_filled(bytes, SMALL, 1, 4);
    } else {
        fill(bytes, LARGE, 1, 3);
        uint8_t other[SMALL];
        fill(other, SMALL, 1, 4);
        await(core, 2);
        EXPECT(mpb_isend(core->mpb, &first, 0, bytes, LARGE), 0);
        EXPECT(mpb_isend(core->mpb, &second, 0, other, SMALL), 0);
        await(core, 3);
        EXPECT(mpb_wait(core->mpb, &first, WAIT_US), MPB_ERROR_REFUSED);
        EXPECT(mpb_wait(core->mpb, &second, WAIT_US), 0);
    }
    meet_other(core);
}

static void refusals(struct core *core, uint8_t *bytes)
{
    struct mpb_request request, exact;
    uint32_t from;
    uint64_t size;
    if (core->number == 0) {
        EXPECT(mpb_send(core->mpb, 0, bytes, 1, 0), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_send(core->mpb, core->count, bytes, 1, 0), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_send(core->mpb, MPB_ANY, bytes, 1, 0), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_send(core->mpb, 1, NULL, 1, 0), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_send(core->mpb, 1, bytes, UINT64_MAX, 0), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_recv(core->mpb, 0, bytes, 1, NULL, 0), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_recv(core->mpb, 1, bytes, UINT64_MAX, NULL, 0), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_exchange(core->mpb, 0, bytes, 1, bytes, 1, 0), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_barrier(core->mpb, 2, 0), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_barrier(core->mpb, (uint64_t)1 << core->count | 1, 0), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_lock(core->mpb, core->count, 0), MPB_ERROR_ARGUMENT);
        EXPECT(mpb_barrier(core->mpb, 3, MOMENT_US), MPB_ERROR_TIMEOUT);
        EXPECT(mpb_barrier(core->mpb, 3, 0), MPB_ERROR_TIMEOUT);
        say(core);
        meet_other(core); /* continues the same barrier */
        EXPECT(mpb_irecv(core->mpb, &request, MPB_ANY, bytes, LARGE - 1), 0);
        EXPECT(mpb_wait(core->mpb, &request, WAIT_US), MPB_ERROR_SIZE);
        EXPECT(request.size_bytes, LARGE);
        EXPECT(request.core, 1);
        EXPECT(mpb_probe(core->mpb, 1, &from, &size), 1);
        EXPECT(size, LARGE);
        EXPECT(mpb_irecv(core->mpb, &exact, 1, bytes, LARGE), 0);
        EXPECT(mpb_wait(core->mpb, &exact, WAIT_US), 0);
        expect_filled(bytes, LARGE, 1, 5);
    } else {
        await(core, 1);
        meet_other(core);
        fill(bytes, LARGE, 1, 5);
        EXPECT(mpb_send(core->mpb, 0, bytes, LARGE, WAIT_US), 0);
    }
    meet_other(core);
}

/* Receives are matched in the order of posting, whether from one core or from any. */
static void posting_order(struct core *core)
{
    uint32_t numbers[4] = {0};
    struct mpb_request requests[4];
    if (core->number == 0) {
        for (uint32_t i = 0; i < 4; i++)
            EXPECT(mpb_irecv(core->mpb, &requests[i], i % 2 ? 1 : MPB_ANY, &numbers[i], 4), 0);
        meet_other(core);
        for (uint32_t i = 0; i < 4; i++) {
            EXPECT(mpb_wait(core->mpb, &requests[i], WAIT_US), 0);
            EXPECT(numbers[i], i + 1);
        }
    } else {
        meet_other(core);
        for (uint32_t i = 1; i <= 4; i++)
            EXPECT(mpb_send(core->mpb, 0, &i, sizeof i, WAIT_US), 0);
    }
    meet_other(core);
}

static void give_up(struct core *core)
{
    uint8_t *bytes = space(LARGE);
    if (core->number < 2) {
        refusals(core, bytes);
        cancel_sends(core, bytes);
        cancel_receives(core, bytes);
        posting_order(core);
    }
    free(bytes);
}

/* --- more bytes than 32 bits can count ------------------------------------------------------- */

#define WINDOW_BYTES ((uint64_t)2 << 20)
#define HUGE_BYTES (((uint64_t)4 << 30) + 5)

/* Return a large address range that maps the same few pages repeatedly. */
static uint8_t *repeated(void)
{
    const uint64_t space_bytes = (HUGE_BYTES / WINDOW_BYTES + 1) * WINDOW_BYTES;
    int fd = memfd_create("window", 0);
    EXPECT(ftruncate(fd, (off_t)WINDOW_BYTES), 0);
    uint8_t *base = mmap(NULL, space_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint64_t at = 0; at < space_bytes; at += WINDOW_BYTES)
        if (mmap(base + at, WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
            MAP_FAILED)
            abort();
    close(fd);
    return base;
}

static void huge(struct core *core)
{
    uint8_t *bytes = repeated();
    if (core->number == 0) {
        fill(bytes, WINDOW_BYTES, 0, 1);
        EXPECT(mpb_send(core->mpb, 1, bytes, HUGE_BYTES, -1), 0);
    } else {
        EXPECT(mpb_recv(core->mpb, 0, bytes, HUGE_BYTES, NULL, -1), HUGE_BYTES);
        expect_filled(bytes, WINDOW_BYTES, 0, 1);
    }
}

/* --- the table ------------------------------------------------------------------------------- */

#define OF_ALL(role) \
    static void run_##role(uint32_t count, uint64_t seed, uint64_t extent) \
    { \
        for (uint64_t i = 0; i < extent; i++) \
            world_run(count, seed + i, 4096, role); \
    }

OF_ALL(ping)
OF_ALL(cross)
OF_ALL(mix)
OF_ALL(any)
OF_ALL(barrier)
OF_ALL(lock)
OF_ALL(give_up)
OF_ALL(huge)

const struct scenario talk_scenarios[] = {
    {"ping", run_ping},       {"cross", run_cross}, {"mix", run_mix},         {"any", run_any},
    {"barrier", run_barrier}, {"lock", run_lock},   {"give_up", run_give_up}, {"huge", run_huge},
    {NULL, NULL},
};
