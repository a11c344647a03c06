/* ring.h: a conversation in shared memory: two rings of bytes, one in each direction.
 *
 * A *segment* is a sealed memfd with a ring for each direction. Each *side* of it has one process,
 * which writes into one ring and reads from the other. What was written is there at once for a side
 * that looks; a side that sleeps has said so before, and only then is it woken, by one byte on its
 * *bell*: a socket, or a pair of FIFOs, that both sides had before they agreed on the rings. The
 * bell is also what shows that a side has closed or died; the memory says nothing about life.
 *
 *     struct ring *ring;
 *     int segment = ring_make(65536);                        // one side makes it, ...
 *     ring_open(&ring, storage, sizeof storage, segment, 0, bell, bell);
 *     ring_write(ring, "hello", 5);                          // ... the other opens it as side 1
 *     while (ring_wait(ring, NULL, false) > 0)               // 0: nobody is there any more
 *         size = ring_read(ring, buffer, sizeof buffer);
 *     ring_close(ring);
 *
 * Bytes in the segment, version 1. All numbers are of the machine's own byte order.
 *
 *     offset 0              header: magic, version, capacity, written before anybody else looks
 *     offset 128            words of side 0's ring, in which it writes
 *     offset 384            words of side 1's ring
 *     offset 4096           bytes of side 0's ring, `capacity` of them; then those of side 1's
 *
 * Words of a ring; each has one writer, and the two lines of 128 bytes never share one:
 *
 *     +0    tail     bytes ever written: its writer's
 *     +8    wants    odd while its writer sleeps until there is room: its writer's
 *     +128  head     bytes ever read: its reader's
 *     +136  sleeps   odd while its reader sleeps until something is there: its reader's
 *
 * Invariant M1: 0 <= tail - head <= capacity. A side trusts its own counters, which it keeps apart,
 * and checks the other's at every look: whatever stands in the segment gives RING_ERROR_CORRUPT, and
 * never an access outside of it, or work without an end. No order of steps, and no death between
 * two of them, loses what was written, or a bell for who needs it (models/ring.pml).
 *
 * Errors are negative; nothing allocates memory but the segment, and nothing is static. One side is
 * used by one thread at a time. A child of fork must not use its parent's.
 *
 * Requirement CIB-32.
 */
#ifndef RING_H
#define RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RING_VERSION 1                   /* of the bytes in a segment */
#define RING_CAPACITY_MIN_BYTES 4096     /* of one direction; a power of two */
#define RING_CAPACITY_MAX_BYTES 67108864

enum ring_error {
    RING_ERROR_ARGUMENT = -1,  /* an argument makes no sense: the caller's mistake */
    RING_ERROR_SYSTEM = -2,    /* a system call failed; `errno` says how */
    RING_ERROR_FORMAT = -3,    /* no segment, not sealed, or of another version or size */
    RING_ERROR_CORRUPT = -4,   /* the other side has broken invariant M1 */
    RING_ERROR_SIGNAL = -5     /* a signal came while it waited; look for it, and wait again */
};

/* One line of English for an error; of any number. */
const char *ring_error_text(int error);

/* --- life ------------------------------------------------------------------------------------ */

struct ring; /* one side of a segment */

/* Bytes that `ring_open` needs of private memory, aligned to 64. */
size_t ring_size(void);

/* Make a segment whose rings hold so many bytes each; its memory is there at once, and its size is
 * sealed. Returns a descriptor, to be passed to the other side. Fails with ARGUMENT, SYSTEM. */
int ring_make(uint64_t capacity_bytes);

/* Open a segment as side 0 or 1. The caller keeps all descriptors: `segment_fd` is not needed any
 * more afterwards, bells go to `bell_fd` and come from `wait_fd` (-1: the caller waits elsewhere, as
 * in a reactor). `storage` is `ring_size()` bytes, kept until closed. Fails with ARGUMENT, SYSTEM,
 * FORMAT. */
int ring_open(struct ring **ring, void *storage, size_t storage_bytes, int segment_fd, int side,
              int bell_fd, int wait_fd);

/* Let go of the segment. The other side is not told; that is what closing the bell is for. */
void ring_close(struct ring *ring);

/* How many bytes each direction holds. */
uint64_t ring_capacity(const struct ring *ring);

/* --- bytes ----------------------------------------------------------------------------------- */

/* Write as many of these bytes as there is room for, and ring if the other side sleeps. Returns how
 * many; none is no error. What is written is seen by the other side on return, and will be though
 * this process dies. Fails with CORRUPT. */
int64_t ring_write(struct ring *ring, const char *from, uint64_t size_bytes);

/* Read as many bytes as are there, at most so many; ring if the other side sleeps for want of room.
 * Returns how many; none is no error. Fails with CORRUPT. */
int64_t ring_read(struct ring *ring, char *to, uint64_t size_bytes);

/* How many bytes there are to be read, or how much room there is to write. Fails with CORRUPT. */
int64_t ring_readable(struct ring *ring);
int64_t ring_room(struct ring *ring);

/* --- sleeping -------------------------------------------------------------------------------- */

/* Say that this side is about to sleep until something is there to be read or, with `wants_room`,
 * there is room; then look again. Returns 1 when it may sleep: from here on the other side rings.
 * 0: it need not, and is awake. Fails with CORRUPT, awake. */
int ring_sleep(struct ring *ring, bool wants_room);

/* Say that this side is awake; nobody rings any more. No harm if it never slept. */
void ring_wake(struct ring *ring);

/* How long to look before sleeping: a look costs nothing but this core, waking up 20 us and the
 * other's time. It pays only while what is awaited comes soon, and somebody else can run meanwhile
 * to bring it; so it is off (all zero) unless asked for, and grows and shrinks by what came of the
 * last waits. One for each thread that waits. */
struct ring_patience {
    uint32_t looks_max; /* so many looks, at most; 0: never */
    uint32_t looks;     /* those of the next wait */
    uint64_t soon_us;   /* who slept for less might as well have looked */
    uint64_t slept_us;  /* when it last fell asleep */
    uint64_t won;       /* waits that ended while it looked */
    uint64_t lost;      /* waits that went on, and ended in sleep */
    int32_t also_fd;    /* a loop's poller, above 0: what is ready there ends its looking */
};

/* Wait until something is there or, with `wants_room`, there is room. Returns 1, or 0 when the bell
 * has ended: then what there is can still be read. Fails with CORRUPT, SIGNAL, SYSTEM. */
int ring_wait(struct ring *ring, struct ring_patience *patience, bool wants_room);

/* --- for an event loop ----------------------------------------------------------------------- */

/* What a loop wants of one of its rings, and finds there. */
struct ring_watch {
    struct ring *ring;
    int32_t wants;  /* 1: bytes, 2: room, 3: both; 0: nothing */
    int32_t found;  /* which of these are there, or an error */
};

/* Before the loop waits: look, as long as patience allows and nothing else is ready, then say for each ring that it sleeps.
 * Returns how many have what is wanted, or an error; if any, nobody sleeps. */
int ring_before_wait(struct ring_watch *watches, size_t count, struct ring_patience *patience);

/* After the loop has waited: all are awake; returns as above. */
int ring_after_wait(struct ring_watch *watches, size_t count, struct ring_patience *patience);

#ifdef __cplusplus
}
#endif

#endif
