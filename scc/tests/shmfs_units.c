/* shmfs_units: errors and limits of shmfs that random walks rarely reach. */
#include "shmfs_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* --- images ---------------------------------------------------------------------------------- */

static void refuse_shapes(void)
{
    static const struct shmfs_geometry bad[] = {
        {.block_bytes = 2048}, {.block_bytes = 5000}, {.block_bytes = (uint64_t)1 << 31},
        {.block_count = SHMFS_BLOCK_MAX_COUNT + 1}, {.inode_count = SHMFS_INODE_MAX_COUNT + 1},
        {.entry_count = SHMFS_INODE_MAX_COUNT + 1}, {.client_count = SHMFS_CLIENT_MAX_COUNT + 1},
        {.handle_count = SHMFS_HANDLE_MAX_COUNT + 1}, {.shard_count = 3}, {.shard_count = 128},
    };
    uint64_t control_bytes, data_bytes;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct shmfs_geometry geometry = bad[i];
        IS(shmfs_sizes(&geometry, &control_bytes, &data_bytes), SHMFS_ERROR_ARGUMENT);
        IS(shmfs_format(&memory, &bad[i]), SHMFS_ERROR_ARGUMENT);
    }
    struct shmfs_geometry geometry = {0};
    IS(shmfs_sizes(&geometry, &control_bytes, &data_bytes), 0);
    IS(geometry.block_bytes, 1 << 20);
    IS(data_bytes, 1 << 30);
}

static void refuse_memory(void)
{
    const struct shmfs_geometry geometry = shmfs_geometry_of(clients[0]);
    struct shmfs *fs;
    uint8_t *place = storage[0];
    const struct { struct shmfs_memory memory; int format, attach; } cases[] = {
        {{NULL, 1 << 20, memory.data, 1 << 20, -1}, SHMFS_ERROR_ARGUMENT, SHMFS_ERROR_ARGUMENT},
        {{memory.control, 1 << 20, NULL, 1 << 20, -1}, 1, SHMFS_ERROR_ARGUMENT},
        {{(uint8_t *)memory.control + 8, 1 << 20, memory.data, 1 << 20, -1}, SHMFS_ERROR_ARGUMENT,
         SHMFS_ERROR_ARGUMENT},
        {{memory.control, memory.control_bytes - 1, memory.data, memory.data_bytes, -1},
         SHMFS_ERROR_TOO_SMALL, SHMFS_ERROR_FORMAT},
        {{memory.control, memory.control_bytes, memory.data, memory.data_bytes - 1, -1},
         SHMFS_ERROR_TOO_SMALL, SHMFS_ERROR_FORMAT},
        {{memory.control, 64, memory.data, memory.data_bytes, -1}, 1, SHMFS_ERROR_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].format < 1)
            IS(shmfs_format(&cases[i].memory, &geometry), cases[i].format);
        IS(shmfs_attach(&fs, place, shmfs_size(), &cases[i].memory, NULL), cases[i].attach);
    }
    IS(shmfs_format(NULL, &geometry), SHMFS_ERROR_ARGUMENT);
    IS(shmfs_format(&memory, NULL), SHMFS_ERROR_TOO_SMALL); /* for the default geometry */
    IS(shmfs_attach(NULL, place, shmfs_size(), &memory, NULL), SHMFS_ERROR_ARGUMENT);
    IS(shmfs_attach(&fs, NULL, shmfs_size(), &memory, NULL), SHMFS_ERROR_ARGUMENT);
    IS(shmfs_attach(&fs, place + 8, shmfs_size(), &memory, NULL), SHMFS_ERROR_ARGUMENT);
    IS(shmfs_attach(&fs, place, shmfs_size() - 1, &memory, NULL), SHMFS_ERROR_ARGUMENT);
    IS(shmfs_attach(&fs, place, shmfs_size(), NULL, NULL), SHMFS_ERROR_ARGUMENT);
}

/* Every byte of the superblock counts: a different version, size or machine is a different
 * image. */
