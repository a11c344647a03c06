/* shmfs_kills: kills real processes on one image after a random time, most of them in the middle of
 * a call.
 *
 *     shmfs_kills KILLS PROCESSES SHARDS
 *
 * KILLS counts the processes that died holding a lock. If it is 0, threads run instead, each as a
 * separate client, for the thread sanitizer.
 *
 * Afterwards, and now and then, the check must be clean, no file of a dead writer may be left, and
 * no process may hang. Prints how many dead processes held a lock, and the longest time of one call
 * of the surviving process, except sweeps.
 */
#include "core.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES_MAX = 16, NAMES = 40, BLOCK = 4096 };

static struct shmfs_memory memory;
static char path[64];

static void fail(const char *what, int64_t detail)
{
    printf("failed: %s (%lld)\n", what, (long long)detail);
    fflush(stdout);
    kill(0, SIGABRT);
    abort();
}

static struct shmfs *attach(void)
{
    struct shmfs *fs;
    memory.control_fd = open(path, O_RDWR | O_CLOEXEC);
    void *storage = aligned_alloc(64, (shmfs_size() + 63) / 64 * 64);
    const struct shmfs_options options = {.seed = (uint32_t)getpid()};
    const int error = shmfs_attach(&fs, storage, shmfs_size(), &memory, &options);
    if (error)
        fail("attach", error);
    return fs;
}

static uint32_t draw(uint64_t *state, uint32_t limit)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % limit;
}

/* Create a file whose content depends on its size, or read one. */
static void work(struct shmfs *fs, uint64_t *random)
{
    static _Thread_local uint8_t bytes[4 * BLOCK];
    char name[32], other[32];
    struct shmfs_handle handle;
    snprintf(name, sizeof name, "file-%u", draw(random, NAMES));
    snprintf(other, sizeof other, "file-%u", draw(random, NAMES));
    const uint32_t size_bytes = 1 + draw(random, sizeof bytes - 1);
    switch (draw(random, 8)) {
    case 0:
    case 1:
    case 2:
        memset(bytes, (int)(size_bytes % 251), size_bytes);
        if (shmfs_create(fs, draw(random, 2) ? NULL : name, draw(random, 2) * size_bytes, &handle))
            return;
        if (shmfs_write(fs, &handle, bytes, size_bytes, 0) == size_bytes)
            shmfs_commit(fs, &handle, draw(random, 4) ? other : NULL);
        shmfs_close(fs, &handle);
        return;
    case 3:
        shmfs_link(fs, name, other);
        return;
    case 4:
        shmfs_unlink(fs, name);
        return;
    case 5:
        shmfs_rename(fs, name, other, draw(random, 2));
        return;
    default:
        if (shmfs_open(fs, name, &handle))
            return;
        const int64_t count = shmfs_read(fs, &handle, bytes, sizeof bytes, 0);
        if (count < 1)
            fail("read", count);
        for (int64_t i = 0; i < count; i++)
            if (bytes[i] != count % 251)
                fail("content", i);
        shmfs_close(fs, &handle);
    }
}

static pid_t start(uint64_t seed)
{
    fflush(stdout);
    const pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct shmfs *fs = attach();
    for (uint64_t random = seed;;)
        work(fs, &random);
}

static int held_by_dead(const struct shmfs *fs)
{
    const struct image_lock *locks =
        (const struct image_lock *)(fs->control + fs->shape.locks);
    for (uint32_t i = 0; i < fs->shape.lock_count; i++) {
        const uint32_t owner = port_register_load(&locks[i].owner);
        if (owner && !client_lives(fs, (owner & 0x7ff) - 1, (owner & 0x7fffffff) >> 11))
            return 1;
    }
    return 0;
}

static void check(void)
{
    static uint8_t scratch[1 << 16] __attribute__((aligned(8)));
    struct shmfs_problem problem;
    const int64_t count = shmfs_check(memory.control, memory.control_bytes, memory.data_bytes,
                                      scratch, sizeof scratch, &problem, 1);
    if (count) {
        printf("%s %llu %llu\n", problem.code, (unsigned long long)problem.place,
               (unsigned long long)problem.detail);
        fail("check", count);
    }
}

/* After all processes have died, no transaction is active and nothing of it is left. */
static void settle(struct shmfs *fs)
{
    uint64_t cursor = 0;
    char name[SHMFS_NAME_MAX_BYTES + 1];
    struct shmfs_info info;
    const int swept = shmfs_sweep(fs);
    if (swept < 0)
        fail("sweep", swept);
    check();
    while (shmfs_list(fs, &cursor, name, &info) == 1)
        if (info.handle_count || info.is_writing)
            fail("a handle of a dead process is left", info.inode);
}

static void *thread(void *argument)
{
    struct shmfs *fs = argument;
    uint64_t random = (uint64_t)(uintptr_t)fs;
    for (int i = 0; i < 2000; i++)
        work(fs, &random);
    return NULL;
}

static void run_threads(int count)
{
    pthread_t threads[PROCESSES_MAX];
    struct shmfs *clients[PROCESSES_MAX];
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, thread, clients[i] = attach()))
            abort();
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        shmfs_detach(clients[i]);
        free(clients[i]);
    }
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    const int kills = atoi(argv[1]), processes = atoi(argv[2]);
    struct shmfs_geometry geometry = {
        .block_bytes = BLOCK, .block_count = 256, .inode_count = 64, .entry_count = 64,
        .client_count = 32, .handle_count = 8, .shard_count = (uint32_t)atoi(argv[3]),
    };
    pid_t pids[PROCESSES_MAX];
    setpgid(0, 0);
    if (processes > PROCESSES_MAX ||
        shmfs_sizes(&geometry, &memory.control_bytes, &memory.data_bytes))
        return 2;
    snprintf(path, sizeof path, "/dev/shm/shmfs-kills-%d", getpid());
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)(memory.control_bytes + memory.data_bytes + BLOCK)))
        return 1;
    memory.control = mmap(NULL, memory.control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memory.data = mmap(NULL, memory.data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0);
    if (shmfs_format(&memory, &geometry))
        return 1;
    struct shmfs *fs = attach();
    unlink(path);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", getpid(), fd);
    uint64_t random = 1, worst_us = 0;
    int held = 0, killed = 0;
    if (!kills)
        run_threads(processes);
    for (int i = 0; kills && i < processes; i++)
        pids[i] = start(random + (uint64_t)i);
    for (; held < kills; killed++) {
        const int which = (int)draw(&random, (uint32_t)processes);
        const struct timespec pause = {0, 1000 * (1 + (long)draw(&random, 1500))};
        nanosleep(&pause, NULL);
        kill(pids[which], SIGKILL);
        waitpid(pids[which], NULL, 0);
        held += held_by_dead(fs);
        const uint64_t start_us = port_now_us();
        work(fs, &random);
        const uint64_t took_us = port_now_us() - start_us;
        worst_us = took_us > worst_us ? took_us : worst_us;
        pids[which] = start(random + (uint64_t)killed * 1000);
        if (killed % 100 == 99) {
            for (int i = 0; i < processes; i++)
                kill(pids[i], SIGKILL), waitpid(pids[i], NULL, 0);
            settle(fs);
            for (int i = 0; i < processes; i++)
                pids[i] = start(random + (uint64_t)i);
        }
    }
    for (int i = 0; kills && i < processes; i++)
        kill(pids[i], SIGKILL), waitpid(pids[i], NULL, 0);
    settle(fs);
    printf("%d kills, %d of them with a lock held, longest call %llu us\n", killed, held,
           (unsigned long long)worst_us);
    free(fs);
    return 0;
}
