/* The data path of a memory server: keeps pages of volumes, and replicates them (NET-1, NET-5).
 *
 * docs/protocol/memory.md describes the frames and the rules. A volume is divided into extents of
 * 256 pages. Of each extent, one server is the primary, which orders all writes; others are
 * backups. The owner of the volume, elsewhere, decides the role of each server, and gives each
 * decision a higher epoch. A server acts as primary only while its lease lasts.
 *
 * One thread serves all connections. Python calls the functions below from other threads. */
#ifndef CIEL_PAGE_SERVER_H
#define CIEL_PAGE_SERVER_H

#include <stdint.h>

enum {
    PAGE_BYTES = 4096,
    EXTENT_PAGES = 256,
    TOKEN_BYTES = 32,
    PEERS_MAX = 64,
    BACKUPS_MAX = 3,
};

enum op {
    OP_READ = 1,
    OP_WRITE = 2,
    OP_TRIM = 3,         /* the pages read as zeros afterwards */
    OP_FORWARD = 4,      /* a write, from the primary to a backup */
    OP_FORWARD_TRIM = 5, /* a trim, from the primary to a backup */
    OP_SYNC = 6,         /* pages for a backup; without a payload: zeros */
};

enum status {
    STATUS_OK = 0,
    STATUS_STALE = 1,    /* this server is not the primary in this epoch: ask the owner */
    STATUS_NO_SPACE = 2,
    STATUS_DAMAGED = 3,  /* a page does not have its checksum */
};

/* Precedes each request and each reply; numbers are little-endian. A reply repeats the fields of
 * its request, except for size and status. */
struct frame {
    uint32_t size_bytes; /* of what follows: for n pages, n checksums of 4 bytes, then the pages */
    uint8_t op;
    uint8_t is_packed; /* 1: after the checksums, n lengths of 2 bytes; then the packed pages */
    uint16_t status;
    uint64_t id;       /* of the request in its session: 1, 2, … */
    uint64_t session;  /* in forwards: of the client */
    uint64_t sequence; /* in forwards: the primary's own number */
    uint64_t volume;
    uint64_t page;
    uint32_t count; /* pages, all of one extent */
    uint32_t epoch;
};

enum role { ROLE_NONE = 0, ROLE_PRIMARY = 1, ROLE_BACKUP = 2, ROLE_JOINING = 3 };

/* The role of this server for an extent from now on. */
struct holding {
    uint64_t volume;
    uint32_t extent;
    uint32_t epoch;
    uint8_t role;
    uint8_t backup_count;         /* of a primary */
    uint8_t backups[BACKUPS_MAX]; /* numbers of peers */
    uint8_t joining;              /* bit n: backup n has no pages yet, so the primary sends them */
    uint8_t rejoining;            /* bit n: backup n has pages, which the primary makes equal to its
                                   * own before it answers reads */
    uint8_t unused;
};

enum event_kind {
    EVENT_PEER_LOST = 1, /* the connection to a peer has ended */
    EVENT_SYNCED = 2,    /* a joining backup has all pages */
};

struct event {
    uint64_t volume;
    uint32_t extent;
    uint32_t epoch;
    uint32_t kind;
    uint32_t peer;
};

struct figures {
    uint64_t pages_offered, pages_used, extents;
    uint64_t pages_read, pages_written, pages_forwarded, pages_synced;
    uint64_t requests, refused, connections;
};

struct page_server;

/* Reserve memory, and start the thread. `is_locked`: the memory is never swapped out. NULL: errno
 * says why not. */
struct page_server *page_server_open(int64_t offered_bytes, int is_locked);

/* End the thread, and free everything. */
void page_server_close(struct page_server *server);

/* Serve a listening socket, which the server then owns. */
int page_server_listen(struct page_server *server, int fd);

/* Accept one connection that begins with this token, within so many seconds. */
int page_server_allow(struct page_server *server, const uint8_t token[TOKEN_BYTES], double for_s);

/* Act as primary until this time of the monotonic clock. */
void page_server_lease(struct page_server *server, double until_s);

/* Use a connection to another server, at which the token was sent; the server then owns it. */
int page_server_connect(struct page_server *server, int peer, int fd);

/* Take over new roles. -1 with errno: no memory, or an invalid holding. */
int page_server_hold(struct page_server *server, const struct holding *holdings, int count);

/* Readable when there are events. */
int page_server_event_fd(struct page_server *server);
int page_server_events(struct page_server *server, struct event *events, int max);

/* Return the memory of at most `count` free pages to the system. 1: there are more; 0: there are
 * none; -1 with errno. */
int page_server_release(struct page_server *server, uint32_t count);

void page_server_figures(struct page_server *server, struct figures *figures);

/* CRC-32C. */
uint32_t page_checksum(const void *bytes, int64_t size_bytes);

#endif
