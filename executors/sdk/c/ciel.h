/* libciel: tasks in C. See docs/programs.md of ciel.
 *
 *     cc -o task task.c ciel.c -ljansson
 *
 * Whatever goes wrong between a task and its worker ends the program: a line on standard error says
 * what and why, and the exit status is 1. Functions return NULL or -1 only where they say so here.
 * Nothing is printed otherwise. Not for several threads at once.
 *
 * Who owns what: a json_t that is returned is the caller's, to be given up with json_decref. One
 * that is passed in stays the caller's, as do texts and buffers; nothing of them is kept.
 */
#ifndef CIEL_H
#define CIEL_H

#include <jansson.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ciel_input;
struct ciel_output;

/* Open the FIFOs: argv[2] and argv[4] of a program that is a task. */
void ciel_init(char *out_fifo, char *in_fifo);

/* Wait for the task; return what it was started with, with "proc_pargs" and "proc_kwargs". */
json_t *ciel_get_task(void);

/* A program that stays ready ends its tasks with ciel_exit_keep("may_keep", NULL) and then waits for
 * the next one here. NULL: there will be none, and the program should end. */
json_t *ciel_get_next_task(void);

/* --- inputs: references are JSON objects with a key "__ref__" --- */

/* Open a complete object; NULL if it is not there yet (ciel_block_on_refs waits for it). */
struct ciel_input *ciel_open_ref(json_t *ref);

/* Open an object that may still be written, to read along; NULL if it is not there yet. At its end,
 * reading waits for `chunk_size` more bytes, or for the last one. */
struct ciel_input *ciel_open_ref_async(json_t *ref, int chunk_size, int sole_consumer,
                                       int must_block);

/* Return how many bytes were read, at most `len`, 0 at the end. -1: it cannot be read, or its writer
 * has failed; what was read before is then no whole object. */
int ciel_read_ref(struct ciel_input *input, char *buf, int len);
void ciel_set_input_unbuffered(struct ciel_input *input);
void ciel_close_ref(struct ciel_input *input); /* frees it */

/* Wait, in this process but in no slot of the worker, until `n` references (json_t *) are there.
 * Outputs must be closed before. Those that were allocated before are behind the task then; those
 * that it was started for are still to be made. */
void ciel_block_on_refs(int n, ...);

/* Look something up in the package of the job; NULL if it has no such key. */
json_t *ciel_package_lookup(char *key);

/* The id of the object that a reference names, to be freed; NULL if it is no reference. */
char *ciel_get_ref_id(json_t *ref);

/* --- outputs: numbered from 0; the first are those that the task was started for --- */

/* With `may_stream`, others may read it from now on. `may_pipe` needs `may_stream`. */
struct ciel_output *ciel_open_output(int index, int may_stream, int may_pipe, int make_sweetheart);

/* Return how many bytes were written: fewer than `len` if there is no room. */
int ciel_write_output(struct ciel_output *output, char *buf, int len);
void ciel_set_output_unbuffered(struct ciel_output *output);

/* Publish it, and free it; return the reference. What cannot be written whole is not published: the
 * program ends. */
json_t *ciel_close_output(struct ciel_output *output);

/* Publish a text as the whole of an output. */
void ciel_define_output_with_plain_string(int index, char *text);

/* Add an output that nobody expects, to be handed on by its reference; return its index. */
int ciel_allocate_output(const char *prefix);

/* --- children --- */

/* Create a task; `keywords` is an object of what its executor takes, or NULL. Return what it will
 * make: a reference, or a list of them, as the executor has it. */
json_t *ciel_spawn(const char *executor, json_t *keywords);

/* Create a task that makes the outputs of this one in its place. */
void ciel_tail_spawn(const char *executor, json_t *keywords);

/* --- the end --- */

/* The task is done; the program should end. */
void ciel_exit(void);

/* The task is done; `keep` is "no", "may_keep" or "must_keep". `soft_cache_keys` is a list of
 * [[id, ...], word], what the program holds ready for later tasks, or NULL. */
void ciel_exit_keep(const char *keep, json_t *soft_cache_keys);

/* The task has failed; the program should end. */
void ciel_error(const char *report);

/* Add a line to the log of the job. */
void ciel_log(const char *message);

/* --- what it is made of --- */

void ciel_read_all(FILE *file, int len, char *buf);
void ciel_write_all(FILE *file, char *buf, int len);
json_t *ciel_read_framed_json(FILE *file);
void ciel_write_framed_json(json_t *value, FILE *file); /* sent with the next fflush */
void ciel_json_error(char *where, json_error_t *error); /* does not return */

#ifdef __cplusplus
}
#endif

#endif
