/* mpb_cores.h: test cores, each a process in its own namespaces, which share only memory. */
#ifndef MPB_CORES_H
#define MPB_CORES_H

#include "mpb_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#define WAIT_US 20000000 /* far more time than any expected event takes */

/* One core, in its own process (or thread). */
struct core {
    struct mpb *mpb;
    uint32_t number, count;
    uint64_t random;
    void *storage;
    void *oracle; /* ordinary shared memory, with which the tests check results */
    int fd;
    uint32_t check_ms;
    uint64_t dies_at; /* number of a store, or 0 */
    uint64_t waits;
};

typedef void core_role(struct core *core);

/* A segment for `count` cores, formatted over garbage, and an oracle of zeros. */
struct world {
    uint32_t count;
    uint64_t seed;
    int fd;
    uint32_t check_ms; /* as in mpb_options */
    void *oracle;
    pid_t pids[MPB_CORE_MAX_COUNT];
};

struct world world_open(uint32_t count, uint64_t seed, size_t oracle_bytes);

void world_close(struct world *world, size_t oracle_bytes);

/* Start a core. It detaches and ends when its role returns. */
void world_start(struct world *world, uint32_t number, core_role *role, uint64_t dies_at);

/* Wait for a core to end. Fails unless it succeeded, was killed by SIGKILL, or died as planned. */
void world_join(struct world *world, uint32_t number);
void world_kill(struct world *world, uint32_t number);

/* Run all cores in one role, from start to end. */
void world_run(uint32_t count, uint64_t seed, size_t oracle_bytes, core_role *role);

uint32_t draw(struct core *core, uint32_t below);

/* Fill bytes with a pattern that identifies the sender and the message; check that pattern. */
void fill(uint8_t *bytes, uint64_t size_bytes, uint32_t from, uint32_t number);
void expect_filled(const uint8_t *bytes, uint64_t size_bytes, uint32_t from, uint32_t number);

void fail(const char *file, int line, const char *what, int64_t got, int64_t wanted);

#define EXPECT(what, wanted) \
    do { \
        int64_t got_ = (int64_t)(what), wanted_ = (int64_t)(wanted); \
        if (got_ != wanted_) \
            fail(__FILE__, __LINE__, #what, got_, wanted_); \
    } while (0)

struct scenario {
    const char *name;
    void (*run)(uint32_t count, uint64_t seed, uint64_t extent);
};

extern const struct scenario talk_scenarios[], death_scenarios[]; /* the last has no name */

#endif
