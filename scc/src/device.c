/* device.c: slots with heartbeats, in memory that several kernels map.
 *
 * The memory begins with a head, a slot for each client of shmfs, for each core of messages and for
 * the lock, and a table of cores; FORMAT.md describes the bytes. The owner of a slot is a process: a
 * random number that it swaps in. Words that change while several processes use an image are
 * registers (port.h).
 *
 * An observer counts time only while it runs: if it was stopped itself, it has not seen whether the
 * other processes beat. */
#include "device.h"
#include "port.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x32766564666d6873)  /* shmfdev2 */
#define MAKING UINT64_C(0x3f766564666d6873) /* shmfdev?: a process makes an image, or died then */

enum {
    MESSAGES_AT = DEVICE_CLIENT_MAX_COUNT, /* numbers of slots */
    LOCK_AT = MESSAGES_AT + DEVICE_MESSAGE_MAX_COUNT,
    SLOT_COUNT = LOCK_AT + 1,
    SLOT_BYTES = PORT_LINE_BYTES,
    SLOTS_AT = 4096, /* bytes */
    CORE_BYTES = 64,
    CORES_AT = DEVICE_HEAD_BYTES - DEVICE_CORE_MAX_COUNT * CORE_BYTES,
    PAGE_BYTES = 4096,
    BEAT_MS = 20,
    POLL_MS = 2,
    LATE_MS = DEVICE_DEAD_MS / 2,
    ENDS_WITH = 1, /* exit status */
    BOOT_ID_BYTES = 36,
};

struct head {
    uint64_t magic; /* written last */
    uint64_t control_bytes, data_offset, data_bytes, message_offset, message_bytes;
    uint32_t core_count, message_count, kernels, kernel;
    uint64_t identity;
    uint8_t zero[SLOTS_AT - 72];
};

struct slot {
    uint32_t owner; /* the number of a process; 0: none */
    uint32_t beat;
    uint32_t named_by; /* the owner that wrote the next two words */
    uint32_t core;
    uint32_t incarnation; /* of `core`; of a core of messages: 1 once it is attached */
    uint8_t zero[SLOT_BYTES - 20];
};

struct core {
    uint32_t incarnation;
    uint32_t kernel;
    uint32_t object_count;
    uint8_t zero[CORE_BYTES - 12];
};

_Static_assert(sizeof(struct head) == SLOTS_AT, "the slots follow the head");
_Static_assert(sizeof(struct slot) == SLOT_BYTES, "one line");
_Static_assert(sizeof(struct core) == CORE_BYTES, "no padding");
_Static_assert(SLOTS_AT + SLOT_COUNT * SLOT_BYTES <= CORES_AT, "the table follows the slots");
_Static_assert(DEVICE_HEAD_BYTES % PAGE_BYTES == 0, "the control data begins at a page");

/* Observations of a slot by the thread of the heartbeats. */
struct observed {
    uint32_t beat;
    _Atomic uint32_t owner;
    _Atomic uint32_t silent_ms; /* time without a beat of this owner */
    _Atomic uint32_t beats_of;  /* the owner whose beat changed while it was observed */
};

struct device {
    struct port port;
    uint8_t *base;
    uint32_t own; /* this process: a random number */
    uint32_t kernel;
    pthread_t thread;
    atomic_bool is_ending;
    _Atomic uint64_t beat_ms; /* the time of the last heartbeat */
    pthread_mutex_t mutex;    /* guards `is_ours`, and the owner of slots that are ours */
    bool is_ours[SLOT_COUNT];
    struct observed observed[SLOT_COUNT];
};

static uint64_t now_ms(void)
{
    return port_now_us() / 1000;
}

