/* ring.c: two ring buffers in shared memory, and bells that wake sleeping sides (ring.h). */
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "port.h"

#define RING_MAGIC UINT64_C(0x31676e6972636373) /* "sccring1" */
#define RING_DATA_OFFSET 4096
#define RING_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define RING_LOOKS_MIN 16u   /* fewer polls are not worthwhile */
#define LOOKS_PER_GLANCE 256u /* 6 us, several times the cost of polling the loop's poller */

/* --- layout in memory ------------------------------------------------------------------------ */

struct ring_header {
    uint64_t magic;
    uint64_t version;
    uint64_t capacity_bytes;
    uint8_t padding[PORT_LINE_BYTES - 24];
};

struct ring_words {
    uint64_t tail;   /* its writer's line */
    uint32_t wants;
    uint8_t padding_writer[PORT_LINE_BYTES - 12];
    uint64_t head;   /* its reader's line */
    uint32_t sleeps;
    uint8_t padding_reader[PORT_LINE_BYTES - 12];
};

struct ring_segment {
    struct ring_header header;
    struct ring_words words[2];
};

_Static_assert(sizeof(struct ring_header) == 128, "the header is one line");
_Static_assert(offsetof(struct ring_segment, words) == 128, "words begin behind the header");
_Static_assert(offsetof(struct ring_words, wants) == 8, "the writer's line");
_Static_assert(offsetof(struct ring_words, head) == 128, "the reader has a line to itself");
_Static_assert(offsetof(struct ring_words, sleeps) == 136, "the reader's line");
_Static_assert(sizeof(struct ring_words) == 256, "two lines");
_Static_assert(sizeof(struct ring_segment) <= RING_DATA_OFFSET, "bytes begin on a page");

/* One direction, as one side sees it. `ours` is the counter that this side writes; `theirs` is the
 * last checked value of the peer's counter. A checked value is never read again from shared
 * memory. */
struct ring_end {
    struct ring_words *words;
    uint8_t *bytes;
    uint64_t ours;
    uint64_t theirs;
    uint32_t dozes;  /* sequence number of our sleep; odd: asleep */
    uint32_t rung;   /* the last sleep of the peer that we rang for */
};

struct ring {
    struct port port;
    struct ring_end out;
    struct ring_end in;
    uint64_t capacity_bytes;
    struct ring_segment *segment;
    size_t segment_bytes;
    int bell_fd;
    int wait_fd;
    bool bell_is_pipe;
    bool wait_is_pipe;
};

const char *ring_error_text(int error)
{
    switch (error) {
    case RING_ERROR_ARGUMENT:
        return "invalid argument";
    case RING_ERROR_SYSTEM:
        return "a system call failed";
    case RING_ERROR_FORMAT:
        return "not a segment of rings, or a different version";
    case RING_ERROR_CORRUPT:
        return "the peer has written invalid values to the shared memory";
    case RING_ERROR_SIGNAL:
        return "interrupted by a signal";
    default:
        return error < 0 ? "an unknown error" : "no error";
    }
}

/* --- life ------------------------------------------------------------------------------------ */

static bool is_capacity(uint64_t bytes)
{
    return bytes >= RING_CAPACITY_MIN_BYTES && bytes <= RING_CAPACITY_MAX_BYTES &&
           (bytes & (bytes - 1)) == 0;
}

static uint64_t segment_bytes(uint64_t capacity_bytes)
{
    return RING_DATA_OFFSET + 2 * capacity_bytes;
}

size_t ring_size(void)
{
    return sizeof(struct ring);
}

