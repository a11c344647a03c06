/* bytecode_vm.c: interprets bytecode whose pairs and arrays lie in a heap with mark-and-sweep
 * garbage collection. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    STACK_SIZE = 64,
    LOCAL_COUNT = 5,
    FIRST_THRESHOLD = 33000, /* objects before the first collection */
    SLOTS = 2048,
    STEPS = 200000,
};

enum kind { NUMBER, PAIR, ARRAY };

struct value {
    enum kind kind;
    union {
        int64_t number;
        struct object *object;
    } as;
};

struct object {
    struct object *next; /* links all objects */
    struct object *pending; /* links marked objects whose fields are not marked yet */
    enum kind kind;
    int is_marked;
    size_t size;
    struct value fields[];
};

struct machine {
    struct object *all, *pending;
    size_t live_count, threshold, collection_count, freed_count;
    size_t depth; /* of the stack, whose first element is unused */
    struct value stack[STACK_SIZE], locals[LOCAL_COUNT];
};

enum operation { PUSH, LOAD, STORE, ADD, MUL, MOD, LESS, JUMP, UNLESS, IS_PAIR, CONS, HEAD, TAIL,
                 NEW_ARRAY, GET, PUT, HALT };

/* Locals: 0 counts, 1 a list, 2 the array of lists, 3 the sum, 4 a slot. */
static const struct {
    enum operation operation;
    int32_t operand;
} program[] = {
    {PUSH, SLOTS}, {NEW_ARRAY, 0}, {STORE, 2},
    /* 3: while count < STEPS: put a pair (count * count, a list of the array) into the array */
    {LOAD, 0}, {PUSH, STEPS}, {LESS, 0}, {UNLESS, 41},
    {LOAD, 0}, {LOAD, 0}, {MUL, 0}, {PUSH, SLOTS}, {MOD, 0}, {STORE, 4},
    {LOAD, 0}, {LOAD, 0}, {MUL, 0}, {LOAD, 2}, {LOAD, 4}, {GET, 0}, {CONS, 0}, {STORE, 1},
    {LOAD, 2}, {LOAD, 0}, {PUSH, SLOTS}, {MOD, 0}, {LOAD, 1}, {PUT, 0},
    /* 27: clear the slot of that list in one of 301 steps */
    {LOAD, 0}, {PUSH, 301}, {MOD, 0}, {UNLESS, 32}, {JUMP, 36},
    {LOAD, 2}, {LOAD, 4}, {PUSH, 0}, {PUT, 0},
    {LOAD, 0}, {PUSH, 1}, {ADD, 0}, {STORE, 0}, {JUMP, 3},
    /* 41: sum the lists of all slots, from the last slot to the first */
    {PUSH, SLOTS}, {STORE, 0},
    {LOAD, 0}, {UNLESS, 69}, {LOAD, 0}, {PUSH, -1}, {ADD, 0}, {STORE, 0},
    {LOAD, 2}, {LOAD, 0}, {GET, 0}, {STORE, 1},
    {LOAD, 1}, {IS_PAIR, 0}, {UNLESS, 43},
    {LOAD, 3}, {PUSH, 3}, {MUL, 0}, {LOAD, 1}, {HEAD, 0}, {ADD, 0}, {PUSH, 1000003}, {MOD, 0},
    {STORE, 3}, {LOAD, 1}, {TAIL, 0}, {STORE, 1}, {JUMP, 53},
    /* 69 */
    {HALT, 0},
};

static void mark(struct machine *machine, const struct value *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (values[i].kind != NUMBER && !values[i].as.object->is_marked) {
            values[i].as.object->is_marked = 1;
            values[i].as.object->pending = machine->pending;
            machine->pending = values[i].as.object;
        }
}

static void collect(struct machine *machine)
{
    mark(machine, machine->stack, machine->depth);
    mark(machine, machine->locals, LOCAL_COUNT);
    for (struct object *object; (object = machine->pending);) {
        machine->pending = object->pending;
        mark(machine, object->fields, object->size);
    }
    for (struct object **link = &machine->all; *link;) {
        struct object *object = *link;
        if (object->is_marked) {
            object->is_marked = 0;
            link = &object->next;
        } else {
            *link = object->next;
            free(object);
            machine->live_count--;
            machine->freed_count++;
        }
    }
    machine->collection_count++;
    machine->threshold = machine->live_count + FIRST_THRESHOLD;
}

static struct value new_object(struct machine *machine, enum kind kind, size_t size)
{
    if (machine->live_count >= machine->threshold)
        collect(machine);
    struct object *object = calloc(1, sizeof *object + size * sizeof *object->fields);
    if (!object)
        exit(1);
    *object = (struct object){.next = machine->all, .kind = kind, .size = size};
    machine->all = object;
    machine->live_count++;
    return (struct value){kind, {.object = object}};
}

/* Return a pair of two values on the stack, which stay there while objects are collected. */
static struct value new_pair(struct machine *machine, const struct value *both)
{
    struct value pair = new_object(machine, PAIR, 2);
    pair.as.object->fields[0] = both[0];
    pair.as.object->fields[1] = both[1];
    return pair;
}

static struct value number(int64_t value)
{
    return (struct value){NUMBER, {.number = value}};
}

static void run(struct machine *m)
{
    struct value *top = m->stack;
    for (int32_t at = 0, operand;; m->depth = (size_t)(top + 1 - m->stack)) {
        operand = program[at].operand;
        switch (program[at++].operation) {
        case PUSH: *++top = number(operand); break;
        case LOAD: *++top = m->locals[operand]; break;
        case STORE: m->locals[operand] = *top--; break;
        case ADD: top--; top->as.number += top[1].as.number; break;
        case MUL: top--; top->as.number *= top[1].as.number; break;
        case MOD: top--; top->as.number %= top[1].as.number; break;
        case LESS: top--; top->as.number = top->as.number < top[1].as.number; break;
        case JUMP: at = operand; break;
        case UNLESS: at = (top--)->as.number ? at : operand; break;
        case IS_PAIR: *top = number(top->kind == PAIR); break;
        case CONS: top--; *top = new_pair(m, top); break;
        case HEAD: *top = top->as.object->fields[0]; break;
        case TAIL: *top = top->as.object->fields[1]; break;
        case NEW_ARRAY: *top = new_object(m, ARRAY, (size_t)top->as.number); break;
        case GET: top--; *top = top->as.object->fields[top[1].as.number]; break;
        case PUT: top -= 3; top[1].as.object->fields[top[2].as.number] = top[3]; break;
        case HALT: return;
        }
    }
}

int main(void)
{
    struct machine *machine = calloc(1, sizeof *machine);
    if (!machine)
        return 1;
    machine->threshold = FIRST_THRESHOLD;
    run(machine);
    printf("sum %lld, live %zu, freed %zu in %zu collections\n",
           (long long)machine->locals[3].as.number, machine->live_count, machine->freed_count,
           machine->collection_count);
    machine->locals[1] = machine->locals[2] = number(0);
    collect(machine);
    printf("at the end: live %zu, freed %zu\n", machine->live_count, machine->freed_count);
    free(machine);
    return 0;
}
