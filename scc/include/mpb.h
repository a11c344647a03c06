/* mpb.h: message passing between cores that share memory but no coherent caches.
 *
 * A segment holds for each core a buffer of 8 KiB, a test-and-set register, a bell and flags. A
 * core writes only to its own buffer, which is divided into one part for each other core, so a
 * message to one core never delays a message to another. Longer messages are sent in pieces. The
 * calls follow RCCE and iRCCE: blocking and non-blocking, receive from one core or from any,
 * barriers, locks.
 *
 *     struct mpb *mpb;
 *     struct mpb_memory memory = {base, size_bytes, fd};
 *     mpb_attach(&mpb, storage, sizeof storage, &memory, 3, NULL);      // I am core 3
 *     mpb_send(mpb, 0, "hello", 5, -1);
 *     int64_t size = mpb_recv(mpb, MPB_ANY, bytes, sizeof bytes, &core, -1);
 *     mpb_detach(mpb);
 *
 * A send completes when the receiver has taken the last byte. Messages between two cores arrive
 * in the order in which they were sent, each exactly once. Receives are matched in the order in
 * which they were posted. A call that waits polls for a bounded number of times and then sleeps
 * until its core's bell rings. Every call first makes progress in both directions, so two cores
 * that send to each other and have posted receives (or use `mpb_exchange`) never wait for each
 * other.
 *
 * Errors are negative numbers; zero and positive numbers mean success. When a core dies, requests
 * that wait for it fail with PEER, but messages that it sent completely are still received. When
 * another process then attaches as that core, it starts afresh: requests that the dead one had
 * started to serve also fail with PEER, and posted receives that have not started wait for the new
 * process. No call allocates memory, and the library has no static variables.
 *
 * Threads: only one thread at a time may use a `struct mpb`, except for `mpb_bell`, `mpb_sleep` and
 * `mpb_ring`, which another thread may call at the same time. A child of fork attaches for itself.
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
#define MPB_FORMAT_VERSION 1     /* of the bytes in memory; stored in the segment */

#define MPB_CORE_MAX_COUNT 64    /* 8 KiB divided by 63 other cores is one line of 128 bytes each */
#define MPB_BUFFER_BYTES 8192    /* per core */
#define MPB_ANY 0xffffffff       /* receive from any core */

/* --- errors and states ----------------------------------------------------------------------- */

enum mpb_error {
    MPB_PENDING = 1,              /* a state of requests: not complete yet */
    MPB_ERROR_ARGUMENT = -1,      /* an argument is invalid: the caller's mistake */
    MPB_ERROR_FORMAT = -2,        /* not a segment, or a different version, geometry or machine */
    MPB_ERROR_TOO_SMALL = -3,     /* the memory is too small for this number of cores */
    MPB_ERROR_TAKEN = -4,         /* a live process is attached as that core */
    MPB_ERROR_PEER = -5,          /* the peer died or detached; see the request's `core` */
    MPB_ERROR_REFUSED = -6,       /* the peer gave up a message after it had started; it is
                                     unknown whether it received an earlier message */
    MPB_ERROR_TIMEOUT = -7,       /* timeout; nothing was sent or received */
    MPB_ERROR_UNSURE = -8,        /* timeout, but the whole message is in the buffer: it may still
                                     be received */
    MPB_ERROR_SIZE = -9,          /* the message exceeds the receive buffer. It stays, and can be
                                     received with `size_bytes` of room */
    MPB_ERROR_CANCELLED = -10,    /* a state of requests: `mpb_cancel` or `mpb_detach` ended it */
    MPB_ERROR_TOO_LATE = -11,     /* the whole message is in the buffer: it cannot be cancelled */
    MPB_ERROR_CORRUPT = -12,      /* the segment holds invalid data; another program wrote to it */
    MPB_ERROR_SYSTEM = -13,       /* a system call failed; see `errno` */
};

/* Return one line of English for any error number. */
const char *mpb_error_text(int error);

/* --- configuration --------------------------------------------------------------------------- */

