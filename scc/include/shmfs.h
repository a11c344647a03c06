/* shmfs.h: a file system in memory that several cores share.
 *
 * One image holds a superblock, registers, statistics, clients, a directory, an inode table, a file
 * allocation table and blocks (FORMAT.md, byte by byte). Names are flat. A file is written by one
 * client and then committed: from then on it never changes, and everybody may read it, in place
 * where it lies in one piece. The cores need not keep their caches coherent (port.h): commit is the
 * point at which content crosses from one to another.
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
 * Errors are negative numbers; zero and more is success. After an error nothing has changed, unless
 * it says so. A client may die at any store: what it was about happens wholly or not at all, and
 * what it held comes back by itself (`shmfs_sweep`). Nothing allocates memory after
 * `shmfs_attach`, and nothing here is static.
 *
 * Threads: one `struct shmfs` may be used by several threads at once; one handle by one at a time.
 * A child of fork must not use its parent's, and must close its `control_fd`, or the parent's death
 * goes unseen; it attaches for itself.
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
#define SHMFS_FORMAT_VERSION 1          /* of the bytes in memory; kept in the image */

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
    SHMFS_ERROR_ARGUMENT = -1,    /* an argument makes no sense: the caller's mistake */
    SHMFS_ERROR_NAME = -2,        /* a name that is empty, too long, or holds NUL or '/' */
    SHMFS_ERROR_NOT_FOUND = -3,   /* no file of that name */
    SHMFS_ERROR_EXISTS = -4,      /* the name is taken */
    SHMFS_ERROR_COMMITTED = -5,   /* the file is committed, and does not change any more */
    SHMFS_ERROR_WRITING = -6,     /* the file is not committed: it has a writer, or needs one */
    SHMFS_ERROR_NO_BLOCKS = -7,   /* no room for content */
    SHMFS_ERROR_NO_INODES = -8,   /* no room for another file */
    SHMFS_ERROR_NO_ENTRIES = -9,  /* no room for another name */
    SHMFS_ERROR_NO_HANDLES = -10, /* this client has too many open */
    SHMFS_ERROR_NO_CLIENTS = -11, /* too many are attached */
    SHMFS_ERROR_LINKS = -12,      /* the file has SHMFS_LINK_MAX names */
    SHMFS_ERROR_STALE = -13,      /* the handle is closed, or was never open */
    SHMFS_ERROR_CORRUPT = -14,    /* the image is damaged; `shmfs_check` says where */
    SHMFS_ERROR_FORMAT = -15,     /* no image, or of another version, geometry or machine */
    SHMFS_ERROR_BUSY = -16,       /* a lock was not had in time; try again, or from a thread */
    SHMFS_ERROR_TOO_SMALL = -17,  /* the memory is too small for the geometry */
    SHMFS_ERROR_SYSTEM = -18,     /* a system call failed; `errno` says how */
    SHMFS_ERROR_LIMIT = -19,      /* as many disk jobs are under way as there may be */
    SHMFS_ERROR_READ_ONLY = -20,  /* the call would change an image that is attached read-only */
    SHMFS_ERROR_GONE = -21,       /* the file was removed while a read-only client read it */
};

/* One line of English for an error; of any number. */
const char *shmfs_error_text(int error);

/* --- configuration --------------------------------------------------------------------------- */

/* The shape of an image, chosen once by `shmfs_format`. Zero means the default. */
struct shmfs_geometry {
    uint64_t block_bytes;  /* default 1 MiB; the unit in which space is given out */
    uint64_t block_count;  /* default 1024 */
    uint32_t inode_count;  /* default 1024: files, named or not */
    uint32_t entry_count;  /* default 1024: names */
    uint32_t client_count; /* default 64: processes attached at a time */
    uint32_t handle_count; /* default 1024: files that one client has open at a time */
    uint32_t shard_count;  /* default 1, the four locks of the dissertation (CIB-24); a power of two
                              up to 64: the directory, the inodes and the FAT are each divided into
                              so many parts with a lock each */
};

/* Where an image lies: control data and blocks may be one mapping, or two (`shmfs-control` and
 * `shmfs-data`). The caller maps it, shared and writable, and keeps it mapped. */
