/* ring_buffer.c: producers send items through a ring buffer with a mutex and condition variables,
 * all in the heap, to consumers that free the items. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PRODUCER_COUNT = 3,
    CONSUMER_COUNT = 2,
    ITEM_COUNT = 3000, /* of each producer */
    SLOT_COUNT = 48,
    DIGEST_WORDS = 64,
};

struct item {
    uint32_t producer, number;
    size_t length;
    uint8_t *bytes;
};

struct ring {
    pthread_mutex_t mutex;
    pthread_cond_t has_item, has_space;
    struct item **slots;
    size_t first, count;
    int open_producer_count;
    unsigned long long digest_sum;
    uint32_t (*digests)[DIGEST_WORDS]; /* one for each item; the consumer of an item writes it */
};

struct producer {
    struct ring *ring;
    uint32_t number;
};

static void *allocate(size_t count, size_t size_bytes)
{
    void *made = calloc(count, size_bytes);
    if (!made)
        exit(1);
    return made;
}

static void put(struct ring *ring, struct item *item)
{
    pthread_mutex_lock(&ring->mutex);
    while (ring->count == SLOT_COUNT)
        pthread_cond_wait(&ring->has_space, &ring->mutex);
    ring->slots[(ring->first + ring->count++) % SLOT_COUNT] = item;
    pthread_cond_signal(&ring->has_item);
    pthread_mutex_unlock(&ring->mutex);
}

/* Return the oldest item, or NULL when all producers have ended. */
static struct item *take(struct ring *ring)
{
    struct item *item = NULL;
    pthread_mutex_lock(&ring->mutex);
    while (!ring->count && ring->open_producer_count)
        pthread_cond_wait(&ring->has_item, &ring->mutex);
    if (ring->count) {
        item = ring->slots[ring->first];
        ring->first = (ring->first + 1) % SLOT_COUNT;
        ring->count--;
        pthread_cond_signal(&ring->has_space);
    }
    pthread_mutex_unlock(&ring->mutex);
    return item;
}

static void *produce(void *argument)
{
    struct producer *self = argument;
    uint32_t state = 77 + self->number;
    for (uint32_t i = 0; i < ITEM_COUNT; i++) {
        struct item *item = allocate(1, sizeof *item);
        state = state * 1664525 + 1013904223;
        *item = (struct item){self->number, i, 100 + (state >> 16) % 1500, NULL};
        item->bytes = allocate(item->length, 1);
        memset(item->bytes, (int)(state >> 24), item->length);
        item->bytes[state % item->length] ^= 1;
        put(self->ring, item);
    }
    pthread_mutex_lock(&self->ring->mutex);
    self->ring->open_producer_count--;
    pthread_cond_broadcast(&self->ring->has_item);
    pthread_mutex_unlock(&self->ring->mutex);
    free(self);
    return NULL;
}

static void *consume(void *argument)
{
    struct ring *ring = argument;
    unsigned long long *taken = allocate(1, sizeof *taken);
    for (struct item *item; (item = take(ring)); ++*taken) {
        uint32_t *digest = ring->digests[item->producer * ITEM_COUNT + item->number];
        for (size_t i = 0; i < item->length; i++)
            digest[i % DIGEST_WORDS] += item->bytes[i] * (uint32_t)(i + 1);
        uint64_t sum = 0;
        for (size_t i = 0; i < DIGEST_WORDS; i++)
            sum = sum * 31 + digest[i];
        free(item->bytes);
        free(item);
        pthread_mutex_lock(&ring->mutex);
        ring->digest_sum += sum;
        pthread_mutex_unlock(&ring->mutex);
    }
    return taken;
}

int main(void)
{
    struct ring *ring = allocate(1, sizeof *ring);
    if (pthread_mutex_init(&ring->mutex, NULL) || pthread_cond_init(&ring->has_item, NULL) ||
        pthread_cond_init(&ring->has_space, NULL))
        return 1;
    ring->slots = allocate(SLOT_COUNT, sizeof(struct item *));
    ring->digests = allocate(PRODUCER_COUNT * ITEM_COUNT, sizeof *ring->digests);
    ring->open_producer_count = PRODUCER_COUNT;

    pthread_t *threads = allocate(PRODUCER_COUNT + CONSUMER_COUNT, sizeof *threads);
    for (uint32_t i = 0; i < PRODUCER_COUNT; i++) {
        struct producer *producer = allocate(1, sizeof *producer);
        *producer = (struct producer){ring, i};
        if (pthread_create(&threads[i], NULL, produce, producer))
            return 1;
    }
    for (uint32_t i = 0; i < CONSUMER_COUNT; i++)
        if (pthread_create(&threads[PRODUCER_COUNT + i], NULL, consume, ring))
            return 1;
    unsigned long long taken_count = 0, sum = 0;
    for (uint32_t i = 0; i < PRODUCER_COUNT + CONSUMER_COUNT; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        taken_count += result ? *(unsigned long long *)result : 0;
        free(result);
    }
    for (size_t i = 0; i < PRODUCER_COUNT * ITEM_COUNT; i++)
        sum = sum * 31 + ring->digests[i][i % DIGEST_WORDS];
    printf("items: %llu, sum %016llx, digests %016llx\n", taken_count, ring->digest_sum, sum);
    pthread_cond_destroy(&ring->has_item);
    pthread_cond_destroy(&ring->has_space);
    pthread_mutex_destroy(&ring->mutex);
    void *all[] = {ring->digests, ring->slots, ring, threads};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    return 0;
}
