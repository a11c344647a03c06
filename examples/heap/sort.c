/* Sorts a file of records of 100 bytes by their first 10 bytes, as sort benchmarks do. The file may
 * be larger than the memory of this machine, or of this task.
 *
 * Nothing here knows of that. `ciel-cc` compiles it, and its heap lies in a store:
 *
 *     ciel-cc -O2 examples/heap/sort.c -o sort
 *     ciel submit --memory 64M -- env CIEL_HEAP=lmdb:/data/heap CIEL_HEAP_RAM=32MiB ./sort FILE */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 10, RECORD_BYTES = 100, FEW = 16 };

struct record {
    char bytes[RECORD_BYTES];
};

static int is_before(const struct record *a, const struct record *b)
{
    return memcmp(a->bytes, b->bytes, KEY_BYTES) < 0;
}

/* Merge sort goes through memory in order, so pages are read ahead, and each is used as a whole. */
static void sort(struct record *records, struct record *spare, size_t count)
{
    if (count <= FEW) {
        for (size_t i = 1; i < count; i++) {
            struct record record = records[i];
            size_t at = i;
            for (; at > 0 && is_before(&record, &records[at - 1]); at--)
                records[at] = records[at - 1];
            records[at] = record;
        }
        return;
    }
    size_t half = count / 2;
    sort(records, spare, half);
    sort(records + half, spare + half, count - half);
    memcpy(spare, records, half * sizeof *records);
    for (size_t to = 0, a = 0, b = half; a < half; to++)
        records[to] = b < count && is_before(&records[b], &spare[a]) ? records[b++] : spare[a++];
}

int main(int argc, char **argv)
{
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : stdin;
    if (!file) {
        perror(argv[1]);
        return 1;
    }
    struct record *records = NULL;
    size_t count = 0, room = 0;
    do {
        if (count == room) {
            room = room ? 2 * room : 10000;
            records = realloc(records, room * sizeof *records);
        }
        if (records)
            count += fread(records + count, sizeof *records, room - count, file);
    } while (records && count == room);
    struct record *spare = malloc((count / 2 + 1) * sizeof *spare);
    int failed = !records || !spare || ferror(file);
    if (failed)
        perror("sort");
    else
        sort(records, spare, count);
    failed = failed || fwrite(records, sizeof *records, count, stdout) != count || fflush(stdout);
    fclose(file);
    free(records);
    free(spare);
    return failed;
}
