/* Under full translation, variables that would lie on a thread's stack lie in a stack of pages. */
#include <pthread.h>
#include <stddef.h>

#include "runtime.h"

#define STEP_BYTES (256ULL << 10)

static __thread char *next, *end; /* NULL: the thread has no stack yet */
static __thread char *announced;  /* the pager expects all before this */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char is_used[STACKS_MAX];
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void give_back(void *stack)
{
    char *start = stack;
    pager_discard(start, STACK_BYTES);
    next = end = NULL; /* another destructor of the thread may need a stack */
    pthread_mutex_lock(&lock);
    is_used[(start - (char *)STACKS) / (ptrdiff_t)STACK_BYTES] = 0;
    pthread_mutex_unlock(&lock);
}

static void make_key(void)
{
    if (pthread_key_create(&key, give_back))
        fail(STORE_FAILED, "no key for a thread's stack is left");
}

static void take_stack(void)
{
    pthread_once(&once, make_key);
    pthread_mutex_lock(&lock);
    unsigned i = 0;
    while (i < STACKS_MAX && is_used[i])
        i++;
    if (i == STACKS_MAX)
        fail(WRONG_SETTING, "--memory=full serves at most %d threads at a time", STACKS_MAX);
    is_used[i] = 1;
    pthread_mutex_unlock(&lock);
    next = (char *)STACKS + i * STACK_BYTES;
    end = next + STACK_BYTES;
    announced = next;
    pthread_setspecific(key, next);
}

void *ciel_heap_mark(void)
{
    if (!next)
        take_stack();
    return next;
}

void *ciel_heap_enter(uint64_t size_bytes, uint64_t alignment)
{
    if (!next)
        take_stack();
    char *frame = next + (-(uint64_t)next & (alignment - 1));
    if (size_bytes > (uint64_t)(end - frame))
        fail(139, "the stack of a thread is full: it has %llu MiB", STACK_BYTES >> 20);
    next = frame + ((size_bytes + 15) & ~15ULL);
    while (next > announced) { /* before the kernel gets to see it */
        pager_expect(announced, STEP_BYTES);
        announced += STEP_BYTES;
    }
    return frame;
}

void ciel_heap_leave(void *mark)
{
    next = mark;
}
