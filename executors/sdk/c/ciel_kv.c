/* A client of key-value bases: of `ciel-kv` (docs/protocol/kv.md of ciel) and of Redis.
 *
 * All changes are batches of steps, which a base carries out at one moment, or not at all. A batch
 * has the number of its client. If the connection is lost, the library sends the batch again with
 * the same number, and the base does not carry it out twice. `ciel-kv` does this itself; with Redis
 * the client watches the keys and a row with the latest number, reads them, and writes in a
 * transaction, as ciel/state/bases/redis.py does.
 *
 * A base has one connection, and a lock, which a call holds until it has its replies. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "ciel_kv.h"
#include "ciel_kv_pages.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    KEY_MAX_BYTES = 480,
    VALUE_MAX_BYTES = 64 << 20,
    BATCH_MAX_BYTES = 256 << 20,
    ARGUMENTS_MAX = 1 << 20,   /* of a command of ciel-kv */
    REPLY_MAX_BYTES = 1 << 30, /* of one string; a Redis has at most 512 MiB */
    REPLY_S = 30,              /* after so long without a reply the connection counts as lost */
    RETRY_MIN_MS = 5,          /* the first pause between two tries to connect, */
    RETRY_MAX_MS = 100,        /* and the longest; each is twice as long as the one before */
    IN_BYTES = 16 << 10,       /* the longest line of a server */
    HEAD_BYTES = 4 << 10,
    PARTS = 64,
    COPIED_BYTES = 256, /* shorter arguments are copied, so that fewer parts are sent */
    SECRET_BYTES = 32,
    CLIENT_BYTES = 12,
    NUMBER_BYTES = 24, /* an integer of 64 bits in digits, or seconds with a fraction */
};
#define TIMEOUT_S 30.0      /* how long a client tries to reach a base */
#define LEASE_S 30.0        /* as in Python */
#define LIFETIME_MAX_S 1e10 /* as ciel-kv has it */
#define KEPT_TEXT "3600"    /* for how many seconds a base remembers a batch */
#define KEPT_S 3600.0

/* The first byte of bytes that could be read as something else, and of pickles:
 * ciel/state/values.py */
#define BYTES_MARK 0xC0
#define PICKLE_MARK 0xC1
#define RESERVED "\xff" /* the first byte of keys for the base itself */
#define REQUEST_PREFIX RESERVED "request/"
#define REQUEST_KEY_BYTES (sizeof REQUEST_PREFIX - 1 + CLIENT_BYTES)

/* Internal statuses; those of callers are positive. */
enum {
    LOST = -1,  /* the connection; it is tried again */
    AGAIN = -2, /* another client has changed a row that a batch for Redis has read */
    STALE = -3, /* the base has carried out a later batch of this client */
};

static _Thread_local char why[512];

/* --- texts --- */

/* Make the reason of an error from texts, up to NULL; return the status. */
__attribute__((sentinel)) static int fail(int status, ...)
{
    size_t size = 0;
    va_list texts;
    const char *text;

    va_start(texts, status);
    while ((text = va_arg(texts, const char *)) != NULL) {
        size_t length = strnlen(text, sizeof why - 1 - size);

        memcpy(why + size, text, length);
        size += length;
    }
    va_end(texts);
    why[size] = '\0';
    return status;
}

const char *ciel_kv_why(void)
{
    return why;
}

static int out_of_memory(void)
{
    return fail(CIEL_KV_NO_MEMORY, "out of memory", NULL);
}

/* Write a number of at least `digits` digits to NUMBER_BYTES; return them. */
static const char *padded(uint64_t number, int digits, char *to)
{
    char *at = to + NUMBER_BYTES - 1;

    *at = '\0';
    for (; number > 0 || digits > 0; number /= 10, digits--)
        *--at = (char)('0' + number % 10);
    return at;
}

static const char *unsigned_text(uint64_t number, char *to)
{
    return padded(number, 1, to);
}

static const char *integer_text(int64_t number, char *to)
{
    char *at = (char *)padded(number < 0 ? 0 - (uint64_t)number : (uint64_t)number, 1, to);

    if (number < 0)
        *--at = '-';
    return at;
}

/* Parse an integer of 64 bits in decimal digits; 0 if the text is none. */
static int parse_integer(const char *text, size_t size, int64_t *number)
{
    size_t at = size > 0 && text[0] == '-';
    uint64_t found = 0, limit = (uint64_t)INT64_MAX + at;

    if (at == size || size > 20)
        return 0;
    for (; at < size; at++) {
        unsigned digit = (unsigned char)text[at] - (unsigned)'0';

        if (digit > 9 || found > (limit - digit) / 10)
            return 0;
        found = found * 10 + digit;
    }
    *number = text[0] == '-' ? (int64_t)(0 - found) : (int64_t)found;
    return 1;
}

/* Return a key as a message shows it: its first bytes, in quotes. */
static const char *shown(const char *key, size_t size, char to[96])
{
    size_t length = 0;

    to[length++] = '\'';
    for (size_t i = 0; i < size && i < 80; i++)
        to[length++] = (unsigned char)key[i] < ' ' ? '?' : key[i];
    if (size > 80)
        length = (size_t)(stpcpy(to + length, "...") - to);
    to[length++] = '\'';
    to[length] = '\0';
    return to;
}

/* A text that grows. If memory lacks, it stops growing, and has `is_cut`. */
struct text {
    char *bytes;
    size_t size, room;
    int is_cut;
};

static void add(struct text *text, const void *bytes, size_t size)
{
    if (text->room - text->size < size) {
        size_t room = 2 * text->room + size + 64;
        char *grown = text->is_cut ? NULL : realloc(text->bytes, room);

        text->is_cut |= grown == NULL;
        if (grown == NULL)
            return;
        text->bytes = grown;
        text->room = room;
    }
    if (size > 0)
        memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
}

static void add_text(struct text *text, const char *added)
{
    add(text, added, strlen(added));
}

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void pause_s(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* --- SHA-256 and the proof that a client has a key (ciel/access/keys.py) --- */

struct sha256 {
    uint32_t state[8];
    uint64_t size;
    unsigned char block[64];
};

static uint32_t turned(uint32_t word, int bits)
{
    return word >> bits | word << (32 - bits);
}

static void sha256_block(struct sha256 *sum)
{
    static const uint32_t constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2,
    };
    uint32_t words[64], s[8];

    for (int i = 0; i < 16; i++)
        words[i] = (uint32_t)sum->block[4 * i] << 24 | (uint32_t)sum->block[4 * i + 1] << 16 |
                   (uint32_t)sum->block[4 * i + 2] << 8 | sum->block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = words[i - 15], b = words[i - 2];

        words[i] = words[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + words[i - 7] +
                   (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
    }
    memcpy(s, sum->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t one = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) +
                       ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants[i] + words[i];
        uint32_t two = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) +
                       ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));

        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        sum->state[i] += s[i];
}

