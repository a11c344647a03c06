/* The programs of this benchmark share a clock, and a function that prints their memory. */
#ifndef REPORT_H
#define REPORT_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ciel_heap.h"

/* NULL in a program that plain clang compiled. */
extern __typeof__(ciel_heap_count) ciel_heap_count __attribute__((weak));

static inline double time_s(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline double now_s(void)
{
    return time_s(CLOCK_MONOTONIC);
}

/* A random number: xorshift. */
static inline uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Print the most memory that the process has had at once, and what moved between memory and store. */
static inline void report_memory(void)
{
    struct ciel_heap_counts counts;
    memset(&counts, 0, sizeof counts);
    if (ciel_heap_count)
        ciel_heap_count(&counts);
    printf("read_pages %llu\nwritten_pages %llu\nfaults %llu\n",
           (unsigned long long)counts.read_pages, (unsigned long long)counts.written_pages,
           (unsigned long long)counts.faults);
    FILE *status = fopen("/proc/self/status", "r");
    char line[200];
    unsigned long long peak_kib = 0;
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %llu kB", &peak_kib) == 1)
            printf("peak_kib %llu\n", peak_kib);
    if (status)
        fclose(status);
}

#endif
