/* shmld: loads files into shared memory, each under its base name. */
#include "tool.h"

int main(int argc, char **argv)
{
    struct tool_option options[] = {TOOL_IO_OPTIONS, {0}};
    struct tool tool = {
        .name = "shmld",
        .arguments = "FILE...",
        .text = "Load files into shared memory, each under its base name, and commit them.",
        .least = 1,
        .most = INT_MAX,
        .options = options,
    };
    struct tool_image image;
    tool_begin(&tool, argc, argv);
    uint32_t limit = tool_io_limit(&tool, options);
    if (!tool_attach(&tool, &image, true))
        return TOOL_FAILED;
    for (int i = 0; i < tool.given_count; i++)
        tool_load(&tool, &image, tool.given[i], limit);
    return tool_end(&tool, &image);
}