/* The memory of a segment. The caller maps it, shared and writable, and keeps it mapped. */
struct mpb_memory {
    void *base;          /* page-aligned */
    uint64_t size_bytes; /* at least what `mpb_segment_bytes` returns */
    int fd;              /* the file behind `base`, opened by this core alone: locks on it show
                            which cores are alive. -1: `is_alive` is called instead */
};

/* Options of one core. Zero means the default; a NULL pointer means all defaults. */
struct mpb_options {
    uint32_t spin_count; /* flags to poll before sleeping; default 2000, about 50 us. Use 1, almost
                            no polling, for cores that share a processor */
    uint32_t check_ms;   /* how often a waiting core checks whether its peers are alive, since
                            a dead core rings no bell; default 50 */
    /* Return whether the process that attached as that core with that incarnation is still alive.
     * Without this and without `fd`, every core that has not detached counts as alive. */
    bool (*is_alive)(void *argument, uint32_t core, uint32_t incarnation);
    void *is_alive_argument;
    uint32_t sleep_max_us; /* how long a core sleeps at most before it polls its bell again; for
                              cores of other kernels, whose bells wake nobody here. Default: no
                              limit */
};

/* Counts of what one core has done since it attached. */
struct mpb_counters {
    uint64_t messages_sent, messages_received;
    uint64_t pieces_sent, pieces_received;
    uint64_t rings;  /* bells rung */
    uint64_t looks;  /* polling rounds */
    uint64_t sleeps; /* times it slept because the bell did not ring */
    uint64_t checks; /* rounds of checking whether other cores are alive */
    uint64_t stolen; /* locks taken over from dead cores */
};

/* --- life of a segment ----------------------------------------------------------------------- */

struct mpb; /* one core's view of a segment */

/* Return the size of a segment for 2 to MPB_CORE_MAX_COUNT cores, or ARGUMENT. */
int64_t mpb_segment_bytes(uint32_t core_count);

/* Create a segment. No core may be attached to the memory. The magic number is written last, so a
 * core that attaches too early fails with FORMAT. Fails with ARGUMENT, TOO_SMALL. */
int mpb_format(const struct mpb_memory *memory, uint32_t core_count);

/* Return how many bytes of private memory `mpb_attach` needs; they must be aligned to 64. */
size_t mpb_size(void);

/* Attach to a segment as a core. `storage` is `mpb_size()` bytes of private memory, which the
 * caller keeps until it detaches; memory and options are copied. Fails with FORMAT, TAKEN,
 * ARGUMENT, SYSTEM. */
int mpb_attach(struct mpb **mpb, void *storage, size_t storage_bytes,
               const struct mpb_memory *memory, uint32_t core, const struct mpb_options *options);

/* Detach from the segment. Pending requests become CANCELLED. */
void mpb_detach(struct mpb *mpb);

uint32_t mpb_core_of(const struct mpb *mpb);
uint32_t mpb_core_count_of(const struct mpb *mpb);
struct mpb_counters mpb_counters_of(const struct mpb *mpb);

/* Return how often a process attached as that core; 0: never. */
uint32_t mpb_incarnation_of(const struct mpb *mpb, uint32_t core);

/* Return whether a live process is attached as that core. Uses a system call or `is_alive`. */
bool mpb_lives(const struct mpb *mpb, uint32_t core);

/* --- requests -------------------------------------------------------------------------------- */

/* A pending send or receive. The caller keeps it and its bytes in place until it is complete. The
 * caller may only read the fields. */
struct mpb_request {
    int32_t status;       /* MPB_PENDING, 0 on success, or an error */
    uint32_t core;        /* the peer; after a receive from MPB_ANY, the sender */
    uint64_t size_bytes;  /* of the message; for a receive, valid once it has started */
    uint64_t moved_bytes; /* bytes transferred so far */
    /* private to mpb */
    uint64_t room_bytes, serial, end;
    uint8_t *bytes;
    struct mpb_request *next;
    uint32_t kind, wanted;
};

/* Start a send. Never waits. A message may have length 0. Fails with ARGUMENT for a core that does
 * not exist, for the caller's own core, or for more than INT64_MAX bytes; then nothing is posted.
 * If the core is known to be gone, the request completes at once. */
