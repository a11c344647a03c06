/* flushing.c: writes back and drops real cache lines, for memory that several hosts map.
 *
 * clwb writes a line back and keeps it in the cache; clflushopt also drops it; clflush does the
 * same, but one line after another.
 */
#include "port.h"

#ifdef PORT_FLUSHING

#define FLUSH_LINE_BYTES 64

#if defined(__x86_64__)

#include <cpuid.h>

enum { LINE_CLFLUSH, LINE_CLFLUSHOPT, LINE_CLWB };

void port_choose(struct port *port)
{
    unsigned a, b = 0, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        b = 0;
    const int drops = b & bit_CLFLUSHOPT ? LINE_CLFLUSHOPT : LINE_CLFLUSH;
    port->line_instruction[0] = b & bit_CLWB ? LINE_CLWB : drops;
    port->line_instruction[1] = drops;
}

static void over_lines(struct port *port, const void *from, size_t size_bytes, bool drops)
{
    if (!size_bytes)
        return;
    uintptr_t line = (uintptr_t)from & ~(uintptr_t)(FLUSH_LINE_BYTES - 1);
    const uintptr_t end = (uintptr_t)from + size_bytes;
    const int instruction = port->line_instruction[drops];
    for (; line < end; line += FLUSH_LINE_BYTES) {
        volatile char *place = (volatile char *)line;
        if (instruction == LINE_CLWB)
            __asm__ volatile("clwb %0" : "+m"(*place));
        else if (instruction == LINE_CLFLUSHOPT)
            __asm__ volatile("clflushopt %0" : "+m"(*place));
        else
            __asm__ volatile("clflush %0" : "+m"(*place));
    }
    if (drops) /* these instructions are not ordered before later loads and stores */
        __asm__ volatile("mfence" ::: "memory");
}

#elif defined(__aarch64__)

void port_choose(struct port *port)
{
    (void)port;
}

static void over_lines(struct port *port, const void *from, size_t size_bytes, bool drops)
{
    (void)port;
    if (!size_bytes)
        return;
    uintptr_t line = (uintptr_t)from & ~(uintptr_t)(FLUSH_LINE_BYTES - 1);
    const uintptr_t end = (uintptr_t)from + size_bytes;
    for (; line < end; line += FLUSH_LINE_BYTES) {
        if (drops)
            __asm__ volatile("dc civac, %0" ::"r"(line) : "memory");
        else
            __asm__ volatile("dc cvac, %0" ::"r"(line) : "memory");
    }
    __asm__ volatile("dsb sy" ::: "memory");
}

#else
#error "no flush instruction is known for this processor; add one here, or use the coherent build"
#endif

void port_flush(struct port *port, const void *from, size_t size_bytes)
{
    over_lines(port, from, size_bytes, false);
}

void port_invalidate(struct port *port, const void *from, size_t size_bytes)
{
    over_lines(port, from, size_bytes, true);
}

#endif
