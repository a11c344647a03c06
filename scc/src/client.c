/* client.c: attaching and detaching, cleaning up after dead clients, and disk jobs.
 *
 * A client owns its slot by a lock on a byte of the control file, which the kernel releases when
 * the process dies. A client that can lock the byte of a slot in use has found a dead client, and
 * no other client can find the same one: it completes the dead client's transaction, releases its
 * locks, closes its handles and discards the files that it was writing. If it dies while it does
 * so, the next client continues. (CIB-23)
 */
#include "core.h"

#include <errno.h>
#include <stdlib.h>

#define READ_ONLY_TIMEOUT_MS 1000
#define IO_LOOK_US 100000 /* between two checks whether a disk job's owner has died */

static int end_io(struct shmfs *fs, uint32_t client)
{
    struct image_client *dead = client_at(fs, client);
    struct image_statistics *statistics = statistics_of(fs);
    int error = lock_take(fs, LOCK_STATISTICS, 1);
    if (error)
        return error;
    port_invalidate(&fs->port, &dead->log_count, PORT_LINE_BYTES);
    port_invalidate(&fs->port, statistics, sizeof statistics->io_count);
    const uint32_t count = port_load32(&fs->port, &dead->io_count);
    if (count) {
        log_set32(fs, &statistics->io_count,
                  port_load32(&fs->port, &statistics->io_count) - count);
        log_set32(fs, &dead->io_count, 0);
        log_commit(fs);
        port_register_add(&fs->port, &statistics->io_bell, 1);
        port_wake(&statistics->io_bell, INT32_MAX);
    }
    lock_drop_all(fs);
    return 0;
}

/* Clean up after a dead client. We own its slot, and its log has been applied. */
static int clean_up(struct shmfs *fs, uint32_t client)
{
    locks_release(fs, client);
    /* A sweeper that died on this slot may have left a log that stores to the handles; it held an
     * inode lock. After we have held all of these locks, only we store to the handles. */
    int error = lock_take(fs, LOCK_INODES, SHARDS_ALL);
    if (error)
        return error;
    lock_drop_all(fs);
    port_invalidate(&fs->port, handle_at(fs, client, 0),
                    fs->shape.geometry.handle_count * sizeof(struct image_handle));
    for (uint32_t slot = 0; slot < fs->shape.geometry.handle_count; slot++)
        if (port_load32(&fs->port, &handle_at(fs, client, slot)->inode) &&
            (error = handle_close(fs, client, slot, true)))
            return error;
    if ((error = end_io(fs, client)))
        return error;
    port_register_add(&fs->port, &statistics_of(fs)->sweep_count, 1);
    return 0;
}

/* Free files with no names and no handles. The client that was freeing them died, or could not take
 * a lock. */
static int free_orphans(struct shmfs *fs)
{
    for (uint32_t number = 1; number <= fs->shape.geometry.inode_count; number++) {
        struct image_inode copy;
        inode_snapshot(fs, inode_refresh(fs, number), &copy); /* without the lock: may be outdated */
        if (!copy.flags || copy.link_count || copy.handle_count)
            continue;
        int error = inode_drain(fs, number, copy.generation);
        if (error)
            return error;
    }
    fs->has_orphans = false;
    return 0;
}

/* Return whether nothing shows who owns a slot: then one thread at a time attaches or sweeps. */
static bool has_no_claims(const struct shmfs *fs)
{
    return fs->memory.control_fd < 0 && !fs->options.claim;
}

/* Claim a slot: returns 1, or 0 if another process owns it. Fails with SYSTEM. */
static int claim(struct shmfs *fs, uint32_t client)
{
    if (has_no_claims(fs))
        return !client_lives(fs, client, port_register_load(&client_at(fs, client)->generation));
    if (!client_sign(fs, client, true))
        return 1;
    return errno == EAGAIN ? 0 : SHMFS_ERROR_SYSTEM;
}

