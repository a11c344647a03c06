/* The address space of a volume, over page_client.h: each call that runs has a session. */
#include "ciel_memory.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "page_client.h"

/* What `ciel memory run` sets: the socket of the companion, the volume's number and extents, its
 * replicas, the time limit of a call in seconds, the pages of its cache, and the name of its codec,
 * which may be empty. */
static const char VARIABLE[] = "CIEL_MEMORY";

struct idle {
    struct page_session *session;
    struct idle *next;
};

struct ciel_memory {
    struct page_volume *volume;
    uint64_t size_bytes;
    unsigned replicas;
    pthread_mutex_t lock;
    struct idle *idle; /* sessions that no call uses */
};

static _Thread_local char why[WHY_BYTES];

struct ciel_memory *ciel_memory_open(void)
{
    const char *text = getenv(VARIABLE);
    int companion;
    uint64_t number;
    uint32_t extents;
    unsigned replicas;
    struct page_options options;
    char name[8] = "";
    if (!text || sscanf(text, "%d %" SCNu64 " %" SCNu32 " %u %lf %" SCNu32 " %7s", &companion,
                        &number, &extents, &replicas, &options.timeout_s, &options.cache_pages,
                        name) < 6) {
        errno = ENOENT;
        return NULL;
    }
    options.codec = page_codec(name);
    if (options.codec == CODEC_MISSING) {
        snprintf(why, sizeof why, "the volume needs the library of %s (Debian: lib%s1)", name,
                 strcmp(name, "lz4") == 0 ? "lz4-" : name);
        errno = ENOPKG;
        return NULL;
    }
    struct ciel_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return NULL;
    memory->volume = page_volume_open(companion, number, extents, options);
    if (!memory->volume) {
        free(memory);
        errno = ENOMEM;
        return NULL;
    }
    unsetenv(VARIABLE); /* the socket belongs to the volume now */
    memory->size_bytes = (uint64_t)extents * EXTENT_PAGES * PAGE_BYTES;
    memory->replicas = replicas;
    pthread_mutex_init(&memory->lock, NULL);
    return memory;
}

void ciel_memory_close(struct ciel_memory *memory)
{
    while (memory->idle) {
        struct idle *first = memory->idle;
        memory->idle = first->next;
        page_session_close(first->session);
        free(first);
    }
    page_volume_close(memory->volume);
    pthread_mutex_destroy(&memory->lock);
    free(memory);
}

uint64_t ciel_memory_size_bytes(const struct ciel_memory *memory)
{
    return memory->size_bytes;
}

unsigned ciel_memory_replicas(const struct ciel_memory *memory)
{
    return memory->replicas;
}

const char *ciel_memory_why(void)
{
    return why;
}

/* Return a session for one call; NULL, with errno, if the bytes lie outside or memory lacks. */
static struct idle *take(struct ciel_memory *memory, uint64_t size_bytes, uint64_t address)
{
    if (size_bytes > memory->size_bytes || address > memory->size_bytes - size_bytes) {
        errno = EINVAL;
        return NULL;
    }
    pthread_mutex_lock(&memory->lock);
    struct idle *taken = memory->idle;
    if (taken)
        memory->idle = taken->next;
    pthread_mutex_unlock(&memory->lock);
    if (taken)
        return taken;
    taken = malloc(sizeof *taken);
    if (taken)
        taken->session = page_session_open(memory->volume);
    if (taken && taken->session)
        return taken;
    free(taken);
    errno = ENOMEM;
    return NULL;
}

/* End a call with the result of its session. */
static int ended(struct ciel_memory *memory, struct idle *used, int result)
{
    if (result) {
        snprintf(why, sizeof why, "%s", page_session_why(used->session));
        errno = EIO;
    }
    const int error = errno;
    pthread_mutex_lock(&memory->lock);
    used->next = memory->idle;
    memory->idle = used;
    pthread_mutex_unlock(&memory->lock);
    errno = error;
    return result ? -1 : 0;
}

int ciel_memory_read(struct ciel_memory *memory, void *bytes, uint64_t size_bytes,
                     uint64_t address)
{
    struct idle *used = take(memory, size_bytes, address);
    if (!used)
        return -1;
    return ended(memory, used, page_session_read(used->session, bytes, size_bytes, address));
}

int ciel_memory_write(struct ciel_memory *memory, const void *bytes, uint64_t size_bytes,
                      uint64_t address)
{
    struct idle *used = take(memory, size_bytes, address);
    if (!used)
        return -1;
    return ended(memory, used, page_session_write(used->session, bytes, size_bytes, address));
}

int ciel_memory_trim(struct ciel_memory *memory, uint64_t size_bytes, uint64_t address)
{
    struct idle *used = take(memory, size_bytes, address);
    if (!used)
        return -1;
    return ended(memory, used, page_session_trim(used->session, size_bytes, address));
}
