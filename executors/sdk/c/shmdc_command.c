/* shmdc: reads and writes the objects of a block store from a shell, by libshmdc. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shmdc.h"

enum exit_status { DONE, FAILED, USAGE, NO_DAEMON, TIMED_OUT = 5 };
enum { CHUNK_BYTES = 1 << 16 };
#define TIMEOUT_MAX_S 3600.0

static const char help[] =
    "Usage: shmdc [OPTION...] COMMAND ID\n"
    "Read and write the objects of a block store, by its daemon: `ciel shmd`, or a worker.\n"
    "\n"
    "  load ID   print the path of an object, to read it; the daemon may have to copy it first\n"
    "  read ID   print the object\n"
    "  info ID   print the size and the checksum of an object of this store\n"
    "  write ID  make standard input the object of this id, and print its path\n"
    "\n"
    "  -d, --directory DIR    the block store (default: CIEL_SHMD, which tasks have)\n"
    "      --here             load, read: do not ask other stores\n"
    "      --timeout SECONDS  how long to wait for the daemon (default 30)\n"
    "      --help             print this help\n"
    "\n"
    "Exit status: 0 done, 1 failed, 2 usage, 3 no daemon or access denied, 5 timed out.\n";

static int say(const struct shmdc_reply *reply, int status)
{
    fprintf(stderr, "shmdc: %s\n", reply->reason);
    if (status == SHMDC_TIMEOUT)
        return TIMED_OUT;
    return status == SHMDC_GONE || status == SHMDC_DENIED ? NO_DAEMON : FAILED;
}

static int say_errno(const char *what)
{
    fprintf(stderr, "shmdc: %s: %s\n", what, strerror(errno));
    return FAILED;
}

static _Noreturn void misused(const char *what, const char *word)
{
    fprintf(stderr, "shmdc: %s%s; see shmdc --help\n", what, word);
    exit(USAGE);
}

/* Copy all bytes; return NULL, or which end failed, with errno. */
static const char *copy(int from, int to)
{
    static char chunk[CHUNK_BYTES];

    for (;;) {
        ssize_t got = read(from, chunk, sizeof chunk);

        if (got == 0)
            return NULL;
        if (got < 0 && errno != EINTR)
            return "cannot read";
        for (ssize_t done = 0; done < got;) {
            ssize_t written = write(to, chunk + done, (size_t)(got - done));

            if (written < 0 && errno != EINTR)
                return "cannot write";
            done += written < 0 ? 0 : written;
        }
    }
}

static int load_object(struct shmdc *store, const char *id, int flags)
{
    struct shmdc_reply reply;
    int status = shmdc_load(store, id, flags, &reply);

    if (status != 0)
        return say(&reply, status);
    puts(reply.path);
    return DONE;
}

static int read_object(struct shmdc *store, const char *id, int flags)
{
    struct shmdc_reply reply;
    int fd, status = shmdc_read(store, id, flags, &fd, &reply);
    const char *problem;

    if (status != 0)
        return say(&reply, status);
    problem = copy(fd, STDOUT_FILENO);
    status = problem == NULL ? DONE : say_errno(problem);
    close(fd);
    return status;
}

static int print_info(struct shmdc *store, const char *id, int flags)
{
    struct shmdc_reply reply;
    int status = shmdc_info(store, id, &reply);

    (void)flags;
    if (status != 0)
        return say(&reply, status);
    printf("%" PRIu64 " %s\n", reply.size_bytes, reply.checksum);
    return DONE;
}

static int write_object(struct shmdc *store, const char *id, int flags)
{
    struct shmdc_reply opened, reply;
    int fd, status = shmdc_write(store, id, 0, 0, &opened);
    const char *problem = "cannot open the file of the daemon";

    (void)flags;
    if (status != 0)
        return say(&opened, status);
    fd = open(opened.path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        problem = copy(STDIN_FILENO, fd);
        if (close(fd) < 0 && problem == NULL)
            problem = "cannot write";
    }
    if (problem != NULL)
        return say_errno(problem); /* the file goes with the connection */
    status = shmdc_commit(store, opened.path, id, &reply);
    if (status != 0)
        return say(&reply, status);
    puts(reply.path);
    return DONE;
}

static const struct {
    const char *name;
    int (*run)(struct shmdc *store, const char *id, int flags);
    int flags; /* the flags that it accepts */
} commands[] = {
    {"load", load_object, SHMDC_HERE},
    {"read", read_object, SHMDC_HERE},
    {"info", print_info, 0},
    {"write", write_object, 0},
};

static int run(const char *directory, uint32_t timeout_ms, int flags, char **words)
{
    struct shmdc *store;
    size_t which = 0;
    int status;

    while (which < sizeof commands / sizeof *commands &&
           strcmp(commands[which].name, words[0]) != 0)
        which++;
    if (which == sizeof commands / sizeof *commands)
        misused("there is no command ", words[0]);
    if ((flags & ~commands[which].flags) != 0)
        misused("--here is not for the command ", words[0]);
    store = shmdc_open(directory, NULL);
    if (store == NULL && errno == ENOENT)
        misused("no block store: name its directory with -d, or by CIEL_SHMD", "");
    if (store == NULL)
        return say_errno("cannot open the block store");
    if (timeout_ms > 0)
        shmdc_set_timeout(store, timeout_ms);
    status = commands[which].run(store, words[1], flags);
    if (fflush(stdout) != 0)
        status = say_errno("cannot write");
    shmdc_close(store);
    return status;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"directory", required_argument, NULL, 'd'}, {"here", no_argument, NULL, 'n'},
        {"timeout", required_argument, NULL, 't'},   {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    const char *directory = NULL;
    double timeout_s = 0;
    int option, flags = 0;
    char *rest = "";

    opterr = 0;
    while ((option = getopt_long(argc, argv, "+:d:", options, NULL)) >= 0) {
        if (option == 'h')
            return fputs(help, stdout) < 0 || fflush(stdout) != 0 ? FAILED : DONE;
        if (option == 'd')
            directory = optarg;
        else if (option == 'n')
            flags = SHMDC_HERE;
        else if (option == 't')
            timeout_s = strtod(optarg, &rest);
        else
            misused(option == ':' ? "a value is missing after " : "there is no option ",
                    argv[optind - 1]);
        if (option == 't' && (*rest != '\0' || !(timeout_s >= 0.001 && timeout_s <= TIMEOUT_MAX_S)))
            misused("a timeout is a number of seconds up to 3600, and not ", optarg);
    }
    if (argc - optind != 2)
        misused("a command and an id are needed", "");
    return run(directory, (uint32_t)(timeout_s * 1000), flags, argv + optind);
}