static void refuse_superblocks(void)
{
    struct shmfs *fs;
    for (uint32_t i = 0; i < sizeof(struct image_superblock); i++) {
        ((uint8_t *)memory.control)[i] ^= 0x55;
        IS(shmfs_attach(&fs, storage[0], shmfs_size(), &memory, NULL), SHMFS_ERROR_FORMAT);
        IS(shmfs_check(memory.control, memory.control_bytes, memory.data_bytes, NULL, 0, NULL, 0),
           1);
        IS(shmfs_check_scratch_bytes(memory.control, memory.control_bytes), 0);
        ((uint8_t *)memory.control)[i] ^= 0x55;
    }
    IS(shmfs_check(memory.control, memory.control_bytes, memory.data_bytes, NULL, 0, NULL, 0),
       SHMFS_ERROR_ARGUMENT);
    static uint8_t scratch[1 << 12] __attribute__((aligned(8)));
    IS(shmfs_check(memory.control, memory.control_bytes, memory.data_bytes, scratch + 1,
                   sizeof scratch - 1, NULL, 0), SHMFS_ERROR_ARGUMENT); /* not aligned */
    IS(shmfs_check(memory.control, 64, memory.data_bytes, NULL, 0, NULL, 0), 1);
    IS(shmfs_check(NULL, 64, memory.data_bytes, NULL, 0, NULL, 0), 1);
    IS(shmfs_check((uint8_t *)memory.control + 1, 4096, 0, NULL, 0, NULL, 0), 1);
}

static void say_what_is_wrong(void)
{
    for (int error = SHMFS_ERROR_LIMIT; error <= 0; error++)
        IS(strcmp(shmfs_error_text(error), shmfs_error_text(1)) != 0, true);
    IS(strcmp(shmfs_problem_text("F2"), shmfs_problem_text("??")) != 0, true);
}

static void images(void)
{
    start((struct shmfs_geometry){.block_count = 4, .inode_count = 4, .entry_count = 4,
                                  .handle_count = 4});
    say_what_is_wrong();
    refuse_shapes();
    refuse_memory();
    for (int i = 0; i < CLIENTS; i++)
        shmfs_detach(clients[i]);
    refuse_superblocks();
    munmap(memory.control, memory.control_bytes);
    munmap(memory.data, memory.data_bytes);
}

/* --- limits ---------------------------------------------------------------------------------- */

static void names(void)
{
    static char longest[SHMFS_NAME_MAX_BYTES + 1], longer[SHMFS_NAME_MAX_BYTES + 2];
    struct shmfs *fs = start((struct shmfs_geometry){.block_count = 4, .inode_count = 4,
                                                     .entry_count = 4, .handle_count = 4});
    struct shmfs_handle file;
    struct shmfs_info info;
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    memset(longest, 'n', sizeof longest - 1);
    memset(longer, 'n', sizeof longer - 1);
    const char *const bad[] = {"", "a/b", longer};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        IS(shmfs_create(fs, bad[i], 0, &file), SHMFS_ERROR_NAME);
        IS(shmfs_lookup(fs, bad[i]), SHMFS_ERROR_NAME);
        IS(shmfs_open(fs, bad[i], &file), SHMFS_ERROR_NAME);
        IS(shmfs_stat(fs, bad[i], &info), SHMFS_ERROR_NAME);
        IS(shmfs_unlink(fs, bad[i]), SHMFS_ERROR_NAME);
        IS(shmfs_link(fs, bad[i], "n"), SHMFS_ERROR_NAME);
        IS(shmfs_rename(fs, "n", bad[i], true), SHMFS_ERROR_NAME);
        IS(shmfs_load(fs, nothing, bad[i]), SHMFS_ERROR_NAME);
        IS(shmfs_create(fs, NULL, 0, &file), 0);
        IS(shmfs_commit(fs, &file, bad[i]), SHMFS_ERROR_NAME);
        IS(shmfs_close(fs, &file), 0);
    }
    IS(shmfs_lookup(fs, NULL), SHMFS_ERROR_NAME);
    IS(shmfs_load(fs, nothing, NULL), SHMFS_ERROR_NAME);
    IS(shmfs_store(fs, NULL, 1), SHMFS_ERROR_NAME);
    make_file(fs, longest, 1);
    IS(shmfs_lookup(clients[1], longest) > 0, true);
    IS(shmfs_rename(fs, longest, "b", false), 0);
    IS(shmfs_lookup(clients[1], longest), SHMFS_ERROR_NOT_FOUND);
    make_file(fs, "c", 1);
    IS(shmfs_rename(fs, "b", "c", false), SHMFS_ERROR_EXISTS);
    IS(shmfs_rename(fs, "nobody", "c", true), SHMFS_ERROR_NOT_FOUND);
    IS(shmfs_link(fs, "nobody", "d"), SHMFS_ERROR_NOT_FOUND);
    IS(shmfs_link(fs, "b", "c"), SHMFS_ERROR_EXISTS);
    IS(shmfs_reopen(fs, "b", &file), SHMFS_ERROR_COMMITTED);
    IS(shmfs_load(fs, nothing, "c"), SHMFS_ERROR_EXISTS);
    close(nothing);
    end();
}

