/* Memory of other machines for programs in C: the address space of a volume (KVB-1).
 *
 *     ciel memory run scratch ./program
 *
 * starts a program that may open the volume `scratch`:
 *
 *     struct ciel_memory *memory = ciel_memory_open();
 *     if (!memory) ...                     errno says why
 *     if (ciel_memory_write(memory, "hello", 5, 4096))
 *         fprintf(stderr, "%s\n", ciel_memory_why());
 *
 * A read returns the last write that had ended before it began, whichever program wrote it. A write
 * of whole pages of 4,096 bytes replaces each of them at once. A write of a part of a page reads the
 * rest of the page first: two such writes to one page must not run at once. Any thread may call.
 * Compile with ciel_memory.c, page_client.c, checksum.c and -pthread; `python -m ciel.memory`
 * prints their directory. */
#ifndef CIEL_MEMORY_H
#define CIEL_MEMORY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CIEL_MEMORY_PAGE_BYTES = 4096 };

struct ciel_memory;

/* Open the volume that `ciel memory run` names, once in a process. NULL: ENOENT, `ciel memory run`
 * has not started this program, or the volume is open already; ENOMEM. */
struct ciel_memory *ciel_memory_open(void);

/* Close it. No other call may be running. */
void ciel_memory_close(struct ciel_memory *memory);

uint64_t ciel_memory_size_bytes(const struct ciel_memory *memory);

/* How many servers keep each page. */
unsigned ciel_memory_replicas(const struct ciel_memory *memory);

/* Read or write bytes from an address on. 0, or -1: errno is EINVAL if they lie outside, ENOMEM, or
 * EIO if servers do not answer, or have lost the pages. */
int ciel_memory_read(struct ciel_memory *memory, void *bytes, uint64_t size_bytes,
                     uint64_t address);
int ciel_memory_write(struct ciel_memory *memory, const void *bytes, uint64_t size_bytes,
                      uint64_t address);

/* Let bytes be zeros, and free the pages that lie within them. Fails as a write does. */
int ciel_memory_trim(struct ciel_memory *memory, uint64_t size_bytes, uint64_t address);

/* Why the last call of this thread failed with EIO, which names the server. */
const char *ciel_memory_why(void);

#ifdef __cplusplus
}
#endif
#endif
