/*
 * The type of functions for the executor "cso". A shared object has such a function under any name,
 * and the task gives the name as 'entry_point'. All descriptors are open; the files of outputs are
 * empty. The function returns 0 for success; any other result fails the task.
 */
#ifndef CIEL_SW_TASK_H
#define CIEL_SW_TASK_H

typedef int sw_task(int n_in, int *in_fds, int n_out, int *out_fds, int argc, char **argv);

#endif
