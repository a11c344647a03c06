#include "ciel_table.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "descriptors are little-endian");

#define DEPTH_MAX 64           /* of nested types */
#define CHILDREN_MAX (1 << 16) /* of one type */
#define NOWHERE (-1)           /* the place of a buffer that does not exist */

static const char too_deep[] = "its types are nested too deeply";
static const char truncated[] = "its descriptor is incomplete";
static const char outside[] = "a buffer lies outside of the object";
static const char too_short[] = "a buffer is too short for its column";

/* --- the layouts of types --- */

enum kind {
    NOTHING,  /* no buffers: nulls, run-end encoded */
    BITS,     /* validity, bits */
    FIXED,    /* validity, values of a fixed size */
    BINARY,   /* validity, offsets, bytes */
    VIEWS,    /* validity, views, any number of byte buffers, their sizes */
    LIST,     /* validity, offsets; one child */
    LISTVIEW, /* validity, offsets, sizes; one child */
    STRUCT,   /* validity; children of the same length */
    FIXLIST,  /* validity; one child, `width` times as long */
    SPARSE,   /* type ids; children of the same length */
    DENSE,    /* type ids, offsets; children */
};

struct layout {
    enum kind kind;
    int64_t width; /* bytes of a value or an offset; the length of a fixed-size list */
};

/* Parse a positive number that ends at a NUL. */
static int64_t number_of(const char *text) {
    int64_t found = 0;
    if (!*text) {
        return -1;
    }
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || found > INT_MAX / 10) {
            return -1;
        }
        found = found * 10 + (*text - '0');
    }
    return found > INT_MAX ? -1 : found;
}

/* Return the bytes of a decimal: its format is d:precision,scale[,bits]. */
static int64_t decimal_bytes(const char *format) {
    const char *comma = strchr(format, ',');
    const char *bits = comma ? strchr(comma + 1, ',') : NULL;
    int64_t found = bits ? number_of(bits + 1) : 128;
    return comma && (found == 32 || found == 64 || found == 128 || found == 256) ? found / 8 : -1;
}

/* Return the bytes of a time, date, duration or interval; -1 if the format is none. */
static int64_t time_bytes(const char *format) {
    switch (format[1]) {
    case 'd':
        return strcmp(format, "tdD") == 0 ? 4 : strcmp(format, "tdm") == 0 ? 8 : -1;
    case 't':
        return strchr("sm", format[2]) ? 4 : 8;
    case 's':
    case 'D':
        return 8;
    case 'i':
        return format[2] == 'M' ? 4 : format[2] == 'D' ? 8 : format[2] == 'n' ? 16 : -1;
    default:
        return -1;
    }
}

/* Parse a nested format, which begins with '+'. */
static int nested_layout(const char *format, struct layout *found) {
    switch (format[1]) {
    case 'l':
    case 'm':
        *found = (struct layout){LIST, 4};
        return 1;
    case 'L':
        *found = (struct layout){LIST, 8};
        return 1;
    case 'v':
        *found = (struct layout){LISTVIEW, format[2] == 'L' ? 8 : 4};
        return format[2] == 'l' || format[2] == 'L';
    case 'w':
        *found = (struct layout){FIXLIST, format[2] == ':' ? number_of(format + 3) : -1};
        return found->width >= 0;
    case 's':
        *found = (struct layout){STRUCT, 0};
        return 1;
    case 'r':
        *found = (struct layout){NOTHING, 0};
        return 1;
    case 'u':
        *found = (struct layout){format[2] == 's' ? SPARSE : DENSE, 0};
        return format[2] == 's' || format[2] == 'd';
    default:
        return 0;
    }
}

