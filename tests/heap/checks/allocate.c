/* Threads allocate, resize and free blocks at random, and check that no other block changes them. */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 300, STEPS = 20000 };

struct block {
    unsigned char *bytes;
    size_t size_bytes;
    unsigned char mark;
};

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void broken(const char *what)
{
    printf("broken: %s\n", what);
    exit(1);
}

static void check(const struct block *block)
{
    if (malloc_usable_size(block->bytes) < block->size_bytes)
        broken("a block is too small");
    for (size_t i = 0; i < block->size_bytes; i += 61)
        if (block->bytes[i] != block->mark)
            broken("a block was changed");
    if (block->size_bytes && block->bytes[block->size_bytes - 1] != block->mark)
        broken("the end of a block was changed");
}

static size_t some_size(uint64_t *state)
{
    uint64_t kind = next(state) % 100;
    if (kind < 70)
        return next(state) % 200;
    return kind < 97 ? next(state) % 5000 : next(state) % 300000;
}

static void renew(struct block *block, uint64_t *state)
{
    size_t size_bytes = some_size(state), alignment = 16;
    switch (next(state) % 4) {
    case 0:
        block->bytes = calloc(1, size_bytes);
        for (size_t i = 0; i < size_bytes; i++)
            if (block->bytes[i])
                broken("calloc gave old bytes");
        break;
    case 1:
        alignment = (size_t)64 << next(state) % 7;
        if (posix_memalign((void **)&block->bytes, alignment, size_bytes))
            broken("no memory");
        break;
    default:
        block->bytes = malloc(size_bytes);
    }
    if (!block->bytes || (uintptr_t)block->bytes % alignment)
        broken("no block, or not aligned");
    block->size_bytes = size_bytes;
    block->mark = (unsigned char)next(state);
    memset(block->bytes, block->mark, size_bytes);
}

static void resize(struct block *block, uint64_t *state)
{
    size_t size_bytes = some_size(state) + 1, before = block->size_bytes;
    block->bytes = realloc(block->bytes, size_bytes);
    if (!block->bytes)
        broken("no memory");
    block->size_bytes = size_bytes < before ? size_bytes : before;
    check(block);
    if (size_bytes > before)
        memset(block->bytes + before, block->mark, size_bytes - before);
    block->size_bytes = size_bytes;
}

static void *run(void *seed)
{
    uint64_t state = 88172645463325252ULL + (uintptr_t)seed;
    struct block *blocks = calloc(BLOCKS, sizeof *blocks);
    for (int step = 0; step < STEPS; step++) {
        struct block *block = &blocks[next(&state) % BLOCKS];
        if (!block->bytes) {
            renew(block, &state);
            continue;
        }
        check(block);
        if (next(&state) % 3 == 0) {
            resize(block, &state);
        } else {
            free(block->bytes);
            block->bytes = NULL;
        }
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i].bytes)
            check(&blocks[i]);
        free(blocks[i].bytes);
    }
    free(blocks);
    return NULL;
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 1;
    pthread_t threads[16];
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)i))
            broken("no thread");
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    puts("right");
    return 0;
}
