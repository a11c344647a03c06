/* ring.pml: one direction of a ring (ring.c): a writer, a reader, and bells that wake sleeping
 * sides.
 *
 * A side sleeps only after it has announced the sleep and checked once more. A side that writes or
 * reads rings only if the other side has announced a sleep, once for each sleep. Stores to a
 * counter and to a sleep number are sequentially consistent in ring.c, so each is one step here; a
 * side uses the other side's counters as it last read them. A bell is a byte on a socket that never
 * fills. The end of the bell shows that the other side has closed or died. Either side may die at
 * any step; a side closes when it has sent or received everything.
 *
 * The model shows (.ci/check-deep): no byte is overwritten before it is read (bytes arrive in
 * order, tail - head stays within the capacity); no side sleeps for ever while the bytes or the
 * room that it waits for exist, or while the other side is gone (no invalid end state); and the
 * reader gets all bytes that were written before the writer died, so all bytes if neither dies.
 *
 * Shows CIB-32.
 */
#define CAPACITY 2
#define TOTAL 4

byte bytes[CAPACITY];
byte tail, head;             /* bytes ever written, read */
byte wants, sleeps;          /* odd: the writer, the reader sleeps */
chan to_reader = [8] of { bit };
chan to_writer = [8] of { bit };
bool writer_is_gone, reader_is_gone;
byte received;               /* by the reader, in all */
byte announced;              /* bytes that the writer knows it has written */

/* Ring a bell, or do nothing if the side already has many. */
inline ring(bell)
{
    if
    :: nfull(bell) -> bell!1
    :: full(bell)
    fi
}

/* A side may be killed between two steps. */
#define MAY_DIE() if :: skip :: goto dead fi

proctype writer()
{
    byte next, seen_head, seen_sleep, rung, number;
    do
    :: next == TOTAL -> break
    :: next < TOTAL ->
        MAY_DIE();
        seen_head = head;                         /* look_out */
        if
        :: next - seen_head < CAPACITY ->
            bytes[next % CAPACITY] = next;        /* the bytes, ... */
            MAY_DIE();
            d_step { next++; tail = next; announced = next };   /* ... then the counter */
            MAY_DIE();
            seen_sleep = sleeps;                  /* ring_if_asleep */
            if
            :: seen_sleep % 2 == 1 && seen_sleep != rung ->
                rung = seen_sleep;
                ring(to_reader)
            :: else
            fi
        :: else ->
            d_step { number++; wants = number };  /* doze, ... */
            MAY_DIE();
            seen_head = head;                     /* ... look once more, ... */
            if
            :: next - seen_head < CAPACITY
            :: else ->
                if                                /* ... sleep */
                :: to_writer?1
                :: reader_is_gone && empty(to_writer) -> break
                fi
            fi;
            d_step { number++; wants = number }   /* rise */
        fi
    od;
dead:
    writer_is_gone = true
}

proctype reader()
{
    byte next, seen_tail, seen_wants, rung, number, got;
    bool is_at_end;
    do
    :: received == TOTAL -> break
    :: else ->
        MAY_DIE();
        seen_tail = tail;
        assert(seen_tail - next <= CAPACITY);     /* M1 */
        if
        :: seen_tail != next ->
            got = bytes[next % CAPACITY];
            assert(got == next);                  /* in order, and not overwritten */
            MAY_DIE();
            d_step { next++; received = next; head = next };
            MAY_DIE();
            seen_wants = wants;
            if
            :: seen_wants % 2 == 1 && seen_wants != rung ->
                rung = seen_wants;
                ring(to_writer)
            :: else
            fi
        :: else ->
            if
            :: is_at_end ->
                assert(received == announced);    /* no written byte is lost */
                break
            :: else
            fi;
            d_step { number++; sleeps = number };
            MAY_DIE();
            seen_tail = tail;
            if
            :: seen_tail != next
            :: else ->
                if
                :: to_reader?1
                :: writer_is_gone && empty(to_reader) -> is_at_end = true
                fi
            fi;
            d_step { number++; sleeps = number }
        fi
    od;
dead:
    reader_is_gone = true
}

init
{
    atomic { run writer(); run reader() }
}