/* Find the layout of a type; 0 if the format is unknown. */
static int layout_of(const char *format, struct layout *found) {
    static const struct {
        char format;
        char width;
    } fixed[] = {{'c', 1}, {'C', 1}, {'s', 2}, {'S', 2}, {'i', 4}, {'I', 4},
                 {'l', 8}, {'L', 8}, {'e', 2}, {'f', 4}, {'g', 8}};
    for (size_t n = 0; n < sizeof fixed / sizeof *fixed; n++) {
        if (format[0] == fixed[n].format && !format[1]) {
            *found = (struct layout){FIXED, fixed[n].width};
            return 1;
        }
    }
    switch (format[0]) {
    case 'n':
        *found = (struct layout){NOTHING, 0};
        return !format[1];
    case 'b':
        *found = (struct layout){BITS, 0};
        return !format[1];
    case 'z':
    case 'u':
        *found = (struct layout){BINARY, 4};
        return !format[1];
    case 'Z':
    case 'U':
        *found = (struct layout){BINARY, 8};
        return !format[1];
    case 'v':
        *found = (struct layout){VIEWS, 16};
        return format[1] == 'z' || format[1] == 'u';
    case 'w':
        *found = (struct layout){FIXED, format[1] == ':' ? number_of(format + 2) : -1};
        return found->width >= 0;
    case 'd':
        *found = (struct layout){FIXED, format[1] == ':' ? decimal_bytes(format + 2) : -1};
        return found->width >= 0;
    case 't':
        *found = (struct layout){FIXED, format[1] ? time_bytes(format) : -1};
        return found->width >= 0;
    case '+':
        return nested_layout(format, found);
    default:
        return 0;
    }
}

/* How many buffers a type has; a type with views has at least so many. */
static int64_t buffers_of(struct layout layout) {
    static const char counts[] = {[NOTHING] = 0, [BITS] = 2,   [FIXED] = 2,   [BINARY] = 3,
                                  [VIEWS] = 3,   [LIST] = 2,   [LISTVIEW] = 3, [STRUCT] = 1,
                                  [FIXLIST] = 1, [SPARSE] = 1, [DENSE] = 2};
    return counts[layout.kind];
}

static int has_validity(struct layout layout) {
    return layout.kind != NOTHING && layout.kind != SPARSE && layout.kind != DENSE;
}

/* The bytes that a buffer needs for `n` values; NOWHERE if its content decides that (see
 * `sized_by_content`). `n` is at most 2^58, and widths are below 2^31. */
static int64_t needed(struct layout layout, int64_t at, int64_t n) {
    if (at == 0 && has_validity(layout)) {
        return n / 8 + (n % 8 != 0);
    }
    switch (layout.kind) {
    case BITS:
        return n / 8 + (n % 8 != 0);
    case FIXED:
        return layout.width && n > INT64_MAX / layout.width ? INT64_MAX : n * layout.width;
    case VIEWS:
        return at == 1 ? n * 16 : NOWHERE;
    case BINARY:
        return at == 1 ? (n ? (n + 1) * layout.width : 0) : NOWHERE;
    case LIST:
        return n ? (n + 1) * layout.width : 0;
    case LISTVIEW:
        return n * layout.width;
    case SPARSE:
        return n;
    case DENSE:
        return at == 0 ? n : n * 4;
    default:
        return 0;
    }
}

/* Read the offset of value `n`. */
static int64_t offset_at(const void *offsets, int64_t width, int64_t n) {
    int32_t small;
    int64_t large;
    if (width == 4) {
        memcpy(&small, (const char *)offsets + n * 4, 4);
        return small;
    }
    memcpy(&large, (const char *)offsets + n * 8, 8);
    return large;
}

/* --- descriptors that are written --- */

static void put(struct ciel_description *to, const void *bytes, int64_t size_bytes) {
    if (size_bytes && to->size_bytes + size_bytes <= to->capacity_bytes) {
        memcpy(to->bytes + to->size_bytes, bytes, (size_t)size_bytes);
    }
    to->size_bytes += size_bytes;
}

static void put_u32(struct ciel_description *to, uint32_t value) { put(to, &value, 4); }

static void put_i64(struct ciel_description *to, int64_t value) { put(to, &value, 8); }

/* The size of metadata in the C data interface: pairs of texts, each with its length. */
static uint32_t metadata_bytes(const char *metadata) {
    int32_t pairs, length;
    if (!metadata) {
        return 0;
    }
    memcpy(&pairs, metadata, 4);
    uint32_t size = 4;
    for (int64_t n = 0; n < 2 * (int64_t)pairs; n++) {
        memcpy(&length, metadata + size, 4);
        size += 4 + (uint32_t)length;
    }
    return size;
}