int ring_make(uint64_t capacity_bytes)
{
    if (!is_capacity(capacity_bytes))
        return RING_ERROR_ARGUMENT;
    struct ring_header header = {RING_MAGIC, RING_VERSION, capacity_bytes, {0}};
    int fd = memfd_create("ciel-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return RING_ERROR_SYSTEM;
    /* Allocate now: a missing page would later raise a signal on either side. */
    if (fallocate(fd, 0, 0, (off_t)segment_bytes(capacity_bytes)) != 0 ||
        pwrite(fd, &header, sizeof header, 0) != (ssize_t)sizeof header ||
        fcntl(fd, F_ADD_SEALS, RING_SEALS) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return RING_ERROR_SYSTEM;
    }
    return fd;
}

static bool is_pipe(int fd)
{
    struct stat status;
    return fd >= 0 && fstat(fd, &status) == 0 && !S_ISSOCK(status.st_mode);
}

static void place_end(struct ring_end *end, struct ring *ring, int direction)
{
    memset(end, 0, sizeof *end);
    end->words = &ring->segment->words[direction];
    end->bytes = (uint8_t *)ring->segment + RING_DATA_OFFSET +
                 (uint64_t)direction * ring->capacity_bytes;
}

int ring_open(struct ring **opened, void *storage, size_t storage_bytes, int segment_fd, int side,
              int bell_fd, int wait_fd)
{
    struct ring *ring = storage;
    struct ring_header header;
    struct stat status;
    if (storage == NULL || storage_bytes < sizeof *ring || (uintptr_t)storage % 16 != 0 ||
        (side != 0 && side != 1))
        return RING_ERROR_ARGUMENT;
    int seals = fcntl(segment_fd, F_GET_SEALS);
    if (seals < 0)
        return errno == EINVAL ? RING_ERROR_FORMAT : RING_ERROR_SYSTEM;
    if (fstat(segment_fd, &status) != 0)
        return RING_ERROR_SYSTEM;
    /* Check the seals: if the segment shrank, our next access would raise a signal. */
    if ((seals & RING_SEALS) != RING_SEALS ||
        pread(segment_fd, &header, sizeof header, 0) != (ssize_t)sizeof header ||
        header.magic != RING_MAGIC || header.version != RING_VERSION ||
        !is_capacity(header.capacity_bytes) ||
        (uint64_t)status.st_size != segment_bytes(header.capacity_bytes))
        return RING_ERROR_FORMAT;
    memset(ring, 0, sizeof *ring);
    ring->capacity_bytes = header.capacity_bytes;
    ring->segment_bytes = (size_t)segment_bytes(header.capacity_bytes);
    void *place = mmap(NULL, ring->segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment_fd, 0);
    if (place == MAP_FAILED)
        return RING_ERROR_SYSTEM;
    ring->segment = place;
    place_end(&ring->out, ring, side);
    place_end(&ring->in, ring, 1 - side);
    ring->bell_fd = bell_fd;
    ring->wait_fd = wait_fd;
    ring->bell_is_pipe = is_pipe(bell_fd);
    ring->wait_is_pipe = is_pipe(wait_fd);
    *opened = ring;
    return 0;
}

void ring_close(struct ring *ring)
{
    if (ring->segment != NULL)
        munmap(ring->segment, ring->segment_bytes);
    ring->segment = NULL;
}

uint64_t ring_capacity(const struct ring *ring)
{
    return ring->capacity_bytes;
}

/* --- bells ----------------------------------------------------------------------------------- */

/* Ring without waiting. If the bell is full, the peer already has bells to read. If the peer is
 * gone, it needs no bell, and we learn that from the bells that it sends. */
static void ring_bell(struct ring *ring)
{
    static const char bell = 0;
    ssize_t done;
    if (ring->bell_fd < 0)
        return;
    do
        done = ring->bell_is_pipe
                   ? write(ring->bell_fd, &bell, 1)
                   : send(ring->bell_fd, &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (done < 0 && errno == EINTR);
}

/* Ring the bell if the peer sleeps, once for each sleep. */
static void ring_if_asleep(struct ring *ring, struct ring_end *end, const uint32_t *number)
{
    uint32_t sleep = port_register_load(number);
    if ((sleep & 1) == 0 || sleep == end->rung)
        return;
    end->rung = sleep;
    ring_bell(ring);
}

static void doze(struct ring *ring, struct ring_end *end, uint32_t *number)
{
    if ((end->dozes & 1) == 0)
        /* Sequentially consistent, as the peer's counter is: either our next check sees what
         * the peer wrote, or its next check sees that we sleep. */
        port_register_store(&ring->port, number, ++end->dozes);
}

static void rise(struct ring *ring, struct ring_end *end, uint32_t *number)
{
    if ((end->dozes & 1) != 0)
        port_store32(&ring->port, number, ++end->dozes); /* unordered: at worst one extra bell */
}

/* --- bytes ----------------------------------------------------------------------------------- */

/* Update our copy of the reader's counter of the outgoing ring; false if the value is invalid. */
static bool look_out(struct ring *ring, uint64_t head)
{
    uint64_t freed = head - ring->out.theirs; /* it only grows, and never exceeds what we wrote */
    if (freed > ring->out.ours - ring->out.theirs)
        return false;
    ring->out.theirs = head;
    return true;
}

static bool look_in(struct ring *ring, uint64_t tail)
{
    uint64_t there = tail - ring->in.ours;
    if (there > ring->capacity_bytes || there < ring->in.theirs - ring->in.ours)
        return false;
    ring->in.theirs = tail;
    return true;
}

int64_t ring_room(struct ring *ring)
{
    /* Acquire: we overwrite bytes only after the reader has copied them. */
    if (!look_out(ring, port_look64(&ring->port, &ring->out.words->head)))
        return RING_ERROR_CORRUPT;
    return (int64_t)(ring->capacity_bytes - (ring->out.ours - ring->out.theirs));
}

int64_t ring_readable(struct ring *ring)
{
    /* Acquire: we copy bytes only after the writer has stored them. */
    if (!look_in(ring, port_look64(&ring->port, &ring->in.words->tail)))
        return RING_ERROR_CORRUPT;
    return (int64_t)(ring->in.theirs - ring->in.ours);
}

int64_t ring_write(struct ring *ring, const char *from, uint64_t size_bytes)
{
    struct ring_end *out = &ring->out;
    int64_t room = ring_room(ring);
    if (room < 0)
        return room;
    if (size_bytes > (uint64_t)room)
        size_bytes = (uint64_t)room;
    if (size_bytes == 0)
        return 0;
    uint64_t start = out->ours & (ring->capacity_bytes - 1);
    uint64_t first = ring->capacity_bytes - start;
    if (first > size_bytes)
        first = size_bytes;
    port_write(&ring->port, out->bytes + start, from, first);
    port_write(&ring->port, out->bytes, from + first, size_bytes - first);
    out->ours += size_bytes;
    /* Releases the bytes to the reader. If this process dies before this store, the bytes do not
     * exist for the reader. Sequentially consistent: see `doze`. */
    port_register_store64(&ring->port, &out->words->tail, out->ours);
    ring_if_asleep(ring, out, &out->words->sleeps);
    return (int64_t)size_bytes;
}

int64_t ring_read(struct ring *ring, char *to, uint64_t size_bytes)
{
    struct ring_end *in = &ring->in;
    int64_t there = ring_readable(ring);
    if (there < 0)
        return there;
    if (size_bytes > (uint64_t)there)
        size_bytes = (uint64_t)there;
    if (size_bytes == 0)
        return 0;
    uint64_t start = in->ours & (ring->capacity_bytes - 1);
    uint64_t first = ring->capacity_bytes - start;
    if (first > size_bytes)
        first = size_bytes;
    port_read(&ring->port, to, in->bytes + start, first);
    port_read(&ring->port, to + first, in->bytes, size_bytes - first);
    in->ours += size_bytes;
    /* Releases the room: our copy is complete before the writer sees the counter. Sequentially
     * consistent: see `doze`. */
    port_register_store64(&ring->port, &in->words->head, in->ours);
    ring_if_asleep(ring, in, &in->words->wants);
    return (int64_t)size_bytes;
}

/* --- sleeping -------------------------------------------------------------------------------- */

void ring_wake(struct ring *ring)
{
    rise(ring, &ring->in, &ring->in.words->sleeps);
    rise(ring, &ring->out, &ring->out.words->wants);
}

/* Return which of the awaited events have occurred, as bits of `ring_watch.wants`, or an error. */
static int32_t look(struct ring *ring, int32_t wants)
{
    int32_t found = 0;
    if (wants & 1) {
        int64_t there = ring_readable(ring);
        if (there < 0)
            return (int32_t)there;
        found |= there > 0;
    }
    if (wants & 2) {
        int64_t room = ring_room(ring);
        if (room < 0)
            return (int32_t)room;
        found |= room > 0 ? 2 : 0;
    }
    return found;
}

/* Announce the sleep, and check once more. */
static int32_t sleep_and_look(struct ring *ring, int32_t wants)
{
    int32_t found = 0;
    if (wants & 1) {
        doze(ring, &ring->in, &ring->in.words->sleeps);
        if (!look_in(ring, port_register_load64(&ring->in.words->tail)))
            return RING_ERROR_CORRUPT;
        found |= ring->in.theirs != ring->in.ours;
    }
    if (wants & 2) {
        doze(ring, &ring->out, &ring->out.words->wants);
        if (!look_out(ring, port_register_load64(&ring->out.words->head)))
            return RING_ERROR_CORRUPT;
        found |= ring->out.ours - ring->out.theirs < ring->capacity_bytes ? 2 : 0;
    }
    return found;
}

int ring_sleep(struct ring *ring, bool wants_room)
{
    int32_t found = sleep_and_look(ring, wants_room ? 3 : 1);
    if (found != 0)
        ring_wake(ring);
    return found < 0 ? found : found == 0;
}

/* --- patience -------------------------------------------------------------------------------- */

static void grow(struct ring_patience *patience)
{
    uint64_t looks = (uint64_t)patience->looks * 2 + RING_LOOKS_MIN;
    patience->looks = looks < patience->looks_max ? (uint32_t)looks : patience->looks_max;
}

static void won(struct ring_patience *patience)
{
    patience->won++;
    grow(patience);
}

static void fell_asleep(struct ring_patience *patience)
{
    if (patience == NULL || patience->looks_max == 0)
        return;
    patience->lost++;
    patience->slept_us = port_now_us();
}

static void woke(struct ring_patience *patience, bool is_for_us)
{
    if (patience == NULL || patience->slept_us == 0)
        return;
    if (port_now_us() - patience->slept_us > patience->soon_us)
        patience->looks /= 2; /* polling was in vain */
    else if (is_for_us)
        grow(patience); /* a short sleep: more polling would have been better */
    patience->slept_us = 0;
}

static uint32_t looks_of(const struct ring_patience *patience)
{
    return patience == NULL || patience->looks < RING_LOOKS_MIN ? 0 : patience->looks;
}

/* Yield this core at intervals, above all to the peer: a scheduler may run both sides on one core,
 * where each would poll for the rest of its time slice while its peer has bytes to send. Returns
 * whether another event is ready that the loop waits for. */
static bool is_wanted_elsewhere(const struct ring_patience *patience, uint32_t left)
{
    struct pollfd also = {.fd = patience->also_fd, .events = POLLIN};
    if (left % LOOKS_PER_GLANCE)
        return false;
    sched_yield();
    return also.fd > 0 && poll(&also, 1, 0) > 0;
}

/* --- waiting --------------------------------------------------------------------------------- */

/* Read bells; returns 1, 0 at their end, or an error. */
static int take_bells(struct ring *ring)
{
    char bells[64];
    ssize_t came = ring->wait_is_pipe ? read(ring->wait_fd, bells, sizeof bells)
                                      : recv(ring->wait_fd, bells, sizeof bells, 0);
    if (came > 0)
        return 1;
    if (came == 0 || errno == ECONNRESET)
        return 0;
    return errno == EINTR ? RING_ERROR_SIGNAL : RING_ERROR_SYSTEM;
}

int ring_wait(struct ring *ring, struct ring_patience *patience, bool wants_room)
{
    int32_t wants = wants_room ? 3 : 1;
    for (;;) {
        int32_t found = look(ring, wants);
        for (uint32_t left = looks_of(patience); found == 0 && left > 0; left--) {
            if (is_wanted_elsewhere(patience, left))
                break;
            port_pause();
            found = look(ring, wants);
            if (found != 0)
                won(patience);
        }
        if (found == 0)
            found = sleep_and_look(ring, wants);
        if (found != 0) {
            ring_wake(ring);
            return found < 0 ? found : 1;
        }
        fell_asleep(patience);
        int rang = take_bells(ring);
        ring_wake(ring);
        found = look(ring, wants);
        woke(patience, found > 0);
        if (rang <= 0)
            return found > 0 && rang == 0 ? 1 : rang;
    }
}

/* --- for an event loop ----------------------------------------------------------------------- */

static int look_at_all(struct ring_watch *watches, size_t count)
{
    int ready = 0;
    for (size_t index = 0; index < count; index++) {
        watches[index].found = look(watches[index].ring, watches[index].wants);
        ready += watches[index].found != 0;
    }
    return ready;
}

static void wake_all(struct ring_watch *watches, size_t count)
{
    for (size_t index = 0; index < count; index++)
        ring_wake(watches[index].ring);
}

int ring_before_wait(struct ring_watch *watches, size_t count, struct ring_patience *patience)
{
    int ready = look_at_all(watches, count);
    for (uint32_t left = looks_of(patience); ready == 0 && left > 0; left--) {
        if (is_wanted_elsewhere(patience, left))
            break;
        port_pause();
        ready = look_at_all(watches, count);
        if (ready != 0)
            won(patience);
    }
    if (ready != 0)
        return ready;
    for (size_t index = 0; index < count; index++) {
        struct ring_watch *watch = &watches[index];
        watch->found = sleep_and_look(watch->ring, watch->wants);
        ready += watch->found != 0;
    }
    if (ready != 0)
        wake_all(watches, count);
    else
        fell_asleep(patience);
    return ready;
}

int ring_after_wait(struct ring_watch *watches, size_t count, struct ring_patience *patience)
{
    wake_all(watches, count);
    int ready = look_at_all(watches, count);
    woke(patience, ready != 0);
    return ready;
}
