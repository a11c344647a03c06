/* printing.c: prints names and sizes for people and programs. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "tool.h"

/* Decode a UTF-8 character; returns its length in bytes, or 0 if it is invalid. */
static int utf8(const unsigned char *at, uint32_t *character)
{
    int length = at[0] < 0x80 ? 1 : at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (length == 1) {
        *character = at[0];
        return 1;
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (at[0] < 0xc2 || at[0] > 0xf4)
        return 0;
    uint32_t value = at[0] & (0xff >> (length + 1));
    for (int i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (at[i] & 0x3f);
    }
    *character = value;
    bool is_surrogate = value >= 0xd800 && value < 0xe000;
    return value < least[length] || value > 0x10ffff || is_surrogate ? 0 : length;
}

/* Return whether a character controls the terminal or is invisible. */
static bool is_control(uint32_t character)
{
    return character < 0x20 || (character >= 0x7f && character < 0xa0) ||
           (character >= 0x200b && character <= 0x200f) ||
           (character >= 0x2028 && character <= 0x202e) ||
           (character >= 0x2060 && character <= 0x206f) || character == 0xfeff;
}

void tool_print_name(FILE *to, const char *name)
{
    const unsigned char *at = (const unsigned char *)name;
    while (*at) {
        uint32_t character;
        int length = utf8(at, &character);
        if (length && !is_control(character) && character != '\\') {
            fwrite(at, 1, (size_t)length, to);
            at += length;
        } else if (character == '\\' && length) {
            fputs("\\\\", to);
            at++;
        } else {
            for (int i = 0; i < (length ? length : 1); i++)
                fprintf(to, "\\x%02x", *at++);
        }
    }
}

void tool_print_json(FILE *to, const char *name)
{
    const unsigned char *at = (const unsigned char *)name;
    fputc('"', to);
    while (*at) {
        uint32_t character;
        int length = utf8(at, &character);
        if (!length) {
            fprintf(to, "\\udc%02x", *at++);
        } else if (is_control(character)) {
            fprintf(to, "\\u%04" PRIx32, character);
            at += length;
        } else {
            if (character == '"' || character == '\\')
                fputc('\\', to);
            fwrite(at, 1, (size_t)length, to);
            at += length;
        }
    }
    fputc('"', to);
}

const char *tool_size(char to[32], uint64_t size_bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double size = (double)size_bytes;
    int unit = -1;
    for (; size >= 1024 && unit < 3; unit++)
        size /= 1024;
    if (unit < 0)
        snprintf(to, 32, "%" PRIu64 " bytes", size_bytes);
    else
        snprintf(to, 32, size_bytes % (1ull << 10 * (unit + 1)) ? "%.1f %s" : "%.0f %s", size,
                 units[unit]);
    return to;
}

void tool_flush(struct tool *tool)
{
    if (fflush(stdout) || ferror(stdout))
        tool_failed(tool, "standard output cannot be written: %s", strerror(errno));
}
