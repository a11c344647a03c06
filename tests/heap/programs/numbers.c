/* numbers.c: computes in heap arrays of integers of 8 to 128 bits, floats, long doubles and
 * complex numbers, and passes them to variadic functions. */
#include <complex.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COUNT = 27000,
    TEXT_BYTES = 400000,
};

__extension__ typedef __int128 wide;
__extension__ typedef unsigned __int128 unsigned_wide;

struct arrays {
    int8_t *bytes;
    uint16_t *shorts;
    int32_t *ints;
    uint64_t *longs;
    wide *wides;
    float *floats;
    long double *long_doubles;
    double complex *complexes;
};

struct report {
    char *text;
    size_t length;
};

static void *allocate(size_t count, size_t size_bytes)
{
    void *made = calloc(count, size_bytes);
    if (!made)
        exit(1);
    return made;
}

/* Append formatted text to the report; return its length. */
static __attribute__((format(printf, 2, 3))) int say(struct report *report, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (report->length + (size_t)length + 1 < TEXT_BYTES)
        vsnprintf(report->text + report->length, (size_t)length + 1, format, again);
    va_end(again);
    report->length += (size_t)length;
    return length;
}

/* Sum arguments of these types: i int, l uint64_t, d double, L long double, p pointer to int. */
static long double sum_of(const char *types, ...)
{
    long double sum = 0;
    va_list arguments;
    va_start(arguments, types);
    for (; *types; types++)
        switch (*types) {
        case 'i': sum += va_arg(arguments, int); break;
        case 'l': sum += (long double)va_arg(arguments, uint64_t); break;
        case 'd': sum += va_arg(arguments, double); break;
        case 'L': sum += va_arg(arguments, long double); break;
        case 'p': sum += *va_arg(arguments, int32_t *); break;
        default: exit(1);
        }
    va_end(arguments);
    return sum;
}

static struct arrays make_arrays(void)
{
    return (struct arrays){
        allocate(COUNT, sizeof(int8_t)),      allocate(COUNT, sizeof(uint16_t)),
        allocate(COUNT, sizeof(int32_t)),     allocate(COUNT, sizeof(uint64_t)),
        allocate(COUNT, sizeof(wide)),        allocate(COUNT, sizeof(float)),
        allocate(COUNT, sizeof(long double)), allocate(COUNT, sizeof(double complex)),
    };
}

static void compute(const struct arrays *a)
{
    static uint64_t number = 88172645463325252u;
    for (int i = 0; i < COUNT; i++) {
        int before = i ? i - 1 : COUNT - 1;
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        a->bytes[i] = (int8_t)(a->bytes[before] * 5 + (int)(number % 100));
        a->shorts[i] = (uint16_t)(a->shorts[before] << 3 ^ (number >> 32));
        a->ints[i] = (int32_t)(number >> 35) / 3 - a->ints[before] / 2;
        a->longs[i] = a->longs[before] / 7 + (number >> (i % 60)) + (number << 5 | number >> 59);
        a->wides[i] = (wide)(int64_t)number * (int64_t)(a->longs[i] >> 1) - a->wides[before] / 3;
        a->floats[i] = (float)a->shorts[i] / 3 + a->floats[before] / 2;
        a->long_doubles[i] = a->long_doubles[before] / 3 + (long double)a->ints[i] / 7;
        a->complexes[i] = (double)a->bytes[i] + a->floats[i] * I + a->complexes[before] * 0.25 * I;
    }
}

static void print_row(const struct arrays *a, int i, struct report *report)
{
    unsigned_wide bits = (unsigned_wide)a->wides[i];
    int length = say(report, "%d %d %" PRIu16 " %" PRId32 " %" PRIu64 " ", i, a->bytes[i],
                     a->shorts[i], a->ints[i], a->longs[i]);
    length += say(report, "%016" PRIx64 "%016" PRIx64 " %.4f %.15Lf ", (uint64_t)(bits >> 64),
                  (uint64_t)bits, (double)a->floats[i], a->long_doubles[i]);
    say(report, "%.5f%+.5fi %d\n", creal(a->complexes[i]), cimag(a->complexes[i]), length);
}

int main(void)
{
    struct arrays a = make_arrays();
    struct report report = {allocate(TEXT_BYTES, 1), 0};
    for (int round = 0; round < 4; round++)
        compute(&a);
    long double total = 0, sums = 0;
    wide wide_sum = 0;
    double complex product = 1;
    uint64_t rotated = 0;
    for (int i = 0; i < COUNT; i++) {
        total += a.long_doubles[i];
        wide_sum ^= a.wides[i] >> (i % 100);
        product = product * (a.complexes[i] / (1 + cabs(a.complexes[i]))) + (0.5 + 0.25 * I);
        rotated = (rotated << 9 | rotated >> 55) + a.longs[i] % ((uint64_t)a.shorts[i] + 1);
        sums += sum_of("idLplid", a.bytes[i], (double)a.floats[i], a.long_doubles[i], &a.ints[i],
                       a.longs[i] >> 32, i, 0.5);
        if (i % 37 == 0)
            print_row(&a, i, &report);
    }
    uint64_t text_sum = 0;
    for (size_t i = 0; i < report.length; i++)
        text_sum = text_sum * 31 + (unsigned char)report.text[i];
    printf("long doubles %.12Lf, sums %.6Lf\n", total, sums);
    printf("wide %016" PRIx64 "%016" PRIx64 ", rotated %016" PRIx64 "\n",
           (uint64_t)((unsigned_wide)wide_sum >> 64), (uint64_t)wide_sum, rotated);
    printf("complex %.10f%+.10fi\n", creal(product), cimag(product));
    report.text[report.length - 1] = 0; /* instead of the last line's end */
    printf("text: %zu bytes, sum %016" PRIx64 ", last row %s\n", report.length, text_sum,
           strrchr(report.text, '\n') + 1);
    void *all[] = {a.bytes, a.shorts, a.ints,         a.longs,
                   a.wides, a.floats, a.long_doubles, a.complexes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(report.text);
    return 0;
}
