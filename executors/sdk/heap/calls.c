/* Functions of libc that hand memory to the kernel, which gets an error instead of a page.
 *
 * They are defined in the program, so that libraries call them, too. Each keeps the pages in place
 * while the real function runs, and splits what is too large for that where its contract allows. */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime.h"

/* Declares `real_NAME`, a pointer to the function of the same name that this file replaces. */
#define REAL(result, name, ...) static result (*real_##name)(__VA_ARGS__)

REAL(ssize_t, read, int, void *, size_t);
REAL(ssize_t, write, int, const void *, size_t);
REAL(ssize_t, pread, int, void *, size_t, off_t);
REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
REAL(ssize_t, readv, int, const struct iovec *, int);
REAL(ssize_t, writev, int, const struct iovec *, int);
REAL(ssize_t, recv, int, void *, size_t, int);
REAL(ssize_t, send, int, const void *, size_t, int);
REAL(ssize_t, recvfrom, int, void *, size_t, int, struct sockaddr *, socklen_t *);
REAL(ssize_t, sendto, int, const void *, size_t, int, const struct sockaddr *, socklen_t);
REAL(ssize_t, recvmsg, int, struct msghdr *, int);
REAL(ssize_t, sendmsg, int, const struct msghdr *, int);
REAL(int, poll, struct pollfd *, nfds_t, int);
REAL(int, epoll_wait, int, struct epoll_event *, int, int);
REAL(size_t, fread, void *, size_t, size_t, FILE *);
REAL(size_t, fwrite, const void *, size_t, size_t, FILE *);
REAL(ssize_t, getdelim, char **, size_t *, int, FILE *);
REAL(int, setvbuf, FILE *, char *, int, size_t);
REAL(int, execve, const char *, char *const *, char *const *);
REAL(int, posix_spawn, pid_t *, const char *, const posix_spawn_file_actions_t *,
     const posix_spawnattr_t *, char *const *, char *const *);
REAL(int, posix_spawnp, pid_t *, const char *, const posix_spawn_file_actions_t *,
     const posix_spawnattr_t *, char *const *, char *const *);

