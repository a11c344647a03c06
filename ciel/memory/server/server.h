/* The parts of a memory server: their structures, and the functions that they use of each other.
 *
 * page_server.c runs the thread. connections.c moves bytes; admission.c lets connections in by
 * their tokens; requests.c carries out frames; arrivals.c receives long writes; writes.c holds
 * writes until their backups have acknowledged them; sync.c sends pages to backups that lack them;
 * waiting.c holds requests until backups are equal; roles.c takes over roles; pages.c owns the
 * memory, and sessions.c the last request of each session. All functions need the server's mutex,
 * unless their names begin with page_.
 *
 * The expected CPU time of a page at a UNIX socket (docs/measured/remote-memory.md compares):
 * - A read of one page, at the server: epoll_wait 0.4 us, recv 0.4 us, the look-up with the lock
 *   and the clock 0.2 us, sendmsg with a copy into the kernel 1 us, waking the client 1 us; and
 *   1.5 us for the switch to sleep and back if no request waits. Together 3 to 4.5 us.
 * - The same at the client: sendmsg 0.5 us, waking the server 1 us, recvmsg with a copy 0.8 us, the
 *   switch to sleep and back 1.5 us, the checksum 0.2 us. Together 4 us.
 * - A page of a long read: a copy by the server, a copy and the checksum by the client, which are
 *   0.4 us and 0.6 us. Of a long write: a copy and the checksum at each end.
 * So one request must take no more than one system call to send and one to receive at each end, and
 * no byte may be copied within a process when the kernel can copy it to its place. */
#ifndef CIEL_MEMORY_SERVER_H
#define CIEL_MEMORY_SERVER_H

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "../page_server.h"

#pragma GCC visibility push(hidden)

enum {
    HELLO_BYTES = TOKEN_BYTES + 8, /* the token, then the number of the session */
    EXTENT_BUCKETS = 1 << 14,
    SESSION_BUCKETS = 1 << 12,
    SESSIONS_MAX = 1 << 16,
    TOKENS_MAX = 256,
    EVENTS_MAX = 1 << 16,
    SPARE_PAGES = 4 * EXTENT_PAGES, /* for arrivals, in addition to the offered pages */
    QUARTERS = 4,                   /* of a page: packed pages take fewer */
    QUARTER_BYTES = PAGE_BYTES / QUARTERS,
};

struct buffer {
    uint8_t *bytes;
    size_t start, end, capacity;
};

/* A long write whose pages arrive in spare pages. */
struct arrival {
    struct frame frame;
    size_t received;  /* bytes of the payload */
    uint32_t intact;  /* pages that are complete and have their checksums, in a row */
    uint32_t checksums[EXTENT_PAGES];
    uint32_t places[EXTENT_PAGES]; /* 0: an extent has taken the page */
};

enum kind { LISTENER, UNAUTHENTICATED, CLIENT, PEER };

struct connection {
    struct connection *next, *previous;
    struct connection *next_queued;
    enum kind kind;
    int fd;
    int peer;              /* its number, if this server has connected to it; else -1 */
    int is_closing;        /* `sweep` frees it */
    int waits_for_room;    /* to send */
    int is_queued;         /* has bytes to send, which leave with the next `send_queued` */
    int references;        /* of pending writes */
    double since_s;
    uint64_t session;
    struct buffer in, out;
    int is_arriving;
    struct arrival *arrival; /* while `is_arriving`; NULL before the first one */
};

/* A write that its backups have not all acknowledged. */
struct pending {
    struct pending *next;
    struct connection *from; /* gets the reply; NULL: it has ended */
    struct frame frame;
    uint64_t waits;          /* bit n: for peer n */
    uint8_t *payload;        /* NULL: a trim */
};

/* A request that waits until the backups of an extent are equal to their primary. */
struct waiting {
    struct waiting *next;
    struct connection *from; /* NULL: it has ended */
    struct frame frame;
};

struct extent {
    struct extent *next; /* in its bucket */
    uint64_t volume;
    uint32_t number;
    uint32_t epoch;
    uint64_t copy;           /* another number when completed writes may have been undone */
    uint32_t equal_from;     /* the epoch in which it began to get the pages */
    uint64_t unequal;        /* bit n: peer n is a backup that is not equal to this primary yet */
    uint8_t role;
    uint8_t backup_count;
    uint8_t backups[BACKUPS_MAX];
    uint8_t joining;         /* bit n: backup n is joining, and is not synchronised yet */
    struct pending *first, **last;
    struct waiting *first_waiting, **last_waiting;
    uint32_t places[EXTENT_PAGES]; /* in memory: the number of a quarter, from 1; 0: zeros */
    uint32_t checksums[EXTENT_PAGES];
    uint16_t lengths[EXTENT_PAGES];
};

/* The pages of one extent on the way to a joining backup. */
struct sync {
    struct sync *next;
    uint64_t volume;
    uint32_t extent, epoch;
    int peer;
    uint64_t after;  /* starts when earlier writes, up to this sequence, are complete */
    int page;        /* the next one */
    int sends_zeros; /* the backup may have other pages there */
    int unacknowledged;
};

struct session {
    struct session *next;
    uint64_t number;
    uint64_t last_id; /* of its last completed write */
    uint64_t copy;    /* of the extent that has this write */
};

/* A slot whose quarters are given out one by one. */
struct split {
    uint32_t next, previous; /* numbers from 1, in the list of its longest free part */
    uint8_t used;            /* bit n: quarter n */
};

/* A page of a payload. */
struct page {
    uint32_t checksum;
    uint32_t length; /* 0: zeros; PAGE_BYTES: not packed */
    const uint8_t *content;
};

