/* Reads and writes a volume of remote memory: the client's side of page_server.h.
 *
 * A volume is opened with a socket to a companion, a process or thread that knows the owner: it
 * knows where extents are, and opens connections to servers. Each thread has its own session. */
#ifndef CIEL_PAGE_CLIENT_H
#define CIEL_PAGE_CLIENT_H

#include <stdint.h>

#include "codecs.h"
#include "page_server.h"

/* Questions to the companion: datagrams over a socket of the type SOCK_SEQPACKET. */
enum { ASK_PLACE = 1, ASK_CONNECTION = 2 };

struct question {
    uint32_t kind;
    uint32_t extent; /* of ASK_PLACE */
    uint32_t server; /* of ASK_CONNECTION */
    uint32_t unused;
    uint64_t session; /* of ASK_CONNECTION */
};

enum answer_status {
    ANSWER_OK = 0,      /* with a descriptor after ASK_CONNECTION */
    ANSWER_WAIT = 1,   /* not now, for the reason in `why`: ask again soon */
    ANSWER_FAILED = 2, /* never, for the reason in `why` */
};

enum { WHY_BYTES = 256 };

struct answer {
    uint32_t status;
    uint32_t epoch;
    uint32_t server;
    char why[WHY_BYTES]; /* ends with a zero byte */
};

struct page_volume;
struct page_session;

struct page_options {
    enum codec codec;     /* of all clients of the volume */
    uint32_t cache_pages; /* so many are kept, and writes of other clients not noticed; 0: none */
    double timeout_s;     /* after it, a call fails with EIO */
};

/* Open the volume of a number, which has so many extents. The socket belongs to the volume. NULL:
 * no memory. */
struct page_volume *page_volume_open(int companion, uint64_t number, uint32_t extents,
                                     struct page_options options);
void page_volume_close(struct page_volume *volume); /* after all its sessions */

struct page_session *page_session_open(struct page_volume *volume);
void page_session_close(struct page_session *session);

/* Read or write bytes from an address on. -1: `page_session_why` names the reason. A write of a
 * part of a page reads the page first, so another write to this page may be lost meanwhile. */
int page_session_read(struct page_session *session, void *bytes, uint64_t size, uint64_t address);
int page_session_write(struct page_session *session, const void *bytes, uint64_t size,
                       uint64_t address);

/* Let bytes be zeros, and free their pages. */
int page_session_trim(struct page_session *session, uint64_t size, uint64_t address);

const char *page_session_why(const struct page_session *session);

#endif