static void pause_ms(long time_ms)
{
    struct timespec time = {time_ms / 1000, time_ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* Draw a random number of at most 256 bytes. */
static bool draw(void *to, size_t size_bytes)
{
    ssize_t count;
    do
        count = getrandom(to, size_bytes, 0);
    while (count < 0 && errno == EINTR);
    return count == (ssize_t)size_bytes;
}

static struct slot *slot_at(const struct device *device, uint32_t number)
{
    return (struct slot *)(device->base + SLOTS_AT) + number;
}

static struct core *core_at(const struct device *device, uint32_t number)
{
    return (struct core *)(device->base + CORES_AT) + number;
}

uint32_t device_kernel(void)
{
    char text[BOOT_ID_BYTES];
    uint32_t hash = 2166136261u;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t count = read(fd, text, sizeof text);
    close(fd);
    if (count != sizeof text) {
        errno = EIO;
        return 0;
    }
    for (size_t i = 0; i < sizeof text; i++)
        hash = (hash ^ (uint8_t)text[i]) * 16777619u;
    return hash ? hash : 1;
}

/* --- heartbeats ------------------------------------------------------------------------------ */

static void observe(struct device *device, uint32_t passed_ms)
{
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        struct observed *observed = &device->observed[i];
        const struct slot *slot = slot_at(device, i);
        const uint32_t owner = port_register_load(&slot->owner);
        const uint32_t beat = port_register_load(&slot->beat);
        if (owner != atomic_load(&observed->owner)) {
            atomic_store(&observed->silent_ms, 0);
            atomic_store(&observed->owner, owner);
        } else if (owner && beat != observed->beat) {
            atomic_store(&observed->silent_ms, 0);
            atomic_store(&observed->beats_of, owner);
        } else if (owner && atomic_load(&observed->silent_ms) < DEVICE_DEAD_MS) {
            atomic_fetch_add(&observed->silent_ms, passed_ms);
        }
        observed->beat = beat;
    }
}

static void end_late_process(void)
{
    static const char text[] = "this process stood still for so long that others may have taken "
                               "its place in the image, so it ends\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(ENDS_WITH);
}

/* Count the heartbeats of our slots up. Returns whether there are any, and sets `is_robbed` if another
 * process has taken one. */
static bool beat_once(struct device *device, bool *is_robbed)
{
    bool has_slots = false;
    pthread_mutex_lock(&device->mutex);
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        struct slot *slot = slot_at(device, i);
        if (!device->is_ours[i])
            continue;
        port_register_add(&device->port, &slot->beat, 1);
        *is_robbed |= port_register_load(&slot->owner) != device->own;
        has_slots = true;
    }
    pthread_mutex_unlock(&device->mutex);
    return has_slots;
}

static void *beat(void *argument)
{
    struct device *device = argument;
    for (bool is_robbed = false; !atomic_load(&device->is_ending); pause_ms(BEAT_MS)) {
        const uint64_t time_ms = now_ms(), passed_ms = time_ms - atomic_load(&device->beat_ms);
        const bool has_slots = beat_once(device, &is_robbed);
        if (is_robbed || (has_slots && passed_ms > LATE_MS))
            end_late_process();
        observe(device, passed_ms < 2 * BEAT_MS ? (uint32_t)passed_ms : 2 * BEAT_MS);
        atomic_store(&device->beat_ms, time_ms);
    }
    return NULL;
}

void device_await_verdict(struct device *device)
{
    while (now_ms() - atomic_load(&device->beat_ms) > LATE_MS)
        pause_ms(BEAT_MS);
}

/* The calling thread may notice earlier than the thread of the heartbeats that time has passed. */
void device_begins_change(void *device)
{
    device_await_verdict(device);
}

/* Return whether an owner of a slot is alive, as far as this process has observed it. */
static bool lives(struct device *device, uint32_t number, uint32_t owner, bool waits)
{
    struct observed *observed = &device->observed[number];
    const struct slot *slot = slot_at(device, number);
    if (!owner || owner == device->own)
        return owner != 0;
    while (port_register_load(&slot->owner) == owner) {
        if (atomic_load(&observed->owner) == owner &&
            atomic_load(&observed->silent_ms) >= DEVICE_DEAD_MS)
            return port_register_load(&slot->owner) != owner;
        if (!waits || atomic_load(&observed->beats_of) == owner)
            return true;
        pause_ms(POLL_MS);
    }
    return true; /* another process has the slot now */
}