/* Sweep one client if it is dead: returns 1 if it was. */
static int sweep_one(struct shmfs *fs, uint32_t client)
{
    struct image_client *other = client_at(fs, client);
    if (client == fs->client || port_register_load(&other->state) == CLIENT_FREE)
        return 0;
    int result = claim(fs, client);
    if (result < 1)
        return result;
    result = 0;
    if (port_register_load(&other->state) != CLIENT_FREE) {
        result = client_recover(fs, client, port_register_load(&other->generation));
        if (!result && !(result = clean_up(fs, client))) {
            port_register_store(&fs->port, &other->state, CLIENT_FREE);
            result = 1;
        }
    }
    log_discard(fs);
    lock_drop_all(fs);
    client_sign(fs, client, false);
    return result;
}

/* Close a handle for good. Lines of blocks that are freed must not stay in our cache. */
static int let_go(struct shmfs *fs, uint32_t slot)
{
    const struct image_handle *handle = handle_at(fs, fs->client, slot);
    const uint32_t number = port_load32(&fs->port, &handle->inode);
    struct image_inode *inode = inode_refresh(fs, number), copy;
    if (!number)
        return 0;
    if (inode && port_load32(&fs->port, &handle->flags) & HANDLE_WRITING &&
        !inode_content(fs, inode, &copy)) {
        struct shmfs_handle own = {number, copy.generation, slot, 0, 0, 0};
        file_publish(fs, &own, &copy);
    }
    return handle_close(fs, fs->client, slot, true);
}

void handle_lose(struct shmfs *fs, uint32_t slot)
{
    if (fs->lost_count < LOST_LIMIT)
        fs->lost_slots[fs->lost_count++] = slot;
}

static int close_lost(struct shmfs *fs)
{
    int error = 0;
    while (fs->lost_count && error != SHMFS_ERROR_BUSY) {
        error = let_go(fs, fs->lost_slots[fs->lost_count - 1]);
        fs->lost_count -= error != SHMFS_ERROR_BUSY; /* closing a damaged one would fail again */
        log_discard(fs);
        lock_drop_all(fs);
    }
    return error;
}

int client_sweep(struct shmfs *fs)
{
    int count = 0, error = close_lost(fs);
    for (uint32_t client = 0; client < fs->shape.geometry.client_count; client++) {
        const int result = sweep_one(fs, client);
        if (result < 0)
            error = result; /* continue with the next client */
        else
            count += result;
    }
    if (count || fs->has_orphans) {
        const int result = free_orphans(fs);
        log_discard(fs);
        lock_drop_all(fs);
        error = error ? error : result;
    }
    return error ? error : count;
}

/* --- attaching ------------------------------------------------------------------------------- */

/* Return the group that a client allocates from first: the bits of the client's number, reversed. A
 * client whose group is full continues in the next group, so clients with adjacent numbers must
 * start far from each other. */
static uint32_t apart(uint32_t client, uint32_t shards)
{
    uint32_t group = 0;
    for (uint32_t one = 1, other = shards / 2; other; one *= 2, other /= 2)
        group |= client & one ? other : 0;
    return group;
}

/* Become the client of a slot that we have claimed. If the slot is in use, we take the place of a
 * dead client, and must complete its transaction. */
static int join(struct shmfs *fs, uint32_t client)
{
    struct image_client *place = client_at(fs, client);
    const bool is_free = port_register_load(&place->state) == CLIENT_FREE;
    fs->client = client;
    fs->generation = port_register_load(&place->generation);
    int error = client_renew(fs);
    if (error)
        return error;
    port_register_store(&fs->port, &place->state, CLIENT_ATTACHED);
    const uint32_t shards = fs->shape.geometry.shard_count;
    fs->group = fs->options.group ? (fs->options.group - 1) % shards : apart(client, shards);
    port_invalidate(&fs->port, handle_at(fs, client, 0),
                    fs->shape.geometry.handle_count * sizeof(struct image_handle));
    if (!is_free && !(error = clean_up(fs, client)))
        error = free_orphans(fs);
    return error;
}

