/* tool.h: what the shm tools share. Each tool is one file with a main, made of three steps:
 *
 *     struct tool_option options[] = {{.name = "json", .text = "print JSON"}, {0}};
 *     struct tool tool = {.name = "shmlist", .text = "List the files.", .options = options};
 *     struct tool_image image;
 *     tool_begin(&tool, argc, argv);      // reads the command line; ends the program if that is it
 *     if (!tool_attach(&tool, &image, false)) // says why, if not
 *         return TOOL_FAILED;
 *     ...
 *     return tool_end(&tool, &image);     // detaches, and says how it went
 *
 * Errors are one sentence on standard error that begins with the tool's name. */
#ifndef SCC_TOOL_H
#define SCC_TOOL_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "shmfs.h"

/* How a tool ends. */
enum tool_status { TOOL_DONE = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

struct tool_option {
    const char *name;  /* without the dashes; NULL ends the list */
    const char *value; /* what its value is called by --help; NULL: it takes none */
    const char *text;
    const char *variable; /* of the environment that is asked where it is not given, or NULL */
    const char *given;    /* the value, or "" for one that takes none; NULL: not given */
};

struct tool {
    const char *name;
    const char *arguments; /* as --help shows them, or NULL */
    const char *text;      /* what it does, as --help says it */
    int least, most;       /* how many arguments there may be */
    struct tool_option *options; /* or NULL */
    int cut_status; /* how it ends if the image is truncated meanwhile; 0: TOOL_FAILED */
    /* filled in by tool_begin */
    const char *image_name;
    char **given;
    int given_count;
    bool has_failed;
};

/* The two files of an image, and what they are once mapped. */
struct tool_image {
    char control_path[PATH_MAX];
    char data_path[PATH_MAX];
    struct shmfs_memory memory;
    int data_fd;
    void *storage;
    struct shmfs *fs; /* NULL: not attached */
};

/* --- the command line (options.c) ------------------------------------------------------------- */

/* Read it. Ends the program on --help, --version, and what makes no sense. */
void tool_begin(struct tool *tool, int argc, char **argv);

/* Say a sentence about what failed, and remember that something did. Returns TOOL_FAILED. */
int tool_failed(struct tool *tool, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* End the program for the caller's mistake. */
_Noreturn void tool_misused(const struct tool *tool, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The number that an option was given, or `otherwise`; sizes may end in KiB, MiB, GiB. Ends the
 * program unless it is one from `least` to `most`. */
uint64_t tool_number(const struct tool *tool, const struct tool_option *option, uint64_t least,
                     uint64_t most, uint64_t otherwise);

/* The same for an argument; `what` it is called. */
uint64_t tool_number_of(const struct tool *tool, const char *what, const char *text, uint64_t least,
                        uint64_t most);

/* --- the image (files.c) ---------------------------------------------------------------------- */

/* Where an image lies: `NAME-control` and `NAME-data` under /dev/shm, or `control` and `data` in
 * NAME where that is a directory. A name that begins with a slash is taken as it is. Ends the program
 * for any other that is none of a file. */
void tool_paths(const struct tool *tool, struct tool_image *image);

/* Map both files, shared; says why not. From then on the program ends with one sentence, and not by
 * SIGBUS, when it touches what somebody truncated. */
bool tool_map(struct tool *tool, struct tool_image *image, bool is_writable);

/* Whether both files are as long as the superblock says, or that says nothing; says which is not. */
bool tool_is_whole(struct tool *tool, const struct tool_image *image);

/* Map them and become a client; says why not. A tool that is not to write maps them read-only and
 * leaves no trace in the image. */
bool tool_attach(struct tool *tool, struct tool_image *image, bool is_writable);

/* Detach if attached, and unmap. Returns how the program ends. */
int tool_end(struct tool *tool, struct tool_image *image);

/* What an error is, in words; `errno`'s where it is the system's. */
const char *tool_error_text(int error);

/* --- loading (loading.c) ---------------------------------------------------------------------- */

/* Load one file under its base name; says why not. `limit` disk jobs may be under way, of all
 * programs that ask in the same way; 0: any number. */
bool tool_load(struct tool *tool, struct tool_image *image, const char *path, uint32_t limit);

/* --- printing (printing.c) -------------------------------------------------------------------- */

/* A name as people can see it: what is no printable UTF-8 is written \xNN. */
void tool_print_name(FILE *to, const char *name);

/* A name as a JSON string. Bytes that are no UTF-8 are \udc80 to \udcff, as Python has them. */
void tool_print_json(FILE *to, const char *name);

/* A size as people read it, such as 1.5 MiB. */
const char *tool_size(char to[32], uint64_t size_bytes);

/* Flush standard output; says so when that fails. */
void tool_flush(struct tool *tool);

#endif
