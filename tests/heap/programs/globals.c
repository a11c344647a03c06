/* globals.c: uses large writable globals, static locals and volatile variables that point to the
 * heap and back, and a heap table of function pointers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SIEVE_END = 4000000,
    CELL_COUNT = 100000,
    TABLE_SIZE = 64,
    CALL_COUNT = 200000,
};

struct cell {
    struct cell *next, **owner; /* owner: the place that points to this cell */
    uint64_t value;
};

typedef uint64_t operation(uint64_t, uint64_t);

static uint64_t composite[SIEVE_END / 128 + 1]; /* one bit for each odd number */
static struct cell *heads[4096];
static char names[6][32] = {"zero", "one", "two", "three"};
static char joined[64];
static char *name_ends[6] = {names[0], names[1] + 1, names[2] + 2, &names[3][3]};
double initial[5] = {0.5, -1, 2.25, 1e6, 3};
uint32_t table[256][1024];
volatile uint32_t ticks = 3;
_Thread_local uint64_t local_count = 5;

static uint32_t draw(void)
{
    static uint64_t state = 9;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

static void sieve(void)
{
    uint32_t count = 1, last = 2;
    for (uint32_t odd = 3; odd < SIEVE_END; odd += 2) {
        if (composite[odd / 128] >> (odd / 2 % 64) & 1)
            continue;
        count++;
        last = odd;
        for (uint64_t multiple = (uint64_t)odd * odd; multiple < SIEVE_END; multiple += 2 * odd)
            composite[multiple / 128] |= UINT64_C(1) << (multiple / 2 % 64);
    }
    printf("primes: %u below %d, last %u\n", count, SIEVE_END, last);
}

static void link_cells(void)
{
    size_t head_count = sizeof heads / sizeof *heads;
    for (uint32_t i = 0; i < CELL_COUNT; i++) {
        struct cell **head = &heads[i % head_count];
        struct cell *cell = malloc(sizeof *cell);
        if (!cell)
            exit(1);
        *cell = (struct cell){*head, head, draw()};
        if (*head)
            (*head)->owner = &cell->next;
        *head = cell;
    }
    uint64_t sum = 0, wrong = 0;
    for (size_t i = 0; i < head_count; i++)
        for (struct cell *cell = heads[i], *next; cell; cell = next) {
            next = cell->next;
            wrong += *cell->owner != cell;
            if (cell->value % 2) { /* unlink it through the pointer to its place */
                *cell->owner = next;
                if (next)
                    next->owner = cell->owner;
                free(cell);
            }
        }
    for (size_t i = 0; i < head_count; i++)
        while (heads[i]) {
            struct cell *cell = heads[i];
            heads[i] = cell->next;
            sum = sum * 31 + cell->value;
            free(cell);
        }
    printf("cells: sum %016llx, wrong %llu\n", (unsigned long long)sum, (unsigned long long)wrong);
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a + b + ticks;
}

static uint64_t twist(uint64_t a, uint64_t b)
{
    static uint64_t calls, history[1024];
    history[calls++ % 1024] ^= a;
    return (a << 7 | a >> 57) ^ b ^ history[b % 1024];
}

static uint64_t look_up(uint64_t a, uint64_t b)
{
    local_count += b & 1;
    uint32_t *entry = &table[a % 256][b % 1024];
    *entry += (uint32_t)a;
    return a + *entry;
}

static uint64_t tick(uint64_t a, uint64_t b)
{
    ticks = ticks * 3 + (uint32_t)b;
    return a ^ ticks;
}

static void call_operations(void)
{
    static operation *const kinds[] = {add, twist, look_up, tick};
    operation **operations = malloc(TABLE_SIZE * sizeof *operations);
    if (!operations)
        exit(1);
    for (size_t i = 0; i < TABLE_SIZE; i++)
        operations[i] = kinds[draw() % 4];
    uint64_t value = 1;
    for (size_t i = 0; i < CALL_COUNT; i++)
        value = operations[value % TABLE_SIZE](value, i);
    printf("calls: %016llx, ticks %u, local %llu\n", (unsigned long long)value, ticks,
           (unsigned long long)local_count);
    free(operations);
}

int main(void)
{
    sieve();
    link_cells();
    call_operations();
    strcpy(joined, name_ends[3]);
    strcat(joined, name_ends[1]);
    memcpy(names[5], joined, sizeof names[5]);
    for (size_t i = 0; i < 5; i++)
        initial[i] = initial[i] * 2 + initial[(i + 4) % 5];
    printf("globals: %s %s %.3f %.3f\n", joined, names[5] + 1, initial[0], initial[4]);
    return 0;
}
