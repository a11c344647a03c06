/* shmfs_damage: every call on a damaged image, and the check of it, ends with or without an error,
 * and touches no memory outside the image.
 *
 *     shmfs_damage words SHARDS          each word of the control data, with each of some values
 *     shmfs_damage random SEED ROUNDS    a few words and bits at a time
 *
 * With FUZZING, libFuzzer chooses the words. Both segments end at inaccessible pages.
 */
#include "core.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CLIENTS = 3, BLOCK = 4096, PAGE = 4096, CONTENT_BYTES = 3 * BLOCK };

static struct shmfs_memory memory;
static struct shmfs *clients[CLIENTS];
static uint8_t *storage[CLIENTS];
static struct shmfs_handle reads, writes, nameless;
static uint8_t *saved; /* control data and all client state, before the damage */
static uint8_t content[CONTENT_BYTES];
static bool is_dead[CLIENTS];

static bool is_alive(void *argument, uint32_t client, uint32_t generation)
{
    (void)argument, (void)generation;
    return client < CLIENTS && !is_dead[client];
}

static int attach(int client)
{
    const struct shmfs_options options = {
        .is_alive = is_alive, .lock_timeout_ms = 1, .seed = (uint32_t)client};
    return shmfs_attach(&clients[client], storage[client], shmfs_size(), &memory, &options);
}

static void must(int64_t result)
{
    if (result < 0) {
        printf("setting up: %s\n", shmfs_error_text((int)result));
        abort();
    }
}

/* Allocate memory between two inaccessible pages. */
static void *fenced(uint64_t size_bytes)
{
    const uint64_t pages_bytes = (size_bytes + PAGE - 1) / PAGE * PAGE;
    uint8_t *place = mmap(NULL, pages_bytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                          0);
    if (place == MAP_FAILED || mprotect(place + PAGE, pages_bytes, PROT_READ | PROT_WRITE))
        abort();
    return place + PAGE + pages_bytes - size_bytes;
}

/* --- an image with files in every state ------------------------------------------------------ */

static void make_file(struct shmfs *fs, const char *name, uint64_t size_bytes)
{
    struct shmfs_handle handle;
    must(shmfs_create(fs, NULL, 0, &handle));
    must(shmfs_write(fs, &handle, content, size_bytes, 0));
    must(shmfs_commit(fs, &handle, name));
    must(shmfs_close(fs, &handle));
}

static void set_up(uint32_t shards)
{
    struct shmfs_geometry geometry = {
        .block_bytes = BLOCK, .block_count = 12, .inode_count = 9, .entry_count = 9,
        .client_count = CLIENTS, .handle_count = 4, .shard_count = shards,
    };
    must(shmfs_sizes(&geometry, &memory.control_bytes, &memory.data_bytes));
    memory.control = fenced(memory.control_bytes);
    memory.data = fenced(memory.data_bytes);
    memory.control_fd = -1;
    must(shmfs_format(&memory, &geometry));
    for (int i = 0; i < CLIENTS; i++) {
        storage[i] = aligned_alloc(64, shmfs_size());
        if (i < CLIENTS - 1)
            must(attach(i));
    }
    struct shmfs *fs = clients[0];
    make_file(fs, "one", 10);
    make_file(fs, "row", 2 * BLOCK);
    make_file(fs, "gap", BLOCK);
    make_file(fs, "two", BLOCK);
    must(shmfs_unlink(fs, "gap"));
    must(shmfs_create(fs, "grows", 0, &writes)); /* in two runs */
    must(shmfs_write(fs, &writes, content, BLOCK, 0));
    must(shmfs_write(fs, &writes, content, CONTENT_BYTES, 0));
    must(shmfs_create(clients[1], NULL, BLOCK, &nameless));
    must(shmfs_link(fs, "one", "other name"));
    must(shmfs_open(fs, "row", &reads));
    must(shmfs_io_begin(fs, 0, 0));
}

