/* recursion.c: recurses deeply with memo tables in the heap and with local arrays, VLAs and alloca
 * in its frames, which longjmp leaves in the end. */
#include <alloca.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PARTS_MAX = 560,
    FRAME_BYTES = 3000,
    FRAME_DEPTH = 400,
    QUEENS = 8,
};

static void *allocate(size_t count, size_t size_bytes)
{
    void *made = calloc(count, size_bytes);
    if (!made)
        exit(1);
    return made;
}

/* Return the number of partitions of n into parts of at most k, modulo 2^64. */
static uint64_t partitions(uint64_t (*memo)[PARTS_MAX + 1], int n, int k)
{
    if (n == 0)
        return 1;
    if (n < 0 || k == 0)
        return 0;
    if (!memo[n][k])
        memo[n][k] = partitions(memo, n, k - 1) + partitions(memo, n - k, k);
    return memo[n][k];
}

/* Each frame changes its caller's array, and checks its own after the call. */
static uint32_t nest(unsigned char *caller_bytes, uint32_t depth)
{
    unsigned char bytes[FRAME_BYTES];
    for (uint32_t i = 0; i < FRAME_BYTES; i++)
        bytes[i] = (unsigned char)(i * 7 + depth);
    caller_bytes[depth * 37 % FRAME_BYTES] ^= 0x55;
    uint32_t below = depth ? nest(bytes, depth - 1) : 0, changed = 0, sum = 0;
    for (uint32_t i = 0; i < FRAME_BYTES; i++) {
        changed += bytes[i] != (unsigned char)(i * 7 + depth);
        sum += bytes[i] * (i % 16);
    }
    return below * 3 + sum + changed * 1000000;
}

/* Sort by merging through arrays whose sizes depend on the arguments. */
static void merge_sort(uint32_t *numbers, size_t count)
{
    if (count < 2)
        return;
    size_t half = count / 2, rest = count - half, a = 0, b = 0;
    uint32_t left[half], *right = alloca(rest * sizeof *right);
    memcpy(left, numbers, half * sizeof *left);
    memcpy(right, numbers + half, rest * sizeof *right);
    merge_sort(left, half);
    merge_sort(right, rest);
    for (size_t to = 0; to < count; to++)
        numbers[to] = b == rest || (a < half && left[a] <= right[b]) ? left[a++] : right[b++];
}

static uint32_t queens(const unsigned char *columns, int row)
{
    if (row == QUEENS)
        return 1;
    unsigned char mine[QUEENS] = {0};
    memcpy(mine, columns, (size_t)row);
    uint32_t found = 0;
    for (int column = 0; column < QUEENS; column++) {
        int is_free = 1;
        for (int above = 0; above < row; above++)
            is_free &= mine[above] != column && abs(mine[above] - column) != row - above;
        mine[row] = (unsigned char)column;
        if (is_free)
            found += queens(mine, row + 1);
    }
    return found;
}

struct search {
    jmp_buf found;
    const uint32_t *numbers;
    uint32_t wanted;
    long place;
};

/* Leave all frames of the search at once where a number is found. */
static void search(struct search *search_state, long from, long end)
{
    volatile uint32_t copies[64];
    for (long i = 0; i < 64; i++)
        copies[i] = search_state->numbers[from + i % (end - from)];
    if (end - from > 1) {
        search(search_state, from, from + (end - from) / 2);
        search(search_state, from + (end - from) / 2, end);
    } else if (copies[63] == search_state->wanted) {
        search_state->place = from;
        longjmp(search_state->found, 1);
    }
}

static void search_all(const uint32_t *numbers, long count)
{
    struct search *heap_state = allocate(1, sizeof *heap_state);
    volatile long sum = 0, misses = 0;
    for (volatile uint32_t wanted = 1; wanted < 1000; wanted += 40) {
        heap_state->numbers = numbers;
        heap_state->wanted = wanted;
        if (setjmp(heap_state->found) == 0) {
            search(heap_state, 0, count);
            misses = misses + 1;
        } else {
            sum = sum * 3 % 1000003 + heap_state->place;
        }
    }
    printf("longjmp: sum %ld, misses %ld\n", sum, misses);
    free(heap_state);
}

int main(void)
{
    uint64_t(*memo)[PARTS_MAX + 1] = allocate(PARTS_MAX + 1, sizeof *memo);
    unsigned long long parts = partitions(memo, PARTS_MAX, PARTS_MAX);
    printf("partitions of %d: %llu\n", PARTS_MAX, parts);

    unsigned char *outermost = allocate(FRAME_BYTES, 1);
    uint32_t frames = nest(outermost, FRAME_DEPTH);
    printf("frames: %u, changed %d\n", frames, outermost[FRAME_DEPTH * 37 % FRAME_BYTES]);

    size_t count = 20000;
    uint32_t *numbers = allocate(count, sizeof *numbers), sum = 0;
    for (size_t i = 0; i < count; i++)
        numbers[i] = (uint32_t)(i * 7919 % 10007) ^ 5;
    search_all(numbers, (long)count / 4);
    merge_sort(numbers, count);
    for (size_t i = 0; i < count; i++)
        sum = sum * 31 + numbers[i];
    printf("sorted: sum %08x, from %u to %u\n", sum, numbers[0], numbers[count - 1]);
    printf("queens: %u\n", queens(outermost, 0));
    free(numbers);
    free(outermost);
    free(memo);
    return 0;
}
