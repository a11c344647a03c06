/* shmfs_verdicts: the errors that the check and the calls report for a damaged image. shmfs_damage
 * shows that they end and stay inside the memory, whatever is damaged.
 */
#include "shmfs_watch.h"

#include <unistd.h>

/* An image with a named file, a nameless one, and one being written, in two shards. */
static struct shmfs_handle own;

static struct shmfs *to_damage(void)
{
    struct shmfs_handle file;
    patience_ms = 1;
    struct shmfs *fs = start((struct shmfs_geometry){.block_count = 64, .inode_count = 8,
                                                     .entry_count = 8, .handle_count = 4,
                                                     .shard_count = 2});
    make_file(fs, "a", 2 * BLOCK);
    IS(shmfs_create(fs, "own", BLOCK, &own), 0);
    IS(shmfs_create(clients[1], NULL, BLOCK, &file), 0);
    return fs;
}

/* Return whether the check finds a problem with this code. */
static bool is_found(const char *code)
{
    static uint8_t scratch[4096] __attribute__((aligned(8)));
    struct shmfs_problem problems[64];
    const int64_t count = shmfs_check(memory.control, memory.control_bytes, memory.data_bytes,
                                      scratch, sizeof scratch, problems, 64);
    for (int64_t i = 0; i < count && i < 64; i++)
        if (!strcmp(problems[i].code, code))
            return true;
    return false;
}

static struct image_entry *entry_of(struct shmfs *fs, const char *text, uint32_t *number)
{
    struct name name;
    struct place place;
    IS(name_read(fs, text, &name), 0);
    IS(directory_lock(fs, &name, &place, 1), 0);
    lock_drop_all(fs);
    *number = place.entry;
    return entry_refresh(fs, place.entry);
}

/* The check has a code for every damage of one word. */
static void named_damage(void)
{
    struct shmfs *fs = to_damage();
    uint32_t number;
    struct image_entry *entry = entry_of(fs, "a", &number);
    struct image_inode *a = inode_refresh(fs, (uint32_t)shmfs_lookup(fs, "a"));
    struct image_inode *mine = inode_refresh(fs, own.inode);
    struct image_group *group = group_at(fs, 0), *other = group_at(fs, 1);
    const struct { uint32_t *word; uint32_t value; char code[4]; } damages[] = {
        {(uint32_t *)fs->control + 8, 1, "S1"}, {&client_at(fs, 1)->state, 7, "C1"},
        {&client_at(fs, 1)->log_count, 1, "C1"}, {&client_at(fs, 0)->state, 0, "C2"},
        {&handle_at(fs, 1, 3)->inode, 99, "C2"}, {&client_at(fs, 2)->io_count, 1, "C3"},
        {&lock(LOCK_INODES)->owner, 99, "C4"}, {&entry->inode, 99, "D1"},
        {&entry->inode, 8, "D1"}, {(uint32_t *)entry->name, 'b', "D2"},
        {&entry->name_bytes, 0, "D2"}, {&entry->name_bytes, 300, "D2"},
        {&entry->next, number, "D3"}, {&entry->next, 99, "D3"},
        {&group->entry_free_first, 99, "D3"},
        {&group->entry_free_first, other->entry_free_first, "D3"},
        {&group->entry_free_first, number, "D3"}, {&group->entry_free_count, 99, "F3"},
        {&a->block_count, 3, "I1"}, {&a->last_block, 9, "I1"}, {&a->run_count, 2, "I1"},
        {(uint32_t *)&a->size_bytes, 1, "I1"}, {&a->flags, 8, "I2"}, {&a->link_count, 2, "I3"},
        {&a->flags, 0, "I4"}, {&group->inode_free_first, 99, "I4"},
        {&group->inode_free_first, other->inode_free_first, "I4"},
        {&group->inode_free_first, own.inode, "I4"}, {&group->inode_free_count, 99, "F3"},
        {&mine->handle_count, 2, "I5"}, {&a->link_count, 0, "I6"}, {&a->first_block, 99, "F1"},
        {&a->first_block, mine->first_block, "F2"}, {fat_at(fs, a->first_block), 0, "F1"},
        {fat_at(fs, 60), 1, "F2"}, {&group->block_free_count, 99, "F3"},
    };
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        const uint32_t before = *damages[i].word;
        IS(is_found(damages[i].code), false);
        *damages[i].word = damages[i].value;
        IS(is_found(damages[i].code) ? 0 : i + 1, 0);
        IS(strcmp(shmfs_problem_text(damages[i].code), shmfs_problem_text("??")) != 0, true);
        *damages[i].word = before;
    }
    end();
}

