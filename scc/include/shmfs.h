/* shmfs.h: a file system in memory that several cores share.
 *
 * An image holds a superblock, registers, statistics, clients, a directory, an inode table, a file
 * allocation table (FAT) and blocks; FORMAT.md describes the bytes. The directory is flat. One
 * client writes a file and then commits it. A committed file never changes, and every client may
 * read it; if its blocks are contiguous, a client can use it in place. The cores need not have
 * coherent caches (port.h): content passes from one core to another only at commit.
 *
 *     struct shmfs *fs;
 *     struct shmfs_handle file;
 *     struct shmfs_memory memory = {control, control_bytes, data, data_bytes, control_fd};
 *     shmfs_attach(&fs, storage, sizeof storage, &memory, NULL);
 *     shmfs_create(fs, "4f2a:out:0", 10, 0, &file);       // 10 bytes are reserved
 *     shmfs_write(fs, &file, "0123456789", 10, 0);
 *     shmfs_commit(fs, &file, NULL);
 *     shmfs_close(fs, &file);
 *     shmfs_detach(fs);
 *
 * Errors are negative numbers; zero and positive numbers mean success. A call that fails has
 * changed nothing, unless its comment says otherwise. A client may die at any store: its current
 * operation then takes effect completely or not at all, and `shmfs_sweep` releases everything that
 * it held. After `shmfs_attach` no call allocates memory, and the library has no static variables.
 *
 * Threads: several threads may use one `struct shmfs` at the same time, but only one thread at a
 * time may use a handle. A child of fork must not use its parent's `struct shmfs`; it attaches for
 * itself. It must also close the parent's `control_fd`, because otherwise the parent still appears
 * to live after its death.
 *
 * Requirements CIB-21 to CIB-25, POOL-3.
 */
#ifndef SHMFS_H
#define SHMFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- versions and limits --------------------------------------------------------------------- */

#define SHMFS_VERSION 0x00010000        /* of this library: major << 16 | minor */
#define SHMFS_FORMAT_VERSION 1          /* of the bytes in memory; stored in the image */

#define SHMFS_NAME_MAX_BYTES 255        /* without the NUL; any byte but NUL and '/' */
#define SHMFS_LINK_MAX 65535            /* names of one file */
#define SHMFS_BLOCK_MIN_BYTES 4096      /* a power of two, up to SHMFS_BLOCK_MAX_BYTES */
#define SHMFS_BLOCK_MAX_BYTES (1u << 30)
#define SHMFS_BLOCK_MAX_COUNT (1u << 28)
#define SHMFS_INODE_MAX_COUNT (1u << 26) /* of inodes, and of directory entries */
#define SHMFS_CLIENT_MAX_COUNT 1024
#define SHMFS_HANDLE_MAX_COUNT 65536    /* open handles of one client */
#define SHMFS_SHARD_MAX_COUNT 64        /* locks of one kind */

/* --- errors ---------------------------------------------------------------------------------- */

enum shmfs_error {
    SHMFS_ERROR_ARGUMENT = -1,    /* an argument is invalid: the caller's mistake */
    SHMFS_ERROR_NAME = -2,        /* a name that is empty, too long, or holds NUL or '/' */
    SHMFS_ERROR_NOT_FOUND = -3,   /* no file has that name */
    SHMFS_ERROR_EXISTS = -4,      /* a file of that name exists */
    SHMFS_ERROR_COMMITTED = -5,   /* the file is committed and can no longer change */
    SHMFS_ERROR_WRITING = -6,     /* the file is not committed: it has a writer, or needs one */
    SHMFS_ERROR_NO_BLOCKS = -7,   /* no free blocks for content */
    SHMFS_ERROR_NO_INODES = -8,   /* no free inode for another file */
    SHMFS_ERROR_NO_ENTRIES = -9,  /* no free directory entry for another name */
    SHMFS_ERROR_NO_HANDLES = -10, /* this client has too many open handles */
    SHMFS_ERROR_NO_CLIENTS = -11, /* too many clients are attached */
    SHMFS_ERROR_LINKS = -12,      /* the file has SHMFS_LINK_MAX names */
    SHMFS_ERROR_STALE = -13,      /* the handle is closed, or was never open */
    SHMFS_ERROR_CORRUPT = -14,    /* the image is damaged; `shmfs_check` lists the problems */
    SHMFS_ERROR_FORMAT = -15,     /* not an image, or a different version, geometry or machine */
    SHMFS_ERROR_BUSY = -16,       /* could not take a lock in time; retry */
    SHMFS_ERROR_TOO_SMALL = -17,  /* the memory is too small for the geometry */
    SHMFS_ERROR_SYSTEM = -18,     /* a system call failed; see `errno` */
    SHMFS_ERROR_LIMIT = -19,      /* the maximum number of disk jobs is running */
    SHMFS_ERROR_READ_ONLY = -20,  /* the call would change an image that is attached read-only */
    SHMFS_ERROR_GONE = -21,       /* the file was removed while a read-only client read it */
};

