/* mpb_deaths.c: cores die at any store and at any moment, or stop. */
#include "mpb_cores.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void expect_one_of(int64_t got, int64_t wanted, int64_t or_else, int line)
{
    if (got != wanted && got != or_else)
        fail(__FILE__, line, "the result", got, wanted);
}

/* --- death at every store -------------------------------------------------------------------- */

#define LARGE 20000
#define SMALL 100

struct course {
    uint8_t out[LARGE], in[LARGE];
    struct mpb_request request;
};

/* Two cores talk to each other. The first error ends the conversation; only PEER is allowed. */
static int64_t talk(struct core *core, struct course *course)
{
    const uint32_t other = core->number ^ 1;
    int64_t result;
    for (uint32_t i = 0; i < 2; i++) {
        if (core->number == i) {
            fill(course->out, SMALL, i, 1);
            result = mpb_send(core->mpb, other, course->out, SMALL, WAIT_US);
        } else {
            result = mpb_recv(core->mpb, other, course->in, LARGE, NULL, WAIT_US);
            if (result >= 0)
                EXPECT(result, SMALL);
            if (result >= 0)
                expect_filled(course->in, SMALL, i, 1);
        }
        if (result < 0)
            return result;
    }
    fill(course->out, LARGE, core->number, 2);
    result = mpb_exchange(core->mpb, other, course->out, LARGE, course->in, LARGE, WAIT_US);
    if (result < 0)
        return result;
    expect_filled(course->in, LARGE, other, 2);
    result = mpb_lock(core->mpb, 0, WAIT_US);
    if (result < 0)
        return result;
    EXPECT(mpb_unlock(core->mpb, 0), 0);
    EXPECT(mpb_isend(core->mpb, &course->request, other, course->out, LARGE), 0);
    if (course->request.status == MPB_PENDING)
        EXPECT(mpb_cancel(core->mpb, &course->request), 0);
    return mpb_barrier(core->mpb, 3, WAIT_US);
}

/* The core that dies at some store, unless it finishes before that. */
static void victim(struct core *core)
{
    struct course course;
    atomic_fetch_add((_Atomic uint32_t *)core->oracle, talk(core, &course) == 0);
}

/* The same core after a restart, from the beginning. */
static void reborn(struct core *core)
{
    struct course course;
    EXPECT(talk(core, &course), 0);
}

static void witness(struct core *core)
{
    struct course course;
    int64_t result = talk(core, &course);
    expect_one_of(result, 0, MPB_ERROR_PEER, __LINE__);
    atomic_store((_Atomic uint32_t *)core->oracle + 1, 1);
    /* Until the core has restarted, errors are about the dead process. */
    while ((result = talk(core, &course)) == MPB_ERROR_PEER)
        sched_yield();
    EXPECT(result, 0);
}

static void run_stores(uint32_t count, uint64_t seed, uint64_t extent)
{
    uint64_t step = extent ? extent : 1;
    for (uint64_t store = 1 + seed % step;; store += step) {
        struct world world = world_open(count, seed, 4096);
        world.check_ms = 1;
        world_start(&world, 0, victim, store);
        world_start(&world, 1, witness, 0);
        world_join(&world, 0);
        _Atomic uint32_t *oracle = world.oracle;
        const bool came_through = oracle[0] != 0;
        while (oracle[1] == 0)
            usleep(100);
        world_start(&world, 0, reborn, 0);
        world_join(&world, 0);
        world_join(&world, 1);
        world_close(&world, 4096);
        if (came_through) {
            EXPECT(store > 40, 1); /* otherwise the test has shown nothing */
            return;
        }
    }
}

/* --- kills at any moment --------------------------------------------------------------------- */

#define CORES 4
#define ROOM 24000
#define WINDOW (1u << 26) /* messages from one core to another; far more than are sent */

struct letter {
    uint32_t from, number, size_bytes, sum;
    uint8_t bytes[ROOM];
};

