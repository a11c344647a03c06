/* Finds the longest line of all inputs: a task of the executor "cso". */
#include <stdio.h>
#include <stdlib.h>
#include <sw_task.h>

sw_task longest;

int longest(int n_in, int *in_fds, int n_out, int *out_fds, int argc, char **argv)
{
    char *line = NULL, *best = NULL;
    size_t room = 0;
    ssize_t best_length = 0, length;
    (void)n_out, (void)argc, (void)argv;
    for (int i = 0; i < n_in; i++) {
        FILE *input = fdopen(in_fds[i], "r");
        while (input && (length = getline(&line, &room, input)) >= 0)
            if (length > best_length) {
                free(best);
                best = line;
                best_length = length;
                line = NULL;
            }
    }
    return dprintf(out_fds[0], "%s", best ? best : "\n") < 0;
}