bool device_lives(void *argument, uint32_t client, uint32_t generation)
{
    struct device *device = argument;
    (void)generation; /* the library has compared it */
    return client < DEVICE_CLIENT_MAX_COUNT &&
           lives(device, client, port_register_load(&slot_at(device, client)->owner), true);
}

/* Make this process the owner of a slot, or return false if a live process owns it. */
static bool take(struct device *device, uint32_t number, bool waits)
{
    struct slot *slot = slot_at(device, number);
    const uint32_t owner = port_register_load(&slot->owner);
    if (owner && lives(device, number, owner, waits))
        return false;
    pthread_mutex_lock(&device->mutex);
    const bool is_taken =
        port_register_swap(&device->port, &slot->owner, owner, device->own) == owner;
    device->is_ours[number] |= is_taken; /* otherwise another process was faster */
    pthread_mutex_unlock(&device->mutex);
    return is_taken;
}

static void release(struct device *device, uint32_t number)
{
    struct slot *slot = slot_at(device, number);
    pthread_mutex_lock(&device->mutex);
    if (port_register_load(&slot->owner) == device->own) {
        port_register_store(&device->port, &slot->named_by, 0);
        port_register_swap(&device->port, &slot->owner, device->own, 0);
    }
    device->is_ours[number] = false;
    pthread_mutex_unlock(&device->mutex);
}

bool device_claim(void *argument, uint32_t client, bool wants)
{
    struct device *device = argument;
    if (client >= DEVICE_CLIENT_MAX_COUNT)
        return false;
    if (wants)
        return take(device, client, true);
    release(device, client);
    return true;
}

int device_lock(struct device *device, int64_t timeout_ms)
{
    const uint64_t start_ms = now_ms();
    while (!take(device, LOCK_AT, false)) {
        if (timeout_ms >= 0 && now_ms() - start_ms >= (uint64_t)timeout_ms)
            return DEVICE_ERROR_BUSY;
        pause_ms(POLL_MS);
    }
    return 0;
}

void device_unlock(struct device *device)
{
    release(device, LOCK_AT);
}

/* --- the image ------------------------------------------------------------------------------- */

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

uint32_t device_message_count(uint32_t core_count)
{
    const uint32_t most = DEVICE_MESSAGE_MAX_COUNT;
    return core_count < most / 2 ? 2 * core_count : most;
}

int device_plan(struct device_layout *layout)
{
    if (!layout->core_count || layout->core_count > DEVICE_CORE_MAX_COUNT ||
        (layout->kernels != DEVICE_SHARED && layout->kernels != DEVICE_SEPARATE) ||
        layout->control_bytes > UINT64_MAX / 4 || layout->message_bytes > UINT64_MAX / 4)
        return DEVICE_ERROR_ARGUMENT;
    layout->message_count = device_message_count(layout->core_count);
    layout->control_offset = DEVICE_HEAD_BYTES;
    layout->message_offset = whole_pages(DEVICE_HEAD_BYTES + layout->control_bytes);
    layout->data_offset = whole_pages(layout->message_offset + layout->message_bytes);
    return 0;
}

uint64_t device_bytes(const struct device_layout *layout)
{
    return layout->data_offset + layout->data_bytes;
}

/* Return whether a part lies between two places. */
static bool is_within(uint64_t offset, uint64_t size_bytes, uint64_t from, uint64_t to)
{
    return offset >= from && offset <= to && offset % PAGE_BYTES == 0 && size_bytes <= to - offset;
}

