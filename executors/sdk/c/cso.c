/*
 * Runs a task of the executor "cso": ciel-cso ENTRY_POINT LIBRARY... Standard input has texts that
 * end in a NUL: "IN,OUT,ARGS" (the number of each), paths of inputs, paths of outputs, arguments.
 *
 * Libraries are loaded in order, and may use the symbols of earlier ones. The entry point is
 * searched in all libraries, from the last one to the first.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sw_task.h"

enum { FAILED = 1, REFUSED = 2 };

__attribute__((noreturn, format(printf, 1, 2))) static void refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("ciel: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(REFUSED);
}

static void *claim(size_t size)
{
    void *claimed = malloc(size);
    if (claimed == NULL)
        refuse("out of memory");
    return claimed;
}

/* Read the next text of standard input. */
static char *next(void)
{
    char *text = NULL;
    size_t room = 0;
    if (getdelim(&text, &room, '\0', stdin) < 0)
        refuse("standard input ends before all arguments are read");
    return text;
}

static int *open_all(int count, int flags)
{
    int *fds = claim(sizeof(int) * (size_t)(count + 1));
    for (int i = 0; i < count; i++) {
        char *path = next();
        fds[i] = open(path, flags, 0600);
        if (fds[i] < 0)
            refuse("%s: %s", path, strerror(errno));
        free(path);
    }
    return fds;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        refuse("usage: ciel-cso ENTRY_POINT LIBRARY...");
    int n_in, n_out, n_args;
    char *counts = next();
    if (sscanf(counts, "%d,%d,%d", &n_in, &n_out, &n_args) != 3 || n_in < 0 || n_out < 0 ||
        n_args < 0)
        refuse("standard input does not begin with three numbers");
    free(counts);

    void *symbol = NULL;
    for (int i = 2; i < argc; i++) {
        void *library = dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL);
        if (library == NULL)
            refuse("library %d of 'lib' cannot be loaded: %s", i - 1, dlerror());
        void *found = dlsym(library, argv[1]);
        symbol = found != NULL ? found : symbol;
    }
    if (symbol == NULL)
        refuse("no library of 'lib' has a function %s", argv[1]);
    sw_task *task;
    memcpy(&task, &symbol, sizeof task); /* ISO C has no cast for it */

    int *in_fds = open_all(n_in, O_RDONLY);
    int *out_fds = open_all(n_out, O_WRONLY | O_CREAT | O_TRUNC);
    char **arguments = claim(sizeof(char *) * (size_t)(n_args + 1));
    for (int i = 0; i < n_args; i++)
        arguments[i] = next();
    arguments[n_args] = NULL;

    int status = task(n_in, in_fds, n_out, out_fds, n_args, arguments);
    if (status != 0) {
        fprintf(stderr, "ciel: %s returned %d\n", argv[1], status);
        return FAILED;
    }
    return EXIT_SUCCESS;
}
