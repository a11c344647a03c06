/* The price of a European put by the binomial method of Jarrow and Rudd: tasks of a pipeline, in C.
 *
 *     binomial expiry     writes the values at the nodes of the day of expiry
 *     binomial back       writes the values some steps earlier, while it reads the stream of later
 *                         values
 *     binomial price      writes the only remaining value, as text
 *
 * Values are doubles, ordered from the lowest price of the share to the highest. */
#include <ciel.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double spot, strike, years, volatility, interest;
static int steps;

static void fail(const char *report)
{
    ciel_error(report);
    exit(1);
}

static void get_option(json_t *kwargs)
{
    if (json_unpack(kwargs, "{s: [F, F, F, F, F], s: i}", "option", &spot, &strike, &years,
                    &volatility, &interest, "steps", &steps) != 0)
        fail("proc_kwargs must have 'option', a list of five numbers, and 'steps'");
}

/* Returns the factor of the share's price in a step up or down. */
static double move(int is_up)
{
    double dt = years / steps, drift = (interest - volatility * volatility / 2) * dt;

    return exp(drift + (is_up ? volatility : -volatility) * sqrt(dt));
}

static int read_value(struct ciel_input *input, double *value)
{
    int got = ciel_read_ref(input, (char *)value, sizeof *value);

    if (got != 0 && got != sizeof *value)
        fail("the values before these broke off");
    return got != 0;
}

static void write_value(struct ciel_output *output, double value)
{
    ciel_write_output(output, (char *)&value, sizeof value);
}

static void expiry(struct ciel_output *output)
{
    for (int ups = 0; ups <= steps; ups++) {
        double price = spot * pow(move(1), ups) * pow(move(0), steps - ups);

        write_value(output, fmax(strike - price, 0));
    }
}

/* A value is known when its two successors are known; so each value of the input determines one for
 * each step. `last[i]` is the last input of step i. */
static void go_back(struct ciel_input *input, struct ciel_output *output, int chunk)
{
    double growth = exp(interest * years / steps);
    double up = (growth - move(0)) / (move(1) - move(0));
    double *last = calloc((size_t)chunk, sizeof *last), value;

    if (last == NULL)
        fail("not enough memory for this number of steps: use a smaller CHUNK");
    for (int count = 0; read_value(input, &value); count++) {
        int known = count < chunk ? count : chunk;

        for (int i = 0; i < known; i++) {
            double earlier = ((1 - up) * last[i] + up * value) / growth;

            last[i] = value;
            value = earlier;
        }
        if (known < chunk)
            last[known] = value;
        else
            write_value(output, value);
    }
    free(last);
}

int main(int argc, char *argv[])
{
    ciel_init(argv[argc - 3], argv[argc - 1]);
    json_t *task = ciel_get_task(), *pargs = json_object_get(task, "proc_pargs");
    json_t *before = json_array_get(pargs, 0);
    struct ciel_input *input = NULL;
    struct ciel_output *output;
    const char *what = argv[1];

    get_option(json_object_get(task, "proc_kwargs"));
    while (strcmp(what, "expiry") != 0 && input == NULL)
        if ((input = ciel_open_ref_async(before, 4096, 1, 0)) == NULL)
            ciel_block_on_refs(1, before);

    if (strcmp(what, "price") == 0) {
        char text[32];
        double value = 0;

        read_value(input, &value);
        snprintf(text, sizeof text, "%.9f", value);
        ciel_define_output_with_plain_string(0, text);
    } else {
        output = ciel_open_output(0, 1, 0, 0); /* other tasks can read it from now on */
        if (input == NULL)
            expiry(output);
        else
            go_back(input, output, (int)json_integer_value(json_array_get(pargs, 1)));
        json_decref(ciel_close_output(output));
    }
    if (input != NULL)
        ciel_close_ref(input);
    json_decref(task);
    ciel_exit();
    return 0;
}