static void copy_all(bool back)
{
    uint8_t *place = saved;
    void *parts[] = {memory.control, storage[0], storage[1]};
    const size_t sizes[] = {memory.control_bytes, shmfs_size(), shmfs_size()};
    for (int i = 0; i < 3; i++, place += sizes[i - 1])
        memcpy(back ? parts[i] : place, back ? place : parts[i], sizes[i]);
}

static void save(void)
{
    port_fence(&clients[0]->port);
    port_fence(&clients[1]->port);
    saved = malloc(memory.control_bytes + 2 * shmfs_size());
    copy_all(false);
}

/* --- every call on the image ----------------------------------------------------------------- */

static void use_handles(struct shmfs *fs, struct shmfs_handle file, struct shmfs_handle own)
{
    static uint8_t bytes[CONTENT_BYTES + 1];
    uint64_t place, run_bytes;
    struct shmfs_info info;
    shmfs_read(fs, &file, bytes, sizeof bytes, 0);
    shmfs_read(fs, &own, bytes, sizeof bytes, 1);
    if (!shmfs_place(fs, &file, BLOCK, &place, &run_bytes) && place >= memory.data_bytes)
        abort();
    shmfs_place(fs, &own, 2 * BLOCK, &place, &run_bytes);
    shmfs_stat_handle(fs, &own, &info);
    shmfs_write(fs, &own, content, 10, 4 * BLOCK);
    shmfs_reserve(fs, &own, 6 * BLOCK);
    shmfs_truncate(fs, &own, 2 * BLOCK + 1);
    shmfs_wrote(fs, &own, 2 * BLOCK + 2);
    shmfs_set_tag(fs, &own, 1);
    if (shmfs_commit(fs, &own, "whole"))
        shmfs_commit(fs, &own, NULL);
    shmfs_close(fs, &file);
    shmfs_close(fs, &own);
}

static void use_names(struct shmfs *fs)
{
    static const char *const names[] = {"one", "row", "grows", "other name", "whole", "nobody"};
    char name[SHMFS_NAME_MAX_BYTES + 1];
    uint64_t cursor = 0;
    struct shmfs_info info;
    struct shmfs_handle handle;
    struct shmfs_statistics statistics;
    static uint8_t bytes[BLOCK];
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    shmfs_statfs(fs, &statistics);
    while (shmfs_list(fs, &cursor, name, &info) == 1)
        ;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        shmfs_lookup(fs, names[i]);
        shmfs_stat(fs, names[i], &info);
        shmfs_store(fs, names[i], nowhere);
        if (!shmfs_open(fs, names[i], &handle)) {
            shmfs_read(fs, &handle, bytes, sizeof bytes, 1);
            shmfs_close(fs, &handle);
        }
        if (!shmfs_open_draft(fs, names[i], &handle)) {
            shmfs_read(fs, &handle, bytes, sizeof bytes, 1);
            shmfs_set_writing(fs, &handle, true);
            shmfs_set_writing(fs, &handle, false);
            shmfs_close(fs, &handle);
        }
        if (!shmfs_reopen(fs, names[i], &handle))
            shmfs_close(fs, &handle);
    }
    close(nowhere);
    if (!shmfs_create(fs, "first", 0, &handle)) /* from the damaged free lists */
        shmfs_close(fs, &handle);
    shmfs_unlink(fs, "first");
    shmfs_link(fs, "one", "link");
    shmfs_rename(fs, "link", "moved", false);
    shmfs_rename(fs, "moved", "row", true);
    if (!shmfs_create(fs, "new", 2 * BLOCK, &handle)) {
        shmfs_write(fs, &handle, content, sizeof content, 0);
        shmfs_commit(fs, &handle, NULL);
        shmfs_close(fs, &handle);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        shmfs_unlink(fs, names[i]);
}

