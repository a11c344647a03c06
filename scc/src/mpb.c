/* mpb.c: the segment, flags, liveness, and bells. */
#include "mpb_core.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>

#define INCARNATION_MASK 0xfffffffu

const char *mpb_error_text(int error)
{
    switch (error) {
    case 0:
        return "no error";
    case MPB_PENDING:
        return "pending";
    case MPB_ERROR_ARGUMENT:
        return "invalid argument";
    case MPB_ERROR_FORMAT:
        return "not a segment, or a different version, geometry or machine";
    case MPB_ERROR_TOO_SMALL:
        return "the memory is too small for this number of cores";
    case MPB_ERROR_TAKEN:
        return "a live process is attached as that core";
    case MPB_ERROR_PEER:
        return "the peer died or detached";
    case MPB_ERROR_REFUSED:
        return "the peer gave up a message after it had started";
    case MPB_ERROR_TIMEOUT:
        return "timeout; nothing was sent or received";
    case MPB_ERROR_UNSURE:
        return "timeout, but the message may still be received";
    case MPB_ERROR_SIZE:
        return "the message is larger than the receive buffer";
    case MPB_ERROR_CANCELLED:
        return "cancelled";
    case MPB_ERROR_TOO_LATE:
        return "the whole message is in the buffer and cannot be cancelled";
    case MPB_ERROR_CORRUPT:
        return "the segment holds invalid data";
    case MPB_ERROR_SYSTEM:
        return "a system call failed";
    default:
        return "an unknown error";
    }
}

/* --- flags ----------------------------------------------------------------------------------- */

/* All flags are written by `publish` and read by `look`. */
static void publish(struct port *port, uint64_t *flag, uint64_t word)
{
    port_publish64(port, flag, word);
}

static uint64_t look(struct port *port, const uint64_t *flag)
{
    return port_look64(port, flag);
}

void mpb_tell(struct mpb *mpb, struct mpb_flag *flag, uint32_t means, uint8_t count)
{
    publish(&mpb->port, &flag->word,
            (uint64_t)mpb->incarnation << 36 | (uint64_t)means << 8 | count);
}

struct mpb_word mpb_hear(struct mpb *mpb, const struct mpb_flag *flag)
{
    uint64_t word = look(&mpb->port, &flag->word);
    return (struct mpb_word){
        .by = (uint32_t)(word >> 36),
        .means = word >> 8 & INCARNATION_MASK,
        .count = (uint8_t)word,
    };
}

/* --- the segment ----------------------------------------------------------------------------- */

int64_t mpb_segment_bytes(uint32_t core_count)
{
    if (core_count < 2 || core_count > MPB_CORE_MAX_COUNT)
        return MPB_ERROR_ARGUMENT;
    return (int64_t)(mpb_offset_of_buffers(core_count) + (uint64_t)MPB_BUFFER_BYTES * core_count);
}

/* Hash the struct sizes: programs with different structs must not share a segment. */
static uint32_t signature(void)
{
    static const uint32_t sizes[] = {
        sizeof(struct mpb_header), sizeof(struct mpb_registers), sizeof(struct mpb_channel),
        sizeof(struct mpb_piece),  PORT_LINE_BYTES,              MPB_BUFFER_BYTES,
    };
    uint32_t folded = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        folded = folded * 31 + sizes[i];
    return folded;
}

