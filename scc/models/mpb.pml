/* run: -DDEATHS=2 -DREFUSALS=1 -DMESSAGES=2 */
/* run: -DDEATHS=1 -DREFUSALS=0 -DMESSAGES=1 -DREPLIES=1 */
/* mpb.pml: two cores that send to each other, and die, as in mpb_pieces.c.
 *
 * Both may send at the same time. Either may die at any step and restart. A receiver may refuse the
 * rest of a message. The model shows: an acknowledged message was received, no message is received
 * twice, no line that may still be read is overwritten, and no core waits for ever. A message is
 * two pieces of one line each; a part of a buffer has two lines. bell.pml models the bell; a core
 * in this model therefore polls whenever there is a flag that it has not read.
 *
 * Shows CIB-30, CIB-31 and POOL-3.
 */
#ifndef DEATHS
#define DEATHS 2
#endif
#ifndef REFUSALS
#define REFUSALS 1
#endif
#ifndef MESSAGES
#define MESSAGES 2 /* sent by core 0 in each life */
#endif
#ifndef REPLIES
#define REPLIES 0 /* sent by core 1 */
#endif
#define LINES 2
#define IDS 8

typedef Flag { byte by; byte means; byte count };
typedef Line { byte by; byte number; byte id };

Flag given[2]; /* by the sender with that number */
Flag taken[2]; /* about the lines of the sender with that number */
Line lines[4];
byte life[2];
bool alive[2];
byte left[2]; /* messages that a core still has to send */

/* State for the assertions. */
bit received[16];
byte next_id[2];
byte deaths = DEATHS, refusals = REFUSALS;
bit dies[2];

#define sent_by(core) (core == 0 -> MESSAGES : REPLIES)

inline fail_begun()
{
    /* Sends that have started fail: ids from `low` on, those of the first g pieces. */
    left[me] = left[me] - (g - low * 2 + 1) / 2;
    low = 0; g = 0; t = 0;
}

inline unpair()
{
    receiver = 0;
    changed = 1;
    d_step { given[me].by = inc; given[me].means = 0; given[me].count = 0 }
}

inline hear_taken()
{
    d_step { heard_t.by = taken[me].by; heard_t.means = taken[me].means;
             heard_t.count = taken[me].count; changed = 0 }
    if
    :: receiver != 0 && (heard_t.by != receiver || (heard_t.means != 0 && heard_t.means != inc)) ->
        d_step { fail_begun() }
        unpair()
    :: receiver != 0 && heard_t.by == receiver && (heard_t.means == 0 || heard_t.means == inc) ->
        d_step {
            more = (heard_t.count - (t % 4) + 4) % 4;
            assert(more <= g - t);
            t = t + more;
            do
            :: (low + 1) * 2 <= t ->
                assert(received[me * IDS + first + low] == 1); /* none acknowledged is lost */
                low++; left[me]--
            :: else -> break
            od;
            more = 0
        }
        if
        :: heard_t.means == 0 -> d_step { fail_begun() } unpair()
        :: else
        fi
    :: else
    fi;
    if
    :: receiver == 0 && heard_t.by != 0 && heard_t.means == inc && heard_t.by != gone ->
        d_step { receiver = heard_t.by; g = 0; t = 0; low = 0; first = next_id[me]; changed = 1 }
    :: else
    fi
}

inline give()
{
    d_step {
        assert(next_id[me] < IDS);
        lines[me * 2 + g % LINES].by = inc;
        lines[me * 2 + g % LINES].number = g;
        lines[me * 2 + g % LINES].id = first + g / 2;
        if
        :: g % 2 == 0 -> next_id[me] = first + g / 2 + 1
        :: else
        fi;
        g++
    }
    d_step { given[me].by = inc; given[me].means = receiver; given[me].count = g % 4 }
}

inline answer(whom, so_many)
{
    d_step { taken[other].by = inc; taken[other].means = whom; taken[other].count = so_many }
}

inline hear_given()
{
    d_step { heard_g.by = given[other].by; heard_g.means = given[other].means;
             heard_g.count = given[other].count }
    if
    :: heard_g.by != 0 && heard_g.means == 0 && (heard_g.by != sender || seen != 0) ->
        d_step { seen = 0; got = 0; sender = heard_g.by }
        answer(sender, 0)
    :: sender != 0 && heard_g.by == sender && heard_g.means == inc ->
        d_step {
            more = (heard_g.count - (seen % 4) + 4) % 4;
            assert(more <= LINES - (seen - got));
            seen = seen + more;
            more = 0
        }
    :: else
    fi
}

inline take()
{
    d_step {
        /* No line was overwritten before it was read. */
        assert(lines[other * 2 + got % LINES].by == sender);
        assert(lines[other * 2 + got % LINES].number == got);
        if
        :: got % 2 == 1 ->
            assert(received[other * IDS + lines[other * 2 + got % LINES].id] == 0); /* nor twice */
            received[other * IDS + lines[other * 2 + got % LINES].id] = 1
        :: else
        fi;
        got++
    }
    answer(sender, got % 4)
}

#define differs(one, two) (one.by != two.by || one.means != two.means || one.count != two.count)

proctype node(byte me)
{
    byte inc, other = 1 - me, more;
    byte receiver, gone, g, t, low, first; /* sending */
    byte sender, seen, got;                /* receiving */
    Flag heard_t, heard_g;
    bit changed;
    byte asked;

born: skip;
    d_step {
        alive[me] = 1; /* the lock on the file */
        inc = life[me] + 1; left[me] = sent_by(me); more = 0;
        receiver = 0; gone = 0; g = 0; t = 0; low = 0; first = 0;
        sender = 0; seen = 0; got = 0; changed = 1; asked = 0;
        heard_t.by = 0; heard_t.means = 0; heard_t.count = 0;
        heard_g.by = 0; heard_g.means = 0; heard_g.count = 0
    }
    {
        answer(0, 0);
        d_step { given[me].by = inc; given[me].means = 0; given[me].count = 0 }
        life[me] = inc;
end:    do
        :: left[me] > 0 && (changed || differs(heard_t, taken[me])) -> hear_taken()
        :: receiver != 0 && g - t < LINES && g < (low + left[me]) * 2 -> give()
        :: differs(heard_g, given[other]) -> hear_given()
        :: sender != 0 && got < seen -> take()
        :: sender != 0 && got % 2 == 1 && refusals > 0 ->
            refusals--;
            sender = 0;
            answer(0, got % 4)
        :: left[me] > 0 && !alive[other] && life[other] != 0 ->
            /* Read the incarnation first, then check liveness: a new one may attach in between. */
            asked = life[other];
            if
            :: !alive[other] ->
                d_step { gone = asked; left[me] = 0; low = 0; g = 0; t = 0 }
                unpair()
            :: else
            fi
        od
    } unless { dies[me] }
    d_step { alive[me] = 0; dies[me] = 0 }
    if
    :: goto born
    :: skip /* or it stays dead */
    fi
}

init
{
    byte who;
    atomic { run node(0); run node(1) }
    do
    :: deaths > 0 ->
        select(who: 0 .. 1);
        if
        :: alive[who] -> atomic { deaths--; dies[who] = 1 }
        :: else
        fi
    :: break
    od;
    /* When no further step is possible, a core that still has something to send would wait for
     * ever. That is allowed only if the other core has never attached. */
    timeout -> assert((!alive[0] || left[0] == 0 || life[1] == 0) &&
                      (!alive[1] || left[1] == 0 || life[0] == 0))
}
