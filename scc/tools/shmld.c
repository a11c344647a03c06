/* shmld: loads files into shared memory, each under its base name. */
#include "tool.h"

int main(int argc, char **argv)
{
    struct tool tool = {
        .name = "shmld",
        .arguments = "FILE...",
        .text = "Load files into shared memory, each under its base name, and commit them.",
        .least = 1,
        .most = INT_MAX,
    };
    struct tool_image image;
    tool_begin(&tool, argc, argv);
    if (!tool_attach(&tool, &image, true))
        return TOOL_FAILED;
    for (int i = 0; i < tool.given_count; i++)
        tool_load(&tool, &image, tool.given[i], 0);
    return tool_end(&tool, &image);
}