static struct mpb_header header_for(uint32_t core_count)
{
    struct mpb_header header = {
        .magic = MPB_MAGIC,
        .format_version = MPB_FORMAT_VERSION,
        .byte_order = MPB_BYTE_ORDER,
        .core_count = core_count,
        .part_lines = MPB_BUFFER_BYTES / PORT_LINE_BYTES / (core_count - 1),
        .size_bytes = (uint64_t)mpb_segment_bytes(core_count),
        .signature = signature(),
    };
    uint32_t words[9];
    memcpy(words, &header, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        header.checksum = (header.checksum ^ words[i]) * 0x01000193u;
    return header;
}

static bool is_usable(const struct mpb_memory *memory)
{
    return memory && memory->base && (uintptr_t)memory->base % PORT_LINE_BYTES == 0;
}

int mpb_format(const struct mpb_memory *memory, uint32_t core_count)
{
    int64_t size = mpb_segment_bytes(core_count);
    if (size < 0 || !is_usable(memory))
        return MPB_ERROR_ARGUMENT;
    if (memory->size_bytes < (uint64_t)size)
        return MPB_ERROR_TOO_SMALL;
    void *cache = aligned_alloc(64, (port_cache_bytes() / 64 + 1) * 64);
    if (!cache)
        return MPB_ERROR_SYSTEM;
    struct mpb mpb = {.base = memory->base, .core_count = core_count};
    port_open(&mpb.port, cache, (struct port_range){memory->base, (size_t)size},
              (struct port_range){NULL, 0}, UINT32_MAX);
    struct mpb_header *place = memory->base;
    struct mpb_header header = header_for(core_count);
    /* Incarnation 0 means that the flag was never written. */
    for (uint32_t core = 0; core < core_count; core++) {
        struct mpb_registers *registers = mpb_registers_at(&mpb, core);
        port_register_store(&mpb.port, &registers->bell, 0);
        port_register_store(&mpb.port, &registers->test_and_set, 0);
        port_register_store(&mpb.port, &registers->life, 0);
        port_register_store(&mpb.port, &registers->wants, 0);
        for (uint32_t to = 0; to < core_count; to++) {
            struct mpb_channel *channel = mpb_channel_at(&mpb, core, to);
            mpb_tell(&mpb, &channel->given, 0, 0);
            mpb_tell(&mpb, &channel->taken, 0, 0);
            mpb_tell(&mpb, &channel->arrived, 0, 0);
        }
    }
    header.magic = 0;
    port_write(&mpb.port, place, &header, sizeof header);
    /* This store creates the segment at once: the header shares a line with its magic number. */
    publish(&mpb.port, &place->magic, MPB_MAGIC);
    port_drop(&mpb.port);
    free(cache);
    return 0;
}

/* --- liveness -------------------------------------------------------------------------------- */

/* Lock or test the byte of the segment's file that a live core keeps locked. */
static int lock_byte(const struct mpb *mpb, int command, short type, uint32_t core)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = core, .l_len = 1};
    int result;
    do
        result = fcntl(mpb->memory.fd, command, &lock);
    while (result < 0 && errno == EINTR);
    return result < 0 ? result : command == F_OFD_GETLK && lock.l_type != F_UNLCK;
}

bool mpb_is_gone(const struct mpb *mpb, uint32_t core, uint32_t *incarnation)
{
    uint32_t life = port_register_load(&mpb_registers_at(mpb, core)->life);
    *incarnation = life >> 1;
    if (life == 0)
        return false;
    if (!(life & 1))
        return true;
    if (mpb->options.is_alive)
        return !mpb->options.is_alive(mpb->options.is_alive_argument, core, life >> 1);
    return mpb->memory.fd >= 0 && lock_byte(mpb, F_OFD_GETLK, F_WRLCK, core) == 0;
}

bool mpb_lives(const struct mpb *mpb, uint32_t core)
{
    uint32_t incarnation;
    if (core >= mpb->core_count)
        return false;
    return core == mpb->core || (!mpb_is_gone(mpb, core, &incarnation) && incarnation);
}

uint32_t mpb_incarnation_of(const struct mpb *mpb, uint32_t core)
{
    return core < mpb->core_count ? port_register_load(&mpb_registers_at(mpb, core)->life) >> 1 : 0;
}

size_t mpb_size(void)
{
    return (sizeof(struct mpb) + 63) / 64 * 64 + port_cache_bytes();
}

static bool is_segment(struct mpb *mpb)
{
    struct mpb_header header, wanted;
    const struct mpb_header *place = (const struct mpb_header *)mpb->base;
    if (look(&mpb->port, &place->magic) != MPB_MAGIC)
        return false;
    port_read(&mpb->port, &header, place, sizeof header);
    if (mpb_segment_bytes(header.core_count) < 0)
        return false;
    wanted = header_for(header.core_count);
    if (memcmp(&header, &wanted, sizeof header) || header.size_bytes > mpb->memory.size_bytes)
        return false;
    mpb->core_count = header.core_count;
    mpb->part_lines = header.part_lines;
    return true;
}

int mpb_attach(struct mpb **result, void *storage, size_t storage_bytes,
               const struct mpb_memory *memory, uint32_t core, const struct mpb_options *options)
{
    struct mpb *mpb = storage;
    if (!result || !mpb || (uintptr_t)storage % 64 || storage_bytes < mpb_size() ||
        !is_usable(memory))
        return MPB_ERROR_ARGUMENT;
    if (memory->size_bytes < sizeof(struct mpb_header))
        return MPB_ERROR_FORMAT;
    *mpb = (struct mpb){.memory = *memory, .base = memory->base, .core = core, .pushed = 1};
    if (options)
        mpb->options = *options;
    if (!mpb->options.spin_count)
        mpb->options.spin_count = 2000;
    if (!mpb->options.check_ms)
        mpb->options.check_ms = 50;
    port_open(&mpb->port, (uint8_t *)storage + (sizeof(struct mpb) + 63) / 64 * 64,
              (struct port_range){memory->base, memory->size_bytes}, (struct port_range){NULL, 0},
              core);
    if (!is_segment(mpb))
        return MPB_ERROR_FORMAT;
    if (core >= mpb->core_count)
        return MPB_ERROR_ARGUMENT;
    uint32_t before;
    if (memory->fd >= 0) {
        if (lock_byte(mpb, F_OFD_SETLK, F_WRLCK, core) < 0)
            return errno == EAGAIN || errno == EACCES ? MPB_ERROR_TAKEN : MPB_ERROR_SYSTEM;
        before = mpb_incarnation_of(mpb, core);
    } else if (!mpb_is_gone(mpb, core, &before) && before) {
        return MPB_ERROR_TAKEN;
    }
    mpb->incarnation = (before + 1) & INCARNATION_MASK;
    if (!mpb->incarnation)
        mpb->incarnation = 1;
    for (uint32_t other = 0; other < mpb->core_count; other++) {
        mpb_tell(mpb, &mpb_channel_at(mpb, other, core)->taken, 0, 0);
        mpb_tell(mpb, &mpb_channel_at(mpb, core, other)->given, 0, 0);
        mpb_tell(mpb, &mpb_channel_at(mpb, core, other)->arrived, 0, 0);
    }
    struct mpb_registers *registers = mpb_registers_at(mpb, core);
    port_register_store(&mpb->port, &registers->wants, 0);
    port_register_store(&mpb->port, &registers->life, mpb->incarnation << 1 | 1);
    for (uint32_t other = 0; other < mpb->core_count; other++)
        mpb_ring(mpb, other);
    *result = mpb;
    return 0;
}

