/* options.c: parses the command lines of the shm tools. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

enum { NAME_WIDTH = 20 };

static void print_option(const char *name, const char *value, const char *text,
                         const char *variable)
{
    char shown[64];
    snprintf(shown, sizeof shown, "--%s%s%s", name, value ? " " : "", value ? value : "");
    printf("  %-*s  %s", NAME_WIDTH, shown, text);
    if (variable)
        printf(" (%s)", variable);
    putchar('\n');
}

static _Noreturn void print_help(const struct tool *tool)
{
    printf("Usage: %s [OPTION...]%s%s\n%s\n\n", tool->name, tool->arguments ? " " : "",
           tool->arguments ? tool->arguments : "", tool->text);
    for (struct tool_option *option = tool->options; option && option->name; option++)
        print_option(option->name, option->value, option->text, option->variable);
    print_option("name", "NAME", "name of the image; default shmfs", "SHMFS_NAME");
    print_option("help", NULL, "print this help", NULL);
    print_option("version", NULL, "print the version", NULL);
    exit(fflush(stdout) ? TOOL_FAILED : TOOL_DONE);
}

static _Noreturn void print_version(const struct tool *tool)
{
    printf("%s %d.%d, image format %d\n", tool->name, SHMFS_VERSION >> 16, SHMFS_VERSION & 0xffff,
           SHMFS_FORMAT_VERSION);
    exit(fflush(stdout) ? TOOL_FAILED : TOOL_DONE);
}

static void say(const struct tool *tool, const char *format, va_list arguments)
{
    fflush(stdout);
    fprintf(stderr, "%s: ", tool->name);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
}

int tool_failed(struct tool *tool, const char *format, ...)
{
    va_list arguments;
    if (tool->device)
        device_await_verdict(tool->device);
    va_start(arguments, format);
    say(tool, format, arguments);
    va_end(arguments);
    tool->has_failed = true;
    return TOOL_FAILED;
}

_Noreturn void tool_misused(const struct tool *tool, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(tool, format, arguments);
    va_end(arguments);
    exit(TOOL_USAGE);
}

/* Parse one option. Returns how many words of the command line it took. */
static int take_option(struct tool *tool, struct tool_option *name, char **words, int count)
{
    const char *word = words[0] + 2;
    const char *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    struct tool_option *option = NULL;
    if (strlen(name->name) == length && !strncmp(name->name, word, length))
        option = name;
    for (struct tool_option *o = tool->options; o && o->name; o++)
        if (strlen(o->name) == length && !strncmp(o->name, word, length))
            option = o;
    if (!option)
        tool_misused(tool, "there is no option %s; --help lists the options", words[0]);
    if (!option->value) {
        if (equals)
            tool_misused(tool, "--%s takes no value", option->name);
        option->given = "";
        return 1;
    }
    if (!equals && count < 2)
        tool_misused(tool, "--%s needs a value, %s", option->name, option->value);
    option->given = equals ? equals + 1 : words[1];
    return equals ? 1 : 2;
}

static void ask_environment(struct tool_option *option)
{
    const char *value = option->variable && !option->given ? getenv(option->variable) : NULL;
    if (value && *value)
        option->given = value;
}

void tool_begin(struct tool *tool, int argc, char **argv)
{
    struct tool_option name = {.name = "name", .value = "NAME", .variable = "SHMFS_NAME"};
    int count = 0;
    bool is_past_options = false;
    for (int i = 1; i < argc;) {
        if (is_past_options || argv[i][0] != '-' || !argv[i][1]) {
            argv[count++] = argv[i++];
        } else if (!strcmp(argv[i], "--")) {
            is_past_options = true;
            i++;
        } else if (!strcmp(argv[i], "--help")) {
            print_help(tool);
        } else if (!strcmp(argv[i], "--version")) {
            print_version(tool);
        } else if (argv[i][1] != '-') {
            tool_misused(tool, "there is no option %s; write ./%s if it is a file", argv[i],
                         argv[i]);
        } else {
            i += take_option(tool, &name, argv + i, argc - i);
        }
    }
    if (count < tool->least || count > tool->most)
        tool_misused(tool, "usage: %s [OPTION...]%s%s", tool->name, tool->arguments ? " " : "",
                     tool->arguments ? tool->arguments : "");
    ask_environment(&name);
    for (struct tool_option *option = tool->options; option && option->name; option++)
        ask_environment(option);
    tool->image_name = name.given ? name.given : "shmfs";
    tool->given = argv;
    tool->given_count = count;
}

/* Parse digits with an optional unit; returns false for any other text. */
static bool read_number(const char *text, uint64_t *number)
{
    if (!isdigit((unsigned char)*text))
        return false;
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 10);
    if (errno)
        return false;
    static const char *const units[] = {"KiB", "MiB", "GiB"};
    for (int i = 0; *end && i < 3; i++)
        if (!strcmp(end, units[i]) || (end[0] == units[i][0] && !end[1])) {
            int shift = 10 * (i + 1);
            if (*number > UINT64_MAX >> shift)
                return false;
            *number <<= shift;
            return true;
        }
    return !*end;
}

uint64_t tool_number_of(const struct tool *tool, const char *what, const char *text, uint64_t least,
                        uint64_t most)
{
    uint64_t number;
    if (!read_number(text, &number) || number < least || number > most)
        tool_misused(tool, "%s is a number from %" PRIu64 " to %" PRIu64 ", not '%s'", what, least,
                     most, text);
    return number;
}

uint64_t tool_number(const struct tool *tool, const struct tool_option *option, uint64_t least,
                     uint64_t most, uint64_t otherwise)
{
    char what[64];
    snprintf(what, sizeof what, "--%s", option->name);
    return option->given ? tool_number_of(tool, what, option->given, least, most) : otherwise;
}