REAL(int, pthread_mutex_lock, pthread_mutex_t *);
REAL(int, pthread_cond_wait, pthread_cond_t *, pthread_mutex_t *);
REAL(int, pthread_cond_timedwait, pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
REAL(int, pthread_cond_clockwait, pthread_cond_t *, pthread_mutex_t *, clockid_t,
     const struct timespec *);
REAL(int, pthread_rwlock_rdlock, pthread_rwlock_t *);
REAL(int, pthread_rwlock_wrlock, pthread_rwlock_t *);
REAL(int, pthread_barrier_wait, pthread_barrier_t *);
REAL(int, sem_wait, sem_t *);
REAL(int, sem_timedwait, sem_t *, const struct timespec *);

/* Of these, libc has an older version, too, which is another function. */
#define FIND_AT(version, name) *(void **)&real_##name = dlvsym(RTLD_NEXT, #name, version)
#define FIND(name) *(void **)&real_##name = dlsym(RTLD_NEXT, #name)

void calls_start(void)
{
    FIND(read), FIND(write), FIND(pread), FIND(pwrite), FIND(readv), FIND(writev);
    FIND(recv), FIND(send), FIND(recvfrom), FIND(sendto), FIND(recvmsg), FIND(sendmsg);
    FIND(poll), FIND(epoll_wait), FIND(fread), FIND(fwrite), FIND(getdelim), FIND(setvbuf);
    FIND(execve), FIND(posix_spawn), FIND(posix_spawnp);
    FIND(pthread_mutex_lock), FIND(pthread_rwlock_rdlock), FIND(pthread_rwlock_wrlock);
    FIND(pthread_barrier_wait), FIND(sem_wait), FIND(sem_timedwait), FIND(pthread_cond_clockwait);
    FIND_AT("GLIBC_2.3.2", pthread_cond_wait), FIND_AT("GLIBC_2.3.2", pthread_cond_timedwait);
}

/* --- descriptors --- */

static int is_file(int descriptor)
{
    struct stat status;
    return fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

/* Carry out `step` for parts that stay in place: for all of a file, or of what is written; for one
 * part of what may still have to arrive. */
#define IN_PARTS(is_written, goes_on, step) \
    ssize_t sum = 0; \
    do { \
        size_t part = pager_pin((const char *)bytes + sum, size_bytes - (size_t)sum, is_written); \
        ssize_t moved = step; \
        pager_unpin((const char *)bytes + sum, part); \
        if (moved < 0) \
            return sum ? sum : moved; \
        sum += moved; \
        if (moved == 0 || (size_t)moved < part) \
            break; \
    } while ((size_t)sum < size_bytes && (goes_on)); \
    return sum

ssize_t read(int descriptor, void *bytes, size_t size_bytes)
{
    IN_PARTS(1, is_file(descriptor), real_read(descriptor, (char *)bytes + sum, part));
}

ssize_t write(int descriptor, const void *bytes, size_t size_bytes)
{
    IN_PARTS(0, 1, real_write(descriptor, (const char *)bytes + sum, part));
}

ssize_t pread(int descriptor, void *bytes, size_t size_bytes, off_t offset)
{
    IN_PARTS(1, 1, real_pread(descriptor, (char *)bytes + sum, part, offset + sum));
}

ssize_t pwrite(int descriptor, const void *bytes, size_t size_bytes, off_t offset)
{
    IN_PARTS(0, 1, real_pwrite(descriptor, (const char *)bytes + sum, part, offset + sum));
}

ssize_t pread64(int descriptor, void *bytes, size_t size_bytes, off_t offset)
{
    return pread(descriptor, bytes, size_bytes, offset);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t size_bytes, off_t offset)
{
    return pwrite(descriptor, bytes, size_bytes, offset);
}

ssize_t recv(int descriptor, void *bytes, size_t size_bytes, int flags)
{
    IN_PARTS(1, 0, real_recv(descriptor, (char *)bytes + sum, part, flags));
}

/* --- several parts of memory in one call --- */

/* Keep each part in place, as far as possible; return how many parts, the last perhaps shortened. */
static int pin_all(const struct iovec *given, int count, struct iovec *pinned, int is_written)
{
    uint64_t sum_bytes = 0, page_bytes = 1ULL << GRANULE_SHIFT;
    int done = 0;
    for (; done < count; done++) {
        if (pager_is_paged(given[done].iov_base)) /* it may begin and end within a page */
            sum_bytes += given[done].iov_len + 2 * page_bytes;
        if (sum_bytes > pager_pins_max_bytes())
            return done;
        pinned[done] = given[done];
        pinned[done].iov_len = pager_pin(given[done].iov_base, given[done].iov_len, is_written);
        if (pinned[done].iov_len < given[done].iov_len)
            return done + 1;
    }
    return done;
}

static void unpin_all(const struct iovec *pinned, int count)
{
    for (int i = 0; i < count; i++)
        pager_unpin(pinned[i].iov_base, pinned[i].iov_len);
}

static int needs_pins(const struct iovec *given, int count)
{
    for (int i = 0; i < count; i++)
        if (pager_needs_pin(given[i].iov_base))
            return 1;
    return 0;
}

enum { PARTS_MAX = 64 };

/* Move parts one after another, with `read` or `write`. */
static ssize_t one_by_one(int descriptor, const struct iovec *parts, int count, int is_read)
{
    ssize_t sum = 0;
    for (int i = 0; i < count; i++) {
        ssize_t moved = is_read ? read(descriptor, parts[i].iov_base, parts[i].iov_len)
                                : write(descriptor, parts[i].iov_base, parts[i].iov_len);
        if (moved < 0)
            return sum ? sum : moved;
        sum += moved;
        if ((size_t)moved < parts[i].iov_len)
            break;
    }
    return sum;
}

static ssize_t move_parts(int descriptor, const struct iovec *parts, int count, int is_read)
{
    struct iovec pinned[PARTS_MAX];
    if (!needs_pins(parts, count))
        return is_read ? real_readv(descriptor, parts, count) : real_writev(descriptor, parts, count);
    if (count > PARTS_MAX)
        return one_by_one(descriptor, parts, count, is_read);
    int kept = pin_all(parts, count, pinned, is_read);
    int is_whole = kept == count && pinned[count - 1].iov_len == parts[count - 1].iov_len;
    ssize_t moved = 0;
    if (is_whole)
        moved = is_read ? real_readv(descriptor, pinned, count) : real_writev(descriptor, pinned, count);
    unpin_all(pinned, kept);
    return is_whole ? moved : one_by_one(descriptor, parts, count, is_read);
}

ssize_t readv(int descriptor, const struct iovec *parts, int count)
{
    return move_parts(descriptor, parts, count, 1);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count)
{
    return move_parts(descriptor, parts, count, 0);
}

/* Carry out `step` with all parts in place. A message cannot be split. */
#define WITH_PARTS(parts, count, is_written, step) \
    struct iovec pinned[PARTS_MAX]; \
    if (!needs_pins(parts, count)) \
        return step; \
    if (count > PARTS_MAX) { \
        errno = EMSGSIZE; \
        return -1; \
    } \
    int kept = pin_all(parts, count, pinned, is_written); \
    ssize_t moved = -1; \
    if (kept < count || pinned[count - 1].iov_len < (parts)[count - 1].iov_len) \
        errno = EMSGSIZE; \
    else \
        moved = step; \
    unpin_all(pinned, kept); \
    return moved

ssize_t send(int descriptor, const void *bytes, size_t size_bytes, int flags)
{
    return sendto(descriptor, bytes, size_bytes, flags, NULL, 0);
}

ssize_t sendto(int descriptor, const void *bytes, size_t size_bytes, int flags,
               const struct sockaddr *address, socklen_t address_bytes)
{
    struct iovec part = {(void *)bytes, size_bytes};
    WITH_PARTS(&part, 1, 0, real_sendto(descriptor, bytes, size_bytes, flags, address, address_bytes));
}

ssize_t recvfrom(int descriptor, void *bytes, size_t size_bytes, int flags,
                 struct sockaddr *address, socklen_t *address_bytes)
{
    struct iovec part = {bytes, size_bytes};
    WITH_PARTS(&part, 1, 1, real_recvfrom(descriptor, bytes, size_bytes, flags, address, address_bytes));
}

ssize_t recvmsg(int descriptor, struct msghdr *message, int flags)
{
    WITH_PARTS(message->msg_iov, (int)message->msg_iovlen, 1, real_recvmsg(descriptor, message, flags));
}

ssize_t sendmsg(int descriptor, const struct msghdr *message, int flags)
{
    WITH_PARTS(message->msg_iov, (int)message->msg_iovlen, 0, real_sendmsg(descriptor, message, flags));
}

int poll(struct pollfd *waits, nfds_t count, int timeout_ms)
{
    void *volatile array = waits; /* which gcc takes for uninitialised */
    size_t pinned = pager_pin(array, count * sizeof *waits, 1);
    int found = real_poll(waits, count, timeout_ms);
    pager_unpin(array, pinned);
    return found;
}

int epoll_wait(int descriptor, struct epoll_event *events, int count, int timeout_ms)
{
    void *volatile array = events;
    size_t pinned = pager_pin(array, (size_t)(count > 0 ? count : 0) * sizeof *events, 1);
    int whole = (int)(pinned / sizeof *events);
    int found = real_epoll_wait(descriptor, events, count > 0 && whole ? whole : count, timeout_ms);
    pager_unpin(array, pinned);
    return found;
}

/* --- waiting, for a word that the kernel reads again after each signal --- */

/* Carry out `step` with one or two objects in place. */
#define IN_PLACE(first, second, second_bytes, step) \
    size_t kept = pager_pin(first, sizeof *(first), 1); \
    size_t also = pager_pin(second, second_bytes, 1); \
    int result = step; \
    int before = errno; \
    pager_unpin(first, kept); \
    pager_unpin(second, also); \
    errno = before; \
    return result

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (!pager_needs_pin(mutex))
        return real_pthread_mutex_lock(mutex);
    if (pthread_mutex_trylock(mutex) == 0)
        return 0; /* nearly always */
    IN_PLACE(mutex, mutex, 0, real_pthread_mutex_lock(mutex));
}

int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    IN_PLACE(condition, mutex, sizeof *mutex, real_pthread_cond_wait(condition, mutex));
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                           const struct timespec *until)
{
    struct timespec copy = *until;
    IN_PLACE(condition, mutex, sizeof *mutex, real_pthread_cond_timedwait(condition, mutex, &copy));
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until)
{
    struct timespec copy = *until;
    IN_PLACE(condition, mutex, sizeof *mutex,
             real_pthread_cond_clockwait(condition, mutex, clock, &copy));
}

