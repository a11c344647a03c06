/* Tables of Apache Arrow in objects of ciel: their format, and how to read and describe them.
 *
 *     magic "ciel.ar1" | offset and size of the descriptor (8 bytes each) | buffers, descriptor
 *
 * The descriptor has the schema, and for each chunk of the table the lengths, null counts and places of
 * its buffers (docs/protocol/tables.md). A place is an offset in the object, never an address. All
 * numbers are little-endian.
 *
 * The Arrow C data and C stream interfaces define the structures. A function returns NULL if it
 * succeeds, else the reason as a text. The functions keep no state, and any thread may call them.
 */
#ifndef CIEL_TABLE_H
#define CIEL_TABLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
#endif

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};
#endif

#define CIEL_TABLE_MAGIC "ciel.ar1"
#define CIEL_TABLE_HEADER_BYTES 24
#define CIEL_TABLE_ALIGNMENT_BYTES 64 /* of the buffers that a writer places */

enum { CIEL_IS_TABLE = 0, CIEL_IS_BATCH = 1 }; /* what the maker had: a table, or one record batch */

/* A buffer that does not lie in the object yet. The writer copies it there, and stores its offset as
 * 8 bytes at `entry` in the descriptor. */
struct ciel_absent {
    const void *address;
    int64_t size_bytes;
    int64_t entry;
};

/* The descriptor that is being written, and the buffers that are not in the object. */
struct ciel_description {
    uint8_t *bytes;
    int64_t capacity_bytes;
    int64_t size_bytes; /* needed; if it is more than the capacity, the content is incomplete */
    struct ciel_absent *absent;
    int64_t absent_capacity;
    int64_t absent_count; /* the same holds here */
    int64_t placed_count; /* buffers that lie in the object already */
};

/* Returns the offset in the object of bytes in memory; -1 if they are not in it. */
typedef int64_t ciel_place(void *context, const void *address, int64_t size_bytes);

/* Begin a descriptor: its schema, and the number of chunks. `took_s`: how long the task has run. */
const char *ciel_table_begin(struct ciel_description *to, int kind, double took_s,
                             const struct ArrowSchema *schema, uint32_t chunks);

/* Add one chunk. `place` may be NULL: no buffer is in the object yet. */
const char *ciel_table_add(struct ciel_description *to, const struct ArrowSchema *schema,
                           const struct ArrowArray *chunk, ciel_place *place, void *context);

/* Make a stream of the chunks of a table in an object. Their buffers lie in the content, which must stay
 * where it is until `let_go(owner)` is called: after the release of the stream, of every chunk and of
 * everything moved out of chunks; never if this fails.
 *
 * The stream checks all lengths and places, and the first and last offsets of texts and lists, but not
 * each value in the buffers. It reads a copy of the descriptor: a process that maps the object writable
 * cannot change it after the checks. */
const char *ciel_table_stream(struct ArrowArrayStream *stream, const void *content,
                              int64_t content_bytes, void (*let_go)(void *owner), void *owner);

#ifdef __cplusplus
}
#endif

#endif
