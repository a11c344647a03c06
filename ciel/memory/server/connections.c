/* Receives and sends bytes of connections, and frees ended connections. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "server.h"

enum {
    READ_BYTES = 1 << 16,
    CLIENT_READ_BYTES = 1 << 14, /* a short write; a long one arrives without the buffer */
    LOCAL_SEND_BYTES = 2 << 20, /* room in the kernel for the longest reply, at a UNIX socket */
    HELD_MAX_BYTES = 64 << 20, /* of replies that a client does not take */
    KEPT_MAX_BYTES = 2 << 20,  /* of a buffer in which nothing waits */
};

/* Make room for so many bytes at the end. 0: no memory. */
static int make_room(struct buffer *buffer, size_t bytes)
{
    if (buffer->start == buffer->end)
        buffer->start = buffer->end = 0;
    if (buffer->capacity - buffer->end >= bytes)
        return 1;
    if (buffer->start > 0) {
        memmove(buffer->bytes, buffer->bytes + buffer->start, held(buffer));
        buffer->end -= buffer->start;
        buffer->start = 0;
    }
    if (buffer->capacity - buffer->end < bytes) {
        size_t capacity = buffer->capacity < READ_BYTES ? READ_BYTES : buffer->capacity;
        while (capacity - buffer->end < bytes)
            capacity *= 2;
        uint8_t *longer = realloc(buffer->bytes, capacity);
        if (longer == NULL)
            return 0;
        buffer->bytes = longer;
        buffer->capacity = capacity;
    }
    return 1;
}

static void watch(struct page_server *server, struct connection *connection, int waits_for_room)
{
    struct epoll_event event = {
        .events = EPOLLIN | (waits_for_room ? EPOLLOUT : 0), .data.ptr = connection};

    connection->waits_for_room = waits_for_room;
    epoll_ctl(server->epoll, EPOLL_CTL_MOD, connection->fd, &event);
}

/* Close a connection; it is freed at the end of the turn. */
void end_connection(struct page_server *server, struct connection *connection)
{
    if (connection->is_closing)
        return;
    connection->is_closing = 1;
    server->has_ended = 1;
    end_arrival(server, connection);
    epoll_ctl(server->epoll, EPOLL_CTL_DEL, connection->fd, NULL);
    shutdown(connection->fd, SHUT_RDWR);
    if (connection->peer >= 0 && server->peers[connection->peer] == connection) {
        server->peers[connection->peer] = NULL;
        server->unacknowledged[connection->peer] = 0;
        report_event(server, (struct event){.kind = EVENT_PEER_LOST,
                                            .peer = (uint32_t)connection->peer});
    }
}

void send_now(struct page_server *server, struct connection *connection)
{
    struct buffer *out = &connection->out;

    while (held(out) > 0 && !connection->is_closing) {
        ssize_t sent = send(connection->fd, out->bytes + out->start, held(out),
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            out->start += (size_t)sent;
        } else if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
            break;
        } else {
            end_connection(server, connection);
        }
    }
    if (held(out) == 0 && out->capacity > KEPT_MAX_BYTES) {
        free(out->bytes);
        *out = (struct buffer){0};
    }
    if (!connection->is_closing && (held(out) > 0) != connection->waits_for_room)
        watch(server, connection, held(out) > 0);
}

/* Send the bytes in buffers. The replies to all requests of one `recv` leave together. */
void send_queued(struct page_server *server)
{
    while (server->queued != NULL) {
        struct connection *connection = server->queued;
        server->queued = connection->next_queued;
        connection->is_queued = 0;
        if (!connection->waits_for_room)
            send_now(server, connection);
    }
}

/* Add room to the bytes to send; return it, or NULL if the connection has ended. */
static uint8_t *put_bytes(struct page_server *server, struct connection *connection, size_t bytes)
{
    struct buffer *out = &connection->out;

    if (connection->is_closing || held(out) > HELD_MAX_BYTES || !make_room(out, bytes)) {
        end_connection(server, connection);
        return NULL;
    }
    if (!connection->is_queued) {
        connection->is_queued = 1;
        connection->next_queued = server->queued;
        server->queued = connection;
    }
    out->end += bytes;
    return out->bytes + out->end - bytes;
}

/* Add a frame, and room for its payload, to the bytes to send; return the room, or NULL. */
uint8_t *put_frame(struct page_server *server, struct connection *connection,
                   const struct frame *frame)
{
    uint8_t *at = put_bytes(server, connection, sizeof *frame + frame->size_bytes);

    if (at == NULL)
        return NULL;
    memcpy(at, frame, sizeof *frame);
    return at + sizeof *frame;
}

