/* Copies, page by page, so that each page is announced and none has to stay. */
#include "ciel_heap.h"
#include "runtime.h"

#include <string.h>

#define GRANULE_BYTES (1ULL << GRANULE_SHIFT)

/* Return how many bytes from an address on lie in its granule, at most `most`. */
static size_t ahead(const void *address, size_t most)
{
    size_t here = GRANULE_BYTES - ((uint64_t)address & (GRANULE_BYTES - 1));
    return here < most ? here : most;
}

/* The same for the bytes before an address. */
static size_t behind(const void *address, size_t most)
{
    size_t here = ((uint64_t)address - 1) % GRANULE_BYTES + 1;
    return here < most ? here : most;
}

/* Copy from the first byte to the last. The target may overlap the source only if it lies before. */
static void copy_upwards(char *target, const char *source, size_t size_bytes)
{
    while (size_bytes) {
        size_t part = ahead(target, ahead(source, size_bytes));
        touch_read(source);
        touch_write(target);
        memmove(target, source, part);
        target += part;
        source += part;
        size_bytes -= part;
    }
}

void *ciel_heap_memcpy(void *to, const void *from, size_t size_bytes)
{
    copy_upwards(to, from, size_bytes);
    return to;
}

void *ciel_heap_memmove(void *to, const void *from, size_t size_bytes)
{
    if ((uint64_t)to - (uint64_t)from >= size_bytes) { /* a part never overwrites a later one */
        copy_upwards(to, from, size_bytes);
        return to;
    }
    while (size_bytes) {
        char *target = (char *)to + size_bytes;
        const char *source = (const char *)from + size_bytes;
        size_t part = behind(target, behind(source, size_bytes));
        touch_read(source - part);
        touch_write(target - part);
        memmove(target - part, source - part, part);
        size_bytes -= part;
    }
    return to;
}

void *ciel_heap_memset(void *to, int byte, size_t size_bytes)
{
    char *target = to;
    while (size_bytes) {
        size_t part = ahead(target, size_bytes);
        touch_write(target);
        memset(target, byte, part);
        target += part;
        size_bytes -= part;
    }
    return to;
}

void ciel_heap_get(const void *address, void *to, size_t size_bytes)
{
    ciel_heap_memcpy(to, address, size_bytes);
}

void ciel_heap_put(void *address, const void *from, size_t size_bytes)
{
    ciel_heap_memcpy(address, from, size_bytes);
}

uint64_t ciel_heap_add(uint64_t *address, uint64_t addend)
{
    touch_write(address);
    return __atomic_fetch_add(address, addend, __ATOMIC_SEQ_CST);
}
