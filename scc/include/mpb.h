/* mpb.h: messages between cores that share nothing but memory.
 *
 * A segment holds, for each core, a buffer of 8 KiB, a test-and-set register, a bell, and flags. A
 * core writes to its own buffer only; it is divided into one part for each other core, so nobody
 * waits behind a message to somebody else. Messages of any length go through in pieces. Calls are
 * those of RCCE and iRCCE: blocking and not, from one core or from any, barriers, locks.
 *
 *     struct mpb *mpb;
 *     struct mpb_memory memory = {base, size_bytes, fd};
 *     mpb_attach(&mpb, storage, sizeof storage, &memory, 3, NULL);      // I am core 3
 *     mpb_send(mpb, 0, "hello", 5, -1);
 *     int64_t size = mpb_recv(mpb, MPB_ANY, bytes, sizeof bytes, &core, -1);
 *     mpb_detach(mpb);
 *
 * A send is over when the other core has taken the last byte. Messages between two cores arrive in
 * the order in which they were sent, each once; receives are served in the order in which they were
 * posted. Whoever waits looks at its bell for a bounded number of times and then sleeps until it
 * rings. Every call first moves on whatever is under way in either direction, so two cores that
 * send to each other and have receives posted (or use `mpb_exchange`) never wait for each other.
 *
 * Errors are negative numbers; zero and more is success. A core that dies is noticed: whatever
 * waits for it fails with PEER. What it sent wholly before is still received. The next to attach as
 * that core begins afresh: requests that it had begun to serve fail with PEER as well, receives
 * that are posted and have not begun wait for it. Nothing allocates memory, nothing here is static.
 *
 * Threads: one `struct mpb` belongs to one thread at a time, except for `mpb_bell`, `mpb_sleep` and
 * `mpb_ring`, which another one may call meanwhile. A child of fork attaches for itself.
 *
 * Requirements CIB-30, CIB-31, POOL-3.
 */
#ifndef MPB_H
#define MPB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- versions and limits --------------------------------------------------------------------- */

#define MPB_VERSION 0x00010000   /* of this library: major << 16 | minor */
#define MPB_FORMAT_VERSION 1     /* of the bytes in memory; kept in the segment */

#define MPB_CORE_MAX_COUNT 64    /* 8 KiB divided among 63 others is a line of 128 bytes each */
#define MPB_BUFFER_BYTES 8192    /* per core */
#define MPB_ANY 0xffffffff       /* receive from whichever core has sent something */

/* --- errors and states ----------------------------------------------------------------------- */

enum mpb_error {
    MPB_PENDING = 1,              /* a state of requests: not over yet */
    MPB_ERROR_ARGUMENT = -1,      /* an argument makes no sense: the caller's mistake */
    MPB_ERROR_FORMAT = -2,        /* no segment, or of another version, geometry or machine */
    MPB_ERROR_TOO_SMALL = -3,     /* the memory is too small for so many cores */
    MPB_ERROR_TAKEN = -4,         /* somebody who lives is attached as that core */
    MPB_ERROR_PEER = -5,          /* the other core died or detached; see the request's `core` */
    MPB_ERROR_REFUSED = -6,       /* the other core gave up a message after it had begun; whether
                                     one sent before it was received is not known */
    MPB_ERROR_TIMEOUT = -7,       /* the time was over; nothing was sent or received */
    MPB_ERROR_UNSURE = -8,        /* the time was over, but all of the message lies in the buffer:
                                     it may yet be received */
    MPB_ERROR_SIZE = -9,          /* the message is larger than there is room for; it is still
                                     there, for a receive with `size_bytes` of room */
    MPB_ERROR_CANCELLED = -10,    /* a state of requests: `mpb_cancel`, or detached meanwhile */
    MPB_ERROR_TOO_LATE = -11,     /* all of the message lies in the buffer: it cannot be recalled */
    MPB_ERROR_CORRUPT = -12,      /* what lies in the segment makes no sense; somebody else wrote */
    MPB_ERROR_SYSTEM = -13,       /* a system call failed; `errno` says how */
};