int pthread_rwlock_rdlock(pthread_rwlock_t *lock)
{
    IN_PLACE(lock, lock, 0, real_pthread_rwlock_rdlock(lock));
}

int pthread_rwlock_wrlock(pthread_rwlock_t *lock)
{
    IN_PLACE(lock, lock, 0, real_pthread_rwlock_wrlock(lock));
}

int pthread_barrier_wait(pthread_barrier_t *barrier)
{
    IN_PLACE(barrier, barrier, 0, real_pthread_barrier_wait(barrier));
}

int sem_wait(sem_t *semaphore)
{
    IN_PLACE(semaphore, semaphore, 0, real_sem_wait(semaphore));
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until)
{
    struct timespec copy = *until;
    IN_PLACE(semaphore, semaphore, 0, real_sem_timedwait(semaphore, &copy));
}

/* --- streams of stdio, which pass large buffers on to the kernel --- */

static size_t in_parts(char *bytes, size_t size_bytes, size_t count, FILE *stream, int is_read)
{
    size_t all_bytes = size_bytes * count, sum = 0;
    while (sum < all_bytes) {
        size_t part = pager_pin(bytes + sum, all_bytes - sum, is_read);
        size_t moved = is_read ? real_fread(bytes + sum, 1, part, stream)
                               : real_fwrite(bytes + sum, 1, part, stream);
        pager_unpin(bytes + sum, part);
        sum += moved;
        if (moved < part)
            break;
    }
    return size_bytes ? sum / size_bytes : 0;
}

