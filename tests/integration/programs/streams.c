/* Producer and consumer of 64 MiB of consecutive numbers.
 *
 *     ["produce", first, may_stream, may_pipe, marks]   output 0: the numbers, output 1: the worker
 *     ["consume", [ref, ...], how, marks]               output 0: bytes and the worker
 *
 * `how` is null to read complete objects, or [sole_consumer, must_block]. `marks` is two files, or
 * null: after its first bytes, a program creates the first file and waits for the second. */
#define _POSIX_C_SOURCE 200809L
#include <ciel.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STEP = 1 << 18, STEPS = 64 }; /* 1 MiB at a time */

static uint32_t numbers[STEP];

static json_t *arg(json_t *task, size_t place)
{
    return json_array_get(json_object_get(task, "proc_pargs"), place);
}

static void meet(json_t *marks)
{
    const char *mine = json_string_value(json_array_get(marks, 0));
    const char *other = json_string_value(json_array_get(marks, 1));
    int tries;

    if (mine != NULL)
        fclose(fopen(mine, "w"));
    for (tries = 0; other != NULL && access(other, F_OK) != 0 && tries < 20000; tries++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void produce(json_t *task, json_t *marks)
{
    uint32_t number = (uint32_t)json_integer_value(arg(task, 1));
    struct ciel_output *output =
        ciel_open_output(0, json_is_true(arg(task, 2)), json_is_true(arg(task, 3)), 0);
    int i, j;

    for (i = 0; i < STEPS; i++) {
        for (j = 0; j < STEP; j++)
            numbers[j] = number++;
        ciel_write_output(output, (char *)numbers, sizeof numbers);
        if (i == 0) {
            ciel_set_output_unbuffered(output);
            meet(marks);
        }
    }
    json_decref(ciel_close_output(output));
    ciel_define_output_with_plain_string(1, getenv("CIEL_WORKER"));
}

static long long consume_one(json_t *ref, json_t *how, json_t *marks)
{
    struct ciel_input *input =
        json_is_null(how)
            ? ciel_open_ref(ref)
            : ciel_open_ref_async(ref, 1 << 16, json_is_true(json_array_get(how, 0)),
                                  json_is_true(json_array_get(how, 1)));
    long long bytes = 0;
    uint32_t expected = 0;
    size_t held = 0; /* bytes of an incomplete number */
    int got;

    while ((got = ciel_read_ref(input, (char *)numbers + held, (int)(sizeof numbers - held))) > 0) {
        size_t size = held + (size_t)got, i;

        if (bytes == 0) {
            expected = numbers[0];
            meet(marks);
        }
        bytes += got;
        for (i = 0; i < size / 4; i++)
            if (numbers[i] != expected++) {
                ciel_error("wrong content");
                exit(1);
            }
        held = size % 4;
        memmove(numbers, (char *)numbers + size - held, held);
    }
    ciel_close_ref(input);
    return got < 0 ? got : bytes;
}

int main(int argc, char *argv[])
{
    ciel_init(argv[argc - 3], argv[argc - 1]);
    json_t *task = ciel_get_task();
    size_t count = json_array_size(json_object_get(task, "proc_pargs")), i;
    json_t *marks = arg(task, count - 1);

    if (strcmp(json_string_value(arg(task, 0)), "produce") == 0) {
        produce(task, marks);
    } else {
        json_t *refs = arg(task, 1);
        char text[100];
        long long bytes = 0;

        for (i = 0; i < json_array_size(refs); i++)
            bytes += consume_one(json_array_get(refs, i), arg(task, 2), marks);
        snprintf(text, sizeof text, "%lld %s", bytes, getenv("CIEL_WORKER"));
        ciel_define_output_with_plain_string(0, text);
    }
    ciel_exit();
    return 0;
}