/* Return one line of English for any error number. */
const char *shmfs_error_text(int error);

/* --- configuration --------------------------------------------------------------------------- */

/* The geometry of an image, chosen once by `shmfs_format`. Zero means the default. */
struct shmfs_geometry {
    uint64_t block_bytes;  /* default 1 MiB; the unit of space allocation */
    uint64_t block_count;  /* default 1024 */
    uint32_t inode_count;  /* default 1024; files, with or without a name */
    uint32_t entry_count;  /* default 1024: names */
    uint32_t client_count; /* default 64; processes attached at the same time */
    uint32_t handle_count; /* default 1024; files that one client can have open at the same time */
    uint32_t shard_count;  /* default 1, the four locks of the dissertation (CIB-24); a power of two
                              up to 64: the directory, the inodes and the FAT are each divided into
                              this many shards, and each shard has its own lock */
};

/* The memory of an image. Control data and blocks may share one mapping, or use two
 * (`shmfs-control` and `shmfs-data`). The caller maps the memory, shared and writable, and keeps it
 * mapped. */
struct shmfs_memory {
    void *control;
    uint64_t control_bytes; /* at least the size that `shmfs_sizes` returns */
    void *data;             /* page-aligned */
    uint64_t data_bytes;
    int control_fd; /* the file behind `control`, opened for writing with O_CLOEXEC by this client
                       alone. It must not be duplicated, and must stay open until the client
                       detaches: a lock on a byte of it shows that the client lives, so other
                       clients declare a client that closes it dead. -1: the library calls
                       `is_alive` and `claim` instead */
};

/* Options of one client. Zero means the default; a NULL pointer means all defaults. */
struct shmfs_options {
    uint32_t lock_timeout_ms; /* how long to wait for a lock before failing with BUSY. Default: no
                                 limit, so a client waits as long as the lock's owner is stopped */
    uint32_t group;           /* the group to allocate from first, 1 to `shard_count`. Default:
                                 derived from the client's number */
    /* Return whether the client with this number and generation is still alive. The library calls
     * it only for a client that holds something that another client needs. Required if `control_fd`
     * is -1. */
    bool (*is_alive)(void *argument, uint32_t client, uint32_t generation);
    void *is_alive_argument;
    /* Make this process the owner of a client's slot, or, if it does not want it any more, give the
     * slot back. Return false if another live process owns it. Only if `control_fd` is -1; without
     * this function, one thread at a time attaches or sweeps. */
    bool (*claim)(void *argument, uint32_t client, bool wants);
    /* Called when this client begins a change. It may end the process, and it does not return while
     * others may believe that this client is dead. */
    void (*begins_change)(void *argument);
    /* Let other processes free space, if possible at least `wanted_bytes`. Return whether they have
     * freed any, so that the call tries again. A call that finds too few blocks, inodes or entries
     * calls it, in the thread of the call and without a lock. It must not use this client. Default:
     * the call fails at once. (CIB-52) */
    bool (*free_space)(void *argument, uint64_t wanted_bytes);
    void *free_space_argument;
    uint32_t seed; /* of the strict build's random choices */
    /* Read the image and never change it: the memory may be mapped without PROT_WRITE. The client
     * takes no slot, no lock and no handle in the image, so other clients may remove a file while
     * this client reads it: calls on that file then fail with GONE. If other clients change names
     * while this client reads them, it retries for `lock_timeout_ms` (default 1000) and then fails
     * with BUSY. Calls that change the image fail with READ_ONLY, or with COMMITTED if they take a
     * handle. Requires coherent memory; without it `shmfs_attach` fails with ARGUMENT. */
    bool is_read_only;
};