static void room(uint32_t shards)
{
    struct shmfs *fs = start((struct shmfs_geometry){
        .block_count = 8, .inode_count = 3, .entry_count = 3, .handle_count = 4,
        .shard_count = shards});
    struct shmfs_handle file, others[4];
    struct shmfs_info info;
    IS(shmfs_create(fs, "a", 9 * BLOCK, &file), SHMFS_ERROR_NO_BLOCKS);
    IS(shmfs_create(fs, "a", UINT64_MAX, &file), SHMFS_ERROR_NO_BLOCKS);
    IS(shmfs_create(fs, "a", 8 * BLOCK, &file), 0);
    IS(shmfs_create(fs, "b", 1, &others[0]), SHMFS_ERROR_NO_BLOCKS);
    IS(shmfs_create(clients[1], "b", 1, &others[0]), SHMFS_ERROR_NO_BLOCKS);
    IS(shmfs_truncate(fs, &file, 8 * BLOCK), 0);
    IS(shmfs_truncate(fs, &file, BLOCK + 1), 0);
    IS(shmfs_truncate(fs, &file, 9 * BLOCK), SHMFS_ERROR_NO_BLOCKS);
    IS(shmfs_reserve(fs, &file, 9 * BLOCK), SHMFS_ERROR_NO_BLOCKS);
    IS(shmfs_write(fs, &file, content, 1, 8 * BLOCK), SHMFS_ERROR_NO_BLOCKS);
    IS(shmfs_write(fs, &file, content, 1, UINT64_MAX), SHMFS_ERROR_ARGUMENT);
    IS(shmfs_write(fs, &file, content, 1, INT64_MAX), SHMFS_ERROR_ARGUMENT);
    IS(shmfs_wrote(fs, &file, 3 * BLOCK), SHMFS_ERROR_ARGUMENT);
    IS(shmfs_create(clients[1], NULL, 5 * BLOCK, &others[0]), 0);
    IS(shmfs_write(fs, &file, content, 5 * BLOCK, 0), SHMFS_ERROR_NO_BLOCKS);
    IS(shmfs_stat(fs, "a", &info), 0);
    IS(info.block_count, 2);
    IS(shmfs_create(fs, "b", 0, &others[1]), 0);
    IS(shmfs_create(fs, "c", 0, &others[2]), SHMFS_ERROR_NO_INODES);
    IS(shmfs_link(fs, "a", "c"), 0);
    IS(shmfs_link(fs, "a", "d"), SHMFS_ERROR_NO_ENTRIES);
    IS(shmfs_create(fs, "d", 0, &others[2]), SHMFS_ERROR_NO_ENTRIES);
    IS(shmfs_commit(fs, &others[1], "d"), SHMFS_ERROR_NO_ENTRIES);
    IS(shmfs_close(clients[1], &others[0]), 0);
    IS(shmfs_commit(fs, &file, NULL), 0);
    for (int i = 2; i < 4; i++)
        IS(shmfs_open(fs, "c", &others[i]), 0);
    IS(shmfs_open(fs, "c", &others[0]), SHMFS_ERROR_NO_HANDLES);
    IS(shmfs_create(fs, NULL, 0, &others[0]), SHMFS_ERROR_NO_HANDLES);
    end();
}

/* The check finds more names than a file may have, though their count is right. */
static void find_more_names(struct shmfs *fs)
{
    static uint8_t scratch[1 << 19] __attribute__((aligned(8)));
    struct shmfs_problem problem = {.code = "no"};
    struct image_inode *inode = inode_refresh(fs, 1);
    inode->link_count = 1;
    IS(shmfs_link(fs, "0", "too many"), 0);
    inode->link_count = SHMFS_LINK_MAX + 1;
    IS(shmfs_check(memory.control, memory.control_bytes, memory.data_bytes, scratch, sizeof scratch,
                   &problem, 1), 1);
    IS(strcmp(problem.code, "I3"), 0);
    IS(shmfs_unlink(fs, "too many"), 0);
}