static const char *put_schema(struct ciel_description *to, const struct ArrowSchema *schema,
                              int depth) {
    struct layout layout = {NOTHING, 0};
    if (depth > DEPTH_MAX) {
        return too_deep;
    }
    if (!layout_of(schema->format, &layout) || schema->n_children >= CHILDREN_MAX) {
        return "it has a column of a type that is not supported";
    }
    const char *name = schema->name ? schema->name : "";
    uint32_t format_bytes = (uint32_t)strlen(schema->format) + 1;
    uint32_t name_bytes = (uint32_t)strlen(name) + 1;
    uint32_t more_bytes = metadata_bytes(schema->metadata);
    put_i64(to, schema->flags);
    put_u32(to, format_bytes);
    put_u32(to, name_bytes);
    put_u32(to, more_bytes);
    put_u32(to, (uint32_t)schema->n_children << 1 | (schema->dictionary != NULL));
    put(to, schema->format, format_bytes);
    put(to, name, name_bytes);
    put(to, schema->metadata, more_bytes);
    const char *wrong = NULL;
    for (int64_t n = 0; n < schema->n_children && !wrong; n++) {
        wrong = put_schema(to, schema->children[n], depth + 1);
    }
    return wrong || !schema->dictionary ? wrong : put_schema(to, schema->dictionary, depth + 1);
}

const char *ciel_table_begin(struct ciel_description *to, int kind, double took_s,
                             const struct ArrowSchema *schema, uint32_t chunks) {
    put_u32(to, (uint32_t)kind);
    put(to, &took_s, 8);
    put_u32(to, chunks);
    int64_t entry = to->size_bytes;
    put_u32(to, 0);
    const char *wrong = put_schema(to, schema, 0);
    uint32_t schema_bytes = (uint32_t)(to->size_bytes - entry - 4);
    if (entry + 4 <= to->capacity_bytes) {
        memcpy(to->bytes + entry, &schema_bytes, 4);
    }
    return wrong;
}

/* How many bytes of a buffer precede value `start`, a multiple of 64. */
static int64_t bytes_before(struct layout layout, int64_t at, int64_t start) {
    if (at == 0 && has_validity(layout)) {
        return start / 8;
    }
    switch (layout.kind) {
    case BITS:
        return start / 8;
    case FIXED:
    case LIST:
    case LISTVIEW:
        return start * layout.width;
    case BINARY:
    case VIEWS:
        return at == 1 ? start * layout.width : 0;
    case SPARSE:
        return start;
    case DENSE:
        return at == 0 ? start : start * 4;
    default:
        return 0;
    }
}

/* The size of a buffer that its content decides, for an array that ends at value `end`. */
static int64_t sized_by_content(struct layout layout, const struct ArrowArray *array, int64_t at,
                                int64_t end) {
    if (layout.kind == BINARY) {
        return end ? offset_at(array->buffers[1], layout.width, end) : 0;
    }
    int64_t last = array->n_buffers - 1;
    if (at == last) {
        return (last - 2) * 8;
    }
    return offset_at(array->buffers[last], 8, at - 2);
}

static void put_buffer(struct ciel_description *to, const void *address, int64_t size_bytes,
                       ciel_place *place, void *context) {
    if (!address || !size_bytes) { /* an empty buffer lies anywhere */
        put_i64(to, address ? 0 : NOWHERE);
        put_i64(to, 0);
        return;
    }
    int64_t offset = place ? place(context, address, size_bytes) : NOWHERE;
    if (offset < 0 || offset % 8) {
        if (to->absent_count < to->absent_capacity) {
            to->absent[to->absent_count] =
                (struct ciel_absent){address, size_bytes, to->size_bytes};
        }
        to->absent_count++;
        offset = 0;
    } else {
        to->placed_count++;
    }
    put_i64(to, offset);
    put_i64(to, size_bytes);
}

/* Write an array without its first `skip` values. If the array is a slice, also leave out the values
 * before it, except up to 63: so bitmaps begin at whole bytes, and buffers stay aligned. */
