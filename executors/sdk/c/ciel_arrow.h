/* Tables of Apache Arrow as inputs and outputs of tasks in C. See docs/programs.md of ciel.
 *
 *     cc -o task task.c ciel.c ciel_arrow.c ciel_table.c -ljansson
 *
 * The structures are those of Arrow's C data and C stream interfaces, which other libraries read and
 * make. The columns of an input lie in the memory of the store: they must not be written to.
 */
#ifndef CIEL_ARROW_H
#define CIEL_ARROW_H

#include "ciel.h"
#include "ciel_table.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ciel_arrow_output;

/* Open a complete object that is a table, and return 0: the chunks come in order. Return 1 if it is not
 * available yet (ciel_block_on_refs waits for it). -1: it cannot be read, or is not a table; a line on
 * standard error says why. */
int ciel_arrow_read(json_t *ref, struct ArrowArrayStream *stream);

/* Open an output for a table with this schema, of which the caller keeps the ownership until the
 * commit; NULL if it cannot be opened. */
struct ciel_arrow_output *ciel_arrow_begin(int index, const struct ArrowSchema *schema);

/* Return memory in the output for a buffer of a chunk, aligned to 128 bytes, with any content. It may be
 * written to until the commit, which frees it. NULL: the store has no space for it, or this process no
 * addresses. */
void *ciel_arrow_allocate(struct ciel_arrow_output *output, int64_t size_bytes);

/* Append a chunk. Buffers in memory of ciel_arrow_allocate stay there, and others are copied. -1: its
 * type is not supported, or a write has failed; a line on standard error says why. */
int ciel_arrow_append(struct ciel_arrow_output *output, const struct ArrowArray *chunk);

/* Publish the table, and free the output; return its reference. As ciel_close_output does, end the
 * program if it cannot be written completely. */
json_t *ciel_arrow_commit(struct ciel_arrow_output *output);

#ifdef __cplusplus
}
#endif

#endif
