/* The beginning and the end of a program: settings from the environment, the store, and the pages.
 *
 * It begins before any other code of the program, constructors of C++ included. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime.h"

enum { PAGES_MIN = 16, PAGES_MANY = 16384 }; /* a process may have 65,530 maps; a page has up to two */

extern char globals_start[] __asm__("__start_ciel_globals") __attribute__((weak));
extern char globals_stop[] __asm__("__stop_ciel_globals") __attribute__((weak));

static struct store *store;
static pid_t owner;

void fail(int status, const char *format, ...)
{
    char text[512] = "ciel-heap: ";
    size_t size_bytes = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(text + size_bytes, sizeof text - size_bytes - 1, format, arguments);
    va_end(arguments);
    size_bytes += more > 0 ? (size_t)more : 0;
    size_bytes = size_bytes < sizeof text - 1 ? size_bytes : sizeof text - 2;
    text[size_bytes++] = '\n';
    if (write(STDERR_FILENO, text, size_bytes) < 0)
        _exit(status);
    _exit(status);
}

/* Return a size in bytes like 512KiB, 64MiB, 1.5GiB; 0 if the text is none. */
static uint64_t size_of(const char *text)
{
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    char *end;
    double number = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (end > text && number > 0 && strcmp(end, units[i].name) == 0)
            return (uint64_t)(number * (double)(1ULL << units[i].shift));
    return 0;
}

/* `memory:NAME` needs a companion process, which `ciel memory run` starts. */
static void run_beside_companion(const char *volume, char **arguments)
{
    char program[4096];
    ssize_t size_bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    size_t count = 0;
    while (arguments[count])
        count++;
    char **whole = calloc(count + 6, sizeof *whole);
    if (size_bytes < 0 || !whole)
        fail(WRONG_SETTING, "this program cannot be started again: %s", strerror(errno));
    program[size_bytes] = 0;
    const char *front[] = {"ciel", "memory", "run", volume, program};
    memcpy(whole, front, sizeof front);
    memcpy(whole + 5, arguments + 1, count * sizeof *whole);
    execvp("ciel", whole);
    fail(WRONG_SETTING, "CIEL_HEAP=memory:%s needs the program `ciel`: %s", volume, strerror(errno));
}

static struct store *open_store(const char *text, uint64_t page_bytes, char **arguments)
{
    char why[256] = "it is none of kv:NAME, memory:VOLUME and lmdb:DIRECTORY";
    const char *name = strchr(text, ':');
    struct store *found = NULL;
    if (name && !strncmp(text, "lmdb:", 5))
        found = store_lmdb(name + 1, page_bytes, why, sizeof why);
    else if (name && !strncmp(text, "kv:", 3))
        found = store_kv(name + 1, page_bytes, why, sizeof why);
    else if (name && !strncmp(text, "memory:", 7)) {
        if (!getenv("CIEL_MEMORY"))
            run_beside_companion(name + 1, arguments);
        found = store_memory(name + 1, page_bytes, why, sizeof why);
    }
    if (!found)
        fail(WRONG_SETTING, "CIEL_HEAP=%s: %s", text, why);
    found->name = text;
    found->page_bytes = page_bytes;
    return found;
}

static void start(int count, char **arguments, char **environment)
{
    (void)count;
    environ = environment; /* libc does so later */
    const char *heap = getenv("CIEL_HEAP"), *ram = getenv("CIEL_HEAP_RAM");
    const char *allocator = getenv("CIEL_HEAP_ALLOCATOR");
    uint64_t page_bytes = 1ULL << GRANULE_SHIFT, limit_bytes = ram ? size_of(ram) : 64ULL << 20;
    calls_start();
    signals_start();
    if (ram && !heap)
        fail(WRONG_SETTING, "CIEL_HEAP_RAM is set, but not CIEL_HEAP, where the rest would lie");
    if (limit_bytes < PAGES_MIN * page_bytes)
        fail(WRONG_SETTING, "CIEL_HEAP_RAM=%s must be a size, like 64MiB, of at least %" PRIu64 "KiB",
             ram, PAGES_MIN * page_bytes >> 10);
    if (allocator && strcmp(allocator, "first-fit") && strcmp(allocator, "bump"))
        fail(WRONG_SETTING, "CIEL_HEAP_ALLOCATOR=%s must be first-fit or bump", allocator);
    while (limit_bytes / page_bytes > PAGES_MANY)
        page_bytes *= 2;
    if (heap)
        store = open_store(heap, page_bytes, arguments);
    if (heap && limit_bytes >= 4 * store->own_bytes)
        limit_bytes -= store->own_bytes;
    uint64_t pages = limit_bytes / page_bytes, window = pages / 8 < BATCH ? pages / 8 : BATCH;
    owner = getpid();
    allocator_start(allocator && !strcmp(allocator, "bump"));
    pager_start(store, page_bytes, heap ? pages - window : 0, globals_start, globals_stop);
}

static void end(void)
{
    if (store && getpid() == owner)
        pager_end();
}

__attribute__((section(".preinit_array"), used)) static void (*const at_start)(int, char **, char **) = start;
__attribute__((section(".fini_array"), used)) static void (*const at_end)(void) = end;