static void sha256_begin(struct sha256 *sum)
{
    *sum = (struct sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                     0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

static void sha256_add(struct sha256 *sum, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        sum->block[sum->size++ % 64] = ((const unsigned char *)bytes)[i];
        if (sum->size % 64 == 0)
            sha256_block(sum);
    }
}

/* Write a number in 8 bytes, big-endian. */
static void sha256_add_number(struct sha256 *sum, uint64_t number)
{
    unsigned char bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(number >> (56 - 8 * i));
    sha256_add(sum, bytes, sizeof bytes);
}

static void sha256_end(struct sha256 *sum, unsigned char digest[SECRET_BYTES])
{
    uint64_t bits = sum->size * 8;

    sha256_add(sum, "\x80", 1);
    while (sum->size % 64 != 56)
        sha256_add(sum, "", 1);
    sha256_add_number(sum, bits);
    for (int i = 0; i < SECRET_BYTES; i++)
        digest[i] = (unsigned char)(sum->state[i / 4] >> (24 - 8 * (i % 4)));
}

struct field {
    const void *bytes;
    size_t size;
};

#define FIELD(text) ((struct field){text, strlen(text)})

/* Make HMAC-SHA256 of fields, each with its length: `Key.mac` in Python. */
static void mac(const unsigned char secret[SECRET_BYTES], const struct field *fields, int count,
                unsigned char digest[SECRET_BYTES])
{
    struct sha256 sum;
    unsigned char pad[64];

    sha256_begin(&sum);
    for (int i = 0; i < 64; i++)
        pad[i] = (i < SECRET_BYTES ? secret[i] : 0) ^ 0x36;
    sha256_add(&sum, pad, sizeof pad);
    for (int i = 0; i < count; i++) {
        sha256_add_number(&sum, fields[i].size);
        sha256_add(&sum, fields[i].bytes, fields[i].size);
    }
    sha256_end(&sum, digest);
    sha256_begin(&sum);
    for (int i = 0; i < 64; i++)
        pad[i] ^= 0x36 ^ 0x5c;
    sha256_add(&sum, pad, sizeof pad);
    sha256_add(&sum, digest, SECRET_BYTES);
    sha256_end(&sum, digest);
}

/* --- JSON: whether bytes are JSON, so that Python reads them as such --- */

enum { JSON_DEPTH_MAX = 1024, JSON_EXPONENT_MAX = 309 }; /* of orjson, and of a double */

struct json {
    const unsigned char *at, *end;
    size_t spaces; /* between its parts */
};

static void skip_spaces(struct json *json)
{
    for (; json->at < json->end && memchr(" \t\n\r", *json->at, 4) != NULL; json->at++)
        json->spaces++;
}

static int has_next(struct json *json, unsigned char wanted)
{
    if (json->at == json->end || *json->at != wanted)
        return 0;
    json->at++;
    return 1;
}

static int is_digit(const struct json *json)
{
    return json->at < json->end && *json->at >= '0' && *json->at <= '9';
}

/* Read four hexadecimal digits; return -1 if there are none. */
static int json_hex(struct json *json)
{
    int found = 0;

    for (int i = 0; i < 4; i++, json->at++) {
        int c = json->at < json->end ? *json->at : 0;

        if (c >= '0' && c <= '9')
            found = found * 16 + c - '0';
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            found = found * 16 + (c | 32) - 'a' + 10;
        else
            return -1;
    }
    return found;
}

static int json_escape(struct json *json)
{
    if (!has_next(json, 'u')) {
        if (json->at == json->end || strchr("\"\\/bfnrt", *json->at) == NULL || *json->at == '\0')
            return 0;
        json->at++;
        return 1;
    }
    int unit = json_hex(json);
    if (unit < 0 || (unit >= 0xDC00 && unit < 0xE000))
        return 0;
    if (unit < 0xD800 || unit >= 0xE000)
        return 1;
    if (!has_next(json, '\\') || !has_next(json, 'u'))
        return 0;
    unit = json_hex(json);
    return unit >= 0xDC00 && unit < 0xE000;
}

/* Read a character of UTF-8 that has more than one byte. */
static int json_character(struct json *json)
{
    unsigned char first = *json->at++;
    int more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;

    if (first < 0xC2 || first > 0xF4)
        return 0;
    for (; more > 0; more--, low = 0x80, high = 0xBF)
        if (json->at == json->end || *json->at < low || *json->at++ > high)
            return 0;
    return 1;
}

static int json_string(struct json *json)
{
    if (!has_next(json, '"'))
        return 0;
    while (json->at < json->end && *json->at != '"') {
        if (*json->at < ' ')
            return 0;
        if (has_next(json, '\\')) {
            if (!json_escape(json))
                return 0;
        } else if (*json->at < 0x80) {
            json->at++;
        } else if (!json_character(json)) {
            return 0;
        }
    }
    return has_next(json, '"');
}

/* Python refuses a number that is infinite as a double. */
static int json_number(struct json *json)
{
    int64_t exponent = 0, power = 0; /* of 10: the number is below 10 to the sum of both */
    int is_negative;

    has_next(json, '-');
    if (!is_digit(json))
        return 0;
    if (!has_next(json, '0'))
        for (; is_digit(json); json->at++)
            power++;
    if (has_next(json, '.')) {
        int is_small = power == 0;

        if (!is_digit(json))
            return 0;
        for (; is_digit(json); json->at++) {
            is_small &= *json->at == '0';
            power -= is_small;
        }
    }
    if (!has_next(json, 'e') && !has_next(json, 'E'))
        return power <= JSON_EXPONENT_MAX;
    is_negative = has_next(json, '-');
    if (!is_negative)
        has_next(json, '+');
    if (!is_digit(json))
        return 0;
    for (; is_digit(json); json->at++)
        if (exponent < INT32_MAX)
            exponent = exponent * 10 + *json->at - '0';
    return is_negative || power + exponent <= JSON_EXPONENT_MAX;
}

static int json_word(struct json *json, const char *word)
{
    size_t size = strlen(word);

    if ((size_t)(json->end - json->at) < size || memcmp(json->at, word, size) != 0)
        return 0;
    json->at += size;
    return 1;
}

static int json_value(struct json *json, int depth);

/* Read a list, or an object, in which each value has a key. */
static int json_items(struct json *json, unsigned char close, int depth)
{
    json->at++;
    skip_spaces(json);
    if (has_next(json, close))
        return 1;
    do {
        skip_spaces(json);
        if (close == '}') {
            if (!json_string(json))
                return 0;
            skip_spaces(json);
            if (!has_next(json, ':'))
                return 0;
        }
        if (depth == 0 || !json_value(json, depth - 1))
            return 0;
    } while (has_next(json, ','));
    return has_next(json, close);
}

static int json_value(struct json *json, int depth)
{
    int is_good;

    skip_spaces(json);
    switch (json->at < json->end ? *json->at : 0) {
    case '{':
        is_good = json_items(json, '}', depth);
        break;
    case '[':
        is_good = json_items(json, ']', depth);
        break;
    case '"':
        is_good = json_string(json);
        break;
    case 't':
        is_good = json_word(json, "true");
        break;
    case 'f':
        is_good = json_word(json, "false");
        break;
    case 'n':
        is_good = json_word(json, "null");
        break;
    default:
        is_good = json_number(json);
    }
    skip_spaces(json);
    return is_good;
}

/* Return whether bytes are JSON; count the whitespace between its parts. */
static int is_json(const void *bytes, size_t size, size_t *spaces)
{
    const unsigned char *start = size == 0 ? (const unsigned char *)"" : bytes;
    struct json json = {start, start + size, 0};
    int is_good = json_value(&json, JSON_DEPTH_MAX - 1) && json.at == json.end;

    *spaces = json.spaces;
    return is_good;
}

/* --- values and steps --- */

/* A byte, or 0 for none, and more bytes. */
struct value {
    unsigned char mark;
    const char *bytes;
    size_t size;
};

static size_t size_of(const struct value *value)
{
    return value->size + (value->mark != 0);
}

static int is_same(const struct value *one, const struct value *two)
{
    const struct value *marked = one->mark != 0 ? one : two, *other = marked == one ? two : one;

    if (size_of(one) != size_of(two))
        return 0;
    if (marked->mark == other->mark)
        return marked->size == 0 || memcmp(marked->bytes, other->bytes, marked->size) == 0;
    return (unsigned char)other->bytes[0] == marked->mark &&
           (marked->size == 0 || memcmp(marked->bytes, other->bytes + 1, marked->size) == 0);
}

/* A step of a batch; `letter` as in docs/protocol/kv.md. For Redis there is 'E': remove a key if it
 * is there. */
struct step {
    char letter;
    const char *key;
    size_t key_bytes;
    struct value value;
    double ttl_s; /* 0: no end */
    int64_t by;
};

struct batch {
    const struct step *steps;
    size_t count;
    int64_t *results; /* the sum of each '+'; NULL: they are not wanted */
    uint64_t number;
};

/* Return how many arguments a step has. */
static size_t arguments_of(const struct step *step)
{
    return strchr("DN", step->letter) != NULL ? 2 : strchr("PI", step->letter) != NULL ? 4 : 3;
}

static int check_step(const struct step *step)
{
    char key[96], number[NUMBER_BYTES];

    if (step->key_bytes == 0 || step->key_bytes > KEY_MAX_BYTES)
        return fail(CIEL_KV_TOO_LARGE, "the key ", shown(step->key, step->key_bytes, key),
                    " is empty or too long: with the name of its rows, a key has 1 to 480 bytes",
                    NULL);
    if (step->key[0] == RESERVED[0])
        return fail(CIEL_KV_INVALID, "the key ", shown(step->key, step->key_bytes, key),
                    " starts with the byte 255, which is reserved", NULL);
    if (size_of(&step->value) > VALUE_MAX_BYTES)
        return fail(
            CIEL_KV_TOO_LARGE, "the value of ", shown(step->key, step->key_bytes, key), " has ",
            unsigned_text(size_of(&step->value), number),
            " bytes, and the limit is 64 MiB: store it as an object, and its reference here", NULL);
    if (!(step->ttl_s >= 0 && step->ttl_s <= LIFETIME_MAX_S))
        return fail(CIEL_KV_INVALID, "a lifetime is a number of seconds from 0 to 1e10", NULL);
    return 0;
}

static int check_steps(const struct step *steps, size_t count)
{
    size_t size = 0, arguments = 4;

    for (size_t i = 0; i < count; i++) {
        int status = check_step(steps + i);

        if (status != 0)
            return status;
        size += steps[i].key_bytes + size_of(&steps[i].value);
        arguments += arguments_of(steps + i);
        if (size > BATCH_MAX_BYTES || arguments > ARGUMENTS_MAX)
            return fail(CIEL_KV_TOO_LARGE,
                        "the writes together have more than 256 MiB, or are too many: "
                        "make several calls",
                        NULL);
    }
    return 0;
}

/* --- a connection, with the protocol RESP 2 or 3 --- */

struct link {
    int fd;              /* -1: none */
    const char *lost;    /* why it was lost */
    int has_changed;     /* the server has reported a change */
    const char *watched; /* the key for which it shall report changes; NULL: none */
    size_t watched_bytes;
    size_t start, end; /* what was received, and not read yet */
    size_t receive_max;
    size_t head_bytes; /* of arguments that were copied, and not sent yet */
    int parts_count;
    struct iovec parts[PARTS];
    char head[HEAD_BYTES];
    char in[IN_BYTES];
};

/* The head of a reply. `kind` is its first byte, '_' for all kinds of nothing. `line`: the rest of
 * the line, until more is read. */
struct reply {
    char kind;
    int64_t number;
    const char *line;
    size_t line_bytes;
};

static void close_link(struct link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
    link->start = link->end = link->head_bytes = 0;
    link->parts_count = 0;
}

static int lose(struct link *link, const char *reason)
{
    if (link->lost == NULL)
        link->lost = reason;
    return LOST;
}

static int lose_by_errno(struct link *link)
{
    int is_late = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINPROGRESS;

    return lose(link, is_late ? "no reply within 30 seconds" : strerror(errno));
}

static int speaks_otherwise(struct link *link)
{
    return lose(link, "the server does not speak RESP as expected");
}

/* Send what was put. `flags`: MSG_MORE if more follows. */
static int flush(struct link *link, int flags)
{
    struct msghdr message = {.msg_iov = link->parts, .msg_iovlen = (size_t)link->parts_count};

    while (message.msg_iovlen > 0 && link->lost == NULL) {
        ssize_t sent = sendmsg(link->fd, &message, MSG_NOSIGNAL | flags);

        if (sent < 0 && errno != EINTR)
            lose_by_errno(link);
        while (sent > 0) {
            size_t part =
                message.msg_iov->iov_len < (size_t)sent ? message.msg_iov->iov_len : (size_t)sent;

            message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + part;
            message.msg_iov->iov_len -= part;
            sent -= (ssize_t)part;
            if (message.msg_iov->iov_len == 0) {
                message.msg_iov++;
                message.msg_iovlen--;
            }
        }
    }
    link->parts_count = 0;
    link->head_bytes = 0;
    return link->lost == NULL ? 0 : LOST;
}

/* Queue bytes to be sent. Many bytes are sent from where they are, and must stay until the
 * flush. */
static void put(struct link *link, const void *bytes, size_t size)
{
    struct iovec *last = link->parts + link->parts_count - 1;
    int is_copied = size <= COPIED_BYTES;

    if (size == 0)
        return;
    if (link->parts_count == PARTS || (is_copied && link->head_bytes + size > HEAD_BYTES)) {
        flush(link, MSG_MORE);
        last = link->parts - 1;
    }
    if (is_copied) {
        char *to = link->head + link->head_bytes;

        memcpy(to, bytes, size);
        link->head_bytes += size;
        if (link->parts_count > 0 && (char *)last->iov_base + last->iov_len == to) {
            last->iov_len += size;
            return;
        }
        bytes = to;
    }
    link->parts[link->parts_count++] = (struct iovec){(void *)bytes, size};
}

static void put_line(struct link *link, const char *kind, uint64_t number)
{
    char text[NUMBER_BYTES];
    const char *digits = unsigned_text(number, text);

    put(link, kind, 1);
    put(link, digits, strlen(digits));
    put(link, "\r\n", 2);
}

/* Begin a command of so many words; `word` follows so many times. */
static void command(struct link *link, size_t words)
{
    put_line(link, "*", words);
}

static void word(struct link *link, const void *bytes, size_t size)
{
    put_line(link, "$", size);
    put(link, bytes, size);
    put(link, "\r\n", 2);
}

static void word_text(struct link *link, const char *text)
{
    word(link, text, strlen(text));
}

static void word_value(struct link *link, const struct value *value)
{
    put_line(link, "$", size_of(value));
    put(link, &value->mark, value->mark != 0);
    put(link, value->bytes, value->size);
    put(link, "\r\n", 2);
}

/* Receive more bytes behind those that were not read. */
static int fill(struct link *link)
{
    size_t room;
    ssize_t received;

    memmove(link->in, link->in + link->start, link->end - link->start);
    link->end -= link->start;
    link->start = 0;
    room = IN_BYTES - link->end;
    if (room == 0)
        return speaks_otherwise(link);
    do
        received = recv(link->fd, link->in + link->end,
                        room < link->receive_max ? room : link->receive_max, 0);
    while (received < 0 && errno == EINTR);
    if (received < 0)
        return lose_by_errno(link);
    if (received == 0)
        return lose(link, "the server has closed the connection");
    link->end += (size_t)received;
    return 0;
}

/* Read bytes to where they belong. Only the bytes that arrived with an earlier line are copied, and
 * at most `receive_max` bytes of what follows are received. */
static int read_bytes(struct link *link, char *to, size_t size)
{
    size_t held = link->end - link->start < size ? link->end - link->start : size;

    if (held > 0)
        memcpy(to, link->in + link->start, held);
    link->start += held;
    to += held;
    size -= held;
    if (size > 0)
        link->start = link->end = 0;
    while (size > 0) {
        struct iovec parts[] = {{to, size}, {link->in, link->receive_max}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t received = recvmsg(link->fd, &message, 0);

        if (received < 0 && errno == EINTR)
            continue;
        if (received < 0)
            return lose_by_errno(link);
        if (received == 0)
            return lose(link, "the server has closed the connection");
        if ((size_t)received > size) {
            link->end = (size_t)received - size;
            received = (ssize_t)size;
        }
        to += received;
        size -= (size_t)received;
    }
    return 0;
}

static int skip_bytes(struct link *link, size_t size)
{
    for (;;) {
        size_t held = link->end - link->start < size ? link->end - link->start : size;

        link->start += held;
        size -= held;
        if (size == 0)
            return 0;
        if (fill(link) != 0)
            return LOST;
    }
}

/* Read the two bytes that end a string. */
static int read_end(struct link *link)
{
    char end[2];

    if (read_bytes(link, end, sizeof end) != 0)
        return LOST;
    return memcmp(end, "\r\n", 2) == 0 ? 0 : speaks_otherwise(link);
}

static int read_line(struct link *link, struct reply *reply)
{
    const char *end;
    size_t searched = 0;

    while ((end = memchr(link->in + link->start + searched, '\n',
                         link->end - link->start - searched)) == NULL) {
        searched = link->end - link->start;
        if (fill(link) != 0)
            return LOST;
    }
    *reply = (struct reply){.kind = link->in[link->start], .line = link->in + link->start + 1};
    link->start = (size_t)(end - link->in) + 1;
    if (end - reply->line < 1 || end[-1] != '\r')
        return speaks_otherwise(link);
    reply->line_bytes = (size_t)(end - 1 - reply->line);
    if (strchr("$=*~%>:", reply->kind) != NULL) {
        if (!parse_integer(reply->line, reply->line_bytes, &reply->number))
            return speaks_otherwise(link);
        if (reply->kind != ':' && (reply->number < -1 || reply->number > REPLY_MAX_BYTES))
            return speaks_otherwise(link);
        if (reply->kind != ':' && reply->number == -1)
            reply->kind = '_';
    }
    return 0;
}

static int skip_rest(struct link *link, const struct reply *reply, int depth);

/* Skip the parts of an array, or of a map. */
static int skip_parts(struct link *link, int64_t count, int depth)
{
    for (; count > 0; count--) {
        struct reply part;

        if (read_line(link, &part) != 0 || skip_rest(link, &part, depth) != 0)
            return LOST;
    }
    return 0;
}

/* Skip what follows the head of a reply. */
static int skip_rest(struct link *link, const struct reply *reply, int depth)
{
    if (reply->kind == '$' || reply->kind == '=')
        return skip_bytes(link, (size_t)reply->number + 2);
    if (strchr("*~>%", reply->kind) == NULL)
        return 0;
    if (depth == 0)
        return speaks_otherwise(link);
    return skip_parts(link, reply->kind == '%' ? 2 * reply->number : reply->number, depth - 1);
}

/* Return whether JSON writes each byte of a key as it is. */
static int is_plain(const char *key, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)key[i] < ' ' || (unsigned char)key[i] >= 0x7f || key[i] == '"' ||
            key[i] == '\\')
            return 0;
    return 1;
}

/* Read a message without a request: a watched key has changed. From a Redis it names the keys that
 * a batch has changed, so most messages do not concern this client. */
static int read_push(struct link *link, int64_t count)
{
    char text[2048] = "";

    for (; count > 0; count--) {
        struct reply part;

        if (read_line(link, &part) != 0)
            return LOST;
        if (count > 1 || part.kind != '$' || part.number > (int64_t)sizeof text) {
            if (skip_rest(link, &part, 4) != 0)
                return LOST;
            link->has_changed |= count == 1;
            continue;
        }
        if (read_bytes(link, text, (size_t)part.number) != 0 || read_end(link) != 0)
            return LOST;
        link->has_changed |=
            link->watched == NULL || text[0] != '[' ||
            !is_plain(link->watched, link->watched_bytes) ||
            memmem(text, (size_t)part.number, link->watched, link->watched_bytes) != NULL;
    }
    return 0;
}

/* Read the head of the next reply. */
static int read_head(struct link *link, struct reply *reply)
{
    for (;;) {
        if (read_line(link, reply) != 0)
            return LOST;
        if (reply->kind != '>')
            return 0;
        if (read_push(link, reply->number) != 0)
            return LOST;
    }
}

/* Read a string, of which the head was read, and allocate it; it ends with a NUL. */
static int read_string(struct link *link, const struct reply *reply, char **string)
{
    char *bytes = malloc((size_t)reply->number + 1);

    if (bytes == NULL) {
        close_link(link); /* the rest of the reply is still to come */
        return out_of_memory();
    }
    if (read_bytes(link, bytes, (size_t)reply->number) != 0 || read_end(link) != 0) {
        free(bytes);
        return LOST;
    }
    bytes[reply->number] = '\0';
    *string = bytes;
    return 0;
}

/* --- a base: where it is, a connection, and the number of the latest batch --- */

