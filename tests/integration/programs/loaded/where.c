/* For the executor "cso": prints on which host it runs, and the total size of its inputs. */
#include <stdio.h>
#include <unistd.h>

#include "sw_task.h"

sw_task where;

int where(int n_in, int *in_fds, int n_out, int *out_fds, int argc, char **argv)
{
    char name[64] = "", bytes[65536];
    long size = 0;
    (void)argc, (void)argv;
    if (readlink("/proc/self/ns/net", name, sizeof name - 1) < 0 || n_out != 1)
        return 1;
    for (int i = 0; i < n_in; i++)
        for (ssize_t got; (got = read(in_fds[i], bytes, sizeof bytes)) > 0;)
            size += got;
    return dprintf(out_fds[0], "%s\n%ld\n", name, size) < 0;
}
