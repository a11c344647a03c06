/* ring.pml: one direction of a ring (ring.c): a writer, a reader, and bells for who sleeps.
 *
 * Both sides sleep only after they have said so and looked once more; whoever writes or reads rings
 * only for a side that has said so, once for each sleep. Stores to a counter and to a number of
 * sleeps are sequentially consistent in ring.c, so each is one step here; what one side knows of the
 * other is what it last looked at. A bell is a byte on a socket that never fills; its end shows
 * that the other side has closed or died, and either may die at any step, or close when it has said
 * all.
 *
 * Checked (.ci/check-deep): nothing is overwritten that was not read (bytes arrive in order, tail -
 * head stays within the capacity), nobody sleeps for ever while there is what he waits for, or while
 * the other is gone (no invalid end state), and the reader gets all that was written before the
 * writer's death; so all of it, if nobody dies.
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
byte announced;              /* what the writer knows to have written */

/* A bell, or nothing if that would only be another one for a side that has many. */
inline ring(bell)
{
    if
    :: nfull(bell) -> bell!1
    :: full(bell)
    fi
}

/* Any side may be killed between two steps. */
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
                assert(received == announced);    /* nothing that was written is lost */
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