/* One line of English for an error; of any number. */
const char *mpb_error_text(int error);

/* --- configuration --------------------------------------------------------------------------- */

/* Where a segment lies. The caller maps it, shared and writable, and keeps it mapped. */
struct mpb_memory {
    void *base;          /* page-aligned */
    uint64_t size_bytes; /* at least what `mpb_segment_bytes` says */
    int fd;              /* the file that it is a mapping of, opened for this core alone: locks on
                            it show who lives. -1: `is_alive` is asked instead */
};

/* How one core wants it. Zero means the default; NULL for all of it is allowed. */
struct mpb_options {
    uint32_t spin_count; /* looks at flags before sleeping; default 2000, some 50 us. 1: hardly
                            any, for cores that share a processor */
    uint32_t check_ms;   /* how often who waits looks whether the others live, since the dead ring
                            no bell; default 50 */
    /* Whether the one attached as that core under that number still lives. Without it and without
     * `fd`, everybody lives who has not detached. */
    bool (*is_alive)(void *argument, uint32_t core, uint32_t incarnation);
    void *is_alive_argument;
};

/* What one core has done since it attached. */
struct mpb_counters {
    uint64_t messages_sent, messages_received;
    uint64_t pieces_sent, pieces_received;
    uint64_t rings;  /* bells rung */
    uint64_t looks;  /* rounds of looks, while spinning */
    uint64_t sleeps; /* when it did not ring */
    uint64_t checks; /* whether the others live */
    uint64_t stolen; /* locks taken from the dead */
};

/* --- life of a segment ----------------------------------------------------------------------- */

struct mpb; /* one core's view of a segment */

/* How large a segment for 2 to MPB_CORE_MAX_COUNT cores is, or ARGUMENT. */
int64_t mpb_segment_bytes(uint32_t core_count);

/* Make a segment. Not while anybody is attached to it. The magic number is written last, so that
 * who attaches meanwhile finds none (FORMAT). Fails with ARGUMENT, TOO_SMALL. */
int mpb_format(const struct mpb_memory *memory, uint32_t core_count);

/* Bytes that `mpb_attach` needs of private memory, aligned to 64. */
size_t mpb_size(void);

/* Become a core. `storage` is `mpb_size()` bytes of private memory, kept until detached; the memory
 * and options are copied. Fails with FORMAT, TAKEN, ARGUMENT, SYSTEM. */
int mpb_attach(struct mpb **mpb, void *storage, size_t storage_bytes,
               const struct mpb_memory *memory, uint32_t core, const struct mpb_options *options);

/* Be no core any more. Requests that are under way are CANCELLED. */
void mpb_detach(struct mpb *mpb);

uint32_t mpb_core_of(const struct mpb *mpb);
uint32_t mpb_core_count_of(const struct mpb *mpb);
struct mpb_counters mpb_counters_of(const struct mpb *mpb);

/* How often somebody attached as that core, 0: nobody yet. */
uint32_t mpb_incarnation_of(const struct mpb *mpb, uint32_t core);

/* Whether somebody is attached as that core and lives. A system call or a call of `is_alive`. */
bool mpb_lives(const struct mpb *mpb, uint32_t core);

/* --- requests -------------------------------------------------------------------------------- */

/* A send or receive under way. The caller keeps it and its bytes in place until it is over; its
 * fields are to be read only. */
struct mpb_request {
    int32_t status;       /* MPB_PENDING, 0 when it went well, or an error */
    uint32_t core;        /* the other one; where MPB_ANY was asked for, who it came from */
    uint64_t size_bytes;  /* of the message; of a receive once it has begun */
    uint64_t moved_bytes; /* of it, given or taken so far */
    /* for mpb alone */
    uint64_t room_bytes, serial, end;
    uint8_t *bytes;
    struct mpb_request *next;
    uint32_t kind, wanted;
};

