/* mpb_pieces.c: transfers messages through the buffers, in pieces. */
#include "mpb_core.h"

/* --- requests -------------------------------------------------------------------------------- */

void mpb_append(struct mpb_queue *queue, struct mpb_request *request)
{
    struct mpb_request **place = &queue->first;
    if (queue->last && queue->last->serial < request->serial)
        place = &queue->last->next;
    while (*place && (*place)->serial < request->serial) /* a re-queued request keeps its place */
        place = &(*place)->next;
    request->next = *place;
    *place = request;
    if (!request->next)
        queue->last = request;
}

static void unlink_from(struct mpb_queue *queue, struct mpb_request *request)
{
    struct mpb_request *before = NULL;
    for (struct mpb_request *at = queue->first; at != request; at = at->next)
        before = at;
    if (before)
        before->next = request->next;
    else
        queue->first = request->next;
    if (queue->last == request)
        queue->last = before;
}

struct mpb_queue *mpb_queue_of(struct mpb *mpb, struct mpb_request *request)
{
    if (request->kind == MPB_SEND)
        return &mpb->peers[request->core].sends;
    return request->wanted == MPB_ANY ? &mpb->any : &mpb->peers[request->wanted].receives;
}

void mpb_finish(struct mpb *mpb, struct mpb_request *request, int32_t status)
{
    struct mpb_peer *peer = request->core == MPB_ANY ? NULL : &mpb->peers[request->core];
    if (peer && peer->giving == request)
        peer->giving = request->next;
    if (peer && peer->taking == request)
        peer->taking = NULL;
    else
        unlink_from(mpb_queue_of(mpb, request), request);
    request->status = status;
    mpb->pending_count--;
}

/* --- sending --------------------------------------------------------------------------------- */

/* Return a line of the buffer part that leads to another core. `line` counts up without limit. */
static uint8_t *line_at(const struct mpb *mpb, uint32_t from, uint32_t to, uint64_t line)
{
    uint64_t part = (uint64_t)(to < from ? to : to - 1) * mpb->part_lines;
    return mpb_buffer_at(mpb, from) + (part + line % mpb->part_lines) * PORT_LINE_BYTES;
}

/* Return the number of contiguous lines from here. */
static uint32_t lines_to_end(const struct mpb *mpb, uint64_t line)
{
    return mpb->part_lines - (uint32_t)(line % mpb->part_lines);
}

/* Reset the channel, for whichever incarnation answers next. Pending sends complete with `status`;
 * if it is REFUSED, sends that have not started stay pending. */
static void unpair(struct mpb *mpb, uint32_t core, int32_t status)
{
    struct mpb_peer *peer = &mpb->peers[core];
    while (peer->sends.first) {
        bool has_begun = peer->sends.first != peer->giving || peer->giving->moved_bytes;
        if (!has_begun && status == MPB_ERROR_REFUSED)
            break;
        mpb_finish(mpb, peer->sends.first, status);
    }
    peer->receiver = 0;
    peer->owes_abort = false;
    mpb_tell(mpb, &mpb_channel_at(mpb, mpb->core, core)->given, 0, 0);
    mpb_ring_for(mpb, core);
}

/* Read how many lines the receiver has taken, and which incarnation it is. */
static void hear_taken(struct mpb *mpb, uint32_t core)
{
    struct mpb_peer *peer = &mpb->peers[core];
    struct mpb_word word = mpb_hear(mpb, &mpb_channel_at(mpb, mpb->core, core)->taken);
    if (peer->receiver) {
        if (word.by != peer->receiver || (word.means && word.means != mpb->incarnation)) {
            unpair(mpb, core, MPB_ERROR_PEER);
        } else {
            uint8_t more = (uint8_t)(word.count - (uint8_t)peer->taken);
            if (more > peer->given - peer->taken) {
                peer->gone = peer->receiver; /* ignore this incarnation from now on */
                unpair(mpb, core, MPB_ERROR_CORRUPT);
                return;
            }
            peer->taken += more;
            while (peer->sends.first != peer->giving && peer->sends.first->end <= peer->taken) {
                mpb->counters.messages_sent++;
                mpb_finish(mpb, peer->sends.first, 0);
            }
            if (!word.means)
                unpair(mpb, core, MPB_ERROR_REFUSED);
        }
    }
    if (!peer->receiver && word.by && word.means == mpb->incarnation && word.by != peer->gone) {
        peer->receiver = word.by;
        peer->given = peer->taken = 0;
        peer->given_pieces = 0;
    }
}

