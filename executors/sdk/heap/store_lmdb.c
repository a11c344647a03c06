/* Pages of the heap in a directory, in LMDB: its pages are copied on writing, so a header that is
 * committed names a heap that is whole. */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if __has_include(<lmdb.h>)
#include <lmdb.h>

enum { DROP = 4 };
#define MAP_BYTES (4ULL * BLOCKS_BYTES) /* two sides, and what is not free yet */

#define HALF (1ULL << 62) /* in keys; so a heap that is durable stays until another one is */

static uint64_t header_key = UINT64_MAX;

struct directory {
    struct store store;
    MDB_env *environment;
    MDB_txn *reading;
    MDB_dbi table;
    const char *path;
    char *map;      /* of the file */
    unsigned moved; /* pages since the map was dropped */
    uint64_t half;  /* where the pages of this program are: 0, or HALF */
    int has_header; /* of an earlier program, in the other half */
    int is_kept;    /* the header is of this half */
    int is_emptied; /* what a killed program left in this half is gone */
};

static int failed(struct directory *directory, int result)
{
    if (result)
        snprintf(directory->store.why, sizeof directory->store.why, "%s", mdb_strerror(result));
    return result ? -1 : 0;
}

static MDB_val key_of(const uint64_t *key)
{
    return (MDB_val){sizeof *key, (void *)key};
}

/* Drop what the process has mapped of the file now and then: it counts as its memory. */
static void drop_map(struct directory *directory)
{
    if (++directory->moved < DROP)
        return;
    madvise(directory->map, MAP_BYTES, MADV_DONTNEED);
    directory->moved = 0;
}

static int read_pages(struct store *store, const uint64_t *numbers, char *const *to, unsigned count)
{
    struct directory *directory = (struct directory *)store;
    int result = mdb_txn_renew(directory->reading);
    for (unsigned i = 0; i < count && !result; i++) {
        uint64_t number = numbers[i] | directory->half;
        MDB_val key = key_of(&number), value;
        result = mdb_get(directory->reading, directory->table, &key, &value);
        if (!result && value.mv_size != store->page_bytes)
            result = MDB_CORRUPTED;
        if (!result)
            memcpy(to[i], value.mv_data, store->page_bytes);
        drop_map(directory);
    }
    mdb_txn_reset(directory->reading);
    return failed(directory, result);
}

/* Remove a few rows of a half, in one transaction; MDB_NOTFOUND if there are no more. */
static int remove_some(struct directory *directory, uint64_t half)
{
    MDB_txn *writing;
    MDB_cursor *cursor;
    int result = mdb_txn_begin(directory->environment, NULL, 0, &writing);
    if (result)
        return result;
    result = mdb_cursor_open(writing, directory->table, &cursor);
    for (unsigned i = 0; i < BATCH && !result; i++) {
        MDB_val key = key_of(&half), value;
        result = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
        if (!result && *(uint64_t *)key.mv_data >= half + HALF)
            result = MDB_NOTFOUND;
        if (!result)
            result = mdb_cursor_del(cursor, 0);
        drop_map(directory);
    }
    mdb_cursor_close(cursor);
    int ended = mdb_txn_commit(writing);
    return ended ? ended : result;
}

static int empty(struct directory *directory, uint64_t half)
{
    int result = 0;
    while (!result)
        result = remove_some(directory, half);
    return result == MDB_NOTFOUND ? 0 : result;
}

static int write_pages(struct store *store, const uint64_t *numbers, char *const *from,
                       unsigned count)
{
    struct directory *directory = (struct directory *)store;
    MDB_txn *writing;
    int result = 0;
    if (!directory->is_emptied && !(result = empty(directory, directory->half)))
        directory->is_emptied = 1;
    if (!result)
        result = mdb_txn_begin(directory->environment, NULL, 0, &writing);
    if (result)
        return failed(directory, result);
    for (unsigned i = 0; i < count && !result; i++) {
        uint64_t number = numbers[i] | directory->half;
        MDB_val key = key_of(&number), value = {store->page_bytes, from[i]};
        result = mdb_put(writing, directory->table, &key, &value, 0);
        drop_map(directory);
    }
    if (result)
        mdb_txn_abort(writing);
    else
        result = mdb_txn_commit(writing);
    return failed(directory, result);
}

static void forget_pages(struct store *store, const uint64_t *numbers, unsigned count)
{
    struct directory *directory = (struct directory *)store;
    MDB_txn *writing;
    if (mdb_txn_begin(directory->environment, NULL, 0, &writing))
        return; /* they only take space */
    for (unsigned i = 0; i < count; i++) {
        uint64_t number = numbers[i] | directory->half;
        MDB_val key = key_of(&number);
        mdb_del(writing, directory->table, &key, NULL);
    }
    mdb_txn_commit(writing);
}

static int put_header(struct directory *directory, const void *header, size_t header_bytes)
{
    MDB_txn *writing;
    MDB_val key = key_of(&header_key), value = {sizeof(uint64_t) + header_bytes, NULL};
    int result = mdb_txn_begin(directory->environment, NULL, 0, &writing);
    if (result)
        return result;
    if ((result = mdb_put(writing, directory->table, &key, &value, MDB_RESERVE))) {
        mdb_txn_abort(writing);
        return result;
    }
    memcpy(value.mv_data, &directory->half, sizeof(uint64_t));
    memcpy((char *)value.mv_data + sizeof(uint64_t), header, header_bytes);
    return mdb_txn_commit(writing);
}

