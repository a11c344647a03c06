/* shmlist: lists the files in shared memory. */
#include <inttypes.h>

#include "tool.h"

static void print_json(const char *name, const struct shmfs_info *info)
{
    printf("{\"name\": ");
    tool_print_json(stdout, name);
    printf(", \"size_bytes\": %" PRIu64 ", \"blocks\": %" PRIu64 ", \"links\": %" PRIu32
           ", \"handles\": %" PRIu32 ", \"inode\": %" PRIu32
           ", \"committed\": %s, \"writing\": %s, \"contiguous\": %s}\n",
           info->size_bytes, info->block_count, info->link_count, info->handle_count, info->inode,
           info->is_committed ? "true" : "false", info->is_writing ? "true" : "false",
           info->is_contiguous ? "true" : "false");
}

int main(int argc, char **argv)
{
    struct tool_option options[] = {
        {.name = "json", .text = "print JSON, one line per file"},
        {0},
    };
    struct tool tool = {
        .name = "shmlist",
        .text = "List the names in shared memory: size in bytes, links, state, name.",
        .options = options,
    };
    struct tool_image image;
    tool_begin(&tool, argc, argv);
    if (!tool_attach(&tool, &image, false))
        return TOOL_FAILED;
    uint64_t cursor = 0;
    char name[SHMFS_NAME_MAX_BYTES + 1];
    struct shmfs_info info;
    int found;
    while ((found = shmfs_list(image.fs, &cursor, name, &info)) > 0) {
        if (options[0].given) {
            print_json(name, &info);
            continue;
        }
        printf("%14" PRIu64 "  %5" PRIu32 "  %-9s  ", info.size_bytes, info.link_count,
               info.is_committed ? "committed" : info.is_writing ? "writing" : "open");
        tool_print_name(stdout, name);
        putchar('\n');
    }
    if (found < 0)
        tool_failed(&tool, "%s cannot be listed: %s", image.control_path, tool_error_text(found));
    return tool_end(&tool, &image);
}
