/* Sorts random ints in place.
 *
 *     quicksort MIB    prints the seconds of filling, sorting and checking, and what memory it took */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "report.h"

enum { FEW = 16 };

static int middle_of(int a, int b, int c)
{
    if (a < b)
        return b < c ? b : a < c ? c : a;
    return a < c ? a : b < c ? c : b;
}

static void insert_each(int *first, int *end)
{
    for (int *at = first + 1; at < end; at++) {
        int value = *at, *to = at;
        for (; to > first && to[-1] > value; to--)
            *to = to[-1];
        *to = value;
    }
}

/* Sorts the smaller part first, so that the stack stays small. */
static void quicksort(int *first, int *end)
{
    while (end - first > FEW) {
        int pivot = middle_of(first[0], first[(end - first) / 2], end[-1]);
        int *low = first, *high = end - 1;
        while (low <= high) {
            while (*low < pivot)
                low++;
            while (*high > pivot)
                high--;
            if (low <= high) {
                int value = *low;
                *low++ = *high;
                *high-- = value;
            }
        }
        if (high + 1 - first < end - low) {
            quicksort(first, high + 1);
            first = low;
        } else {
            quicksort(low, end);
            end = high + 1;
        }
    }
    if (first < end)
        insert_each(first, end);
}

int main(int argc, char **argv)
{
    size_t count = (size_t)(atof(argc > 1 ? argv[1] : "100") * (1 << 20)) / sizeof(int);
    uint64_t state = 20261130;
    double begun_s = now_s();
    int *numbers = malloc(count * sizeof *numbers);
    if (!numbers)
        return 1;
    for (size_t i = 0; i < count; i++)
        numbers[i] = (int)(draw(&state) >> 32);
    double filled_s = now_s(), cpu_s = time_s(CLOCK_PROCESS_CPUTIME_ID);
    quicksort(numbers, numbers + count);
    double sorted_s = now_s();
    cpu_s = time_s(CLOCK_PROCESS_CPUTIME_ID) - cpu_s;
    size_t wrong = 0;
    for (size_t i = 1; i < count; i++)
        wrong += numbers[i - 1] > numbers[i];
    double checked_s = now_s();
    printf("fill_s %.6f\nsort_s %.6f\ncheck_s %.6f\ncpu_s %.6f\n", filled_s - begun_s,
           sorted_s - filled_s, checked_s - sorted_s, cpu_s);
    report_memory();
    return wrong != 0;
}