uint32_t mpb_core_of(const struct mpb *mpb)
{
    return mpb->core;
}

uint32_t mpb_core_count_of(const struct mpb *mpb)
{
    return mpb->core_count;
}

struct mpb_counters mpb_counters_of(const struct mpb *mpb)
{
    return mpb->counters;
}

void mpb_detach(struct mpb *mpb)
{
    for (uint32_t core = 0; core < mpb->core_count; core++) {
        struct mpb_peer *peer = &mpb->peers[core];
        while (peer->sends.first)
            mpb_finish(mpb, peer->sends.first, MPB_ERROR_CANCELLED);
        while (peer->receives.first)
            mpb_finish(mpb, peer->receives.first, MPB_ERROR_CANCELLED);
        if (peer->taking)
            mpb_finish(mpb, peer->taking, MPB_ERROR_CANCELLED);
    }
    while (mpb->any.first)
        mpb_finish(mpb, mpb->any.first, MPB_ERROR_CANCELLED);
    port_register_store(&mpb->port, &mpb_registers_at(mpb, mpb->core)->life, mpb->incarnation << 1);
    if (mpb->memory.fd >= 0)
        lock_byte(mpb, F_OFD_SETLK, F_UNLCK, mpb->core);
    for (uint32_t core = 0; core < mpb->core_count; core++)
        mpb_ring(mpb, core);
    port_drop(&mpb->port);
}

/* --- bells ----------------------------------------------------------------------------------- */

uint32_t mpb_bell(const struct mpb *mpb)
{
    return port_register_load(&mpb_registers_at(mpb, mpb->core)->bell) & ~1u;
}

/* A core that sees the changed bell also sees all earlier stores: the bell is one register, and its
 * operations are atomic and ordered on every machine. If this addition comes first, that core
 * does not fall asleep; if its swap comes first, we see that it sleeps. */
void mpb_ring(const struct mpb *mpb, uint32_t core)
{
    if (core >= mpb->core_count)
        return;
    struct port port = {0}; /* another thread than the owner of `mpb` may call this */
    uint32_t *bell = &mpb_registers_at(mpb, core)->bell;
    uint32_t shown = port_register_add(&port, bell, 2) + 2;
    if (!(shown & 1))
        return;
    for (uint32_t next; shown & 1; shown = next) {
        next = port_register_swap(&port, bell, shown, shown & ~1u);
        if (next == shown)
            break;
    }
    port_wake(bell, INT_MAX);
}

void mpb_ring_for(struct mpb *mpb, uint32_t core)
{
    mpb->counters.rings++;
    mpb_ring(mpb, core);
}

int mpb_sleep(const struct mpb *mpb, uint32_t seen, int64_t timeout_us)
{
    struct port port = {0};
    uint32_t *bell = &mpb_registers_at(mpb, mpb->core)->bell;
    const uint64_t begun_us = port_now_us();
    for (;;) {
        uint32_t shown = port_register_load(bell);
        if ((shown & ~1u) != seen)
            return 0;
        int64_t left_us = timeout_us;
        if (timeout_us >= 0)
            left_us -= (int64_t)(port_now_us() - begun_us);
        if (timeout_us >= 0 && left_us <= 0)
            return MPB_ERROR_TIMEOUT;
        if (mpb->options.sleep_max_us && (left_us < 0 || left_us > mpb->options.sleep_max_us))
            left_us = mpb->options.sleep_max_us;
        if (shown & 1 || port_register_swap(&port, bell, shown, shown | 1) == shown)
            port_wait(bell, shown | 1, left_us);
    }
}
