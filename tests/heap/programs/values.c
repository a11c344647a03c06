/* values.c: passes structs by value, uses bit-fields, unions and packed structs, and copies, moves
 * and sets heap memory at unaligned and overlapping places. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RECORD_COUNT = 50000,
    BUFFER_BYTES = 1 << 20,
    MOVE_COUNT = 600,
};

struct flags {
    unsigned is_open : 1, colour : 5, level : 10;
    signed offset : 7;
    uint64_t serial : 41;
};

union word {
    uint32_t whole;
    uint16_t halves[2];
    unsigned char bytes[4];
    float real;
};

struct record {
    struct flags flags;
    union word word;
    struct { double x, y; } points[2];
};

struct __attribute__((packed)) frame {
    uint8_t kind;
    uint32_t length;
    uint64_t position;
    uint16_t check;
};

struct pair {
    unsigned long long first, second;
};

static uint64_t state = 7;

static uint32_t draw(uint32_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16) % limit;
}

static struct record make_record(uint32_t number)
{
    struct record made = {.flags = {number & 1, (number / 3) & 31, number % 1000, -5, number}};
    made.flags.offset += (int)(number % 100) - 50;
    made.flags.serial = made.flags.serial * 40503 & ((UINT64_C(1) << 41) - 1);
    made.word.real = (float)number / 4;
    made.points[number % 2].x = number * 0.5;
    made.points[1 - number % 2].y = -1.25 * number;
    return made;
}

/* Return the larger record by value, with the sum of both offsets. */
static __attribute__((noinline)) struct record join(struct record a, struct record b)
{
    struct record joined = a.flags.serial < b.flags.serial ? b : a;
    joined.flags.offset = (a.flags.offset + b.flags.offset) / 2;
    joined.flags.level ^= a.flags.level & b.flags.colour;
    joined.word.halves[1] = (uint16_t)(joined.word.halves[1] ^ b.word.halves[0]);
    joined.points[0] = b.points[1];
    return joined;
}

static __attribute__((noinline)) struct pair mix(struct pair p, unsigned char byte)
{
    return (struct pair){p.first * 31 + byte, p.second ^ (p.first + byte) * 1099511628211u};
}

static void records(void)
{
    struct record *all = calloc(RECORD_COUNT, sizeof *all);
    if (!all)
        exit(1);
    for (uint32_t i = 0; i < RECORD_COUNT; i++)
        all[i] = make_record(i * 7919 % RECORD_COUNT);
    for (size_t i = 1; i < RECORD_COUNT; i++)
        all[i - 1] = join(all[i], i % 3 ? all[i - 1] : all[RECORD_COUNT - i]);
    unsigned long long sum = 0, bytes = 0;
    double points = 0;
    for (size_t i = 0; i < RECORD_COUNT; i++) {
        const struct flags *flags = &all[i].flags;
        sum = sum * 31 + flags->is_open + flags->colour * 2 + flags->level * 64 + flags->serial;
        sum += (uint64_t)flags->offset;
        bytes = bytes * 31 + all[i].word.bytes[i % 4] + all[i].word.whole;
        points += all[i].points[0].x + all[i].points[1].y;
    }
    printf("records: sum %016llx, words %016llx, points %.2f\n", sum, bytes, points);
    free(all);
}

/* Write packed frames at odd places, and read them back field by field. */
static void frames(unsigned char *buffer)
{
    size_t end = 0, count = 0;
    for (; end + sizeof(struct frame) + 64 < BUFFER_BYTES / 8; count++) {
        struct frame frame = {(uint8_t)count, draw(50), end * 1000003, 0};
        frame.check = (uint16_t)(frame.length * 7 + frame.kind);
        memcpy(buffer + end, &frame, sizeof frame);
        memset(buffer + end + sizeof frame, (int)count & 255, frame.length);
        end += sizeof frame + frame.length;
    }
    size_t wrong = 0;
    for (size_t at = 0; at < end; count--) {
        const struct frame *frame = (const struct frame *)(const void *)(buffer + at);
        uint64_t position = 0;
        memcpy(&position, buffer + at + offsetof(struct frame, position), sizeof position);
        wrong += frame->check != (uint16_t)(frame->length * 7 + frame->kind);
        wrong += position != frame->position || position != at * 1000003;
        at += sizeof *frame + frame->length;
    }
    printf("frames: %zu bytes, size %zu, %zu unread, %zu wrong\n", end, sizeof(struct frame), count,
           wrong);
}

static void moves(unsigned char *buffer)
{
    for (int i = 0; i < MOVE_COUNT; i++) {
        size_t length = draw(50000), from = draw(BUFFER_BYTES - 50000), shift = draw(3000);
        size_t to = from + shift + length > BUFFER_BYTES ? from - shift : from + shift;
        memmove(buffer + to, buffer + from, length);
        memcpy(buffer + (from < BUFFER_BYTES / 2 ? BUFFER_BYTES - 999 : 1), buffer + from, 333);
        memset(buffer + draw(BUFFER_BYTES - 100), i & 255, 1 + (size_t)i % 99);
    }
    struct pair sum = {1, 2};
    for (size_t i = 0; i < BUFFER_BYTES; i++)
        sum = mix(sum, buffer[i]);
    printf("moves: %016llx %016llx\n", sum.first, sum.second);
}

int main(void)
{
    records();
    unsigned char *buffer = calloc(1, BUFFER_BYTES);
    if (!buffer)
        return 1;
    frames(buffer);
    for (size_t i = 0; i < BUFFER_BYTES; i++)
        buffer[i] = (unsigned char)(draw(251) ^ i);
    moves(buffer);
    free(buffer);
    return 0;
}