struct token {
    uint8_t bytes[TOKEN_BYTES];
    double until_s; /* 0: free */
};

struct page_server {
    pthread_mutex_t mutex;
    pthread_t thread;
    int epoll, wake, has_events;
    int is_closing;

    uint8_t *pages;
    uint32_t *free_slots;
    uint32_t slot_count, free_count; /* of whole pages: without, and with the spare ones */
    uint32_t page_count;             /* pages of extents that have a place */
    struct split *splits;            /* for each slot */
    uint32_t parts[QUARTERS];        /* slots in parts, by their longest free part: numbers from 1 */
    uint32_t arriving;               /* pages of arrivals, at most SPARE_PAGES */
    uint32_t released;               /* so many of the free slots, from the first, have no memory */
    int is_locked;
    uint32_t zeros_checksum;

    struct extent *extents[EXTENT_BUCKETS];
    struct session *sessions[SESSION_BUCKETS];
    int session_count;
    struct token tokens[TOKENS_MAX];
    struct connection *connections, *queued;
    int has_ended;         /* a connection, which `sweep` frees */
    struct connection *peers[PEERS_MAX];
    int unacknowledged[PEERS_MAX]; /* frames of syncs */
    struct sync *syncs;
    uint64_t sequence, copies;
    double lease_until_s;

    struct event *events; /* a ring */
    uint32_t first_event, event_count;
    struct figures figures;
};

static inline double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline size_t held(const struct buffer *buffer) { return buffer->end - buffer->start; }

/* page_server.c */
void page_server_wake(struct page_server *server);
void report_event(struct page_server *server, struct event event);

/* pages.c */
struct extent *find_extent(struct page_server *server, uint64_t volume, uint32_t number);
struct extent *add_extent(struct page_server *server, const struct holding *holding);
void free_extent(struct page_server *server, struct extent *extent); /* refuses its writes */
uint8_t *page_at(struct page_server *server, uint32_t place);
uint32_t take_page(struct page_server *server); /* requires a free one; returns its place */
void give_back(struct page_server *server, uint32_t place, uint32_t length);
uint32_t room_of(const struct page_server *server); /* pages */
int has_room(const struct page_server *server, const struct extent *extent,
             const struct frame *frame);
void change_pages(struct page_server *server, struct extent *extent, const struct frame *frame,
                  const uint8_t *payload);
void place_pages(struct page_server *server, struct extent *extent, struct arrival *arrival);
struct page page_of(const struct frame *frame, const uint8_t *payload, uint32_t n,
                    struct page before);
int is_intact(const struct frame *frame, const uint8_t *payload);

static inline struct extent *extent_of(struct page_server *server, const struct frame *frame)
{
    return find_extent(server, frame->volume, (uint32_t)(frame->page / EXTENT_PAGES));
}

/* sessions.c */
struct session *session_of(struct page_server *server, uint64_t number);
void note_completed(struct page_server *server, const struct extent *extent,
                    const struct frame *frame);
int is_completed(const struct session *session, const struct extent *extent, uint64_t id);

/* connections.c */
struct connection *add_connection(struct page_server *server, enum kind kind, int fd);
void end_connection(struct page_server *server, struct connection *connection);
void free_connection(struct page_server *server, struct connection *connection);
void sweep(struct page_server *server);
void receive(struct page_server *server, struct connection *connection);
void send_now(struct page_server *server, struct connection *connection);
void send_queued(struct page_server *server);
void send_parts(struct page_server *server, struct connection *connection,
                const struct iovec *parts, int count);
uint8_t *put_frame(struct page_server *server, struct connection *connection,
                   const struct frame *frame);
void reply(struct page_server *server, struct connection *connection, const struct frame *frame,
           enum status status);

/* admission.c */
void accept_connection(struct page_server *server, struct connection *listener);
void admit(struct page_server *server, struct connection *connection);
int has_expired(const struct connection *connection);

/* requests.c */
void process_frames(struct page_server *server, struct connection *connection);
void read_pages(struct page_server *server, struct connection *from, const struct frame *frame);

/* arrivals.c */
int start_arrival(struct page_server *server, struct connection *connection,
                  const struct frame *frame);
void copy_arrived(struct page_server *server, struct connection *connection, const uint8_t *from,
                  size_t bytes);
void receive_arrival(struct page_server *server, struct connection *connection);
void end_arrival(struct page_server *server, struct connection *connection);

/* writes.c */
int is_primary(const struct page_server *server, const struct extent *extent, uint32_t epoch);
void write_pages(struct page_server *server, struct connection *from, struct frame *frame,
                 const uint8_t *payload);
void write_arrived(struct page_server *server, struct connection *from, struct arrival *arrival);
void complete_writes(struct page_server *server, struct extent *extent);
void refuse_pending(struct page_server *server, struct extent *extent);
void detach_writes(struct page_server *server, struct connection *connection);
void note_acknowledged(struct page_server *server, struct connection *from,
                       const struct frame *frame);

/* waiting.c */
void wait_until_equal(struct page_server *server, struct extent *extent, struct connection *from,
                      const struct frame *frame);
void answer_waiting(struct page_server *server, struct extent *extent);
void refuse_waiting(struct page_server *server, struct extent *extent);

/* sync.c */
int start_sync(struct page_server *server, const struct extent *extent, int peer);
void hurry_sync(struct page_server *server, const struct extent *extent);
void sync_all(struct page_server *server);
void note_synced(struct page_server *server, const struct connection *from,
                 const struct frame *frame);

#pragma GCC visibility pop

#endif