/* Stop being a client, or give up becoming one. */
static void part(struct shmfs *fs)
{
    log_discard(fs);
    lock_drop_all(fs);
    client_sign(fs, fs->client, false);
}

static int find_place(struct shmfs *fs, bool wants_free)
{
    for (uint32_t client = 0; client < fs->shape.geometry.client_count; client++) {
        struct image_client *place = client_at(fs, client);
        const bool is_free = port_register_load(&place->state) == CLIENT_FREE;
        fs->client = UINT32_MAX;
        if (is_free != wants_free)
            continue;
        int result = is_free && has_no_claims(fs) ? 1 : claim(fs, client);
        if (!result)
            continue;
        if (result > 0 && (result = join(fs, client)))
            part(fs);
        return result;
    }
    return SHMFS_ERROR_NO_CLIENTS;
}

static int begin(struct shmfs *fs, const struct shmfs_memory *memory,
                 const struct shmfs_options *options, void *cache)
{
    struct image_superblock superblock;
    memset(fs, 0, sizeof *fs);
    fs->memory = *memory;
    fs->control = memory->control;
    fs->data = memory->data;
    if (options)
        fs->options = *options;
    if (memory->control_bytes < sizeof superblock)
        return SHMFS_ERROR_FORMAT;
    port_open(&fs->port, cache, (struct port_range){memory->control, memory->control_bytes},
              (struct port_range){memory->data, memory->data_bytes}, fs->options.seed);
    /* The memory may have held another image, of which this core may have cached lines. After this
     * call has read the magic number, the client reads the superblock that belongs to it. */
    const uint64_t magic = port_look64(&fs->port, memory->control);
    port_read(&fs->port, &superblock, memory->control, sizeof superblock);
    superblock.magic = magic;
    return shape_read(&superblock, memory->control_bytes, memory->data_bytes, &fs->shape);
}

size_t shmfs_size(void)
{
    return (sizeof(struct shmfs) + 63) / 64 * 64 + port_cache_bytes();
}

/* Set up a read-only client, which needs no slot in the image. */
static int attach_read_only(struct shmfs *fs)
{
    fs->client = UINT32_MAX;
    if (!fs->options.lock_timeout_ms)
        fs->options.lock_timeout_ms = READ_ONLY_TIMEOUT_MS;
    return PORT_COHERENT ? 0 : SHMFS_ERROR_ARGUMENT;
}

int shmfs_attach(struct shmfs **out, void *storage, size_t storage_bytes,
                 const struct shmfs_memory *memory, const struct shmfs_options *options)
{
    struct shmfs *fs = storage;
    if (!out || !storage || storage_bytes < shmfs_size() || (uintptr_t)storage % 64 || !memory ||
        !memory->control || !memory->data || (uintptr_t)memory->control % PORT_LINE_BYTES)
        return SHMFS_ERROR_ARGUMENT;
    int error = begin(fs, memory, options, (uint8_t *)storage + shmfs_size() - port_cache_bytes());
    if (!error)
        error = fs->options.is_read_only ? attach_read_only(fs) : find_place(fs, true);
    if (error == SHMFS_ERROR_NO_CLIENTS)
        error = find_place(fs, false);
    if (error)
        return error;
    pthread_mutex_init(&fs->mutex, NULL);
    *out = fs;
    return 0;
}

static void leave_image(struct shmfs *fs)
{
    int error = 0;
    for (uint32_t slot = 0; slot < fs->shape.geometry.handle_count && !error; slot++)
        error = let_go(fs, slot);
    if (!error)
        error = end_io(fs, fs->client);
    if (!error)
        port_register_store(&fs->port, &client_at(fs, fs->client)->state, CLIENT_FREE);
    part(fs); /* after an error (damaged image, stopped client) a sweep does the rest */
}

void shmfs_detach(struct shmfs *fs)
{
    if (!fs->options.is_read_only)
        leave_image(fs);
    pthread_mutex_destroy(&fs->mutex);
}

