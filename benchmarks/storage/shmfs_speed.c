/* Measures the rates of shmfs and tmpfs: shmfs.py calls it; it prints a line of numbers per call.
 *
 *     shmfs_speed small shmfs|tmpfs PROCESSES SHARDS   ->  create+commit/s lookup/s unlink/s
 *     shmfs_speed large                                ->  store, load and memcpy of 1 GiB, GB/s
 *     shmfs_speed locks PROCESSES SHARDS               ->  calls/s of five kinds (create+commit,
 *         lookup, mixed, unlink, bare), the median of some rounds; then for each the number of
 *         1000 calls that had to wait for a lock
 */
#include "shmfs.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 2000, ROUNDS = 40, LOOKS = 5, PROCESSES_MAX = 16 };
enum { CREATE, LOOKUP, MIXED, UNLINK, BARE, KINDS, LOCK_ROUNDS = 15 };

static struct shmfs_memory memory;
static char path[64];

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void require(int64_t result)
{
    if (result < 0) {
        fprintf(stderr, "%s\n", shmfs_error_text((int)result));
        exit(1);
    }
}

static void make(uint64_t block_bytes, uint64_t block_count, uint32_t files, uint32_t shards)
{
    struct shmfs_geometry geometry = {
        .block_bytes = block_bytes, .block_count = block_count, .inode_count = files,
        .entry_count = files, .shard_count = shards,
    };
    require(shmfs_sizes(&geometry, &memory.control_bytes, &memory.data_bytes));
    snprintf(path, sizeof path, "/dev/shm/ciel-bench-%d", getpid());
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)(memory.control_bytes + memory.data_bytes)))
        exit(1);
    memory.control = mmap(NULL, memory.control_bytes + memory.data_bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED, fd, 0);
    if (memory.control == MAP_FAILED)
        exit(1);
    memory.data = (uint8_t *)memory.control + memory.control_bytes;
    require(shmfs_format(&memory, &geometry));
}

static struct shmfs *attach(uint32_t group)
{
    struct shmfs_options options = {.group = group};
    struct shmfs *fs;
    memory.control_fd = open(path, O_RDWR | O_CLOEXEC);
    require(shmfs_attach(&fs, aligned_alloc(64, (shmfs_size() + 63) / 64 * 64), shmfs_size(),
                         &memory, group ? &options : NULL));
    return fs;
}

/* Stay on one of the permitted cores: otherwise the kernel places a woken process on the core of
 * its waker, and all alternate on one core. */
static void stay(int process)
{
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        exit(1);
    int skip = process % CPU_COUNT(&allowed), core = 0;
    while (!CPU_ISSET(core, &allowed) || skip--)
        core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        exit(1);
}

/* Run a round over all files of this process; add up the durations of each part. */
static void round_of_shmfs(struct shmfs *fs, char (*names)[32], double *took_s)
{
    struct shmfs_handle file;
    double start_s = now_s();
    for (int i = 0; i < FILES; i++) {
        require(shmfs_create(fs, NULL, 64, &file));
        require(shmfs_commit(fs, &file, names[i]));
        require(shmfs_close(fs, &file));
    }
    took_s[0] += now_s() - start_s, start_s = now_s();
    for (int look = 0; look < LOOKS; look++)
        for (int i = 0; i < FILES; i++)
            require(shmfs_lookup(fs, names[i]));
    took_s[1] += now_s() - start_s, start_s = now_s();
    for (int i = 0; i < FILES; i++)
        require(shmfs_unlink(fs, names[i]));
    took_s[2] += now_s() - start_s;
}