static const char *put_array(struct ciel_description *to, const struct ArrowSchema *schema,
                             const struct ArrowArray *array, int64_t skip, ciel_place *place,
                             void *context) {
    struct layout layout = {NOTHING, 0};
    layout_of(schema->format, &layout);
    int64_t end = array->length + array->offset;
    int64_t offset = array->offset + skip;
    if (strcmp(schema->format, "+r") != 0) { /* an offset into runs is not one into their buffers */
        offset %= 64;
    }
    int64_t start = array->offset + skip - offset;
    int64_t least = buffers_of(layout);
    if (layout.kind == VIEWS ? array->n_buffers < least : array->n_buffers != least) {
        return "a column has another number of buffers than its type has";
    }
    put_i64(to, array->length - skip);
    put_i64(to, skip && array->null_count ? -1 : array->null_count);
    put_i64(to, offset);
    put_u32(to, (uint32_t)array->n_buffers);
    for (int64_t at = 0; at < array->n_buffers; at++) {
        const char *address = array->buffers[at];
        int64_t size_bytes = needed(layout, at, end - start);
        if (size_bytes == NOWHERE) {
            size_bytes = sized_by_content(layout, array, at, end);
        }
        if (address) {
            address += bytes_before(layout, at, start);
        }
        put_buffer(to, address, size_bytes, place, context);
    }
    int64_t below = layout.kind == STRUCT || layout.kind == SPARSE ? start : 0;
    below = layout.kind == FIXLIST ? start * layout.width : below;
    const char *wrong = NULL;
    for (int64_t n = 0; n < schema->n_children && !wrong; n++) {
        wrong = put_array(to, schema->children[n], array->children[n], below, place, context);
    }
    if (wrong || !schema->dictionary) {
        return wrong;
    }
    return put_array(to, schema->dictionary, array->dictionary, 0, place, context);
}

const char *ciel_table_add(struct ciel_description *to, const struct ArrowSchema *schema,
                           const struct ArrowArray *chunk, ciel_place *place, void *context) {
    return put_array(to, schema, chunk, 0, place, context);
}

/* --- descriptors that are read: nothing in them is trusted --- */

struct cursor {
    const uint8_t *at;
    const uint8_t *end;
};

/* A table that is read: the stream and each of its chunks are users. It ends with the last of them. */
struct table {
    atomic_long users;
    void (*let_go)(void *owner);
    void *owner;
    const uint8_t *content;
    int64_t content_bytes;
    uint8_t *descriptor;    /* a copy */
    struct cursor schema;   /* in it */
    struct cursor chunks;   /* in it: the rest */
    uint32_t chunks_left;
    char error[160];
};

static int take(struct cursor *from, void *to, int64_t size_bytes) {
    if (from->end - from->at < size_bytes) {
        return 0;
    }
    memcpy(to, from->at, (size_t)size_bytes);
    from->at += size_bytes;
    return 1;
}

/* One type in a schema. The texts lie in the descriptor. */
struct type {
    int64_t flags;
    const char *format;
    const char *name;
    const char *metadata; /* NULL if there is none */
    uint32_t format_bytes, name_bytes, metadata_bytes;
    uint32_t n_children;
    int has_dictionary;
};

/* Whether metadata has the size that its lengths say. */
static int is_metadata(const char *metadata, uint32_t size_bytes) {
    int32_t pairs, length;
    uint32_t at = 4;
    if (size_bytes < 4) {
        return size_bytes == 0;
    }
    memcpy(&pairs, metadata, 4);
    if (pairs < 0) {
        return 0;
    }
    for (int64_t n = 0; n < 2 * (int64_t)pairs; n++) {
        if (size_bytes - at < 4) {
            return 0;
        }
        memcpy(&length, metadata + at, 4);
        at += 4;
        if (length < 0 || size_bytes - at < (uint32_t)length) {
            return 0;
        }
        at += (uint32_t)length;
    }
    return at == size_bytes;
}

