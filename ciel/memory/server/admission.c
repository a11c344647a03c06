/* Accepts connections, and lets them in when they have sent a token that the owner announced. */
#include <sys/epoll.h>
#include <sys/socket.h>

#include "server.h"

enum {
    UNAUTHENTICATED_MAX = 64, /* connections that have not sent a token yet */
    HELLO_TIMEOUT_S = 5,
};

/* Whether a connection has not sent a valid token in time. */
int has_expired(const struct connection *connection)
{
    return connection->kind == UNAUTHENTICATED && connection->since_s < now_s() - HELLO_TIMEOUT_S;
}

void accept_connection(struct page_server *server, struct connection *listener)
{
    struct connection *oldest = NULL;
    int unauthenticated = 0;
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    for (struct connection *each = server->connections; each != NULL; each = each->next)
        if (each->kind == UNAUTHENTICATED && !each->is_closing) {
            unauthenticated++;
            if (oldest == NULL || each->since_s < oldest->since_s)
                oldest = each;
        }
    if (unauthenticated >= UNAUTHENTICATED_MAX)
        end_connection(server, oldest);
    if (add_connection(server, UNAUTHENTICATED, fd) == NULL)
        close(fd);
}

/* Compare the token of a connection. Session 0 makes it a peer, any other session a client. The
 * owner may announce the token later: the connection waits for it. */
void admit(struct page_server *server, struct connection *connection)
{
    struct buffer *in = &connection->in;
    struct token *found = NULL;

    if (held(in) < HELLO_BYTES)
        return;
    for (int n = 0; n < TOKENS_MAX; n++) {
        uint8_t differs = 0; /* compared in constant time */
        for (int at = 0; at < TOKEN_BYTES; at++)
            differs |= server->tokens[n].bytes[at] ^ in->bytes[in->start + (size_t)at];
        if (!differs && server->tokens[n].until_s > now_s())
            found = &server->tokens[n];
    }
    struct epoll_event event = {.events = found == NULL ? 0 : EPOLLIN, .data.ptr = connection};
    epoll_ctl(server->epoll, EPOLL_CTL_MOD, connection->fd, &event);
    if (found == NULL)
        return;
    memset(found, 0, sizeof *found);
    memcpy(&connection->session, in->bytes + in->start + TOKEN_BYTES, 8);
    in->start += HELLO_BYTES;
    connection->kind = connection->session == 0 ? PEER : CLIENT;
    server->figures.connections++;
}

int page_server_allow(struct page_server *server, const uint8_t token[TOKEN_BYTES], double for_s)
{
    double now = now_s();
    int is_kept = 0;

    pthread_mutex_lock(&server->mutex);
    for (int n = 0; n < TOKENS_MAX && !is_kept; n++)
        if (server->tokens[n].until_s <= now) {
            memcpy(server->tokens[n].bytes, token, TOKEN_BYTES);
            server->tokens[n].until_s = now + for_s;
            is_kept = 1;
        }
    for (struct connection *each = server->connections; each != NULL; each = each->next)
        if (each->kind == UNAUTHENTICATED && !each->is_closing)
            process_frames(server, each);
    send_queued(server);
    pthread_mutex_unlock(&server->mutex);
    if (!is_kept)
        errno = EAGAIN;
    return is_kept ? 0 : -1;
}