static void links(void)
{
    struct shmfs *fs = start((struct shmfs_geometry){
        .block_count = 4, .inode_count = 4, .entry_count = SHMFS_LINK_MAX + 2, .handle_count = 4});
    struct shmfs_handle file;
    char name[16];
    IS(shmfs_create(fs, "0", 0, &file), 0);
    for (int i = 1; i < SHMFS_LINK_MAX; i++) {
        snprintf(name, sizeof name, "%d", i);
        IS(shmfs_link(fs, "0", name), 0);
    }
    IS(shmfs_link(fs, "0", "more"), SHMFS_ERROR_LINKS);
    IS(shmfs_commit(fs, &file, "more"), SHMFS_ERROR_LINKS);
    IS(shmfs_unlink(fs, "1"), 0);
    IS(shmfs_commit(fs, &file, "more"), 0);
    if (PORT_COHERENT)
        find_more_names(fs);
    end();
}

/* Sizes around whole blocks, in one run and in several, read back by another client. */
static void sizes(uint32_t shards)
{
    static const uint32_t sizes[] = {0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK};
    static uint8_t bytes[4 * BLOCK];
    struct shmfs *fs = start((struct shmfs_geometry){
        .block_count = 16, .inode_count = 24, .entry_count = 24, .handle_count = 4,
        .shard_count = shards});
    struct shmfs_handle file, other;
    struct shmfs_info info;
    uint64_t place, run_bytes;
    char name[16];
    for (int gaps = 0; gaps < 2; gaps++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            IS(shmfs_create(fs, "file", 0, &file), 0);
            IS(shmfs_write(fs, &file, content, sizes[i], 0), sizes[i]);
            IS(shmfs_close(fs, &file), 0);
            IS(shmfs_open(clients[1], "file", &other), SHMFS_ERROR_WRITING);
            IS(shmfs_reopen(clients[1], "file", &other), 0);
            IS(shmfs_reopen(fs, "file", &file), SHMFS_ERROR_WRITING);
            IS(shmfs_commit(clients[1], &other, NULL), 0);
            IS(shmfs_commit(clients[1], &other, NULL), SHMFS_ERROR_COMMITTED);
            IS(shmfs_write(clients[1], &other, content, 1, 0), SHMFS_ERROR_COMMITTED);
            IS(shmfs_truncate(clients[1], &other, 1), SHMFS_ERROR_COMMITTED);
            IS(shmfs_reserve(clients[1], &other, 1), SHMFS_ERROR_COMMITTED);
            IS(shmfs_wrote(clients[1], &other, 1), SHMFS_ERROR_COMMITTED);
            IS(shmfs_close(clients[1], &other), 0);
            IS(shmfs_close(clients[1], &other), SHMFS_ERROR_STALE);
            IS(shmfs_open(clients[2], "file", &other), 0);
            IS(shmfs_read(clients[2], &other, bytes, sizeof bytes, 0), sizes[i]);
            IS(memcmp(bytes, content, sizes[i]), 0);
            IS(shmfs_read(clients[2], &other, bytes, 1, sizes[i]), 0);
            IS(shmfs_place(clients[2], &other, 4 * BLOCK, &place, &run_bytes),
               SHMFS_ERROR_ARGUMENT);
            IS(shmfs_stat_handle(clients[2], &other, &info), 0);
            IS(info.block_count, (sizes[i] + BLOCK - 1) / BLOCK);
            IS(info.is_contiguous, !gaps || sizes[i] <= BLOCK);
            IS(shmfs_close(clients[2], &other), 0);
            IS(shmfs_unlink(fs, "file"), 0);
        }
        for (int i = 0; !gaps && i < 16; i++) { /* every second block */
            snprintf(name, sizeof name, "%d", i);
            make_file(fs, name, BLOCK);
        }
        for (int i = 0; !gaps && i < 16; i += 2) {
            snprintf(name, sizeof name, "%d", i);
            IS(shmfs_unlink(fs, name), 0);
        }
    }
    end();
}

