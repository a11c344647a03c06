/* The state that tasks share, for programs in C: rows of a key-value base. See docs/state.md of
 * ciel.
 *
 *     cc -o task task.c ciel_kv.c -pthread
 *
 *     struct ciel_kv *kv = ciel_kv_open("scores");      the rows of ciel.kv("scores") in Python
 *     int64_t visits;
 *     if (!kv || ciel_kv_increment(kv, "visits", 1, &visits))
 *         fprintf(stderr, "%s\n", ciel_kv_why());
 *
 * The variables CIEL_KV, CIEL_KV_KEY_FILE and CIEL_KV_CLUSTER of a task say where the base is. It
 * is a `ciel-kv` or a Redis without TLS; the library opens neither LMDB nor etcd.
 *
 * Keys are texts. The name of the rows and a key have at most 479 bytes together. A value is JSON
 * in UTF-8, or bytes, at most 64 MiB. A number in JSON is also what ciel_kv_increment adds to.
 * Whitespace between the parts of JSON is not stored.
 *
 * A function returns 0, or one of the statuses below; ciel_kv_why returns the reason as a text. A
 * lost connection is opened again, and a change is carried out once, also if the library has to ask
 * for it again. After 30 seconds without the base a function returns CIEL_KV_UNREACHABLE; then a
 * change may have been carried out, or not.
 *
 * Any thread may call. Calls with one `struct ciel_kv` run one after another; a thread that must
 * not wait for others opens its own. A child process after fork() must open its own, too. The
 * library prints nothing and raises no signal. The caller keeps the ownership of arguments. */
#ifndef CIEL_KV_H
#define CIEL_KV_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ciel_kv_status {
    CIEL_KV_MISSING = ENOENT,           /* the key is not in the base */
    CIEL_KV_EXISTS = EEXIST,            /* the key to insert is in the base already */
    CIEL_KV_CHANGED = ECANCELED,        /* the value is not the expected one */
    CIEL_KV_WRONG_TYPE = EBADMSG,       /* the value is bytes, JSON, a pickle or no integer, and
                                         * not what the function needs */
    CIEL_KV_INVALID = EINVAL,           /* an argument is wrong, such as text that is not JSON */
    CIEL_KV_TOO_LARGE = E2BIG,          /* a key, a value, or all writes together */
    CIEL_KV_FULL = ENOSPC,              /* the base refuses what would make it larger */
    CIEL_KV_UNREACHABLE = EHOSTUNREACH, /* the base does not answer */
    CIEL_KV_DENIED = EACCES,            /* the base refuses the key, or the role may not write */
    CIEL_KV_LACKING = ENOTSUP,          /* the library cannot open this kind of base */
    CIEL_KV_TIMEOUT = ETIMEDOUT,        /* another client has the lock */
    CIEL_KV_LOST = ESTALE,              /* another client may have had the lock meanwhile */
    CIEL_KV_NO_MEMORY = ENOMEM,
    CIEL_KV_FAILED = EIO,               /* the base has another error, which ciel_kv_why shows */
};

struct ciel_kv;

/* Open the rows of a name, all rows of the base without one (""): a name has at most 64 letters,
 * digits and the signs _ . - Return NULL if that fails; errno is the status: CIEL_KV_MISSING if
 * there is no base, DENIED, LACKING, INVALID or NO_MEMORY. The first operation connects. */
struct ciel_kv *ciel_kv_open(const char *name);

/* Open the rows of a name that belong to a job, and are removed with it. NULL: the job of this
 * task, if this process runs tasks of one job only. */
struct ciel_kv *ciel_kv_open_of_job(const char *name, const char *job_id);

/* Open the rows of a name in the base at a URL, without the environment. `key_file` has the key
 * that opens a ciel-kv, as `ciel key kv` prints it; NULL for a Redis. */
struct ciel_kv *ciel_kv_open_at(const char *url, const char *key_file, const char *name);

/* Close it and free it. No other call with it may be running. */
void ciel_kv_close(struct ciel_kv *kv);

/* Return the reason of the last error of this thread. The text stays until the next error. */
const char *ciel_kv_why(void);

/* Set how long an operation tries to reach the base: 30 seconds if this is not called. A base that
 * is there and does not reply is given up after 30 seconds, whatever the timeout is. */
void ciel_kv_set_timeout(struct ciel_kv *kv, double timeout_s);

/* --- one row. CIEL_KV_MISSING: there is none. The caller frees what a function has allocated
 * --- */