/* Begin to send. Never waits. Length 0 is a message as well. Fails with ARGUMENT for a core that is
 * not there, oneself, or more than INT64_MAX bytes, and then posts nothing. Where the other core is
 * known to be gone, the request is over at once. */
int mpb_isend(struct mpb *mpb, struct mpb_request *request, uint32_t core, const void *bytes,
              uint64_t size_bytes);

/* Begin to receive a message of at most so many bytes, from a core or from MPB_ANY. Never waits.
 * Cores are served in turn. Fails with ARGUMENT, and then posts nothing. */
int mpb_irecv(struct mpb *mpb, struct mpb_request *request, uint32_t core, void *bytes,
              uint64_t room_bytes);

/* Move on whatever is under way, as far as it goes without waiting. Returns how many requests are
 * not over. */
int mpb_push(struct mpb *mpb);

/* Push, and return the state of a request. */
int mpb_test(struct mpb *mpb, struct mpb_request *request);

/* Push until a request is over, and return its state, or TIMEOUT: then it is still under way.
 * Negative timeout: for ever, which is as long as the other core lives or may yet attach. */
int mpb_wait(struct mpb *mpb, struct mpb_request *request, int64_t timeout_us);

/* The same for several: returns the index of the first one that is over. */
int mpb_wait_any(struct mpb *mpb, struct mpb_request *const *requests, uint32_t count,
                 int64_t timeout_us);

/* End a request that is under way, as if it had never been made: its state is CANCELLED. Fails with
 * TOO_LATE where a message wholly lies in the buffer, and leaves the request under way. A message
 * that has begun to arrive is refused, which the sender is told. */
int mpb_cancel(struct mpb *mpb, struct mpb_request *request);

/* Whether a message waits that no receive was posted for, from a core or from MPB_ANY: returns 1,
 * with whose it is and its length, or 0. Pushes. */
int mpb_probe(struct mpb *mpb, uint32_t core, uint32_t *from, uint64_t *size_bytes);

/* --- calls that wait ------------------------------------------------------------------------- */

/* Send, and wait until it was received. Also TIMEOUT, UNSURE, PEER, REFUSED. */
int mpb_send(struct mpb *mpb, uint32_t core, const void *bytes, uint64_t size_bytes,
             int64_t timeout_us);

/* Receive; returns the length, and in `from` (which may be NULL) whose it was. Also TIMEOUT, PEER,
 * SIZE. */
int64_t mpb_recv(struct mpb *mpb, uint32_t core, void *bytes, uint64_t room_bytes, uint32_t *from,
                 int64_t timeout_us);

/* Send to a core and receive from it at the same time; returns the length received. */
int64_t mpb_exchange(struct mpb *mpb, uint32_t core, const void *bytes, uint64_t size_bytes,
                     void *received, uint64_t room_bytes, int64_t timeout_us);

/* Wait until all these cores have come here: bit n is core n, oneself among them; 0: all. Fails
 * with PEER if one of them dies before it has come, with TIMEOUT; a barrier that ran out of time
 * goes on with the next call for the same cores. */
int mpb_barrier(struct mpb *mpb, uint64_t cores, int64_t timeout_us);

/* Take the test-and-set register of that core as a lock. Returns 0, or 1 if it was taken from a
 * dead core, whose work may be half done. Fails with TIMEOUT, ARGUMENT if it is held already. */
int mpb_lock(struct mpb *mpb, uint32_t number, int64_t timeout_us);
int mpb_unlock(struct mpb *mpb, uint32_t number);

/* --- the bell: for who waits for other things as well ---------------------------------------- */

/* What the bell shows. It changes whenever there may be something to push. */
uint32_t mpb_bell(const struct mpb *mpb);

/* Sleep until it shows something else than `seen`, which was asked before the last push. 0, or
 * TIMEOUT. Moves nothing on. */
int mpb_sleep(const struct mpb *mpb, uint32_t seen, int64_t timeout_us);

/* Ring the bell of a core, one's own included. */
void mpb_ring(const struct mpb *mpb, uint32_t core);

#ifdef __cplusplus
}
#endif

#endif