/* Send parts from where they are, and copy only those bytes that the kernel does not take now. */
void send_parts(struct page_server *server, struct connection *connection,
                const struct iovec *parts, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    size_t bytes = 0, sent = 0;

    for (int n = 0; n < count; n++)
        bytes += parts[n].iov_len;
    if (held(&connection->out) == 0) {
        ssize_t taken = sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (taken < 0 && errno != EAGAIN && errno != EINTR) {
            end_connection(server, connection);
            return;
        }
        sent = taken < 0 ? 0 : (size_t)taken;
    }
    if (sent == bytes)
        return;
    uint8_t *at = put_bytes(server, connection, bytes - sent);
    for (int n = 0; n < count && at != NULL; n++) {
        size_t skipped = sent < parts[n].iov_len ? sent : parts[n].iov_len;
        memcpy(at, (const uint8_t *)parts[n].iov_base + skipped, parts[n].iov_len - skipped);
        at += parts[n].iov_len - skipped;
        sent -= skipped;
    }
}

void reply(struct page_server *server, struct connection *connection, const struct frame *frame,
           enum status status)
{
    struct frame answer = *frame;

    if (connection == NULL || connection->is_closing)
        return;
    server->figures.refused += status != STATUS_OK;
    answer.size_bytes = 0;
    answer.status = (uint16_t)status;
    put_frame(server, connection, &answer);
}

/* Let a reply leave at once, and by few calls. TCP adapts the size of its buffer by itself. */
static void tune(int fd)
{
    int domain = 0, one = 1, bytes = LOCAL_SEND_BYTES;
    socklen_t size = sizeof domain;

    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    else
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

struct connection *add_connection(struct page_server *server, enum kind kind, int fd)
{
    struct connection *connection = calloc(1, sizeof *connection);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};

    if (connection == NULL)
        return NULL;
    *connection = (struct connection){
        .kind = kind, .fd = fd, .peer = -1, .since_s = now_s(), .next = server->connections};
    if (epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(connection);
        return NULL;
    }
    if (server->connections != NULL)
        server->connections->previous = connection;
    server->connections = connection;
    if (kind != LISTENER)
        tune(fd);
    return connection;
}

void free_connection(struct page_server *server, struct connection *connection)
{
    if (connection->previous != NULL)
        connection->previous->next = connection->next;
    else
        server->connections = connection->next;
    if (connection->next != NULL)
        connection->next->previous = connection->previous;
    close(connection->fd);
    free(connection->in.bytes);
    free(connection->out.bytes);
    end_arrival(server, connection);
    free(connection->arrival);
    free(connection);
}

/* How many bytes to read at least: the rest of a frame whose header is there. */
static size_t wanted(const struct connection *connection)
{
    const struct buffer *in = &connection->in;
    struct frame frame;

    if (connection->kind == UNAUTHENTICATED)
        return HELLO_BYTES - held(in); /* of what follows, nothing is read before it is admitted */
    if (held(in) < sizeof frame)
        return connection->kind == CLIENT ? CLIENT_READ_BYTES : READ_BYTES;
    memcpy(&frame, in->bytes + in->start, sizeof frame);
    size_t rest = sizeof frame + frame.size_bytes - held(in);
    return rest > READ_BYTES ? rest : READ_BYTES;
}

void receive(struct page_server *server, struct connection *connection)
{
    struct buffer *in = &connection->in;
    size_t bytes = wanted(connection);
    ssize_t count = 0;

    if (connection->is_arriving) {
        receive_arrival(server, connection);
        send_queued(server);
        return;
    }
    if (make_room(in, bytes))
        count = recv(connection->fd, in->bytes + in->end, bytes, MSG_DONTWAIT);

    if (count > 0) {
        in->end += (size_t)count;
        process_frames(server, connection);
        send_queued(server);
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        end_connection(server, connection);
    }
}

/* End connections that have sent no token in time, and free all ended connections. */
void sweep(struct page_server *server)
{
    struct connection *next;

    server->has_ended = 0;
    for (struct connection *each = server->connections; each != NULL; each = next) {
        next = each->next;
        if (has_expired(each))
            end_connection(server, each);
        if (each->is_closing) {
            detach_writes(server, each);
            free_connection(server, each);
        }
    }
}
