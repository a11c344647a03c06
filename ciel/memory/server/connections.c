/* Receives and sends bytes of connections, and frees those that have ended. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "server.h"

enum {
    READ_BYTES = 1 << 16,
    HELD_MAX_BYTES = 64 << 20, /* of replies that a client does not take */
};

/* Make room for so many bytes at the end. 0: no memory. */
int make_room(struct buffer *buffer, size_t bytes)
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

void watch(struct page_server *server, struct connection *connection, int waits_for_room)
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
    epoll_ctl(server->epoll, EPOLL_CTL_DEL, connection->fd, NULL);
    shutdown(connection->fd, SHUT_RDWR);
    if (connection->peer >= 0 && server->peers[connection->peer] == connection) {
        server->peers[connection->peer] = NULL;
        server->unacknowledged[connection->peer] = 0;
        report_event(server, (struct event){.kind = EVENT_PEER_LOST, .peer = (uint32_t)connection->peer});
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
    if (!connection->is_closing && (held(out) > 0) != connection->waits_for_room)
        watch(server, connection, held(out) > 0);
}

/* Add a frame, and room for its payload, to the bytes to send; return the room, or NULL. */
uint8_t *put_frame(struct page_server *server, struct connection *connection,
                          const struct frame *frame)
{
    struct buffer *out = &connection->out;
    size_t bytes = sizeof *frame + frame->size_bytes;

    if (held(out) > HELD_MAX_BYTES || !make_room(out, bytes)) {
        end_connection(server, connection);
        return NULL;
    }
    memcpy(out->bytes + out->end, frame, sizeof *frame);
    out->end += bytes;
    return out->bytes + out->end - frame->size_bytes;
}

void reply(struct page_server *server, struct connection *connection,
                  const struct frame *frame, enum status status)
{
    struct frame answer = *frame;

    if (connection == NULL || connection->is_closing)
        return;
    server->figures.refused += status != STATUS_OK;
    answer.size_bytes = 0;
    answer.status = (uint16_t)status;
    if (put_frame(server, connection, &answer) != NULL)
        send_now(server, connection);
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
    if (kind != LISTENER) {
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
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
        return READ_BYTES;
    memcpy(&frame, in->bytes + in->start, sizeof frame);
    size_t rest = sizeof frame + frame.size_bytes - held(in);
    return rest > READ_BYTES ? rest : READ_BYTES;
}

void receive(struct page_server *server, struct connection *connection)
{
    struct buffer *in = &connection->in;
    size_t bytes = wanted(connection);
    ssize_t count = 0;

    if (make_room(in, bytes))
        count = recv(connection->fd, in->bytes + in->end, bytes, MSG_DONTWAIT);

    if (count > 0) {
        in->end += (size_t)count;
        process_frames(server, connection);
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        end_connection(server, connection);
    }
}

/* End connections that have sent no token in time, and free those that have ended. */
void sweep(struct page_server *server)
{
    struct connection *next;

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
