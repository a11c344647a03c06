/* A plug-in of nbdkit: serves a volume of remote memory to any NBD client (NET-2).
 *
 * Parameters: `companion`, the path of a socket (SOCK_SEQPACKET) that answers as page_client.h
 * says; `volume`, its number; `extents`, their count; `compress`, the name of its codec; `cache`,
 * in pages; `timeout`, in seconds. Each thread of nbdkit has its session, so requests run at the
 * same time. */
#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "page_client.h"

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

static struct {
    char *companion;
    uint64_t volume;
    uint32_t extents;
    struct page_options options;
} given = {.options = {.timeout_s = 30}};

static struct page_volume *volume;
static pthread_key_t session_key;

static void close_session(void *session) { page_session_close(session); }

static int set(const char *key, const char *value)
{
    uint64_t number = 0;

    if (strcmp(key, "companion") == 0) {
        free(given.companion);
        given.companion = nbdkit_absolute_path(value);
        return given.companion == NULL ? -1 : 0;
    }
    if (strcmp(key, "compress") == 0) {
        given.options.codec = page_codec(value);
        if (given.options.codec != CODEC_MISSING)
            return 0;
        nbdkit_error("the volume needs the library of %s (Debian: libzstd1, liblz4-1)", value);
        return -1;
    }
    if (nbdkit_parse_uint64_t(key, value, &number) != 0)
        return -1;
    if (strcmp(key, "volume") == 0)
        given.volume = number;
    else if (strcmp(key, "extents") == 0 && number <= UINT32_MAX)
        given.extents = (uint32_t)number;
    else if (strcmp(key, "timeout") == 0 && number <= UINT32_MAX)
        given.options.timeout_s = (double)number;
    else if (strcmp(key, "cache") == 0 && number <= UINT32_MAX)
        given.options.cache_pages = (uint32_t)number;
    else {
        nbdkit_error("unknown parameter, or value out of range: %s=%s", key, value);
        return -1;
    }
    return 0;
}

static int check(void)
{
    if (given.companion != NULL && given.extents > 0)
        return 0;
    nbdkit_error("companion=PATH and extents=N are needed; `ciel memory export` starts nbdkit so");
    return -1;
}

static int begin(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (strlen(given.companion) >= sizeof address.sun_path) {
        nbdkit_error("the path of the companion is too long");
        return -1;
    }
    strcpy(address.sun_path, given.companion);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        nbdkit_error("the companion at %s cannot be reached: %m", given.companion);
        return -1;
    }
    volume = page_volume_open(fd, given.volume, given.extents, given.options);
    if (volume == NULL || pthread_key_create(&session_key, close_session) != 0) {
        nbdkit_error("there is no memory for the volume");
        return -1;
    }
    return 0;
}

static void end(void) { free(given.companion); }

static void *open_connection(int is_read_only)
{
    (void)is_read_only;
    return NBDKIT_HANDLE_NOT_NEEDED;
}

static struct page_session *own_session(void)
{
    struct page_session *session = pthread_getspecific(session_key);

    if (session == NULL) {
        session = page_session_open(volume);
        if (session == NULL || pthread_setspecific(session_key, session) != 0) {
            nbdkit_error("there is no memory for a session");
            nbdkit_set_error(ENOMEM);
            return NULL;
        }
    }
    return session;
}

static int outcome(const struct page_session *session, int result)
{
    if (result == 0)
        return 0;
    nbdkit_set_error(errno == ENOSPC ? ENOSPC : EIO);
    nbdkit_error("%s", page_session_why(session));
    return -1;
}

static int64_t size(void *handle)
{
    (void)handle;
    return (int64_t)given.extents * EXTENT_PAGES * PAGE_BYTES;
}

static int block_size(void *handle, uint32_t *minimum, uint32_t *preferred, uint32_t *maximum)
{
    (void)handle;
    *minimum = 1;
    *preferred = PAGE_BYTES;
    *maximum = 32 << 20;
    return 0;
}

static int read_some(void *handle, void *bytes, uint32_t count, uint64_t at, uint32_t flags)
{
    struct page_session *session = own_session();

    (void)handle;
    (void)flags;
    return session == NULL ? -1 : outcome(session, page_session_read(session, bytes, count, at));
}

static int write_some(void *handle, const void *bytes, uint32_t count, uint64_t at, uint32_t flags)
{
    struct page_session *session = own_session();

    (void)handle;
    (void)flags; /* a write is with all replicas when it ends, which is all that memory can do */
    return session == NULL ? -1 : outcome(session, page_session_write(session, bytes, count, at));
}

static int trim(void *handle, uint32_t count, uint64_t at, uint32_t flags)
{
    struct page_session *session = own_session();

    (void)handle;
    (void)flags;
    return session == NULL ? -1 : outcome(session, page_session_trim(session, count, at));
}

static int flush(void *handle, uint32_t flags)
{
    (void)handle;
    (void)flags;
    return 0;
}

static int yes(void *handle)
{
    (void)handle;
    return 1;
}

static int fua(void *handle)
{
    (void)handle;
    return NBDKIT_FUA_NATIVE;
}

static struct nbdkit_plugin plugin = {
    .name = "ciel-memory",
    .longname = "remote memory of ciel",
    .config = set,
    .config_complete = check,
    .config_help = "companion=PATH volume=N extents=N [compress=lz4|zstd] [cache=PAGES] "
                   "[timeout=SECONDS]",
    .get_ready = NULL,
    .after_fork = begin,
    .unload = end,
    .open = open_connection,
    .get_size = size,
    .block_size = block_size,
    .pread = read_some,
    .pwrite = write_some,
    .trim = trim,
    .zero = trim, /* trimmed pages are zeros */
    .flush = flush,
    .can_write = yes,
    .can_trim = yes,
    .can_zero = yes,
    .can_fast_zero = yes,
    .can_flush = yes,
    .can_fua = fua,
    .can_multi_conn = yes,
    .errno_is_preserved = 0,
};

NBDKIT_REGISTER_PLUGIN(plugin)
