/* qsort_structs.c: sorts and searches structs with doubles by the library's qsort and bsearch,
 * whose comparison callbacks come from a table in the heap. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STAR_COUNT = 30000,
    SEARCH_COUNT = 10000,
    ORDER_COUNT = 3,
};

struct star {
    double x, y, brightness;
    uint32_t id;
    char name[20];
};

typedef int comparison(const void *, const void *);

struct order {
    const char *name;
    comparison *compare;
};

static uint64_t state = 2;

static uint32_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

static void *allocate(size_t count, size_t size_bytes)
{
    void *made = calloc(count, size_bytes);
    if (!made)
        exit(1);
    return made;
}

static int by_id(const void *a, const void *b)
{
    uint32_t left = ((const struct star *)a)->id, right = ((const struct star *)b)->id;
    return (left > right) - (left < right);
}

static int by_brightness(const void *a, const void *b)
{
    double left = ((const struct star *)a)->brightness;
    double right = ((const struct star *)b)->brightness;
    return left < right ? -1 : left > right ? 1 : by_id(a, b);
}

static int by_distance(const void *a, const void *b)
{
    const struct star *left = a, *right = b;
    double d = left->x * left->x + left->y * left->y - right->x * right->x - right->y * right->y;
    return d < 0 ? -1 : d > 0 ? 1 : by_id(a, b);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct star *)a)->name, ((const struct star *)b)->name);
}

static int pointers_by_name(const void *a, const void *b)
{
    return by_name(*(const struct star *const *)a, *(const struct star *const *)b);
}

static uint64_t ids_sum(const struct star *stars)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < STAR_COUNT; i++)
        sum = sum * 31 + stars[i].id;
    return sum;
}

static void fill(struct star *stars)
{
    for (uint32_t i = 0; i < STAR_COUNT; i++) {
        stars[i].x = draw() / 65536.0 - 32768.0;
        stars[i].y = draw() / 65536.0 - 32768.0;
        stars[i].brightness = sqrt(draw() % 5000);
        stars[i].id = i;
        snprintf(stars[i].name, sizeof stars[i].name, "S%08x-%u", draw(), i % 10);
    }
}

static size_t count_found(const struct star *stars)
{
    struct star *wanted = allocate(1, sizeof *wanted);
    size_t found = 0;
    for (size_t i = 0; i < SEARCH_COUNT; i++) {
        const struct star *model = &stars[draw() % STAR_COUNT];
        strcpy(wanted->name, model->name);
        wanted->name[1] = (char)(i % 4 ? wanted->name[1] : 'x');
        const struct star *hit = bsearch(wanted, stars, STAR_COUNT, sizeof *stars, by_name);
        found += hit && hit->id == model->id;
    }
    free(wanted);
    return found;
}

int main(void)
{
    struct star *stars = allocate(STAR_COUNT, sizeof *stars);
    struct order *orders = allocate(ORDER_COUNT, sizeof *orders);
    orders[0] = (struct order){"brightness", by_brightness};
    orders[1] = (struct order){"distance", by_distance};
    orders[2] = (struct order){"name", by_name};

    fill(stars);
    struct star **pointers = allocate(STAR_COUNT, sizeof *pointers);
    for (size_t i = 0; i < STAR_COUNT; i++)
        pointers[i] = &stars[i];
    qsort(pointers, STAR_COUNT, sizeof *pointers, pointers_by_name);
    uint64_t sum = 0;
    for (size_t i = 0; i < STAR_COUNT; i++)
        sum = sum * 31 + pointers[i]->id;
    printf("pointers by name: sum %016llx\n", (unsigned long long)sum);

    for (size_t i = 0; i < ORDER_COUNT; i++) {
        qsort(stars, STAR_COUNT, sizeof *stars, orders[i].compare);
        printf("by %s: sum %016llx, first %s, brightness %.6f\n", orders[i].name,
               (unsigned long long)ids_sum(stars), stars[0].name, stars[0].brightness);
    }
    printf("found %zu of %d\n", count_found(stars), SEARCH_COUNT);
    free(pointers);
    free(orders);
    free(stars);
    return 0;
}