/* Fill lines with a piece, and publish their number. */
static void give(struct mpb *mpb, uint32_t core, uint64_t size_bytes, const uint8_t *bytes,
                 uint32_t here_bytes, uint32_t kind)
{
    struct mpb_peer *peer = &mpb->peers[core];
    uint8_t *place = line_at(mpb, mpb->core, core, peer->given);
    struct mpb_piece piece = {size_bytes, peer->given_pieces++, (uint16_t)here_bytes,
                              (uint16_t)kind};
    port_write(&mpb->port, place, &piece, sizeof piece);
    if (here_bytes)
        port_write(&mpb->port, place + sizeof piece, bytes, here_bytes);
    port_flush(&mpb->port, place, sizeof piece + here_bytes);
    peer->given += (sizeof piece + here_bytes + PORT_LINE_BYTES - 1) / PORT_LINE_BYTES;
    /* The lines now belong to the receiver. Before this store it has seen none of them. */
    mpb_tell(mpb, &mpb_channel_at(mpb, mpb->core, core)->given, peer->receiver,
             (uint8_t)peer->given);
    mpb->counters.pieces_sent++;
}

/* Send pieces until the part is full. A piece takes at most half of the part, so that the receiver
 * can empty one half while this core fills the second one. */
static bool give_all(struct mpb *mpb, uint32_t core)
{
    struct mpb_peer *peer = &mpb->peers[core];
    const uint32_t half = mpb->part_lines > 1 ? mpb->part_lines / 2 : 1;
    const uint64_t before = peer->given;
    while (peer->receiver && (peer->giving || peer->owes_abort)) {
        uint32_t lines = mpb->part_lines - (uint32_t)(peer->given - peer->taken);
        if (lines == 0)
            break;
        if (peer->owes_abort) {
            peer->owes_abort = false;
            give(mpb, core, 0, NULL, 0, MPB_ABORT);
            continue;
        }
        struct mpb_request *request = peer->giving;
        if (lines > lines_to_end(mpb, peer->given))
            lines = lines_to_end(mpb, peer->given);
        if (lines > half)
            lines = half;
        uint64_t here_bytes = request->size_bytes - request->moved_bytes;
        if (here_bytes > lines * PORT_LINE_BYTES - sizeof(struct mpb_piece))
            here_bytes = lines * PORT_LINE_BYTES - sizeof(struct mpb_piece);
        const uint8_t *from = request->bytes + request->moved_bytes;
        uint32_t kind = request->moved_bytes ? 0 : MPB_FIRST;
        request->moved_bytes += here_bytes;
        if (request->moved_bytes == request->size_bytes)
            kind |= MPB_LAST;
        give(mpb, core, request->size_bytes, from, (uint32_t)here_bytes, kind);
        if (kind & MPB_LAST) {
            request->end = peer->given;
            peer->giving = request->next;
        }
    }
    return peer->given != before;
}

/* --- receiving ------------------------------------------------------------------------------- */

static void answer(struct mpb *mpb, uint32_t core, uint32_t means)
{
    struct mpb_peer *peer = &mpb->peers[core];
    peer->sender = means;
    mpb_tell(mpb, &mpb_channel_at(mpb, core, mpb->core)->taken, means, (uint8_t)peer->got);
}

void mpb_refuse(struct mpb *mpb, uint32_t core)
{
    answer(mpb, core, 0);
    mpb_ring_for(mpb, core);
}

/* Read how many lines the sender has given, and drop stale copies of them from this core's
 * cache. */
static void hear_given(struct mpb *mpb, uint32_t core)
{
    struct mpb_peer *peer = &mpb->peers[core];
    struct mpb_word word = mpb_hear(mpb, &mpb_channel_at(mpb, core, mpb->core)->given);
    if (word.by && !word.means && (word.by != peer->sender || peer->seen)) {
        if (peer->taking)
            mpb_finish(mpb, peer->taking, MPB_ERROR_PEER);
        peer->seen = peer->got = 0;
        peer->got_pieces = 0;
        answer(mpb, core, word.by);
        mpb_ring_for(mpb, core);
    } else if (peer->sender && word.by == peer->sender && word.means == mpb->incarnation) {
        uint8_t more = (uint8_t)(word.count - (uint8_t)peer->seen);
        if (more > mpb->part_lines - (peer->seen - peer->got)) {
            if (peer->taking)
                mpb_finish(mpb, peer->taking, MPB_ERROR_CORRUPT);
            mpb_refuse(mpb, core);
            return;
        }
        for (uint32_t lines; more; peer->seen += lines, more = (uint8_t)(more - lines)) {
            lines = lines_to_end(mpb, peer->seen);
            if (lines > more)
                lines = more;
            port_invalidate(&mpb->port, line_at(mpb, core, mpb->core, peer->seen),
                            (size_t)lines * PORT_LINE_BYTES);
        }
    }
}

/* Return the receive that matches a message: the one posted first, among receives from this core
 * and from any core. Receives that are too small fail, and the message stays. */