struct shmfs_memory {
    void *control;
    uint64_t control_bytes; /* at least what `shmfs_sizes` says */
    void *data;             /* page-aligned */
    uint64_t data_bytes;
    int control_fd; /* the file that `control` is a mapping of, opened for writing, for this client
                       alone, O_CLOEXEC; never duplicated, and open until detached: locks on it show
                       who lives, and who closes it is taken for dead. -1: `is_alive` is asked
                       instead, and attaching and sweeping is for one thread at a time (tests) */
};

/* How one client wants it. Zero means the default; NULL for all of it is allowed. */
struct shmfs_options {
    uint32_t lock_timeout_ms; /* how long to wait for a lock before SHMFS_ERROR_BUSY; default: for
                                 ever, which is as long as its holder is stopped */
    uint32_t group;           /* which part to allocate from first, 1 to `shard_count`; default:
                                 by the number of the client */
    /* Whether the client of that number and generation still lives; asked only of those who hold
     * what somebody else wants. Needed where `control_fd` is -1. */
    bool (*is_alive)(void *argument, uint32_t client, uint32_t generation);
    void *is_alive_argument;
    uint32_t seed; /* of the strict build's tricks */
    /* Read the image and never change it: the memory may be mapped without PROT_WRITE. The client
     * takes no place, no lock and no handle in the image, so an open file may be removed while it
     * is read: calls on it then fail with GONE. Reads of names are repeated while other clients
     * change them, for `lock_timeout_ms` (default 1000), and then fail with BUSY. Calls that change
     * the image fail with READ_ONLY, or COMMITTED where they take a handle. Only where memory is
     * coherent; elsewhere `shmfs_attach` fails with ARGUMENT. */
    bool is_read_only;
};

/* How large both parts of an image of this geometry are. Fails with ARGUMENT where a number is out
 * of range, and fills in the defaults otherwise. */
int shmfs_sizes(struct shmfs_geometry *geometry, uint64_t *control_bytes, uint64_t *data_bytes);

/* --- life of an image ------------------------------------------------------------------------ */

struct shmfs; /* one client's view of an image */

/* Bytes that `shmfs_attach` needs of private memory, aligned to 64. */
size_t shmfs_size(void);

/* Make an image, empty. Not while anybody is attached to it. The magic number is written last, so
 * that who attaches meanwhile finds no image (FORMAT). Fails with ARGUMENT, TOO_SMALL, SYSTEM. */
int shmfs_format(const struct shmfs_memory *memory, const struct shmfs_geometry *geometry);

/* Become a client. `storage` is `shmfs_size()` bytes of private memory, kept until detached; the
 * memory and options are copied. Sweeps up after the dead when there is no free place. Fails with
 * FORMAT, NO_CLIENTS, ARGUMENT, SYSTEM. */
int shmfs_attach(struct shmfs **fs, void *storage, size_t storage_bytes,
                 const struct shmfs_memory *memory, const struct shmfs_options *options);

/* Close all handles, drop what was being written, and be no client any more. */
void shmfs_detach(struct shmfs *fs);

/* Drop what dead clients left: finish or forget what they were about, close their handles, free
 * what they were writing. Returns how many were swept. Who finds no room or no place does so by
 * itself. */
int shmfs_sweep(struct shmfs *fs);

/* What this image is; no lock. */
struct shmfs_geometry shmfs_geometry_of(const struct shmfs *fs);

/* This client's number, 0 to `client_count` - 1. */
uint32_t shmfs_client_of(const struct shmfs *fs);

/* --- files ----------------------------------------------------------------------------------- */

/* An open file. Filled in by the calls that open; its fields are for `shmfs` alone. */
struct shmfs_handle {
    uint32_t inode;      /* number of the file, from 1; 0: closed */
    uint32_t generation; /* of that number: differs for the next file to get it */
    uint32_t slot;       /* in the client's table */
    uint32_t flags;
    uint64_t place_block;  /* where the last read or write ended, to go on from */
    uint64_t place_index;
};