int device_layout_of(const void *base, uint64_t size_bytes, struct device_layout *layout)
{
    const struct head *head = base;
    struct port port;
    if (size_bytes < DEVICE_HEAD_BYTES)
        return DEVICE_ERROR_TOO_SMALL;
    port_open(&port, NULL, (struct port_range){base, size_bytes}, (struct port_range){NULL, 0}, 0);
    const uint64_t magic = port_look64(&port, &head->magic);
    if (magic == MAKING)
        return DEVICE_ERROR_EMPTY;
    if (magic != MAGIC) {
        for (size_t i = 0; i < sizeof *head; i++)
            if (((const volatile uint8_t *)base)[i])
                return DEVICE_ERROR_FORMAT;
        return DEVICE_ERROR_EMPTY;
    }
    *layout = (struct device_layout){
        .control_offset = DEVICE_HEAD_BYTES,
        .control_bytes = head->control_bytes,
        .message_offset = head->message_offset,
        .message_bytes = head->message_bytes,
        .data_offset = head->data_offset,
        .data_bytes = head->data_bytes,
        .core_count = head->core_count,
        .message_count = head->message_count,
        .kernels = head->kernels,
        .kernel = head->kernel,
        .identity = head->identity,
    };
    const bool is_valid =
        is_within(DEVICE_HEAD_BYTES, layout->control_bytes, DEVICE_HEAD_BYTES,
                  layout->message_offset) &&
        is_within(layout->message_offset, layout->message_bytes, DEVICE_HEAD_BYTES,
                  layout->data_offset) &&
        is_within(layout->data_offset, layout->data_bytes, DEVICE_HEAD_BYTES, size_bytes) &&
        layout->core_count && layout->core_count <= DEVICE_CORE_MAX_COUNT &&
        layout->message_count == device_message_count(layout->core_count) &&
        (layout->kernels == DEVICE_SHARED || layout->kernels == DEVICE_SEPARATE);
    return is_valid ? 0 : DEVICE_ERROR_FORMAT;
}

int device_begin_image(struct device *device, const struct device_layout *layout)
{
    struct head *head = (struct head *)device->base;
    uint64_t identity;
    if (!draw(&identity, sizeof identity))
        return DEVICE_ERROR_SYSTEM;
    port_publish64(&device->port, &head->magic, MAKING);
    for (uint32_t i = 0; i < LOCK_AT; i++)
        memset(slot_at(device, i), 0, SLOT_BYTES);
    memset(core_at(device, 0), 0, DEVICE_CORE_MAX_COUNT * CORE_BYTES);
    head->control_bytes = layout->control_bytes;
    head->message_offset = layout->message_offset;
    head->message_bytes = layout->message_bytes;
    head->data_offset = layout->data_offset;
    head->data_bytes = layout->data_bytes;
    head->core_count = layout->core_count;
    head->message_count = layout->message_count;
    head->kernels = layout->kernels;
    head->kernel = device->kernel;
    head->identity = identity;
    memset(head->zero, 0, sizeof head->zero);
    memset(device->base + layout->control_offset, 0, layout->control_bytes);
    port_flush(&device->port, device->base, layout->data_offset);
    return 0;
}

void device_complete_image(struct device *device)
{
    port_publish64(&device->port, &((struct head *)device->base)->magic, MAGIC);
}

size_t device_size(void)
{
    return (sizeof(struct device) + 63) / 64 * 64;
}

/* Start the thread without signals, which are for the threads of the program. */
static int start_thread(struct device *device)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&device->thread, NULL, beat, device);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

int device_attach(struct device **out, void *storage, size_t storage_bytes, void *base,
                  uint64_t size_bytes, uint32_t kernel)
{
    struct device *device = storage;
    if (!out || !storage || (uintptr_t)storage % 64 || storage_bytes < device_size() || !base ||
        (uintptr_t)base % PAGE_BYTES || !kernel)
        return DEVICE_ERROR_ARGUMENT;
    if (size_bytes < DEVICE_HEAD_BYTES)
        return DEVICE_ERROR_TOO_SMALL;
    memset(device, 0, sizeof *device);
    device->base = base;
    device->kernel = kernel;
    port_open(&device->port, NULL, (struct port_range){base, size_bytes},
              (struct port_range){NULL, 0}, 0);
    while (!device->own)
        if (!draw(&device->own, sizeof device->own))
            return DEVICE_ERROR_SYSTEM;
    atomic_store(&device->beat_ms, now_ms());
    pthread_mutex_init(&device->mutex, NULL);
    errno = start_thread(device);
    if (errno)
        return DEVICE_ERROR_SYSTEM;
    *out = device;
    return 0;
}