/* Shared memory with which the test checks results; it survives all cores. */
struct ledger {
    struct letter inbox[CORES]; /* receive buffers; a live core writes only to its own */
    uint32_t next[CORES][CORES];
    _Atomic uint32_t stop, done[CORES], first, second;
    _Atomic uint8_t acknowledged[CORES][CORES][WINDOW / 8], received[CORES][CORES][WINDOW / 8];
};

static bool set_bit(_Atomic uint8_t *bits, uint32_t number)
{
    return atomic_fetch_or(&bits[number / 8], (uint8_t)(1u << number % 8)) >> number % 8 & 1;
}

static uint32_t sum_of(const struct letter *letter)
{
    uint32_t sum = letter->from * 31 + letter->number * 7 + letter->size_bytes;
    for (uint32_t i = 0; i < letter->size_bytes; i++)
        sum = (sum ^ letter->bytes[i]) * 0x01000193u;
    return sum;
}

static bool is_whole(const struct letter *letter)
{
    return letter->number && letter->from < CORES && letter->size_bytes <= ROOM &&
           sum_of(letter) == letter->sum;
}

/* Record a received message, which must not have been received before. */
static void note(struct ledger *ledger, uint32_t to)
{
    struct letter *letter = &ledger->inbox[to];
    EXPECT(is_whole(letter), 1);
    EXPECT(set_bit(ledger->received[letter->from][to], letter->number), 0);
    letter->number = 0;
}

/* A receive completes with a message, or because all peers are gone. */
static void end(struct core *core, struct ledger *ledger, const struct mpb_request *receive)
{
    expect_one_of(receive->status, 0, MPB_ERROR_PEER, __LINE__);
    if (receive->status == 0)
        note(ledger, core->number);
}

static void use_lock(struct core *core, struct ledger *ledger)
{
    int result = mpb_lock(core->mpb, 0, WAIT_US);
    if (result < 0 || (result == 0 && ledger->first != ledger->second))
        fail(__FILE__, __LINE__, "a lock, or what it guards", result, 0);
    uint32_t value = ledger->first + 1;
    ledger->first = value;
    if (draw(core, 4) == 0)
        sched_yield();
    ledger->second = value;
    EXPECT(mpb_unlock(core->mpb, 0), 0);
}

static void post(struct core *core, struct ledger *ledger, struct mpb_request *receive)
{
    struct letter *letter = &ledger->inbox[core->number];
    letter->number = 0;
    EXPECT(mpb_irecv(core->mpb, receive, MPB_ANY, letter, sizeof *letter), 0);
}

static void write_letter(struct core *core, struct ledger *ledger, struct letter *letter,
                         struct mpb_request *send)
{
    uint32_t to = (core->number + 1 + draw(core, core->count - 1)) % core->count;
    letter->from = core->number;
    letter->number = ++ledger->next[core->number][to];
    letter->size_bytes = draw(core, 8) ? draw(core, 200) : draw(core, ROOM);
    EXPECT(letter->number < WINDOW, 1);
    fill(letter->bytes, letter->size_bytes, core->number, letter->number);
    letter->sum = sum_of(letter);
    EXPECT(mpb_isend(core->mpb, send, to, letter,
                     offsetof(struct letter, bytes) + letter->size_bytes), 0);
}

