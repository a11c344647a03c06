/* mpb_cores.c SCENARIO CORES SEED EXTENT: runs a scenario; exits with 0 on success.
 *
 * With -DCORES_ARE_THREADS the cores are threads, so that a sanitizer sees both sides.
 */
#include "mpb_cores.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_DIED 9
#define EXIT_NO_NAMESPACES 77

void fail(const char *file, int line, const char *what, int64_t got, int64_t wanted)
{
    fprintf(stderr, "%s:%d: %s is %lld (%s) and should be %lld\n", file, line, what, (long long)got,
            mpb_error_text((int)got), (long long)wanted);
    exit(1);
}

uint32_t draw(struct core *core, uint32_t below)
{
    core->random ^= core->random << 13;
    core->random ^= core->random >> 7;
    core->random ^= core->random << 17;
    return (uint32_t)(core->random >> 32) % below;
}

static uint8_t byte_of(uint64_t index, uint32_t from, uint32_t number)
{
    return (uint8_t)((index * 0x9e3779b97f4a7c15u >> 56) + from * 31 + number * 7 + 1);
}

void fill(uint8_t *bytes, uint64_t size_bytes, uint32_t from, uint32_t number)
{
    for (uint64_t i = 0; i < size_bytes; i++)
        bytes[i] = byte_of(i, from, number);
}

void expect_filled(const uint8_t *bytes, uint64_t size_bytes, uint32_t from, uint32_t number)
{
    for (uint64_t i = 0; i < size_bytes; i++)
        if (bytes[i] != byte_of(i, from, number))
            fail("byte", (int)i, "a byte of a message", bytes[i], byte_of(i, from, number));
}

static void *mapped(int fd, size_t size_bytes)
{
    void *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                      fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return base;
}

struct world world_open(uint32_t count, uint64_t seed, size_t oracle_bytes)
{
    struct world world = {.count = count, .seed = seed};
    int64_t size = mpb_segment_bytes(count);
    world.fd = memfd_create("mpb", 0);
    EXPECT(ftruncate(world.fd, size), 0);
    struct mpb_memory memory = {mapped(world.fd, (size_t)size), (uint64_t)size, -1};
    memset(memory.base, 0xa5, (size_t)size);
    EXPECT(mpb_format(&memory, count), 0);
    munmap(memory.base, (size_t)size);
    world.oracle = mapped(-1, oracle_bytes + 1);
    return world;
}

void world_close(struct world *world, size_t oracle_bytes)
{
    munmap(world->oracle, oracle_bytes + 1);
    close(world->fd);
}

#ifndef CORES_ARE_THREADS
static void die(void *argument)
{
    (void)argument;
    _exit(EXIT_DIED);
}
#endif

static void attach(struct core *core)
{
    int64_t size = mpb_segment_bytes(core->count);
    struct mpb_memory memory = {mapped(core->fd, (size_t)size), (uint64_t)size, core->fd};
    core->storage = aligned_alloc(64, (mpb_size() + 63) / 64 * 64);
    struct mpb_options options = {.check_ms = core->check_ms};
    EXPECT(mpb_attach(&core->mpb, core->storage, mpb_size(), &memory, core->number, &options), 0);
#ifndef CORES_ARE_THREADS
    core->mpb->port.dies_at = core->dies_at;
    core->mpb->port.died = die;
#endif
}

struct start {
    struct world *world;
    uint32_t number;
    core_role *role;
    uint64_t dies_at;
};

static void *be_core(void *argument)
{
    struct start start = *(struct start *)argument;
    struct core core = {
        .number = start.number,
        .count = start.world->count,
        .random = (start.world->seed + 1) * 0x9e3779b97f4a7c15u + start.number,
        .oracle = start.world->oracle,
        .check_ms = start.world->check_ms,
        .dies_at = start.dies_at,
    };
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", start.world->fd);
    core.fd = open(path, O_RDWR | O_CLOEXEC); /* a new file description, to which locks belong */
    free(argument);
    attach(&core);
    start.role(&core);
    mpb_detach(core.mpb);
    munmap(core.mpb->base, (size_t)mpb_segment_bytes(core.count));
    close(core.fd);
    free(core.storage);
    return NULL;
}

static struct start *start_of(struct world *world, uint32_t number, core_role *role,
                              uint64_t dies_at)
{
    struct start *start = malloc(sizeof *start);
    if (!start)
        abort();
    *start = (struct start){world, number, role, dies_at};
    return start;
}

/* Isolate the core: it shares only memory, no network and no visible file system. */
static void leave_host(void)
{
    if (getenv("CORES_SHARE_HOST"))
        return;
    if (unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS) < 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", "/dev/shm", "tmpfs", 0, NULL) < 0 ||
        mount("none", "/tmp", "tmpfs", 0, NULL) < 0)
        exit(EXIT_NO_NAMESPACES);
}

void world_start(struct world *world, uint32_t number, core_role *role, uint64_t dies_at)
{
    fflush(NULL);
    world->pids[number] = fork();
    if (world->pids[number] != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    leave_host();
    be_core(start_of(world, number, role, dies_at));
    exit(0);
}

void world_join(struct world *world, uint32_t number)
{
    int status = -1;
    waitpid(world->pids[number], &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_NO_NAMESPACES)
        exit(EXIT_NO_NAMESPACES);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return;
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != EXIT_DIED)) {
        for (uint32_t other = 0; other < world->count; other++)
            if (other != number && world->pids[other])
                kill(world->pids[other], SIGKILL);
        fail("core", (int)number, "the process's status", status, 0);
    }
}

void world_kill(struct world *world, uint32_t number)
{
    kill(world->pids[number], SIGKILL);
    world_join(world, number);
}

void world_run(uint32_t count, uint64_t seed, size_t oracle_bytes, core_role *role)
{
    struct world world = world_open(count, seed, oracle_bytes);
#ifdef CORES_ARE_THREADS
    pthread_t threads[MPB_CORE_MAX_COUNT];
    for (uint32_t number = 0; number < count; number++)
        pthread_create(&threads[number], NULL, be_core, start_of(&world, number, role, 0));
    for (uint32_t number = 0; number < count; number++)
        pthread_join(threads[number], NULL);
#else
    for (uint32_t number = 0; number < count; number++)
        world_start(&world, number, role, 0);
    for (uint32_t number = 0; number < count; number++)
        world_join(&world, number);
#endif
    world_close(&world, oracle_bytes);
}

int main(int argc, char **argv)
{
    const struct scenario *const tables[] = {talk_scenarios, death_scenarios};
    if (argc != 5) {
        fprintf(stderr, "usage: %s SCENARIO CORES SEED EXTENT\n", argv[0]);
        return 2;
    }
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct scenario *scenario = tables[i]; scenario->name; scenario++)
            if (!strcmp(scenario->name, argv[1])) {
                scenario->run((uint32_t)atoi(argv[2]), strtoull(argv[3], NULL, 10),
                              strtoull(argv[4], NULL, 10));
                return 0;
            }
    fprintf(stderr, "there is no scenario of that name\n");
    return 2;
}
