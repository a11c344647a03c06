/*
 * What a shared object has for the executor "cso": a function of this type, under any name, which
 * the task names as 'entry_point'. Descriptors are open; those of outputs are of empty files. What
 * is returned is 0 for success; anything else fails the task.
 */
#ifndef CIEL_SW_TASK_H
#define CIEL_SW_TASK_H

typedef int sw_task(int n_in, int *in_fds, int n_out, int *out_fds, int argc, char **argv);

#endif