static const char *take_type(struct cursor *from, struct type *type) {
    uint32_t below = 0;
    memset(type, 0, sizeof *type);
    if (!take(from, &type->flags, 8) || !take(from, &type->format_bytes, 4) ||
        !take(from, &type->name_bytes, 4) || !take(from, &type->metadata_bytes, 4) ||
        !take(from, &below, 4)) {
        return truncated;
    }
    uint64_t texts = (uint64_t)type->format_bytes + type->name_bytes + type->metadata_bytes;
    if ((uint64_t)(from->end - from->at) < texts) {
        return truncated;
    }
    type->format = (const char *)from->at;
    type->name = type->format + type->format_bytes;
    type->metadata = type->metadata_bytes ? type->name + type->name_bytes : NULL;
    type->n_children = below >> 1;
    type->has_dictionary = below & 1;
    if (!type->format_bytes || type->format[type->format_bytes - 1] || !type->name_bytes ||
        type->name[type->name_bytes - 1] ||
        !is_metadata(type->name + type->name_bytes, type->metadata_bytes)) {
        return "a text in its schema is damaged";
    }
    from->at += texts;
    return type->n_children >= CHILDREN_MAX ? "a type in its schema has too many parts" : NULL;
}

/* Whether a type has the right number of children. */
static int fits(const struct type *type, struct layout layout) {
    uint32_t n = type->n_children;
    if (type->has_dictionary && layout.kind != FIXED) {
        return 0;
    }
    switch (layout.kind) {
    case LIST:
    case LISTVIEW:
    case FIXLIST:
        return n == 1;
    case STRUCT:
    case SPARSE:
    case DENSE:
        return 1;
    case NOTHING:
        return n == (type->format[0] == '+' ? 2 : 0);
    default:
        return n == 0;
    }
}

/* Memory that all structures of a tree share, and that ends with the last of them. */
struct block {
    atomic_long users;
    void (*let_go)(void *owner);
    void *owner;
};

static void leave(struct block *block) {
    if (atomic_fetch_sub(&block->users, 1) == 1) {
        if (block->let_go) {
            block->let_go(block->owner);
        }
        free(block);
    }
}

static void release_schema(struct ArrowSchema *schema) {
    for (int64_t n = 0; n < schema->n_children; n++) {
        if (schema->children[n]->release) {
            schema->children[n]->release(schema->children[n]);
        }
    }
    if (schema->dictionary && schema->dictionary->release) {
        schema->dictionary->release(schema->dictionary);
    }
    struct block *block = schema->private_data;
    schema->release = NULL;
    leave(block);
}

static void release_array(struct ArrowArray *array) {
    for (int64_t n = 0; n < array->n_children; n++) {
        if (array->children[n]->release) {
            array->children[n]->release(array->children[n]);
        }
    }
    if (array->dictionary && array->dictionary->release) {
        array->dictionary->release(array->dictionary);
    }
    struct block *block = array->private_data;
    array->release = NULL;
    leave(block);
}

/* Walk a schema: count its types, and check them. */
static const char *measure_schema(struct cursor *from, int depth, int64_t *types) {
    struct type type;
    struct layout layout = {NOTHING, 0};
    const char *wrong = depth > DEPTH_MAX ? too_deep : take_type(from, &type);
    if (wrong) {
        return wrong;
    }
    if (!layout_of(type.format, &layout) || !fits(&type, layout)) {
        return "its schema has a type that is not supported";
    }
    ++*types;
    int64_t below = (int64_t)type.n_children + type.has_dictionary;
    for (int64_t n = 0; n < below && !wrong; n++) {
        wrong = measure_schema(from, depth + 1, types);
    }
    return wrong;
}

/* Room for structures and their lists of children, in one block. */
struct room {
    struct block *block;
    char *structures;
    void **pointers;
};

/* Build a schema from bytes that `measure_schema` has checked. */
static struct ArrowSchema *build_schema(struct cursor *from, struct room *room,
                                        struct ArrowSchema *to) {
    struct type type;
    if (take_type(from, &type)) {
        return NULL; /* `measure_schema` has seen that this cannot be */
    }
    if (!to) {
        to = (struct ArrowSchema *)room->structures;
        room->structures += sizeof *to;
    }
    *to = (struct ArrowSchema){
        .format = type.format,
        .name = type.name,
        .metadata = type.metadata,
        .flags = type.flags,
        .n_children = type.n_children,
        .children = (struct ArrowSchema **)room->pointers,
        .release = release_schema,
        .private_data = room->block,
    };
    room->pointers += type.n_children;
    for (uint32_t n = 0; n < type.n_children; n++) {
        to->children[n] = build_schema(from, room, NULL);
    }
    if (type.has_dictionary) {
        to->dictionary = build_schema(from, room, NULL);
    }
    return to;
}

