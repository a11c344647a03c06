/* log.c: transactions.
 *
 * An operation reads under its locks, records the stores that it will make, and commits. The
 * records lie in the client's log in shared memory; storing their number there is the commit point.
 * Then the client applies the records and sets the number back to zero. A client that dies before
 * the commit point has changed nothing. If it dies after the commit point, another client applies
 * the records; applying them more than once has the same effect as once. The client holds all locks
 * until the log is empty again, so only readers without locks can see an intermediate state, and
 * they detect it by `sequence`. Each operation has exactly one commit point.
 */
#include "core.h"

#include <assert.h>

enum record_kind { RECORD_SET32 = 1, RECORD_SET64, RECORD_CHAIN, RECORD_FREE };

#define PLACE_BITS 56
#define PLACE_MASK (((uint64_t)1 << PLACE_BITS) - 1)

static void note(struct shmfs *fs, enum record_kind kind, uint64_t place, uint64_t value)
{
    assert(fs->log_count < IMAGE_LOG_RECORDS);
    const struct image_record record = {(uint64_t)kind << PLACE_BITS | place, value};
    struct image_record *shared = &client_at(fs, fs->client)->records[fs->log_count];
    fs->records[fs->log_count++] = record;
    port_store64(&fs->port, &shared->place, record.place);
    port_store64(&fs->port, &shared->value, record.value);
}

void log_set32(struct shmfs *fs, uint32_t *word, uint32_t value)
{
    note(fs, RECORD_SET32, (uint64_t)((uint8_t *)word - fs->control), value);
}

void log_set64(struct shmfs *fs, uint64_t *word, uint64_t value)
{
    note(fs, RECORD_SET64, (uint64_t)((uint8_t *)word - fs->control), value);
}

void log_chain(struct shmfs *fs, uint32_t first, uint32_t count, uint32_t end)
{
    note(fs, RECORD_CHAIN, first, (uint64_t)count << 32 | end);
}

void log_free(struct shmfs *fs, uint32_t first, uint32_t count)
{
    note(fs, RECORD_FREE, first, (uint64_t)count << 32);
}

void log_names(struct shmfs *fs, uint64_t groups)
{
    fs->log_groups |= groups;
}

/* Return the index of the last record for a word, or -1. */
static int64_t find(const struct shmfs *fs, const uint32_t *word)
{
    const uint64_t place =
        (uint64_t)RECORD_SET32 << PLACE_BITS | (uint64_t)((const uint8_t *)word - fs->control);
    int64_t number = fs->log_count;
    while (--number >= 0 && fs->records[number].place != place)
        ;
    return number;
}

uint32_t log_get32(struct shmfs *fs, const uint32_t *word)
{
    const int64_t number = find(fs, word);
    return number < 0 ? port_load32(&fs->port, word) : (uint32_t)fs->records[number].value;
}

void log_change32(struct shmfs *fs, uint32_t *word, uint32_t value)
{
    const int64_t number = find(fs, word);
    if (number < 0) {
        log_set32(fs, word, value);
        return;
    }
    fs->records[number].value = value;
    port_store64(&fs->port, &client_at(fs, fs->client)->records[number].value, value);
}

static void clear(struct shmfs *fs)
{
    fs->log_count = 0;
    fs->log_groups = 0;
}

void log_discard(struct shmfs *fs)
{
    if (!fs->log_count)
        return;
    /* The next client of this slot must not have its records overwritten by lines of our cache. */
    port_flush(&fs->port, client_at(fs, fs->client)->records,
               fs->log_count * sizeof(struct image_record));
    port_fence(&fs->port);
    clear(fs);
}

/* Return whether a record changes only words of the image. A faulty client may have written it. */
static bool is_sound(const struct shmfs *fs, const struct image_record *record)
{
    const uint64_t place = record->place & PLACE_MASK, blocks = fs->shape.geometry.block_count;
    switch (record->place >> PLACE_BITS) {
    case RECORD_SET32:
        return place % 4 == 0 && place >= fs->shape.statistics &&
               place + 4 <= fs->shape.control_bytes;
    case RECORD_SET64:
        return place % 8 == 0 && place >= fs->shape.statistics &&
               place + 8 <= fs->shape.control_bytes;
    case RECORD_CHAIN:
    case RECORD_FREE:
        return place >= 1 && record->value >> 32 >= 1 &&
               place - 1 + (record->value >> 32) <= blocks;
    default:
        return false;
    }
}