size_t fread(void *bytes, size_t size_bytes, size_t count, FILE *stream)
{
    if (!pager_is_paged(bytes))
        return real_fread(bytes, size_bytes, count, stream);
    return in_parts(bytes, size_bytes, count, stream, 1);
}

size_t fwrite(const void *bytes, size_t size_bytes, size_t count, FILE *stream)
{
    if (!pager_is_paged(bytes))
        return real_fwrite(bytes, size_bytes, count, stream);
    return in_parts((char *)bytes, size_bytes, count, stream, 0);
}

int fputs(const char *text, FILE *stream)
{
    size_t size_bytes = strlen(text);
    return fwrite(text, 1, size_bytes, stream) == size_bytes ? 1 : EOF;
}

int puts(const char *text)
{
    flockfile(stdout);
    int result = fputs(text, stdout) == EOF || putc_unlocked('\n', stdout) == EOF ? EOF : 1;
    funlockfile(stdout);
    return result;
}

int vfprintf(FILE *stream, const char *format, va_list arguments)
{
    char small[1024], *text = small;
    va_list again;
    va_copy(again, arguments);
    int size_bytes = vsnprintf(small, sizeof small, format, arguments);
    if (size_bytes >= (int)sizeof small && (size_bytes = vasprintf(&text, format, again)) < 0)
        text = small;
    va_end(again);
    if (size_bytes > 0 && real_fwrite(text, 1, (size_t)size_bytes, stream) < (size_t)size_bytes)
        size_bytes = -1;
    if (text != small)
        free(text);
    return size_bytes;
}

