/* Pages of memory in a key-value base: many large values, without copies. Implemented in ciel_kv.c.
 *
 * A page of more than 256 bytes is sent from the caller's buffer, and received into it: the library
 * copies at most 64 bytes of it. With a `ciel-kv` it allocates no memory, except when it connects;
 * with a Redis some for each 64 pages. It uses no stdio, and holds no lock but that of the
 * connection.
 *
 * Keys and values are raw bytes: a key is not changed by the name that `kv` was opened with, and a
 * value has no mark. So values that look like JSON or start with the byte 0xC0 or 0xC1 are not for
 * `kv.get` in Python. A key has 1 to 480 bytes, and does not start with the byte 255. A value has
 * at most 64 MiB. Statuses, lost connections and threads: as in ciel_kv.h; the timeout begins anew
 * with each page that was transferred.
 *
 * To replace many pages at one moment, set them under new keys, and then commit a value that says
 * which keys are valid:
 *
 *     if (ciel_kv_pages_set(kv, pages, count) || ciel_kv_pages_commit(kv, "root", 4, table, size))
 *         ...
 */
#ifndef CIEL_KV_PAGES_H
#define CIEL_KV_PAGES_H

#include "ciel_kv.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ciel_kv_page {
    const void *key;
    size_t key_bytes;
    void *bytes;       /* the buffer with the value, or for it */
    size_t room_bytes; /* of the buffer; only ciel_kv_pages_get uses it */
    size_t size_bytes; /* of the value: ciel_kv_pages_get sets it, ciel_kv_pages_set reads it */
    int status;        /* ciel_kv_pages_get sets it: 0, or CIEL_KV_MISSING, or CIEL_KV_TOO_LARGE if
                        * the buffer has only the first part of the value */
};

/* Read pages, with several requests under way, so not as of one moment. Return 0 if all buffers
 * have their whole value; else the status of the last page that has not, or the error that has
 * ended the call: then the status of pages that were not reached is CIEL_KV_FAILED. */
int ciel_kv_pages_get(struct ciel_kv *kv, struct ciel_kv_page *pages, size_t count);

/* Write pages, with several requests under way, in their order, and return when the base has
 * acknowledged all. Readers may see a part meanwhile. After an error some are written, and some
 * not. */
int ciel_kv_pages_set(struct ciel_kv *kv, const struct ciel_kv_page *pages, size_t count);

/* Remove pages; those that are missing already are no error. Readers may see a part meanwhile. */
int ciel_kv_pages_delete(struct ciel_kv *kv, const struct ciel_kv_page *pages, size_t count);

/* Set one value at one moment, and once. Earlier calls with `kv` that have returned 0 took effect
 * before. */
int ciel_kv_pages_commit(struct ciel_kv *kv, const void *key, size_t key_bytes, const void *bytes,
                         size_t size_bytes);

#ifdef __cplusplus
}
#endif
#endif
