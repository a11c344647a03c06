#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "ciel_arrow.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ABSENT_MAX (1 << 16) /* buffers of one chunk */
#define LINE_BYTES 128       /* no two allocated buffers share one */
#define PAGE_BYTES 4096
#define REGION_BYTES (1 << 20) /* mapped at once, at least */

/* --- inputs --- */

struct mapping {
    void *content;
    size_t size_bytes;
};

/* Chunks may be released in any thread. */
static void unmap(void *owner) {
    struct mapping *mapping = owner;
    munmap(mapping->content, mapping->size_bytes);
    free(mapping);
}

static int refuse(json_t *ref, const char *why) {
    char *id = ciel_get_ref_id(ref);
    fprintf(stderr, "ciel: %s cannot be read as a table: %s\n", id ? id : "the object", why);
    free(id);
    return -1;
}

int ciel_arrow_read(json_t *ref, struct ArrowArrayStream *stream) {
    struct ciel_input *input = ciel_open_ref(ref);
    struct stat status;
    if (input == NULL) {
        return 1;
    }
    struct mapping *mapping = calloc(1, sizeof *mapping);
    void *content = MAP_FAILED;
    if (mapping != NULL && fstat(ciel_input_fd(input), &status) == 0 && status.st_size > 0) {
        mapping->size_bytes = (size_t)status.st_size;
        content = mmap(NULL, mapping->size_bytes, PROT_READ, MAP_SHARED, ciel_input_fd(input), 0);
    }
    ciel_close_ref(input);
    if (content == MAP_FAILED) {
        free(mapping);
        return refuse(ref, "it is empty, or there is no memory to map it");
    }
    mapping->content = content;
    const char *wrong =
        ciel_table_stream(stream, content, (int64_t)mapping->size_bytes, unmap, mapping);
    if (wrong) {
        unmap(mapping);
        return refuse(ref, wrong);
    }
    return 0;
}

/* --- outputs --- */

struct region { /* a part of the output's file that is mapped */
    struct region *next;
    uint8_t *address;
    int64_t start;
    int64_t size_bytes;
};

struct ciel_arrow_output {
    struct ciel_output *output;
    struct region *regions; /* the last one first */
    const struct ArrowSchema *schema;
    int64_t written_bytes;
    uint32_t chunks;
    uint8_t *arrays; /* their part of the descriptor */
    int64_t arrays_bytes;
};

static int complain(const char *why) {
    fprintf(stderr, "ciel: a chunk cannot be appended to a table: %s\n", why);
    return -1;
}

static int write_bytes(struct ciel_arrow_output *output, const void *bytes, int64_t size_bytes) {
    const char *at = bytes;
    while (size_bytes > 0) {
        int step = size_bytes > INT_MAX / 2 ? INT_MAX / 2 : (int)size_bytes;
        if (ciel_write_output(output->output, (char *)at, step) < step) {
            return 0;
        }
        at += step;
        output->written_bytes += step;
        size_bytes -= step;
    }
    return 1;
}

static int align(struct ciel_arrow_output *output) {
    static const char zeros[CIEL_TABLE_ALIGNMENT_BYTES];
    int64_t rest = output->written_bytes % CIEL_TABLE_ALIGNMENT_BYTES;
    return rest == 0 || write_bytes(output, zeros, CIEL_TABLE_ALIGNMENT_BYTES - rest);
}

struct ciel_arrow_output *ciel_arrow_begin(int index, const struct ArrowSchema *schema) {
    static const char header[CIEL_TABLE_HEADER_BYTES]; /* written by ciel_arrow_commit */
    struct ciel_arrow_output *output = calloc(1, sizeof *output);
    if (output == NULL) {
        return NULL;
    }
    output->output = ciel_open_output(index, 0, 0, 0);
    output->schema = schema;
    if (output->output == NULL) {
        free(output);
        return NULL;
    }
    write_bytes(output, header, sizeof header);
    return output;
}

/* Map a part of the file that contains these bytes. Its pages are allocated: without them, a full device
 * would end the program by SIGBUS. */
