/* For programs that `ciel-cc` compiles: what they may ask of the heap that lies in a store.
 *
 * No program needs this file. With it, a program can make its heap durable, and find it again.
 * See docs/heap.md of ciel. */
#ifndef CIEL_HEAP_H
#define CIEL_HEAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Make the heap of this moment durable, as a whole: after a crash, `ciel_heap_restore` finds it, or
 * the one of the last call that had ended. `root` is a block of the heap from which the program
 * finds the others. No other thread may use the heap meanwhile. 0, or -1: ENOTSUP, the store cannot
 * do it (`memory:`, or no store), or the program was compiled with --memory=full; EIO. */
int ciel_heap_sync(void *root);

/* Replace the heap, of which no block may be in use, by the one that was last made durable, at the
 * same addresses; return its root. NULL: ENOENT, there is none; EBUSY, a block is in use; ENOTSUP,
 * as above; EINVAL, it was made by another version or with other settings. */
void *ciel_heap_restore(void);

/* Read, write and add to memory of the heap, for code that `ciel-cc` has not compiled (KVM-1). It
 * may also use plain pointers, which takes longer when the memory is in the store. */
void ciel_heap_get(const void *address, void *to, size_t size_bytes);
void ciel_heap_put(void *address, const void *from, size_t size_bytes);
uint64_t ciel_heap_add(uint64_t *address, uint64_t addend); /* returns the value before */

struct ciel_heap_counts {
    uint64_t page_bytes;     /* what moves at a time */
    uint64_t limit_pages;    /* that may be in memory; 0: no limit */
    uint64_t resident_pages; /* that are in memory */
    uint64_t read_pages;     /* from the store so far */
    uint64_t written_pages;  /* to the store so far */
    uint64_t faults;         /* accesses that the compiler's checks did not announce */
    uint64_t used_bytes;     /* of blocks */
};

void ciel_heap_count(struct ciel_heap_counts *counts);

#ifdef __cplusplus
}
#endif
#endif
