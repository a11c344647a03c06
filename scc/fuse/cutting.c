/* cutting.c: handles images that other programs truncate while they are mounted.
 *
 * The kernel sends SIGBUS to a thread that touches a page beyond the end of the file. The signal
 * handler maps a page of zeros there, so that the call continues and ends (the library trusts
 * nothing that it reads), and records that the image is truncated: from then on every operation
 * fails with EIO. A system call that touches such a page fails with EFAULT, without a signal. */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cutting.h"

static struct shmfs_memory mapped;
static uintptr_t page_bytes;
static atomic_bool is_cut;

static bool is_within(uintptr_t place, const void *from, uint64_t size_bytes)
{
    return place - (uintptr_t)from < size_bytes; /* a lower address wraps around */
}

void note_cutting(void)
{
    static const char text[] = "shmfs-fuse: the image was truncated while it was in use: every call "
                               "fails with EIO\n";
    if (!atomic_exchange(&is_cut, true)) {
        ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
        (void)written;
    }
}

static void put_zeros(int number, siginfo_t *info, void *context)
{
    (void)context;
    const uintptr_t place = (uintptr_t)info->si_addr;
    void *page = (void *)(place & ~(page_bytes - 1));
    note_cutting();
    if ((!is_within(place, mapped.control, mapped.control_bytes) &&
         !is_within(place, mapped.data, mapped.data_bytes)) ||
        mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
             0) == MAP_FAILED)
        signal(number, SIG_DFL); /* returning repeats the access, which ends the process */
}

bool survive_cutting(const struct shmfs_memory *memory)
{
    struct sigaction action = {.sa_sigaction = put_zeros, .sa_flags = SA_SIGINFO};
    mapped = *memory;
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    return !sigaction(SIGBUS, &action, NULL);
}

bool image_is_cut(void)
{
    return atomic_load(&is_cut);
}
