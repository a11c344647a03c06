/* superblock.c: computes the layout of an image, and formats images. */
#include "image.h"

static uint64_t fold(uint64_t sum, const void *bytes, size_t size_bytes)
{
    for (const uint8_t *place = bytes; size_bytes--; place++)
        sum = (sum ^ *place) * 0x100000001b3u;
    return sum;
}

/* Hash the struct sizes: programs that lay out their structs differently must not share an
 * image. */
static uint64_t signature(void)
{
    const uint32_t sizes[] = {
        PORT_LINE_BYTES,
        sizeof(struct image_superblock),
        sizeof(struct image_lock),
        sizeof(struct image_statistics),
        sizeof(struct image_client),
        sizeof(struct image_handle),
        sizeof(struct image_group),
        sizeof(struct image_entry),
        sizeof(struct image_inode),
        IMAGE_LOG_RECORDS,
    };
    return fold(0xcbf29ce484222325u, sizes, sizeof sizes);
}

static uint64_t lines(uint64_t size_bytes)
{
    return (size_bytes + PORT_LINE_BYTES - 1) / PORT_LINE_BYTES * PORT_LINE_BYTES;
}

static uint32_t shared_out(uint64_t count, uint32_t groups)
{
    return (uint32_t)((count + groups - 1) / groups);
}

/* Return whether a nonzero number is a power of two. */
static bool is_power_of_two(uint64_t number)
{
    return !(number & (number - 1));
}

/* Return whether no number is too large. None is zero, because zeros were replaced by defaults. */
static bool is_legal(const struct shmfs_geometry *geometry)
{
    return geometry->block_bytes >= SHMFS_BLOCK_MIN_BYTES &&
           geometry->block_bytes <= SHMFS_BLOCK_MAX_BYTES &&
           is_power_of_two(geometry->block_bytes) &&
           geometry->block_count <= SHMFS_BLOCK_MAX_COUNT &&
           geometry->inode_count <= SHMFS_INODE_MAX_COUNT &&
           geometry->entry_count <= SHMFS_INODE_MAX_COUNT &&
           geometry->client_count <= SHMFS_CLIENT_MAX_COUNT &&
           geometry->handle_count <= SHMFS_HANDLE_MAX_COUNT &&
           geometry->shard_count <= SHMFS_SHARD_MAX_COUNT &&
           is_power_of_two(geometry->shard_count);
}

/* Compute the offsets of the regions, which follow each other. */
static void place(struct shape *shape)
{
    const struct shmfs_geometry *geometry = &shape->geometry;
    const uint32_t groups = geometry->shard_count;
    uint64_t end = sizeof(struct image_superblock);
    shape->locks = end, end += shape->lock_count * sizeof(struct image_lock);
    shape->statistics = end, end += sizeof(struct image_statistics);
    shape->clients = end, end += geometry->client_count * shape->client_bytes;
    shape->groups = end, end += groups * sizeof(struct image_group);
    shape->buckets = end, end += lines(shape->bucket_count * sizeof(uint32_t));
    shape->entries = end, end += geometry->entry_count * sizeof(struct image_entry);
    shape->inodes = end, end += geometry->inode_count * sizeof(struct image_inode);
    shape->fat = end, end += lines(geometry->block_count * sizeof(uint32_t));
    shape->control_bytes = end;
    shape->data_bytes = geometry->block_count * geometry->block_bytes;
}

int shape_of(const struct shmfs_geometry *given, struct shape *shape)
{
    const uint32_t words_per_line = PORT_LINE_BYTES / sizeof(uint32_t);
    memset(shape, 0, sizeof *shape);
    struct shmfs_geometry geometry = given ? *given : (struct shmfs_geometry){0};
    geometry.block_bytes = geometry.block_bytes ? geometry.block_bytes : 1 << 20;
    geometry.block_count = geometry.block_count ? geometry.block_count : 1024;
    geometry.inode_count = geometry.inode_count ? geometry.inode_count : 1024;
    geometry.entry_count = geometry.entry_count ? geometry.entry_count : 1024;
    geometry.client_count = geometry.client_count ? geometry.client_count : 64;
    geometry.handle_count = geometry.handle_count ? geometry.handle_count : 1024;
    geometry.shard_count = geometry.shard_count ? geometry.shard_count : 1;
    if (!is_legal(&geometry))
        return SHMFS_ERROR_ARGUMENT;
    const uint32_t groups = geometry.shard_count;
    shape->geometry = geometry;
    shape->lock_count = 2 + 3 * groups; /* statistics, recovery, and the shards */
    shape->bucket_count = groups * words_per_line; /* so that no cache line belongs to two groups */
    while (shape->bucket_count < geometry.entry_count)
        shape->bucket_count *= 2;
    shape->buckets_per_group = shape->bucket_count / groups;
    shape->entries_per_group = shared_out(geometry.entry_count, groups);
    shape->inodes_per_group = shared_out(geometry.inode_count, groups);
    shape->blocks_per_group =
        shared_out(shared_out(geometry.block_count, groups), words_per_line) * words_per_line;
    shape->client_bytes =
        lines(sizeof(struct image_client) + geometry.handle_count * sizeof(struct image_handle));
    place(shape);
    return 0;
}

