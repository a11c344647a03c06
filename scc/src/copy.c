/* copy.c: copies files of other file systems in and out (CIB-22). */
#include "core.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_BYTES (1 << 20)

/* Read into the blocks in place; in the strict build, through the cache. Returns the number of
 * bytes, 0 at the end of the file. */
static int64_t take_in(struct shmfs *fs, struct shmfs_handle *file, int fd, uint64_t offset_bytes,
                       uint64_t place, uint64_t run_bytes)
{
    ssize_t count;
    const size_t wanted = run_bytes < PIECE_BYTES ? run_bytes : PIECE_BYTES;
#ifdef PORT_STRICT
    uint8_t piece[4096];
    (void)place;
    do
        count = read(fd, piece, wanted < sizeof piece ? wanted : sizeof piece);
    while (count < 0 && errno == EINTR);
    if (count > 0)
        return shmfs_write(fs, file, piece, (uint64_t)count, offset_bytes);
#else
    do
        count = read(fd, fs->data + place, wanted);
    while (count < 0 && errno == EINTR);
    if (count > 0) {
        int error = shmfs_wrote(fs, file, offset_bytes + (uint64_t)count);
        return error ? error : count;
    }
#endif
    return count < 0 ? SHMFS_ERROR_SYSTEM : 0;
}

/* Find space to write at; if the size is not known, grow the file step by step. */
static int place_at(struct shmfs *fs, struct shmfs_handle *file, uint64_t offset_bytes,
                    uint64_t *place, uint64_t *run_bytes)
{
    int error = shmfs_place(fs, file, offset_bytes, place, run_bytes);
    if (error != SHMFS_ERROR_ARGUMENT)
        return error;
    struct shmfs_statistics now;
    const uint64_t more_bytes = offset_bytes < PIECE_BYTES ? PIECE_BYTES : offset_bytes;
    shmfs_statfs(fs, &now);
    error = SHMFS_ERROR_NO_BLOCKS;
    if (more_bytes <= now.free_block_count * now.block_bytes)
        error = shmfs_reserve(fs, file, offset_bytes + more_bytes);
    if (error == SHMFS_ERROR_NO_BLOCKS) /* others need not free space that may stay unused */
        error = shmfs_reserve(fs, file, offset_bytes + 1);
    return error ? error : shmfs_place(fs, file, offset_bytes, place, run_bytes);
}

static int fill(struct shmfs *fs, struct shmfs_handle *file, int fd, uint64_t size_bytes)
{
    uint64_t place, run_bytes;
    for (uint64_t offset_bytes = 0;;) {
        if (offset_bytes == size_bytes) {
            uint8_t more; /* the file may have grown; if not, this needs no further block */
            ssize_t count;
            do
                count = read(fd, &more, 1);
            while (count < 0 && errno == EINTR);
            if (count < 0)
                return SHMFS_ERROR_SYSTEM;
            if (!count)
                return 0;
            const int64_t written = shmfs_write(fs, file, &more, 1, offset_bytes++);
            if (written < 0)
                return (int)written;
        }
        int error = place_at(fs, file, offset_bytes, &place, &run_bytes);
        if (error)
            return error;
        const int64_t count = take_in(fs, file, fd, offset_bytes, place, run_bytes);
        if (count <= 0)
            return (int)count;
        offset_bytes += (uint64_t)count;
    }
}

int shmfs_load(struct shmfs *fs, int fd, const char *name)
{
    struct stat status;
    struct shmfs_handle file;
    if (!name)
        return SHMFS_ERROR_NAME;
    if (fstat(fd, &status) < 0)
        return SHMFS_ERROR_SYSTEM;
    const uint64_t size_bytes =
        S_ISREG(status.st_mode) && status.st_size > 0 ? (uint64_t)status.st_size : 0;
    int error = shmfs_create(fs, NULL, size_bytes, &file);
    if (error)
        return error;
    error = fill(fs, &file, fd, size_bytes);
    if (!error)
        error = shmfs_commit(fs, &file, name);
    const int cause = errno;
    file_lose(fs, &file);
    errno = cause;
    return error;
}

static int put_out(struct shmfs *fs, struct shmfs_handle *file, int fd, uint64_t offset_bytes,
                   uint64_t size_bytes)
{
#ifdef PORT_STRICT
    uint8_t piece[4096];
    const int64_t count = shmfs_read(fs, file, piece, size_bytes < sizeof piece ? size_bytes
                                                                                : sizeof piece,
                                     offset_bytes);
    if (count < 0)
        return (int)count;
    const ssize_t written = write(fd, piece, (size_t)count);
#else
    uint64_t place, run_bytes;
    int error = shmfs_place(fs, file, offset_bytes, &place, &run_bytes);
    if (error)
        return error;
    if (run_bytes > size_bytes)
        run_bytes = size_bytes;
    const ssize_t written =
        write(fd, fs->data + place, run_bytes < PIECE_BYTES ? run_bytes : PIECE_BYTES);
#endif
    if (written < 0)
        return errno == EINTR ? 0 : SHMFS_ERROR_SYSTEM;
    return (int)written;
}

int64_t shmfs_store(struct shmfs *fs, const char *name, int fd)
{
    struct shmfs_handle file;
    struct shmfs_info info;
    uint64_t offset_bytes = 0;
    int error = shmfs_open(fs, name, &file);
    if (error)
        return error;
    error = shmfs_stat_handle(fs, &file, &info);
    while (!error && offset_bytes < info.size_bytes) {
        const int count = put_out(fs, &file, fd, offset_bytes, info.size_bytes - offset_bytes);
        if (count < 0)
            error = count;
        else
            offset_bytes += (uint64_t)count;
    }
    if (!error && fs->options.is_read_only) /* GONE if the last bytes may come from another file */
        error = shmfs_stat_handle(fs, &file, &info);
    const int cause = errno;
    file_lose(fs, &file);
    errno = cause;
    return error ? error : (int64_t)offset_bytes;
}