/* What a file is. `size_bytes` of one being written is what was written so far. */
struct shmfs_info {
    uint32_t inode;
    uint32_t generation;
    uint64_t size_bytes;
    uint64_t block_count; /* that it occupies */
    uint32_t link_count;  /* its names */
    uint32_t handle_count; /* of all clients */
    bool is_committed;
    bool is_writing;    /* open for writing */
    bool is_contiguous; /* all its blocks lie in one row: it can be used in place */
    uint64_t tag;       /* see shmfs_set_tag */
};

/* Make a file and open it for writing. `name` NULL: it has none until it is committed or linked,
 * and is gone with its last handle. `size_hint_bytes` are reserved at once, in one row if there is
 * one; writing that much cannot fail. Fails with NAME, EXISTS, NO_BLOCKS, NO_INODES, NO_ENTRIES,
 * NO_HANDLES. Until commit it is seen by `shmfs_stat` and `shmfs_list`, but cannot be opened. */
int shmfs_create(struct shmfs *fs, const char *name, uint64_t size_hint_bytes,
                 struct shmfs_handle *handle);

/* Return the number of the committed or growing file of that name (positive), or NOT_FOUND. Takes
 * no lock where memory is coherent. */
int64_t shmfs_lookup(struct shmfs *fs, const char *name);

/* Open a committed file for reading: it keeps its content until closed, though its names go. All of
 * its content is visible to this core on return. Fails with NOT_FOUND, WRITING, NO_HANDLES. */
int shmfs_open(struct shmfs *fs, const char *name, struct shmfs_handle *handle);

/* Open a file that nobody writes, committed or not, for reading. While it is open nobody can write
 * to it; each client that has it open may commit it. Fails with WRITING if it has a writer,
 * NOT_FOUND, NO_HANDLES. */
int shmfs_open_draft(struct shmfs *fs, const char *name, struct shmfs_handle *handle);

/* Open a file that is not committed and that nobody has open, to write on. Fails with COMMITTED,
 * WRITING if somebody has it open, NOT_FOUND, NO_HANDLES. */
int shmfs_reopen(struct shmfs *fs, const char *name, struct shmfs_handle *handle);

/* Become the writer of an open file, or cease to be it and keep the file open for reading: then all
 * that was written is visible to every core. Fails with COMMITTED, and WRITING if another handle is
 * open on a file that is to be written. */
int shmfs_set_writing(struct shmfs *fs, struct shmfs_handle *handle, bool writes);

/* Close. A file without names is gone with its last handle, so one being written that was neither
 * committed nor named leaves nothing. Closing twice is STALE. */
int shmfs_close(struct shmfs *fs, struct shmfs_handle *handle);

/* Make what was written the file's content for good, and visible to every core, under its own name
 * if `name` is NULL, and else under that one as well (CIB-22). Space reserved beyond it is given
 * back. The handle stays open, for reading. It may be one of `shmfs_open_draft`. First wins: fails
 * with EXISTS where the name is taken, and the file stays as it was. Also COMMITTED, NAME,
 * NO_ENTRIES, LINKS. */
int shmfs_commit(struct shmfs *fs, struct shmfs_handle *handle, const char *name);

/* Write there, and grow if need be; what lies between the end and there reads as zeros. Fails with
 * NO_BLOCKS having written nothing, COMMITTED if it is open for reading. Returns the bytes written,
 * always all. */
int64_t shmfs_write(struct shmfs *fs, struct shmfs_handle *handle, const void *from,
                    uint64_t size_bytes, uint64_t offset_bytes);

/* Read from there; returns how many bytes came, fewer only at the end. */
int64_t shmfs_read(struct shmfs *fs, struct shmfs_handle *handle, void *to, uint64_t size_bytes,
                   uint64_t offset_bytes);

/* Have room for so many bytes in all, so that writing them cannot fail; in one row if that is
 * possible. Fails with NO_BLOCKS. */
int shmfs_reserve(struct shmfs *fs, struct shmfs_handle *handle, uint64_t size_bytes);

/* Cut it to that size, or make it longer with zeros. */
int shmfs_truncate(struct shmfs *fs, struct shmfs_handle *handle, uint64_t size_bytes);

/* Where the byte at an offset lies: `data_offset_bytes` into the blocks, and how many bytes follow
 * in one row, which may be more than the file has. For writers, of what is reserved. What is
 * written in place is told with `shmfs_wrote`. Fails with ARGUMENT beyond the end. */
