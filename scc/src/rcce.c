/* rcce.c: the calls modelled on RCCE and iRCCE: requests, waiting, barriers, locks. */
#include "mpb_core.h"

/* --- requests -------------------------------------------------------------------------------- */

static bool is_other(const struct mpb *mpb, uint32_t core)
{
    return core < mpb->core_count && core != mpb->core;
}

static bool is_known_gone(const struct mpb *mpb, uint32_t core)
{
    uint32_t gone = mpb->peers[core].gone;
    return gone && gone == mpb_incarnation_of(mpb, core);
}

static void post(struct mpb *mpb, struct mpb_request *request)
{
    request->status = MPB_PENDING;
    request->serial = mpb->serial++;
    mpb->pending_count++;
    mpb_append(mpb_queue_of(mpb, request), request);
}

int mpb_isend(struct mpb *mpb, struct mpb_request *request, uint32_t core, const void *bytes,
              uint64_t size_bytes)
{
    if (!mpb || !request || !is_other(mpb, core) || (!bytes && size_bytes) ||
        size_bytes > INT64_MAX)
        return MPB_ERROR_ARGUMENT;
    struct mpb_peer *peer = &mpb->peers[core];
    *request = (struct mpb_request){
        .core = core, .size_bytes = size_bytes, .bytes = (uint8_t *)bytes, .kind = MPB_SEND};
    post(mpb, request);
    if (!peer->giving)
        peer->giving = request;
    if (is_known_gone(mpb, core))
        mpb_finish(mpb, request, MPB_ERROR_PEER);
    else
        mpb_move(mpb, core);
    return 0;
}

int mpb_irecv(struct mpb *mpb, struct mpb_request *request, uint32_t core, void *bytes,
              uint64_t room_bytes)
{
    if (!mpb || !request || (core != MPB_ANY && !is_other(mpb, core)) || (!bytes && room_bytes) ||
        room_bytes > INT64_MAX)
        return MPB_ERROR_ARGUMENT;
    *request = (struct mpb_request){.core = core,
                                    .room_bytes = room_bytes,
                                    .bytes = bytes,
                                    .kind = MPB_RECEIVE,
                                    .wanted = core};
    post(mpb, request);
    if (core == MPB_ANY) {
        mpb_push(mpb);
    } else {
        mpb_move(mpb, core);
        if (request->status == MPB_PENDING && is_known_gone(mpb, core))
            mpb_finish(mpb, request, MPB_ERROR_PEER);
    }
    return 0;
}

int mpb_cancel(struct mpb *mpb, struct mpb_request *request)
{
    if (!mpb || !request || request->status != MPB_PENDING)
        return MPB_ERROR_ARGUMENT;
    mpb_push(mpb);
    if (request->status != MPB_PENDING)
        return 0; /* it has just completed; its status says how */
    if (request->kind == MPB_SEND) {
        if (request->end)
            return MPB_ERROR_TOO_LATE;
        mpb->peers[request->core].owes_abort |= request->moved_bytes > 0;
        mpb_finish(mpb, request, MPB_ERROR_CANCELLED);
        mpb_move(mpb, request->core);
    } else {
        const bool has_begun =
            request->core != MPB_ANY && mpb->peers[request->core].taking == request;
        mpb_finish(mpb, request, MPB_ERROR_CANCELLED);
        if (has_begun)
            mpb_refuse(mpb, request->core);
    }
    return 0;
}

/* --- progress and waiting -------------------------------------------------------------------- */

/* Dead cores ring no bell, so check the cores that requests wait for. */
static void check(struct mpb *mpb)
{
    bool may_come = false; /* whether a message from any core can still arrive */
    mpb->counters.checks++;
    for (uint32_t core = 0; core < mpb->core_count; core++) {
        const struct mpb_peer *peer = &mpb->peers[core];
        uint32_t incarnation;
        if (core == mpb->core)
            continue;
        if (!peer->sends.first && !peer->receives.first && !peer->taking && !mpb->any.first)
            continue;
        if (mpb_is_gone(mpb, core, &incarnation))
            mpb_give_up(mpb, core, incarnation);
        else
            may_come = true;
    }
    while (!may_come && mpb->any.first)
        mpb_finish(mpb, mpb->any.first, MPB_ERROR_PEER);
    mpb->check_us = port_now_us() + (uint64_t)mpb->options.check_ms * 1000;
}

/* Make progress with all cores, or only with cores that have pending requests. */
static bool move(struct mpb *mpb, bool with_all)
{
    const uint32_t turn = mpb->turn;
    bool has_moved = false;
    for (uint32_t i = 0; i < mpb->core_count; i++) {
        const uint32_t core = (turn + i) % mpb->core_count;
        const struct mpb_peer *peer = &mpb->peers[core];
        if (core != mpb->core && (with_all || mpb->any.first || peer->sends.first ||
                                  peer->receives.first || peer->taking))
            has_moved |= mpb_move(mpb, core);
    }
    return has_moved;
}