/* Use a damaged image as its clients do, then as a client that finds them dead. */
static void use(void)
{
    static uint8_t scratch[1 << 12] __attribute__((aligned(8)));
    struct shmfs_problem problem;
    shmfs_check(memory.control, memory.control_bytes, memory.data_bytes, scratch, sizeof scratch,
                &problem, 1);
    if (shmfs_check_scratch_bytes(memory.control, memory.control_bytes) > sizeof scratch)
        abort();
    memset(is_dead, 0, sizeof is_dead);
    use_handles(clients[0], reads, writes);
    use_names(clients[0]);
    is_dead[0] = is_dead[1] = true;
    if (!attach(2)) {
        shmfs_sweep(clients[2]);
        shmfs_io_begin(clients[2], 1, 0);
        use_names(clients[2]);
        shmfs_io_end(clients[2]);
        shmfs_detach(clients[2]);
    }
    copy_all(true);
}

/* --- choosing words -------------------------------------------------------------------------- */

/* Return whether a word has a meaning: padding and unused log records have none. */
static bool matters(uint64_t place)
{
    const struct shape *shape = &clients[0]->shape;
    if (place >= shape->clients && place < shape->groups) {
        const uint64_t within = (place - shape->clients) % shape->client_bytes;
        return within < 16 || (within >= 128 && within < 144) || within >= 4224;
    }
    if (place >= shape->entries && place < shape->inodes)
        return (place - shape->entries) % sizeof(struct image_entry) < 40;
    if (place >= shape->inodes && place < shape->fat)
        return (place - shape->inodes) % sizeof(struct image_inode) < 52;
    return place < shape->buckets ? place % PORT_LINE_BYTES < 88 : true;
}

#ifdef FUZZING

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    if (!saved) {
        set_up(2);
        save();
    }
    for (; size_bytes >= 6; bytes += 6, size_bytes -= 6) {
        uint16_t place;
        memcpy(&place, bytes, sizeof place);
        const uint64_t offset = place * sizeof(uint32_t) % memory.control_bytes;
        memcpy((uint8_t *)memory.control + offset, bytes + sizeof place, sizeof(uint32_t));
    }
    use();
    return 0;
}

#else

static int words(uint32_t shards)
{
    /* 2049: the first client's owner value in locks */
    static const uint32_t values[] = {0, 1, 2, 5, 13, 2049, 0x7fffffff, 0x80000001, UINT32_MAX};
    int count = 0;
    set_up(shards);
    save();
    for (uint64_t place = 0; place < memory.control_bytes; place += sizeof(uint32_t))
        for (size_t i = 0; matters(place) && i < sizeof values / sizeof values[0]; i++, count++) {
            uint32_t *word = (uint32_t *)((uint8_t *)memory.control + place);
            *word = values[i];
            use();
        }
    return count;
}

static uint32_t draw(uint64_t *state, uint32_t limit)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % limit;
}

static int rounds(uint64_t seed, int count)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    set_up(1 + draw(&state, 2));
    save();
    for (int i = 0; i < count; i++) {
        for (uint32_t left = 1 + draw(&state, 4); left;) {
            const uint64_t place = draw(&state, (uint32_t)(memory.control_bytes / 4)) * 4;
            uint32_t *word = (uint32_t *)((uint8_t *)memory.control + place);
            if (!matters(place))
                continue;
            *word = draw(&state, 3) ? draw(&state, 20) : *word ^ 1u << draw(&state, 32);
            left--;
        }
        use();
    }
    return count;
}

int main(int argc, char **argv)
{
    alarm(600); /* ends an endless loop */
    if (argc == 3 && !strcmp(argv[1], "words"))
        printf("%d damaged images\n", words((uint32_t)atoi(argv[2])));
    else if (argc == 4 && !strcmp(argv[1], "random"))
        printf("%d damaged images\n", rounds(strtoull(argv[2], NULL, 10), atoi(argv[3])));
    else
        return 2;
    return 0;
}

#endif
