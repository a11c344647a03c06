/* An interactive program that performs the actions in its arguments, in their order. Actions may
 * follow or violate the protocol. The last four arguments name the FIFOs.
 *
 *     ow or      open the FIFO for writing, for reading   cw cr      close it
 *     h          receive a call; exit at the end of file  l          repeat the actions after `or`
 *     sTEXT      send TEXT as a call                      aTEXT      send TEXT, and receive the reply
 *     rTEXT      write TEXT without a length
 *     xHEX       write bytes                              nCOUNT     write that many letters
 *     pTEXT      print to standard output                 eTEXT      print to standard error
 *     kSIGNAL    send a signal to itself                  qSTATUS    exit
 *     zMS        sleep                                    iSIGNAL    ignore a signal
 *     tPATH      create a file with its process id        wPATH      wait for a file
 *     d          leave a daemon that keeps all descriptors open
 */
#define _DEFAULT_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int out = -1, in = -1;

static void put(const void *data, size_t size)
{
    const char *rest = data;
    ssize_t count;

    while (size > 0 && (count = write(out, rest, size)) > 0) {
        rest += count;
        size -= (size_t)count;
    }
}

static void take(void *data, size_t size)
{
    char *rest = data;
    ssize_t count;

    while (size > 0) {
        count = read(in, rest, size);
        if (count <= 0)
            exit(0);
        rest += count;
        size -= (size_t)count;
    }
}

static void hear(void)
{
    static char call[1 << 20];
    uint32_t size;

    take(&size, sizeof size);
    take(call, ntohl(size));
    if (strncmp(call, "[\"die\"", 6) == 0)
        exit(0);
}

static void say(const char *text)
{
    uint32_t size = htonl((uint32_t)strlen(text));

    put(&size, sizeof size);
    put(text, strlen(text));
}

static void put_hex(const char *text)
{
    unsigned byte;

    for (; sscanf(text, "%2x", &byte) == 1; text += 2) {
        unsigned char letter = (unsigned char)byte;
        put(&letter, 1);
    }
}

static void put_letters(size_t count)
{
    static char letters[1 << 16];

    memset(letters, 'x', sizeof letters);
    for (; count > sizeof letters; count -= sizeof letters)
        put(letters, sizeof letters);
    put(letters, count);
}

static void touch(const char *path)
{
    char whole[4096];
    FILE *file;

    snprintf(whole, sizeof whole, "%s.new", path);
    file = fopen(whole, "w");
    if (file == NULL)
        abort();
    fprintf(file, "%d", (int)getpid());
    fclose(file);
    rename(whole, path);
}

static void act(const char *what, char **fifos)
{
    const char *rest = what + 1;

    switch (*what) {
    case 'o':
        if (*rest == 'w')
            out = open(fifos[1], O_WRONLY);
        else
            in = open(fifos[3], O_RDONLY);
        break;
    case 'c': close(*rest == 'w' ? out : in); break;
    case 'h': hear(); break;
    case 's': say(rest); break;
    case 'a':
        say(rest);
        hear();
        break;
    case 'r': put(rest, strlen(rest)); break;
    case 'x': put_hex(rest); break;
    case 'n': put_letters((size_t)atol(rest)); break;
    case 'p': printf("%s\n", rest); fflush(stdout); break;
    case 'e': fprintf(stderr, "%s\n", rest); break;
    case 'k': kill(getpid(), atoi(rest)); break;
    case 'q': _exit(atoi(rest));
    case 'z': usleep((useconds_t)atoi(rest) * 1000); break;
    case 'i': signal(atoi(rest), SIG_IGN); break;
    case 't': touch(rest); break;
    case 'w':
        while (access(rest, F_OK) != 0)
            usleep(2000);
        break;
    case 'd':
        if (fork() == 0) {
            setsid();
            if (fork() == 0)
                sleep(600);
            _exit(0);
        }
        break;
    default: abort();
    }
}

int main(int argc, char **argv)
{
    char **fifos = argv + argc - 4, **next, **first = argv + 1;

    for (next = argv + 1; next < fifos; next++) {
        if (strcmp(*next, "l") == 0) {
            next = first;
            continue;
        }
        act(*next, fifos);
        if (strcmp(*next, "or") == 0)
            first = next;
    }
    return 0;
}
