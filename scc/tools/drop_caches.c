/* drop_caches: makes the kernel drop its file caches, so that files are read from disk. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tool.h"

int main(int argc, char **argv)
{
    struct tool tool = {
        .name = "drop_caches",
        .text = "Write dirty file data to disk, and make the kernel drop its caches of files on\n"
                "disks. Requires root.",
    };
    tool_begin(&tool, argc, argv);
    sync();
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "3\n", 2) != 2)
        return tool_failed(&tool,
                           "cannot drop the caches: cannot write /proc/sys/vm/drop_caches: %s; run "
                           "it as root, outside a container",
                           strerror(errno));
    close(fd);
    return TOOL_DONE;
}
