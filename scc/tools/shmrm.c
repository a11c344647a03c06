/* shmrm: removes names, and frees files that have no name left. */
#include "tool.h"

int main(int argc, char **argv)
{
    struct tool tool = {
        .name = "shmrm",
        .arguments = "NAME...",
        .text = "Remove names. A file is freed when it has no names and no program has it open.",
        .least = 1,
        .most = INT_MAX,
    };
    struct tool_image image;
    tool_begin(&tool, argc, argv);
    if (!tool_attach(&tool, &image, true))
        return TOOL_FAILED;
    for (int i = 0; i < tool.given_count; i++) {
        int error = shmfs_unlink(image.fs, tool.given[i]);
        if (error)
            tool_failed(&tool, "%s cannot be removed: %s", tool.given[i], tool_error_text(error));
    }
    return tool_end(&tool, &image);
}