static int commit(struct store *store, const void *header, size_t header_bytes)
{
    struct directory *directory = (struct directory *)store;
    int result = mdb_env_sync(directory->environment, 1); /* pages first: a header must find them */
    if (!result)
        result = put_header(directory, header, header_bytes);
    if (!result)
        result = mdb_env_sync(directory->environment, 1);
    if (!result && !directory->is_kept && directory->has_header)
        result = empty(directory, directory->half ^ HALF);
    if (!result)
        directory->is_kept = 1;
    return failed(directory, result);
}

/* Return a copy of the header, which the caller frees, and its half. NULL: there is none, or *result
 * is set. */
static void *get_header(struct directory *directory, size_t *header_bytes, uint64_t *half,
                        int *result)
{
    MDB_val key = key_of(&header_key), value;
    void *header = NULL;
    if ((*result = mdb_txn_renew(directory->reading)))
        return NULL;
    *result = mdb_get(directory->reading, directory->table, &key, &value);
    if (!*result && value.mv_size > sizeof *half) {
        *header_bytes = value.mv_size - sizeof *half;
        memcpy(half, value.mv_data, sizeof *half);
        if ((header = malloc(*header_bytes)))
            memcpy(header, (char *)value.mv_data + sizeof *half, *header_bytes);
    }
    mdb_txn_reset(directory->reading);
    *result = *result == MDB_NOTFOUND ? 0 : *result;
    return header;
}

static void *restore(struct store *store, size_t *header_bytes)
{
    struct directory *directory = (struct directory *)store;
    uint64_t half;
    int result;
    void *header = get_header(directory, header_bytes, &half, &result);
    if (header && directory->is_emptied && half != directory->half)
        result = empty(directory, directory->half); /* pages of this program, which it has dropped */
    if (header && !result) {
        directory->half = half;
        directory->is_kept = directory->is_emptied = 1;
        return header;
    }
    failed(directory, result);
    free(header);
    return NULL;
}

/* Remove the pages, unless a commit wants to find them again. */
static void close_directory(struct store *store)
{
    struct directory *directory = (struct directory *)store;
    char file[4096];
    snprintf(file, sizeof file, "%s/data.mdb", directory->path);
    if (!directory->is_kept && directory->has_header)
        empty(directory, directory->half);
    else if (!directory->is_kept)
        unlink(file); /* at once, and nothing of it is needed any more */
}

/* Return where the file is mapped, which LMDB does not tell. */
static char *map_of(const char *path)
{
    char line[5000], wanted[4096];
    unsigned long long start, end;
    FILE *maps = fopen("/proc/self/maps", "re");
    char *found = NULL;
    snprintf(wanted, sizeof wanted, "%s/data.mdb\n", strrchr(path, '/') ? strrchr(path, '/') : path);
    while (maps && fgets(line, sizeof line, maps)) {
        char *at = strstr(line, wanted);
        if (at && at[strlen(wanted)] == 0 && sscanf(line, "%llx-%llx", &start, &end) == 2 &&
            end - start >= MAP_BYTES)
            found = (char *)start;
    }
    if (maps)
        fclose(maps);
    return found;
}

/* Let only one program use the directory at a time; it is free when the program ends. */
static int take_directory(const char *path)
{
    char lock[4096];
    snprintf(lock, sizeof lock, "%s/heap-lock", path);
    if (mkdir(path, 0700) && errno != EEXIST)
        return errno;
    int descriptor = open(lock, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (descriptor < 0 || flock(descriptor, LOCK_EX | LOCK_NB))
        return errno;
    return 0;
}

struct store *store_lmdb(const char *path, uint64_t page_bytes, char *why, size_t why_bytes)
{
    struct directory *directory = calloc(1, sizeof *directory);
    MDB_txn *writing;
    int result = directory ? take_directory(path) : ENOMEM;
    if (result == EWOULDBLOCK) {
        snprintf(why, why_bytes, "another program uses the directory");
        free(directory);
        return NULL;
    }
    if (!result)
        result = mdb_env_create(&directory->environment);
    if (!result)
        result = mdb_env_set_mapsize(directory->environment, MAP_BYTES);
    if (!result) /* the lock of the directory is enough, and `commit` syncs */
        result = mdb_env_open(directory->environment, path, MDB_NOSYNC | MDB_NOLOCK | MDB_NORDAHEAD,
                              0600);
    if (!result && !(directory->map = map_of(path)))
        result = MDB_INVALID;
    if (!result)
        madvise(directory->map, MAP_BYTES, MADV_NOHUGEPAGE); /* each touch would map 2 MiB */
    if (!result)
        result = mdb_txn_begin(directory->environment, NULL, 0, &writing);
    if (!result && !(result = mdb_dbi_open(writing, NULL, MDB_INTEGERKEY, &directory->table)))
        result = mdb_txn_commit(writing);
    if (!result)
        result = mdb_txn_begin(directory->environment, NULL, MDB_RDONLY, &directory->reading);
    if (result) {
        snprintf(why, why_bytes, "the directory could not be opened: %s", mdb_strerror(result));
        free(directory);
        return NULL;
    }
    mdb_txn_reset(directory->reading);
    size_t unused;
    void *header = get_header(directory, &unused, &directory->half, &result);
    directory->has_header = header != NULL;
    if (header)
        directory->half ^= HALF;
    free(header);
    directory->path = path;
    directory->store = (struct store){.read = read_pages, .write = write_pages,
                                      .forget = forget_pages, .commit = commit, .restore = restore,
                                      .close = close_directory, .page_bytes = page_bytes,
                                      .own_bytes = 3ULL << 20}; /* mainly copies of a batch */
    return &directory->store;
}

#else

struct store *store_lmdb(const char *path, uint64_t page_bytes, char *why, size_t why_bytes)
{
    (void)path, (void)page_bytes;
    snprintf(why, why_bytes, "the run-time was built without LMDB (Debian: liblmdb-dev)");
    return NULL;
}

#endif
