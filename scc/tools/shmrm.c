/* shmrm: take names away, and files with their last name. */
#include "tool.h"

int main(int argc, char **argv)
{
    struct tool tool = {
        .name = "shmrm",
        .arguments = "NAME...",
        .text = "Take names away. A file is gone with its last name, once nobody has it open.",
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