static uint64_t checksum_of(const struct image_superblock *superblock)
{
    const uint8_t *from = (const uint8_t *)&superblock->format_version;
    return fold(0xcbf29ce484222325u, from, (const uint8_t *)&superblock->checksum - from);
}

void superblock_make(const struct shape *shape, struct image_superblock *superblock)
{
    const struct shmfs_geometry *geometry = &shape->geometry;
    *superblock = (struct image_superblock){
        .magic = IMAGE_MAGIC,
        .format_version = SHMFS_FORMAT_VERSION,
        .endian = IMAGE_ENDIAN,
        .signature = signature(),
        .block_bytes = geometry->block_bytes,
        .block_count = geometry->block_count,
        .inode_count = geometry->inode_count,
        .entry_count = geometry->entry_count,
        .client_count = geometry->client_count,
        .handle_count = geometry->handle_count,
        .shard_count = geometry->shard_count,
        .control_bytes = shape->control_bytes,
        .data_bytes = shape->data_bytes,
    };
    superblock->checksum = checksum_of(superblock);
}

int shape_read(const struct image_superblock *superblock, uint64_t control_bytes,
               uint64_t data_bytes, struct shape *shape)
{
    struct image_superblock again;
    struct shmfs_geometry geometry = {
        .block_bytes = superblock->block_bytes,
        .block_count = superblock->block_count,
        .inode_count = superblock->inode_count,
        .entry_count = superblock->entry_count,
        .client_count = superblock->client_count,
        .handle_count = superblock->handle_count,
        .shard_count = superblock->shard_count,
    };
    if (superblock->magic != IMAGE_MAGIC || shape_of(&geometry, shape) < 0)
        return SHMFS_ERROR_FORMAT;
    superblock_make(shape, &again); /* every field must have the value that we would write */
    if (memcmp(&again, superblock, sizeof again) || shape->control_bytes > control_bytes ||
        shape->data_bytes > data_bytes)
        return SHMFS_ERROR_FORMAT;
    return 0;
}

/* Add a number to a free list. */
static void add(struct port *port, uint32_t *first, uint32_t *count, uint32_t *next, uint32_t number)
{
    port_store32(port, next, port_load32(port, first));
    port_store32(port, first, number);
    port_store32(port, count, port_load32(port, count) + 1);
}

static void fill(struct port *port, const struct shape *shape, uint8_t *control)
{
    const struct shmfs_geometry *geometry = &shape->geometry;
    struct image_group *groups = (struct image_group *)(control + shape->groups), *group;
    struct image_entry *entries = (struct image_entry *)(control + shape->entries);
    struct image_inode *inodes = (struct image_inode *)(control + shape->inodes);
    for (uint32_t i = geometry->entry_count; i--;) {
        group = &groups[i / shape->entries_per_group];
        add(port, &group->entry_free_first, &group->entry_free_count, &entries[i].next, i + 1);
    }
    for (uint32_t i = geometry->inode_count; i--;) {
        group = &groups[i / shape->inodes_per_group];
        add(port, &group->inode_free_first, &group->inode_free_count, &inodes[i].next_free, i + 1);
    }
    for (uint32_t i = 0; i < geometry->shard_count; i++) {
        const uint64_t from = (uint64_t)i * shape->blocks_per_group;
        const uint64_t left = geometry->block_count > from ? geometry->block_count - from : 0;
        const uint64_t count = left < shape->blocks_per_group ? left : shape->blocks_per_group;
        port_store32(port, &groups[i].block_free_count, (uint32_t)count);
    }
}

static void wipe(struct port *port, uint8_t *from, uint64_t size_bytes)
{
    static const uint8_t zeros[4096];
    for (size_t now; size_bytes; from += now, size_bytes -= now) {
        now = size_bytes < sizeof zeros ? size_bytes : sizeof zeros;
        port_write(port, from, zeros, now);
    }
}

void image_make(struct port *port, const struct shape *shape, uint8_t *control)
{
    struct image_superblock superblock;
    uint64_t *magic = (uint64_t *)control;
    port_store64(port, magic, 0);
    port_flush(port, magic, sizeof *magic);
    port_fence(port); /* the old image must be invalid before anything else of it changes */
    wipe(port, control, shape->control_bytes);
    fill(port, shape, control);
    superblock_make(shape, &superblock);
    superblock.magic = 0;
    port_write(port, control, &superblock, sizeof superblock);
    port_flush(port, control, shape->control_bytes);
    port_publish64(port, magic, IMAGE_MAGIC);
}