int mpb_push(struct mpb *mpb)
{
    const uint32_t seen = mpb_bell(mpb);
    const bool has_rung = seen != mpb->pushed;
    mpb->pushed = seen;
    move(mpb, has_rung);
    if (mpb->pending_count && port_now_us() >= mpb->check_us)
        check(mpb);
    return (int)mpb->pending_count;
}

int mpb_test(struct mpb *mpb, struct mpb_request *request)
{
    if (!mpb || !request)
        return MPB_ERROR_ARGUMENT;
    if (request->status == MPB_PENDING)
        mpb_push(mpb);
    return request->status;
}

/* The state of one wait. */
struct patience {
    uint64_t end_us;   /* UINT64_MAX: never */
    uint64_t check_us; /* when to check next which cores are alive */
    uint32_t seen;     /* value of the bell before the last push */
    bool is_poll;      /* the timeout is zero */
};

static struct patience patience_for(const struct mpb *mpb, int64_t timeout_us)
{
    const uint64_t now_us = port_now_us();
    return (struct patience){
        .end_us = timeout_us < 0 ? UINT64_MAX : now_us + (uint64_t)timeout_us,
        .check_us = now_us + (uint64_t)mpb->options.check_ms * 1000,
        .is_poll = timeout_us == 0,
    };
}

static void look_and_push(struct mpb *mpb, struct patience *patience)
{
    patience->seen = mpb_bell(mpb);
    mpb_push(mpb);
}

/* Return whether to check which cores are alive: at intervals, and right before the timeout. */
static bool is_check_due(const struct mpb *mpb, struct patience *patience)
{
    const uint64_t now_us = port_now_us();
    if (now_us < patience->check_us && now_us < patience->end_us)
        return false;
    patience->check_us = now_us + (uint64_t)mpb->options.check_ms * 1000;
    return true;
}

/* Wait until something has moved, or until there may be something to push or to check. Returns
 * false on timeout. This loop is the only polling, and it is bounded: `spin_count` limits the
 * number of flags it reads. It polls the flags as well as the bell, because senders ring the bell
 * after all flags. */
static bool idle(struct mpb *mpb, const struct patience *patience)
{
    const uint32_t look_count = mpb->any.first ? mpb->core_count : 2;
    for (uint32_t i = 0; i < mpb->options.spin_count && !patience->is_poll; i += look_count) {
        mpb->counters.looks++;
        if ((mpb->pending_count && move(mpb, false)) || mpb_bell(mpb) != patience->seen)
            return true;
        port_pause();
    }
    uint64_t now_us = port_now_us();
    if (now_us >= patience->end_us)
        return false;
    uint64_t rest_us = (uint64_t)mpb->options.check_ms * 1000;
    if (patience->end_us - now_us < rest_us)
        rest_us = patience->end_us - now_us;
    mpb->counters.sleeps++;
    mpb_sleep(mpb, patience->seen, (int64_t)rest_us);
    return true;
}

int mpb_wait_any(struct mpb *mpb, struct mpb_request *const *requests, uint32_t count,
                 int64_t timeout_us)
{
    if (!mpb || !requests || !count)
        return MPB_ERROR_ARGUMENT;
    struct patience patience = patience_for(mpb, timeout_us);
    do {
        look_and_push(mpb, &patience);
        for (uint32_t i = 0; i < count; i++)
            if (requests[i]->status != MPB_PENDING)
                return (int)i;
    } while (idle(mpb, &patience));
    return MPB_ERROR_TIMEOUT;
}

int mpb_wait(struct mpb *mpb, struct mpb_request *request, int64_t timeout_us)
{
    if (!request)
        return MPB_ERROR_ARGUMENT;
    int result = mpb_wait_any(mpb, &request, 1, timeout_us);
    return result < 0 ? result : request->status;
}

int mpb_probe(struct mpb *mpb, uint32_t core, uint32_t *from, uint64_t *size_bytes)
{
    if (!mpb || !from || !size_bytes || (core != MPB_ANY && !is_other(mpb, core)))
        return MPB_ERROR_ARGUMENT;
    move(mpb, true);
    for (uint32_t i = 0; i < mpb->core_count; i++) {
        uint32_t other = (mpb->turn + i) % mpb->core_count;
        if (other != mpb->core && (core == MPB_ANY || core == other) &&
            mpb_waiting(mpb, other, size_bytes)) {
            *from = other;
            return 1;
        }
    }
    return 0;
}