struct place {
    int is_redis;
    char name[300]; /* how messages call it */
    char host[256];
    char port[8];
    char user[128], password[256], database[12];
    char role[16];
    unsigned char secret[SECRET_BYTES];
};

struct base {
    struct place place;
    pid_t pid;
    pthread_mutex_t lock;
    double timeout_s;
    double progress_s; /* when a part of a long operation has succeeded */
    uint64_t number;
    char request_key[REQUEST_KEY_BYTES]; /* of the row with the latest number, in a Redis */
    struct link link;
};

/* The key of that row ends in the name of the client. */
#define CLIENT_OF(base) ((base)->request_key + REQUEST_KEY_BYTES - CLIENT_BYTES)

static int random_bytes(void *to, size_t size)
{
    if (getrandom(to, size, 0) == (ssize_t)size) /* a small number of bytes is never cut */
        return 0;
    return fail(CIEL_KV_FAILED, "no random numbers: ", strerror(errno), NULL);
}

/* Set up a base whose place is known already. */
static int begin_base(struct base *base)
{
    base->pid = getpid();
    base->timeout_s = TIMEOUT_S;
    base->link.fd = -1;
    base->link.receive_max = IN_BYTES;
    memcpy(base->request_key, REQUEST_PREFIX, sizeof REQUEST_PREFIX - 1);
    pthread_mutex_init(&base->lock, NULL);
    return random_bytes(CLIENT_OF(base), CLIENT_BYTES);
}

static void end_base(struct base *base)
{
    close_link(&base->link);
    if (base->pid == getpid()) /* after fork() a thread that does not exist may hold it */
        pthread_mutex_destroy(&base->lock);
}

static int enter(struct base *base)
{
    if (base->pid != getpid())
        return fail(CIEL_KV_INVALID, base->place.name,
                    " was opened before fork(): open it in this process", NULL);
    pthread_mutex_lock(&base->lock);
    return 0;
}

static int leave(struct base *base, int status)
{
    pthread_mutex_unlock(&base->lock);
    return status;
}

static int begins(const struct reply *reply, const char *code)
{
    size_t size = strlen(code);

    return reply->line_bytes >= size && memcmp(reply->line, code, size) == 0;
}

/* Return the status of a refused batch: "REFUSED reason step". */
static int refused(const struct reply *reply, const struct batch *batch)
{
    static const struct {
        const char *code;
        int status;
        const char *text;
    } reasons[] = {
        {"REFUSED PRESENT ", CIEL_KV_EXISTS, " is in the base already"},
        {"REFUSED MISSING ", CIEL_KV_MISSING, " is not in the base"},
        {"REFUSED CHANGED ", CIEL_KV_CHANGED, " has another value than expected"},
        {"REFUSED NUMBER ", CIEL_KV_WRONG_TYPE,
         " cannot be incremented: the value or the sum is no integer of 64 bits"},
    };

    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        size_t size = strlen(reasons[i].code);
        int64_t place;
        char key[96];

        if (!begins(reply, reasons[i].code) ||
            !parse_integer(reply->line + size, reply->line_bytes - size, &place) || place < 0 ||
            (uint64_t)place >= batch->count)
            continue;
        const struct step *step = batch->steps + place;
        return fail(reasons[i].status, shown(step->key, step->key_bytes, key), reasons[i].text,
                    NULL);
    }
    return CIEL_KV_FAILED;
}

/* Return the status of a reply that is an error. `batch`: what was asked for, or NULL. */
static int error_of(struct base *base, const struct reply *reply, const struct batch *batch)
{
    static const struct {
        const char *code;
        int status;
    } codes[] = {
        {"WRONGPASS", CIEL_KV_DENIED},     {"NOAUTH", CIEL_KV_DENIED}, {"NOPERM", CIEL_KV_DENIED},
        {"WRONGTYPE", CIEL_KV_WRONG_TYPE}, {"OOM", CIEL_KV_FULL},      {"LIMIT", CIEL_KV_TOO_LARGE},
    };
    char line[256];
    size_t size = reply->line_bytes < sizeof line - 1 ? reply->line_bytes : sizeof line - 1;
    int status = CIEL_KV_FAILED;

    memcpy(line, reply->line, size);
    line[size] = '\0';
    if (begins(reply, "LOADING"))
        return lose(&base->link, "it is loading its rows");
    if (begins(reply, "STALE ") && batch != NULL) {
        fail(CIEL_KV_FAILED, base->place.name,
             " has carried out a later change: the outcome is forgotten", NULL);
        return STALE;
    }
    if (batch != NULL && (status = refused(reply, batch)) != CIEL_KV_FAILED)
        return status;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (begins(reply, codes[i].code))
            status = codes[i].status;
    return fail(status, base->place.name, ": ", line, NULL);
}

/* Read a reply whose content is not needed. */
static int read_status(struct base *base)
{
    struct reply reply;

    if (read_head(&base->link, &reply) != 0)
        return LOST;
    return reply.kind == '-' ? error_of(base, &reply, NULL) : skip_rest(&base->link, &reply, 8);
}

/* --- connecting --- */

/* Connect a socket within REPLY_S. */
static int connect_socket(int fd, const struct addrinfo *to)
{
    struct pollfd one = {fd, POLLOUT, 0};
    double until_s = now_s() + REPLY_S;
    int error = 0;
    socklen_t size = sizeof error;

    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0)
        return 0;
    if (errno != EINPROGRESS && errno != EINTR)
        return -1;
    for (;;) {
        int left_ms = (int)((until_s - now_s()) * 1000);
        int ready = left_ms <= 0 ? 0 : poll(&one, 1, left_ms);

        if (ready > 0)
            break;
        if (ready == 0)
            errno = ETIMEDOUT;
        if (ready == 0 || errno != EINTR)
            return -1;
    }
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    return error == 0 ? 0 : -1;
}

static int open_socket(struct base *base)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    struct timeval limit = {.tv_sec = REPLY_S};
    int on = 1, error = getaddrinfo(base->place.host, base->place.port, &hints, &found);

    if (error != 0)
        return lose(&base->link, gai_strerror(error));
    errno = EADDRNOTAVAIL;
    for (struct addrinfo *at = found; at != NULL && base->link.fd < 0; at = at->ai_next) {
        int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (fd >= 0 && connect_socket(fd, at) == 0) {
            base->link.fd = fd;
        } else if (fd >= 0) {
            error = errno;
            close(fd);
            errno = error;
        }
    }
    error = errno;
    freeaddrinfo(found);
    errno = error;
    if (base->link.fd < 0)
        return lose(&base->link, strerror(errno));
    fcntl(base->link.fd, F_SETFL, 0);
    setsockopt(base->link.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(base->link.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(base->link.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    return 0;
}

/* Return whether a secret is right, in a time that does not depend on it. */
static int is_equal(const unsigned char *one, const unsigned char *two)
{
    unsigned differences = 0;

    for (int i = 0; i < SECRET_BYTES; i++)
        differences |= one[i] ^ two[i];
    return differences == 0;
}

static void prove(const struct place *place, const char *side, const unsigned char *own,
                  const unsigned char *theirs, unsigned char proof[SECRET_BYTES])
{
    struct field fields[] = {
        FIELD("ciel-1"), FIELD("proof"),      FIELD(place->role),
        FIELD(side),     {own, SECRET_BYTES}, {theirs, SECRET_BYTES},
    };

    mac(place->secret, fields, 6, proof);
}

/* Prove the key to a ciel-kv, and let it prove the key. */
static int authenticate(struct base *base)
{
    struct link *link = &base->link;
    unsigned char nonce[SECRET_BYTES], theirs[2][SECRET_BYTES] = {{0}}, proof[SECRET_BYTES];
    struct reply reply;

    if (random_bytes(nonce, sizeof nonce) != 0)
        return CIEL_KV_FAILED;
    command(link, 3);
    word_text(link, "CIEL.AUTH");
    word_text(link, base->place.role);
    word(link, nonce, sizeof nonce);
    if (flush(link, 0) != 0 || read_head(link, &reply) != 0)
        return LOST;
    if (reply.kind == '-')
        return error_of(base, &reply, NULL) == LOST ? LOST : CIEL_KV_DENIED;
    if (reply.kind != '*' || reply.number != 2)
        return speaks_otherwise(link);
    for (int i = 0; i < 2; i++) {
        if (read_head(link, &reply) != 0)
            return LOST;
        if (reply.kind != '$' || reply.number != SECRET_BYTES)
            return speaks_otherwise(link);
        if (read_bytes(link, (char *)theirs[i], SECRET_BYTES) != 0 || read_end(link) != 0)
            return LOST;
    }
    prove(&base->place, "acceptor", nonce, theirs[0], proof);
    if (!is_equal(proof, theirs[1]))
        return fail(CIEL_KV_DENIED, base->place.name, " does not have the key of this cluster",
                    NULL);
    prove(&base->place, "initiator", nonce, theirs[0], proof);
    command(link, 2);
    word_text(link, "CIEL.PROVE");
    word(link, proof, sizeof proof);
    return flush(link, 0) != 0 ? LOST : read_status(base);
}

static int log_in(struct base *base)
{
    const struct place *place = &base->place;
    struct link *link = &base->link;
    int status = 0;

    if (place->password[0] != '\0') {
        command(link, place->user[0] != '\0' ? 3 : 2);
        word_text(link, "AUTH");
        if (place->user[0] != '\0')
            word_text(link, place->user);
        word_text(link, place->password);
        status = flush(link, 0) != 0 ? LOST : read_status(base);
        if (status == CIEL_KV_FAILED)
            status = CIEL_KV_DENIED;
    }
    if (status == 0 && place->database[0] != '\0') {
        command(link, 2);
        word_text(link, "SELECT");
        word_text(link, place->database);
        status = flush(link, 0) != 0 ? LOST : read_status(base);
    }
    return status;
}

/* Let the server report when the watched key changes. Without RESP 3, which old servers do not
 * speak, it does not, and the client polls. */
static int watch(struct base *base)
{
    struct link *link = &base->link;
    int status;

    command(link, 2);
    word_text(link, "HELLO");
    word_text(link, "3");
    status = flush(link, 0) != 0 ? LOST : read_status(base);
    if (status != 0)
        return status == LOST ? LOST : 0;
    command(link, 2);
    word_text(link, base->place.is_redis ? "SUBSCRIBE" : "CIEL.WATCH");
    if (!base->place.is_redis) {
        word(link, link->watched, link->watched_bytes);
        return flush(link, 0) != 0 ? LOST : read_status(base);
    }
    word_text(link, "ciel.changed"); /* the reply is a message without a request */
    return flush(link, 0);
}

static int open_link(struct base *base)
{
    int status = open_socket(base);

    if (status == 0)
        status = base->place.is_redis ? log_in(base) : authenticate(base);
    if (status == 0 && base->link.watched != NULL)
        status = watch(base);
    if (status != 0)
        close_link(&base->link);
    return status;
}

/* Try an operation, which takes its arguments and leaves its results in `context`, until the base
 * answers. */
static int persist(struct base *base, int (*attempt)(struct base *base, void *context),
                   void *context)
{
    int pause_ms = RETRY_MIN_MS;

    base->progress_s = now_s();
    for (;;) {
        int status;

        base->link.lost = NULL;
        status = base->link.fd >= 0 ? 0 : open_link(base);
        if (status == 0)
            status = attempt(base, context);
        if (status != LOST)
            return status;
        close_link(&base->link);
        if (now_s() > base->progress_s + base->timeout_s)
            return fail(CIEL_KV_UNREACHABLE, base->place.name,
                        " does not answer: ", base->link.lost,
                        "; the operation may have been carried out", NULL);
        pause_s(pause_ms * 1e-3);
        pause_ms = 2 * pause_ms < RETRY_MAX_MS ? 2 * pause_ms : RETRY_MAX_MS;
    }
}

/* --- batches for ciel-kv --- */

/* Write a lifetime in seconds to twice NUMBER_BYTES: empty if it has no end. */
static const char *ttl_text(double ttl_s, char *to)
{
    uint64_t us = (uint64_t)(ttl_s * 1e6);
    char digits[NUMBER_BYTES];

    if (ttl_s <= 0)
        return "";
    char *end = stpcpy(to, unsigned_text(us / 1000000, digits));
    *end++ = '.';
    strcpy(end, padded(us % 1000000, 6, digits));
    return to;
}

static void put_step(struct link *link, const struct step *step)
{
    char text[2 * NUMBER_BYTES];

    word(link, &step->letter, 1);
    word(link, step->key, step->key_bytes);
    if (strchr("PIUS", step->letter) != NULL)
        word_value(link, &step->value);
    if (strchr("PIT", step->letter) != NULL)
        word_text(link, ttl_text(step->ttl_s, text));
    if (step->letter == '+')
        word_text(link, integer_text(step->by, text));
}

static void put_batch(struct base *base, const struct batch *batch)
{
    struct link *link = &base->link;
    char text[NUMBER_BYTES];
    size_t words = 4;

    for (size_t i = 0; i < batch->count; i++)
        words += arguments_of(batch->steps + i);
    command(link, words);
    word_text(link, "CIEL.BATCH");
    word(link, CLIENT_OF(base), CLIENT_BYTES);
    word_text(link, unsigned_text(batch->number, text));
    word_text(link, KEPT_TEXT);
    for (size_t i = 0; i < batch->count; i++)
        put_step(link, batch->steps + i);
}

static int read_results(struct base *base, const struct batch *batch)
{
    struct reply reply;

    if (read_head(&base->link, &reply) != 0)
        return LOST;
    if (reply.kind == '-')
        return error_of(base, &reply, batch);
    if (reply.kind != '*' || (uint64_t)reply.number != batch->count)
        return speaks_otherwise(&base->link);
    for (size_t i = 0; i < batch->count; i++) {
        if (read_head(&base->link, &reply) != 0)
            return LOST;
        if (reply.kind != ':' && reply.kind != '_')
            return speaks_otherwise(&base->link);
        if (batch->results != NULL)
            batch->results[i] = reply.kind == ':' ? reply.number : 0;
    }
    return 0;
}

static int try_batch(struct base *base, void *context)
{
    put_batch(base, context);
    return flush(&base->link, 0) != 0 ? LOST : read_results(base, context);
}

/* --- batches for Redis --- */

/* Different keys, each with its place. */
struct keys {
    struct field *keys;
    size_t count, room;
    size_t *table; /* places, from 1; 0: free */
    size_t mask;   /* the size of the table less 1; the size is a power of 2 */
};

static size_t *slot_of(const struct keys *keys, const char *key, size_t size)
{
    uint64_t hash = 14695981039346656037U;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)key[i]) * 1099511628211U;
    for (size_t at = (size_t)(hash ^ hash >> 32);; at++) {
        size_t *slot = keys->table + (at & keys->mask);
        const struct field *found = keys->keys + *slot - 1;

        if (*slot == 0 || (found->size == size && memcmp(found->bytes, key, size) == 0))
            return slot;
    }
}

