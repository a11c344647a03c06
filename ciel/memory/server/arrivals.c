/* Receives long writes into spare pages, which then replace the pages of the extent.
 *
 * The kernel copies each page to its place, and the server checks it while the cache has it; no
 * other copy is needed. The pages are spare ones: the server has a few more than it offers, so a
 * client that stops in the middle of a write takes no memory from others. If none are left, the
 * write goes through the connection's buffer. */
#include <sys/socket.h>

#include "server.h"

enum { PIECE_BYTES = 128 << 10 }; /* received at a time */

/* Receive the rest of a write into spare pages, if there are enough. 0: there are not. */
int start_arrival(struct page_server *server, struct connection *connection,
                  const struct frame *frame)
{
    struct arrival *arrival = connection->arrival;

    if (server->arriving + frame->count > SPARE_PAGES)
        return 0;
    if (arrival == NULL)
        arrival = connection->arrival = malloc(sizeof *arrival);
    if (arrival == NULL)
        return 0;
    arrival->frame = *frame;
    arrival->received = 0;
    arrival->intact = 0;
    for (uint32_t n = 0; n < frame->count; n++)
        arrival->places[n] = take_page(server);
    server->arriving += frame->count;
    connection->is_arriving = 1;
    return 1;
}

/* Give the pages of an arrival back that no extent has taken. */
void end_arrival(struct page_server *server, struct connection *connection)
{
    struct arrival *arrival = connection->arrival;

    if (!connection->is_arriving)
        return;
    connection->is_arriving = 0;
    server->arriving -= arrival->frame.count;
    for (uint32_t n = arrival->frame.count; n-- > 0;)
        if (arrival->places[n] != 0)
            give_back(server, arrival->places[n], PAGE_BYTES);
}

/* List the places of the next bytes of the payload, up to a limit; return the number of parts. */
static int parts_of(struct page_server *server, struct arrival *arrival, struct iovec *parts,
                    size_t limit)
{
    size_t sums = 4 * (size_t)arrival->frame.count, at = arrival->received;
    int count = 0;

    if (at < sums) {
        parts[count++] = (struct iovec){(uint8_t *)arrival->checksums + at, sums - at};
        at = sums;
    }
    size_t end = arrival->frame.size_bytes - at < limit ? arrival->frame.size_bytes : at + limit;
    while (at < end) {
        size_t offset = (at - sums) % PAGE_BYTES, rest = PAGE_BYTES - offset;
        uint8_t *place = page_at(server, arrival->places[(at - sums) / PAGE_BYTES]) + offset;
        size_t size = rest < end - at ? rest : end - at;
        struct iovec *last = count > 0 ? &parts[count - 1] : NULL;
        if (last != NULL && (uint8_t *)last->iov_base + last->iov_len == place)
            last->iov_len += size;
        else
            parts[count++] = (struct iovec){place, size};
        at += size;
    }
    return count;
}

/* Check the complete pages, up to the first damaged one. */
static void check_arrived(struct page_server *server, struct arrival *arrival)
{
    size_t sums = 4 * (size_t)arrival->frame.count;

    while (arrival->intact < arrival->frame.count &&
           sums + (arrival->intact + 1ul) * PAGE_BYTES <= arrival->received) {
        const uint8_t *page = page_at(server, arrival->places[arrival->intact]);
        if (page_checksum(page, PAGE_BYTES) != arrival->checksums[arrival->intact])
            return;
        arrival->intact++;
    }
}

/* Take bytes of the payload that are in a buffer already. */
void copy_arrived(struct page_server *server, struct connection *connection, const uint8_t *from,
                  size_t bytes)
{
    struct iovec parts[2 + EXTENT_PAGES];
    struct arrival *arrival = connection->arrival;
    int count = parts_of(server, arrival, parts, bytes);

    for (int n = 0; n < count && bytes > 0; n++) {
        size_t size = parts[n].iov_len < bytes ? parts[n].iov_len : bytes;
        memcpy(parts[n].iov_base, from, size);
        arrival->received += size;
        from += size;
        bytes -= size;
    }
    check_arrived(server, arrival);
}

/* Receive the next bytes of a long write, and carry it out when it is complete. */
void receive_arrival(struct page_server *server, struct connection *connection)
{
    struct iovec parts[2 + EXTENT_PAGES];
    struct arrival *arrival = connection->arrival;
    struct msghdr message = {.msg_iov = parts};

    for (;;) {
        message.msg_iovlen = (size_t)parts_of(server, arrival, parts, PIECE_BYTES);
        ssize_t count = recvmsg(connection->fd, &message, MSG_DONTWAIT);
        if (count < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (count <= 0) {
            end_connection(server, connection);
            return;
        }
        arrival->received += (size_t)count;
        check_arrived(server, arrival);
        if (arrival->received == arrival->frame.size_bytes)
            break;
    }
    server->figures.requests++;
    write_arrived(server, connection, arrival);
    end_arrival(server, connection);
}
