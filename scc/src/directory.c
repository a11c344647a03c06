/* directory.c: names. The directory is flat, with chained buckets. A bucket belongs to a group by
 * its number; an entry belongs to the group in which it lies.
 */
#include "core.h"

#include <time.h>

#define READ_ONLY_SPINS 200

static void finish(const struct shmfs *fs, struct name *name)
{
    name->word_count = (name->size_bytes + 7) / 8;
    name->hash = name_hash(name->words, name->size_bytes);
    name->bucket = (uint32_t)(name->hash & (fs->shape.bucket_count - 1));
    name->group = name->bucket / fs->shape.buckets_per_group;
}

int name_read(const struct shmfs *fs, const char *text, struct name *name)
{
    const size_t size_bytes = text ? strnlen(text, SHMFS_NAME_MAX_BYTES + 1) : 0;
    if (!size_bytes || size_bytes > SHMFS_NAME_MAX_BYTES || memchr(text, '/', size_bytes))
        return SHMFS_ERROR_NAME;
    name->size_bytes = (uint32_t)size_bytes;
    name->words[(size_bytes - 1) / 8] = 0;
    memcpy(name->words, text, size_bytes);
    finish(fs, name);
    return 0;
}

void name_of(struct shmfs *fs, const struct image_entry *entry, struct name *name)
{
    const uint32_t size_bytes = port_load32(&fs->port, &entry->name_bytes);
    name->size_bytes = size_bytes <= SHMFS_NAME_MAX_BYTES ? size_bytes : SHMFS_NAME_MAX_BYTES;
    for (uint32_t i = 0; i < IMAGE_NAME_WORDS; i++)
        name->words[i] = port_load64(&fs->port, &entry->name[i]);
    finish(fs, name);
}

static struct image_entry *entry_at(const struct shmfs *fs, uint32_t number)
{
    if (number - 1 >= fs->shape.geometry.entry_count) /* 0 is none; minus 1 it exceeds any count */
        return NULL;
    return (struct image_entry *)(fs->control + fs->shape.entries) + (number - 1);
}

struct image_entry *entry_refresh(struct shmfs *fs, uint32_t number)
{
    struct image_entry *entry = entry_at(fs, number);
    if (entry)
        port_invalidate(&fs->port, entry, sizeof *entry);
    return entry;
}

bool entry_is_used(struct shmfs *fs, uint32_t number, uint32_t *inode)
{
    const uint32_t *place = &entry_at(fs, number)->inode;
    port_invalidate(&fs->port, place, sizeof *place);
    *inode = port_load32(&fs->port, place);
    return *inode;
}

static uint32_t *bucket_at(const struct shmfs *fs, const struct name *name)
{
    return (uint32_t *)(fs->control + fs->shape.buckets) + name->bucket;
}

static bool is_named(struct shmfs *fs, const struct image_entry *entry, const struct name *name)
{
    if (port_load64(&fs->port, &entry->hash) != name->hash ||
        port_load32(&fs->port, &entry->name_bytes) != name->size_bytes)
        return false;
    for (uint32_t i = 0; i < name->word_count; i++)
        if (port_load64(&fs->port, &entry->name[i]) != name->words[i])
            return false;
    return true;
}

static int find(struct shmfs *fs, const struct name *name, struct place *place)
{
    const uint32_t *bucket = bucket_at(fs, name);
    port_invalidate(&fs->port, bucket, sizeof *bucket);
    *place = (struct place){0};
    uint32_t number = port_load32(&fs->port, bucket);
    for (uint32_t step = 0; number; step++) {
        const struct image_entry *entry = entry_refresh(fs, number);
        if (!entry || step > fs->shape.geometry.entry_count)
            return SHMFS_ERROR_CORRUPT;
        if (is_named(fs, entry, name)) {
            place->entry = number;
            place->inode = port_load32(&fs->port, &entry->inode);
            return inode_refresh(fs, place->inode) ? 0 : SHMFS_ERROR_CORRUPT;
        }
        place->before = number;
        number = port_load32(&fs->port, &entry->next);
    }
    place->before = 0;
    return 0;
}

