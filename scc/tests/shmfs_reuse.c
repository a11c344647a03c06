/* shmfs_reuse: memory that an older image, or an older client of the same slot, has used. A core
 * must not mistake cached lines of the old state for the present state. An image is not visible
 * before it is complete.
 */
#include "shmfs_watch.h"

#include <unistd.h>

static bool has_no_room; /* in private memory */

/* Replaces the function of the C library. */
void *aligned_alloc(size_t alignment, size_t size_bytes)
{
    void *place = NULL;
    return has_no_room || posix_memalign(&place, alignment, size_bytes) ? NULL : place;
}

static const struct shmfs_geometry before = {.block_count = 64, .inode_count = 8, .entry_count = 8,
                                             .handle_count = 64, .block_bytes = BLOCK,
                                             .client_count = CLIENTS};

/* Make an image of a different shape in the same memory: all clients see the new one. */
static void other_image(void)
{
    struct shmfs *fs = start(before);
    for (uint32_t round = 0; round < 16; round++) {
        struct shmfs_geometry geometry = before;
        geometry.block_count -= round % 2;
        for (int i = 0; i < CLIENTS; i++)
            shmfs_detach(clients[i]);
        IS(shmfs_format(&memory, &geometry), 0);
        for (int i = 0; i < CLIENTS; i++) {
            attach(i);
            IS(clients[i]->shape.geometry.block_count, geometry.block_count);
        }
        make_file(fs, "a", 2 * BLOCK);
        IS(free_blocks(clients[1]), geometry.block_count - 2);
    }
    end();
}

/* A client dies, another client closes its files, and the client returns to its old slot. */
static void other_life(void)
{
    struct shmfs *fs = start(before);
    for (int round = 0; round < 16; round++) {
        struct shmfs_handle file;
        for (uint32_t i = 0; i < before.handle_count / 16; i++)
            IS(shmfs_create(fs, NULL, BLOCK, &file), 0);
        port_drop(&fs->port);
        is_dead[0] = true;
        IS(shmfs_sweep(clients[1]), 1);
        attach(0);
        for (uint32_t i = 0; i < before.handle_count; i++)
            IS(port_load32(&fs->port, &handle_at(fs, 0, i)->inode), 0);
        check();
    }
    end();
}

static void jump(void *argument)
{
    __builtin_longjmp(argument, 1);
}

/* The client that creates an image dies before a store: then the old image is intact, or there is
 * none. Returns false if the new image was complete before that store. */
static bool half_made(const struct shape *shape, void *cache, uint64_t store)
{
    static void *here[5];
    static struct port port;
    volatile bool was_made = false;
    struct shape found;
    memset(memory.control, 0xa5, memory.control_bytes);
    IS(shmfs_format(&memory, &before), 0);
    check();
    port_open(&port, cache, (struct port_range){memory.control, memory.control_bytes},
              (struct port_range){memory.data, memory.data_bytes}, (uint32_t)store);
    port.died = jump;
    port.died_argument = here;
    port.dies_at = store;
    if (!__builtin_setjmp(here)) {
        image_make(&port, shape, memory.control);
        was_made = true;
    }
    port_drop(&port);
    if (was_made || store == 1)
        check();
    IS(shape_read(memory.control, memory.control_bytes, memory.data_bytes, &found),
       was_made || store == 1 ? 0 : SHMFS_ERROR_FORMAT);
    IS(!was_made || found.geometry.block_count == 63, true);
    return !was_made;
}

static void half_images(void)
{
    struct shmfs_geometry geometry = before;
    struct shape shape;
    start(before);
    geometry.block_count = 63;
    IS(shape_of(&geometry, &shape), 0);
    void *cache = aligned_alloc(64, (port_cache_bytes() / 64 + 1) * 64);
    if (!cache)
        abort();
    memset(cache, 0, port_cache_bytes());
    for (uint64_t store = 1; half_made(&shape, cache, store); store++)
        ;
    free(cache);
    has_no_room = true;
    IS(shmfs_format(&memory, &before), SHMFS_ERROR_SYSTEM);
    check(); /* the old image is still there */
    has_no_room = false;
}

int main(void)
{
    alarm(300); /* ends an endless loop */
    fill_content();
    other_image();
    other_life();
    half_images();
    return 0;
}
