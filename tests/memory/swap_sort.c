/* swap_sort: sort records of 64 bytes in memory, and check the result.
 *
 *     swap_sort MEBIBYTES SEED
 *
 * The records have random keys. The program fails if a record is lost, changed or out of order. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

struct record {
    uint64_t key;
    uint64_t rest[7]; /* of the key: each word depends on it */
};

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void fill(struct record *record, uint64_t key)
{
    record->key = key;
    for (int word = 0; word < 7; word++)
        record->rest[word] = key * (uint64_t)(2 * word + 3);
}

static int is_right(const struct record *record)
{
    struct record expected;
    fill(&expected, record->key);
    for (int word = 0; word < 7; word++)
        if (record->rest[word] != expected.rest[word])
            return 0;
    return 1;
}

/* Quicksort, which passes over the memory in both directions. */
static void sort(struct record *first, struct record *end)
{
    while (end - first > 1) {
        uint64_t pivot = first[(end - first) / 2].key;
        struct record *low = first, *high = end - 1;
        while (low <= high) {
            while (low->key < pivot)
                low++;
            while (high->key > pivot)
                high--;
            if (low <= high) {
                struct record moved = *low;
                *low++ = *high;
                *high-- = moved;
            }
        }
        if (high + 1 - first < end - low) {
            sort(first, high + 1);
            first = low;
        } else {
            sort(low, end);
            end = high + 1;
        }
    }
}

int main(int count, char **words)
{
    if (count != 3) {
        fputs("usage: swap_sort MEBIBYTES SEED\n", stderr);
        return 2;
    }
    size_t bytes = strtoul(words[1], NULL, 10) << 20, records = bytes / sizeof(struct record);
    uint64_t state = 0x9e3779b97f4a7c15u * (strtoul(words[2], NULL, 10) + 1), sum = 0;
    struct record *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("swap_sort");
        return 1;
    }
    for (size_t at = 0; at < records; at++) {
        fill(&memory[at], next(&state));
        sum += memory[at].key;
    }
    sort(memory, memory + records);
    for (size_t at = 0; at < records; at++) {
        if (!is_right(&memory[at]) || (at && memory[at - 1].key > memory[at].key)) {
            fprintf(stderr, "swap_sort: record %zu is wrong\n", at);
            return 1;
        }
        sum -= memory[at].key;
    }
    if (sum) {
        fputs("swap_sort: records are missing\n", stderr);
        return 1;
    }
    return 0;
}