/* Make room for one more key. Return -1 if memory lacks. */
static int grow_keys(struct keys *keys)
{
    size_t room = keys->room == 0 ? 64 : 2 * keys->room;
    struct field *grown = realloc(keys->keys, room * sizeof *grown);
    size_t *table;

    if (grown == NULL)
        return -1;
    keys->keys = grown;
    table = calloc(2 * room, sizeof *table);
    if (table == NULL)
        return -1;
    free(keys->table);
    keys->table = table;
    keys->mask = 2 * room - 1;
    keys->room = room;
    for (size_t i = 0; i < keys->count; i++)
        *slot_of(keys, grown[i].bytes, grown[i].size) = i + 1;
    return 0;
}

/* Return the place of a key, which is added at the end if it is not there; SIZE_MAX if memory
 * lacks. */
static size_t place_of(struct keys *keys, const char *key, size_t size)
{
    size_t *slot;

    if (keys->count == keys->room && grow_keys(keys) != 0)
        return SIZE_MAX;
    slot = slot_of(keys, key, size);
    if (*slot == 0) {
        keys->keys[keys->count++] = (struct field){key, size};
        *slot = keys->count;
    }
    return *slot - 1;
}

static void free_keys(struct keys *keys)
{
    free(keys->keys);
    free(keys->table);
    *keys = (struct keys){0};
}

/* A row that a batch reads or writes. */
struct row {
    char *found; /* its value in the base; NULL: missing, or not read */
    size_t found_bytes;
    int is_read; /* the batch depends on what it is before */
    int is_there, is_written;
    struct value value; /* as it is after the steps so far */
    double ttl_s;       /* for a written row; 0: no end; less: its lifetime stays */
    char number[NUMBER_BYTES];
};

struct view {
    struct keys keys;
    struct row *rows;   /* by the place of the key */
    struct text stored; /* the row with the results, which the last key has */
};

static void free_view(struct view *view)
{
    for (size_t i = 0; view->rows != NULL && i < view->keys.count; i++)
        free(view->rows[i].found);
    free(view->rows);
    free(view->stored.bytes);
    free_keys(&view->keys);
}

/* Find the rows of a batch. Rows that it only puts need not be read. */
static int begin_view(struct view *view, const struct base *base, const struct batch *batch)
{
    *view = (struct view){.rows = calloc(batch->count + 1, sizeof *view->rows)};
    if (view->rows == NULL)
        return out_of_memory();
    for (size_t i = 0; i < batch->count; i++) {
        const struct step *step = batch->steps + i;
        size_t place = place_of(&view->keys, step->key, step->key_bytes);

        if (place == SIZE_MAX)
            return out_of_memory();
        view->rows[place].is_read |= strchr("PE", step->letter) == NULL;
    }
    size_t place = place_of(&view->keys, base->request_key, REQUEST_KEY_BYTES);
    if (place == SIZE_MAX)
        return out_of_memory();
    view->rows[place].is_read = 1;
    return 0;
}

/* Put a command with the keys of the rows to read; return how many there are. */
static size_t put_keys(struct link *link, const struct view *view, const char *name)
{
    size_t count = 0;

    for (size_t i = 0; i < view->keys.count; i++)
        count += view->rows[i].is_read != 0;
    command(link, count + 1);
    word_text(link, name);
    for (size_t i = 0; i < view->keys.count; i++)
        if (view->rows[i].is_read)
            word(link, view->keys.keys[i].bytes, view->keys.keys[i].size);
    return count;
}

/* Watch the rows of a batch, and read them. */
static int read_view(struct base *base, struct view *view)
{
    struct link *link = &base->link;
    size_t count;
    struct reply reply;
    int status;

    put_keys(link, view, "WATCH");
    count = put_keys(link, view, "MGET");
    if (flush(link, 0) != 0)
        return LOST;
    status = read_status(base);
    if (status == LOST || read_head(link, &reply) != 0)
        return LOST;
    if (reply.kind == '-')
        return status != 0 ? status : error_of(base, &reply, NULL);
    if (status != 0 || reply.kind != '*' || (uint64_t)reply.number != count)
        return speaks_otherwise(link);
    for (size_t i = 0; i < view->keys.count; i++) {
        struct row *row = view->rows + i;

        if (!row->is_read)
            continue;
        if (read_head(link, &reply) != 0)
            return LOST;
        if (reply.kind == '_')
            continue;
        if (reply.kind != '$')
            return speaks_otherwise(link);
        status = read_string(link, &reply, &row->found);
        if (status != 0)
            return status;
        row->found_bytes = (size_t)reply.number;
        row->is_there = 1;
        row->value = (struct value){0, row->found, row->found_bytes};
    }
    return 0;
}

static void write_row(struct row *row, struct value value, double ttl_s)
{
    row->is_there = row->is_written = 1;
    row->value = value;
    row->ttl_s = ttl_s;
}

/* Set the value of a row, which keeps its lifetime. */
static void replace_row(struct row *row, struct value value)
{
    write_row(row, value, row->is_written ? row->ttl_s : -1);
}

static int increment_row(struct row *row, int64_t by, int64_t *sum)
{
    int64_t before = 0;

    if (row->is_there &&
        (row->value.mark != 0 || !parse_integer(row->value.bytes, row->value.size, &before)))
        return 0;
    if (__builtin_add_overflow(before, by, sum))
        return 0;
    /* The digits before may be those of an earlier step, so they are parsed already. */
    const char *digits = integer_text(*sum, row->number);
    struct value value = {0, digits, strlen(digits)};
    if (row->is_there)
        replace_row(row, value);
    else
        write_row(row, value, 0);
    return 1;
}

/* Carry out a step, as `ciel.state.batches` does it; return the reason why it is refused, or
 * NULL. */
static const char *carry_out_step(const struct step *step, struct row *row, int64_t *sum)
{
    switch (step->letter) {
    case 'I':
        if (row->is_there)
            return "PRESENT";
        write_row(row, step->value, step->ttl_s);
        return NULL;
    case 'P':
        write_row(row, step->value, step->ttl_s);
        return NULL;
    case 'U':
        if (!row->is_there)
            return "MISSING";
        replace_row(row, step->value);
        return NULL;
    case 'D':
        if (!row->is_there)
            return "MISSING";
        /* fall through */
    case 'E':
        row->is_there = 0;
        row->is_written = 1;
        return NULL;
    case 'T':
        if (!row->is_there)
            return "MISSING";
        write_row(row, row->value, step->ttl_s);
        return NULL;
    case 'S':
        return row->is_there && is_same(&row->value, &step->value) ? NULL : "CHANGED";
    case 'N':
        return row->is_there ? "CHANGED" : NULL;
    default:
        return increment_row(row, step->by, sum) ? NULL : "NUMBER";
    }
}

/* Carry out all steps on the view, and write the row with the results: [number, result, ...]. */
static int carry_out(struct base *base, const struct batch *batch, struct view *view)
{
    char text[NUMBER_BYTES], line[64];

    add_text(&view->stored, "[");
    add_text(&view->stored, unsigned_text(batch->number, text));
    for (size_t i = 0; i < batch->count; i++) {
        const struct step *step = batch->steps + i;
        struct row *row = view->rows + place_of(&view->keys, step->key, step->key_bytes);
        int64_t sum = 0;
        const char *reason = carry_out_step(step, row, &sum);

        if (reason != NULL) {
            strcat(strcat(strcat(strcpy(line, "REFUSED "), reason), " "), unsigned_text(i, text));
            return error_of(base, &(struct reply){'-', 0, line, strlen(line)}, batch);
        }
        if (batch->results != NULL)
            batch->results[i] = sum;
        add_text(&view->stored, ",");
        add_text(&view->stored, step->letter == '+' ? integer_text(sum, text) : "null");
    }
    add_text(&view->stored, "]");
    if (view->stored.is_cut)
        return out_of_memory();
    write_row(view->rows + view->keys.count - 1,
              (struct value){0, view->stored.bytes, view->stored.size}, KEPT_S);
    return 0;
}

/* Take the results from a row that `carry_out` has stored. */
static void take_results(const struct batch *batch, const char *at)
{
    for (size_t i = 0; i < batch->count && batch->results != NULL; i++) {
        at = strpbrk(at, ",");
        if (at == NULL)
            return;
        at++;
        batch->results[i] = strtoll(at, NULL, 10); /* 0 for null */
    }
}

/* Put the message that tells watching clients which keys have changed: a list in JSON, in which
 * each byte of a key is a character. */
static int put_message(struct link *link, struct view *view, struct text *text)
{
    static const char hex[] = "0123456789abcdef";

    for (size_t i = 0; i + 1 < view->keys.count; i++) {
        const unsigned char *key = view->keys.keys[i].bytes;

        if (!view->rows[i].is_written)
            continue;
        add_text(text, text->size == 0 ? "[\"" : "\",\"");
        for (size_t k = 0; k < view->keys.keys[i].size; k++) {
            char escaped[] = {'\\', 'u', '0', '0', hex[key[k] >> 4], hex[key[k] & 15]};
            char two[] = {(char)(0xC0 | key[k] >> 6), (char)(0x80 | (key[k] & 63))};

            if (key[k] < ' ')
                add(text, escaped, sizeof escaped);
            else if (key[k] >= 0x80)
                add(text, two, sizeof two);
            else if (key[k] == '"' || key[k] == '\\')
                add(text, (char[]){'\\', (char)key[k]}, 2);
            else
                add(text, key + k, 1);
        }
    }
    if (text->size == 0)
        return 0;
    add_text(text, "\"]");
    command(link, 3);
    word_text(link, "PUBLISH");
    word_text(link, "ciel.changed");
    word(link, text->bytes, text->is_cut ? 0 : text->size);
    return 1;
}

static void put_row(struct link *link, const struct field *key, const struct row *row)
{
    char text[NUMBER_BYTES];
    double ms = row->ttl_s * 1000;

    command(link, !row->is_there ? 2 : row->ttl_s == 0 ? 3 : row->ttl_s < 0 ? 4 : 5);
    word_text(link, row->is_there ? "SET" : "DEL");
    word(link, key->bytes, key->size);
    if (!row->is_there)
        return;
    word_value(link, &row->value);
    if (row->ttl_s < 0)
        word_text(link, "KEEPTTL");
    if (row->ttl_s > 0) {
        word_text(link, "PX");
        word_text(link, unsigned_text(ms < 1 ? 1 : (uint64_t)ms, text));
    }
}

/* Read the reply of EXEC, after an error or not: nothing if another client has changed a row. */
static int read_exec(struct base *base, int status)
{
    struct reply reply;

    if (read_head(&base->link, &reply) != 0)
        return LOST;
    if (reply.kind == '_')
        return status != 0 ? status : AGAIN;
    if (reply.kind != '*' && reply.kind != '-')
        return speaks_otherwise(&base->link);
    if (reply.kind == '-')
        return status != 0 ? status : error_of(base, &reply, NULL);
    for (int64_t left = reply.number; left > 0; left--) {
        int one = read_status(base);

        if (one == LOST)
            return LOST;
        if (status == 0)
            status = one;
    }
    return status;
}

static int write_view(struct base *base, struct view *view, struct text *message)
{
    struct link *link = &base->link;
    size_t commands = 1;
    int status = 0;

    command(link, 1);
    word_text(link, "MULTI");
    for (size_t i = 0; i < view->keys.count; i++)
        if (view->rows[i].is_written) {
            put_row(link, view->keys.keys + i, view->rows + i);
            commands++;
        }
    commands += (size_t)put_message(link, view, message);
    command(link, 1);
    word_text(link, "EXEC");
    if (flush(link, 0) != 0)
        return LOST;
    for (; commands > 0; commands--) {
        int one = read_status(base);

        if (one == LOST)
            return LOST;
        if (status == 0)
            status = one;
    }
    return read_exec(base, status);
}

static int unwatch(struct base *base)
{
    command(&base->link, 1);
    word_text(&base->link, "UNWATCH");
    return flush(&base->link, 0) != 0 ? LOST : read_status(base);
}

/* Carry out a batch, unless another client changes a row meanwhile: AGAIN. */
static int try_view(struct base *base, const struct batch *batch, struct view *view)
{
    struct text message = {0};
    int64_t latest = 0;
    int status = begin_view(view, base, batch);

    if (status == 0)
        status = read_view(base, view);
    if (status != 0)
        return status;
    const struct row *request = view->rows + view->keys.count - 1;
    if (request->found != NULL) {
        const char *digits = request->found + (request->found_bytes > 0);

        if (!parse_integer(digits, strcspn(digits, ",]"), &latest))
            return fail(CIEL_KV_FAILED, base->place.name, " has a damaged row of this client",
                        NULL);
    }
    if ((uint64_t)latest > batch->number)
        status = error_of(base, &(struct reply){'-', 0, "STALE ", 6}, batch);
    else if ((uint64_t)latest == batch->number)
        take_results(batch, request->found);
    else
        status = carry_out(base, batch, view);
    if (status != 0 || (uint64_t)latest == batch->number)
        return base->link.fd < 0 ? status : unwatch(base) == LOST ? LOST : status;
    status = write_view(base, view, &message);
    free(message.bytes);
    return status;
}

