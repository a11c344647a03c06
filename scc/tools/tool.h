/* tool.h: functions that the shm tools share. Each tool is one file with a main of three steps:
 *
 *     struct tool_option options[] = {{.name = "json", .text = "print JSON"}, {0}};
 *     struct tool tool = {.name = "shmlist", .text = "List the files.", .options = options};
 *     struct tool_image image;
 *     tool_begin(&tool, argc, argv);      // parses the command line; exits after --help
 *     if (!tool_attach(&tool, &image, false)) // prints the reason on failure
 *         return TOOL_FAILED;
 *     ...
 *     return tool_end(&tool, &image);     // detaches, and returns the exit status
 *
 * An error is one sentence on standard error that starts with the tool's name. */
#ifndef SCC_TOOL_H
#define SCC_TOOL_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "device.h"
#include "shmfs.h"

/* Exit statuses of a tool. */
enum tool_status { TOOL_DONE = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

struct tool_option {
    const char *name;  /* without the dashes; NULL ends the list */
    const char *value; /* name of its value in --help; NULL: it takes no value */
    const char *text;
    const char *variable; /* environment variable used if the option is missing, or NULL */
    const char *given;    /* the value, or "" if it takes none; NULL: the option is missing */
};

struct tool {
    const char *name;
    const char *arguments; /* as shown by --help, or NULL */
    const char *text;      /* description shown by --help */
    int least, most;       /* number of arguments */
    struct tool_option *options; /* or NULL */
    uint32_t io_shared; /* the limit of disk jobs on all cores of the image; 0: none */
    int cut_status; /* exit status if the image is truncated meanwhile; 0: TOOL_FAILED */
    /* set by tool_begin */
    const char *image_name;
    char **given;
    int given_count;
    bool has_failed;
    struct device *device; /* set by device_begin; NULL: no heartbeats */
};

/* The two files of an image, and their mappings. */
struct tool_image {
    char control_path[PATH_MAX];
    char data_path[PATH_MAX];
    struct shmfs_memory memory;
    int data_fd;
    void *storage;
    struct shmfs *fs; /* NULL: not attached */
    bool has_turn;    /* of a disk: the cores may wait for it, so they are not asked for space */
    uint64_t lacking_bytes; /* that a call lacked meanwhile; 0: none did */
    bool is_client;   /* attached, and not as a reader */
    bool is_counted;  /* by the image: an I/O operation of this client is under way */
    /* of an image in one file */
    void *device_base;
    uint64_t device_bytes;
    bool lives_by_heartbeats;
    void *device_storage;
};

/* --- the command line (options.c) ------------------------------------------------------------ */

/* Parse the command line. Exits on --help, --version and invalid options. */
void tool_begin(struct tool *tool, int argc, char **argv);

/* Print an error message, and record the failure. Returns TOOL_FAILED. */
int tool_failed(struct tool *tool, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Print a message about a wrong command line, and exit. */
_Noreturn void tool_misused(const struct tool *tool, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Return the number given for an option, or `otherwise`. Sizes may end in KiB, MiB, GiB. Exits
 * unless the number is between `least` and `most`. */
uint64_t tool_number(const struct tool *tool, const struct tool_option *option, uint64_t least,
                     uint64_t most, uint64_t otherwise);

/* tool_number for an argument; `what` is its name in messages. */
uint64_t tool_number_of(const struct tool *tool, const char *what, const char *text, uint64_t least,
                        uint64_t most);

/* --- the image (files.c) --------------------------------------------------------------------- */

/* Set the paths of an image: `NAME-control` and `NAME-data` under /dev/shm, or `control` and `data`
 * in NAME if that is a directory. A name that starts with a slash is used as it is. Exits for any
 * other name with a slash, and for a name that cannot belong to a file. */
void tool_paths(const struct tool *tool, struct tool_image *image);

/* Map both files, shared. Prints the reason on failure. Afterwards the program ends with a message
 * instead of SIGBUS when it touches a truncated page. */
bool tool_map(struct tool *tool, struct tool_image *image, bool is_writable);

/* Return whether both files are as long as the superblock says, or the superblock is invalid.
 * Prints which file is too short. */
bool tool_is_whole(struct tool *tool, const struct tool_image *image);

/* Map the files and attach as a client. Prints the reason on failure. A tool that does not write
 * maps the files read-only, and leaves no trace in the image. */
bool tool_attach(struct tool *tool, struct tool_image *image, bool is_writable);

/* Let the cores of the image free `lacking_bytes`. Returns whether they have freed any. */
bool tool_free_space(const struct tool_image *image);

/* Attach as a client, so that the image counts the I/O of a tool that only reads. The tool becomes a
 * reader if the image cannot be written to, or has no place for another client. */
bool tool_attach_counted(struct tool *tool, struct tool_image *image);

/* Count an I/O operation of this client while it is under way, and wait before it until fewer than
 * `limit` operations are (0: no limit). Returns an error of shmfs; without a limit, a failure to
 * count is not one of the operation. tool_end_io keeps `errno`. */
int tool_begin_io(struct tool_image *image, uint32_t limit);
void tool_end_io(struct tool_image *image);

/* Detach if attached. Returns the exit status. */
int tool_end(struct tool *tool, struct tool_image *image);

/* Return the text of an error; for SHMFS_ERROR_SYSTEM, the text of `errno`. */
const char *tool_error_text(int error);

/* --- an image in the memory of several kernels (device_image.c) ------------------------------ */

/* Return whether the name of the image is the path of a file: a device, such as resource2 of a PCI
 * device in /sys/bus/pci/devices, or an ordinary file. */
bool device_is(const struct tool *tool);

/* Map the image in a device. Prints the reason on failure. */
bool device_map(struct tool *tool, struct tool_image *image, bool is_writable);

/* Create an image in a device, for this many cores of a store; `kernels` is an
 * enum device_kernels. Prints the reason on failure. */
bool device_make(struct tool *tool, struct tool_image *image, struct shmfs_geometry *geometry,
                 uint32_t cores, uint32_t kernels, bool replaces);

/* Start the heartbeats of this process. Prints the reason on failure. */
bool device_begin(struct tool *tool, struct tool_image *image);

/* --- loading (loading.c) --------------------------------------------------------------------- */

/* A limit on the disk jobs of all programs that queue for a device: it depends on the device
 * (`io_usual_limit`), and files of at most 64 KiB and files that are not regular do not queue. */
#define TOOL_USUAL_LIMIT UINT32_MAX

/* The two options that set limits. Without the first the limit is TOOL_USUAL_LIMIT; 0: none. The
 * second replaces it by a limit that all cores of the image share, and sets `tool->io_shared`. */
#define TOOL_IO_OPTIONS                                                                            \
    {.name = "io",                                                                                 \
     .value = "N",                                                                                 \
     .text = "disk jobs at a time on a disk; 0: any; else by its kind",                            \
     .variable = "SHMFS_IO"},                                                                      \
    {                                                                                              \
        .name = "io-shared", .value = "N",                                                         \
        .text = "disk jobs at a time of all cores, on all kernels",                                \
        .variable = "SHMFS_IO_SHARED"                                                              \
    }
uint32_t tool_io_limit(struct tool *tool, const struct tool_option *options);

/* Wait for a turn to read or write `size_bytes` on the device of `path`, a regular file or not.
 * Returns a token for io_token_release, TOOL_NO_TURN if none is needed, or prints the reason and
 * returns a negative errno. */
#define TOOL_NO_TURN INT_MAX
int tool_await_turn(struct tool *tool, const char *path, int64_t size_bytes, bool is_regular,
                    uint32_t limit);

/* Load one file under its base name. Prints the reason on failure. */
bool tool_load(struct tool *tool, struct tool_image *image, const char *path, uint32_t limit);

/* --- printing (printing.c) ------------------------------------------------------------------- */

/* Print a name for people: bytes that are not printable UTF-8 become \xNN. */
void tool_print_name(FILE *to, const char *name);

/* Print a name as a JSON string. Bytes that are not UTF-8 become \udc80 to \udcff, as in Python. */
void tool_print_json(FILE *to, const char *name);

/* Format a size for people, such as 1.5 MiB. */
const char *tool_size(char to[32], uint64_t size_bytes);

/* Flush standard output. Prints a message on failure. */
void tool_flush(struct tool *tool);

#endif