/* A file with more runs than one transaction can hold, and one whose run crosses groups. */
static void many_rows(uint32_t shards)
{
    static uint8_t bytes[96 * BLOCK];
    struct shmfs *fs = start((struct shmfs_geometry){
        .block_count = 256, .inode_count = 300, .entry_count = 300, .handle_count = 4,
        .shard_count = shards});
    struct shmfs_handle file;
    struct shmfs_info info;
    IS(shmfs_create(fs, NULL, 200 * BLOCK, &file), 0);
    IS(shmfs_stat_handle(fs, &file, &info), 0);
    IS(info.is_contiguous, true);
    IS(shmfs_close(fs, &file), 0);
    make_every_second_block(fs);
    for (int i = 0; i < 2; i++) {
        IS(shmfs_create(fs, i ? NULL : "rows", i ? 100 * BLOCK : 0, &file), 0);
        IS(shmfs_reserve(fs, &file, 200 * BLOCK), SHMFS_ERROR_NO_BLOCKS);
        for (uint32_t at = 0; at < sizeof bytes; at += sizeof content)
            IS(shmfs_write(fs, &file, content, sizeof content, at), sizeof content);
        IS(shmfs_stat_handle(fs, &file, &info), 0);
        IS(info.is_contiguous, false);
        IS(shmfs_read(fs, &file, bytes, sizeof bytes, 0), sizeof bytes);
        IS(memcmp(bytes + sizeof bytes / 2, bytes, sizeof bytes / 2), 0);
        IS(shmfs_truncate(fs, &file, BLOCK * 10 + 1), 0);
        IS(shmfs_stat_handle(fs, &file, &info), 0);
        IS(info.block_count, 11);
        IS(shmfs_reserve(fs, &file, 100 * BLOCK), 0);
        IS(i ? 0 : shmfs_unlink(fs, "rows"), 0);
        IS(shmfs_close(fs, &file), 0);
        check();
    }
    end();
}

/* --- handles and descriptors ----------------------------------------------------------------- */

/* An uncommitted file has many readers or one writer; each of them commits it. */
static void drafts(void)
{
    static uint8_t bytes[2 * BLOCK];
    struct shmfs *fs = start((struct shmfs_geometry){.block_count = 8, .inode_count = 4,
                                                     .entry_count = 4, .handle_count = 4});
    struct shmfs_handle file, other, third;
    struct shmfs_info info;
    uint64_t place, run_bytes;
    IS(shmfs_create(fs, "a", 4 * BLOCK, &file), 0);
    IS(shmfs_write(fs, &file, content, BLOCK + 1, 0), BLOCK + 1);
    IS(shmfs_open_draft(clients[1], "a", &other), SHMFS_ERROR_WRITING);
    IS(shmfs_open_draft(clients[1], "nobody", &other), SHMFS_ERROR_NOT_FOUND);
    IS(shmfs_set_writing(fs, &file, false), 0);
    IS(shmfs_write(fs, &file, content, 1, 0), SHMFS_ERROR_COMMITTED);
    IS(shmfs_open_draft(clients[1], "a", &other), 0);
    IS(shmfs_open(clients[2], "a", &third), SHMFS_ERROR_WRITING);
    IS(shmfs_reopen(clients[2], "a", &third), SHMFS_ERROR_WRITING);
    IS(shmfs_set_writing(clients[1], &other, true), SHMFS_ERROR_WRITING);
    IS(shmfs_read(clients[1], &other, bytes, sizeof bytes, 0), BLOCK + 1);
    IS(memcmp(bytes, content, BLOCK + 1), 0);
    IS(shmfs_place(clients[1], &other, BLOCK, &place, &run_bytes), 0);
    IS(shmfs_close(fs, &file), 0);
    IS(shmfs_set_writing(clients[1], &other, true), 0);
    IS(shmfs_open_draft(fs, "a", &file), SHMFS_ERROR_WRITING);
    IS(shmfs_write(clients[1], &other, content + 1, BLOCK, 0), BLOCK);
    IS(shmfs_set_writing(clients[1], &other, false), 0);
    IS(shmfs_open_draft(fs, "a", &file), 0);
    IS(shmfs_open_draft(clients[2], "a", &third), 0);
    IS(shmfs_commit(fs, &file, NULL), 0);
    IS(shmfs_stat_handle(fs, &file, &info), 0);
    IS(info.is_committed && info.block_count == 2, true);
    IS(shmfs_commit(clients[1], &other, NULL), SHMFS_ERROR_COMMITTED);
    IS(shmfs_set_writing(clients[1], &other, true), SHMFS_ERROR_COMMITTED);
    IS(shmfs_close(clients[1], &other), 0);
    IS(shmfs_open_draft(clients[1], "a", &other), 0);
    IS(shmfs_read(clients[2], &third, bytes, sizeof bytes, 0), BLOCK + 1);
    IS(memcmp(bytes, content + 1, BLOCK) || bytes[BLOCK] != content[BLOCK], false);
    end();
}

