/* Three functions whose time the benchmark measures: one fills a matrix on the stack, one a matrix on
 * the heap, and a producer and a consumer, which are threads, hand numbers over one by one.
 *
 *     functions CALLS SWEEP_KIB
 *
 * Prints the mean of the calls of each, in us. Before each call, it reads SWEEP_KIB of other memory,
 * so that what the function uses has to come from the store. */
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "report.h"

enum { ROWS = 10, COLUMNS = 10, NUMBERS = 50, BETWEEN = 4096 };

/* Not static: the compiler would make variables of what these point to. */
char *heap_matrix, *other;
int *slot; /* where the producer puts a number */
static size_t other_bytes;
static sem_t is_empty, is_full;
static volatile int is_wrong;

__attribute__((noinline)) static void fill_stack(char (*matrix)[COLUMNS])
{
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            matrix[row][column] = (char)((row * COLUMNS + column) % 128);
}

__attribute__((noinline)) static void fill_heap(void)
{
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            heap_matrix[row * COLUMNS + column] = (char)((row * COLUMNS + column) % 128);
}

static void *produce(void *unused)
{
    (void)unused;
    for (int number = 1; number <= NUMBERS; number++) {
        sem_wait(&is_empty);
        *slot = number;
        sem_post(&is_full);
    }
    return NULL;
}

static void *consume(void *sum)
{
    for (int i = 0; i < NUMBERS; i++) {
        sem_wait(&is_full);
        *(int *)sum += *slot;
        sem_post(&is_empty);
    }
    return NULL;
}

__attribute__((noinline)) static void hand_over(void)
{
    pthread_t producer, consumer;
    int sum = 0;
    pthread_create(&producer, NULL, produce, NULL);
    pthread_create(&consumer, NULL, consume, &sum);
    pthread_join(producer, NULL);
    pthread_join(consumer, NULL);
    if (sum != NUMBERS * (NUMBERS + 1) / 2)
        is_wrong = 1;
}

/* Check a matrix through what the compiler does not see, so that it keeps the stores. */
__attribute__((noinline)) static void check(const char *matrix)
{
    for (int i = 0; i < ROWS * COLUMNS; i++)
        if (matrix[i] != (char)(i % 128))
            is_wrong = 1;
}

__attribute__((noinline)) static void call_stack(void)
{
    char matrix[ROWS][COLUMNS];
    fill_stack(matrix);
    __asm__ volatile("" : : "r"(matrix) : "memory");
}

__attribute__((noinline)) static void sweep(void)
{
    for (size_t at = 0; at < other_bytes; at += BETWEEN)
        other[at]++;
}

/* Return the mean time of calls in us, without the time of the sweeps between them. */
static double mean_us(void (*function)(void), int calls)
{
    double took_s = 0;
    function();
    if (!other_bytes) { /* the clock would take longer than the function */
        double begun_s = now_s();
        for (int call = 0; call < calls; call++)
            function();
        took_s = now_s() - begun_s;
    }
    for (int call = 0; other_bytes && call < calls; call++) {
        sweep();
        double begun_s = now_s();
        function();
        took_s += now_s() - begun_s;
    }
    return took_s / calls * 1e6;
}

int main(int argc, char **argv)
{
    int calls = argc > 1 ? atoi(argv[1]) : 100;
    other_bytes = (argc > 2 ? (size_t)atoi(argv[2]) : 0) << 10;
    other = calloc(other_bytes + 1, 1);
    heap_matrix = malloc(ROWS * COLUMNS);
    slot = malloc(sizeof *slot);
    if (!other || !heap_matrix || !slot)
        return 1;
    sem_init(&is_empty, 0, 1);
    sem_init(&is_full, 0, 0);
    printf("stack_us %.6f\n", mean_us(call_stack, calls));
    printf("heap_us %.6f\n", mean_us(fill_heap, calls));
    printf("threads_us %.6f\n", mean_us(hand_over, calls));
    char matrix[ROWS][COLUMNS];
    fill_stack(matrix);
    check(matrix[0]);
    check(heap_matrix);
    report_memory();
    return is_wrong;
}