/* A free list that leads to an element in use, in another group or out of range yields nothing. */
static void lists_of_the_free(void)
{
    struct shmfs_handle file;
    struct shmfs *fs = to_damage();
    uint32_t number;
    entry_of(fs, "a", &number);
    struct image_group saved[2];
    for (int i = 0; i < 3; i++) {
        struct image_group *groups = group_at(fs, 0);
        memcpy(saved, groups, sizeof saved);
        for (int group = 0; group < 2; group++) {
            const uint32_t entries[] = {99, saved[!group].entry_free_first, number};
            const uint32_t inodes[] = {99, saved[!group].inode_free_first, own.inode};
            groups[group].entry_free_first = entries[i];
            groups[group].inode_free_first = inodes[i];
        }
        IS(is_found("D3"), true);
        IS(is_found("I4"), true);
        IS(shmfs_create(fs, NULL, 0, &file), SHMFS_ERROR_CORRUPT);
        IS(shmfs_create(fs, "new", 0, &file), SHMFS_ERROR_CORRUPT);
        IS(shmfs_link(fs, "a", "new"), SHMFS_ERROR_CORRUPT);
        memcpy(groups, saved, sizeof saved);
        check();
    }
    end();
}

/* A bucket with a cycle: looking up a name that is not in it ends. */
static void round_bucket(void)
{
    struct name name, other;
    char text[16];
    struct shmfs *fs = to_damage();
    uint32_t number, unnamed = 0;
    struct image_entry *entry = entry_of(fs, "a", &number);
    const uint32_t before = entry->next;
    IS(name_read(fs, "a", &name), 0);
    do {
        snprintf(text, sizeof text, "%u", unnamed++);
        IS(name_read(fs, text, &other), 0);
    } while (other.bucket != name.bucket);
    entry->next = number;
    IS(shmfs_lookup(fs, "a") > 0, true);
    IS(shmfs_lookup(fs, text), SHMFS_ERROR_CORRUPT);
    IS(shmfs_link(fs, "a", text), SHMFS_ERROR_CORRUPT);
    entry->next = before;
    end();
}

/* If one record of a dead client leads outside the image, none of its records is applied. */
static void notes_of_a_fool(void)
{
    struct shmfs *fs = to_damage();
    const struct shape *shape = &fs->shape;
    struct image_client *dead = client_at(fs, 2);
    const uint64_t set32 = (uint64_t)1 << 56, set64 = set32 * 2, chain = set32 * 3;
    const uint64_t one = (uint64_t)1 << 32; /* block */
    const struct image_record fools[] = {
        {set32 | (shape->fat + 2), 0}, {set32 | 0, 0}, {set32 | shape->control_bytes, 0},
        {set64 | (shape->fat + 4), 0}, {set64 | 8, 0}, {set64 | shape->control_bytes, 0},
        {chain | 0, one}, {chain | 1, 0}, {chain | 1, 65 * one}, {chain | 65, one},
        {set32 * 4 | 64, 2 * one}, {set32 * 5 | 1, one}, {1, one},
    };
    static uint8_t before[1 << 16];
    uint8_t *const from = fs->control + shape->groups;
    const size_t size_bytes = shape->control_bytes - shape->groups;
    IS(size_bytes <= sizeof before, true);
    memcpy(before, from, size_bytes);
    is_dead[2] = true;
    for (size_t i = 0; i < sizeof fools / sizeof fools[0]; i++) {
        dead->records[0] = (struct image_record){set32 | (shape->inodes + 8), 77};
        dead->records[1] = fools[i];
        dead->log_count = 2;
        IS(shmfs_sweep(fs), SHMFS_ERROR_CORRUPT);
        IS(memcmp(from, before, size_bytes), 0);
    }
    dead->log_count = IMAGE_LOG_RECORDS + 1;
    IS(shmfs_sweep(fs), SHMFS_ERROR_CORRUPT);
    dead->records[1] = (struct image_record){chain | 64, one | FAT_END}; /* the last block */
    dead->log_count = 2;
    IS(shmfs_sweep(fs), 1);
    IS(*fat_at(fs, 64), FAT_END);
    IS(((uint32_t *)(fs->control + shape->inodes))[2], 77);
    memcpy(from, before, size_bytes);
    attach(2);
    end();
}

/* Locks with owner values of earlier or later clients of our slot are not ours. */
static void signed_for_us(void)
{
    struct shmfs_handle file;
    patience_ms = 1;
    struct shmfs *fs = small(8);
    const struct shmfs_options options = fs->options;
    uint32_t *owner = &lock(LOCK_INODES)->owner;
    const uint32_t generation = client_at(fs, 0)->generation;
    client_at(fs, 0)->generation = generation + 6;
    *owner = fs->owner + 6 * 2048; /* consecutive generations differ by 2048 */
    IS(shmfs_create(fs, NULL, 0, &file), SHMFS_ERROR_BUSY); /* that client counts as alive */
    is_dead[0] = true;
    IS(shmfs_create(fs, NULL, 0, &file), 0);
    IS(*owner, 0);
    client_at(fs, 0)->generation = generation;
    *owner = fs->owner + 2048;
    IS(shmfs_attach(&clients[0], storage[0], shmfs_size(), &memory, &options),
       SHMFS_ERROR_BUSY);
    *owner = 0;
    IS(shmfs_attach(&clients[0], storage[0], shmfs_size(), &memory, &options), 0);
    is_dead[0] = false;
    IS(free_blocks(clients[0]), 8);
    end();
}