static struct mpb_request *match(struct mpb *mpb, uint32_t core, uint64_t size_bytes)
{
    for (;;) {
        struct mpb_request *request = mpb->peers[core].receives.first;
        if (!request || (mpb->any.first && mpb->any.first->serial < request->serial))
            request = mpb->any.first;
        if (!request)
            return NULL;
        request->size_bytes = size_bytes;
        if (request->wanted == MPB_ANY)
            mpb->turn = core + 1;
        if (request->room_bytes >= size_bytes) {
            unlink_from(mpb_queue_of(mpb, request), request);
            request->core = core;
            return request;
        }
        mpb_finish(mpb, request, MPB_ERROR_SIZE);
        request->core = core;
    }
}

/* Read the next piece's header; returns false if there is none. Its contents are not trusted. */
static bool next_piece(struct mpb *mpb, uint32_t core, struct mpb_piece *piece)
{
    struct mpb_peer *peer = &mpb->peers[core];
    if (!peer->sender || peer->got == peer->seen)
        return false;
    port_read(&mpb->port, piece, line_at(mpb, core, mpb->core, peer->got), sizeof *piece);
    uint64_t lines = (sizeof *piece + piece->here_bytes + PORT_LINE_BYTES - 1) / PORT_LINE_BYTES;
    bool is_sound = piece->number == peer->got_pieces && lines <= peer->seen - peer->got &&
                    lines <= lines_to_end(mpb, peer->got) && piece->size_bytes <= INT64_MAX &&
                    !(piece->kind & MPB_FIRST) == (peer->taking != NULL);
    if (is_sound && piece->kind != MPB_ABORT) {
        uint64_t left = piece->size_bytes - (peer->taking ? peer->taking->moved_bytes : 0);
        is_sound = piece->kind < MPB_ABORT && piece->here_bytes <= left &&
                   !(piece->kind & MPB_LAST) == (piece->here_bytes < left) &&
                   (!peer->taking || piece->size_bytes == peer->taking->size_bytes);
    }
    if (!is_sound) {
        if (peer->taking)
            mpb_finish(mpb, peer->taking, MPB_ERROR_CORRUPT);
        mpb_refuse(mpb, core);
    }
    return is_sound;
}

bool mpb_waiting(struct mpb *mpb, uint32_t core, uint64_t *size_bytes)
{
    struct mpb_piece piece;
    if (mpb->peers[core].taking || !next_piece(mpb, core, &piece))
        return false;
    *size_bytes = piece.size_bytes;
    return true;
}

static bool take_all(struct mpb *mpb, uint32_t core)
{
    struct mpb_peer *peer = &mpb->peers[core];
    struct mpb_piece piece;
    const uint64_t before = peer->got;
    while (next_piece(mpb, core, &piece)) {
        if (piece.kind & MPB_FIRST && !(peer->taking = match(mpb, core, piece.size_bytes)))
            break;
        struct mpb_request *request = peer->taking;
        if (piece.kind == MPB_ABORT) {
            peer->taking = NULL;
            request->core = request->wanted;
            request->size_bytes = request->moved_bytes = 0;
            mpb_append(mpb_queue_of(mpb, request), request);
        } else if (piece.here_bytes) {
            port_read(&mpb->port, request->bytes + request->moved_bytes,
                      line_at(mpb, core, mpb->core, peer->got) + sizeof piece, piece.here_bytes);
            request->moved_bytes += piece.here_bytes;
        }
        peer->got_pieces++;
        peer->got += (sizeof piece + piece.here_bytes + PORT_LINE_BYTES - 1) / PORT_LINE_BYTES;
        mpb->counters.pieces_received++;
        if (piece.kind & MPB_LAST) {
            mpb->counters.messages_received++;
            mpb_finish(mpb, request, 0);
        }
        /* The lines belong to the sender again; we have read all of them. */
        answer(mpb, core, peer->sender);
    }
    return peer->got != before;
}

/* --- both directions ------------------------------------------------------------------------- */

bool mpb_move(struct mpb *mpb, uint32_t core)
{
    struct mpb_peer *peer = &mpb->peers[core];
    const uint32_t before = mpb->pending_count;
    bool has_moved = false;
    if (peer->sends.first || peer->owes_abort) {
        hear_taken(mpb, core);
        has_moved = give_all(mpb, core);
    }
    hear_given(mpb, core);
    has_moved |= take_all(mpb, core);
    /* Ring once for everything: only a sleeping core needs it, and it waits for all stores. */
    if (has_moved)
        mpb_ring_for(mpb, core);
    return has_moved || mpb->pending_count != before;
}

void mpb_give_up(struct mpb *mpb, uint32_t core, uint32_t incarnation)
{
    struct mpb_peer *peer = &mpb->peers[core];
    mpb_move(mpb, core); /* receive the messages sent before the core died */
    peer->gone = incarnation;
    if (peer->receiver == incarnation || peer->sends.first)
        unpair(mpb, core, MPB_ERROR_PEER);
    if (peer->taking)
        mpb_finish(mpb, peer->taking, MPB_ERROR_PEER);
    while (peer->receives.first)
        mpb_finish(mpb, peer->receives.first, MPB_ERROR_PEER);
}
