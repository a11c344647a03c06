/* shmdc_speed DIRECTORY NAME CALLS ROUNDS: measures how long libshmdc takes for a resident object.
 *
 * Each round prints the microseconds of open(2) and close(2), of shmdc_read and close, of
 * shmdc_load, and of a request to the daemon: shmdc_load of an object that is not there. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <shmdc.h>

enum { REQUEST_SHARE = 100 }; /* a request takes about that much longer */

static struct shmdc *store;
static struct shmdc_reply reply;
static const char *path, *name;

static void expect(int is_true, const char *what)
{
    if (!is_true) {
        fprintf(stderr, "shmdc_speed: %s failed: %s\n", what, reply.reason);
        exit(1);
    }
}

static void open_plainly(void)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    expect(fd >= 0, "open");
    close(fd);
}

static void open_by_library(void)
{
    int fd;

    expect(shmdc_read(store, name, 0, &fd, &reply) == 0, "shmdc_read");
    close(fd);
}

static void find_by_library(void)
{
    expect(shmdc_load(store, name, 0, &reply) == 0, "shmdc_load");
}

static void ask_daemon(void)
{
    int status = shmdc_load(store, "missing", SHMDC_HERE, &reply);

    expect(status == SHMDC_NOT_FOUND, "a request");
}

static double measured_us(void (*call)(void), int calls)
{
    struct timespec start, end;

    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < calls; i++)
        call();
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) /
           1e3 / calls;
}

int main(int argc, char **argv)
{
    static char first[sizeof reply.path];
    int calls, rounds;

    if (argc != 5)
        return 2;
    name = argv[2];
    calls = atoi(argv[3]);
    rounds = atoi(argv[4]);
    store = shmdc_open(argv[1], NULL);
    expect(store != NULL && shmdc_load(store, name, 0, &reply) == 0, "the first load");
    snprintf(first, sizeof first, "%s", reply.path);
    path = first;
    for (int i = 0; i < rounds; i++) {
        double plain_us = measured_us(open_plainly, calls);
        double read_us = measured_us(open_by_library, calls);
        double load_us = measured_us(find_by_library, calls);

        printf("%.4f %.4f %.4f %.4f\n", plain_us, read_us, load_us,
               measured_us(ask_daemon, calls / REQUEST_SHARE + 1));
    }
    shmdc_close(store);
    return 0;
}
