/* Pages of the heap as rows of a key-value base: `NAME!heap/RUN/PAGE`. A row `NAME!heap` names the
 * run whose heap was made durable last. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "ciel_kv_pages.h"
#include "runtime.h"

enum { RUN_BYTES = 16, KEY_BYTES = 128 };

struct rows {
    struct store store;
    struct ciel_kv *kv;
    char name[80];
    char run[RUN_BYTES + 1];
    uint64_t *written; /* a bit for each page that has a row */
    uint64_t count;
    int is_kept; /* `NAME!heap` names this run */
};

static int failed(struct rows *rows, int status)
{
    if (status)
        snprintf(rows->store.why, sizeof rows->store.why, "%s", ciel_kv_why());
    return status ? -1 : 0;
}

/* Fill in the keys of pages. */
static void name_pages(const struct rows *rows, const uint64_t *numbers, char (*keys)[KEY_BYTES],
                       struct ciel_kv_page *pages, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        int size_bytes = snprintf(keys[i], KEY_BYTES, "%s!heap/%s/%llx", rows->name, rows->run,
                                  (unsigned long long)numbers[i]);
        pages[i] = (struct ciel_kv_page){.key = keys[i], .key_bytes = (size_t)size_bytes};
    }
}

static int read_pages(struct store *store, const uint64_t *numbers, char *const *to, unsigned count)
{
    struct rows *rows = (struct rows *)store;
    struct ciel_kv_page pages[BATCH];
    char keys[BATCH][KEY_BYTES];
    name_pages(rows, numbers, keys, pages, count);
    for (unsigned i = 0; i < count; i++) {
        pages[i].bytes = to[i];
        pages[i].room_bytes = store->page_bytes;
    }
    return failed(rows, ciel_kv_pages_get(rows->kv, pages, count));
}

static int write_pages(struct store *store, const uint64_t *numbers, char *const *from,
                       unsigned count)
{
    struct rows *rows = (struct rows *)store;
    struct ciel_kv_page pages[BATCH];
    char keys[BATCH][KEY_BYTES];
    name_pages(rows, numbers, keys, pages, count);
    for (unsigned i = 0; i < count; i++) {
        pages[i].bytes = from[i];
        pages[i].size_bytes = store->page_bytes;
        rows->written[numbers[i] / 64] |= 1ULL << numbers[i] % 64;
    }
    return failed(rows, ciel_kv_pages_set(rows->kv, pages, count));
}

static void forget_pages(struct store *store, const uint64_t *numbers, unsigned count)
{
    struct rows *rows = (struct rows *)store;
    struct ciel_kv_page pages[BATCH];
    char keys[BATCH][KEY_BYTES];
    name_pages(rows, numbers, keys, pages, count);
    for (unsigned i = 0; i < count; i++)
        rows->written[numbers[i] / 64] &= ~(1ULL << numbers[i] % 64);
    ciel_kv_pages_delete(rows->kv, pages, count);
}

static int header_key(const struct rows *rows, char *key)
{
    return snprintf(key, KEY_BYTES, "%s!heap", rows->name);
}

static int commit(struct store *store, const void *header, size_t header_bytes)
{
    struct rows *rows = (struct rows *)store;
    char key[KEY_BYTES], *value = malloc(RUN_BYTES + header_bytes);
    if (!value) {
        snprintf(store->why, sizeof store->why, "%s", strerror(errno));
        return -1;
    }
    memcpy(value, rows->run, RUN_BYTES);
    memcpy(value + RUN_BYTES, header, header_bytes);
    size_t key_bytes = (size_t)header_key(rows, key);
    int status = ciel_kv_pages_commit(rows->kv, key, key_bytes, value, RUN_BYTES + header_bytes);
    free(value);
    if (!status)
        rows->is_kept = 1;
    return failed(rows, status);
}

static void *restore(struct store *store, size_t *header_bytes)
{
    struct rows *rows = (struct rows *)store;
    char key[KEY_BYTES], small[RUN_BYTES], *value;
    struct ciel_kv_page page = {.key = key, .key_bytes = (size_t)header_key(rows, key),
                                .bytes = small, .room_bytes = sizeof small};
    int status = ciel_kv_pages_get(rows->kv, &page, 1);
    if (status == CIEL_KV_MISSING)
        return NULL;
    if (status && status != CIEL_KV_TOO_LARGE) {
        failed(rows, status);
        return NULL;
    }
    size_t size_bytes = page.size_bytes;
    if (size_bytes < RUN_BYTES || !(value = malloc(size_bytes))) {
        snprintf(store->why, sizeof store->why, "the row of the heap cannot be read");
        return NULL;
    }
    page.bytes = value;
    page.room_bytes = size_bytes;
    if (failed(rows, ciel_kv_pages_get(rows->kv, &page, 1)) || page.size_bytes != size_bytes) {
        free(value);
        return NULL;
    }
    memcpy(rows->run, value, RUN_BYTES);
    *header_bytes = size_bytes - RUN_BYTES;
    memmove(value, value + RUN_BYTES, *header_bytes);
    rows->is_kept = 1;
    return value;
}

static void close_rows(struct store *store)
{
    struct rows *rows = (struct rows *)store;
    uint64_t numbers[BATCH];
    unsigned count = 0;
    for (uint64_t word = 0; !rows->is_kept && word < rows->count / 64; word++)
        for (uint64_t bits = rows->written[word]; bits; bits &= bits - 1) {
            numbers[count++] = word * 64 + (uint64_t)__builtin_ctzll(bits);
            if (count == BATCH) {
                forget_pages(store, numbers, count);
                count = 0;
            }
        }
    if (count)
        forget_pages(store, numbers, count);
    ciel_kv_close(rows->kv);
}

struct store *store_kv(const char *name, uint64_t page_bytes, char *why, size_t why_bytes)
{
    struct rows *rows = calloc(1, sizeof *rows);
    uint64_t chosen;
    if (!rows || getrandom(&chosen, sizeof chosen, 0) != sizeof chosen) {
        snprintf(why, why_bytes, "%s", strerror(errno));
        free(rows);
        return NULL;
    }
    if (!*name || !(rows->kv = ciel_kv_open(name))) { /* this checks the name, too */
        snprintf(why, why_bytes, "%s", *name ? ciel_kv_why() : "a name is missing");
        free(rows);
        return NULL;
    }
    snprintf(rows->name, sizeof rows->name, "%s", name);
    snprintf(rows->run, sizeof rows->run, "%016llx", (unsigned long long)chosen);
    rows->count = 2 * (MAIN_BYTES / page_bytes) + (1 << 24);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    rows->written = mmap(NULL, rows->count / 8, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (rows->written == MAP_FAILED) {
        snprintf(why, why_bytes, "%s", strerror(errno));
        free(rows);
        return NULL;
    }
    rows->store = (struct store){.read = read_pages, .write = write_pages, .forget = forget_pages,
                                 .commit = commit, .restore = restore, .close = close_rows,
                                 .page_bytes = page_bytes};
    return &rows->store;
}