int directory_look_once(struct shmfs *fs, const struct name *name, struct found *found)
{
    const struct image_group *group = group_at(fs, name->group);
    for (int tries = 0; PORT_COHERENT && tries < 1000; tries++) {
        const uint32_t sequence = port_look32(&fs->port, &group->sequence);
        if (sequence & 1) {
            port_pause();
            continue;
        }
        struct place place;
        int error = find(fs, name, &place);
        if (!error && place.entry)
            *found = (struct found){
                place.inode, port_load32(&fs->port, &inode_refresh(fs, place.inode)->generation)};
        port_fence(&fs->port);
        if (port_load32(&fs->port, &group->sequence) != sequence)
            continue;
        return error || place.entry ? error : SHMFS_ERROR_NOT_FOUND;
    }
    return SHMFS_ERROR_BUSY; /* the writer is slow or dead; taking the lock resolves that */
}

bool read_only_wait(const struct shmfs *fs, uint32_t *tries)
{
    const struct timespec one_ms = {.tv_nsec = 1000000};
    if (++*tries <= READ_ONLY_SPINS) {
        port_pause();
        return true;
    }
    if (*tries - READ_ONLY_SPINS > fs->options.lock_timeout_ms)
        return false;
    nanosleep(&one_ms, NULL);
    return true;
}

int directory_look(struct shmfs *fs, const struct name *name, struct found *found)
{
    uint32_t tries = 0;
    int error;
    do
        error = directory_look_once(fs, name, found);
    while (error == SHMFS_ERROR_BUSY && fs->options.is_read_only && read_only_wait(fs, &tries));
    if (error != SHMFS_ERROR_BUSY || fs->options.is_read_only)
        return error;
    struct place place;
    if (!(error = directory_lock(fs, name, &place, 1))) {
        if (place.entry)
            *found = (struct found){
                place.inode, port_load32(&fs->port, &inode_refresh(fs, place.inode)->generation)};
        else
            error = SHMFS_ERROR_NOT_FOUND;
    }
    lock_drop(fs, LOCK_DIRECTORY, SHARDS_ALL);
    return error;
}

static uint32_t first_free(struct shmfs *fs, uint32_t group)
{
    const uint32_t *place = &group_at(fs, group)->entry_free_first;
    port_invalidate(&fs->port, place, sizeof *place);
    return port_load32(&fs->port, place);
}

/* Return a number from a free list after checking that it is free; otherwise CORRUPT. */
static int64_t free_one(struct shmfs *fs, uint32_t group, uint32_t number)
{
    const struct image_entry *entry = entry_refresh(fs, number);
    if (!entry || entry_group(fs, number) != group || port_load32(&fs->port, &entry->inode))
        return SHMFS_ERROR_CORRUPT;
    return number;
}

/* Find names under locks that are held; add the locks that are needed to change them to
 * `shards`. */
static int find_all(struct shmfs *fs, const struct name *names, struct place *places, int count,
                    uint64_t *shards)
{
    for (int i = 0; i < count; i++) {
        int error = find(fs, &names[i], &places[i]);
        if (error)
            return error;
        if (places[i].entry)
            *shards |= bit(entry_group(fs, places[i].entry));
        if (places[i].before)
            *shards |= bit(entry_group(fs, places[i].before));
    }
    return 0;
}

static int lock_all(struct shmfs *fs, const struct name *names, struct place *places, int count,
                    uint64_t shards)
{
    for (int i = 0; i < count; i++)
        shards |= bit(names[i].group);
    for (;;) {
        uint64_t wanted = shards;
        int error = lock_take(fs, LOCK_DIRECTORY, shards);
        if (!error)
            error = find_all(fs, names, places, count, &wanted);
        if (error || wanted == shards)
            return error;
        lock_drop(fs, LOCK_DIRECTORY, SHARDS_ALL);
        shards = wanted;
    }
}

int directory_lock(struct shmfs *fs, const struct name *names, struct place *places, int count)
{
    return lock_all(fs, names, places, count, 0);
}

