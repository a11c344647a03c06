/* lock.c: locks that survive the death of their owner.
 *
 * A lock is one register. Its owner stores its number and generation there, so that another client
 * can find out whether the owner is still alive: each live client holds a lock on a byte of the
 * control file, which the kernel releases when the process dies; without a control file, `is_alive`
 * says so. To take a lock, a client swaps 0 for its own owner value. To wait, it polls for a while
 * and then sleeps on the register; it wakes now and then to check whether the owner has died. If
 * so, it completes or discards the owner's transaction (`client_recover`), and only then replaces
 * the owner value by its own. If it dies in between, the next client finds the same state. (CIB-24)
 */
#include "core.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>

#define CONTENDED 0x80000000u /* in a register: a client sleeps on it */
#define CLIENT_BITS 11
#define GENERATION_MASK ((1u << (31 - CLIENT_BITS)) - 1)
#define SPINS 200
#define NAP_US 500        /* between two checks whether the owner is alive */
#define SIGN_OFFSET ((off_t)1 << 40) /* of the bytes that are locked: beyond the end of any file */

static uint32_t client_in(uint32_t owner)
{
    return (owner & ((1u << CLIENT_BITS) - 1)) - 1;
}

static uint32_t generation_in(uint32_t owner)
{
    return (owner & ~CONTENDED) >> CLIENT_BITS;
}

static uint32_t signature(uint32_t client, uint32_t generation)
{
    return (generation & GENERATION_MASK) << CLIENT_BITS | (client + 1);
}

int client_sign(const struct shmfs *fs, uint32_t client, bool lives)
{
    struct flock byte = {
        .l_type = lives ? F_WRLCK : F_UNLCK,
        .l_whence = SEEK_SET,
        .l_start = SIGN_OFFSET + client,
        .l_len = 1,
    };
    if (fs->memory.control_fd >= 0)
        return fcntl(fs->memory.control_fd, F_OFD_SETLK, &byte);
    if (!fs->options.claim || fs->options.claim(fs->options.is_alive_argument, client, lives))
        return 0;
    errno = EAGAIN;
    return -1;
}

bool client_lives(const struct shmfs *fs, uint32_t client, uint32_t generation)
{
    if (client >= fs->shape.geometry.client_count)
        return false;
    const uint32_t now = port_register_load(&client_at(fs, client)->generation) & GENERATION_MASK;
    if ((generation & GENERATION_MASK) != now)
        return false; /* another client has its slot */
    if (client == fs->client && now == (fs->generation & GENERATION_MASK))
        return true;
    if (fs->memory.control_fd < 0)
        return !fs->options.is_alive ||
               fs->options.is_alive(fs->options.is_alive_argument, client, generation);
    struct flock byte = {
        .l_type = F_WRLCK,
        .l_whence = SEEK_SET,
        .l_start = SIGN_OFFSET + client,
        .l_len = 1,
    };
    return fcntl(fs->memory.control_fd, F_OFD_GETLK, &byte) < 0 || byte.l_type != F_UNLCK;
}

static struct image_lock *lock_at(const struct shmfs *fs, uint32_t number)
{
    return (struct image_lock *)(fs->control + fs->shape.locks) + number;
}

static struct image_lock *lock_of(const struct shmfs *fs, enum lock_kind kind, uint32_t shard)
{
    if (kind == LOCK_STATISTICS)
        return lock_at(fs, 0);
    return lock_at(fs, 2 + (kind - 1) * fs->shape.geometry.shard_count + shard);
}

/* Take over the lock of a dead owner: returns 1 if the owner was dead and we now own the lock.
 * Fails with CORRUPT if the owner's log cannot be applied, or if the owner value names no
 * client. */
static int inherit(struct shmfs *fs, uint32_t *place, uint32_t seen, bool recovers)
{
    const uint32_t client = client_in(seen), generation = generation_in(seen);
    if (client_lives(fs, client, generation))
        return 0;
    int error = recovers ? client_recover(fs, client, generation) : 0;
    if (error)
        return error == SHMFS_ERROR_BUSY ? 0 : error;
    return port_register_swap(&fs->port, place, seen, fs->owner | (seen & CONTENDED)) == seen;
}

static int wait_for(struct shmfs *fs, uint32_t *place, bool recovers)
{
    const uint64_t timeout_us = (uint64_t)fs->options.lock_timeout_ms * 1000;
    const uint64_t start_us = timeout_us ? port_now_us() : 0;
    port_register_add(&fs->port, &statistics_of(fs)->lock_wait_count, 1);
    for (int spin = 0; spin < SPINS; spin++) {
        if (!port_register_load(place) &&
            !port_register_swap(&fs->port, place, 0, fs->owner))
            return 0;
        port_pause();
    }
    for (;;) {
        uint32_t seen = port_register_load(place);
        if (!seen) {
            /* Other clients may still sleep on it and need to be woken: keep the flag. */
            if (!port_register_swap(&fs->port, place, 0, fs->owner | CONTENDED))
                return 0;
            continue;
        }
        const int result = inherit(fs, place, seen, recovers);
        if (result)
            return result < 0 ? result : 0;
        if (timeout_us && port_now_us() - start_us >= timeout_us)
            return SHMFS_ERROR_BUSY;
        if (seen & CONTENDED ||
            port_register_swap(&fs->port, place, seen, seen | CONTENDED) == seen)
            port_wait(place, seen | CONTENDED, NAP_US);
    }
}

