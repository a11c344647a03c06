/* run: -DCLIENTS=2 -DOPERATIONS=2 -DDEATHS=3 */
/* run: -DCLIENTS=3 -DOPERATIONS=1 -DDEATHS=1 */
/* The locks and logs of shmfs: lock.c, log.c and client.c, with death at every step.
 *
 * Clients take one lock, check that two words are equal, change both in a logged transaction, and
 * release the lock. Any client may die before any step, DEATHS times in all. Then either a new
 * client takes its slot and continues, or another client finds its lock and completes its
 * transaction. The model shows: the words are equal whenever a client has taken the lock, two live
 * clients never own it at once, and every live client finishes (no invalid end states).
 *
 * The model found that a slot must get its new generation under the recovery lock: otherwise a
 * client that has seen the old generation could replay the log of the next client.
 *
 *     spin -run -safety locks.pml
 *
 * Shows CIB-24.
 */
#ifndef CLIENTS
#define CLIENTS 3
#endif
#ifndef OPERATIONS
#define OPERATIONS 1 /* of each client in its first life; one in each later one */
#endif
#ifndef DEATHS
#define DEATHS 2
#endif

#define sign(client, generation) (1 + (client) + 4 * (generation))
#define client_in(owner) (((owner) - 1) % 4)
#define generation_in(owner) (((owner) - 1) / 4)

byte lock, recovery; /* owner and generation, 0: free */
bool lives[CLIENTS];
byte generation[CLIENTS];
bool logged[CLIENTS]; /* the commit point */
byte noted[CLIENTS];  /* the contents of its log */
byte one, other;      /* guarded by the lock */
byte deaths;
byte inside; /* live clients between take and release */

#define is_alive(owner) \
    (lives[client_in(owner)] && generation[client_in(owner)] == generation_in(owner))

/* A client may die before the next step. */
#define step \
    if \
    :: deaths < DEATHS -> goto dies \
    :: skip \
    fi

/* Take the recovery lock. A dead owner's lock is taken at once, because replay is idempotent. */
inline take_recovery(me)
{
    do
    :: atomic { recovery == 0 -> recovery = me; break }
    :: atomic { recovery != 0 && recovery != me && !is_alive(recovery) -> recovery = me; break }
    od
}

inline replay(client)
{
    if
    :: logged[client] ->
        step; one = noted[client];
        step; other = noted[client];
        step; logged[client] = false
    :: else
    fi
}

inline take(me)
{
    do
    :: atomic { lock == 0 -> lock = me; break }
    :: atomic { lock != 0 && !is_alive(lock) -> seen = lock };
        step; take_recovery(me);
        step;
        if
        :: generation[client_in(seen)] == generation_in(seen) -> replay(client_in(seen))
        :: else /* its slot has a new client, and its log is done */
        fi;
        step; recovery = 0;
        step;
        atomic {
            if
            :: lock == seen -> lock = me; seen = 0; break
            :: else -> seen = 0
            fi
        }
    od
}

proctype client(byte self)
{
    byte me, seen, left = OPERATIONS;
    bool is_in = false;

attach: /* the slot is claimed: no other client can be here with it */
    me = sign(self, generation[self]);
    atomic { recovery == me -> recovery = 0 } unless { recovery != me };
    step; take_recovery(me);
    step; replay(self);
    step; generation[self] = generation[self] + 1; /* while no client reads its log */
    step; atomic { if :: recovery == me -> recovery = 0 :: else fi };
    step; atomic { if :: lock == me -> lock = 0 :: else fi };
    me = sign(self, generation[self]);

    do
    :: left == 0 -> break
    :: left > 0 ->
        left--;
        step; take(me);
        atomic { inside++; is_in = true; assert(inside == 1) };
        step; assert(one == other);
        noted[self] = one + 1;
        step; logged[self] = true;
        step; one = noted[self];
        step; other = noted[self];
        step; logged[self] = false;
        step; atomic { inside--; is_in = false; lock = 0 }
    od;
    step;
    goto end;

dies: /* the slot is unclaimed; then a new client may claim it: this process again */
    atomic {
        deaths++;
        lives[self] = false;
        if :: is_in -> inside--; is_in = false :: else fi
    };
    seen = 0;
    left = 1;
    atomic { lives[self] = true };
    goto attach;
end:
    skip
}

init
{
    byte number = 0;
    atomic {
        do
        :: number < CLIENTS -> lives[number] = true; run client(number); number++
        :: else -> break
        od
    };
    _nr_pr == 1;
    assert(one == other && lock == 0 && recovery == 0)
}
