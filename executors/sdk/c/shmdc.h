/* libshmdc: reads and writes the objects of a block store of ciel, by its daemon. See
 * docs/protocol/shmd.md of ciel. In a task, shmdc_open(NULL, NULL) opens the store of its worker.
 *
 *     cc -o copy copy.c $(pkg-config --cflags --libs shmdc)
 *
 *     struct shmdc_reply reply;
 *     struct shmdc *store = shmdc_open("objects", NULL);
 *     if (store && shmdc_load(store, "4f2a:out:0", 0, &reply) == 0)
 *         puts(reply.path);
 *     shmdc_close(store);
 *
 * A function returns 0 or a status. `reply` then has the result or the reason, and empty texts
 * otherwise. Each function returns half a second after the timeout at the latest, which is 30
 * seconds if shmdc_set_timeout is not called. Any thread may call. Calls with one `struct shmdc`
 * run one after another; a thread that must not wait for others opens its own, and so must a child
 * process after fork(). The library has no global state, prints nothing and raises no signal. */
#ifndef SHMDC_H
#define SHMDC_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum shmdc_status {
    SHMDC_NOT_FOUND = 1,    /* neither in this store, nor in another of its group */
    SHMDC_BAD_NAME = 2,     /* not the id of an object */
    SHMDC_BUSY = 3,         /* too many files of this connection are open for writing */
    SHMDC_TIMEOUT = 4,      /* the daemon, or a disk, did not do it in time */
    SHMDC_NO_SPACE = 5,     /* the store is full */
    SHMDC_CONFLICT = 6,     /* the name is committed with other content, or being committed */
    SHMDC_UNKNOWN_PATH = 7, /* this connection has no file open for writing at the path */
    SHMDC_CORRUPT = 8,      /* the object is damaged */
    SHMDC_FAILED = 9,       /* any other error of the daemon */
    SHMDC_INVALID = 100,    /* an argument of the caller, such as a name of 300 bytes */
    SHMDC_GONE = 101,       /* no daemon serves the store, or it ended before it answered */
    SHMDC_DENIED = 102,     /* the store belongs to another user */
};
enum {
    SHMDC_HERE = 1,   /* shmdc_load, shmdc_read: do not ask the daemons of other stores */
    SHMDC_MAPPED = 2, /* shmdc_write: the caller only maps the file; see the page */
};

struct shmdc_reply {
    uint64_t size_bytes; /* of an object */
    char path[4096];
    char checksum[257]; /* of an object; empty: not known */
    char reason[1280];  /* of an error: what failed, and why */
};
struct shmdc;

/* Open the store in a directory. NULL: the store of this task's worker (CIEL_SHMD). Connections
 * with the same `attempt`, an id, get the same file for the same name. "" means no attempt; NULL
 * means the attempt of this task if `directory` is NULL, else none. Return NULL if memory is short,
 * or if a text is too long or missing; errno says it. The first request connects, and so does the
 * next one after an error. */
struct shmdc *shmdc_open(const char *directory, const char *attempt);

/* Close it, and discard its files that were not committed. No other call with it may be running. */
void shmdc_close(struct shmdc *store);

void shmdc_set_timeout(struct shmdc *store, uint32_t timeout_ms); /* 1 to 3,600,000 */

/* Make an object readable, and return its path and size. An object in memory whose directory an
 * earlier call has learnt is found without the daemon; then the checksum is empty. The path is
 * valid until the object is deleted or moved: if it cannot be opened, load the object again. */
int shmdc_load(struct shmdc *store, const char *name, int flags, struct shmdc_reply *reply);

/* The same, and open it for reading. The descriptor, which the caller closes, stays valid. */
int shmdc_read(struct shmdc *store, const char *name, int flags, int *fd,
               struct shmdc_reply *reply);

/* Return the size and the checksum of an object of this store; the path is empty. */
int shmdc_info(struct shmdc *store, const char *name, struct shmdc_reply *reply);

/* Return the path of a file to write an object to; `size_bytes`: the most it will have, 0: not
 * known. A repeated call returns the same path. The file belongs to the connection. */
int shmdc_write(struct shmdc *store, const char *name, uint64_t size_bytes, int flags,
                struct shmdc_reply *reply);

/* Make the file at a path an object of a name, and return the path of the object. After SHMDC_GONE
 * and SHMDC_TIMEOUT it may be committed or not: load it to find out. */
int shmdc_commit(struct shmdc *store, const char *path, const char *name,
                 struct shmdc_reply *reply);

/* Discard a file that is not committed. It stays while another connection has it open for writing.
 */
int shmdc_abandon(struct shmdc *store, const char *path, struct shmdc_reply *reply);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
