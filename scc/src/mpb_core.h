/* mpb_core.h: a segment as it lies in memory, and what the files of mpb show to one another:
 * rcce.c is above mpb_pieces.c, and that above mpb.c.
 *
 *     [ header ][ registers of each core ][ channels, from x to ][ 8 KiB of each core ]
 *
 * All numbers are in the byte order of the machine, which the header tells. A channel leads from
 * one core to another and has a flag line for each thing that is said about it:
 *
 *     given    by its sender: so many lines of its part of the sender's buffer were filled
 *     taken    by its receiver: so many of them were taken out
 *     arrived  by its sender: so many barriers of the two were come to
 *
 * A flag says who speaks and whom it means (incarnations), and how many. What does not mean me, or
 * is not by whom I mean, counts for nothing. The sender begins with {me, 0, 0}: it means nobody
 * yet. The receiver answers {me, sender, 0}; only then may lines be filled, and {me, receiver, n}
 * says how many. So nothing is overwritten that may still be read, whoever of the two restarted.
 * The receiver refuses to go on with {me, 0, n}: n were taken, no more will be. When the sender has
 * seen that it says {me, 0, 0}, and it begins anew.
 *
 * Lines hold pieces: a head of 16 bytes and up to half a part's worth of a message.
 */
#ifndef SCC_MPB_CORE_H
#define SCC_MPB_CORE_H

#include "mpb.h"
#include "port.h"

#define MPB_MAGIC 0x316765732062706dull /* "mpb seg1", read as a number */
#define MPB_BYTE_ORDER 0x01020304u

#define MPB_FIRST 1u /* kinds of pieces */
#define MPB_LAST 2u
#define MPB_ABORT 4u /* the message is called off: forget what came of it */

enum { MPB_SEND = 1, MPB_RECEIVE }; /* kinds of requests */

struct mpb_header {
    uint64_t magic; /* written last; in one line with the rest, which is never written again */
    uint32_t format_version;
    uint32_t byte_order;
    uint32_t core_count;
    uint32_t part_lines; /* of a buffer, for each other core */
    uint64_t size_bytes; /* of all of it */
    uint32_t signature;  /* of the structs here */
    uint32_t checksum;   /* of the words before */
    uint8_t zero[PORT_LINE_BYTES - 40];
};

struct mpb_registers {
    uint32_t bell; /* counts by twos; odd while somebody sleeps on it */
    uint8_t zero[PORT_LINE_BYTES - 4];
    uint32_t test_and_set; /* 0, or who has the lock: see rcce.c */
    uint32_t life;         /* incarnation << 1 | whether it is attached */
    uint32_t wants;        /* the number of the lock that this core waits for, and 1 */
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
    uint32_t number;     /* of the piece, within the channel */
    uint16_t here_bytes; /* that follow */
    uint16_t kind;
};

_Static_assert(sizeof(struct mpb_header) == PORT_LINE_BYTES, "a line");
_Static_assert(sizeof(struct mpb_registers) == 2 * PORT_LINE_BYTES, "two lines");
_Static_assert(sizeof(struct mpb_channel) == 3 * PORT_LINE_BYTES, "three lines");
_Static_assert(sizeof(struct mpb_piece) == 16, "no padding");
_Static_assert(MPB_BUFFER_BYTES / PORT_LINE_BYTES / (MPB_CORE_MAX_COUNT - 1) >= 1, "room for all");
_Static_assert(MPB_BUFFER_BYTES / PORT_LINE_BYTES < 128, "counts of lines fit in a byte, twice");

/* What a flag says. */
struct mpb_word {
    uint32_t by;    /* 28 bits; 0: nobody has said anything yet */
    uint32_t means; /* 28 bits; 0: nobody */
    uint8_t count;  /* runs freely */
};

/* Requests in the order in which they were posted. */
struct mpb_queue {
    struct mpb_request *first, *last;
};

/* What this core knows of another one. */
struct mpb_peer {
    /* sending there */
    struct mpb_queue sends;        /* until all of them was taken */
    struct mpb_request *giving;    /* the first of them that is not wholly given */
    uint64_t given, taken;         /* lines */
    uint32_t receiver;             /* the incarnation that sends go to; 0: none has answered */
    uint32_t gone;                 /* the incarnation that is known to be gone */
    uint32_t given_pieces;
    bool owes_abort;
    /* receiving from there */
    struct mpb_queue receives;     /* that ask for this core and have not begun */
    struct mpb_request *taking;    /* the one that has begun */
    uint64_t seen, got;            /* lines: given by the other one, taken out */
    uint32_t sender;               /* the incarnation that was answered; 0: none */
    uint32_t got_pieces;
    /* barriers with it */
    uint32_t comes;                /* the incarnation of the other one */
    uint8_t arrivals;
    bool is_announced;
};

struct mpb {
    struct port port;
    struct mpb_memory memory;
    struct mpb_options options;
    uint8_t *base;
    uint32_t core, core_count, part_lines, incarnation;
    uint32_t turn;                 /* whom to serve first */
    uint32_t pushed;               /* the bell, when all cores were looked after last; odd: never */
    uint32_t pending_count;        /* of requests */
    uint64_t serial;               /* of the next request */
    uint64_t check_us;             /* when to look next who lives */
    uint64_t locks;                /* held */
    struct mpb_queue any;          /* receives from any core that have not begun */
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

/* Say something; seen by whoever hears it, with all that was flushed before. */
void mpb_tell(struct mpb *mpb, struct mpb_flag *flag, uint32_t means, uint8_t count);
struct mpb_word mpb_hear(struct mpb *mpb, const struct mpb_flag *flag);

/* Whether whoever was attached as that core last does not live any more; false while nobody was.
 * `incarnation` is whom the answer is about. */
bool mpb_is_gone(const struct mpb *mpb, uint32_t core, uint32_t *incarnation);

/* Ring a bell, and count it. */
void mpb_ring_for(struct mpb *mpb, uint32_t core);

/* --- mpb_pieces.c ---------------------------------------------------------------------------- */

/* Move on what is under way with a core, as far as it goes; whether anything moved or ended. */
bool mpb_move(struct mpb *mpb, uint32_t core);

/* Whether a message waits from a core that no receive is there for. */
bool mpb_waiting(struct mpb *mpb, uint32_t core, uint64_t *size_bytes);

/* End all that is under way with a core and cannot go on without that incarnation. */
void mpb_give_up(struct mpb *mpb, uint32_t core, uint32_t incarnation);

/* Take nothing more of what the other core is sending. */
void mpb_refuse(struct mpb *mpb, uint32_t core);

/* End a request, wherever it waits. */
void mpb_finish(struct mpb *mpb, struct mpb_request *request, int32_t status);

/* A queue is in the order of serials; one that has begun is in none. */
void mpb_append(struct mpb_queue *queue, struct mpb_request *request);
struct mpb_queue *mpb_queue_of(struct mpb *mpb, struct mpb_request *request);

#endif
