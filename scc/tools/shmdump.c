/* shmdump: prints the structure of an image, and where a file is in it. */
#include <inttypes.h>
#include <string.h>

#include "image.h"
#include "tool.h"

/* Print the superblock, even if it is invalid. */
static void print_superblock(const struct tool_image *image)
{
    struct image_superblock s = {0};
    uint64_t size_bytes = image->memory.control_bytes;
    memcpy(&s, image->memory.control, size_bytes < sizeof s ? size_bytes : sizeof s);
    printf("superblock of %s\n", image->control_path);
    printf("  magic %016" PRIx64 "%s, format %" PRIu32 ", byte order %08" PRIx32 "%s\n", s.magic,
           s.magic == IMAGE_MAGIC ? "" : " (not an image)", s.format_version, s.endian,
           s.endian == IMAGE_ENDIAN ? "" : " (of another machine)");
    printf("  signature %016" PRIx64 ", checksum %016" PRIx64 "\n", s.signature, s.checksum);
    printf("  %" PRIu64 " blocks of %" PRIu64 " bytes, %" PRIu32 " inodes, %" PRIu32
           " entries, %" PRIu32 " clients with %" PRIu32 " handles, %" PRIu32 " shards\n",
           s.block_count, s.block_bytes, s.inode_count, s.entry_count, s.client_count,
           s.handle_count, s.shard_count);
    printf("  control %" PRIu64 " bytes (the file has %" PRIu64 "), data %" PRIu64
           " bytes (the file has %" PRIu64 ")\n",
           s.control_bytes, size_bytes, s.data_bytes, image->memory.data_bytes);
}

static void print_statistics(struct tool *tool, struct tool_image *image)
{
    struct shmfs_statistics s;
    int error = shmfs_statfs(image->fs, &s);
    if (error) {
        tool_failed(tool, "%s cannot be read: %s", image->control_path, tool_error_text(error));
        return;
    }
    printf("statistics\n  free: %" PRIu64 " blocks, %" PRIu32 " inodes, %" PRIu32 " entries\n",
           s.free_block_count, s.free_inode_count, s.free_entry_count);
    printf("  %" PRIu32 " clients, %" PRIu32 " disk jobs, %" PRIu64 " recoveries, %" PRIu64
           " sweeps, %" PRIu64 " waits for locks\n",
           s.attached_count, s.io_count, s.recovery_count, s.sweep_count, s.lock_wait_count);
}

/* Print the blocks of a file in order, with adjacent blocks as a range. Reads the tables without
 * trusting them. */
static void print_chain(const struct shape *shape, const uint8_t *control, uint32_t number)
{
    struct image_inode inode;
    memcpy(&inode, control + shape->inodes + (uint64_t)(number - 1) * sizeof inode, sizeof inode);
    uint64_t shown = 0;
    uint32_t block = inode.first_block;
    printf("  blocks:");
    while (block && block != FAT_END && block <= shape->geometry.block_count &&
           shown < inode.block_count) {
        uint32_t first = block, last = block;
        do {
            last = block;
            memcpy(&block, control + shape->fat + (uint64_t)(last - 1) * sizeof block,
                   sizeof block);
            shown++;
        } while (block == last + 1 && block <= shape->geometry.block_count &&
                 shown < inode.block_count);
        printf(first == last ? " %" PRIu32 : " %" PRIu32 "-%" PRIu32, first, last);
    }
    printf("%s\n", shown == inode.block_count && (!shown || block == FAT_END)
                       ? "" : " ... and then the chain is broken");
}

static void print_file(struct tool *tool, struct tool_image *image, const char *name)
{
    struct shmfs_info info;
    struct image_superblock superblock;
    struct shape shape;
    int error = shmfs_stat(image->fs, name, &info);
    memcpy(&superblock, image->memory.control, sizeof superblock);
    if (!error)
        error = shape_read(&superblock, image->memory.control_bytes, image->memory.data_bytes,
                           &shape);
    if (error) {
        tool_failed(tool, "%s cannot be shown: %s", name, tool_error_text(error));
        return;
    }
    printf("file ");
    tool_print_name(stdout, name);
    printf("\n  inode %" PRIu32 ", generation %" PRIu32 ", %" PRIu64 " bytes in %" PRIu64
           " blocks%s, %" PRIu32 " links, %" PRIu32 " handles, %s, tag %016" PRIx64 "\n",
           info.inode, info.generation, info.size_bytes, info.block_count,
           info.is_contiguous ? " in one run" : "", info.link_count, info.handle_count,
           info.is_committed ? "committed" : info.is_writing ? "being written" : "not committed",
           info.tag);
    print_chain(&shape, image->memory.control, info.inode);
}

int main(int argc, char **argv)
{
    struct tool tool = {
        .name = "shmdump",
        .arguments = "[NAME...]",
        .text = "Print the superblock and statistics of an image, and where files are in it.\n"
                "Damaged data is printed as it is.",
        .most = INT_MAX,
    };
    struct tool_image image;
    tool_begin(&tool, argc, argv);
    if (!tool_map(&tool, &image, false))
        return TOOL_FAILED;
    print_superblock(&image);
    if (!tool_attach(&tool, &image, false))
        return tool_end(&tool, &image);
    print_statistics(&tool, &image);
    for (int i = 0; i < tool.given_count; i++)
        print_file(&tool, &image, tool.given[i]);
    return tool_end(&tool, &image);
}
