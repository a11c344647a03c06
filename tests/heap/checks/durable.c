/* Counts up, and makes each step durable. Started again, it continues from the last one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ciel_heap.h"

enum { COPIES = 200000 };

struct root {
    long count;
    long *copies; /* all of them equal `count` */
    char *text;   /* a block of another size at each step */
};

int main(int argc, char **argv)
{
    long end = argc > 1 ? atol(argv[1]) : 1;
    if (argc > 2) { /* the heap is used before; `kept`: and a block stays */
        char *volatile block = malloc(3000000);
        memset(block, 1, 3000000);
        if (strcmp(argv[2], "kept"))
            free(block);
    }
    struct root *root = ciel_heap_restore();
    if (!root) {
        if (errno != ENOENT) {
            perror("ciel_heap_restore");
            return 1;
        }
        root = calloc(1, sizeof *root);
        root->copies = calloc(COPIES, sizeof *root->copies);
        root->text = strdup("");
    }
    for (long i = 0; i < COPIES; i++)
        if (root->copies[i] != root->count) {
            printf("broken: %ld at %ld instead of %ld\n", root->copies[i], i, root->count);
            return 1;
        }
    if (strlen(root->text) != (size_t)(root->count % 50000)) {
        printf("broken: a text of %zu bytes at %ld\n", strlen(root->text), root->count);
        return 1;
    }
    printf("from %ld\n", root->count);
    fflush(stdout);
    while (root->count < end) {
        root->count++;
        for (long i = 0; i < COPIES; i++)
            root->copies[i] = root->count;
        free(root->text);
        size_t size_bytes = (size_t)(root->count % 50000);
        root->text = malloc(size_bytes + 1);
        memset(root->text, 'x', size_bytes);
        root->text[size_bytes] = 0;
        if (ciel_heap_sync(root)) {
            perror("ciel_heap_sync");
            return 1;
        }
        printf("%ld\n", root->count);
        fflush(stdout);
    }
    return 0;
}