static struct region *map(struct ciel_arrow_output *output, int64_t start, int64_t size_bytes) {
    char name[40];
    struct region *region = malloc(sizeof *region);
    if (region == NULL) {
        return NULL;
    }
    region->start = start / PAGE_BYTES * PAGE_BYTES;
    region->size_bytes = start - region->start + size_bytes;
    if (region->size_bytes < REGION_BYTES) {
        region->size_bytes = REGION_BYTES;
    }
    snprintf(name, sizeof name, "/proc/self/fd/%d", ciel_output_fd(output->output));
    int fd = open(name, O_RDWR | O_CLOEXEC); /* that descriptor can only be written to */
    int error = fd < 0 ? errno : posix_fallocate(fd, region->start, region->size_bytes);
    void *address = MAP_FAILED;
    if (error == 0) {
        address = mmap(NULL, (size_t)region->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                       region->start);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (address == MAP_FAILED) {
        free(region);
        return NULL;
    }
    region->address = address;
    region->next = output->regions;
    output->regions = region;
    return region;
}

void *ciel_arrow_allocate(struct ciel_arrow_output *output, int64_t size_bytes) {
    struct region *region = output->regions;
    int64_t start = (output->written_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    if (size_bytes < 0 || size_bytes > INT64_MAX / 2) {
        return NULL;
    }
    if (region == NULL || start + size_bytes > region->start + region->size_bytes) {
        region = map(output, start, size_bytes);
    }
    int64_t step = start + size_bytes - output->written_bytes;
    if (region == NULL || ciel_skip_output(output->output, step) != 0) {
        return NULL;
    }
    output->written_bytes += step;
    return region->address + (start - region->start);
}

static int64_t place(void *context, const void *address, int64_t size_bytes) {
    struct ciel_arrow_output *output = context;
    uintptr_t at = (uintptr_t)address;
    for (struct region *region = output->regions; region != NULL; region = region->next) {
        uintptr_t first = (uintptr_t)region->address;
        if (at >= first && at - first <= (uintptr_t)(region->size_bytes - size_bytes)) {
            return region->start + (int64_t)(at - first);
        }
    }
    return -1;
}

static void unmap_all(struct ciel_arrow_output *output) {
    while (output->regions != NULL) {
        struct region *region = output->regions;
        output->regions = region->next;
        munmap(region->address, (size_t)region->size_bytes);
        free(region);
    }
}

/* Describe a chunk in memory that the caller frees. */
static const char *describe(struct ciel_arrow_output *output, const struct ArrowArray *chunk,
                            struct ciel_description *to) {
    *to = (struct ciel_description){.capacity_bytes = 4096, .absent_capacity = 64};
    for (;;) {
        to->bytes = malloc((size_t)to->capacity_bytes);
        to->absent = malloc((size_t)to->absent_capacity * sizeof *to->absent);
        if (to->bytes == NULL || to->absent == NULL) {
            return "there is no memory for its descriptor";
        }
        to->size_bytes = to->absent_count = to->placed_count = 0;
        const char *wrong = ciel_table_add(to, output->schema, chunk, place, output);
        if (wrong || (to->size_bytes <= to->capacity_bytes &&
                      to->absent_count <= to->absent_capacity)) {
            return wrong;
        }
        if (to->absent_count > ABSENT_MAX) {
            return "it has too many buffers";
        }
        to->capacity_bytes = to->size_bytes;
        to->absent_capacity = to->absent_count + 1;
        free(to->bytes);
        free(to->absent);
    }
}

/* Write the buffers of a chunk, and keep its descriptor. */
static const char *append(struct ciel_arrow_output *output, struct ciel_description *chunk) {
    for (int64_t n = 0; n < chunk->absent_count; n++) {
        const struct ciel_absent *buffer = &chunk->absent[n];
        if (!align(output)) {
            return "a write has failed";
        }
        memcpy(chunk->bytes + buffer->entry, &output->written_bytes, 8);
        if (!write_bytes(output, buffer->address, buffer->size_bytes)) {
            return "a write has failed";
        }
    }
    size_t size_bytes = (size_t)(output->arrays_bytes + chunk->size_bytes);
    uint8_t *arrays = realloc(output->arrays, size_bytes);
    if (arrays == NULL) {
        return "there is no memory for its descriptor";
    }
    memcpy(arrays + output->arrays_bytes, chunk->bytes, (size_t)chunk->size_bytes);
    output->arrays = arrays;
    output->arrays_bytes = (int64_t)size_bytes;
    output->chunks++;
    return NULL;
}

int ciel_arrow_append(struct ciel_arrow_output *output, const struct ArrowArray *chunk) {
    struct ciel_description described;
    const char *wrong = describe(output, chunk, &described);
    if (!wrong) {
        wrong = append(output, &described);
    }
    free(described.bytes);
    free(described.absent);
    return wrong ? complain(wrong) : 0;
}

json_t *ciel_arrow_commit(struct ciel_arrow_output *output) {
    uint8_t room[4096];
    struct ciel_description start = {.bytes = room, .capacity_bytes = sizeof room};
    const char *wrong =
        ciel_table_begin(&start, CIEL_IS_TABLE, 0.0, output->schema, output->chunks);
    uint8_t *longer = NULL;
    if (!wrong && start.size_bytes > start.capacity_bytes) {
        longer = malloc((size_t)start.size_bytes);
        if (longer != NULL) {
            start = (struct ciel_description){.bytes = longer, .capacity_bytes = start.size_bytes};
            ciel_table_begin(&start, CIEL_IS_TABLE, 0.0, output->schema, output->chunks);
        }
    }
    if (wrong || start.size_bytes > start.capacity_bytes) {
        ciel_error(wrong ? wrong : "there is no memory for the descriptor of a table");
        exit(1);
    }
    int64_t at = output->written_bytes;
    write_bytes(output, start.bytes, start.size_bytes);
    write_bytes(output, output->arrays, output->arrays_bytes);
    int64_t size_bytes = output->written_bytes - at;
    uint8_t header[CIEL_TABLE_HEADER_BYTES];
    memcpy(header, CIEL_TABLE_MAGIC, 8);
    memcpy(header + 8, &at, 8);
    memcpy(header + 16, &size_bytes, 8);
    ciel_write_output_at(output->output, (char *)header, sizeof header, 0);
    if (output->regions != NULL && ftruncate(ciel_output_fd(output->output), output->written_bytes)) {
        ciel_error("the unused end of a table's output cannot be cut off");
        exit(1);
    }
    unmap_all(output);
    json_t *ref = ciel_close_output(output->output);
    free(longer);
    free(output->arrays);
    free(output);
    return ref;
}
