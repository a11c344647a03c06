/* shmls: loads a file when few other disk jobs are running. */
#include <string.h>
#include <unistd.h>

#include "tool.h"

/* The benchmark's script passes the name with a trailing blank. */
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
        .text = "Load a file into shared memory as shmld does, once fewer than MAXIO disk jobs\n"
                "are running on its disk; 0: at once. It sleeps while it waits, without polling.",
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