static struct image_inode *harmed; /* a file of this client */

static void harm(void)
{
    harmed->size_bytes = UINT64_MAX;
}

static void harm_once(void)
{
    harm();
    meanwhile = NULL;
}

/* A file is damaged in the middle of a call, or before it is closed for good. */
static void harmed_files(void)
{
    struct shmfs_handle file = {.inode = 99};
    struct shmfs_info info;
    patience_ms = 1;
    struct shmfs *fs = small(8);
    handle_at(fs, 0, 0)->inode = 99; /* in the table, but not in the image */
    IS(shmfs_stat_handle(fs, &file, &info), SHMFS_ERROR_STALE);
    handle_at(fs, 0, 0)->inode = 0;
    IS(shmfs_create(fs, "a", BLOCK, &file), 0);
    harmed = inode_refresh(fs, file.inode);
    before_store(fs, 1, harm);
    IS(shmfs_reserve(fs, &file, 3 * BLOCK), SHMFS_ERROR_CORRUPT);
    harmed->size_bytes = 0;
    IS(free_blocks(fs), 7);
    IS(shmfs_write(fs, &file, content, 3 * BLOCK, 0), 3 * BLOCK);
    IS(lock_take(clients[1], LOCK_FAT, 1), 0);
    meanwhile = harm_once;
    IS(shmfs_truncate(fs, &file, BLOCK), SHMFS_ERROR_BUSY); /* the file may be cut or not */
    lock_drop_all(clients[1]);
    harm();
    shmfs_detach(fs);
    IS(shmfs_lookup(clients[1], "a"), SHMFS_ERROR_NOT_FOUND);
    IS(free_blocks(clients[1]), 8);
    attach(0);
    end();
}

/* A chain is broken where no client has read it yet: each read of that part fails. */
static void broken_chain(void)
{
    struct shmfs_handle files[3];
    patience_ms = 1;
    struct shmfs *fs = small(8);
    for (int i = 0; i < 3; i++)
        IS(shmfs_create(fs, i ? NULL : "a", BLOCK, &files[i]), 0);
    IS(shmfs_write(fs, &files[0], content, 3 * BLOCK, 0), 3 * BLOCK);
    uint32_t *link = fat_at(fs, inode_refresh(fs, files[0].inode)->first_block);
    const uint32_t before = port_load32(&fs->port, link);
    *link = FAT_FREE;
    files[0].place_block = 0;
    IS(shmfs_truncate(fs, &files[0], 2 * BLOCK), SHMFS_ERROR_CORRUPT);
    *link = before;
    IS(shmfs_truncate(fs, &files[0], 3 * BLOCK), 0);
    IS(shmfs_commit(fs, &files[0], NULL), 0);
    IS(shmfs_close(fs, &files[0]), 0);
    *link = FAT_FREE;
    /* opening drops stale content, so it walks the chain, if memory is not coherent */
    IS(shmfs_open(clients[1], "a", &files[0]), PORT_COHERENT ? 0 : SHMFS_ERROR_CORRUPT);
    if (PORT_COHERENT) {
        static uint8_t bytes[3 * BLOCK];
        IS(shmfs_read(clients[1], &files[0], bytes, sizeof bytes, 0), SHMFS_ERROR_CORRUPT);
        IS(shmfs_close(clients[1], &files[0]), 0);
    }
    IS(shmfs_unlink(clients[1], "a"), SHMFS_ERROR_CORRUPT);
    *link = before;
    IS(shmfs_unlink(clients[1], "a"), 0);
    end();
}

static void break_rest(void)
{
    for (uint32_t block = 2 * RUN_LIMIT + 1; block < 256; block += 2)
        *fat_at(clients[1], block) = FAT_FREE;
}

/* A file whose chain is damaged is being freed: it is removed, and every sweep reports the rest. */
static void broken_rest(void)
{
    struct shmfs_handle file;
    patience_ms = 1;
    struct shmfs *fs = start((struct shmfs_geometry){
        .block_count = 256, .inode_count = 260, .entry_count = 260, .handle_count = 8});
    make_every_second_block(fs);
    IS(shmfs_create(fs, NULL, 128 * BLOCK, &file), 0);
    between(fs, break_rest);
    IS(shmfs_close(fs, &file), 0);
    IS(fs->has_orphans, true);
    IS(shmfs_sweep(fs), SHMFS_ERROR_CORRUPT);
    IS(fs->has_orphans, true);
    for (uint32_t block = 2 * RUN_LIMIT + 1; block < 256; block += 2)
        *fat_at(fs, block) = block + 2 < 256 ? block + 2 : FAT_END;
    IS(shmfs_sweep(fs), 0);
    IS(free_blocks(fs), 128);
    end();
}

int main(void)
{
    alarm(300); /* ends an endless loop */
    fill_content();
    broken_chain();
    if (!PORT_COHERENT)
        return 0; /* private caches would undo the damage */
    named_damage();
    lists_of_the_free();
    round_bucket();
    notes_of_a_fool();
    signed_for_us();
    harmed_files();
    broken_rest();
    return 0;
}