static void correspond(struct core *core)
{
    static _Thread_local struct letter letter;
    struct ledger *ledger = core->oracle;
    struct mpb_request send, receive, *both[] = {&receive, &send};
    core->random += ledger->next[core->number][core->number]++; /* differs from its last life */
    post(core, ledger, &receive);
    write_letter(core, ledger, &letter, &send);
    for (bool is_over = false; !is_over;) {
        int which = mpb_wait_any(core->mpb, both, send.status == MPB_PENDING ? 2 : 1, 10000);
        if (which < 0)
            EXPECT(which, MPB_ERROR_TIMEOUT);
        if (which < 0 && send.status == MPB_PENDING && ++core->waits > WAIT_US / 10000)
            fail(__FILE__, __LINE__, "waits for one message", (int64_t)core->waits, 0);
        if (receive.status != MPB_PENDING) {
            end(core, ledger, &receive);
            post(core, ledger, &receive);
        }
        if (send.status != MPB_PENDING) {
            expect_one_of(send.status, 0, MPB_ERROR_PEER, __LINE__);
            if (send.status == 0)
                set_bit(ledger->acknowledged[core->number][send.core], letter.number);
            core->waits = 0;
            if (draw(core, 16) == 0)
                use_lock(core, ledger);
            if (!ledger->stop)
                write_letter(core, ledger, &letter, &send);
            else
                ledger->done[core->number] = 1;
        }
        is_over = true;
        for (uint32_t other = 0; other < core->count; other++)
            is_over &= ledger->done[other] == 1;
    }
    if (receive.status == MPB_PENDING)
        EXPECT(mpb_cancel(core->mpb, &receive), 0);
    else /* completed when it was posted */
        end(core, ledger, &receive);
}

static void run_kills(uint32_t count, uint64_t seed, uint64_t extent)
{
    if (count > CORES)
        count = CORES;
    struct world world = world_open(count, seed, sizeof(struct ledger));
    struct ledger *ledger = world.oracle;
    struct core dice = {.random = (seed + 1) * 0x9e3779b97f4a7c15u};
    world.check_ms = 2;
    for (uint32_t number = 0; number < count; number++)
        world_start(&world, number, correspond, 0);
    for (uint64_t i = 0; i < extent; i++) {
        uint32_t number = draw(&dice, count);
        usleep(draw(&dice, 4000));
        world_kill(&world, number);
        /* The core may have died between receiving the last byte and recording it. */
        struct letter *letter = &ledger->inbox[number];
        if (is_whole(letter))
            set_bit(ledger->received[letter->from][number], letter->number);
        letter->number = 0;
        world_start(&world, number, correspond, 0);
    }
    ledger->stop = 1;
    uint64_t sent = 0, acknowledged = 0, received = 0;
    for (uint32_t number = 0; number < count; number++)
        world_join(&world, number);
    for (uint32_t from = 0; from < count; from++) {
        for (uint32_t to = 0; to < count; to++) {
            if (from == to)
                continue;
            sent += ledger->next[from][to];
            for (uint32_t i = 0; i <= ledger->next[from][to] / 8; i++) {
                uint8_t said = ledger->acknowledged[from][to][i];
                uint8_t came = ledger->received[from][to][i];
                if (said & ~came)
                    fail(__FILE__, __LINE__, "messages acknowledged and lost", said & ~came, 0);
                acknowledged += (uint64_t)__builtin_popcount(said);
                received += (uint64_t)__builtin_popcount(came);
            }
        }
    }
    printf("%llu kills: %llu sent, %llu acknowledged, %llu received\n", (unsigned long long)extent,
           (unsigned long long)sent, (unsigned long long)acknowledged,
           (unsigned long long)received);
    world_close(&world, sizeof(struct ledger));
}

/* --- a stopped receiver ---------------------------------------------------------------------- */

#define PATIENCE_US 20000
#define LETTERS 12

static void impatient(struct core *core)
{
    static uint8_t bytes[LARGE];
    for (uint32_t number = 1; number <= LETTERS;) {
        fill(bytes, LARGE, 0, number);
        int result = mpb_send(core->mpb, 1, bytes, LARGE, PATIENCE_US);
        if (result != 0)
            atomic_fetch_add((_Atomic uint32_t *)core->oracle, 1);
        /* After a timeout before the whole message was given, it can be sent again. */
        if (result != 0 && result != MPB_ERROR_UNSURE)
            EXPECT(result, MPB_ERROR_TIMEOUT);
        else
            number++;
    }
    EXPECT(mpb_barrier(core->mpb, 3, WAIT_US), 0);
}