/* Allocate a block for `count` structures; the first one belongs to the caller. */
static int make_room(struct room *room, int64_t count, size_t size, size_t more_bytes) {
    size_t pointers = (size_t)count * sizeof(void *);
    char *memory = malloc(sizeof(struct block) + (size_t)count * size + pointers + more_bytes);
    if (!memory) {
        return 0;
    }
    room->block = (struct block *)memory;
    room->block->let_go = NULL;
    room->block->owner = NULL;
    atomic_init(&room->block->users, count);
    room->structures = memory + sizeof(struct block);
    room->pointers = (void **)(room->structures + (size_t)count * size);
    return 1;
}

/* Read what precedes the chunks, and check the schema. */
static const char *read_start(struct table *table, int64_t size_bytes) {
    uint32_t kind, schema_bytes;
    double took_s;
    int64_t types = 0;
    struct cursor from = {table->descriptor, table->descriptor + size_bytes};
    if (!take(&from, &kind, 4) || !take(&from, &took_s, 8) || !take(&from, &table->chunks_left, 4) ||
        !take(&from, &schema_bytes, 4) || from.end - from.at < (int64_t)schema_bytes) {
        return truncated;
    }
    if (kind != CIEL_IS_TABLE && kind != CIEL_IS_BATCH) {
        return "it is of a later version of ciel";
    }
    if (kind == CIEL_IS_BATCH && table->chunks_left != 1) {
        return "a record batch has one chunk";
    }
    table->schema = (struct cursor){from.at, from.at + schema_bytes};
    table->chunks = (struct cursor){table->schema.end, from.end};
    struct cursor schema = table->schema;
    const char *wrong = measure_schema(&schema, 0, &types);
    return !wrong && schema.at != schema.end ? "its schema has a part too many" : wrong;
}

static const char *read_schema(const struct table *table, struct ArrowSchema *schema) {
    int64_t types = 0;
    struct room room;
    struct cursor from = table->schema;
    size_t size_bytes = (size_t)(from.end - from.at);
    measure_schema(&from, 0, &types);
    if (!make_room(&room, types, sizeof *schema, size_bytes)) {
        return "there is no memory for its schema";
    }
    uint8_t *texts = (uint8_t *)(room.pointers + types);
    memcpy(texts, table->schema.at, size_bytes);
    from = (struct cursor){texts, texts + size_bytes};
    build_schema(&from, &room, schema);
    return NULL;
}

/* Walk a chunk: count its columns and buffers. The walk of the same types by `build_array` reads the
 * same bytes. */
static const char *measure_array(struct cursor *types, struct cursor *from, int64_t *arrays,
                                 int64_t *buffers) {
    struct type type;
    uint32_t count;
    const char *wrong = take_type(types, &type);
    if (wrong) {
        return wrong;
    }
    if (from->end - from->at < 24) {
        return truncated;
    }
    from->at += 24;
    if (!take(from, &count, 4) || (from->end - from->at) / 16 < (int64_t)count) {
        return truncated;
    }
    from->at += 16 * (int64_t)count;
    ++*arrays;
    *buffers += count;
    int64_t below = (int64_t)type.n_children + type.has_dictionary;
    for (int64_t n = 0; n < below && !wrong; n++) {
        wrong = measure_array(types, from, arrays, buffers);
    }
    return wrong;
}