static int try_redis(struct base *base, void *context)
{
    for (;;) {
        struct view view;
        int status = try_view(base, context, &view);

        free_view(&view);
        if (status != AGAIN)
            return status;
        pause_s((double)((uint64_t)(now_s() * 1e9) % 2000) * 1e-6); /* clients do not meet again */
    }
}

/* Carry out a batch once. `results` may be NULL. The caller has entered the base. */
static int apply(struct base *base, const struct step *steps, size_t count, int64_t *results)
{
    struct batch batch = {steps, count, results, 0};
    int status = check_steps(steps, count);

    if (status != 0)
        return status;
    batch.number = ++base->number;
    status = persist(base, base->place.is_redis ? try_redis : try_batch, &batch);
    return status == STALE ? CIEL_KV_FAILED : status;
}

/* --- opening --- */

struct ciel_kv {
    struct base base;
    size_t head_bytes, inner_bytes; /* of the prefixes of rows, and of locks */
    char head[224], inner[224];
};

static int bad_url(const char *url)
{
    const char *named = strchr(url, '@') != NULL ? "a URL" : url; /* no message shows a password */

    return fail(CIEL_KV_INVALID, named,
                " names no base: ciel-kv://HOST:PORT or "
                "redis://[USER:PASSWORD@]HOST:PORT[/NUMBER]",
                NULL);
}

/* Copy a part of a URL, in which % and two digits stand for a byte; -1 if it is too long. */
static int copy_part(char *to, size_t room, const char *from, size_t size)
{
    size_t length = 0;

    for (size_t i = 0; i < size; i++) {
        struct json digits = {(const unsigned char *)"00", NULL, 0};
        char four[] = {'0', '0', '0', '0'};
        int byte = (unsigned char)from[i];

        if (from[i] == '%' && size - i > 2) {
            memcpy(four + 2, from + i + 1, 2);
            digits = (struct json){(unsigned char *)four, (unsigned char *)four + 4, 0};
            byte = json_hex(&digits);
            if (byte < 0)
                return -1;
            i += 2;
        }
        if (length + 1 >= room)
            return -1;
        to[length++] = (char)byte;
    }
    to[length] = '\0';
    return 0;
}

/* Parse HOST:PORT, or [ADDRESS]:PORT. */
static int parse_host(struct place *place, const char *host, size_t size)
{
    const char *end = host + size, *colon = memrchr(host, ':', size), *stop;
    int64_t port;

    if (colon != NULL && memchr(colon, ']', (size_t)(end - colon)) != NULL)
        colon = NULL; /* it belongs to the address */
    stop = colon == NULL ? end : colon;
    if (colon != NULL &&
        (!parse_integer(colon + 1, (size_t)(end - colon - 1), &port) || port < 1 || port > 65535 ||
         end - colon > 6 ||
         copy_part(place->port, sizeof place->port, colon + 1, (size_t)(end - colon - 1)) != 0))
        return -1;
    if (stop > host + 1 && host[0] == '[' && stop[-1] == ']') {
        host++;
        stop--;
    }
    return copy_part(place->host, sizeof place->host, host, (size_t)(stop - host));
}

static int parse_url(struct place *place, const char *url)
{
    const char *start = strstr(url, "://"), *slash, *at, *colon;

    if (strncmp(url, "lmdb:", 5) == 0 || strncmp(url, "memory:", 7) == 0)
        return fail(CIEL_KV_LACKING, url,
                    " cannot be opened by a program in C: start a ciel-kv, and the cluster "
                    "with `ciel up --kv ciel-kv://HOST:PORT` (docs/kv.md)",
                    NULL);
    if (strncmp(url, "etcd:", 5) == 0 || strncmp(url, "rediss:", 7) == 0)
        return fail(
            CIEL_KV_LACKING, url[0] == 'e' ? "an etcd" : "a Redis with TLS",
            " cannot be opened by a program in C: use a base ciel-kv://HOST:PORT (docs/kv.md) or "
            "redis://HOST:PORT",
            NULL);
    if (start == NULL || strpbrk(url, "?#") != NULL)
        return bad_url(url);
    place->is_redis = strncmp(url, "redis://", 8) == 0;
    if (!place->is_redis && strncmp(url, "ciel-kv://", 10) != 0)
        return bad_url(url);
    start += 3;
    slash = strchrnul(start, '/');
    at = memrchr(start, '@', (size_t)(slash - start));
    if (at != NULL) {
        colon = memchr(start, ':', (size_t)(at - start));
        if (!place->is_redis ||
            copy_part(place->user, sizeof place->user, start,
                      (size_t)((colon != NULL ? colon : at) - start)) != 0 ||
            (colon != NULL && copy_part(place->password, sizeof place->password, colon + 1,
                                        (size_t)(at - colon - 1)) != 0))
            return fail(CIEL_KV_INVALID,
                        "the user or the password in the URL of the base cannot be used", NULL);
        start = at + 1;
    }
    if (place->is_redis)
        strcpy(place->port, "6379");
    if (parse_host(place, start, (size_t)(slash - start)) != 0)
        return bad_url(url);
    if (place->is_redis && place->host[0] == '\0')
        strcpy(place->host, "localhost");
    if (place->host[0] == '\0' || place->port[0] == '\0')
        return bad_url(url);
    if (slash[0] == '/' && slash[1] != '\0' &&
        (!place->is_redis || strlen(slash + 1) > 10 ||
         strspn(slash + 1, "0123456789") != strlen(slash + 1)))
        return bad_url(url);
    if (place->is_redis && slash[0] == '/' && strcmp(slash + 1, "0") != 0)
        strcpy(place->database, slash + 1);
    strcat(strcat(strcat(strcpy(place->name, place->is_redis ? "the Redis at " : "the base at "),
                         place->host),
                  ":"),
           place->port);
    return 0;
}

/* Parse a key: 64 hexadecimal digits, after its role and '-' unless it is the key of a cluster. */
static int parse_key(struct place *place, const char *text, size_t size)
{
    const char *dash = memrchr(text, '-', size), *digits = dash == NULL ? text : dash + 1;
    size_t role_bytes = dash == NULL ? 0 : (size_t)(dash - text);
    struct field fields[] = {FIELD("ciel-1"), FIELD("role"), FIELD("kv")};

    if ((size_t)(text + size - digits) != 2 * SECRET_BYTES || role_bytes >= sizeof place->role)
        return -1;
    for (int i = 0; i < SECRET_BYTES; i++) {
        char four[] = {'0', '0', digits[2 * i], digits[2 * i + 1]};
        struct json json = {(unsigned char *)four, (unsigned char *)four + 4, 0};
        int byte = json_hex(&json);

        if (byte < 0)
            return -1;
        place->secret[i] = (unsigned char)byte;
    }
    memcpy(place->role, text, role_bytes);
    place->role[role_bytes] = '\0';
    if (role_bytes == 0 || strcmp(place->role, "admin") == 0) {
        mac(place->secret, fields, 3, place->secret);
        strcpy(place->role, "kv");
    }
    return 0;
}

static int read_key(struct place *place, const char *path)
{
    char text[256];
    ssize_t size = -1;
    int fd;

    if (path == NULL || path[0] == '\0')
        return fail(CIEL_KV_DENIED, place->name,
                    " needs the key of its cluster: set CIEL_KV_KEY_FILE", NULL);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        size = read(fd, text, sizeof text);
        close(fd);
    }
    if (size < 0)
        return fail(CIEL_KV_DENIED, "the key of the base cannot be read: ", path, ": ",
                    strerror(errno), NULL);
    while (size > 0 && strchr(" \t\r\n", text[size - 1]) != NULL)
        size--;
    if (parse_key(place, text, (size_t)size) != 0)
        return fail(CIEL_KV_DENIED, path, " has no key, which `ciel key kv` prints", NULL);
    return 0;
}

static int set_name(struct ciel_kv *kv, const char *name, const char *cluster_id,
                    const char *job_id)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    char *end = kv->head;

    if (name == NULL || strlen(name) > 64 || strspn(name, allowed) != strlen(name))
        return fail(CIEL_KV_INVALID,
                    "a name of rows has 1 to 64 letters, digits, and the signs _ . -", NULL);
    if (job_id != NULL) {
        if (strlen(cluster_id) > 64 || strlen(job_id) > 64)
            return fail(CIEL_KV_INVALID, "the id of the cluster or of the job is too long", NULL);
        end = stpcpy(stpcpy(stpcpy(stpcpy(end, "@"), cluster_id), "/"), job_id);
        end = stpcpy(end, "/");
    }
    end = stpcpy(end, name);
    memcpy(kv->inner, kv->head, (size_t)(end - kv->head));
    kv->inner_bytes = (size_t)(end - kv->head) + 1;
    kv->inner[kv->inner_bytes - 1] = '!';
    if (name[0] != '\0')
        *end++ = ':';
    kv->head_bytes = (size_t)(end - kv->head);
    return 0;
}

/* Open a base; return NULL, with errno. */
static struct ciel_kv *open_kv(const char *url, const char *key_file, const char *name,
                               const char *cluster_id, const char *job_id)
{
    struct ciel_kv *kv = NULL;
    int status;

    if (url == NULL || url[0] == '\0')
        status = fail(CIEL_KV_MISSING,
                      "there is no key-value base here: CIEL_KV is not set, so the worker was "
                      "started without one: ciel-worker --kv URL",
                      NULL);
    else
        status = (kv = calloc(1, sizeof *kv)) == NULL ? out_of_memory() : 0;
    if (status == 0)
        status = parse_url(&kv->base.place, url);
    if (status == 0 && !kv->base.place.is_redis)
        status = read_key(&kv->base.place, key_file);
    if (status == 0)
        status = set_name(kv, name, cluster_id, job_id);
    if (status == 0)
        status = begin_base(&kv->base);
    if (status != 0) {
        free(kv);
        errno = status;
        return NULL;
    }
    return kv;
}

static const char *variable(const char *name)
{
    const char *found = getenv(name);

    return found == NULL ? "" : found;
}

struct ciel_kv *ciel_kv_open(const char *name)
{
    return open_kv(variable("CIEL_KV"), variable("CIEL_KV_KEY_FILE"), name, "", NULL);
}

struct ciel_kv *ciel_kv_open_of_job(const char *name, const char *job_id)
{
    if (job_id == NULL)
        job_id = variable("CIEL_JOB");
    if (job_id[0] == '\0') {
        fail(CIEL_KV_INVALID, "this is no task of a job", NULL);
        errno = CIEL_KV_INVALID;
        return NULL;
    }
    return open_kv(variable("CIEL_KV"), variable("CIEL_KV_KEY_FILE"), name,
                   variable("CIEL_KV_CLUSTER"), job_id);
}

struct ciel_kv *ciel_kv_open_at(const char *url, const char *key_file, const char *name)
{
    return open_kv(url, key_file, name, "", NULL);
}

void ciel_kv_close(struct ciel_kv *kv)
{
    if (kv == NULL)
        return;
    end_base(&kv->base);
    explicit_bzero(&kv->base.place, sizeof kv->base.place);
    free(kv);
}

void ciel_kv_set_timeout(struct ciel_kv *kv, double timeout_s)
{
    if (enter(&kv->base) == 0) {
        kv->base.timeout_s = timeout_s;
        leave(&kv->base, 0);
    }
}

/* --- keys and values of callers --- */

/* Write a key of the base. A key that is too long is cut, and then refused for its length. */
static size_t full_key(const char *head, size_t head_bytes, const char *key,
                       char to[KEY_MAX_BYTES + 1])
{
    size_t size = strnlen(key, KEY_MAX_BYTES + 1 - head_bytes);

    memcpy(to, head, head_bytes);
    memcpy(to + head_bytes, key, size);
    return head_bytes + size;
}

/* Copy JSON without the whitespace between its parts. */
static void add_compact(struct text *to, const char *json)
{
    int is_string = 0;

    for (const char *at = json; *at != '\0'; at++) {
        size_t size = is_string && *at == '\\' ? 2 : 1;

        if (*at == '"')
            is_string = !is_string;
        if (is_string || memchr(" \t\n\r", *at, 4) == NULL)
            add(to, at, size);
        at += size - 1;
    }
}

/* Make the value that JSON is stored as. `compact` has it if it is not the text itself. */
static int json_of(const char *json, struct text *compact, struct value *value)
{
    size_t spaces, size = json == NULL ? 0 : strlen(json), before = compact->size;
    char start[96];

    if (!is_json(json, size, &spaces))
        return fail(CIEL_KV_INVALID, "a value is no JSON: ", shown(json, size, start),
                    "; write a text in double quotes", NULL);
    *value = (struct value){0, json, size};
    if (spaces == 0)
        return 0;
    add_compact(compact, json);
    if (compact->is_cut)
        return out_of_memory();
    *value = (struct value){0, compact->bytes + before, compact->size - before};
    return 0;
}

/* Return the value that bytes are stored as: marked, if they could be read as something else. */
static struct value bytes_of(const void *bytes, size_t size)
{
    const unsigned char first = size == 0 ? 0 : *(const unsigned char *)bytes;
    size_t spaces;
    int is_marked = first == BYTES_MARK || first == PICKLE_MARK || is_json(bytes, size, &spaces);

    return (struct value){is_marked ? BYTES_MARK : 0, bytes, size};
}

static enum ciel_kv_kind kind_of(const char *content, size_t size)
{
    size_t spaces;

    if (size > 0 && (unsigned char)content[0] == PICKLE_MARK)
        return CIEL_KV_PICKLE;
    if (size > 0 && (unsigned char)content[0] == BYTES_MARK)
        return CIEL_KV_BYTES;
    return is_json(content, size, &spaces) ? CIEL_KV_JSON : CIEL_KV_BYTES;
}

