/* sparse_life.c: runs the game of life on few tiles of a huge zeroed array, and checks that all
 * other memory from calloc is zero, also memory that was freed dirty. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE_SIDE = 128,
    TILE_BYTES = TILE_SIDE * TILE_SIDE,
    TILES_SIDE = 64, /* 64 MiB in all; a tile is one page of the store */
    TILE_COUNT = TILES_SIDE * TILES_SIDE,
    GENERATIONS = 24,
    BOX_SIDE = 256, /* the part of the board that is computed */
};

struct board {
    unsigned char *cells, *next;
    unsigned char *is_touched; /* one byte for each tile */
};

static void *allocate(size_t count, size_t size_bytes)
{
    void *made = calloc(count, size_bytes);
    if (!made)
        exit(1);
    return made;
}

static size_t place(size_t x, size_t y)
{
    size_t tile = y / TILE_SIDE * TILES_SIDE + x / TILE_SIDE;
    return tile * TILE_BYTES + y % TILE_SIDE * TILE_SIDE + x % TILE_SIDE;
}

static void set(struct board *board, size_t x, size_t y)
{
    board->cells[place(x, y)] = 1;
    board->is_touched[place(x, y) / TILE_BYTES] = 1;
}

static void step(struct board *board, size_t left, size_t top)
{
    for (size_t y = top + 1; y < top + BOX_SIDE - 1; y++)
        for (size_t x = left + 1; x < left + BOX_SIDE - 1; x++) {
            int around = -board->cells[place(x, y)];
            for (size_t row = y - 1; row <= y + 1; row++)
                for (size_t column = x - 1; column <= x + 1; column++)
                    around += board->cells[place(column, row)];
            unsigned char lives = around == 3 || (around == 2 && board->cells[place(x, y)]);
            board->next[(y - top) * BOX_SIDE + x - left] = lives;
        }
    for (size_t y = 0; y < BOX_SIDE; y++)
        for (size_t x = 0; x < BOX_SIDE; x++)
            if (board->next[y * BOX_SIDE + x] != board->cells[place(left + x, top + y)]) {
                board->cells[place(left + x, top + y)] ^= 1;
                board->is_touched[place(left + x, top + y) / TILE_BYTES] = 1;
            }
}

/* Run a pattern in a box whose middle is the corner of four tiles. */
static void live(struct board *board, size_t left, size_t top, uint64_t seed)
{
    for (size_t i = 0; i < 9000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t x = seed >> 40 & 127, y = seed >> 50 & 127;
        set(board, left + 64 + x, top + 64 + y);
    }
    memset(board->next, 0, BOX_SIDE * BOX_SIDE);
    for (int generation = 0; generation < GENERATIONS; generation++)
        step(board, left, top);
    uint64_t alive = 0, sum = 0;
    for (size_t y = 0; y < BOX_SIDE; y++)
        for (size_t x = 0; x < BOX_SIDE; x++) {
            alive += board->cells[place(left + x, top + y)];
            sum = sum * 3 + board->cells[place(left + x, top + y)];
        }
    printf("life at %zu, %zu: %llu alive, sum %016llx\n", left, top, (unsigned long long)alive,
           (unsigned long long)sum);
}

/* Free dirty blocks of many sizes, and count the bytes of new ones that are not zero. */
static uint64_t count_dirty(void)
{
    enum { BLOCKS = 600 };
    unsigned char *blocks[BLOCKS];
    uint64_t dirty = 0;
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < BLOCKS; i++) {
            size_t size = 24 + i * i % 5000 * (i % 50 ? 1 : 20);
            blocks[i] = allocate(size / 8, 8);
            for (size_t at = 0; at < size / 8 * 8; at++)
                dirty += blocks[i][at] != 0;
            memset(blocks[i], 0xA5, size / 8 * 8);
        }
        for (size_t i = 0; i < BLOCKS; i++)
            free(blocks[(i * 7 + (size_t)round) % BLOCKS]);
    }
    return dirty;
}

int main(void)
{
    struct board *board = allocate(1, sizeof *board);
    board->cells = allocate(TILE_COUNT, TILE_BYTES);
    board->next = allocate(BOX_SIDE, BOX_SIDE);
    board->is_touched = allocate(TILE_COUNT, 1);
    for (size_t i = 0; i < 5; i++)
        live(board, i * 1500 + 64, (7 - i) * 1000 + 64, i + 1);

    uint64_t touched = 0, dirty = 0;
    for (size_t tile = 0; tile < TILE_COUNT; tile++)
        if (board->is_touched[tile])
            touched++;
        else if (tile % 16 == 0) /* reading all tiles would bring 64 MiB into RAM */
            for (size_t i = 0; i < TILE_BYTES; i += 61)
                dirty += board->cells[tile * TILE_BYTES + i] != 0;
    printf("tiles: %llu touched, dirty bytes %llu\n", (unsigned long long)touched,
           (unsigned long long)dirty);
    printf("dirty bytes of new blocks: %llu\n", (unsigned long long)count_dirty());
    free(board->cells);
    free(board->next);
    free(board->is_touched);
    free(board);
    return 0;
}