/* Read the place of one buffer; it needs at least `need` bytes, or any number if that is NOWHERE. */
static const char *take_buffer(const struct table *table, struct cursor *from, int64_t need,
                               int may_miss, const void **buffer, int64_t *size_bytes) {
    int64_t offset = NOWHERE;
    take(from, &offset, 8); /* `measure_array` has seen that all of it is there */
    take(from, size_bytes, 8);
    if (offset == NOWHERE) {
        *buffer = NULL;
        if (*size_bytes) {
            return outside;
        }
        return may_miss || need <= 0 ? NULL : too_short;
    }
    if (offset < 0 || *size_bytes < 0 || offset > table->content_bytes ||
        *size_bytes > table->content_bytes - offset) {
        return outside;
    }
    if (offset % 8) {
        return "a buffer does not begin at a multiple of 8 bytes";
    }
    *buffer = table->content + offset;
    return need > *size_bytes ? too_short : NULL;
}

/* Check what the content of buffers says about the sizes of others. */
static const char *check_content(struct layout layout, const struct ArrowArray *array,
                                 const int64_t *sizes) {
    int64_t n = array->length + array->offset;
    if (layout.kind == VIEWS) {
        int64_t last = array->n_buffers - 1;
        if (sizes[last] < (last - 2) * 8) {
            return too_short;
        }
        for (int64_t at = 2; at < last; at++) {
            if (offset_at(array->buffers[last], 8, at - 2) != sizes[at]) {
                return too_short;
            }
        }
        return NULL;
    }
    if (!n || (layout.kind != BINARY && layout.kind != LIST)) {
        return NULL;
    }
    int64_t first = offset_at(array->buffers[1], layout.width, 0);
    int64_t end = offset_at(array->buffers[1], layout.width, n);
    int64_t room = layout.kind == BINARY ? sizes[2] : array->children[0]->length;
    return first < 0 || first > end || end > room ? "the offsets of a column are wrong" : NULL;
}

/* Check that the children are long enough. */
static const char *check_children(struct layout layout, const struct ArrowArray *array) {
    int64_t n = array->length + array->offset;
    if (layout.kind != STRUCT && layout.kind != SPARSE && layout.kind != FIXLIST) {
        return NULL;
    }
    int64_t times = layout.kind == FIXLIST ? layout.width : 1;
    for (int64_t child = 0; child < array->n_children; child++) {
        int64_t length = array->children[child]->length;
        if (times && n > length / times) {
            return "a nested column is too short";
        }
    }
    return NULL;
}

static const char *build_array(const struct table *table, struct cursor *types,
                               struct cursor *from, struct room *room, int64_t *sizes,
                               struct ArrowArray *to) {
    struct type type;
    struct layout layout = {NOTHING, 0};
    uint32_t count = 0;
    const char *wrong = take_type(types, &type);
    if (wrong) {
        return wrong;
    }
    layout_of(type.format, &layout);
    take(from, &to->length, 8);
    take(from, &to->null_count, 8);
    take(from, &to->offset, 8);
    take(from, &count, 4);
    to->n_buffers = count;
    to->n_children = type.n_children;
    to->buffers = (const void **)room->pointers;
    room->pointers += count;
    to->children = (struct ArrowArray **)room->pointers;
    room->pointers += type.n_children;
    to->dictionary = NULL;
    to->release = release_array;
    to->private_data = room->block;
    const int64_t rows_max = INT64_C(1) << 57; /* so that sizes in bytes fit into 64 bits */
    if (to->length < 0 || to->offset < 0 || to->length > rows_max || to->offset > rows_max ||
        to->null_count < -1 || to->null_count > to->length) {
        return "a column has an impossible length";
    }
    int64_t n = to->length + to->offset;
    int64_t least = buffers_of(layout);
    if (layout.kind == VIEWS ? count < least : count != least) {
        return "a column has another number of buffers than its type has";
    }
    for (int64_t at = 0; at < count && !wrong; at++) {
        int may_miss = at == 0 && has_validity(layout) && to->null_count <= 0;
        int64_t need = needed(layout, at, n);
        wrong = take_buffer(table, from, need, may_miss, &to->buffers[at], &sizes[at]);
    }
    for (uint32_t child = 0; child < type.n_children && !wrong; child++) {
        to->children[child] = (struct ArrowArray *)room->structures;
        room->structures += sizeof *to;
        wrong = build_array(table, types, from, room, sizes + count, to->children[child]);
    }
    wrong = wrong ? wrong : check_content(layout, to, sizes);
    wrong = wrong ? wrong : check_children(layout, to);
    if (wrong || !type.has_dictionary) {
        return wrong;
    }
    to->dictionary = (struct ArrowArray *)room->structures;
    room->structures += sizeof *to;
    return build_array(table, types, from, room, sizes + count, to->dictionary);
}