int vprintf(const char *format, va_list arguments)
{
    return vfprintf(stdout, format, arguments);
}

int fprintf(FILE *stream, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int result = vfprintf(stream, format, arguments);
    va_end(arguments);
    return result;
}

int printf(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int result = vfprintf(stdout, format, arguments);
    va_end(arguments);
    return result;
}

ssize_t getdelim(char **line, size_t *line_bytes, int delimiter, FILE *stream)
{
    if (*line && !in_main(*line))
        return real_getdelim(line, line_bytes, delimiter, stream);
    char *found = NULL; /* libc would enlarge a block of ours */
    size_t room_bytes = 0;
    ssize_t size_bytes = real_getdelim(&found, &room_bytes, delimiter, stream);
    if (size_bytes >= 0 && (!*line || *line_bytes <= (size_t)size_bytes)) {
        char *larger = ciel_heap_realloc(*line, (size_t)size_bytes + 1);
        if (!larger) {
            free(found);
            return -1;
        }
        *line = larger;
        *line_bytes = (size_t)size_bytes + 1;
    }
    if (size_bytes >= 0)
        ciel_heap_memcpy(*line, found, (size_t)size_bytes + 1);
    free(found);
    return size_bytes;
}

ssize_t __getdelim(char **line, size_t *line_bytes, int delimiter, FILE *stream)
{
    return getdelim(line, line_bytes, delimiter, stream); /* what compilers make of getline */
}

ssize_t getline(char **line, size_t *line_bytes, FILE *stream)
{
    return getdelim(line, line_bytes, '\n', stream);
}

/* A buffer that the kernel fills at any later time cannot lie in pages: libc allocates one. */
int setvbuf(FILE *stream, char *buffer, int mode, size_t size_bytes)
{
    return real_setvbuf(stream, pager_is_paged(buffer) ? NULL : buffer, mode, size_bytes);
}

void setbuf(FILE *stream, char *buffer)
{
    setvbuf(stream, buffer, buffer ? _IOFBF : _IONBF, BUFSIZ);
}

/* --- other programs, whose arguments the kernel reads --- */

/* Return a copy of texts outside of the pages; NULL if there are none, or no memory. */
static char **copied(char *const *texts)
{
    size_t count = 0, size_bytes = 0;
    if (!texts)
        return NULL;
    for (; texts[count]; count++)
        size_bytes += strlen(texts[count]) + 1;
    char **copies = malloc((count + 1) * sizeof *copies + size_bytes);
    if (!copies)
        return NULL;
    char *to = (char *)(copies + count + 1);
    for (size_t i = 0; i < count; i++, to += strlen(to) + 1)
        copies[i] = strcpy(to, texts[i]);
    copies[count] = NULL;
    return copies;
}

int execve(const char *path, char *const *arguments, char *const *environment)
{
    char here[4096], **given = copied(arguments), **variables = copied(environment);
    snprintf(here, sizeof here, "%s", path);
    int result = real_execve(here, given, variables);
    free(given);
    free(variables);
    return result;
}

int posix_spawn(pid_t *process, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *options, char *const *arguments, char *const *environment)
{
    char here[4096], **given = copied(arguments), **variables = copied(environment);
    snprintf(here, sizeof here, "%s", path);
    int result = real_posix_spawn(process, here, actions, options, given, variables);
    free(given);
    free(variables);
    return result;
}

int posix_spawnp(pid_t *process, const char *path, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *options, char *const *arguments,
                 char *const *environment)
{
    char here[4096], **given = copied(arguments), **variables = copied(environment);
    snprintf(here, sizeof here, "%s", path);
    int result = real_posix_spawnp(process, here, actions, options, given, variables);
    free(given);
    free(variables);
    return result;
}
