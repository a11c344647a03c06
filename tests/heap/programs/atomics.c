/* atomics.c: threads change the same heap memory by C11 atomic operations: counters, maxima, a
 * stack without locks, a spin lock, and data that fences publish. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    THREAD_COUNT = 4,
    COUNTER_COUNT = 1 << 17,
    NODE_COUNT = 150000,
    STEP_COUNT = 30000,
    MESSAGE_COUNT = 2000,
};

struct node {
    uint32_t next; /* the number of another node plus one; 0 ends the stack */
    uint32_t value;
};

struct shared {
    _Atomic uint32_t *counters;
    _Atomic uint64_t *maxima;
    struct node *nodes;
    atomic_ullong stack_top; /* a node's number plus one; the upper half counts changes */
    atomic_flag lock;
    unsigned long long locked_sum, locked_count;
    uint64_t *messages;
    atomic_size_t published_count;
    _Atomic uint8_t small;
    _Atomic int16_t signed_small;
    atomic_int started_count;
};

struct worker {
    pthread_t thread;
    struct shared *shared;
    uint32_t number;
    unsigned long long message_sum;
};

static void *allocate(size_t count, size_t size_bytes)
{
    void *made = calloc(count, size_bytes);
    if (!made)
        exit(1);
    return made;
}

static void count(struct shared *shared, uint64_t seed)
{
    for (uint64_t i = 0; i < STEP_COUNT; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t place = (uint32_t)(seed >> 40) % COUNTER_COUNT;
        atomic_fetch_add_explicit(&shared->counters[place], 1 + seed % 3, memory_order_relaxed);
        atomic_fetch_xor(&shared->small, (uint8_t)(seed >> 32));
        atomic_fetch_sub(&shared->signed_small, (int16_t)(seed >> 20 & 7));
        _Atomic uint64_t *maximum = &shared->maxima[place % (COUNTER_COUNT / 2)];
        uint64_t before = atomic_load(maximum);
        while (before < seed && !atomic_compare_exchange_weak(maximum, &before, seed))
            continue;
    }
}

static void push(struct shared *shared, uint32_t number)
{
    unsigned long long top = atomic_load(&shared->stack_top), next;
    do {
        shared->nodes[number].next = (uint32_t)top;
        next = ((top >> 32) + 1) << 32 | (number + 1);
    } while (!atomic_compare_exchange_weak(&shared->stack_top, &top, next));
}

static void lock_and_add(struct shared *shared, uint64_t value)
{
    while (atomic_flag_test_and_set_explicit(&shared->lock, memory_order_acquire))
        sched_yield();
    shared->locked_sum += value;
    shared->locked_count++;
    atomic_flag_clear_explicit(&shared->lock, memory_order_release);
}

/* Thread 0 publishes messages in order; the others read each after its number is published. */
static unsigned long long exchange_messages(struct shared *shared, int is_sender)
{
    unsigned long long sum = 0;
    for (size_t i = 0; i < MESSAGE_COUNT; i++) {
        if (is_sender) {
            shared->messages[i] = (i + 1) * 2654435761u;
            atomic_thread_fence(memory_order_release);
            atomic_store_explicit(&shared->published_count, i + 1, memory_order_relaxed);
        } else {
            while (atomic_load_explicit(&shared->published_count, memory_order_relaxed) <= i)
                sched_yield();
            atomic_thread_fence(memory_order_acquire);
        }
        sum = sum * 31 + shared->messages[i];
    }
    return sum;
}

static void *work(void *argument)
{
    struct worker *self = argument;
    struct shared *shared = self->shared;
    atomic_fetch_add(&shared->started_count, 1);
    while (atomic_load(&shared->started_count) < THREAD_COUNT)
        sched_yield();
    count(shared, self->number + 1);
    for (uint32_t number = self->number; number < NODE_COUNT; number += THREAD_COUNT) {
        shared->nodes[number].value = number * 3;
        push(shared, number);
        if (number % 10 == 0)
            lock_and_add(shared, number);
    }
    self->message_sum = exchange_messages(shared, self->number == 0);
    return NULL;
}

int main(void)
{
    struct shared *shared = allocate(1, sizeof *shared);
    shared->counters = allocate(COUNTER_COUNT, sizeof *shared->counters);
    shared->maxima = allocate(COUNTER_COUNT / 2, sizeof *shared->maxima);
    shared->nodes = allocate(NODE_COUNT, sizeof *shared->nodes);
    shared->messages = allocate(MESSAGE_COUNT, sizeof *shared->messages);
    atomic_flag_clear(&shared->lock);
    struct worker *workers = allocate(THREAD_COUNT, sizeof *workers);
    for (uint32_t i = 0; i < THREAD_COUNT; i++) {
        workers[i] = (struct worker){.shared = shared, .number = i};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
            return 1;
    }
    for (uint32_t i = 0; i < THREAD_COUNT; i++)
        pthread_join(workers[i].thread, NULL);

    unsigned long long counted = 0, highest = 0, values = 0, length = 0;
    for (size_t i = 0; i < COUNTER_COUNT; i++)
        counted = counted * 31 + shared->counters[i];
    for (size_t i = 0; i < COUNTER_COUNT / 2; i++)
        highest = highest * 31 + shared->maxima[i];
    for (uint32_t at = (uint32_t)shared->stack_top; at; at = shared->nodes[at - 1].next, length++)
        values += shared->nodes[at - 1].value;
    printf("counters %016llx, maxima %016llx, bytes %d %d\n", counted, highest, shared->small,
           shared->signed_small);
    printf("stack: %llu nodes, sum %llu, %llu changes\n", length, values, shared->stack_top >> 32);
    printf("locked: %llu, sum %llu\n", shared->locked_count, shared->locked_sum);
    for (uint32_t i = 0; i < THREAD_COUNT; i++)
        printf("messages: %016llx\n", workers[i].message_sum);
    void *all[] = {shared->counters, shared->maxima, shared->nodes,
                   shared->messages, shared,         workers};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    return 0;
}
