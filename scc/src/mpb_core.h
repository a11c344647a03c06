/* mpb_core.h: the layout of a segment, and the interfaces between the files of mpb. rcce.c uses
 * mpb_pieces.c, which uses mpb.c.
 *
 *     [ header ][ registers of each core ][ channels, from x to ][ 8 KiB of each core ]
 *
 * All numbers are in the machine's byte order, which the header records. A channel leads from one
 * core to another and has three flags, each on its own line:
 *
 *     given    written by the sender: number of lines filled in its part of the sender's buffer
 *     taken    written by the receiver: number of these lines consumed
 *     arrived  written by the sender: number of barriers of the two cores that it has reached
 *
 * A flag holds the incarnation of its writer (`by`), the incarnation that it addresses (`means`),
 * and a count. A core ignores a flag that does not address its own incarnation, or whose writer is
 * not the incarnation that it expects. The sender starts with {me, 0, 0}: it addresses no receiver
 * yet. The receiver answers {me, sender, 0}. Only then may the sender fill lines, and {me,
 * receiver, n} is their number. So a line that may still be read is never overwritten, whichever
 * core restarts. The receiver refuses the rest of a message with {me, 0, n}: it has consumed n
 * lines and will consume no more. When the sender sees that, it writes {me, 0, 0} and starts again.
 *
 * Lines hold pieces: a header of 16 bytes, and message bytes up to half of the part.
 */
#ifndef SCC_MPB_CORE_H
#define SCC_MPB_CORE_H

#include "mpb.h"
#include "port.h"

#define MPB_MAGIC 0x316765732062706dull /* "mpb seg1", read as a number */
#define MPB_BYTE_ORDER 0x01020304u

#define MPB_FIRST 1u /* kinds of pieces */
#define MPB_LAST 2u
#define MPB_ABORT 4u /* the message is cancelled: forget the pieces received so far */

enum { MPB_SEND = 1, MPB_RECEIVE }; /* kinds of requests */

struct mpb_header {
    uint64_t magic; /* written last; on one line with the rest, which never changes */
    uint32_t format_version;
    uint32_t byte_order;
    uint32_t core_count;
    uint32_t part_lines; /* of a buffer part; each other core has one part */
    uint64_t size_bytes; /* of the whole segment */
    uint32_t signature;  /* hash of the struct sizes */
    uint32_t checksum;   /* of the words before it */
    uint8_t zero[PORT_LINE_BYTES - 40];
};

struct mpb_registers {
    uint32_t bell; /* counts in steps of two; odd while a thread sleeps on it */
    uint8_t zero[PORT_LINE_BYTES - 4];
    uint32_t test_and_set; /* 0, or the owner of the lock: see rcce.c */
    uint32_t life;         /* incarnation << 1 | whether it is attached */
    uint32_t wants;        /* 1 + the number of the lock that this core waits for; 0: none */
    uint8_t zero_too[PORT_LINE_BYTES - 12];
};

struct mpb_flag {
    uint64_t word;
    uint8_t zero[PORT_LINE_BYTES - 8];
};

struct mpb_channel {
    struct mpb_flag given;
    struct mpb_flag taken;
    struct mpb_flag arrived;
};

struct mpb_piece {
    uint64_t size_bytes; /* of the whole message */
    uint32_t number;     /* sequence number of the piece in the channel */
    uint16_t here_bytes; /* message bytes in this piece */
    uint16_t kind;
};

_Static_assert(sizeof(struct mpb_header) == PORT_LINE_BYTES, "a line");
_Static_assert(sizeof(struct mpb_registers) == 2 * PORT_LINE_BYTES, "two lines");
_Static_assert(sizeof(struct mpb_channel) == 3 * PORT_LINE_BYTES, "three lines");
_Static_assert(sizeof(struct mpb_piece) == 16, "no padding");
_Static_assert(MPB_BUFFER_BYTES / PORT_LINE_BYTES / (MPB_CORE_MAX_COUNT - 1) >= 1, "room for all");
_Static_assert(MPB_BUFFER_BYTES / PORT_LINE_BYTES < 128, "counts of lines fit in a byte, twice");

/* The decoded value of a flag. */
struct mpb_word {
    uint32_t by;    /* incarnation of the writer, 28 bits; 0: never written */
    uint32_t means; /* incarnation of the addressee, 28 bits; 0: none */
    uint8_t count;  /* modulo 256 */
};