int mpb_isend(struct mpb *mpb, struct mpb_request *request, uint32_t core, const void *bytes,
              uint64_t size_bytes);

/* Start to receive a message of at most `room_bytes`, from one core or from MPB_ANY, which serves
 * the cores round-robin. Never waits. Fails with ARGUMENT; then nothing is posted. */
int mpb_irecv(struct mpb *mpb, struct mpb_request *request, uint32_t core, void *bytes,
              uint64_t room_bytes);

/* Make progress on all requests, as far as possible without waiting. Returns the number of pending
 * requests. */
int mpb_push(struct mpb *mpb);

/* Push, and return the status of a request. */
int mpb_test(struct mpb *mpb, struct mpb_request *request);

/* Push until a request completes, and return its status, or TIMEOUT if it is still pending. A
 * negative timeout means no limit; then the call waits as long as the peer is alive or may
 * still attach. */
int mpb_wait(struct mpb *mpb, struct mpb_request *request, int64_t timeout_us);

/* Push until one of several requests completes, and return its index. */
int mpb_wait_any(struct mpb *mpb, struct mpb_request *const *requests, uint32_t count,
                 int64_t timeout_us);

/* Cancel a pending request, as if it had never been posted: its status becomes CANCELLED. Fails
 * with TOO_LATE if the whole message is in the buffer; then the request stays pending. If a message
 * has started to arrive, the receiver refuses it, and the sender's request fails with REFUSED. */
int mpb_cancel(struct mpb *mpb, struct mpb_request *request);

/* Push, and return 1 if a message waits for which no receive is posted, from one core or from
 * MPB_ANY; then `from` is its sender and `size_bytes` its length. Otherwise return 0. */
int mpb_probe(struct mpb *mpb, uint32_t core, uint32_t *from, uint64_t *size_bytes);

/* --- calls that wait ------------------------------------------------------------------------- */

/* Send a message, and wait until it is received. Also fails with TIMEOUT, UNSURE, PEER, REFUSED. */
int mpb_send(struct mpb *mpb, uint32_t core, const void *bytes, uint64_t size_bytes,
             int64_t timeout_us);

/* Receive a message and return its length; `from`, which may be NULL, is set to the sender. Also
 * fails with TIMEOUT, PEER, SIZE. */
int64_t mpb_recv(struct mpb *mpb, uint32_t core, void *bytes, uint64_t room_bytes, uint32_t *from,
                 int64_t timeout_us);

/* Send to a core and receive from it at the same time; returns the received length. */
int64_t mpb_exchange(struct mpb *mpb, uint32_t core, const void *bytes, uint64_t size_bytes,
                     void *received, uint64_t room_bytes, int64_t timeout_us);

/* Wait until all these cores have reached the barrier. Bit n stands for core n, and the caller's
 * bit must be set; 0 means all cores. Fails with PEER if a core dies before it reaches the barrier,
 * and with TIMEOUT; the next call for the same cores then continues the same barrier. */
int mpb_barrier(struct mpb *mpb, uint64_t cores, int64_t timeout_us);

/* Take the test-and-set register of core `number` as a lock. Returns 0, or 1 if it was taken over
 * from a dead core, whose work may be incomplete. Fails with TIMEOUT, and with ARGUMENT if this
 * core holds it already. */
int mpb_lock(struct mpb *mpb, uint32_t number, int64_t timeout_us);
int mpb_unlock(struct mpb *mpb, uint32_t number);

/* --- the bell: for callers that also wait for other events ----------------------------------- */

/* Return the bell's value. It changes whenever there may be something to push. */
uint32_t mpb_bell(const struct mpb *mpb);

/* Sleep until the bell's value differs from `seen`, which the caller read before its last push.
 * Returns 0, or TIMEOUT. Makes no progress on requests. */
int mpb_sleep(const struct mpb *mpb, uint32_t seen, int64_t timeout_us);

/* Ring the bell of a core; the caller's own bell is allowed. */
void mpb_ring(const struct mpb *mpb, uint32_t core);

#ifdef __cplusplus
}
#endif

#endif
