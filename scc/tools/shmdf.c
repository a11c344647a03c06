/* shmdf: prints how much of an image is used. */
#include <inttypes.h>

#include "tool.h"

static void print_json(const struct shmfs_statistics *s)
{
    printf("{\"block_bytes\": %" PRIu64 ", \"blocks\": %" PRIu64 ", \"free_blocks\": %" PRIu64
           ", \"inodes\": %" PRIu32 ", \"free_inodes\": %" PRIu32 ", \"entries\": %" PRIu32
           ", \"free_entries\": %" PRIu32 ", \"clients\": %" PRIu32 ", \"attached\": %" PRIu32
           ", \"disk_jobs\": %" PRIu32 ", \"recoveries\": %" PRIu64 ", \"sweeps\": %" PRIu64
           ", \"lock_waits\": %" PRIu64 "}\n",
           s->block_bytes, s->block_count, s->free_block_count, s->inode_count,
           s->free_inode_count, s->entry_count, s->free_entry_count, s->client_count,
           s->attached_count, s->io_count, s->recovery_count, s->sweep_count, s->lock_wait_count);
}

static void print_row(const char *what, uint64_t count, uint64_t free_count)
{
    printf("%-10s %10" PRIu64 " %10" PRIu64 " %10" PRIu64 "\n", what, count, count - free_count,
           free_count);
}

static void print_table(const struct shmfs_statistics *s)
{
    char block[32], used[32], free[32];
    printf("%-10s %10s %10s %10s\n", "", "all", "used", "free");
    print_row("blocks", s->block_count, s->free_block_count);
    print_row("inodes", s->inode_count, s->free_inode_count);
    print_row("entries", s->entry_count, s->free_entry_count);
    print_row("clients", s->client_count, s->client_count - s->attached_count);
    printf("a block is %s: %s are used and %s free\n", tool_size(block, s->block_bytes),
           tool_size(used, (s->block_count - s->free_block_count) * s->block_bytes),
           tool_size(free, s->free_block_count * s->block_bytes));
    printf("I/O operations under way: %" PRIu32 "\n", s->io_count);
    printf("dead clients: %" PRIu64 " swept, %" PRIu64 " interrupted transactions completed\n",
           s->sweep_count, s->recovery_count);
}

int main(int argc, char **argv)
{
    struct tool_option options[] = {{.name = "json", .text = "print JSON"}, {0}};
    struct tool tool = {
        .name = "shmdf",
        .text = "Print how much of the image in shared memory is used.",
        .options = options,
    };
    struct tool_image image;
    struct shmfs_statistics statistics;
    tool_begin(&tool, argc, argv);
    if (!tool_attach(&tool, &image, false))
        return TOOL_FAILED;
    int error = shmfs_statfs(image.fs, &statistics);
    if (error)
        tool_failed(&tool, "%s cannot be read: %s", image.control_path, tool_error_text(error));
    else if (options[0].given)
        print_json(&statistics);
    else
        print_table(&statistics);
    return tool_end(&tool, &image);
}
