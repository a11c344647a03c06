/* image.h: the layout of an image in memory. FORMAT.md describes the same layout in words.
 *
 *   [ superblock | locks | statistics | clients | groups | buckets | entries | inodes | fat ] [ blocks ]
 *     control segment, each region aligned to PORT_LINE_BYTES                                  data
 *
 * Entries, inodes and blocks are numbered from 1; 0 means none. Offsets are in bytes from the start
 * of the control segment; block n is at (n - 1) * block_bytes in the data segment.
 */
#ifndef SCC_IMAGE_H
#define SCC_IMAGE_H

#include "port.h"
#include "shmfs.h"

#define IMAGE_MAGIC 0x31736673636d6873u /* "shmcsfs1", little-endian */
#define IMAGE_ENDIAN 0x01020304u
#define IMAGE_NAME_WORDS 32 /* of 8 bytes: SHMFS_NAME_MAX_BYTES and a NUL */
#define IMAGE_LOG_RECORDS 248

/* Constant after formatting; any client may read it. */
struct image_superblock {
    uint64_t magic; /* stored last */
    uint32_t format_version;
    uint32_t endian;
    uint64_t signature; /* hash of the sizes of the structs below */
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
    uint64_t checksum; /* FNV-1a of all fields before it, except the magic number */
    uint8_t padding[PORT_LINE_BYTES - 88];
};
_Static_assert(sizeof(struct image_superblock) == PORT_LINE_BYTES, "superblock");
_Static_assert(offsetof(struct image_superblock, checksum) == 80, "superblock");

/* A test-and-set register, or what stands in for it. All fields are registers. */
struct image_lock {
    uint32_t owner; /* 0: free; else see lock.c */
    uint8_t padding[PORT_LINE_BYTES - 4];
};
_Static_assert(sizeof(struct image_lock) == PORT_LINE_BYTES, "lock");

/* The statistics lock guards the first line; the second line holds registers. */
struct image_statistics {
    uint32_t io_count; /* running disk jobs */
    uint8_t padding[PORT_LINE_BYTES - 4];
    uint32_t io_bell; /* incremented when a disk job ends, to wake waiting clients */
    uint32_t recovery_count;
    uint32_t sweep_count;
    uint32_t lock_wait_count;
    uint8_t more_padding[PORT_LINE_BYTES - 16];
};
_Static_assert(sizeof(struct image_statistics) == 2 * PORT_LINE_BYTES, "statistics");

enum image_client_state { CLIENT_FREE, CLIENT_ATTACHED };

/* One store of a transaction (log.c). */
struct image_record {
    uint64_t place; /* kind << 56 | offset of a word, or first block */
    uint64_t value; /* of the word; or count << 32 | FAT value of the chain's last block */
};

/* An attached process. The first line holds registers, the second belongs to the log; then come the
 * records and `handle_count` handles, padded to a whole line. While the client is alive, only the
 * client itself writes to it. */
struct image_client {
    uint32_t state;
    uint32_t generation; /* incremented for each client that uses this slot */
    uint8_t padding[PORT_LINE_BYTES - 8];
    uint32_t log_count; /* 0: no transaction is active. Storing this flag is the commit point */
    uint32_t io_count;  /* disk jobs of this client; guarded by the statistics lock */
    uint64_t log_groups; /* bit set of the directory groups that the records change */
    uint8_t log_padding[PORT_LINE_BYTES - 16];
    struct image_record records[IMAGE_LOG_RECORDS];
};
_Static_assert(sizeof(struct image_client) == 33 * PORT_LINE_BYTES, "client");

enum image_handle_flags { HANDLE_OPEN = 1, HANDLE_WRITING = 2 };

struct image_handle {
    uint32_t inode; /* 0: free */
    uint32_t flags;
};

/* The data that one shard of each lock guards: one line for each of the three locks. */
struct image_group {
    uint32_t sequence; /* odd while the group's names change */
    uint32_t entry_free_first;
    uint32_t entry_free_count;
    uint8_t padding[PORT_LINE_BYTES - 12];
    uint32_t inode_free_first;
    uint32_t inode_free_count;
    uint8_t inode_padding[PORT_LINE_BYTES - 8];
    uint32_t block_free_count;
    uint32_t block_hint; /* where a search starts; any number is valid */
    uint8_t block_padding[PORT_LINE_BYTES - 8];
};
_Static_assert(sizeof(struct image_group) == 3 * PORT_LINE_BYTES, "group");

struct image_entry {
    uint64_t hash;
    uint32_t inode;     /* 0: free */
    uint32_t next;      /* in the bucket, or in the free list */
    uint32_t name_bytes;
    uint32_t zero;
    uint64_t more_zero;
    uint64_t name[IMAGE_NAME_WORDS]; /* padded with zeros */
    uint8_t padding[96];
};
_Static_assert(sizeof(struct image_entry) == 3 * PORT_LINE_BYTES, "entry");
_Static_assert(offsetof(struct image_entry, name) == 32, "entry");

/* Hash a name that is padded with zeros to a whole word. */
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
    uint32_t generation; /* incremented when the number is reused for another file */
    uint32_t link_count;
    uint32_t handle_count;
    uint64_t size_bytes;
    uint64_t tag;
    uint32_t first_block;
    uint32_t last_block;
    uint32_t block_count;
    uint32_t run_count; /* runs of adjacent blocks; 0 without blocks */
    uint32_t next_free;
    uint8_t padding[PORT_LINE_BYTES - 52];
};
_Static_assert(sizeof(struct image_inode) == PORT_LINE_BYTES, "inode");

#define FAT_FREE 0u
#define FAT_END 0xffffffffu

/* The offsets and sizes of all regions, computed from the geometry. */
struct shape {
    struct shmfs_geometry geometry;
    uint32_t lock_count;
    uint32_t bucket_count; /* a power of two */
    uint32_t buckets_per_group, entries_per_group, inodes_per_group, blocks_per_group;
    uint64_t client_bytes;
    uint64_t locks, statistics, clients, groups, buckets, entries, inodes, fat; /* offsets */
    uint64_t control_bytes, data_bytes;
};

/* Fill in the defaults and compute the layout. Fails with ARGUMENT. (superblock.c) */
int shape_of(const struct shmfs_geometry *geometry, struct shape *shape);

/* Compute the layout from a superblock, of which `superblock` is a private copy. Fails with
 * FORMAT. */
int shape_read(const struct image_superblock *superblock, uint64_t control_bytes,
               uint64_t data_bytes, struct shape *shape);

/* Fill in the superblock of an image of this shape. */
void superblock_make(const struct shape *shape, struct image_superblock *superblock);

/* Create an image of this shape, whatever the memory holds; it is valid only after the last
 * store. */
void image_make(struct port *port, const struct shape *shape, uint8_t *control);

#endif