static void halting(struct core *core)
{
    static uint8_t bytes[LARGE];
    for (uint32_t number = 1; number <= LETTERS; number++) {
        if (number == LETTERS / 2)
            kill(getpid(), SIGSTOP);
        EXPECT(mpb_recv(core->mpb, 0, bytes, LARGE, NULL, WAIT_US), LARGE);
        expect_filled(bytes, LARGE, 0, number);
    }
    EXPECT(mpb_barrier(core->mpb, 3, WAIT_US), 0);
}

static void run_stops(uint32_t count, uint64_t seed, uint64_t extent)
{
    (void)extent;
    struct world world = world_open(count, seed, 4096);
    world_start(&world, 0, impatient, 0);
    world_start(&world, 1, halting, 0);
    int status;
    if (waitpid(world.pids[1], &status, WUNTRACED) != world.pids[1] || !WIFSTOPPED(status))
        fail(__FILE__, __LINE__, "the receiver's status", status, 0);
    while (*(_Atomic uint32_t *)world.oracle < 3)
        usleep(1000);
    kill(world.pids[1], SIGCONT);
    world_join(&world, 1);
    world_join(&world, 0);
    world_close(&world, 4096);
}

/* --- state that dead cores leave behind ------------------------------------------------------ */

/* Die holding a lock, after one message was received and another one was put in the buffer. */
static void testator(struct core *core)
{
    struct mpb_request request;
    EXPECT(mpb_lock(core->mpb, 1, WAIT_US), 0);
    EXPECT(mpb_send(core->mpb, 0, "first", 5, WAIT_US), 0);
    EXPECT(mpb_isend(core->mpb, &request, 0, "last", 4), 0);
    EXPECT(request.moved_bytes, 4);
    raise(SIGKILL);
}

static void heir(struct core *core)
{
    uint8_t bytes[8];
    struct mpb_request requests[2];
    EXPECT(mpb_recv(core->mpb, 1, bytes, sizeof bytes, NULL, WAIT_US), 5);
    EXPECT(mpb_lock(core->mpb, 1, WAIT_US), 1);
    EXPECT(mpb_lives(core->mpb, 1), 0);
    EXPECT(mpb_lives(core->mpb, 0), 1);
    EXPECT(mpb_incarnation_of(core->mpb, 1), 1);
    EXPECT(mpb_recv(core->mpb, MPB_ANY, bytes, sizeof bytes, NULL, WAIT_US), 4);
    EXPECT(mpb_recv(core->mpb, MPB_ANY, bytes, sizeof bytes, NULL, -1), MPB_ERROR_PEER);
    EXPECT(mpb_irecv(core->mpb, &requests[0], 1, bytes, sizeof bytes), 0);
    EXPECT(mpb_isend(core->mpb, &requests[1], 1, bytes, sizeof bytes), 0);
    EXPECT(mpb_wait(core->mpb, &requests[0], -1), MPB_ERROR_PEER);
    EXPECT(mpb_wait(core->mpb, &requests[1], -1), MPB_ERROR_PEER);
    EXPECT(mpb_send(core->mpb, 1, bytes, 1, -1), MPB_ERROR_PEER); /* known to be dead by now */
    EXPECT(mpb_recv(core->mpb, 1, bytes, 1, NULL, -1), MPB_ERROR_PEER);
    EXPECT(mpb_barrier(core->mpb, 3, -1), MPB_ERROR_PEER);
    EXPECT(mpb_unlock(core->mpb, 1), 0);
    EXPECT(mpb_counters_of(core->mpb).stolen, 1);
}

static void run_legacy(uint32_t count, uint64_t seed, uint64_t extent)
{
    (void)count, (void)extent;
    struct world world = world_open(2, seed, 4096);
    world.check_ms = 1;
    world_start(&world, 1, testator, 0);
    world_start(&world, 0, heir, 0);
    world_join(&world, 1);
    world_join(&world, 0);
    world_close(&world, 4096);
}

const struct scenario death_scenarios[] = {
    {"stores", run_stores}, {"kills", run_kills}, {"stops", run_stops}, {"legacy", run_legacy},
    {NULL, NULL},
};