static int take(struct shmfs *fs, struct image_lock *lock, bool recovers)
{
    if (!port_register_swap(&fs->port, &lock->owner, 0, fs->owner))
        return 0;
    return wait_for(fs, &lock->owner, recovers);
}

/* Release a lock if it has this owner value; otherwise do nothing. */
static void lock_release_for(struct shmfs *fs, struct image_lock *lock, uint32_t owner)
{
    if (port_register_swap(&fs->port, &lock->owner, owner, 0) == owner)
        return; /* no client sleeps on it */
    if (port_register_swap(&fs->port, &lock->owner, owner | CONTENDED, 0) == (owner | CONTENDED))
        port_wake(&lock->owner, 1);
}

void locks_release(struct shmfs *fs, uint32_t client)
{
    for (uint32_t i = 0; i < fs->shape.lock_count; i++) {
        struct image_lock *lock = lock_at(fs, i);
        const uint32_t owner = port_register_load(&lock->owner) & ~CONTENDED;
        if (owner && client_in(owner) == client && owner != fs->owner)
            lock_release_for(fs, lock, owner);
    }
}

static void drop(struct shmfs *fs, struct image_lock *lock)
{
    lock_release_for(fs, lock, fs->owner);
}

void lock_drop(struct shmfs *fs, enum lock_kind kind, uint64_t shards)
{
    shards &= fs->held[kind];
    fs->held[kind] &= ~shards;
    for (; shards; shards &= shards - 1)
        drop(fs, lock_of(fs, kind, (uint32_t)__builtin_ctzll(shards)));
}

void lock_drop_all(struct shmfs *fs)
{
    for (int kind = LOCK_KINDS - 1; kind >= 0; kind--)
        lock_drop(fs, kind, fs->held[kind]);
}

int lock_take(struct shmfs *fs, enum lock_kind kind, uint64_t shards)
{
    const uint32_t count = kind == LOCK_STATISTICS ? 1 : fs->shape.geometry.shard_count;
    if (fs->options.is_read_only)
        return SHMFS_ERROR_READ_ONLY; /* every change starts with a lock */
    if (count < 64)
        shards &= bit(count) - 1;
    shards &= ~fs->held[kind];
    if (!shards)
        return 0;
    for (int later = kind + 1; later < LOCK_KINDS; later++)
        assert(!fs->held[later]);
    assert(fs->held[kind] < (shards & -shards));
    begin_change(fs); /* it leaves no lock behind if it ends the process */
    for (uint64_t left = shards; left; left &= left - 1) {
        const uint32_t shard = (uint32_t)__builtin_ctzll(left);
        int error = take(fs, lock_of(fs, kind, shard), true);
        if (error) {
            lock_drop(fs, kind, shards & ~left);
            return error;
        }
        fs->held[kind] |= bit(shard);
    }
    begin_change(fs); /* waiting for the locks may have taken long */
    return 0; /* taking a register orders later accesses; readers drop the lines they read */
}

int client_recover(struct shmfs *fs, uint32_t client, uint32_t generation)
{
    if (client >= fs->shape.geometry.client_count)
        return SHMFS_ERROR_CORRUPT;
    struct image_lock *recovery = lock_at(fs, 1);
    int error = take(fs, recovery, false);
    if (error)
        return error;
    struct image_client *dead = client_at(fs, client);
    /* Another client may have recovered it before us, and the slot may have been reused since. */
    if ((port_register_load(&dead->generation) & GENERATION_MASK) ==
        (generation & GENERATION_MASK))
        error = log_replay(fs, client);
    if (error > 0)
        port_register_add(&fs->port, &statistics_of(fs)->recovery_count, 1);
    drop(fs, recovery);
    return error < 0 ? error : 0;
}

/* A slot gets its next generation under the recovery lock. Otherwise a client that has just seen
 * the old generation could mistake the new client's log for the old one's (models/locks.pml). */
int client_renew(struct shmfs *fs)
{
    struct image_lock *recovery = lock_at(fs, 1);
    struct image_client *place = client_at(fs, fs->client);
    fs->owner = signature(fs->client, fs->generation);
    lock_release_for(fs, recovery, fs->owner); /* our predecessor may have died holding it */
    int error = take(fs, recovery, false);
    if (error)
        return error;
    error = log_replay(fs, fs->client);
    if (error >= 0)
        port_register_store(&fs->port, &place->generation, ++fs->generation);
    drop(fs, recovery);
    fs->owner = signature(fs->client, fs->generation);
    return error < 0 ? error : 0;
}