/* --- formatting ------------------------------------------------------------------------------ */

int shmfs_sizes(struct shmfs_geometry *geometry, uint64_t *control_bytes, uint64_t *data_bytes)
{
    struct shape shape;
    int error = shape_of(geometry, &shape);
    if (error)
        return error;
    *geometry = shape.geometry;
    *control_bytes = shape.control_bytes;
    *data_bytes = shape.data_bytes;
    return 0;
}

int shmfs_format(const struct shmfs_memory *memory, const struct shmfs_geometry *geometry)
{
    struct shape shape;
    struct port port;
    if (!memory || !memory->control || (uintptr_t)memory->control % PORT_LINE_BYTES)
        return SHMFS_ERROR_ARGUMENT;
    int error = shape_of(geometry, &shape);
    if (error)
        return error;
    if (memory->control_bytes < shape.control_bytes || memory->data_bytes < shape.data_bytes)
        return SHMFS_ERROR_TOO_SMALL;
    void *cache = aligned_alloc(64, (port_cache_bytes() / 64 + 1) * 64);
    if (!cache)
        return SHMFS_ERROR_SYSTEM;
    port_open(&port, cache, (struct port_range){memory->control, memory->control_bytes},
              (struct port_range){memory->data, memory->data_bytes}, UINT32_MAX);
    image_make(&port, &shape, memory->control);
    port_drop(&port);
    free(cache);
    return 0;
}

/* --- disk jobs ------------------------------------------------------------------------------- */

static int change_io(struct shmfs *fs, uint32_t limit, int by)
{
    struct image_statistics *statistics = statistics_of(fs);
    int error = lock_take(fs, LOCK_STATISTICS, 1);
    if (error)
        return error;
    struct image_client *client = client_at(fs, fs->client);
    port_invalidate(&fs->port, statistics, sizeof statistics->io_count);
    const uint32_t all = port_load32(&fs->port, &statistics->io_count);
    const uint32_t own = port_load32(&fs->port, &client->io_count);
    if (by < 0 ? !own : limit && all >= limit) {
        error = by < 0 ? SHMFS_ERROR_ARGUMENT : SHMFS_ERROR_LIMIT;
    } else {
        log_set32(fs, &statistics->io_count, all + (uint32_t)by);
        log_set32(fs, &client->io_count, own + (uint32_t)by);
        log_commit(fs);
    }
    lock_drop_all(fs);
    return error;
}

int shmfs_io_begin(struct shmfs *fs, uint32_t limit, int64_t timeout_ms)
{
    uint32_t *bell = &statistics_of(fs)->io_bell;
    const uint64_t start_us = port_now_us();
    for (;;) {
        const uint32_t seen = port_register_load(bell);
        pthread_mutex_lock(&fs->mutex);
        int error = change_io(fs, limit, 1);
        pthread_mutex_unlock(&fs->mutex);
        if (error != SHMFS_ERROR_LIMIT)
            return error;
        int64_t left_us = IO_LOOK_US;
        if (timeout_ms >= 0) {
            const int64_t limit_us = timeout_ms < INT64_MAX / 1000 ? timeout_ms * 1000 : INT64_MAX;
            const int64_t rest_us = limit_us - (int64_t)(port_now_us() - start_us);
            if (rest_us <= 0)
                return error;
            left_us = rest_us < left_us ? rest_us : left_us;
        }
        if (!port_wait(bell, seen, left_us))
            shmfs_sweep(fs);
    }
}

int shmfs_io_end(struct shmfs *fs)
{
    uint32_t *bell = &statistics_of(fs)->io_bell;
    pthread_mutex_lock(&fs->mutex);
    int error = change_io(fs, 0, -1);
    pthread_mutex_unlock(&fs->mutex);
    if (!error) {
        port_register_add(&fs->port, bell, 1);
        port_wake(bell, INT32_MAX);
    }
    return error;
}
