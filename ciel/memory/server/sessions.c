/* The last completed request of each session: a write takes effect once (KVB-3). */
#include "server.h"

/* Return a session, which is made if it is new; NULL: no memory. */
struct session *session_of(struct page_server *server, uint64_t number)
{
    uint64_t hash = number * 0x9e3779b97f4a7c15u >> 52 & (SESSION_BUCKETS - 1);
    struct session *session = server->sessions[hash];

    while (session != NULL && session->number != number)
        session = session->next;
    if (session != NULL)
        return session;
    if (server->session_count == SESSIONS_MAX) { /* forget the oldest of this bucket */
        struct session **link = &server->sessions[hash];
        while (*link != NULL && (*link)->next != NULL)
            link = &(*link)->next;
        free(*link);
        server->session_count -= *link != NULL;
        *link = NULL;
    }
    session = calloc(1, sizeof *session);
    if (session != NULL) {
        session->number = number;
        session->next = server->sessions[hash];
        server->sessions[hash] = session;
        server->session_count++;
    }
    return session;
}

void note_completed(struct page_server *server, const struct extent *extent,
                    const struct frame *frame)
{
    struct session *session = session_of(server, frame->session);

    if (session != NULL && session->last_id <= frame->id) {
        session->last_id = frame->id;
        session->copy = extent->copy;
    }
}

/* Whether a write is in the pages of an extent. A backup may have taken over a write that never
 * took effect, and then forgotten it with the pages. */
int is_completed(const struct session *session, const struct extent *extent, uint64_t id)
{
    return id < session->last_id || (id == session->last_id && session->copy == extent->copy);
}
