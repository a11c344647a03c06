/* sorts.c: sorts an array of ints by quicksort and linked lists by merge sort. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    INT_COUNT = 500000,
    NODE_COUNT = 30000,
    INSERTION_MAX = 12, /* shorter ranges are sorted by insertion */
};

struct node {
    struct node *next;
    uint32_t key, sequence;
    char payload[80];
};

static uint64_t state = 1;

static uint32_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

static void *allocate(size_t size_bytes)
{
    void *made = malloc(size_bytes);
    if (!made)
        exit(1);
    return made;
}

static void insertion_sort(int *from, int *end)
{
    for (int *here = from; here < end; here++) {
        int value = *here, *to = here;
        for (; to > from && to[-1] > value; to--)
            *to = to[-1];
        *to = value;
    }
}

static int median(int a, int b, int c)
{
    if (a > b)
        return median(b, a, c);
    return c < a ? a : c < b ? c : b;
}

static void quicksort(int *from, int *end)
{
    while (end - from > INSERTION_MAX) {
        int pivot = median(from[0], from[(end - from) / 2], end[-1]);
        int *low = from, *high = end - 1;
        while (low <= high) {
            while (*low < pivot)
                low++;
            while (*high > pivot)
                high--;
            if (low <= high) {
                int kept = *low;
                *low++ = *high;
                *high-- = kept;
            }
        }
        quicksort(from, high + 1);
        from = low;
    }
    insertion_sort(from, end);
}

static struct node *merge(struct node *a, struct node *b)
{
    struct node *first = NULL, **link = &first;
    while (a && b) {
        struct node **smaller = b->key < a->key ? &b : &a;
        *link = *smaller;
        link = &(*smaller)->next;
        *smaller = *link;
    }
    *link = a ? a : b;
    return first;
}

/* Sort the first count nodes, and set *rest to the node after them. */
static struct node *merge_sort(struct node *list, size_t count, struct node **rest)
{
    if (count == 1) {
        *rest = list->next;
        list->next = NULL;
        return list;
    }
    struct node *middle = NULL;
    struct node *left = merge_sort(list, count / 2, &middle);
    struct node *right = merge_sort(middle, count - count / 2, rest);
    return merge(left, right);
}

static void sort_ints(void)
{
    int *numbers = allocate(INT_COUNT * sizeof *numbers);
    for (size_t i = 0; i < INT_COUNT; i++)
        numbers[i] = (int)(draw() % 2000000) - 1000000;
    quicksort(numbers, numbers + INT_COUNT);
    uint64_t sum = 0, disorder = 0;
    for (size_t i = 0; i < INT_COUNT; i++) {
        disorder += i && numbers[i - 1] > numbers[i];
        sum = sum * 31 + (uint32_t)numbers[i];
    }
    printf("ints: disorder %llu, sum %016llx, from %d to %d\n", (unsigned long long)disorder,
           (unsigned long long)sum, numbers[0], numbers[INT_COUNT - 1]);
    free(numbers);
}

static void sort_nodes(void)
{
    struct node *list = NULL;
    for (uint32_t i = 0; i < NODE_COUNT; i++) {
        struct node *node = allocate(sizeof *node);
        *node = (struct node){list, draw() % 1000, i, {0}};
        snprintf(node->payload, sizeof node->payload, "node %u of key %u", i, node->key);
        list = node;
    }
    struct node *rest = NULL;
    list = merge_sort(list, NODE_COUNT, &rest);
    uint64_t sum = 0, disorder = 0;
    while (list) {
        struct node *next = list->next;
        disorder += next && (next->key < list->key ||
                             (next->key == list->key && next->sequence > list->sequence));
        for (const char *c = list->payload; *c; c++)
            sum = sum * 31 + (unsigned char)*c;
        free(list);
        list = next;
    }
    printf("nodes: disorder %llu, sum %016llx\n", (unsigned long long)disorder,
           (unsigned long long)sum);
}

int main(void)
{
    sort_ints();
    sort_nodes();
    return 0;
}
