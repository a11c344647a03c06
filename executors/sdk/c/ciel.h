/* libciel: tasks in C. See docs/programs.md of ciel.
 *
 *     cc -o task task.c ciel.c -ljansson
 *
 * Any error between a task and its worker ends the program with exit status 1, after a line on
 * standard error that says what failed and why. Functions return NULL or -1 only if documented
 * here, and print nothing else. Only one thread may use the library at a time.
 *
 * Ownership: the caller owns a returned json_t, and releases it with json_decref. The caller keeps
 * the ownership of arguments: a json_t, texts and buffers; the library does not retain them.
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

/* Wait for the task; return its arguments, which include "proc_pargs" and "proc_kwargs". */
json_t *ciel_get_task(void);

/* Wait for a further task, after ciel_exit_keep("may_keep", NULL) at the end of the last one. NULL:
 * there are no more tasks, and the program should end. */
json_t *ciel_get_next_task(void);

/* --- inputs: references are JSON objects with a key "__ref__" --- */

/* Open a complete object; NULL if it is not available yet (ciel_block_on_refs waits for it). */
struct ciel_input *ciel_open_ref(json_t *ref);

/* Open an object that may still be growing; NULL if it is not available yet. At the end of the
 * data, reading waits for `chunk_size` more bytes, or until the object is complete. */
struct ciel_input *ciel_open_ref_async(json_t *ref, int chunk_size, int sole_consumer,
                                       int must_block);

/* Return how many bytes were read, at most `len`, 0 at the end. -1: the object cannot be read, or
 * its producer has failed; the data read before is then incomplete. */
int ciel_read_ref(struct ciel_input *input, char *buf, int len);
void ciel_set_input_unbuffered(struct ciel_input *input);

/* Return the descriptor of the file, for instance to map it. ciel_close_ref closes it. */
int ciel_input_fd(struct ciel_input *input);
void ciel_close_ref(struct ciel_input *input); /* frees it */

/* Suspend this process until the objects of `n` references (json_t *) are available. Meanwhile the
 * task takes no slot of the worker. All outputs must be closed. Afterwards a new task continues in
 * this process. It cannot use outputs that were allocated before, but must still produce the
 * outputs for which the task was started. */
void ciel_block_on_refs(int n, ...);

/* Return the entry of a key in the package of the job; NULL if there is none. */
json_t *ciel_package_lookup(char *key);

/* Return the id of a reference's object, which the caller frees; NULL if it is not a reference. */
char *ciel_get_ref_id(json_t *ref);

/* --- outputs: numbered from 0; the first ones are the outputs that the task was started for --- */

/* Open an output for writing. With `may_stream`, other tasks may read it from now on. `may_pipe`
 * requires `may_stream`. */
struct ciel_output *ciel_open_output(int index, int may_stream, int may_pipe, int make_sweetheart);

/* Return how many bytes were written: fewer than `len` if there is no space. */
int ciel_write_output(struct ciel_output *output, char *buf, int len);
void ciel_set_output_unbuffered(struct ciel_output *output);

/* Replace bytes that were written before, from `offset` on; not in an output that others may read
 * already. Return how many bytes were written: fewer than `len` if there is an error. */
int ciel_write_output_at(struct ciel_output *output, char *buf, int len, long offset);

/* Leave bytes out: the next write begins after them. -1 if there is an error. */
int ciel_skip_output(struct ciel_output *output, long bytes);
int ciel_output_fd(struct ciel_output *output);

/* Publish an output and free it; return its reference. If the data cannot be written completely,
 * the output is not published, and the program ends. */
json_t *ciel_close_output(struct ciel_output *output);

/* Publish a text as the whole content of an output. */
void ciel_define_output_with_plain_string(int index, char *text);

/* Add an output, which other tasks can get only by its reference; return its index. */
int ciel_allocate_output(const char *prefix);

/* --- children --- */

/* Create a task; `keywords` is an object with the keywords of its executor, or NULL. Return a
 * reference to its output, or a list of references, depending on the executor. */
json_t *ciel_spawn(const char *executor, json_t *keywords);

/* Create a task that takes over the outputs of this one. */
void ciel_tail_spawn(const char *executor, json_t *keywords);

/* --- the end --- */

/* End the task successfully; then the program should end. */
void ciel_exit(void);

/* End the task successfully; `keep` is "no", "may_keep" or "must_keep". `soft_cache_keys` is a list
 * of [[id, ...], tag], the objects that the program has in its cache for later tasks, or NULL. */
void ciel_exit_keep(const char *keep, json_t *soft_cache_keys);

/* Fail the task; then the program should end. */
void ciel_error(const char *report);

/* Add a line to the log of the job. */
void ciel_log(const char *message);

/* --- lower-level functions --- */

void ciel_read_all(FILE *file, int len, char *buf);
void ciel_write_all(FILE *file, char *buf, int len);
json_t *ciel_read_framed_json(FILE *file);
void ciel_write_framed_json(json_t *value, FILE *file); /* sent with the next fflush */
void ciel_json_error(char *where, json_error_t *error); /* does not return */

#ifdef __cplusplus
}
#endif

#endif