void device_detach(struct device *device)
{
    atomic_store(&device->is_ending, true);
    pthread_join(device->thread, NULL);
    for (uint32_t i = 0; i < SLOT_COUNT; i++)
        release(device, i);
    pthread_mutex_destroy(&device->mutex);
}

/* --- cores of messages ----------------------------------------------------------------------- */

bool device_message_claim(struct device *device, uint32_t core, bool wants)
{
    if (core >= DEVICE_MESSAGE_MAX_COUNT)
        return false;
    if (wants)
        return take(device, MESSAGES_AT + core, true);
    release(device, MESSAGES_AT + core);
    return true;
}

void device_message_ready(struct device *device, uint32_t core)
{
    struct slot *slot = slot_at(device, MESSAGES_AT + core);
    port_register_store(&device->port, &slot->incarnation, 1);
    port_register_store(&device->port, &slot->named_by, device->own);
}

/* An owner that is not attached yet counts as alive for others, but not for itself: mpb_attach
 * would refuse a core that lives. */
bool device_message_lives(void *argument, uint32_t core, uint32_t incarnation)
{
    struct device *device = argument;
    (void)incarnation; /* a core that attached again has shown that in the segment */
    if (core >= DEVICE_MESSAGE_MAX_COUNT)
        return false;
    const struct slot *slot = slot_at(device, MESSAGES_AT + core);
    const uint32_t owner = port_register_load(&slot->owner);
    if (owner == device->own)
        return port_register_load(&slot->named_by) == owner;
    return lives(device, MESSAGES_AT + core, owner, false);
}

/* --- cores of the store ---------------------------------------------------------------------- */

static bool core_lives(struct device *device, uint32_t core, uint32_t incarnation, bool waits)
{
    for (uint32_t i = 0; i < DEVICE_CLIENT_MAX_COUNT; i++) {
        const struct slot *slot = slot_at(device, i);
        const uint32_t owner = port_register_load(&slot->owner);
        if (owner && port_register_load(&slot->named_by) == owner &&
            port_register_load(&slot->core) == core &&
            port_register_load(&slot->incarnation) == incarnation && lives(device, i, owner, waits))
            return true;
    }
    return false;
}

struct device_core device_core_of(struct device *device, uint32_t core, bool waits)
{
    if (core >= DEVICE_CORE_MAX_COUNT)
        return (struct device_core){0};
    const struct core *place = core_at(device, core);
    const uint32_t incarnation = port_register_load(&place->incarnation);
    return (struct device_core){
        .incarnation = incarnation,
        .kernel = port_register_load(&place->kernel),
        .object_count = port_register_load(&place->object_count),
        .is_living = incarnation && core_lives(device, core, incarnation, waits),
    };
}

void device_set_core(struct device *device, uint32_t core, uint32_t incarnation)
{
    struct core *place = core_at(device, core);
    port_register_store(&device->port, &place->incarnation, 0);
    port_register_store(&device->port, &place->kernel, device->kernel);
    port_register_store(&device->port, &place->object_count, 0);
    port_register_store(&device->port, &place->incarnation, incarnation);
}

void device_name_core(struct device *device, uint32_t client, uint32_t core, uint32_t incarnation)
{
    struct slot *slot = slot_at(device, client);
    port_register_store(&device->port, &slot->named_by, 0);
    port_register_store(&device->port, &slot->core, core);
    port_register_store(&device->port, &slot->incarnation, incarnation);
    if (incarnation)
        port_register_store(&device->port, &slot->named_by, device->own);
}

void device_count(struct device *device, uint32_t core, int32_t more)
{
    port_register_add(&device->port, &core_at(device, core)->object_count, (uint32_t)more);
}
