/* two_kernels: what one kernel does to an image in memory that it shares with another kernel; run by
 * two_kernels.py.
 *
 *     two_kernels churn SEED     create, commit and remove files until killed; prints each commit.
 *                                After SIGUSR1 it stops itself, between two changes
 *     two_kernels verify         compare the content of each committed file with its name
 *     two_kernels table NAME     sum the first column, of int64, of a table of Arrow in place */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ciel_table.h"
#include "tool.h"

enum { SIZE_MAX_BYTES = 300000, KEPT = 20 };

static uint8_t content[SIZE_MAX_BYTES];

/* Fill a buffer with the bytes of the file with this number. */
static uint64_t make_content(uint64_t number)
{
    uint64_t state = number * 2654435761u + 12345;
    const uint64_t size_bytes = 1 + state % SIZE_MAX_BYTES;
    for (uint64_t i = 0; i < size_bytes; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        content[i] = (uint8_t)(state >> 56);
    }
    return size_bytes;
}

static int write_file(struct shmfs *fs, uint64_t number)
{
    char name[32];
    struct shmfs_handle file;
    const uint64_t size_bytes = make_content(number);
    snprintf(name, sizeof name, "f%" PRIu64, number);
    int error = shmfs_create(fs, NULL, size_bytes, &file);
    if (error)
        return error;
    for (uint64_t at = 0; at < size_bytes; at += 4096) {
        const uint64_t rest = size_bytes - at;
        int64_t wrote = shmfs_write(fs, &file, content + at, rest < 4096 ? rest : 4096, at);
        if (wrote < 0)
            return (int)wrote;
    }
    error = shmfs_commit(fs, &file, name);
    return error ? error : shmfs_close(fs, &file);
}

static volatile sig_atomic_t must_stop;

static void stop_soon(int number)
{
    (void)number;
    must_stop = 1;
}

static int churn(struct tool *tool, struct shmfs *fs, uint64_t seed)
{
    const struct sigaction stop = {.sa_handler = stop_soon, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &stop, NULL);
    for (uint64_t number = seed * 1000000;; number++) {
        char name[32];
        if (must_stop) {
            must_stop = 0;
            raise(SIGSTOP);
        }
        int error = write_file(fs, number);
        if (error)
            return tool_failed(tool, "f%" PRIu64 ": %s", number, tool_error_text(error));
        printf("committed f%" PRIu64 "\n", number);
        fflush(stdout);
        snprintf(name, sizeof name, "f%" PRIu64, number - KEPT);
        if (number >= seed * 1000000 + KEPT && (error = shmfs_unlink(fs, name)))
            return tool_failed(tool, "%s: %s", name, tool_error_text(error));
    }
}

/* Return where the content of a file is, which is in one piece; NULL, with a message, otherwise. */
static const uint8_t *in_place(struct tool *tool, struct tool_image *image, const char *name,
                               struct shmfs_handle *file, uint64_t *size_bytes)
{
    struct shmfs_info info;
    uint64_t offset, run_bytes;
    int error = shmfs_open(image->fs, name, file);
    if (!error)
        error = shmfs_stat_handle(image->fs, file, &info);
    if (!error)
        error = shmfs_place(image->fs, file, 0, &offset, &run_bytes);
    if (error || run_bytes < info.size_bytes) {
        tool_failed(tool, "%s: %s", name, error ? tool_error_text(error) : "it is in pieces");
        return NULL;
    }
    *size_bytes = info.size_bytes;
    return (const uint8_t *)image->memory.data + offset;
}

static void verify(struct tool *tool, struct tool_image *image)
{
    char name[SHMFS_NAME_MAX_BYTES + 1];
    struct shmfs_info info;
    struct shmfs_handle file;
    uint64_t cursor = 0, size_bytes;
    int count = 0, found;
    while ((found = shmfs_list(image->fs, &cursor, name, &info)) > 0) {
        if (*name != 'f' || !info.is_committed)
            continue;
        const uint8_t *at = in_place(tool, image, name, &file, &size_bytes);
        if (!at)
            return;
        const uint64_t expected_bytes = make_content(strtoull(name + 1, NULL, 10));
        if (size_bytes != expected_bytes || memcmp(at, content, size_bytes))
            tool_failed(tool, "%s has another content", name);
        shmfs_close(image->fs, &file);
        count++;
    }
    if (found < 0)
        tool_failed(tool, "files cannot be listed: %s", tool_error_text(found));
    printf("%d files are right\n", count);
}

static void nothing(void *owner)
{
    (void)owner;
}

static void sum_table(struct tool *tool, struct tool_image *image, const char *name)
{
    struct ArrowArrayStream stream;
    struct ArrowArray chunk;
    struct shmfs_handle file;
    uint64_t size_bytes;
    int64_t sum = 0, rows = 0;
    const uint8_t *at = in_place(tool, image, name, &file, &size_bytes);
    if (!at)
        return;
    const char *wrong = ciel_table_stream(&stream, at, (int64_t)size_bytes, nothing, NULL);
    if (wrong) {
        tool_failed(tool, "%s: %s", name, wrong);
        return;
    }
    while (!stream.get_next(&stream, &chunk) && chunk.release) {
        const struct ArrowArray *column = chunk.children[0];
        const uint8_t *buffer = column->buffers[1];
        const int64_t *values = (const int64_t *)buffer + column->offset + chunk.offset;
        if (buffer < at || buffer >= at + size_bytes)
            tool_failed(tool, "%s: a column was copied", name);
        for (int64_t i = 0; i < chunk.length; i++)
            sum += values[i];
        rows += chunk.length;
        chunk.release(&chunk);
    }
    stream.release(&stream);
    shmfs_close(image->fs, &file);
    printf("%" PRId64 " rows, sum %" PRId64 "\n", rows, sum);
}

int main(int argc, char **argv)
{
    struct tool tool = {
        .name = "two_kernels",
        .arguments = "churn SEED | verify | table NAME",
        .text = "Use an image that another kernel uses, too.",
        .least = 1,
        .most = 2,
    };
    struct tool_image image;
    tool_begin(&tool, argc, argv);
    if (!tool_attach(&tool, &image, true))
        return TOOL_FAILED;
    const char *what = tool.given[0];
    if (!strcmp(what, "churn") && tool.given_count == 2)
        churn(&tool, image.fs, strtoull(tool.given[1], NULL, 10));
    else if (!strcmp(what, "verify"))
        verify(&tool, &image);
    else if (!strcmp(what, "table") && tool.given_count == 2)
        sum_table(&tool, &image, tool.given[1]);
    else
        tool_misused(&tool, "it cannot do '%s'", what);
    return tool_end(&tool, &image);
}
