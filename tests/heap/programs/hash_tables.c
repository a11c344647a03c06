/* hash_tables.c: inserts into, searches and deletes from a hash table with open addressing that
 * grows, and one with chained buckets of strings. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUMBER_COUNT = 60000,
    KEY_MAX = 110000,
    WORD_COUNT = 20000,
    BUCKET_COUNT = 1 << 13,
};

struct open_table {
    struct slot {
        uint64_t key, value; /* key 0 marks an empty slot */
    } *slots;
    size_t capacity, count;
};

struct entry {
    struct entry *next;
    uint32_t hash, seen;
    char word[]; /* ends with a zero */
};

static uint64_t state = 4;

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 2685821657736338717u >> 20;
}

static void *allocate(size_t count, size_t size_bytes)
{
    void *made = calloc(count, size_bytes);
    if (!made)
        exit(1);
    return made;
}

static size_t home(const struct open_table *table, uint64_t key)
{
    return (size_t)(key * 11400714819323198485u >> 20) & (table->capacity - 1);
}

static struct slot *find_slot(const struct open_table *table, uint64_t key)
{
    size_t at = home(table, key);
    while (table->slots[at].key && table->slots[at].key != key)
        at = (at + 1) & (table->capacity - 1);
    return &table->slots[at];
}

static void add_number(struct open_table *table, uint64_t key, uint64_t value)
{
    if (table->count * 3 >= table->capacity * 2) {
        struct open_table larger = {NULL, table->capacity * 2, table->count};
        larger.slots = allocate(larger.capacity, sizeof *larger.slots);
        for (size_t i = 0; i < table->capacity; i++)
            if (table->slots[i].key)
                *find_slot(&larger, table->slots[i].key) = table->slots[i];
        free(table->slots);
        *table = larger;
    }
    struct slot *slot = find_slot(table, key);
    table->count += !slot->key;
    slot->key = key;
    slot->value += value;
}

/* Delete a key, and move later slots of its cluster back so that no search ends early. */
static bool delete_number(struct open_table *table, uint64_t key)
{
    size_t mask = table->capacity - 1, hole = (size_t)(find_slot(table, key) - table->slots);
    if (!table->slots[hole].key)
        return false;
    for (size_t at = (hole + 1) & mask; table->slots[at].key; at = (at + 1) & mask)
        if (((at - home(table, table->slots[at].key)) & mask) >= ((at - hole) & mask)) {
            table->slots[hole] = table->slots[at];
            hole = at;
        }
    table->slots[hole] = (struct slot){0, 0};
    table->count--;
    return true;
}

static void numbers(void)
{
    struct open_table table = {allocate(64, sizeof(struct slot)), 64, 0};
    for (uint64_t i = 0; i < NUMBER_COUNT; i++)
        add_number(&table, 1 + draw() % KEY_MAX, i);
    size_t deleted = 0, found = 0;
    for (uint64_t i = 0; i < NUMBER_COUNT / 4; i++)
        deleted += delete_number(&table, 1 + draw() % KEY_MAX);
    for (uint64_t key = 1; key <= KEY_MAX; key += 5)
        found += find_slot(&table, key)->key == key;
    unsigned long long sum = 0;
    for (size_t i = 0; i < table.capacity; i++)
        sum = sum * 31 + table.slots[i].value;
    printf("open: %zu of %zu slots, %zu deleted, %zu found, sum %016llx\n", table.count,
           table.capacity, deleted, found, sum);
    free(table.slots);
}

static void add_word(struct entry **buckets, const char *word)
{
    uint32_t hash = 2166136261u;
    for (const char *c = word; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    struct entry **link = &buckets[hash % BUCKET_COUNT];
    while (*link && ((*link)->hash != hash || strcmp((*link)->word, word)))
        link = &(*link)->next;
    if (!*link) {
        *link = allocate(1, sizeof(struct entry) + strlen(word) + 1);
        (*link)->hash = hash;
        strcpy((*link)->word, word);
    }
    (*link)->seen++;
}

static void words(void)
{
    struct entry **buckets = allocate(BUCKET_COUNT, sizeof *buckets);
    for (size_t i = 0; i < WORD_COUNT; i++) {
        char word[80];
        int number = (int)(draw() % 15000);
        const char *kind = number % 2 ? "odd" : "even";
        snprintf(word, sizeof word, "%s-%0*d", kind, number % 30 + 1, number);
        add_word(buckets, word);
    }
    size_t distinct = 0, longest = 0, repeated = 0;
    for (size_t i = 0; i < BUCKET_COUNT; i++) {
        size_t length = 0;
        for (struct entry *entry = buckets[i], *next; entry; entry = next, length++) {
            next = entry->next;
            repeated += entry->seen > 1;
            free(entry);
        }
        distinct += length;
        longest = length > longest ? length : longest;
    }
    printf("chained: %zu words, %zu repeated, longest chain %zu\n", distinct, repeated, longest);
    free(buckets);
}

int main(void)
{
    numbers();
    words();
    return 0;
}
