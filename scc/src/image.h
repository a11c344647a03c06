/* image.h: the bytes of an image, and where they lie. FORMAT.md says the same in words.
 *
 *   [ superblock | locks | statistics | clients | groups | buckets | entries | inodes | fat ] [ blocks ]
 *     control segment, each region aligned to PORT_LINE_BYTES                                  data
 *
 * Numbers of entries, inodes and blocks begin at 1; 0 is none. Offsets are in bytes from the start
 * of the control segment, and of block n: (n - 1) * block_bytes into the data.
 */
#ifndef SCC_IMAGE_H
#define SCC_IMAGE_H

#include "port.h"
#include "shmfs.h"

#define IMAGE_MAGIC 0x31736673636d6873u /* "shmcsfs1", little-endian */
#define IMAGE_ENDIAN 0x01020304u
#define IMAGE_NAME_WORDS 32 /* of 8 bytes: SHMFS_NAME_MAX_BYTES and a NUL */
#define IMAGE_LOG_RECORDS 248

/* Never changes after formatting; everybody may read it. */
struct image_superblock {
    uint64_t magic; /* stored last */
    uint32_t format_version;
    uint32_t endian;
    uint64_t signature; /* folded from the sizes of the structs below */
    uint64_t block_bytes;
    uint64_t block_count;
    uint32_t inode_count;
    uint32_t entry_count;
    uint32_t client_count;
    uint32_t handle_count;
    uint32_t shard_count;
    uint32_t zero;
    uint64_t control_bytes;
    uint64_t data_bytes;
    uint64_t checksum; /* FNV-1a of all that stands before it, but the magic number */
    uint8_t padding[PORT_LINE_BYTES - 88];
};
_Static_assert(sizeof(struct image_superblock) == PORT_LINE_BYTES, "superblock");
_Static_assert(offsetof(struct image_superblock, checksum) == 80, "superblock");

/* A test-and-set register, or what stands in for it. Registers. */
struct image_lock {
    uint32_t owner; /* 0: free; else see lock.c */
    uint8_t padding[PORT_LINE_BYTES - 4];
};
_Static_assert(sizeof(struct image_lock) == PORT_LINE_BYTES, "lock");

/* Guarded by the statistics lock; the second line holds registers. */
struct image_statistics {
    uint32_t io_count; /* disk jobs under way */
    uint8_t padding[PORT_LINE_BYTES - 4];
    uint32_t io_bell; /* counts the disk jobs that have ended; for who waits */
    uint32_t recovery_count;
    uint32_t sweep_count;
    uint32_t lock_wait_count;
    uint8_t more_padding[PORT_LINE_BYTES - 16];
};
_Static_assert(sizeof(struct image_statistics) == 2 * PORT_LINE_BYTES, "statistics");

enum image_client_state { CLIENT_FREE, CLIENT_ATTACHED };

/* What a transaction stores (log.c). */
struct image_record {
    uint64_t place; /* kind << 56 | offset of a word, or first block */
    uint64_t value; /* of the word; or count << 32 | what the last one of a chain holds */
};

/* One attached process. The first line holds registers; the second is its log's; then records, then
 * `handle_count` handles, up to a whole line. Written by the client alone while it lives. */
struct image_client {
    uint32_t state;
    uint32_t generation; /* counts those who had this place */
    uint8_t padding[PORT_LINE_BYTES - 8];
    uint32_t log_count; /* 0: nothing under way. The flag whose store is the commit point */
    uint32_t io_count;  /* disk jobs of its own; guarded by the statistics lock */
    uint64_t log_groups; /* of the directory, that the records change */
    uint8_t log_padding[PORT_LINE_BYTES - 16];
    struct image_record records[IMAGE_LOG_RECORDS];
};
_Static_assert(sizeof(struct image_client) == 33 * PORT_LINE_BYTES, "client");

enum image_handle_flags { HANDLE_OPEN = 1, HANDLE_WRITING = 2 };

struct image_handle {
    uint32_t inode; /* 0: free */
    uint32_t flags;
};

/* What is guarded by one shard of each lock: a line each. */
struct image_group {
    uint32_t sequence; /* odd while the group's names change */
    uint32_t entry_free_first;
    uint32_t entry_free_count;
    uint8_t padding[PORT_LINE_BYTES - 12];
    uint32_t inode_free_first;
    uint32_t inode_free_count;
    uint8_t inode_padding[PORT_LINE_BYTES - 8];
    uint32_t block_free_count;
    uint32_t block_hint; /* where to look first; any number */
    uint8_t block_padding[PORT_LINE_BYTES - 8];
};
_Static_assert(sizeof(struct image_group) == 3 * PORT_LINE_BYTES, "group");

struct image_entry {
    uint64_t hash;
    uint32_t inode;     /* 0: free */
    uint32_t next;      /* in the bucket, or in the list of the free */
    uint32_t name_bytes;
    uint32_t zero;
    uint64_t more_zero;
    uint64_t name[IMAGE_NAME_WORDS]; /* padded with zeros */
    uint8_t padding[96];
};
_Static_assert(sizeof(struct image_entry) == 3 * PORT_LINE_BYTES, "entry");
_Static_assert(offsetof(struct image_entry, name) == 32, "entry");

/* Of a name padded with zeros to a whole word. */
static inline uint64_t name_hash(const uint64_t *words, uint32_t size_bytes)
{
    uint64_t hash = size_bytes;
    for (uint32_t i = 0; i < (size_bytes + 7) / 8; i++) {
        hash = ((hash ^ words[i]) ^ (hash ^ words[i]) >> 32) * 0xd6e8feb86659fd93u;
        hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93u;
        hash ^= hash >> 32;
    }
    return hash;
}

enum image_inode_flags { INODE_USED = 1, INODE_WRITING = 2, INODE_COMMITTED = 4 };

struct image_inode {
    uint32_t flags; /* 0: free */
    uint32_t generation; /* counts the files that had this number */
    uint32_t link_count;
    uint32_t handle_count;
    uint64_t size_bytes;
    uint64_t tag;
    uint32_t first_block;
    uint32_t last_block;
    uint32_t block_count;
    uint32_t run_count; /* rows of neighbouring blocks; 0 without blocks */
    uint32_t next_free;
    uint8_t padding[PORT_LINE_BYTES - 52];
};
_Static_assert(sizeof(struct image_inode) == PORT_LINE_BYTES, "inode");

#define FAT_FREE 0u
#define FAT_END 0xffffffffu

/* Where everything lies, worked out from the geometry. */
struct shape {
    struct shmfs_geometry geometry;
    uint32_t lock_count;
    uint32_t bucket_count; /* a power of two */
    uint32_t buckets_per_group, entries_per_group, inodes_per_group, blocks_per_group;
    uint64_t client_bytes;
    uint64_t locks, statistics, clients, groups, buckets, entries, inodes, fat; /* offsets */
    uint64_t control_bytes, data_bytes;
};

/* Fill in the defaults and work out the rest. Fails with ARGUMENT. (superblock.c) */
int shape_of(const struct shmfs_geometry *geometry, struct shape *shape);

/* What a superblock says, or FORMAT; `superblock` is a private copy. */
int shape_read(const struct image_superblock *superblock, uint64_t control_bytes,
               uint64_t data_bytes, struct shape *shape);

/* The superblock of an image of this shape. */
void superblock_make(const struct shape *shape, struct image_superblock *superblock);

/* Make an image of this shape where anything may lie; there is none until the last store. */
void image_make(struct port *port, const struct shape *shape, uint8_t *control);

#endif