/* Make the store that a record describes. A store writes back its whole line, so the line must not
 * be stale: this core may have fetched it before it took the lock that guards it. */
static void apply(struct shmfs *fs, const struct image_record *record)
{
    struct port *port = &fs->port;
    const uint64_t kind = record->place >> PLACE_BITS, place = record->place & PLACE_MASK;
    if (kind == RECORD_SET32) {
        port_invalidate(port, fs->control + place, sizeof(uint32_t));
        port_store32(port, (uint32_t *)(fs->control + place), (uint32_t)record->value);
        port_flush(port, fs->control + place, sizeof(uint32_t));
        return;
    }
    if (kind == RECORD_SET64) {
        port_invalidate(port, fs->control + place, sizeof(uint64_t));
        port_store64(port, (uint64_t *)(fs->control + place), record->value);
        port_flush(port, fs->control + place, sizeof(uint64_t));
        return;
    }
    const uint32_t first = (uint32_t)place, count = (uint32_t)(record->value >> 32);
    uint32_t *fat = fat_at(fs, first);
    port_invalidate(port, fat, count * sizeof *fat);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t next = i + 1 < count ? first + i + 1 : (uint32_t)record->value;
        port_store32(port, fat + i, kind == RECORD_FREE ? FAT_FREE : next);
    }
    port_flush(port, fat, count * sizeof *fat);
}

/* Signal to readers without locks that names start to change, or that the change is complete. A
 * dead client may have left the sequence number odd. */
static void mark(struct shmfs *fs, uint64_t groups, bool changing)
{
    for (; PORT_COHERENT && groups; groups &= groups - 1) {
        uint32_t *sequence = &group_at(fs, (uint32_t)__builtin_ctzll(groups))->sequence;
        uint32_t now = port_load32(&fs->port, sequence);
        if (changing)
            port_store32(&fs->port, sequence, now | 1);
        else
            port_publish32(&fs->port, sequence, (now | 1) + 1);
    }
    if (PORT_COHERENT && changing)
        port_fence(&fs->port);
}

static void apply_all(struct shmfs *fs, const struct image_record *records, uint32_t count,
                          uint64_t groups, uint32_t *log_count)
{
    mark(fs, groups, true);
    for (uint32_t i = 0; i < count; i++)
        apply(fs, &records[i]);
    mark(fs, groups, false);
    port_publish32(&fs->port, log_count, 0);
}

void log_commit(struct shmfs *fs)
{
    struct image_client *client = client_at(fs, fs->client);
    if (!fs->log_count)
        return;
    port_store64(&fs->port, &client->log_groups, fs->log_groups);
    port_flush(&fs->port, client->records, fs->log_count * sizeof client->records[0]);
    /* The commit point: a client that dies before this store has changed nothing; after this store
     * the whole transaction takes effect. */
    port_publish32(&fs->port, &client->log_count, fs->log_count);
    apply_all(fs, fs->records, fs->log_count, fs->log_groups, &client->log_count);
    clear(fs);
}

int log_replay(struct shmfs *fs, uint32_t number)
{
    struct image_client *client = client_at(fs, number);
    struct image_record records[IMAGE_LOG_RECORDS];
    const uint32_t count = port_look32(&fs->port, &client->log_count);
    if (!count)
        return 0;
    if (count > IMAGE_LOG_RECORDS)
        return SHMFS_ERROR_CORRUPT;
    port_invalidate(&fs->port, client->records, count * sizeof records[0]);
    port_read(&fs->port, records, client->records, count * sizeof records[0]);
    uint64_t groups = port_load64(&fs->port, &client->log_groups);
    if (fs->shape.geometry.shard_count < 64)
        groups &= bit(fs->shape.geometry.shard_count) - 1;
    for (uint32_t i = 0; i < count; i++)
        if (!is_sound(fs, &records[i]))
            return SHMFS_ERROR_CORRUPT;
    apply_all(fs, records, count, groups, &client->log_count);
    return 1;
}
