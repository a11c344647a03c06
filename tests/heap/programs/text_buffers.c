/* text_buffers.c: builds, splits, formats and parses text in heap buffers by the library's string
 * functions, and reads it back from a temporary file by getline. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

enum {
    WORD_COUNT = 90000,
    LINE_COUNT = 8000,
    LINE_MAX_BYTES = 160,
};

struct text {
    char *bytes;
    size_t length, capacity;
};

static uint64_t state = 5;

static uint32_t draw(uint32_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16) % limit;
}

static void *checked(void *made)
{
    if (!made)
        exit(1);
    return made;
}

static void append(struct text *text, const char *more)
{
    size_t length = strlen(more);
    while (text->length + length + 1 > text->capacity) {
        text->capacity = text->capacity ? text->capacity + text->capacity / 2 : 16;
        text->bytes = checked(realloc(text->bytes, text->capacity));
    }
    memcpy(text->bytes + text->length, more, length + 1);
    text->length += length;
}

static uint64_t checksum(const char *text)
{
    uint64_t sum = 0;
    for (; *text; text++)
        sum = sum * 131 + (unsigned char)*text;
    return sum;
}

static struct text build(void)
{
    static const char *const syllables[] = {"ka", "lo", "mi", "ten", "rus", "vo", "shi", "an"};
    struct text text = {NULL, 0, 0};
    for (size_t i = 0; i < WORD_COUNT; i++) {
        for (uint32_t left = 1 + draw(6); left; left--)
            append(&text, syllables[draw(8)]);
        append(&text, i % 13 ? " " : ", ");
    }
    printf("built %zu bytes, sum %016llx\n", text.length, (unsigned long long)checksum(text.bytes));
    return text;
}

static void split(char *bytes)
{
    char **words = checked(calloc(WORD_COUNT, sizeof *words)), *rest = NULL;
    size_t count = 0, longest = 0, vowels = 0, same = 0, tens = 0;
    for (char *word = strtok_r(bytes, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest)) {
        words[count] = checked(count % 2 ? strndup(word, 9) : strdup(word));
        words[count][0] = (char)toupper((unsigned char)words[count][0]);
        count++;
    }
    for (size_t i = 0; i < count; i++) {
        longest = strlen(words[i]) > strlen(words[longest]) ? i : longest;
        for (char *at = words[i]; (at = strpbrk(at, "aeiou")); at++)
            vowels++;
        same += i && !strncmp(words[i], words[i - 1], 4);
        tens += strstr(words[i], "ten") && !strchr(words[i], 'v') && strspn(words[i], "Ten") < 3;
    }
    printf("%zu words, longest %s, %zu vowels, %zu alike, %zu with ten\n", count, words[longest],
           vowels, same, tens);
    for (size_t i = 0; i < count; i++)
        free(words[i]);
    free(words);
}

/* Write lines into heap buffers, and parse them again. */
static char **format_lines(void)
{
    char **lines = checked(calloc(LINE_COUNT, sizeof *lines));
    long long total = 0;
    double ratios = 0;
    for (int i = 0; i < LINE_COUNT; i++) {
        lines[i] = checked(malloc(LINE_MAX_BYTES));
        unsigned long long code = draw(1u << 30) * 77777ull;
        int length = snprintf(lines[i], LINE_MAX_BYTES, "%05d|%-12s|%+.3f|%llx|%c\n", i,
                              i % 3 ? "three" : "other", draw(10000) / 37.0, code, 'a' + i % 26);
        char *kind = checked(malloc(32));
        double ratio = 0;
        int number = 0;
        int fields = sscanf(lines[i], "%d|%31s |%lf|%llx", &number, kind, &ratio, &code);
        total += fields + number + length + (long long)(code % 1000) + (kind[0] == 't');
        ratios += ratio;
        free(kind);
        lines[i] = checked(realloc(lines[i], (size_t)length + 1)); /* shrinks it */
    }
    printf("lines: total %lld, ratios %.3f, last %s", total, ratios, lines[LINE_COUNT - 1]);
    return lines;
}

static void read_lines(char **lines)
{
    FILE *file = checked(tmpfile());
    for (int i = 0; i < LINE_COUNT; i++) {
        fputs(lines[i], file);
        for (int piece = 0; i % 1000 == 0 && piece < 200; piece++)
            fprintf(file, "%s%d%s", "a long line, ", piece, piece < 199 ? "" : "\n");
    }
    rewind(file);
    char *line = NULL;
    size_t capacity = 0, count = 0, pipes = 0;
    unsigned long long sum = 0;
    for (ssize_t length; (length = getline(&line, &capacity, file)) > 0; count++) {
        char *end = NULL, *letter = memrchr(line, '|', (size_t)length);
        sum = sum * 31 + (uint64_t)strtol(line, &end, 10) + (uint64_t)length;
        sum += (uint64_t)(end - line) + (letter ? (uint64_t)letter[1] : strlen(line));
        pipes += memchr(line, '|', (size_t)length) != NULL;
    }
    printf("read %zu lines, %zu with pipes, sum %016llx\n", count, pipes, sum);
    free(line);
    fclose(file);
}

int main(void)
{
    struct text text = build();
    split(text.bytes);
    free(text.bytes);
    char **lines = format_lines();
    read_lines(lines);
    for (int i = 0; i < LINE_COUNT; i++)
        free(lines[i]);
    free(lines);
    return 0;
}