static void stale_handles(void)
{
    struct shmfs *fs = start((struct shmfs_geometry){.block_count = 4, .inode_count = 4,
                                                     .entry_count = 4, .handle_count = 4});
    struct shmfs_handle file, bad;
    struct shmfs_info info;
    uint64_t place, run_bytes;
    uint8_t bytes[8];
    IS(shmfs_create(fs, "a", 0, &file), 0);
    for (int i = 0; i < 4; i++) {
        bad = file;
        if (i == 0)
            bad.inode = 0;
        else if (i == 1)
            bad.slot = 4;
        else if (i == 2)
            bad.slot = 1;
        else
            bad.generation++;
        IS(shmfs_write(fs, &bad, bytes, 1, 0), SHMFS_ERROR_STALE);
        IS(shmfs_read(fs, &bad, bytes, 1, 0), SHMFS_ERROR_STALE);
        IS(shmfs_reserve(fs, &bad, 1), SHMFS_ERROR_STALE);
        IS(shmfs_truncate(fs, &bad, 1), SHMFS_ERROR_STALE);
        IS(shmfs_place(fs, &bad, 0, &place, &run_bytes), SHMFS_ERROR_STALE);
        IS(shmfs_wrote(fs, &bad, 0), SHMFS_ERROR_STALE);
        IS(shmfs_set_tag(fs, &bad, 0), SHMFS_ERROR_STALE);
        IS(shmfs_commit(fs, &bad, NULL), SHMFS_ERROR_STALE);
        IS(shmfs_set_writing(fs, &bad, false), SHMFS_ERROR_STALE);
        IS(shmfs_stat_handle(fs, &bad, &info), SHMFS_ERROR_STALE);
        IS(shmfs_close(fs, &bad), SHMFS_ERROR_STALE);
    }
    end();
}

static void descriptors(void)
{
    struct shmfs *fs = start((struct shmfs_geometry){.block_count = 8, .inode_count = 4,
                                                     .entry_count = 4, .handle_count = 4});
    struct shmfs_info info;
    int ends[2];
    IS(shmfs_load(fs, -1, "a"), SHMFS_ERROR_SYSTEM);
    IS(errno, EBADF);
    const int directory = open("/proc", O_RDONLY | O_CLOEXEC);
    IS(shmfs_load(fs, directory, "a"), SHMFS_ERROR_SYSTEM);
    IS(errno, EISDIR);
    close(directory);
    IS(pipe(ends), 0); /* a file of unknown length */
    IS(write(ends[1], content, 3 * BLOCK + 1), 3 * BLOCK + 1);
    close(ends[1]);
    IS(shmfs_load(fs, ends[0], "a"), 0);
    close(ends[0]);
    IS(shmfs_stat(fs, "a", &info), 0);
    IS(info.size_bytes, 3 * BLOCK + 1);
    IS(info.block_count, 4);
    IS(pipe(ends), 0);
    IS(write(ends[1], content, 5 * BLOCK), 5 * BLOCK);
    close(ends[1]);
    IS(shmfs_load(fs, ends[0], "b"), SHMFS_ERROR_NO_BLOCKS);
    close(ends[0]);
    const int file = memfd_create("file", MFD_CLOEXEC), full = open("/dev/full", O_WRONLY);
    IS(shmfs_store(fs, "a", file), 3 * BLOCK + 1);
    IS(shmfs_store(fs, "nobody", file), SHMFS_ERROR_NOT_FOUND);
    IS(shmfs_load(fs, file, "b"), 0); /* from its end, so empty */
    IS(ftruncate(file, 9 * BLOCK), 0);
    IS(shmfs_load(fs, file, "c"), SHMFS_ERROR_NO_BLOCKS);
    IS(shmfs_store(fs, "a", full), SHMFS_ERROR_SYSTEM);
    IS(errno, ENOSPC);
    close(file);
    close(full);
    end();
}

