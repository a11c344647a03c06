/* The lower bound for an array of 256 MiB that one process writes and two others read twice each.
 * python.py runs it, and also loads its functions that sum, so that tasks sum in the same way.
 *
 *     shared_map BYTES [one-by-one]    runs a round for each line of its input; prints its duration
 *                                      in seconds
 *
 * Both processes have touched the whole map before, unlike processes that map an object. */
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { LANES = 8, SUMS = 2 };

typedef double Sum(const double *numbers, int64_t count);

/* As fast as memory can be read: the lanes do not depend on each other. */
double total(const double *numbers, int64_t count)
{
    double lanes[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] += numbers[i + lane];
    for (; i < count; i++)
        sum += numbers[i];
    for (int lane = 0; lane < LANES; lane++)
        sum += lanes[lane];
    return sum;
}

/* One number at a time, like a plain loop that is compiled without options: the processor is the
 * bottleneck, and memory is not. */
__attribute__((optimize("O0"))) double total_one_by_one(const double *numbers, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += numbers[i];
    return sum;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void require(int holds)
{
    if (!holds) {
        perror("shared_map");
        exit(1);
    }
}

/* Stay on one of the permitted cores: otherwise the kernel places a woken process on the core of
 * its waker, and the two alternate on one core. */
static void stay(int process)
{
    cpu_set_t allowed, one;
    require(!sched_getaffinity(0, sizeof allowed, &allowed));
    int skip = process % CPU_COUNT(&allowed), core = 0;
    while (!CPU_ISSET(core, &allowed) || skip--)
        core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    require(!sched_setaffinity(0, sizeof one, &one));
}

/* Compute two sums, which must be right. */
static void read_twice(Sum *sum, const double *numbers, int64_t count, double value)
{
    for (int i = 0; i < SUMS; i++)
        require(sum(numbers, count) == sum(&value, 1) * (double)count);
}

int main(int argument_count, char **arguments)
{
    const int64_t count = argument_count > 1 ? atoll(arguments[1]) / (int64_t)sizeof(double) : 0;
    Sum *sum = argument_count > 2 && !strcmp(arguments[2], "one-by-one") ? total_one_by_one : total;
    int there[2], back[2];
    double value = 1;
    require(count > 0 && !pipe(there) && !pipe(back));
    double *numbers = mmap(NULL, (size_t)count * sizeof *numbers, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(numbers != MAP_FAILED);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = value;
    const pid_t other = fork();
    require(other >= 0);
    stay(!other);
    if (!other) {
        prctl(PR_SET_PDEATHSIG, 9);
        for (;;) { /* the first round is not measured: it touches the map */
            read_twice(sum, numbers, count, value);
            require(write(back[1], &value, sizeof value) == sizeof value);
            if (read(there[0], &value, sizeof value) != sizeof value)
                return 0;
        }
    }
    require(read(back[0], &value, sizeof value) == sizeof value);
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        const double start_s = now_s();
        value += 1;
        for (int64_t i = 0; i < count; i++)
            numbers[i] = value;
        require(write(there[1], &value, sizeof value) == sizeof value);
        read_twice(sum, numbers, count, value);
        require(read(back[0], &value, sizeof value) == sizeof value);
        printf("%.6f\n", now_s() - start_s);
        fflush(stdout);
    }
    return 0;
}
