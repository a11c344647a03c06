/* space_driver: carries out one request a line with a volume, and prints a line for each. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ciel_memory.h"

enum { THREADS = 4, ROUNDS = 50, SLICE_BYTES = 3 * CIEL_MEMORY_PAGE_BYTES };

static struct ciel_memory *memory;

static void report(int result)
{
    if (result)
        printf("%s %s\n", errno == EIO ? "EIO" : errno == EINVAL ? "EINVAL" : "?",
               errno == EIO ? ciel_memory_why() : "");
    else
        printf("done\n");
}

/* Write and read own pages again and again; return NULL if each read was right. */
static void *use(void *argument)
{
    const unsigned long own = (unsigned long)argument;
    static _Thread_local unsigned char written[SLICE_BYTES], found[SLICE_BYTES];
    for (int round = 0; round < ROUNDS; round++) {
        memset(written, (int)(own * ROUNDS + (unsigned)round), sizeof written);
        if (ciel_memory_write(memory, written, sizeof written, own * SLICE_BYTES) ||
            ciel_memory_read(memory, found, sizeof found, own * SLICE_BYTES) ||
            memcmp(written, found, sizeof found))
            return argument ? argument : (void *)1;
    }
    return NULL;
}

static void use_threads(void)
{
    pthread_t threads[THREADS];
    int wrong = 0;
    for (unsigned long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, use, (void *)i);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += result != NULL;
    }
    printf("%d wrong\n", wrong);
}

int main(void)
{
    char line[1000], text[1000];
    unsigned long long address, size;
    memory = ciel_memory_open();
    if (!memory) {
        printf("%s\n", strerror(errno));
        return 1;
    }
    printf("%llu %u %d\n", (unsigned long long)ciel_memory_size_bytes(memory),
           ciel_memory_replicas(memory), ciel_memory_open() == NULL);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "write %llu %999s", &address, text) == 2) {
            report(ciel_memory_write(memory, text, strlen(text), address));
        } else if (sscanf(line, "read %llu %llu", &address, &size) == 2) {
            char *bytes = calloc(1, size < sizeof text ? sizeof text : 1);
            const int result = ciel_memory_read(memory, bytes, size, address);
            if (result)
                report(result);
            else
                printf("read %s\n", bytes);
            free(bytes);
        } else if (sscanf(line, "trim %llu %llu", &address, &size) == 2) {
            report(ciel_memory_trim(memory, size, address));
        } else if (!strcmp(line, "threads\n")) {
            use_threads();
        }
        fflush(stdout);
    }
    ciel_memory_close(memory);
}