/* Read a value; it ends with a NUL, which size_bytes does not count. */
int ciel_kv_get(struct ciel_kv *kv, const char *key, char **json);
int ciel_kv_get_bytes(struct ciel_kv *kv, const char *key, void **bytes, size_t *size_bytes);

/* Set a value, which is removed after `ttl_s` seconds, or never if that is 0. */
int ciel_kv_put(struct ciel_kv *kv, const char *key, const char *json, double ttl_s);
int ciel_kv_put_bytes(struct ciel_kv *kv, const char *key, const void *bytes, size_t size_bytes,
                      double ttl_s);

/* Set the value of a key that is missing. CIEL_KV_EXISTS: it is not. */
int ciel_kv_insert(struct ciel_kv *kv, const char *key, const char *json, double ttl_s);
int ciel_kv_insert_bytes(struct ciel_kv *kv, const char *key, const void *bytes, size_t size_bytes,
                         double ttl_s);

/* Set the value of a key that is there. It keeps its lifetime. */
int ciel_kv_update(struct ciel_kv *kv, const char *key, const char *json);
int ciel_kv_update_bytes(struct ciel_kv *kv, const char *key, const void *bytes, size_t size_bytes);

/* Set a value if the present one is stored as `expected` would be. CIEL_KV_CHANGED: it is not, or
 * the key is missing. Python stores JSON without whitespace, and numbers as repr() shows them. */
int ciel_kv_compare_and_set(struct ciel_kv *kv, const char *key, const char *expected,
                            const char *json);
int ciel_kv_compare_and_set_bytes(struct ciel_kv *kv, const char *key, const void *expected,
                                  size_t expected_bytes, const void *bytes, size_t size_bytes);

int ciel_kv_delete(struct ciel_kv *kv, const char *key);

/* Add to an integer, 0 if the key is missing. `sum` may be NULL. CIEL_KV_WRONG_TYPE: the value or
 * the sum is no integer of 64 bits. */
int ciel_kv_increment(struct ciel_kv *kv, const char *key, int64_t by, int64_t *sum);

/* --- several rows --- */

/* A key and its value: `json`, or bytes if that is NULL. */
struct ciel_kv_pair {
    const char *key;
    const char *json;
    const void *bytes;
    size_t size_bytes;
};

/* Set many values, which become visible together. If this fails, none is set. At most 200,000. */
int ciel_kv_bulk_put(struct ciel_kv *kv, const struct ciel_kv_pair *pairs, size_t count);

enum ciel_kv_kind {
    CIEL_KV_NOTHING, /* the key is missing */
    CIEL_KV_JSON,
    CIEL_KV_BYTES,
    CIEL_KV_PICKLE, /* an object of Python, which this library cannot read: `value` is NULL */
};

/* The value ends with a NUL, which value_bytes does not count. */
struct ciel_kv_row {
    const char *key;
    enum ciel_kv_kind kind;
    char *value;
    size_t value_bytes;
};

/* Read the values of keys as of one moment: one row for each key. The caller frees each `value`,
 * which is NULL for a missing key. */
int ciel_kv_get_many(struct ciel_kv *kv, const char *const *keys, size_t count,
                     struct ciel_kv_row *rows);

/* Call `each` for every row whose key starts with a prefix ("": every row), until it returns
 * anything but 0, which is then returned here. A ciel-kv has its rows ordered by key, a Redis has
 * not. Changes meanwhile may be seen in part. `each` may use the base; a row is valid only during
 * its call. */
int ciel_kv_scan(struct ciel_kv *kv, const char *prefix,
                 int (*each)(void *context, const struct ciel_kv_row *row), void *context);

/* --- locks, which are those of kv.lock(NAME) in Python --- */

struct ciel_kv_lease;

/* Acquire a lock: wait at most `timeout_s`, without end if that is negative. If this process dies
 * or is stopped, the lock is free `lease_s` later; 0: 30 seconds. A thread renews it meanwhile. */
int ciel_kv_lock(struct ciel_kv *kv, const char *name, double lease_s, double timeout_s,
                 struct ciel_kv_lease **lease);

/* Release it, and free it in any case. CIEL_KV_LOST: it was not renewed in time. `kv` may be
 * closed. */
int ciel_kv_unlock(struct ciel_kv_lease *lease);

/* Return whether no other client can have the lock now. */
int ciel_kv_is_held(struct ciel_kv_lease *lease);

/* Return a number that grows with each acquisition of the lock. What the lock protects can refuse a
 * client with a lower number than it has seen. */
int64_t ciel_kv_fence(const struct ciel_kv_lease *lease);

#ifdef __cplusplus
}
#endif
#endif