/* Remove the mark of bytes, which end with a NUL; return the size. */
static size_t unmark(char *content, size_t size)
{
    if (size == 0 || (unsigned char)content[0] != BYTES_MARK)
        return size;
    memmove(content, content + 1, size);
    return size - 1;
}

/* --- one row --- */

struct got {
    const char *key;
    size_t key_bytes;
    char *content; /* NULL: the key is missing */
    size_t size;
};

static int try_get(struct base *base, void *context)
{
    struct got *got = context;
    struct link *link = &base->link;
    struct reply reply;

    command(link, 2);
    word_text(link, "GET");
    word(link, got->key, got->key_bytes);
    if (flush(link, 0) != 0 || read_head(link, &reply) != 0)
        return LOST;
    if (reply.kind == '-')
        return error_of(base, &reply, NULL);
    if (reply.kind == '_')
        return 0;
    if (reply.kind != '$')
        return speaks_otherwise(link);
    got->size = (size_t)reply.number;
    return read_string(link, &reply, &got->content);
}

/* Read a value of the wanted kind, which the caller frees. */
static int get(struct ciel_kv *kv, const char *key, enum ciel_kv_kind wanted, char **content,
               size_t *size)
{
    char full[KEY_MAX_BYTES + 1], text[96];
    struct got got = {full, full_key(kv->head, kv->head_bytes, key, full), NULL, 0};
    int status = check_step(&(struct step){.key = got.key, .key_bytes = got.key_bytes});
    enum ciel_kv_kind kind;

    *content = NULL;
    if (status == 0)
        status = enter(&kv->base);
    if (status == 0)
        status = leave(&kv->base, persist(&kv->base, try_get, &got));
    if (status != 0)
        return status;
    if (got.content == NULL)
        return fail(CIEL_KV_MISSING, shown(full, got.key_bytes, text), " is not in the base", NULL);
    kind = kind_of(got.content, got.size);
    if (kind != wanted) {
        free(got.content);
        return fail(CIEL_KV_WRONG_TYPE, shown(full, got.key_bytes, text),
                    kind == CIEL_KV_PICKLE
                        ? " is an object of Python, as a pickle: put JSON or bytes in Python"
                    : kind == CIEL_KV_JSON ? " is JSON: use ciel_kv_get"
                                           : " is bytes, and no JSON: use ciel_kv_get_bytes",
                    NULL);
    }
    *content = got.content;
    *size = unmark(got.content, got.size);
    return 0;
}

int ciel_kv_get(struct ciel_kv *kv, const char *key, char **json)
{
    size_t size;

    return get(kv, key, CIEL_KV_JSON, json, &size);
}

int ciel_kv_get_bytes(struct ciel_kv *kv, const char *key, void **bytes, size_t *size_bytes)
{
    char *content;
    int status = get(kv, key, CIEL_KV_BYTES, &content, size_bytes);

    *bytes = content;
    return status;
}

/* Carry out steps on the row of a key. */
static int apply_to(struct ciel_kv *kv, const char *key, struct step *steps, size_t count,
                    int64_t *results)
{
    char full[KEY_MAX_BYTES + 1];
    size_t size = full_key(kv->head, kv->head_bytes, key, full);
    int status = enter(&kv->base);

    for (size_t i = 0; i < count; i++) {
        steps[i].key = full;
        steps[i].key_bytes = size;
    }
    return status != 0 ? status : leave(&kv->base, apply(&kv->base, steps, count, results));
}

static int set_json(struct ciel_kv *kv, char letter, const char *key, const char *json,
                    double ttl_s)
{
    struct step step = {.letter = letter, .ttl_s = ttl_s};
    struct text compact = {0};
    int status = json_of(json, &compact, &step.value);

    if (status == 0)
        status = apply_to(kv, key, &step, 1, NULL);
    free(compact.bytes);
    return status;
}

static int set_bytes(struct ciel_kv *kv, char letter, const char *key, const void *bytes,
                     size_t size, double ttl_s)
{
    struct step step = {.letter = letter, .ttl_s = ttl_s, .value = bytes_of(bytes, size)};

    return apply_to(kv, key, &step, 1, NULL);
}

int ciel_kv_put(struct ciel_kv *kv, const char *key, const char *json, double ttl_s)
{
    return set_json(kv, 'P', key, json, ttl_s);
}

int ciel_kv_put_bytes(struct ciel_kv *kv, const char *key, const void *bytes, size_t size_bytes,
                      double ttl_s)
{
    return set_bytes(kv, 'P', key, bytes, size_bytes, ttl_s);
}

int ciel_kv_insert(struct ciel_kv *kv, const char *key, const char *json, double ttl_s)
{
    return set_json(kv, 'I', key, json, ttl_s);
}

int ciel_kv_insert_bytes(struct ciel_kv *kv, const char *key, const void *bytes, size_t size_bytes,
                         double ttl_s)
{
    return set_bytes(kv, 'I', key, bytes, size_bytes, ttl_s);
}

int ciel_kv_update(struct ciel_kv *kv, const char *key, const char *json)
{
    return set_json(kv, 'U', key, json, 0);
}

int ciel_kv_update_bytes(struct ciel_kv *kv, const char *key, const void *bytes, size_t size_bytes)
{
    return set_bytes(kv, 'U', key, bytes, size_bytes, 0);
}

int ciel_kv_compare_and_set(struct ciel_kv *kv, const char *key, const char *expected,
                            const char *json)
{
    struct step steps[] = {{.letter = 'S'}, {.letter = 'U'}};
    struct text one = {0}, two = {0};
    int status = json_of(expected, &one, &steps[0].value);

    if (status == 0)
        status = json_of(json, &two, &steps[1].value);
    if (status == 0)
        status = apply_to(kv, key, steps, 2, NULL);
    free(one.bytes);
    free(two.bytes);
    return status;
}

int ciel_kv_compare_and_set_bytes(struct ciel_kv *kv, const char *key, const void *expected,
                                  size_t expected_bytes, const void *bytes, size_t size_bytes)
{
    struct step steps[] = {
        {.letter = 'S', .value = bytes_of(expected, expected_bytes)},
        {.letter = 'U', .value = bytes_of(bytes, size_bytes)},
    };

    return apply_to(kv, key, steps, 2, NULL);
}

int ciel_kv_delete(struct ciel_kv *kv, const char *key)
{
    return apply_to(kv, key, &(struct step){.letter = 'D'}, 1, NULL);
}

int ciel_kv_increment(struct ciel_kv *kv, const char *key, int64_t by, int64_t *sum)
{
    int64_t result = 0;
    int status = apply_to(kv, key, &(struct step){.letter = '+', .by = by}, 1, &result);

    if (status == 0 && sum != NULL)
        *sum = result;
    return status;
}

/* --- several rows --- */

/* Make the steps that put pairs. Their keys and their values without whitespace are in `keys` and
 * `compact`, which must not grow: their sizes are an upper limit. */
static int steps_of(struct ciel_kv *kv, const struct ciel_kv_pair *pairs, size_t count,
                    struct step *steps, char *keys, struct text *compact)
{
    for (size_t i = 0; i < count; i++) {
        int status = 0;

        steps[i] = (struct step){.letter = 'P', .key = keys};
        steps[i].key_bytes = full_key(kv->head, kv->head_bytes, pairs[i].key, keys);
        keys += steps[i].key_bytes;
        if (pairs[i].json != NULL)
            status = json_of(pairs[i].json, compact, &steps[i].value);
        else
            steps[i].value = bytes_of(pairs[i].bytes, pairs[i].size_bytes);
        if (status != 0)
            return status;
    }
    return 0;
}

int ciel_kv_bulk_put(struct ciel_kv *kv, const struct ciel_kv_pair *pairs, size_t count)
{
    size_t keys_bytes = KEY_MAX_BYTES + 1, json_bytes = 1;
    struct text compact = {0};
    struct step *steps;
    char *keys;
    int status;

    if (count == 0)
        return 0;
    if (count > ARGUMENTS_MAX / 4 - 1)
        return fail(CIEL_KV_TOO_LARGE, "more than 200,000 pairs: make several calls", NULL);
    for (size_t i = 0; i < count; i++) {
        keys_bytes += kv->head_bytes + strnlen(pairs[i].key, KEY_MAX_BYTES + 1);
        json_bytes += pairs[i].json != NULL ? strlen(pairs[i].json) : 0;
    }
    steps = malloc(count * sizeof *steps);
    keys = malloc(keys_bytes);
    compact.bytes = malloc(json_bytes);
    compact.room = json_bytes;
    if (steps == NULL || keys == NULL || compact.bytes == NULL)
        status = out_of_memory();
    else
        status = steps_of(kv, pairs, count, steps, keys, &compact);
    if (status == 0)
        status = enter(&kv->base);
    if (status == 0)
        status = leave(&kv->base, apply(&kv->base, steps, count, NULL));
    free(steps);
    free(keys);
    free(compact.bytes);
    return status;
}

struct got_many {
    struct ciel_kv *kv;
    const char *const *keys;
    size_t count;
    struct ciel_kv_row *rows;
};

static void free_values(struct ciel_kv_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(rows[i].value);
        rows[i].value = NULL;
    }
}

static int read_many(struct base *base, const struct got_many *many)
{
    struct reply reply;

    if (read_head(&base->link, &reply) != 0)
        return LOST;
    if (reply.kind == '-')
        return error_of(base, &reply, NULL);
    if (reply.kind != '*' || (uint64_t)reply.number != many->count)
        return speaks_otherwise(&base->link);
    for (size_t i = 0; i < many->count; i++) {
        struct ciel_kv_row *row = many->rows + i;
        int status;

        if (read_head(&base->link, &reply) != 0)
            return LOST;
        if (reply.kind == '_')
            continue;
        if (reply.kind != '$')
            return speaks_otherwise(&base->link);
        status = read_string(&base->link, &reply, &row->value);
        if (status != 0)
            return status;
        row->value_bytes = (size_t)reply.number;
    }
    return 0;
}

static int try_get_many(struct base *base, void *context)
{
    const struct got_many *many = context;
    int status;

    command(&base->link, many->count + 1);
    word_text(&base->link, "MGET");
    for (size_t i = 0; i < many->count; i++) {
        size_t size = strlen(many->keys[i]);

        put_line(&base->link, "$", many->kv->head_bytes + size);
        put(&base->link, many->kv->head, many->kv->head_bytes);
        put(&base->link, many->keys[i], size);
        put(&base->link, "\r\n", 2);
    }
    status = flush(&base->link, 0) != 0 ? LOST : read_many(base, many);
    if (status != 0)
        free_values(many->rows, many->count);
    return status;
}

int ciel_kv_get_many(struct ciel_kv *kv, const char *const *keys, size_t count,
                     struct ciel_kv_row *rows)
{
    struct got_many many = {kv, keys, count, rows};
    int status = 0;

    if (count >= ARGUMENTS_MAX)
        return fail(CIEL_KV_TOO_LARGE, "more than 1,000,000 keys: make several calls", NULL);
    for (size_t i = 0; i < count; i++) {
        char full[KEY_MAX_BYTES + 1];
        size_t size = full_key(kv->head, kv->head_bytes, keys[i], full);

        rows[i] = (struct ciel_kv_row){.key = keys[i]};
        if (status == 0)
            status = check_step(&(struct step){.key = full, .key_bytes = size});
    }
    if (status != 0 || count == 0)
        return status;
    status = enter(&kv->base);
    if (status == 0)
        status = leave(&kv->base, persist(&kv->base, try_get_many, &many));
    for (size_t i = 0; i < count && status == 0; i++) {
        if (rows[i].value == NULL)
            continue;
        rows[i].kind = kind_of(rows[i].value, rows[i].value_bytes);
        rows[i].value_bytes = unmark(rows[i].value, rows[i].value_bytes);
        if (rows[i].kind == CIEL_KV_PICKLE) {
            free(rows[i].value);
            rows[i].value = NULL;
            rows[i].value_bytes = 0;
        }
    }
    return status;
}

/* --- scans --- */

/* A part of a scan. `rows` has for each row the sizes of the key and of the value, the key, a NUL,
 * the value and a NUL. */
struct scan {
    char first[KEY_MAX_BYTES + 2]; /* where the next part begins, in a ciel-kv */
    size_t first_bytes;
    char last[KEY_MAX_BYTES + 1];
    size_t last_bytes;
    char prefix[KEY_MAX_BYTES + 1];
    size_t prefix_bytes;
    char cursor[NUMBER_BYTES]; /* where the next part begins, in a Redis */
    int is_end;
    struct text rows;
    struct keys seen; /* in a Redis, which may return a key twice; each key is allocated */
    size_t seen_before;
};

/* Read a string of a reply into the rows, with a NUL behind it. */
static int read_into(struct base *base, struct text *rows, const struct reply *reply)
{
    size_t before = rows->size, size = (size_t)reply->number;

    if (rows->room - before <= size) {
        size_t room = 2 * rows->room + size + 4096;
        char *grown = realloc(rows->bytes, room);

        if (grown == NULL) {
            close_link(&base->link);
            return out_of_memory();
        }
        rows->bytes = grown;
        rows->room = room;
    }
    if (read_bytes(&base->link, rows->bytes + before, size) != 0 || read_end(&base->link) != 0)
        return LOST;
    rows->bytes[before + size] = '\0';
    rows->size += size + 1;
    return 0;
}

/* Read the two strings of a row. */
static int read_row(struct base *base, struct scan *scan)
{
    size_t sizes[2], at = scan->rows.size;

    add(&scan->rows, sizes, 0);
    memset(sizes, 0, sizeof sizes);
    add(&scan->rows, sizes, sizeof sizes);
    if (scan->rows.is_cut) {
        close_link(&base->link);
        return out_of_memory();
    }
    for (int i = 0; i < 2; i++) {
        struct reply reply;
        int status;

        if (read_head(&base->link, &reply) != 0)
            return LOST;
        if (reply.kind != '$' ||
            (i == 0 && (reply.number > KEY_MAX_BYTES || (size_t)reply.number < scan->prefix_bytes)))
            return speaks_otherwise(&base->link);
        status = read_into(base, &scan->rows, &reply);
        if (status != 0)
            return status;
        sizes[i] = (size_t)reply.number;
    }
    memcpy(scan->rows.bytes + at, sizes, sizeof sizes);
    return 0;
}