/* Requests in the order of posting. */
struct mpb_queue {
    struct mpb_request *first, *last;
};

/* This core's state of another core. */
struct mpb_peer {
    /* sending to it */
    struct mpb_queue sends;        /* posted sends, until the receiver has taken them */
    struct mpb_request *giving;    /* the first of them that is not completely given */
    uint64_t given, taken;         /* lines */
    uint32_t receiver;             /* the incarnation that answered our sends; 0: none */
    uint32_t gone;                 /* an incarnation known to be dead, detached or broken */
    uint32_t given_pieces;
    bool owes_abort;
    /* receiving from it */
    struct mpb_queue receives;     /* posted receives from this core that have not started */
    struct mpb_request *taking;    /* the receive that has started */
    uint64_t seen, got;            /* lines: given by the sender, taken by this core */
    uint32_t sender;               /* the incarnation that this core has answered; 0: none */
    uint32_t got_pieces;
    /* barriers with it */
    uint32_t comes;                /* the incarnation of that core */
    uint8_t arrivals;
    bool is_announced;
};

struct mpb {
    struct port port;
    struct mpb_memory memory;
    struct mpb_options options;
    uint8_t *base;
    uint32_t core, core_count, part_lines, incarnation;
    uint32_t turn;                 /* the core to serve first */
    uint32_t pushed;               /* the bell at the last push of all cores; odd: never */
    uint32_t pending_count;        /* of requests */
    uint64_t serial;               /* of the next request */
    uint64_t check_us;             /* when to check next which cores are alive */
    uint64_t locks;                /* held locks, one bit each */
    struct mpb_queue any;          /* receives from any core that have not started */
    struct mpb_counters counters;
    struct mpb_peer peers[MPB_CORE_MAX_COUNT];
};

static inline struct mpb_registers *mpb_registers_at(const struct mpb *mpb, uint32_t core)
{
    return (struct mpb_registers *)(mpb->base + sizeof(struct mpb_header)) + core;
}

static inline struct mpb_channel *mpb_channel_at(const struct mpb *mpb, uint32_t from, uint32_t to)
{
    return (struct mpb_channel *)mpb_registers_at(mpb, mpb->core_count) +
           (from * mpb->core_count + to);
}

static inline uint64_t mpb_offset_of_buffers(uint32_t core_count)
{
    return sizeof(struct mpb_header) + sizeof(struct mpb_registers) * core_count +
           sizeof(struct mpb_channel) * core_count * core_count;
}

static inline uint8_t *mpb_buffer_at(const struct mpb *mpb, uint32_t core)
{
    return mpb->base + mpb_offset_of_buffers(mpb->core_count) + (uint64_t)MPB_BUFFER_BYTES * core;
}

/* --- mpb.c ----------------------------------------------------------------------------------- */

/* Write a flag; a core that reads it sees everything that was flushed before. Read a flag. */
void mpb_tell(struct mpb *mpb, struct mpb_flag *flag, uint32_t means, uint8_t count);
struct mpb_word mpb_hear(struct mpb *mpb, const struct mpb_flag *flag);

/* Return whether the last process that attached as that core has died; false if none ever attached.
 * Sets `incarnation` to the incarnation of that process. */
bool mpb_is_gone(const struct mpb *mpb, uint32_t core, uint32_t *incarnation);

/* Ring a core's bell, and count it. */
void mpb_ring_for(struct mpb *mpb, uint32_t core);

/* --- mpb_pieces.c ---------------------------------------------------------------------------- */

/* Make progress with a core. Returns whether anything was transferred or completed. */
bool mpb_move(struct mpb *mpb, uint32_t core);

/* Return whether a message from that core waits without a matching receive. */
bool mpb_waiting(struct mpb *mpb, uint32_t core, uint64_t *size_bytes);

/* Complete all requests with a core that cannot continue without that incarnation. */
void mpb_give_up(struct mpb *mpb, uint32_t core, uint32_t incarnation);

/* Refuse the rest of the message that this core is receiving from a peer. */
void mpb_refuse(struct mpb *mpb, uint32_t core);

/* Complete a request and remove it from its queue. */
void mpb_finish(struct mpb *mpb, struct mpb_request *request, int32_t status);

/* Queues are ordered by serial number. A receive that has started is in no queue. */
void mpb_append(struct mpb_queue *queue, struct mpb_request *request);
struct mpb_queue *mpb_queue_of(struct mpb *mpb, struct mpb_request *request);

#endif