/* A read-only client refuses calls that would write, and leaves every byte as it was. */
static void read_only(void)
{
    const struct shmfs_options options = {.is_read_only = true, .lock_timeout_ms = 1};
    struct shmfs_handle file, other;
    struct shmfs_info info;
    struct shmfs_statistics statistics;
    struct shmfs *fs, *writer = start((struct shmfs_geometry){.block_count = 8});
    uint8_t *own = new_storage(), bytes[2 * BLOCK];
    if (!PORT_COHERENT) {
        IS(shmfs_attach(&fs, own, shmfs_size(), &memory, &options), SHMFS_ERROR_ARGUMENT);
        free(own);
        end();
        return;
    }
    IS(shmfs_attach(&fs, own, shmfs_size(), &memory, &options), 0);
    IS(shmfs_create(writer, "a", 0, &other), 0);
    IS(shmfs_write(writer, &other, content, BLOCK + 1, 0), BLOCK + 1);
    IS(shmfs_open(fs, "a", &file), SHMFS_ERROR_WRITING);
    IS(shmfs_commit(writer, &other, NULL), 0);
    IS(shmfs_close(writer, &other), 0);
    uint8_t *before = malloc(memory.control_bytes);
    if (!before)
        abort();
    memcpy(before, memory.control, memory.control_bytes);
    IS(shmfs_create(fs, "b", 0, &file), SHMFS_ERROR_READ_ONLY);
    IS(shmfs_reopen(fs, "a", &file), SHMFS_ERROR_READ_ONLY);
    IS(shmfs_link(fs, "a", "b"), SHMFS_ERROR_READ_ONLY);
    IS(shmfs_rename(fs, "a", "b", true), SHMFS_ERROR_READ_ONLY);
    IS(shmfs_unlink(fs, "a"), SHMFS_ERROR_READ_ONLY);
    IS(shmfs_sweep(fs), SHMFS_ERROR_READ_ONLY);
    IS(shmfs_io_begin(fs, 0, 0), SHMFS_ERROR_READ_ONLY);
    IS(shmfs_io_end(fs), SHMFS_ERROR_READ_ONLY);
    IS(shmfs_open(fs, "b", &file), SHMFS_ERROR_NOT_FOUND);
    IS(shmfs_stat(fs, "b", &info), SHMFS_ERROR_NOT_FOUND);
    IS(shmfs_stat(fs, "a", &info), 0);
    IS(shmfs_statfs(fs, &statistics), 0);
    IS(shmfs_lookup(fs, "a"), info.inode);
    IS(shmfs_open(fs, "a", &file), 0);
    IS(shmfs_write(fs, &file, content, 1, 0), SHMFS_ERROR_COMMITTED);
    IS(shmfs_set_tag(fs, &file, 1), SHMFS_ERROR_READ_ONLY);
    IS(shmfs_commit(fs, &file, NULL), SHMFS_ERROR_COMMITTED);
    IS(shmfs_read(fs, &file, bytes, sizeof bytes, 0), BLOCK + 1);
    IS(memcmp(bytes, content, BLOCK + 1), 0);
    IS(memcmp(before, memory.control, memory.control_bytes), 0);
    IS(shmfs_unlink(writer, "a"), 0);
    IS(shmfs_read(fs, &file, bytes, sizeof bytes, 0), SHMFS_ERROR_GONE);
    IS(shmfs_stat_handle(fs, &file, &info), SHMFS_ERROR_GONE);
    IS(shmfs_close(fs, &file), 0);
    IS(shmfs_close(fs, &file), SHMFS_ERROR_STALE);
    shmfs_detach(fs);
    free(before);
    free(own);
    end();
}

int main(void)
{
    alarm(300); /* ends an endless loop */
    fill_content();
    images();
    names();
    links();
    drafts();
    stale_handles();
    descriptors();
    read_only();
    for (uint32_t shards = 1; shards <= 4; shards *= 2) {
        room(shards);
        sizes(shards);
        many_rows(shards);
    }
    return 0;
}
