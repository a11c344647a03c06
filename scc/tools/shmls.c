/* shmls: load a file while few others load theirs. */
#include <string.h>
#include <unistd.h>

#include "tool.h"

/* The benchmark's script gives the name with a blank behind it. */
static void strip_blank(char *path)
{
    size_t length = strlen(path);
    if (length > 1 && path[length - 1] == ' ' && access(path, F_OK))
        path[length - 1] = '\0';
}

int main(int argc, char **argv)
{
    struct tool tool = {
        .name = "shmls",
        .arguments = "FILE MAXIO",
        .text = "Load a file into shared memory as shmld does, once fewer than MAXIO disk jobs are\n"
                "under way on its disk; 0: at once. What waits is woken, and asks in no loop.",
        .least = 2,
        .most = 2,
    };
    struct tool_image image;
    tool_begin(&tool, argc, argv);
    uint32_t limit = (uint32_t)tool_number_of(&tool, "MAXIO", tool.given[1], 0, UINT32_MAX);
    if (!tool_attach(&tool, &image, true))
        return TOOL_FAILED;
    strip_blank(tool.given[0]);
    tool_load(&tool, &image, tool.given[0], limit);
    return tool_end(&tool, &image);
}