/* Compute the size of both parts of an image of this geometry, and replace zeros in `geometry` by
 * the defaults. Fails with ARGUMENT if a number is out of range. */
int shmfs_sizes(struct shmfs_geometry *geometry, uint64_t *control_bytes, uint64_t *data_bytes);

/* --- life of an image ------------------------------------------------------------------------ */

struct shmfs; /* one client's view of an image */

/* Return how many bytes of private memory `shmfs_attach` needs; they must be aligned to 64. */
size_t shmfs_size(void);

/* Create an empty image. No client may be attached to the memory. The magic number is written last,
 * so a client that attaches too early fails with FORMAT. Fails with ARGUMENT, TOO_SMALL, SYSTEM. */
int shmfs_format(const struct shmfs_memory *memory, const struct shmfs_geometry *geometry);

/* Attach to an image as a client. `storage` is `shmfs_size()` bytes of private memory, which the
 * caller keeps until it detaches; memory and options are copied. Sweeps up dead clients if there is
 * no free client slot. Fails with FORMAT, NO_CLIENTS, ARGUMENT, SYSTEM. */
int shmfs_attach(struct shmfs **fs, void *storage, size_t storage_bytes,
                 const struct shmfs_memory *memory, const struct shmfs_options *options);

/* Close all handles, discard files that are still being written, and detach. */
void shmfs_detach(struct shmfs *fs);

/* Clean up after dead clients: complete or discard their transactions, close their handles, and
 * free the files that they were writing. Returns the number of clients swept. Calls that find no
 * free space or no free client slot do this by themselves. */
int shmfs_sweep(struct shmfs *fs);

/* Return the geometry of the image. Takes no lock. */
struct shmfs_geometry shmfs_geometry_of(const struct shmfs *fs);

/* Return this client's number, 0 to `client_count` - 1. */
uint32_t shmfs_client_of(const struct shmfs *fs);

/* --- files ----------------------------------------------------------------------------------- */

/* An open file. The calls that open a file fill it in; only shmfs uses its fields. */
struct shmfs_handle {
    uint32_t inode;      /* number of the file, from 1; 0: closed */
    uint32_t generation; /* changes each time the inode number is reused */
    uint32_t slot;       /* index in the client's handle table */
    uint32_t flags;
    uint64_t place_block;  /* block of the last read or write; the next one searches from there */
    uint64_t place_index;
};

/* Status of a file. While a file is being written, `size_bytes` is the size written so far. */
struct shmfs_info {
    uint32_t inode;
    uint32_t generation;
    uint64_t size_bytes;
    uint64_t block_count; /* blocks allocated to the file */
    uint32_t link_count;  /* number of names */
    uint32_t handle_count; /* open handles of all clients */
    bool is_committed;
    bool is_writing;    /* open for writing */
    bool is_contiguous; /* all its blocks are adjacent, so it can be used in place */
    uint64_t tag;       /* see shmfs_set_tag */
};

/* Create a file and open it for writing. If `name` is NULL, the file has no name until it is
 * committed or linked, and is freed when its last handle closes. The call reserves
 * `size_hint_bytes`, in adjacent blocks if possible; writing that many bytes then cannot fail.
 * Until the file is committed, `shmfs_stat` and `shmfs_list` show it, but `shmfs_open` fails. Fails
 * with NAME, EXISTS, NO_BLOCKS, NO_INODES, NO_ENTRIES, NO_HANDLES. */
