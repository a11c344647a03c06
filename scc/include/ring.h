/* ring.h: a two-way connection in shared memory: two ring buffers, one in each direction.
 *
 * A *segment* is a sealed memfd with a ring for each direction. Each of its two *sides* is one
 * process, which has an outgoing and an incoming ring; the process at the opposite side is its
 * *peer*. A side that polls sees written bytes at once. A side that wants to sleep first announces
 * it in the segment; only then the peer wakes it, by sending one byte on its *bell*: a socket, or a
 * pair of FIFOs, that both sides had before they agreed on the rings. The bell also shows that a
 * side has closed or died; the segment does not.
 *
 *     struct ring *ring;
 *     int segment = ring_make(65536);                        // one side creates it, ...
 *     ring_open(&ring, storage, sizeof storage, segment, 0, bell, bell);
 *     ring_write(ring, "hello", 5);                          // ... the peer opens it as side 1
 *     while (ring_wait(ring, NULL, false) > 0)               // 0: the peer is gone
 *         size = ring_read(ring, buffer, sizeof buffer);
 *     ring_close(ring);
 *
 * Bytes in the segment, version 1. All numbers are in the machine's byte order.
 *
 *     offset 0              header: magic, version, capacity, written before the segment is shared
 *     offset 128            words of side 0's ring, into which side 0 writes
 *     offset 384            words of side 1's ring
 *     offset 4096           `capacity` bytes of side 0's ring, then the bytes of side 1's ring
 *
 * Words of a ring. Each word has one writer, and reader and writer use separate lines of 128 bytes:
 *
 *     +0    tail     bytes ever written; stored by the ring's writer
 *     +8    wants    odd while the writer sleeps until there is room; stored by the writer
 *     +128  head     bytes ever read; stored by the ring's reader
 *     +136  sleeps   odd while the reader sleeps until there are bytes; stored by the reader
 *
 * Invariant M1: 0 <= tail - head <= capacity. A side keeps private copies of the counters it
 * writes, and checks the peer's counters each time it reads them. Invalid values in the segment
 * therefore lead to RING_ERROR_CORRUPT, and never to an access outside the segment or an endless
 * loop. No order of steps, and no death between two steps, loses written bytes or a bell that a
 * sleeping side needs (models/ring.pml).
 *
 * Errors are negative. Only the segment is allocated, and the library has no static variables. Only
 * one thread at a time may use a side. A child of fork must not use its parent's side.
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
    RING_ERROR_ARGUMENT = -1,  /* an argument is invalid: the caller's mistake */
    RING_ERROR_SYSTEM = -2,    /* a system call failed; see `errno` */
    RING_ERROR_FORMAT = -3,    /* not a segment, not sealed, or a different version or size */
    RING_ERROR_CORRUPT = -4,   /* the peer has violated invariant M1 */
    RING_ERROR_SIGNAL = -5     /* a signal interrupted the wait; handle it, and wait again */
};

/* Return one line of English for any error number. */
const char *ring_error_text(int error);

/* --- life ------------------------------------------------------------------------------------ */

struct ring; /* one side of a segment */

/* Return how many bytes of private memory `ring_open` needs; they must be aligned to 16, as malloc does. */
size_t ring_size(void);

/* Create a segment with two rings of `capacity_bytes` each. Its memory is allocated at once, and
 * its size is sealed. Returns a descriptor to pass to the peer. Fails with ARGUMENT,
 * SYSTEM. */
int ring_make(uint64_t capacity_bytes);

/* Open a segment as side 0 or 1. All descriptors stay the caller's; `segment_fd` is not needed
 * after this call. The ring sends bells to `bell_fd` and receives them from `wait_fd` (-1: the
 * caller waits by itself, for example in a reactor). `storage` is `ring_size()` bytes, kept until
 * closed. Fails with ARGUMENT, SYSTEM, FORMAT. */
int ring_open(struct ring **ring, void *storage, size_t storage_bytes, int segment_fd, int side,
              int bell_fd, int wait_fd);

/* Unmap the segment. This does not notify the peer; closing the bell does. */
void ring_close(struct ring *ring);

/* Return how many bytes each direction holds. */
uint64_t ring_capacity(const struct ring *ring);

/* --- bytes ----------------------------------------------------------------------------------- */

/* Write as many bytes as there is room for, and ring the bell if the peer sleeps. Returns the
 * number written, which may be 0. On return the peer can see the bytes, even if this process
 * dies afterwards. Fails with CORRUPT. */
int64_t ring_write(struct ring *ring, const char *from, uint64_t size_bytes);

/* Read the available bytes, at most `size_bytes`, and ring the bell if the peer sleeps until
 * there is room. Returns the number read, which may be 0. Fails with CORRUPT. */
int64_t ring_read(struct ring *ring, char *to, uint64_t size_bytes);

/* Return how many bytes can be read, or how many can be written. Fails with CORRUPT. */
int64_t ring_readable(struct ring *ring);
int64_t ring_room(struct ring *ring);

/* --- sleeping -------------------------------------------------------------------------------- */

/* Announce that this side is about to sleep until there are bytes to read or, with `wants_room`,
 * until there is room; then check again. Returns 1 if the caller may sleep: from now on the peer
 * rings the bell. Returns 0 if there is something already; then this side is awake. Fails with
 * CORRUPT, and then this side is awake. */
int ring_sleep(struct ring *ring, bool wants_room);

/* Announce that this side is awake, so it needs no bell. Harmless if it never slept. */
void ring_wake(struct ring *ring);

/* How long to poll before sleeping. Polling uses only this core, while waking up costs 20 us and
 * time of the peer. Polling pays only if the awaited bytes come soon, and if another process
 * can run meanwhile to send them; so it is off by default (all fields zero). The polling time
 * adapts to the results of the last waits. Each waiting thread needs its own struct. */
struct ring_patience {
    uint32_t looks_max; /* maximum number of polls; 0: never poll */
    uint32_t looks;     /* polls in the next wait */
    uint64_t soon_us;   /* after a sleep shorter than this, polling would have been better */
    uint64_t slept_us;  /* when it last fell asleep */
    uint64_t won;       /* waits that ended while polling */
    uint64_t lost;      /* waits that ended in sleep */
    int32_t also_fd;    /* an event loop's poller, above 0: events there end the polling */
};

/* Wait until there are bytes to read or, with `wants_room`, until there is room. Returns 1, or 0 at
 * the end of the bell; bytes that are left can then still be read. Fails with CORRUPT, SIGNAL,
 * SYSTEM. */
int ring_wait(struct ring *ring, struct ring_patience *patience, bool wants_room);

/* --- for an event loop ----------------------------------------------------------------------- */

/* The state of one ring in an event loop: the awaited events, and the events found. */
struct ring_watch {
    struct ring *ring;
    int32_t wants;  /* 1: bytes, 2: room, 3: both; 0: nothing */
    int32_t found;  /* the subset of `wants` that has occurred, or an error */
};

/* Call before the loop waits. Polls while patience allows and no other event is ready, then
 * announces for each ring that this side sleeps. Returns the number of ready rings, or an error; if
 * any ring is ready, no side is announced as sleeping. */
int ring_before_wait(struct ring_watch *watches, size_t count, struct ring_patience *patience);

/* Call after the loop has waited. Announces that all sides are awake; returns the same as above. */
int ring_after_wait(struct ring_watch *watches, size_t count, struct ring_patience *patience);

#ifdef __cplusplus
}
#endif

#endif
