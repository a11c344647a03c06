/* What a program may do beside using memory: one case for each argument. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ciel_heap.h"

enum { MANY = 4 << 20 };

static char *filled(void)
{
    char *bytes = malloc(MANY);
    for (int i = 0; i < MANY; i++)
        bytes[i] = (char)i;
    return bytes;
}

static sigjmp_buf back;

static void on_fault(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

/* The program's own handler gets its own faults, and only these. */
static int handler(void)
{
    char *bytes = filled();
    signal(SIGSEGV, on_fault);
    if (sigsetjmp(back, 1) == 0) {
        *(volatile char *)16 = 1;
        return 1;
    }
    return bytes[MANY - 1] != (char)(MANY - 1);
}

/* Blocked signals do not matter. */
static int masks(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    char *bytes = filled();
    return memchr(bytes, 'x', MANY) == NULL || bytes[MANY - 1] != (char)(MANY - 1);
}

static int child_reads_what_left(void)
{
    char *bytes = filled();
    int status;
    if (fork() == 0)
        _exit(bytes[0]);
    wait(&status);
    return WEXITSTATUS(status);
}

static int child_starts_program(void)
{
    char *text = strdup("echo started");
    int status;
    fflush(stdout);
    if (fork() == 0)
        execl("/bin/sh", "sh", "-c", text, (char *)NULL);
    wait(&status);
    free(text);
    return WEXITSTATUS(status);
}

static int deep(int depth)
{
    char variables[65536];
    memset(variables, depth, sizeof variables);
    return depth ? deep(depth - 1) + variables[depth % 100] : variables[7];
}

static int struct_of_kernel(void)
{
    struct stat *status = malloc(sizeof *status);
    char *path = strdup("/");
    char *bytes = filled(); /* the struct and the path leave memory */
    int result = stat(path, status) || !S_ISDIR(status->st_mode) || bytes[5] != 5;
    free(bytes);
    return result;
}

static long *shared;
static volatile long ticks;

static void on_tick(int number)
{
    (void)number;
    shared[++ticks * 4099 % (MANY / 8)] += 1; /* a page that may be in the store */
}

/* A handler may use the heap at any time. */
static int timers(void)
{
    struct itimerval often = {{0, 200}, {0, 200}};
    shared = calloc(MANY / 8, sizeof *shared);
    signal(SIGALRM, on_tick);
    setitimer(ITIMER_REAL, &often, NULL);
    char *bytes = filled();
    long sum = 0;
    for (int turn = 0; turn < 20; turn++)
        for (int i = 0; i < MANY; i += 512)
            sum += bytes[i];
    often.it_value.tv_usec = 0;
    setitimer(ITIMER_REAL, &often, NULL);
    long seen = 0;
    for (int i = 0; i < MANY / 8; i++)
        seen += shared[i];
    return seen != ticks || ticks == 0 || sum == 1;
}

static void *touches_forever(void *bytes)
{
    for (;;)
        for (int i = 0; i < MANY; i += 4096) {
            ((volatile char *)bytes)[i]++;
            pthread_testcancel();
        }
    return NULL;
}

/* A cancelled thread leaves the pages to others. */
static int cancels(void)
{
    char *bytes = filled();
    for (int turn = 0; turn < 50; turn++) {
        pthread_t thread;
        pthread_create(&thread, NULL, touches_forever, bytes);
        usleep(2000);
        pthread_cancel(thread);
        pthread_join(thread, NULL);
        bytes[turn * 8192] = 1;
    }
    return 0;
}

static void on_usr1(int number)
{
    (void)number;
}

static void *waits_for(void *lock)
{
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}

/* The kernel reads the word of a lock again after each signal. */
static int waits(void)
{
    struct sigaction restarts = {.sa_handler = on_usr1, .sa_flags = SA_RESTART};
    pthread_mutex_t *lock = malloc(sizeof *lock);
    pthread_t thread;
    sigaction(SIGUSR1, &restarts, NULL);
    pthread_mutex_init(lock, NULL);
    pthread_mutex_lock(lock);
    pthread_create(&thread, NULL, waits_for, lock);
    char *bytes = filled();
    for (int turn = 0; turn < 20; turn++) {
        usleep(2000);
        for (int i = 0; i < MANY; i += 4096)
            bytes[i]++;
        pthread_kill(thread, SIGUSR1);
    }
    pthread_mutex_unlock(lock);
    return pthread_join(thread, NULL);
}

/* The counts may be stored in a page that is absent. */
static int counts(void)
{
    struct ciel_heap_counts *found = malloc(sizeof *found);
    char *bytes = filled();
    ciel_heap_count(found);
    return found->resident_pages > found->limit_pages || found->used_bytes < MANY || bytes[5] != 5;
}

/* Freed neighbours become one block, and blocks that are too small do not hold up a search. */
static int frees(void)
{
    enum { COUNT = 100000 };
    char **blocks = malloc(COUNT * sizeof *blocks);
    for (int i = 0; i < COUNT; i++)
        blocks[i] = malloc(i % 2 ? 32 : 2080);
    for (int i = 0; i < COUNT; i += 2)
        free(blocks[i]);
    for (int i = 0; i < 1000; i++)
        blocks[2 * i] = malloc(2400);
    for (int i = 1; i < COUNT; i += 2)
        free(blocks[i]);
    return 0;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "handler"))
        return handler();
    if (!strcmp(name, "masks"))
        return masks();
    if (!strcmp(name, "timers"))
        return timers();
    if (!strcmp(name, "cancels"))
        return cancels();
    if (!strcmp(name, "waits"))
        return waits();
    if (!strcmp(name, "counts"))
        return counts();
    if (!strcmp(name, "frees"))
        return frees();
    if (!strcmp(name, "fork"))
        return child_reads_what_left();
    if (!strcmp(name, "exec"))
        return child_starts_program();
    if (!strcmp(name, "deep"))
        return deep(20) == 1;
    if (!strcmp(name, "stat"))
        return struct_of_kernel();
    if (!strcmp(name, "null"))
        return *(volatile int *)8;
    if (!strcmp(name, "freed")) {
        char *volatile block = malloc(100);
        free(block + 32);
        return 0;
    }
    return 99;
}