int64_t directory_lock_free(struct shmfs *fs, const struct name *names, struct place *places,
                            int count)
{
    const uint32_t shards = fs->shape.geometry.shard_count;
    const uint32_t own = names[count - 1].group;
    for (uint32_t i = 0; i <= shards; i++) {
        const uint32_t group = (own + i) % shards;
        const bool is_last = i == shards;
        if (!is_last && !first_free(fs, group))
            continue; /* read without the lock: may be outdated */
        int error = lock_all(fs, names, places, count, is_last ? SHARDS_ALL : bit(group));
        if (error)
            return error;
        for (uint32_t other = 0; other < (is_last ? shards : 1); other++) {
            const uint32_t home = (group + other) % shards, number = first_free(fs, home);
            if (number)
                return free_one(fs, home, number);
        }
        if (!is_last)
            lock_drop(fs, LOCK_DIRECTORY, SHARDS_ALL);
    }
    return SHMFS_ERROR_NO_ENTRIES;
}

void directory_add(struct shmfs *fs, const struct name *name, uint32_t number, uint32_t inode)
{
    struct port *port = &fs->port;
    struct image_entry *entry = entry_refresh(fs, number);
    struct image_group *group = group_at(fs, entry_group(fs, number));
    uint32_t *bucket = bucket_at(fs, name);
    const uint32_t next_free = port_load32(port, &entry->next);
    /* No client reads these fields while the entry is free. */
    port_store64(port, &entry->hash, name->hash);
    port_store32(port, &entry->name_bytes, name->size_bytes);
    for (uint32_t i = 0; i < IMAGE_NAME_WORDS; i++) {
        const uint64_t word = i < name->word_count ? name->words[i] : 0;
        if (i < name->word_count || port_load64(port, &entry->name[i]))
            port_store64(port, &entry->name[i], word);
    }
    port_flush(port, entry, sizeof *entry);
    log_set32(fs, &group->entry_free_first, next_free);
    log_set32(fs, &group->entry_free_count, port_load32(port, &group->entry_free_count) - 1);
    log_set32(fs, &entry->inode, inode);
    log_set32(fs, &entry->next, port_load32(port, bucket));
    log_set32(fs, bucket, number);
    log_names(fs, bit(name->group));
}

/* Record that an entry leaves its bucket. */
static void unchain(struct shmfs *fs, const struct name *name, struct place place, uint32_t next)
{
    if (place.before)
        log_set32(fs, &entry_at(fs, place.before)->next, next);
    else
        log_set32(fs, bucket_at(fs, name), next);
    log_names(fs, bit(name->group));
}

void directory_remove(struct shmfs *fs, const struct name *name, struct place place)
{
    struct image_entry *entry = entry_refresh(fs, place.entry);
    const uint32_t home = entry_group(fs, place.entry);
    struct image_group *group = group_at(fs, home);
    const uint32_t first = first_free(fs, home);
    unchain(fs, name, place, port_load32(&fs->port, &entry->next));
    log_set32(fs, &entry->inode, 0);
    log_set32(fs, &entry->next, first);
    log_set32(fs, &group->entry_free_first, place.entry);
    log_set32(fs, &group->entry_free_count, port_load32(&fs->port, &group->entry_free_count) + 1);
}

void directory_rename(struct shmfs *fs, const struct name *from, struct place place,
                      const struct name *to)
{
    struct image_entry *entry = entry_refresh(fs, place.entry);
    uint32_t *bucket = bucket_at(fs, to);
    unchain(fs, from, place, port_load32(&fs->port, &entry->next));
    log_set64(fs, &entry->hash, to->hash);
    log_set32(fs, &entry->name_bytes, to->size_bytes);
    for (uint32_t i = 0; i < IMAGE_NAME_WORDS; i++)
        log_set64(fs, &entry->name[i], i < to->word_count ? to->words[i] : 0);
    log_change32(fs, &entry->next, log_get32(fs, bucket));
    log_change32(fs, bucket, place.entry);
    log_names(fs, bit(to->group));
}