static void round_of_tmpfs(int directory, char (*names)[32], double *took_s)
{
    static const char content[64] = "content";
    double start_s = now_s();
    for (int i = 0; i < FILES; i++) {
        char temporary[64];
        snprintf(temporary, sizeof temporary, "t-%.40s", names[i]);
        const int fd = openat(directory, temporary, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (write(fd, content, sizeof content) != sizeof content)
            exit(1);
        close(fd);
        if (renameat(directory, temporary, directory, names[i]))
            exit(1);
    }
    took_s[0] += now_s() - start_s, start_s = now_s();
    for (int look = 0; look < LOOKS; look++)
        for (int i = 0; i < FILES; i++)
            close(openat(directory, names[i], O_RDONLY));
    took_s[1] += now_s() - start_s, start_s = now_s();
    for (int i = 0; i < FILES; i++)
        unlinkat(directory, names[i], 0);
    took_s[2] += now_s() - start_s;
}

static void small(const char *which, int processes, uint32_t shards)
{
    const int is_shmfs = !strcmp(which, "shmfs");
    char directory_path[64];
    snprintf(directory_path, sizeof directory_path, "/dev/shm/ciel-bench-d-%d", getpid());
    if (is_shmfs)
        make(65536, 4096u * (unsigned)processes, 4096u * (unsigned)processes, shards);
    else if (mkdir(directory_path, 0700))
        exit(1);
    double (*took_s)[3] =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    _Atomic int *ready = (_Atomic int *)(took_s + PROCESSES_MAX);
    for (int process = 0; process < processes; process++) {
        if (fork())
            continue;
        static char names[FILES][32];
        stay(process);
        for (int i = 0; i < FILES; i++)
            snprintf(names[i], sizeof names[i], "%d:4f2a%08x:out:0", process, i);
        const uint32_t group = 1 + (uint32_t)process * shards / (uint32_t)processes;
        struct shmfs *fs = is_shmfs ? attach(group) : NULL;
        const int directory = is_shmfs ? -1 : open(directory_path, O_RDONLY | O_DIRECTORY);
        double warm[3] = {0};
        if (is_shmfs)
            round_of_shmfs(fs, names, warm);
        else
            round_of_tmpfs(directory, names, warm);
        for (++*ready; *ready < processes;)
            ;
        for (int round = 0; round < (is_shmfs ? ROUNDS : ROUNDS / 8); round++)
            if (is_shmfs)
                round_of_shmfs(fs, names, took_s[process]);
            else
                round_of_tmpfs(directory, names, took_s[process]);
        if (fs)
            shmfs_detach(fs);
        _exit(0);
    }
    while (wait(NULL) > 0)
        ;
    double rates[3] = {0};
    const double files = (double)FILES * (is_shmfs ? ROUNDS : ROUNDS / 8);
    for (int process = 0; process < processes; process++)
        for (int i = 0; i < 3; i++)
            rates[i] += files * (i == 1 ? LOOKS : 1) / took_s[process][i];
    printf("%.0f %.0f %.0f\n", rates[0], rates[1], rates[2]);
    unlink(path);
    rmdir(directory_path);
}

/* All processes do the same at the same time, each with its own files; each looks up names of a
 * neighbour's files, as one core looks up objects of another core. BARE shares nothing: its gain
 * with more processes is the limit of the machine. */
static void part_of(struct shmfs *fs, int kind, char (*own)[32], char (*neighbours)[32])
{
    struct shmfs_handle file;
    uint64_t arithmetic = 1;
    for (int i = 0; i < FILES; i++) {
        if (kind == MIXED || kind == UNLINK)
            require(shmfs_unlink(fs, own[i]));
        if (kind == MIXED || kind == CREATE) {
            require(shmfs_create(fs, NULL, 64, &file));
            require(shmfs_commit(fs, &file, own[i]));
            require(shmfs_close(fs, &file));
        }
        if (kind == MIXED || kind == LOOKUP)
            for (int look = 0; look < LOOKS; look++) { /* in MIXED it may be missing for a moment */
                const int found = shmfs_lookup(fs, neighbours[(i + look * 331) % FILES]);
                require(kind == MIXED && found == SHMFS_ERROR_NOT_FOUND ? 0 : found);
            }
        if (kind == BARE)
            for (int turn = 0; turn < 100; turn++) {
                arithmetic = arithmetic * 6364136223846793005u + 1;
                __asm__ volatile("" : "+r"(arithmetic)); /* so that the compiler keeps it */
            }
    }
}

static int by_size(const void *one, const void *other)
{
    const double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static void locks(int processes, uint32_t shards)
{
    static const int calls[KINDS] = {1, LOOKS, LOOKS + 2, 1, 1};
    static char own[FILES][32], neighbours[FILES][32];
    double took_s[KINDS][LOCK_ROUNDS], waits[KINDS] = {0};
    make(4096, 4096u * (unsigned)processes, 4096u * (unsigned)processes, shards);
    pthread_barrier_t *together =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    struct { double start_s, end_s; } *spans = (void *)(together + 1); /* of each one's last part */
    if (together == MAP_FAILED || pthread_barrier_init(together, &shared, (unsigned)processes))
        exit(1);
    int process = 0; /* this is the first process, which reports */
    while (process + 1 < processes && !fork())
        process++;
    stay(process);
    for (int i = 0; i < FILES; i++) {
        snprintf(own[i], sizeof own[i], "%d:4f2a%08x:out:0", process, i);
        snprintf(neighbours[i], sizeof own[i], "%d:4f2a%08x:out:0", (process + 1) % processes, i);
    }
    struct shmfs *fs = attach(1 + (uint32_t)process * shards / (uint32_t)processes);
    for (int round = 0; round < LOCK_ROUNDS; round++)
        for (int kind = 0; kind < KINDS; kind++) {
            struct shmfs_statistics before, after;
            pthread_barrier_wait(together);
            require(shmfs_statfs(fs, &before));
            spans[process].start_s = now_s();
            part_of(fs, kind, own, neighbours);
            spans[process].end_s = now_s();
            pthread_barrier_wait(together);
            double first_s = 1e18, last_s = 0;
            for (int each = 0; each < processes; each++) {
                first_s = spans[each].start_s < first_s ? spans[each].start_s : first_s;
                last_s = spans[each].end_s > last_s ? spans[each].end_s : last_s;
            }
            took_s[kind][round] = last_s - first_s;
            require(shmfs_statfs(fs, &after));
            waits[kind] += (double)(after.lock_wait_count - before.lock_wait_count);
        }
    shmfs_detach(fs);
    while (wait(NULL) > 0)
        ; /* the process that this process forked */
    if (process)
        _exit(0);
    for (int kind = 0; kind < KINDS; kind++) {
        qsort(took_s[kind], LOCK_ROUNDS, sizeof(double), by_size);
        printf("%.0f ", processes * FILES * calls[kind] / took_s[kind][LOCK_ROUNDS / 2]);
    }
    for (int kind = 0; kind < KINDS; kind++)
        printf("%.3f ",
               waits[kind] * 1e3 / ((double)LOCK_ROUNDS * processes * FILES * calls[kind]));
    puts("");
    unlink(path);
}

static void large(void)
{
    const uint64_t size_bytes = (uint64_t)1 << 30;
    struct shmfs_handle file;
    make(1 << 20, 1100, 16, 1);
    struct shmfs *fs = attach(0);
    char *from = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *to = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(from, 1, size_bytes);
    memset(to, 2, size_bytes);
    double best_s[3] = {1e9, 1e9, 1e9};
    for (int round = 0; round < 4; round++) {
        double start_s = now_s();
        require(shmfs_create(fs, NULL, size_bytes, &file));
        require(shmfs_write(fs, &file, from, size_bytes, 0));
        require(shmfs_commit(fs, &file, "large"));
        require(shmfs_close(fs, &file));
        double took_s[3] = {now_s() - start_s}; /* later rounds recycle the blocks of the first */
        start_s = now_s();
        require(shmfs_open(fs, "large", &file));
        require(shmfs_read(fs, &file, to, size_bytes, 0));
        require(shmfs_close(fs, &file));
        took_s[1] = now_s() - start_s, start_s = now_s();
        memcpy(to, from, size_bytes);
        took_s[2] = now_s() - start_s;
        require(shmfs_unlink(fs, "large"));
        for (int i = 0; round && i < 3; i++)
            best_s[i] = took_s[i] < best_s[i] ? took_s[i] : best_s[i];
    }
    printf("%.2f %.2f %.2f\n", (double)size_bytes / best_s[0] / 1e9,
           (double)size_bytes / best_s[1] / 1e9, (double)size_bytes / best_s[2] / 1e9);
    shmfs_detach(fs);
    unlink(path);
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "small"))
        small(argv[2], atoi(argv[3]), (uint32_t)atoi(argv[4]));
    else if (argc == 4 && !strcmp(argv[1], "locks"))
        locks(atoi(argv[2]), (uint32_t)atoi(argv[3]));
    else if (argc == 2 && !strcmp(argv[1], "large"))
        large();
    else
        return 2;
    return 0;
}
