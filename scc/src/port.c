/* port.c: waiting on registers, and functions that all builds share. */
#include "port.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef PORT_STRICT

size_t port_cache_bytes(void)
{
    return 0;
}

void port_open(struct port *port, void *cache, struct port_range one, struct port_range other,
               uint32_t seed)
{
    (void)cache, (void)one, (void)other, (void)seed;
    memset(port, 0, sizeof *port);
#ifdef PORT_FLUSHING
    port_choose(port);
#endif
}

void port_drop(struct port *port)
{
    (void)port;
}

#endif

bool port_wait(const uint32_t *place, uint32_t seen, int64_t timeout_us)
{
    struct timespec timeout = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
    long result = syscall(SYS_futex, place, FUTEX_WAIT, seen, timeout_us < 0 ? NULL : &timeout,
                          NULL, 0);
    return result == 0 || errno != ETIMEDOUT;
}

void port_wake(uint32_t *place, int count)
{
    syscall(SYS_futex, place, FUTEX_WAKE, count, NULL, NULL, 0);
}

uint64_t port_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}