int shmfs_create(struct shmfs *fs, const char *name, uint64_t size_hint_bytes,
                 struct shmfs_handle *handle);

/* Return the inode number (positive) of the file of that name, whether committed or being written,
 * or NOT_FOUND. Takes no lock if memory is coherent. */
int64_t shmfs_lookup(struct shmfs *fs, const char *name);

/* Open a committed file for reading. The content stays until the handle is closed, even if all
 * names are removed. On return this core sees all of the content. Fails with NOT_FOUND, WRITING,
 * NO_HANDLES. */
int shmfs_open(struct shmfs *fs, const char *name, struct shmfs_handle *handle);

/* Open a file that has no writer for reading, whether committed or not. While it is open no client
 * can write to it; each client that has it open may commit it. Fails with WRITING if it has a
 * writer, NOT_FOUND, NO_HANDLES. */
int shmfs_open_draft(struct shmfs *fs, const char *name, struct shmfs_handle *handle);

/* Open a file for writing that is not committed and not open. Fails with COMMITTED, WRITING if a
 * client has it open, NOT_FOUND, NO_HANDLES. */
int shmfs_reopen(struct shmfs *fs, const char *name, struct shmfs_handle *handle);

/* Become the writer of an open file, or stop being its writer but keep it open for reading. After
 * the writer stops, every core sees its stores. Fails with COMMITTED, and with WRITING if
 * another handle is open on a file that the caller wants to write. */
int shmfs_set_writing(struct shmfs *fs, struct shmfs_handle *handle, bool writes);

/* Close a handle. A file without names is freed when its last handle closes; this includes a file
 * that was neither committed nor named. Closing twice fails with STALE. */
int shmfs_close(struct shmfs *fs, struct shmfs_handle *handle);

/* Make the written content final and visible to every core. The file keeps its
 * name, and also gets `name` unless that is NULL (CIB-22). Reserved space beyond the content is
 * freed. The handle stays open for reading; it may come from `shmfs_open_draft`. The first commit
 * to a name wins: if the name exists, the call fails with EXISTS and the file does not change. Also
 * fails with COMMITTED, NAME, NO_ENTRIES, LINKS. */
int shmfs_commit(struct shmfs *fs, struct shmfs_handle *handle, const char *name);

/* Write at an offset and grow the file if necessary; a gap between the old end and the offset reads
 * as zeros. Fails with NO_BLOCKS (then nothing was written), and with COMMITTED if the handle is
 * open for reading. Returns `size_bytes`: a write is never partial. */
int64_t shmfs_write(struct shmfs *fs, struct shmfs_handle *handle, const void *from,
                    uint64_t size_bytes, uint64_t offset_bytes);

/* Read at an offset. Returns the number of bytes read; fewer than `size_bytes` only at the end. */
int64_t shmfs_read(struct shmfs *fs, struct shmfs_handle *handle, void *to, uint64_t size_bytes,
                   uint64_t offset_bytes);

/* Reserve space for `size_bytes` in all, in adjacent blocks if possible, so that writing them
 * cannot fail. Fails with NO_BLOCKS. */
int shmfs_reserve(struct shmfs *fs, struct shmfs_handle *handle, uint64_t size_bytes);

/* Shrink a file to a size, or extend it with zeros. */
int shmfs_truncate(struct shmfs *fs, struct shmfs_handle *handle, uint64_t size_bytes);

/* Return where the byte at an offset is: `data_offset_bytes` into the blocks, and how many bytes
 * follow it in adjacent blocks, which may exceed the size of the file. A writer may ask for any
 * reserved byte; it reports stores in place with `shmfs_wrote`. Fails with ARGUMENT beyond
 * the end. */
int shmfs_place(struct shmfs *fs, struct shmfs_handle *handle, uint64_t offset_bytes,
                uint64_t *data_offset_bytes, uint64_t *run_bytes);

/* Report that the writer has written content in place, up to `size_bytes`. */
int shmfs_wrote(struct shmfs *fs, struct shmfs_handle *handle, uint64_t size_bytes);

