/* shmln: adds a name to a file. */
#include "tool.h"

int main(int argc, char **argv)
{
    struct tool tool = {
        .name = "shmln",
        .arguments = "NAME ALIAS",
        .text = "Add a name to a file in shared memory.",
        .least = 2,
        .most = 2,
    };
    struct tool_image image;
    tool_begin(&tool, argc, argv);
    if (!tool_attach(&tool, &image, true))
        return TOOL_FAILED;
    int error = shmfs_link(image.fs, tool.given[0], tool.given[1]);
    if (error)
        tool_failed(&tool, "%s cannot be linked as %s: %s", tool.given[0], tool.given[1],
                    tool_error_text(error));
    return tool_end(&tool, &image);
}