/* --- calls that wait ------------------------------------------------------------------------- */

/* Wait for a request, and cancel it at the timeout. */
static int settle(struct mpb *mpb, struct mpb_request *request, int64_t timeout_us)
{
    int status = mpb_wait(mpb, request, timeout_us);
    if (status != MPB_ERROR_TIMEOUT || request->status != MPB_PENDING)
        return request->status;
    if (mpb_cancel(mpb, request) == MPB_ERROR_TOO_LATE) {
        mpb_finish(mpb, request, MPB_ERROR_UNSURE);
        return MPB_ERROR_UNSURE;
    }
    return request->status == MPB_ERROR_CANCELLED ? MPB_ERROR_TIMEOUT : request->status;
}

int mpb_send(struct mpb *mpb, uint32_t core, const void *bytes, uint64_t size_bytes,
             int64_t timeout_us)
{
    struct mpb_request request;
    int status = mpb_isend(mpb, &request, core, bytes, size_bytes);
    return status < 0 ? status : settle(mpb, &request, timeout_us);
}

int64_t mpb_recv(struct mpb *mpb, uint32_t core, void *bytes, uint64_t room_bytes, uint32_t *from,
                 int64_t timeout_us)
{
    struct mpb_request request;
    int status = mpb_irecv(mpb, &request, core, bytes, room_bytes);
    if (status == 0)
        status = settle(mpb, &request, timeout_us);
    else
        return status;
    if (from)
        *from = request.core;
    return status < 0 ? status : (int64_t)request.size_bytes;
}

int64_t mpb_exchange(struct mpb *mpb, uint32_t core, const void *bytes, uint64_t size_bytes,
                     void *received, uint64_t room_bytes, int64_t timeout_us)
{
    struct mpb_request in, out;
    int status = mpb_irecv(mpb, &in, core, received, room_bytes);
    if (status < 0)
        return status;
    status = mpb_isend(mpb, &out, core, bytes, size_bytes);
    if (status < 0) {
        mpb_cancel(mpb, &in);
        return status;
    }
    const uint64_t begun_us = port_now_us();
    status = settle(mpb, &out, timeout_us);
    if (timeout_us >= 0) {
        timeout_us -= (int64_t)(port_now_us() - begun_us);
        timeout_us = timeout_us < 0 ? 0 : timeout_us;
    }
    int came = settle(mpb, &in, status < 0 ? 0 : timeout_us);
    if (status < 0 || came < 0)
        return status < 0 ? status : came;
    return (int64_t)in.size_bytes;
}

/* --- barriers -------------------------------------------------------------------------------- */

/* Each core publishes to each other core how many barriers of the two it has reached. */
enum presence { NOT_YET, HERE, LOST };

static enum presence meet(struct mpb *mpb, uint32_t core, bool may_be_gone)
{
    struct mpb_peer *peer = &mpb->peers[core];
    struct mpb_word word = mpb_hear(mpb, &mpb_channel_at(mpb, core, mpb->core)->arrived);
    if (!word.by) /* no process has attached as that core yet */
        return NOT_YET;
    if (word.by != peer->comes) {
        if (peer->is_announced)
            return LOST;
        peer->comes = word.by;
        peer->arrivals = 0;
    }
    if (!peer->is_announced) {
        peer->is_announced = true;
        mpb_tell(mpb, &mpb_channel_at(mpb, mpb->core, core)->arrived, word.by, ++peer->arrivals);
        mpb_ring_for(mpb, core);
    }
    uint32_t incarnation;
    bool is_gone = may_be_gone && mpb_is_gone(mpb, core, &incarnation);
    if (is_gone) /* it may have reached the barrier before it died */
        word = mpb_hear(mpb, &mpb_channel_at(mpb, core, mpb->core)->arrived);
    /* If this core is late, the peer may already be at the next barrier. */
    uint8_t ahead = (uint8_t)(word.count - peer->arrivals);
    if (word.by == peer->comes && word.means == mpb->incarnation && ahead <= 1)
        return HERE;
    return is_gone ? LOST : NOT_YET;
}

static void leave_barrier(struct mpb *mpb, uint64_t cores)
{
    for (uint32_t core = 0; core < mpb->core_count; core++)
        if (cores >> core & 1)
            mpb->peers[core].is_announced = false;
}

