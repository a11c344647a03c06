/* file_buffers.c: passes large heap buffers to fread, fwrite, pread, pwrite, readv and writev, and
 * heap strings to posix_spawn, whose child sends them back through a pipe. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LARGE_BYTES = 3 << 20,
    PIECE_COUNT = 24,
    PIECE_BYTES = 20000,
};

static uint64_t state = 6;

static void require(int is_true, const char *what)
{
    if (!is_true) {
        perror(what);
        exit(1);
    }
}

static unsigned char *allocate(size_t size_bytes)
{
    unsigned char *made = malloc(size_bytes);
    require(made != NULL, "malloc");
    return made;
}

static void fill(unsigned char *to, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        to[i] = (unsigned char)(state >> 56);
    }
}

static unsigned long long checksum(const unsigned char *bytes, size_t size_bytes)
{
    unsigned long long sum = 0;
    for (size_t i = 0; i < size_bytes; i++)
        sum = sum * 31 + bytes[i];
    return sum;
}

/* Write the buffer by one call, and read it back by one call. */
static void use_stream(FILE *file, const unsigned char *large)
{
    require(fwrite(large, 1, LARGE_BYTES, file) == LARGE_BYTES, "fwrite");
    rewind(file);
    unsigned char *copy = allocate(LARGE_BYTES + 1);
    size_t count = fread(copy + 1, 64, LARGE_BYTES / 64, file);
    printf("stream: %zu records, differs %d, sum %016llx\n", count,
           memcmp(copy + 1, large, LARGE_BYTES) != 0, checksum(copy + 1, LARGE_BYTES));
    free(copy);
}

static void use_offsets(int file, const unsigned char *large)
{
    unsigned char *part = allocate(LARGE_BYTES);
    require(pwrite(file, large + 777, LARGE_BYTES / 2, 1001) == LARGE_BYTES / 2, "pwrite");
    ssize_t got = pread(file, part, LARGE_BYTES, 500); /* ends at the end of the file */
    struct stat *status = (struct stat *)allocate(sizeof *status);
    require(fstat(file, status) == 0, "fstat");
    printf("offsets: %zd of %lld bytes, same %d, sum %016llx\n", got, (long long)status->st_size,
           !memcmp(part + 501, large + 777, LARGE_BYTES / 2), checksum(part, (size_t)got));
    free(status);
    free(part);
}

/* Write pieces in order of their number, and read them in reverse. */
static void use_vectors(int file)
{
    struct iovec *writes = (struct iovec *)allocate(PIECE_COUNT * sizeof *writes);
    struct iovec *reads = (struct iovec *)allocate(PIECE_COUNT * sizeof *reads);
    size_t total = 0;
    for (size_t i = 0; i < PIECE_COUNT; i++) {
        writes[i].iov_len = PIECE_BYTES + i * 999;
        writes[i].iov_base = allocate(writes[i].iov_len);
        fill(writes[i].iov_base, writes[i].iov_len);
        reads[PIECE_COUNT - 1 - i].iov_len = writes[i].iov_len;
        reads[PIECE_COUNT - 1 - i].iov_base = allocate(writes[i].iov_len);
        total += writes[i].iov_len;
    }
    require(lseek(file, 12345, SEEK_SET) == 12345, "lseek");
    require(writev(file, writes, PIECE_COUNT) == (ssize_t)total, "writev");
    require(lseek(file, 12345, SEEK_SET) == 12345, "lseek");
    require(readv(file, reads, PIECE_COUNT) == (ssize_t)total, "readv");
    unsigned long long sum = 0;
    for (size_t i = 0; i < PIECE_COUNT; i++) {
        sum = sum * 7 + checksum(reads[i].iov_base, reads[i].iov_len);
        free(reads[i].iov_base);
        free(writes[i].iov_base);
    }
    printf("vectors: %zu bytes, first of size %zu, sum %016llx\n", total, reads[0].iov_len, sum);
    free(writes);
    free(reads);
}

/* Run cat on the file, with arguments in the heap, and read what it prints. */
static void use_child(int file)
{
    char **arguments = (char **)allocate(3 * sizeof *arguments);
    arguments[0] = strdup("cat");
    arguments[1] = strdup("-");
    arguments[2] = NULL;
    int *ends = (int *)allocate(2 * sizeof *ends);
    require(pipe2(ends, O_CLOEXEC) == 0, "pipe2");
    require(lseek(file, LARGE_BYTES / 2, SEEK_SET) >= 0, "lseek");
    posix_spawn_file_actions_t actions;
    pid_t child = 0;
    require(!posix_spawn_file_actions_init(&actions), "posix_spawn_file_actions_init");
    require(!posix_spawn_file_actions_adddup2(&actions, file, STDIN_FILENO), "adddup2");
    require(!posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO), "adddup2");
    require(!posix_spawnp(&child, *arguments, &actions, NULL, arguments, environ), "posix_spawnp");
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    unsigned char *output = allocate(LARGE_BYTES);
    size_t length = 0;
    for (ssize_t got; (got = read(ends[0], output + length, LARGE_BYTES - length)) > 0;)
        length += (size_t)got;
    close(ends[0]);
    int status = -1;
    require(waitpid(child, &status, 0) == child, "waitpid");
    printf("child: status %d, %zu bytes, sum %016llx\n", status, length, checksum(output, length));
    void *all[] = {output, ends, arguments[0], arguments[1], arguments};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

int main(void)
{
    unsigned char *large = allocate(LARGE_BYTES);
    fill(large, LARGE_BYTES);
    FILE *file = tmpfile();
    require(file != NULL, "tmpfile");
    use_stream(file, large);
    use_offsets(fileno(file), large);
    use_vectors(fileno(file));
    use_child(fileno(file));
    fclose(file);
    free(large);
    return 0;
}