/* Read a part of a scan from a ciel-kv. */
static int try_range(struct base *base, void *context)
{
    struct scan *scan = context;
    struct link *link = &base->link;
    struct reply reply;
    int64_t left;

    scan->rows.size = 0;
    command(link, 4);
    word_text(link, "CIEL.RANGE");
    word(link, scan->first, scan->first_bytes);
    word(link, scan->last, scan->last_bytes);
    word_text(link, "1000");
    if (flush(link, 0) != 0 || read_head(link, &reply) != 0)
        return LOST;
    if (reply.kind == '-')
        return error_of(base, &reply, NULL);
    left = reply.number - 1;
    if (reply.kind != '*' || left < 0 || left % 2 != 0 || read_head(link, &reply) != 0 ||
        reply.kind != ':')
        return speaks_otherwise(link);
    scan->is_end = reply.number != 0 || left == 0;
    for (; left > 0; left -= 2) {
        int status = read_row(base, scan);

        if (status != 0)
            return status;
    }
    return 0;
}

/* Read the keys of SCAN that are new: those behind `seen_before`. */
static int read_keys(struct base *base, struct scan *scan)
{
    struct reply reply;

    if (read_head(&base->link, &reply) != 0)
        return LOST;
    if (reply.kind != '*')
        return speaks_otherwise(&base->link);
    for (int64_t left = reply.number; left > 0; left--) {
        char *key = NULL;
        size_t before = scan->seen.count;
        int status;

        if (read_head(&base->link, &reply) != 0)
            return LOST;
        if (reply.kind != '$')
            return speaks_otherwise(&base->link);
        status = read_string(&base->link, &reply, &key);
        if (status != 0)
            return status;
        if (key[0] == RESERVED[0] || reply.number > KEY_MAX_BYTES ||
            (size_t)reply.number < scan->prefix_bytes) {
            free(key);
        } else if (place_of(&scan->seen, key, (size_t)reply.number) == SIZE_MAX) {
            free(key);
            close_link(&base->link);
            return out_of_memory();
        } else if (scan->seen.count == before) {
            free(key);
        }
    }
    return 0;
}

/* Add the rows of the new keys, as far as they are there. */
static int read_rows(struct base *base, struct scan *scan)
{
    struct link *link = &base->link;
    size_t count = scan->seen.count - scan->seen_before;
    struct reply reply;

    scan->rows.size = 0;
    if (count == 0)
        return 0;
    command(link, count + 1);
    word_text(link, "MGET");
    for (size_t i = scan->seen_before; i < scan->seen.count; i++)
        word(link, scan->seen.keys[i].bytes, scan->seen.keys[i].size);
    if (flush(link, 0) != 0 || read_head(link, &reply) != 0)
        return LOST;
    if (reply.kind == '-')
        return error_of(base, &reply, NULL);
    if (reply.kind != '*' || (uint64_t)reply.number != count)
        return speaks_otherwise(link);
    for (size_t i = scan->seen_before; i < scan->seen.count; i++) {
        size_t sizes[] = {scan->seen.keys[i].size, 0};
        int status;

        if (read_head(link, &reply) != 0)
            return LOST;
        if (reply.kind == '_')
            continue;
        if (reply.kind != '$')
            return speaks_otherwise(link);
        sizes[1] = (size_t)reply.number;
        add(&scan->rows, sizes, sizeof sizes);
        add(&scan->rows, scan->seen.keys[i].bytes, sizes[0]);
        add(&scan->rows, "", 1);
        status = scan->rows.is_cut ? out_of_memory() : read_into(base, &scan->rows, &reply);
        if (status != 0) {
            if (status != LOST)
                close_link(link);
            return status;
        }
    }
    return 0;
}

/* Put a pattern of Redis that matches the keys with a prefix. */
static void put_pattern(struct link *link, const struct scan *scan)
{
    char pattern[2 * KEY_MAX_BYTES + 1];
    size_t size = 0;

    for (size_t i = 0; i < scan->prefix_bytes; i++) {
        if (memchr("*?[]\\^-", scan->prefix[i], 7) != NULL)
            pattern[size++] = '\\';
        pattern[size++] = scan->prefix[i];
    }
    pattern[size++] = '*';
    word(link, pattern, size);
}

/* Read a part of a scan from a Redis. */
static int try_scan(struct base *base, void *context)
{
    struct scan *scan = context;
    struct link *link = &base->link;
    struct reply reply;
    int status;

    command(link, 8);
    word_text(link, "SCAN");
    word_text(link, scan->cursor);
    word_text(link, "MATCH");
    put_pattern(link, scan);
    word_text(link, "COUNT");
    word_text(link, "1000");
    word_text(link, "TYPE");
    word_text(link, "string");
    if (flush(link, 0) != 0 || read_head(link, &reply) != 0)
        return LOST;
    if (reply.kind == '-')
        return error_of(base, &reply, NULL);
    if (reply.kind != '*' || reply.number != 2 || read_head(link, &reply) != 0)
        return speaks_otherwise(link);
    char cursor[NUMBER_BYTES] = "";
    if (reply.kind != '$' || reply.number < 1 || reply.number >= NUMBER_BYTES)
        return speaks_otherwise(link);
    if (read_bytes(link, cursor, (size_t)reply.number) != 0 || read_end(link) != 0)
        return LOST;
    status = read_keys(base, scan);
    if (status == 0)
        status = read_rows(base, scan);
    if (status == 0) {
        strcpy(scan->cursor, cursor);
        scan->is_end = strcmp(cursor, "0") == 0;
        scan->seen_before = scan->seen.count;
    }
    return status;
}

/* Call the caller's function for the rows of a part; keys begin with the prefix of the name. */
static int give_rows(struct scan *scan, size_t head_bytes,
                     int (*each)(void *context, const struct ciel_kv_row *row), void *context)
{
    size_t at = 0, sizes[2];

    while (at < scan->rows.size) {
        struct ciel_kv_row row = {0};
        char *key = scan->rows.bytes + at + sizeof sizes, *content;
        int status;

        memcpy(sizes, scan->rows.bytes + at, sizeof sizes);
        content = key + sizes[0] + 1;
        at += sizeof sizes + sizes[0] + sizes[1] + 2;
        if (at >= scan->rows.size) { /* the next part begins behind the last key */
            memcpy(scan->first, key, sizes[0] + 1);
            scan->first_bytes = sizes[0] + 1;
        }
        row.key = key + head_bytes;
        row.kind = kind_of(content, sizes[1]);
        if (row.kind != CIEL_KV_PICKLE) {
            row.value = content;
            row.value_bytes = unmark(content, sizes[1]);
        }
        status = each(context, &row);
        if (status != 0)
            return status;
    }
    return 0;
}

/* Set the first key after all that start with the prefix; empty: there is none. */
static void set_last(struct scan *scan)
{
    size_t size = scan->prefix_bytes;

    while (size > 0 && scan->prefix[size - 1] == RESERVED[0])
        size--;
    memcpy(scan->last, scan->prefix, size);
    if (size > 0)
        scan->last[size - 1]++;
    scan->last_bytes = size;
}

int ciel_kv_scan(struct ciel_kv *kv, const char *prefix,
                 int (*each)(void *context, const struct ciel_kv_row *row), void *context)
{
    struct scan *scan = calloc(1, sizeof *scan);
    int status = 0;

    if (scan == NULL)
        return out_of_memory();
    scan->prefix_bytes = full_key(kv->head, kv->head_bytes, prefix, scan->prefix);
    if (scan->prefix_bytes > KEY_MAX_BYTES)
        scan->is_end = 1; /* no key is that long */
    memcpy(scan->first, scan->prefix, scan->prefix_bytes);
    scan->first_bytes = scan->prefix_bytes;
    set_last(scan);
    strcpy(scan->cursor, "0");
    while (status == 0 && !scan->is_end) {
        status = enter(&kv->base);
        if (status == 0)
            status =
                leave(&kv->base,
                      persist(&kv->base, kv->base.place.is_redis ? try_scan : try_range, scan));
        if (status == 0)
            status = give_rows(scan, kv->head_bytes, each, context);
    }
    for (size_t i = 0; i < scan->seen.count; i++)
        free((void *)scan->seen.keys[i].bytes);
    free_keys(&scan->seen);
    free(scan->rows.bytes);
    free(scan);
    return status;
}

/* --- locks: ciel/state/leases.py --- */

enum {
    RENEWALS = 3,
    SECRET_TEXT_BYTES = 32
}; /* how often a lease is renewed before its time is over */
#define WAKE_S 1.0 /* how often a client that waits tries, if no change was reported */

struct ciel_kv_lease {
    struct base base; /* its own connection, so that other calls do not delay a renewal */
    char key[KEY_MAX_BYTES + 1], fence_key[KEY_MAX_BYTES + 8];
    size_t key_bytes, fence_key_bytes;
    char secret[SECRET_TEXT_BYTES];
    double lease_s;
    double timeout_s; /* of the base, while no renewal runs */
    int64_t fence;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t stopped;
    int is_stopping;
    double until_s; /* until then no other client can have the lock */
};

static struct value secret_of(const struct ciel_kv_lease *lease)
{
    return (struct value){0, lease->secret, sizeof lease->secret};
}

/* Try to take the lease. CIEL_KV_EXISTS: another client has it. */
static int take_lease(struct ciel_kv_lease *lease)
{
    struct step steps[] = {
        {.letter = 'I',
         .key = lease->key,
         .key_bytes = lease->key_bytes,
         .value = secret_of(lease),
         .ttl_s = lease->lease_s},
        {.letter = '+', .key = lease->fence_key, .key_bytes = lease->fence_key_bytes, .by = 1},
    };
    double asked_s = now_s();
    int64_t results[2] = {0, 0};
    int status = apply(&lease->base, steps, 2, results);

    lease->fence = results[1];
    lease->until_s = asked_s + lease->lease_s;
    return status;
}

/* Carry out a step on the lease, if this client has it still. */
static int change_lease(struct ciel_kv_lease *lease, char letter)
{
    struct step steps[] = {
        {.letter = 'S',
         .key = lease->key,
         .key_bytes = lease->key_bytes,
         .value = secret_of(lease)},
        {.letter = letter,
         .key = lease->key,
         .key_bytes = lease->key_bytes,
         .ttl_s = letter == 'T' ? lease->lease_s : 0},
    };

    return apply(&lease->base, steps, 2, NULL);
}

/* Wait until the server reports a change; at most so long. */
static void await_change(struct link *link, double seconds)
{
    double until_s = now_s() + seconds;

    link->lost = NULL;
    while (link->fd >= 0 && !link->has_changed) {
        struct pollfd one = {link->fd, POLLIN, 0};
        double left_s = until_s - now_s();
        int is_ready = link->start < link->end;
        struct reply reply;

        if (left_s <= 0)
            break;
        if (!is_ready)
            is_ready = poll(&one, 1, (int)(left_s * 1000) + 1) > 0;
        if (is_ready && (read_line(link, &reply) != 0 || reply.kind != '>' ||
                         read_push(link, reply.number) != 0))
            close_link(link); /* the next try connects, and finds the changes meanwhile */
    }
    link->has_changed = 0;
}

/* Renew the lease until it is released, or lost. */
static void *renew(void *context)
{
    struct ciel_kv_lease *lease = context;

    pthread_mutex_lock(&lease->lock);
    for (;;) {
        double wake_s = now_s() + lease->lease_s / RENEWALS, asked_s;
        struct timespec wake = {(time_t)wake_s, (long)((wake_s - (double)(time_t)wake_s) * 1e9)};
        int status = 0;

        while (!lease->is_stopping && status != ETIMEDOUT)
            status = pthread_cond_timedwait(&lease->stopped, &lease->lock, &wake);
        if (lease->is_stopping)
            break;
        pthread_mutex_unlock(&lease->lock);
        asked_s = now_s();
        status = change_lease(lease, 'T');
        pthread_mutex_lock(&lease->lock);
        if (status == 0)
            lease->until_s = asked_s + lease->lease_s;
        if (status == CIEL_KV_CHANGED || status == CIEL_KV_MISSING) {
            lease->until_s = 0;
            break;
        } /* after another error the base may answer again in time */
    }
    pthread_mutex_unlock(&lease->lock);
    return NULL;
}

/* Start the thread, which must not run the caller's signal handlers. */
static int start_renewals(struct ciel_kv_lease *lease)
{
    sigset_t all, before;
    int error;

    lease->timeout_s = lease->base.timeout_s;
    if (lease->base.timeout_s > lease->lease_s / RENEWALS)
        lease->base.timeout_s = lease->lease_s / RENEWALS;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&lease->thread, NULL, renew, lease);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        return 0;
    change_lease(lease, 'D');
    return fail(CIEL_KV_FAILED, "the lock cannot be renewed: ", strerror(error), NULL);
}

static void free_lease(struct ciel_kv_lease *lease)
{
    end_base(&lease->base);
    explicit_bzero(lease, sizeof *lease);
    free(lease);
}

static int new_lease(struct ciel_kv *kv, const char *name, double lease_s,
                     struct ciel_kv_lease **made)
{
    struct ciel_kv_lease *lease = calloc(1, sizeof *lease);
    unsigned char secret[SECRET_TEXT_BYTES / 2];
    char inner[sizeof kv->inner + sizeof "lock/"];
    pthread_condattr_t clock;