int mpb_barrier(struct mpb *mpb, uint64_t cores, int64_t timeout_us)
{
    if (!mpb)
        return MPB_ERROR_ARGUMENT;
    const uint64_t all = UINT64_MAX >> (64 - mpb->core_count);
    cores = cores ? cores : all;
    if (cores & ~all || !(cores >> mpb->core & 1))
        return MPB_ERROR_ARGUMENT;
    struct patience patience = patience_for(mpb, timeout_us);
    uint64_t missing = cores & ~((uint64_t)1 << mpb->core);
    do {
        look_and_push(mpb, &patience);
        const bool may_be_gone = is_check_due(mpb, &patience);
        for (uint32_t core = 0; core < mpb->core_count; core++) {
            if (!(missing >> core & 1))
                continue;
            enum presence presence = meet(mpb, core, may_be_gone);
            if (presence == LOST) {
                leave_barrier(mpb, cores);
                return MPB_ERROR_PEER;
            }
            if (presence == HERE)
                missing &= ~((uint64_t)1 << core);
        }
        if (!missing) {
            leave_barrier(mpb, cores);
            return 0;
        }
    } while (idle(mpb, &patience));
    return MPB_ERROR_TIMEOUT;
}

/* --- locks ----------------------------------------------------------------------------------- */

/* A lock register holds 0, or the core and incarnation of its owner and a bit that says whether
 * another core waits for it. A waiting core stores the lock's number beside its own register and
 * sleeps on its own bell, so that it keeps making progress; the core that unlocks rings the bells
 * of these cores. */
#define LOCK_WAITED 0x80000000u
#define LOCK_CORE_SHIFT 25
#define LOCK_HELD (1u << 24)
#define LOCK_INCARNATION (LOCK_HELD - 1)

static bool is_dead_owner(const struct mpb *mpb, uint32_t held)
{
    uint32_t core = (held & ~LOCK_WAITED) >> LOCK_CORE_SHIFT;
    uint32_t incarnation;
    if (core >= mpb->core_count)
        return false;
    bool is_gone = mpb_is_gone(mpb, core, &incarnation);
    return is_gone || ((incarnation ^ held) & LOCK_INCARNATION) != 0;
}

/* Try once. Returns 0 or 1 as `mpb_lock` does, or TIMEOUT if another core has the lock. */
static int try_lock(struct mpb *mpb, uint32_t *place, uint32_t mine, bool may_be_dead)
{
    uint32_t held = port_register_swap(&mpb->port, place, 0, mine);
    if (held == 0)
        return 0;
    if (!may_be_dead || !is_dead_owner(mpb, held) ||
        port_register_swap(&mpb->port, place, held, mine | LOCK_WAITED) != held)
        return MPB_ERROR_TIMEOUT;
    mpb->counters.stolen++;
    return 1;
}

int mpb_lock(struct mpb *mpb, uint32_t number, int64_t timeout_us)
{
    if (!mpb || number >= mpb->core_count || mpb->locks >> number & 1)
        return MPB_ERROR_ARGUMENT;
    uint32_t *place = &mpb_registers_at(mpb, number)->test_and_set;
    uint32_t *wants = &mpb_registers_at(mpb, mpb->core)->wants;
    uint32_t mine = mpb->core << LOCK_CORE_SHIFT | LOCK_HELD |
                    (mpb->incarnation & LOCK_INCARNATION);
    struct patience patience = patience_for(mpb, timeout_us);
    int result;
    for (;;) {
        look_and_push(mpb, &patience);
        result = try_lock(mpb, place, mine, is_check_due(mpb, &patience));
        if (result >= 0)
            break;
        /* Store which lock we want before the bit that says that a core waits: a core that unlocks
         * and sees the bit also sees the number, and rings. */
        port_register_store(&mpb->port, wants, number + 1);
        mine |= LOCK_WAITED; /* other cores may wait as well; we cannot know */
        uint32_t held = port_register_load(place);
        if (!(held & LOCK_WAITED) &&
            (!held || port_register_swap(&mpb->port, place, held, held | LOCK_WAITED) != held))
            continue; /* the owner has just changed */
        if (!idle(mpb, &patience))
            break;
    }
    port_register_store(&mpb->port, wants, 0);
    if (result >= 0)
        mpb->locks |= (uint64_t)1 << number;
    return result;
}

int mpb_unlock(struct mpb *mpb, uint32_t number)
{
    if (!mpb || number >= mpb->core_count || !(mpb->locks >> number & 1))
        return MPB_ERROR_ARGUMENT;
    uint32_t *place = &mpb_registers_at(mpb, number)->test_and_set;
    uint32_t held = port_register_load(place);
    mpb->locks &= ~((uint64_t)1 << number);
    if (!(held & LOCK_WAITED)) {
        uint32_t before = port_register_swap(&mpb->port, place, held, 0);
        if (before == held)
            return 0;
        held = before;
    }
    port_register_store(&mpb->port, place, 0);
    for (uint32_t core = 0; core < mpb->core_count; core++)
        if (port_register_load(&mpb_registers_at(mpb, core)->wants) == number + 1)
            mpb_ring_for(mpb, core);
    return 0;
}