/* Store a number with a file, for example a checksum. Initially zero. */
int shmfs_set_tag(struct shmfs *fs, struct shmfs_handle *handle, uint64_t tag);

int shmfs_stat(struct shmfs *fs, const char *name, struct shmfs_info *info);
int shmfs_stat_handle(struct shmfs *fs, struct shmfs_handle *handle, struct shmfs_info *info);

/* --- names ----------------------------------------------------------------------------------- */

/* Add a name to the file named `target`. Fails with NOT_FOUND, EXISTS, NAME, NO_ENTRIES, LINKS. */
int shmfs_link(struct shmfs *fs, const char *target, const char *name);

/* Remove a name. The content is freed when the last name is removed and no handle is open. */
int shmfs_unlink(struct shmfs *fs, const char *name);

/* Rename in one step. If `to` exists, it is replaced if `replace`; otherwise fails with EXISTS. */
int shmfs_rename(struct shmfs *fs, const char *from, const char *to, bool replace);

/* Iterate over the names. Start with a cursor of zero. Returns 1 with a name (at most
 * SHMFS_NAME_MAX_BYTES and a NUL) and the status of its file, 0 at the end. A name that exists
 * during the whole iteration is returned exactly once. */
int shmfs_list(struct shmfs *fs, uint64_t *cursor, char *name, struct shmfs_info *info);

/* --- files of other file systems ------------------------------------------------------------- */

/* Copy a file in, from the descriptor's position to its end, and commit it as `name`. */
int shmfs_load(struct shmfs *fs, int fd, const char *name);

/* Copy a committed file to the descriptor, at its position. Returns the number of bytes. */
int64_t shmfs_store(struct shmfs *fs, const char *name, int fd);

/* Start a disk job, or any other I/O operation, if fewer than `limit` jobs are running (0: no limit); otherwise wait for at most
 * `timeout_ms` (negative: no limit). Jobs of dead clients end. Fails with LIMIT. (CIB-40) */
int shmfs_io_begin(struct shmfs *fs, uint32_t limit, int64_t timeout_ms);
int shmfs_io_end(struct shmfs *fs);

/* --- statistics and checking ----------------------------------------------------------------- */

struct shmfs_statistics {
    uint64_t block_bytes;
    uint64_t block_count, free_block_count;
    uint32_t inode_count, free_inode_count;
    uint32_t entry_count, free_entry_count;
    uint32_t client_count, attached_count;
    uint32_t io_count;         /* I/O operations under way: loads, stores, moves and spills */
    uint64_t recovery_count;   /* transactions of dead clients that another client completed */
    uint64_t sweep_count;      /* dead clients swept */
    uint64_t lock_wait_count;  /* times a client had to wait for a lock */
};

/* Return statistics. Takes no lock: numbers of different groups may be from different moments. */
int shmfs_statfs(struct shmfs *fs, struct shmfs_statistics *statistics);

/* A broken invariant of an image. */
struct shmfs_problem {
    char code[4];    /* the code of the invariant in FORMAT.md, such as "F2" */
    uint64_t place;  /* number of the block, inode, entry or client */
    uint64_t detail; /* the value found there */
};

/* Check an image that no client is changing. The check trusts nothing, changes nothing, and
 * terminates on any bytes. Returns the number of problems and fills in the first ones;
 * `scratch_bytes` must be at least what `shmfs_check_scratch_bytes` returns. To complete the
 * transactions of dead clients first, call `shmfs_attach` and `shmfs_sweep` before the check. */
int64_t shmfs_check(const void *control, uint64_t control_bytes, uint64_t data_bytes,
                    void *scratch, size_t scratch_bytes, struct shmfs_problem *problems,
                    size_t problem_count);
size_t shmfs_check_scratch_bytes(const void *control, uint64_t control_bytes);

/* Return one line of English for a problem's code. */
const char *shmfs_problem_text(const char *code);

#ifdef __cplusplus
}
#endif

#endif
