/* matrices.c: multiplies matrices of floats and doubles, and runs loops that compilers
 * vectorise. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SIDE = 192,
    CELLS = SIDE * SIDE,
    VECTOR = 400000,
    ALIGNMENT = 64,
};

static uint64_t state = 3;

static int draw(int limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int)((state >> 16) % (uint64_t)limit);
}

static void *allocate_aligned(size_t size_bytes)
{
    size_bytes = (size_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    void *made = aligned_alloc(ALIGNMENT, size_bytes);
    if (!made || (uintptr_t)made % ALIGNMENT)
        exit(1);
    return made;
}

static uint64_t checksum(const void *bytes, size_t size_bytes)
{
    uint64_t sum = 14695981039346656037u;
    for (const unsigned char *c = bytes; size_bytes--; c++)
        sum = (sum ^ *c) * 1099511628211u;
    return sum;
}

static void multiply_floats(const float *restrict a, const float *restrict b, float *restrict c)
{
    memset(c, 0, CELLS * sizeof *c);
    for (size_t i = 0; i < SIDE; i++)
        for (size_t k = 0; k < SIDE; k++)
            for (size_t j = 0; j < SIDE; j++)
                c[i * SIDE + j] += a[i * SIDE + k] * b[k * SIDE + j];
}

static void multiply_doubles(double (*a)[SIDE], double (*b)[SIDE], double (*c)[SIDE])
{
    for (size_t i = 0; i < SIDE; i++)
        for (size_t j = 0; j < SIDE; j++) {
            double sum = 0;
            for (size_t k = 0; k < SIDE; k++)
                sum += a[i][k] * b[k][j];
            c[i][j] = sum;
        }
}

static void floats(void)
{
    float *a = allocate_aligned(CELLS * sizeof *a), *b = allocate_aligned(CELLS * sizeof *b);
    float *c = allocate_aligned(CELLS * sizeof *c);
    for (size_t i = 0; i < CELLS; i++) {
        a[i] = (float)draw(1000) / 8 - 60;
        b[i] = (float)draw(1000) / 7 - 70;
    }
    multiply_floats(a, b, c);
    multiply_floats(c, b, a);
    printf("floats: %.4f %.4f, sum %016llx\n", c[17], a[CELLS - 1],
           (unsigned long long)checksum(a, CELLS * sizeof *a));
    free(a);
    free(b);
    free(c);
}

static void doubles(void)
{
    double(*a)[SIDE] = malloc(SIDE * sizeof *a), (*b)[SIDE] = malloc(SIDE * sizeof *b);
    double(*c)[SIDE] = malloc(SIDE * sizeof *c);
    if (!a || !b || !c)
        exit(1);
    for (size_t i = 0; i < SIDE; i++)
        for (size_t j = 0; j < SIDE; j++) {
            a[i][j] = draw(100000) / 300.0;
            b[j][i] = i == j ? 2 : draw(3) - 1;
        }
    multiply_doubles(a, b, c);
    multiply_doubles(b, c, a);
    double trace = 0;
    for (size_t i = 0; i < SIDE; i++)
        trace += a[i][i];
    printf("doubles: trace %.9f, sum %016llx\n", trace,
           (unsigned long long)checksum(a, sizeof(double) * CELLS));
    free(a);
    free(b);
    free(c);
}

static void vectors(void)
{
    float *x = allocate_aligned(VECTOR * sizeof *x), *y = allocate_aligned(VECTOR * sizeof *y);
    int16_t *shorts = allocate_aligned(VECTOR * sizeof *shorts);
    uint8_t *bytes = allocate_aligned(VECTOR);
    for (size_t i = 0; i < VECTOR; i++) {
        x[i] = (float)draw(4096);
        y[i] = (float)(i % 1000);
        shorts[i] = (int16_t)(draw(65536) - 32768);
        bytes[i] = (uint8_t)draw(256);
    }
    for (size_t i = 0; i < VECTOR; i++)
        y[i] = 2.5f * x[i] + y[i];
    int64_t products = 0, total = 0;
    int lowest = INT16_MAX;
    for (size_t i = 0; i < VECTOR; i++) {
        products += shorts[i] * shorts[VECTOR - 1 - i];
        lowest = shorts[i] < lowest ? shorts[i] : lowest;
    }
    for (size_t i = 0; i < VECTOR; i++)
        bytes[i] = (uint8_t)(bytes[i] * 3 ^ (shorts[i] >> 8));
    for (size_t i = 0; i < VECTOR; i += 5)
        total += bytes[i] + (int64_t)y[i];
    printf("vectors: %lld %d %lld, sums %016llx %016llx\n", (long long)products, lowest,
           (long long)total, (unsigned long long)checksum(y, VECTOR * sizeof *y),
           (unsigned long long)checksum(bytes, VECTOR));
    free(x);
    free(y);
    free(shorts);
    free(bytes);
}

int main(void)
{
    floats();
    doubles();
    vectors();
    return 0;
}
