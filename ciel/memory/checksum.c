/* CRC-32C, by the processor's instruction where there is one. */
#include <stdint.h>
#include <string.h>

#include "page_server.h"

static uint32_t by_table(uint32_t crc, const uint8_t *at, int64_t size_bytes)
{
    static uint32_t table[256];
    static int is_made; /* threads may make it twice, with the same content */

    if (!__atomic_load_n(&is_made, __ATOMIC_ACQUIRE)) {
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t value = n;
            for (int bit = 0; bit < 8; bit++)
                value = value >> 1 ^ (value & 1 ? 0x82f63b78u : 0);
            __atomic_store_n(&table[n], value, __ATOMIC_RELAXED);
        }
        __atomic_store_n(&is_made, 1, __ATOMIC_RELEASE);
    }
    while (size_bytes-- > 0)
        crc = crc >> 8 ^ table[(crc ^ *at++) & 0xff];
    return crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *at,
                                                                 int64_t size_bytes)
{
    uint64_t wide = crc, word;

    for (; size_bytes >= 8; size_bytes -= 8, at += 8) {
        memcpy(&word, at, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    return by_table((uint32_t)wide, at, size_bytes);
}

static int has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>

static uint32_t by_instruction(uint32_t crc, const uint8_t *at, int64_t size_bytes)
{
    uint64_t word;

    for (; size_bytes >= 8; size_bytes -= 8, at += 8) {
        memcpy(&word, at, 8);
        crc = __crc32cd(crc, word);
    }
    return by_table(crc, at, size_bytes);
}

static int has_instruction(void) { return 1; }
#else
#define by_instruction by_table
static int has_instruction(void) { return 0; }
#endif

uint32_t page_checksum(const void *bytes, int64_t size_bytes)
{
    uint32_t crc = 0xffffffffu;

    crc = has_instruction() ? by_instruction(crc, bytes, size_bytes)
                            : by_table(crc, bytes, size_bytes);
    return ~crc;
}