    if (lease == NULL)
        return out_of_memory();
    lease->base.place = kv->base.place;
    if (begin_base(&lease->base) != 0 || random_bytes(secret, sizeof secret) != 0) {
        free(lease);
        return CIEL_KV_FAILED;
    }
    lease->base.timeout_s = kv->base.timeout_s;
    for (size_t i = 0; i < sizeof lease->secret; i++)
        lease->secret[i] = "0123456789abcdef"[i % 2 ? secret[i / 2] & 15 : secret[i / 2] >> 4];
    memcpy(inner, kv->inner, kv->inner_bytes);
    memcpy(inner + kv->inner_bytes, "lock/", 5);
    lease->key_bytes = full_key(inner, kv->inner_bytes + 5, name, lease->key);
    memcpy(lease->fence_key, lease->key, lease->key_bytes);
    memcpy(lease->fence_key + lease->key_bytes, "/fence", 6);
    lease->fence_key_bytes = lease->key_bytes + 6;
    lease->lease_s = lease_s > 0 ? lease_s : LEASE_S;
    pthread_mutex_init(&lease->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&lease->stopped, &clock);
    pthread_condattr_destroy(&clock);
    *made = lease;
    return 0;
}

/* Try until the lease is taken, or the time is over. */
static int acquire(struct ciel_kv_lease *lease, double timeout_s)
{
    struct link *link = &lease->base.link;
    double until_s = now_s() + timeout_s;
    char key[96];

    for (;;) {
        double left_s = lease->lease_s < WAKE_S ? lease->lease_s : WAKE_S;
        int status = take_lease(lease);

        if (status != CIEL_KV_EXISTS)
            return status;
        if (timeout_s >= 0 && until_s - now_s() < left_s)
            left_s = until_s - now_s();
        if (left_s <= 0)
            return fail(CIEL_KV_TIMEOUT, "another client has the lock ",
                        shown(lease->key, lease->key_bytes, key), NULL);
        if (link->watched != NULL) {
            await_change(link, left_s);
            continue;
        }
        link->watched =
            lease->key; /* the next connection watches it, and then the lease is tried again */
        link->watched_bytes = lease->key_bytes;
        close_link(link);
    }
}

int ciel_kv_lock(struct ciel_kv *kv, const char *name, double lease_s, double timeout_s,
                 struct ciel_kv_lease **lease)
{
    struct ciel_kv_lease *taken = NULL;
    int status = enter(&kv->base);

    *lease = NULL;
    if (status == 0)
        status = leave(&kv->base, new_lease(kv, name, lease_s, &taken));
    if (status != 0)
        return status;
    status = acquire(taken, timeout_s);
    if (taken->base.link.watched != NULL) {
        taken->base.link.watched = NULL;
        close_link(&taken->base.link); /* so that no more changes are reported */
    }
    if (status == 0)
        status = start_renewals(taken);
    if (status == 0)
        *lease = taken;
    else
        free_lease(taken);
    return status;
}

int ciel_kv_unlock(struct ciel_kv_lease *lease)
{
    char key[96];
    int status;

    if (lease->base.pid != getpid()) {
        status = fail(CIEL_KV_INVALID, "the lock belongs to the process before fork()", NULL);
        free_lease(lease);
        return status;
    }
    pthread_mutex_lock(&lease->lock);
    lease->is_stopping = 1;
    pthread_cond_signal(&lease->stopped);
    pthread_mutex_unlock(&lease->lock);
    pthread_join(lease->thread, NULL);
    lease->base.timeout_s = lease->timeout_s;
    status = change_lease(lease, 'D');
    if (status == CIEL_KV_CHANGED)
        status = fail(CIEL_KV_LOST, "the lock ", shown(lease->key, lease->key_bytes, key),
                      " was held longer than its lease, which was not renewed in time", NULL);
    pthread_cond_destroy(&lease->stopped);
    pthread_mutex_destroy(&lease->lock);
    free_lease(lease);
    return status;
}

int ciel_kv_is_held(struct ciel_kv_lease *lease)
{
    int is_held;

    pthread_mutex_lock(&lease->lock);
    is_held = now_s() < lease->until_s;
    pthread_mutex_unlock(&lease->lock);
    return is_held;
}

int64_t ciel_kv_fence(const struct ciel_kv_lease *lease)
{
    return lease->fence;
}

/* --- pages --- */

enum {
    PAGES = 64,                /* of one batch, and requests under way */
    PAGES_BYTES = 4 << 20,     /* of one batch, unless a page is larger */
    UNDER_WAY_BYTES = 8 << 20, /* of replies under way, unless a page is larger */
    BATCHES = 4,               /* under way */
    PAGE_RECEIVE_BYTES =
        64, /* of what follows a value: the head of the next one, and little of it */
};

struct transfer {
    struct ciel_kv_page *pages; /* ciel_kv_pages_set changes none */
    size_t count, done;
    uint64_t number;  /* of the batch that begins at `done` */
    uint64_t highest; /* of all batches that were sent */
    int status;
};

static int check_pages(const struct ciel_kv_page *pages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int status = check_step(&(struct step){.key = pages[i].key,
                                               .key_bytes = pages[i].key_bytes,
                                               .value = {0, NULL, pages[i].size_bytes}});

        if (status != 0)
            return status;
    }
    return 0;
}

/* Read a value into the buffer of its page. */
static int read_page(struct base *base, struct ciel_kv_page *page)
{
    struct link *link = &base->link;
    struct reply reply;
    size_t stored;

    if (read_head(link, &reply) != 0)
        return LOST;
    if (reply.kind == '-')
        return error_of(base, &reply, NULL);
    if (reply.kind == '_') {
        page->status = CIEL_KV_MISSING;
        page->size_bytes = 0;
        return 0;
    }
    if (reply.kind != '$')
        return speaks_otherwise(link);
    page->size_bytes = (size_t)reply.number;
    stored = page->size_bytes < page->room_bytes ? page->size_bytes : page->room_bytes;
    if (read_bytes(link, page->bytes, stored) != 0)
        return LOST;
    if (stored < page->size_bytes) {
        int status;

        link->receive_max = IN_BYTES; /* many calls otherwise */
        status = skip_bytes(link, page->size_bytes - stored);
        link->receive_max = PAGE_RECEIVE_BYTES;
        if (status != 0)
            return LOST;
    }
    page->status = stored < page->size_bytes ? CIEL_KV_TOO_LARGE : 0;
    return read_end(link);
}

static int try_pages_get(struct base *base, void *context)
{
    struct transfer *to = context;
    size_t sent = to->done, under_way = 0;

    while (to->done < to->count) {
        struct ciel_kv_page *page = to->pages + to->done;
        int status;

        if (sent - to->done <= PAGES / 2 && under_way <= UNDER_WAY_BYTES / 2)
            while (sent < to->count &&
                   (sent == to->done || (sent - to->done < PAGES && under_way < UNDER_WAY_BYTES))) {
                command(&base->link, 2);
                word_text(&base->link, "GET");
                word(&base->link, to->pages[sent].key, to->pages[sent].key_bytes);
                under_way += to->pages[sent++].room_bytes;
            }
        if (flush(&base->link, 0) != 0)
            return LOST;
        status = read_page(base, page);
        if (status != 0) {
            if (status != LOST)
                close_link(&base->link); /* further replies are to come */
            return status;
        }
        if (page->status != 0)
            to->status = page->status;
        under_way -= page->room_bytes;
        to->done++;
        base->progress_s = now_s();
    }
    return 0;
}

int ciel_kv_pages_get(struct ciel_kv *kv, struct ciel_kv_page *pages, size_t count)
{
    struct transfer to = {.pages = pages, .count = count};
    int status;

    for (size_t i = 0; i < count; i++) {
        pages[i].size_bytes = 0;
        pages[i].status = CIEL_KV_FAILED;
    }
    status = check_pages(pages, count);
    if (status == 0)
        status = enter(&kv->base);
    if (status != 0)
        return status;
    kv->base.link.receive_max = PAGE_RECEIVE_BYTES;
    status = persist(&kv->base, try_pages_get, &to);
    kv->base.link.receive_max = IN_BYTES;
    leave(&kv->base, 0);
    if (status != 0 || to.status == 0)
        return status;
    return fail(to.status,
                to.status == CIEL_KV_MISSING ? "a page is not in the base"
                                             : "a page is larger than its buffer",
                NULL);
}

/* Make the steps of the batch that begins at a page; return how many pages it has. A page is always
 * in the same batch, so that the batch can be sent again with its number. */
static size_t batch_at(const struct transfer *to, size_t first, char letter,
                       struct step steps[PAGES])
{
    size_t count = 0, bytes = 0;

    while (first + count < to->count && count < PAGES) {
        const struct ciel_kv_page *page = to->pages + first + count;

        bytes += page->size_bytes;
        if (letter == 'P' && count > 0 && bytes > PAGES_BYTES)
            break;
        steps[count] =
            (struct step){.letter = letter, .key = page->key, .key_bytes = page->key_bytes};
        if (letter == 'P')
            steps[count].value = (struct value){0, page->bytes, page->size_bytes};
        count++;
    }
    return count;
}

static int try_pages_set(struct base *base, void *context)
{
    struct transfer *to = context;
    size_t sent = to->done, sizes[BATCHES];
    uint64_t number = to->number; /* of the next batch to send */

    while (to->done < to->count) {
        struct step steps[PAGES];
        int status;

        while (sent < to->count && number - to->number < BATCHES) {
            size_t count = batch_at(to, sent, 'P', steps);

            put_batch(base, &(struct batch){steps, count, NULL, number});
            if (flush(&base->link, 0) != 0)
                return LOST;
            sizes[number % BATCHES] = count;
            sent += count;
            to->highest = number > to->highest ? number : to->highest;
            number++;
        }
        batch_at(to, to->done, 'P', steps);
        status = read_results(base, &(struct batch){steps, sizes[to->number % BATCHES], NULL, 0});
        if (status != 0 &&
            status != STALE) { /* STALE: it was carried out before the connection was lost */
            if (status != LOST)
                close_link(&base->link);
            return status;
        }
        to->done += sizes[to->number % BATCHES];
        to->number++;
        base->progress_s = now_s();
    }
    return 0;
}

/* Carry out batches one after another, with a Redis. */
static int apply_pages(struct base *base, struct transfer *to, char letter)
{
    int status = 0;

    while (to->done < to->count && status == 0) {
        struct step steps[PAGES];
        size_t count = batch_at(to, to->done, letter, steps);

        status = apply(base, steps, count, NULL);
        to->done += count;
    }
    return status;
}

int ciel_kv_pages_set(struct ciel_kv *kv, const struct ciel_kv_page *pages, size_t count)
{
    struct transfer to = {.pages = (struct ciel_kv_page *)pages, .count = count};
    struct base *base = &kv->base;
    int status = check_pages(pages, count);

    if (status == 0)
        status = enter(base);
    if (status != 0)
        return status;
    if (base->place.is_redis)
        return leave(base, apply_pages(base, &to, 'P'));
    to.number = base->number + 1;
    to.highest = base->number;
    status = persist(base, try_pages_set, &to);
    base->number = to.highest;
    return leave(base, status);
}

struct present {
    const struct step *steps;
    size_t count;
    char is_there[PAGES];
};

static int try_exists(struct base *base, void *context)
{
    struct present *present = context;
    struct link *link = &base->link;

    for (size_t i = 0; i < present->count; i++) {
        command(link, 2);
        word_text(link, "EXISTS");
        word(link, present->steps[i].key, present->steps[i].key_bytes);
    }
    if (flush(link, 0) != 0)
        return LOST;
    for (size_t i = 0; i < present->count; i++) {
        struct reply reply;

        if (read_head(link, &reply) != 0)
            return LOST;
        if (reply.kind == '-') {
            int status = error_of(base, &reply, NULL);

            close_link(link);
            return status;
        }
        if (reply.kind != ':')
            return speaks_otherwise(link);
        present->is_there[i] = reply.number != 0;
    }
    return 0;
}

/* Return whether a step on the same key is among others: the caller may name a key twice. */
static int has_step(const struct step *steps, size_t count, const struct step *step)
{
    for (size_t i = 0; i < count; i++)
        if (steps[i].key_bytes == step->key_bytes &&
            memcmp(steps[i].key, step->key, step->key_bytes) == 0)
            return 1;
    return 0;
}

/* Remove pages from a ciel-kv, which has no step for keys that may be missing. */
static int delete_pages(struct base *base, struct transfer *to)
{
    int status = 0;

    while (to->done < to->count && status == 0) {
        struct step steps[PAGES];
        size_t count = batch_at(to, to->done, 'D', steps), left = 0;
        struct present present = {steps, count, {0}};

        status = persist(base, try_exists, &present);
        for (size_t i = 0; i < count; i++)
            if (present.is_there[i] && !has_step(steps, left, steps + i))
                steps[left++] = steps[i];
        if (status == 0 && left > 0)
            status = apply(base, steps, left, NULL);
        if (status == CIEL_KV_MISSING)
            status = 0; /* another client has removed one meanwhile: look again which are there */
        else
            to->done += count;
    }
    return status;
}

int ciel_kv_pages_delete(struct ciel_kv *kv, const struct ciel_kv_page *pages, size_t count)
{
    struct transfer to = {.pages = (struct ciel_kv_page *)pages, .count = count};
    int status = 0;

    for (size_t i = 0; i < count && status == 0; i++)
        status = check_step(&(struct step){.key = pages[i].key, .key_bytes = pages[i].key_bytes});
    if (status == 0)
        status = enter(&kv->base);
    if (status != 0)
        return status;
    return leave(&kv->base, kv->base.place.is_redis ? apply_pages(&kv->base, &to, 'E')
                                                    : delete_pages(&kv->base, &to));
}

int ciel_kv_pages_commit(struct ciel_kv *kv, const void *key, size_t key_bytes, const void *bytes,
                         size_t size_bytes)
{
    struct step step = {
        .letter = 'P', .key = key, .key_bytes = key_bytes, .value = {0, bytes, size_bytes}};
    int status = enter(&kv->base);

    return status != 0 ? status : leave(&kv->base, apply(&kv->base, &step, 1, NULL));
}
