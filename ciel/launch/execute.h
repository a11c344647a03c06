/* Executes a program as execvp does; the launcher and ciel-isolate share it. */

#ifndef CIEL_EXECUTE_H
#define CIEL_EXECUTE_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Like execvp, but without the fallback to a shell, which would run an empty file, or a program for
 * another machine, as a script. Returns with errno if nothing could be executed. */
static void execute(char **strings)
{
    const char *program = strings[0], *path = getenv("PATH");
    size_t program_bytes = strlen(program) + 1;
    bool forbidden = false;
    char file[PATH_MAX];
    if (strchr(program, '/')) {
        execv(program, strings);
        return;
    }
    if (path == NULL)
        path = "/bin:/usr/bin";
    for (size_t bytes;; path += bytes + 1) {
        bytes = strcspn(path, ":");
        if (bytes + 1 + program_bytes <= sizeof file) { /* an empty element is our directory */
            memcpy(file, path, bytes);
            file[bytes] = '/';
            memcpy(file + bytes + (bytes > 0), program, program_bytes);
            execv(file, strings);
            forbidden |= errno == EACCES;
            if (errno != EACCES && errno != ENOENT && errno != ENOTDIR)
                return;
        }
        if (path[bytes] == 0)
            break;
    }
    errno = forbidden ? EACCES : ENOENT;
}

#endif
