/* timespin: keeps a core busy for some milliseconds, and prints their number.
 *
 *     timespin MS TASK
 *
 * TASK only makes the command lines of tasks differ, since equal tasks of a script run once. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
    double start_ms = now_ms();
    if (argc != 3)
        return 2;
    long spin_ms = strtol(argv[1], NULL, 10);
    while (now_ms() < start_ms + (double)spin_ms)
        continue;
    printf("%ld\n", spin_ms);
    return 0;
}