static void leave_table(void *owner) {
    struct table *table = owner;
    if (atomic_fetch_sub(&table->users, 1) == 1) {
        table->let_go(table->owner);
        free(table->descriptor);
        free(table);
    }
}

static const char *read_chunk(struct table *table, struct ArrowArray *chunk) {
    int64_t arrays = 0, buffers = 0;
    struct cursor types = table->schema;
    struct cursor from = table->chunks;
    const char *wrong = measure_array(&types, &from, &arrays, &buffers);
    if (wrong) {
        return wrong;
    }
    struct room room;
    size_t each_bytes = sizeof(void *) + sizeof(int64_t);
    if (!make_room(&room, arrays, sizeof *chunk, (size_t)buffers * each_bytes)) {
        return "there is no memory for a chunk";
    }
    int64_t *sizes = (int64_t *)(room.pointers + arrays + buffers);
    types = table->schema;
    from = table->chunks;
    wrong = build_array(table, &types, &from, &room, sizes, chunk);
    if (wrong) {
        free(room.block);
        return wrong;
    }
    atomic_fetch_add(&table->users, 1);
    room.block->let_go = leave_table;
    room.block->owner = table;
    table->chunks = from;
    table->chunks_left--;
    return NULL;
}

static int told(struct table *table, const char *wrong) {
    if (wrong) {
        snprintf(table->error, sizeof table->error, "the object is no valid table: %s", wrong);
    }
    return wrong ? EINVAL : 0;
}

static int get_schema(struct ArrowArrayStream *stream, struct ArrowSchema *out) {
    struct table *table = stream->private_data;
    return told(table, read_schema(table, out));
}

static int get_next(struct ArrowArrayStream *stream, struct ArrowArray *out) {
    struct table *table = stream->private_data;
    memset(out, 0, sizeof *out); /* a chunk that was released marks the end */
    const char *wrong = table->chunks_left ? read_chunk(table, out) : NULL;
    if (wrong) {
        memset(out, 0, sizeof *out);
    }
    return told(table, wrong);
}

static const char *get_last_error(struct ArrowArrayStream *stream) {
    struct table *table = stream->private_data;
    return table->error[0] ? table->error : NULL;
}

static void release_stream(struct ArrowArrayStream *stream) {
    stream->release = NULL;
    leave_table(stream->private_data);
}

/* Copy the descriptor, and read its start. */
static const char *open_table(struct table *table) {
    uint64_t start, size;
    if (table->content_bytes < CIEL_TABLE_HEADER_BYTES ||
        memcmp(table->content, CIEL_TABLE_MAGIC, 8) != 0) {
        return "it is no table of ciel";
    }
    memcpy(&start, table->content + 8, 8);
    memcpy(&size, table->content + 16, 8);
    uint64_t room = (uint64_t)table->content_bytes;
    if (start > room || size > room - start) {
        return "its descriptor lies outside of the object";
    }
    table->descriptor = malloc(size + 1);
    if (!table->descriptor) {
        return "there is no memory for its descriptor";
    }
    memcpy(table->descriptor, table->content + start, size);
    return read_start(table, (int64_t)size);
}

const char *ciel_table_stream(struct ArrowArrayStream *stream, const void *content,
                              int64_t content_bytes, void (*let_go)(void *owner), void *owner) {
    struct table *table = calloc(1, sizeof *table);
    if (!table) {
        return "there is no memory for a stream";
    }
    atomic_init(&table->users, 1);
    table->content = content;
    table->content_bytes = content_bytes;
    table->let_go = let_go;
    table->owner = owner;
    const char *wrong = open_table(table);
    if (wrong) {
        free(table->descriptor);
        free(table);
        return wrong;
    }
    *stream =
        (struct ArrowArrayStream){get_schema, get_next, get_last_error, release_stream, table};
    return NULL;
}
