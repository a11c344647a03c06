/* shmfs_rig.h: four clients of a small image, and a macro that checks the result of a call. */
#ifndef SCC_SHMFS_RIG_H
#define SCC_SHMFS_RIG_H

#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { CLIENTS = 4, BLOCK = 4096 };

static struct shmfs_memory memory;
static struct shmfs *clients[CLIENTS];
static uint8_t *storage[CLIENTS];
static bool is_dead[CLIENTS];
static uint32_t patience_ms; /* for locks; 0: no limit */
static void (*meanwhile)(void); /* called when a client checks who is alive */
static uint8_t content[8 * BLOCK]; /* to write; see fill_content */

#define IS(call, wanted) is(__LINE__, #call, (int64_t)(call), (int64_t)(wanted))

static void is(int line, const char *call, int64_t found, int64_t wanted)
{
    if (found == wanted)
        return;
    printf("line %d: %s is %lld (%s), not %lld\n", line, call, (long long)found,
           shmfs_error_text(found < 0 ? (int)found : 0), (long long)wanted);
    fflush(stdout);
    abort();
}

static bool is_alive(void *argument, uint32_t client, uint32_t generation)
{
    (void)argument, (void)generation;
    if (meanwhile)
        meanwhile();
    return client < CLIENTS && !is_dead[client];
}

static void attach(int client)
{
    const struct shmfs_options options = {.is_alive = is_alive, .lock_timeout_ms = patience_ms,
                                          .group = (uint32_t)client, .seed = (uint32_t)client};
    is_dead[client] = false;
    IS(shmfs_attach(&clients[client], storage[client], shmfs_size(), &memory, &options), 0);
    IS(shmfs_client_of(clients[client]), client);
}

static void check(void)
{
    static uint8_t scratch[1 << 19] __attribute__((aligned(8)));
    struct shmfs_problem problem = {.code = "no"};
    IS(shmfs_check(memory.control, memory.control_bytes, memory.data_bytes, scratch, sizeof scratch,
                   &problem, 1) ? problem.code[0] << 8 | problem.code[1] : 0, 0);
}

/* Allocate a client's storage. Its strict cache keeps its lines when the client ends. */
static uint8_t *new_storage(void)
{
    uint8_t *fresh = aligned_alloc(64, shmfs_size());
    if (!fresh)
        abort();
#ifdef PORT_STRICT
    port_keeps_lines = true;
#endif
    return memset(fresh, 0, shmfs_size());
}

static struct shmfs *start(struct shmfs_geometry geometry)
{
    const int flags = MAP_SHARED | MAP_ANONYMOUS, rights = PROT_READ | PROT_WRITE;
    geometry.block_bytes = BLOCK;
    geometry.client_count = CLIENTS;
    IS(shmfs_sizes(&geometry, &memory.control_bytes, &memory.data_bytes), 0);
    memory.control = mmap(NULL, memory.control_bytes, rights, flags, -1, 0);
    memory.data = mmap(NULL, memory.data_bytes, rights, flags, -1, 0);
    memory.control_fd = -1;
    IS(shmfs_format(&memory, &geometry), 0);
    for (int i = 0; i < CLIENTS; i++) {
        storage[i] = storage[i] ? storage[i] : new_storage();
        attach(i);
    }
    return clients[0];
}

static void end(void)
{
    for (int i = 0; i < CLIENTS; i++)
        shmfs_detach(clients[i]);
    check();
    munmap(memory.control, memory.control_bytes);
    munmap(memory.data, memory.data_bytes);
}

static void fill_content(void)
{
    for (size_t i = 0; i < sizeof content; i++)
        content[i] = (uint8_t)(i % 251 + 1);
}

static void make_file(struct shmfs *fs, const char *name, uint64_t size_bytes)
{
    struct shmfs_handle file;
    IS(shmfs_create(fs, NULL, size_bytes, &file), 0);
    IS(shmfs_write(fs, &file, content, size_bytes, 0), size_bytes);
    IS(shmfs_commit(fs, &file, name), 0);
    IS(shmfs_close(fs, &file), 0);
}

/* Fill an image of 256 blocks, and free every second block. */
static inline void make_every_second_block(struct shmfs *fs)
{
    char name[16];
    for (int i = 0; i < 256; i++) {
        snprintf(name, sizeof name, "%d", i);
        make_file(fs, name, BLOCK);
    }
    for (int i = 0; i < 256; i += 2) {
        snprintf(name, sizeof name, "%d", i);
        IS(shmfs_unlink(fs, name), 0);
    }
}

#endif