int shmfs_place(struct shmfs *fs, struct shmfs_handle *handle, uint64_t offset_bytes,
                uint64_t *data_offset_bytes, uint64_t *run_bytes);

/* Say that a writer has put content in place, up to there. */
int shmfs_wrote(struct shmfs *fs, struct shmfs_handle *handle, uint64_t size_bytes);

/* Keep a number with a file, zero at first; for a checksum. */
int shmfs_set_tag(struct shmfs *fs, struct shmfs_handle *handle, uint64_t tag);

int shmfs_stat(struct shmfs *fs, const char *name, struct shmfs_info *info);
int shmfs_stat_handle(struct shmfs *fs, struct shmfs_handle *handle, struct shmfs_info *info);

/* --- names ----------------------------------------------------------------------------------- */

/* Give the file of one name another. Fails with NOT_FOUND, EXISTS, NAME, NO_ENTRIES, LINKS. */
int shmfs_link(struct shmfs *fs, const char *target, const char *name);

/* Take a name away. Content goes with the last name once no handle is open. */
int shmfs_unlink(struct shmfs *fs, const char *name);

/* Move a name. What had the new name loses it if `replace`, else EXISTS. In one step. */
int shmfs_rename(struct shmfs *fs, const char *from, const char *to, bool replace);

/* Walk the names: start with a cursor of zero; returns 1 with a name (SHMFS_NAME_MAX_BYTES and a NUL
 * at most) and what it names, 0 at the end. What stays during the whole walk is met exactly once. */
int shmfs_list(struct shmfs *fs, uint64_t *cursor, char *name, struct shmfs_info *info);

/* --- files of other file systems ------------------------------------------------------------- */

/* Copy a file in, from the descriptor's position to its end, and commit it under that name. */
int shmfs_load(struct shmfs *fs, int fd, const char *name);

/* Copy a committed file out, to the descriptor's position. Returns its bytes. */
int64_t shmfs_store(struct shmfs *fs, const char *name, int fd);

/* Begin a disk job if fewer than `limit` are under way, 0 meaning any number; else wait, at most so
 * long (negative: for ever). A dead client's jobs end. Fails with LIMIT. (CIB-40) */
int shmfs_io_begin(struct shmfs *fs, uint32_t limit, int64_t timeout_ms);
int shmfs_io_end(struct shmfs *fs);

/* --- looking at the whole -------------------------------------------------------------------- */

struct shmfs_statistics {
    uint64_t block_bytes;
    uint64_t block_count, free_block_count;
    uint32_t inode_count, free_inode_count;
    uint32_t entry_count, free_entry_count;
    uint32_t client_count, attached_count;
    uint32_t io_count;         /* disk jobs under way */
    uint64_t recovery_count;   /* times somebody finished what a dead client was about */
    uint64_t sweep_count;      /* dead clients swept up after */
    uint64_t lock_wait_count;  /* times a lock was not had at once */
};

/* How full it is. Takes no lock: figures of different groups may be of different moments. */
int shmfs_statfs(struct shmfs *fs, struct shmfs_statistics *statistics);

/* One thing that is wrong with an image. */
struct shmfs_problem {
    char code[4];    /* the number of the invariant in FORMAT.md, such as "F2" */
    uint64_t place;  /* of the block, inode, entry or client */
    uint64_t detail; /* what was found there */
};

/* Check an image that nobody is changing. Trusts nothing, changes nothing, ends on any bytes.
 * Returns how many problems there are and fills in the first ones; `scratch` is what
 * `shmfs_check_scratch_bytes` says. A client's half-done work is no problem: pass the image through
 * `shmfs_attach` and `shmfs_sweep` first to see it done. */
int64_t shmfs_check(const void *control, uint64_t control_bytes, uint64_t data_bytes,
                    void *scratch, size_t scratch_bytes, struct shmfs_problem *problems,
                    size_t problem_count);
size_t shmfs_check_scratch_bytes(const void *control, uint64_t control_bytes);

/* One line of English for a problem's code. */
const char *shmfs_problem_text(const char *code);

#ifdef __cplusplus
}
#endif

#endif
