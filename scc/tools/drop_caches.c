/* drop_caches: have the kernel forget what it keeps of files, so that they are read from disk. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tool.h"

int main(int argc, char **argv)
{
    struct tool tool = {
        .name = "drop_caches",
        .text = "Write to disk what waits to be written, and have the kernel forget what it keeps\n"
                "in memory of files on disks. Only root may.",
    };
    tool_begin(&tool, argc, argv);
    sync();
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "3\n", 2) != 2)
        return tool_failed(&tool,
                           "the caches are as they were: /proc/sys/vm/drop_caches cannot be written "
                           "(%s); it takes root, outside of containers that may not",
                           strerror(errno));
    close(fd);
    return TOOL_DONE;
}
