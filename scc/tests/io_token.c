/* io_token: exposes the token functions to tests.
 *
 *     io_token device PATH                     print the device's name, and whether it is in memory
 *     io_token hold DEVICE LIMIT TIMEOUT_MS    print `token` or the error; hold it until standard
 *                                              input ends
 *     io_token loop DEVICE LIMIT TIMES LOG     take it TIMES times; write + and - into the log */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../tools/io_token.h"

static int device(const char *path)
{
    char name[IO_DEVICE_NAME_BYTES];
    bool in_memory;
    int error = io_device_of(path, name, &in_memory);
    if (error) {
        printf("%s\n", strerror(-error));
        return 1;
    }
    printf("%s %d\n", name, in_memory);
    return 0;
}

static int hold(const char *name, unsigned limit, int64_t timeout_ms)
{
    int token = io_token_take(name, limit, timeout_ms);
    printf("%s\n", token < 0 ? strerror(-token) : "token");
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    if (token >= 0)
        io_token_release(token);
    return token < 0;
}

static int loop(const char *name, unsigned limit, int times, const char *path)
{
    int log = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    for (int i = 0; i < times; i++) {
        int token = io_token_take(name, limit, -1);
        if (token < 0 || write(log, "+", 1) != 1 || write(log, "-", 1) != 1)
            return 1;
        io_token_release(token);
    }
    close(log);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "device") == 0)
        return device(argv[2]);
    if (argc == 5 && strcmp(argv[1], "hold") == 0)
        return hold(argv[2], (unsigned)atoi(argv[3]), atoll(argv[4]));
    if (argc == 6 && strcmp(argv[1], "loop") == 0)
        return loop(argv[2], (unsigned)atoi(argv[3]), atoi(argv[4]), argv[5]);
    return 2;
}
