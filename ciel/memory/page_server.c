/* The thread of a memory server, and its functions for Python. */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "server/server.h"

void report_event(struct page_server *server, struct event event)
{
    uint64_t one = 1;

    if (server->event_count == EVENTS_MAX)
        return; /* nobody reads them: the owner finds out by its own connections */
    server->events[(server->first_event + server->event_count++) % EVENTS_MAX] = event;
    (void)!write(server->has_events, &one, sizeof one);
}

static void *serve(void *argument)
{
    struct page_server *server = argument;
    struct epoll_event events[64];
    double swept_s = now_s();

    for (;;) {
        int count = epoll_wait(server->epoll, events, 64, 1000);
        pthread_mutex_lock(&server->mutex);
        if (server->is_closing) {
            pthread_mutex_unlock(&server->mutex);
            return NULL;
        }
        for (int n = 0; n < count; n++) {
            struct connection *connection = events[n].data.ptr;
            if (connection == NULL) { /* it was woken */
                uint64_t woken;
                (void)!read(server->wake, &woken, sizeof woken);
                continue;
            }
            if (connection->is_closing)
                continue;
            if (connection->kind == LISTENER) {
                accept_connection(server, connection);
                continue;
            }
            if (events[n].events & EPOLLOUT)
                send_now(server, connection);
            if (connection->kind == UNAUTHENTICATED && held(&connection->in) >= HELLO_BYTES)
                end_connection(server, connection); /* it has ended while it waited */
            else if (events[n].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !connection->is_closing)
                receive(server, connection);
        }
        if (server->syncs != NULL)
            sync_all(server);
        if (server->has_ended || now_s() >= swept_s + 1.0) {
            sweep(server);
            swept_s = now_s();
        }
        pthread_mutex_unlock(&server->mutex);
    }
}

void page_server_wake(struct page_server *server)
{
    uint64_t one = 1;

    (void)!write(server->wake, &one, sizeof one);
}

static void free_all(struct page_server *server)
{
    while (server->connections != NULL)
        free_connection(server, server->connections);
    for (int n = 0; n < EXTENT_BUCKETS; n++)
        while (server->extents[n] != NULL) {
            struct extent *extent = server->extents[n];
            for (struct pending *each = extent->first; each != NULL; each = each->next)
                each->from = NULL;
            free_extent(server, extent);
        }
    for (int n = 0; n < SESSION_BUCKETS; n++)
        while (server->sessions[n] != NULL) {
            struct session *session = server->sessions[n];
            server->sessions[n] = session->next;
            free(session);
        }
    while (server->syncs != NULL) {
        struct sync *sync = server->syncs;
        server->syncs = sync->next;
        free(sync);
    }
    if (server->pages != NULL)
        munmap(server->pages, ((size_t)server->slot_count + SPARE_PAGES) * PAGE_BYTES);
    for (int n = 0; n < 3; n++) {
        int fd = (int[]){server->epoll, server->wake, server->has_events}[n];
        if (fd >= 0)
            close(fd);
    }
    free(server->splits);
    free(server->free_slots);
    free(server->events);
    pthread_mutex_destroy(&server->mutex);
    free(server);
}

static int set_up(struct page_server *server, int64_t offered_bytes, int is_locked)
{
    struct epoll_event woken = {.events = EPOLLIN, .data.ptr = NULL};
    static const uint8_t zeros[PAGE_BYTES];
    uint32_t all = (uint32_t)(offered_bytes / PAGE_BYTES) + SPARE_PAGES;

    server->slot_count = all - SPARE_PAGES;
    server->free_count = all;
    server->zeros_checksum = page_checksum(zeros, PAGE_BYTES);
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->has_events = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->splits = calloc(all, sizeof *server->splits);
    server->free_slots = malloc((size_t)all * 4);
    server->events = malloc(EVENTS_MAX * sizeof *server->events);
    if (server->epoll < 0 || server->wake < 0 || server->has_events < 0 ||
        server->splits == NULL || server->free_slots == NULL || server->events == NULL)
        return 0;
    void *pages = mmap(NULL, (size_t)all * PAGE_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        return 0;
    server->pages = pages;
    server->is_locked = is_locked;
    if (is_locked && mlock(pages, (size_t)all * PAGE_BYTES) != 0)
        return 0;
    for (uint32_t n = 0; n < all; n++) /* the first pages are used first */
        server->free_slots[n] = all - 1 - n;
    return epoll_ctl(server->epoll, EPOLL_CTL_ADD, server->wake, &woken) == 0;
}

struct page_server *page_server_open(int64_t offered_bytes, int is_locked)
{
    struct page_server *server;

    if (offered_bytes < EXTENT_PAGES * PAGE_BYTES ||
        offered_bytes / PAGE_BYTES >= (int64_t)UINT32_MAX / QUARTERS - SPARE_PAGES) {
        errno = EINVAL;
        return NULL;
    }
    server = calloc(1, sizeof *server);
    if (server == NULL)
        return NULL;
    server->epoll = server->wake = server->has_events = -1;
    pthread_mutex_init(&server->mutex, NULL);
    int error = set_up(server, offered_bytes, is_locked)
                    ? pthread_create(&server->thread, NULL, serve, server)
                    : errno;
    if (error != 0) {
        free_all(server);
        errno = error;
        return NULL;
    }
    server->figures.pages_offered = server->slot_count;
    return server;
}

void page_server_close(struct page_server *server)
{
    pthread_mutex_lock(&server->mutex);
    server->is_closing = 1;
    pthread_mutex_unlock(&server->mutex);
    page_server_wake(server);
    pthread_join(server->thread, NULL);
    free_all(server);
}

int page_server_listen(struct page_server *server, int fd)
{
    pthread_mutex_lock(&server->mutex);
    int is_added = add_connection(server, LISTENER, fd) != NULL;
    pthread_mutex_unlock(&server->mutex);
    return is_added ? 0 : -1;
}

int page_server_connect(struct page_server *server, int peer, int fd)
{
    if (peer < 0 || peer >= PEERS_MAX) {
        errno = EINVAL;
        return -1;
    }
    pthread_mutex_lock(&server->mutex);
    struct connection *connection = add_connection(server, PEER, fd);
    if (connection != NULL) {
        if (server->peers[peer] != NULL)
            end_connection(server, server->peers[peer]);
        connection->peer = peer;
        server->peers[peer] = connection;
        server->unacknowledged[peer] = 0;
    }
    pthread_mutex_unlock(&server->mutex);
    page_server_wake(server);
    return connection == NULL ? -1 : 0;
}

int page_server_event_fd(struct page_server *server) { return server->has_events; }

int page_server_events(struct page_server *server, struct event *events, int max)
{
    uint64_t told;
    int count = 0;

    pthread_mutex_lock(&server->mutex);
    while (count < max && server->event_count > 0) {
        events[count++] = server->events[server->first_event];
        server->first_event = (server->first_event + 1) % EVENTS_MAX;
        server->event_count--;
    }
    if (server->event_count == 0)
        (void)!read(server->has_events, &told, sizeof told);
    pthread_mutex_unlock(&server->mutex);
    return count;
}

void page_server_figures(struct page_server *server, struct figures *figures)
{
    pthread_mutex_lock(&server->mutex);
    *figures = server->figures;
    figures->pages_used = server->slot_count + SPARE_PAGES - server->arriving - server->free_count;
    pthread_mutex_unlock(&server->mutex);
}

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24 /* since Linux 5.18: the pages are locked again when they are used */
#endif

int page_server_release(struct page_server *server, uint32_t count)
{
    int advice = server->is_locked ? MADV_DONTNEED_LOCKED : MADV_DONTNEED;
    int failed = 0;

    if (sysconf(_SC_PAGESIZE) != PAGE_BYTES) { /* the kernel would release other pages, too */
        errno = ENOTSUP;
        return -1;
    }
    pthread_mutex_lock(&server->mutex);
    uint32_t left = server->free_count - server->released;
    uint32_t end = server->released + (left < count ? left : count);
    while (server->released < end && !failed) {
        const uint32_t *slots = server->free_slots + server->released;
        uint32_t run = 1; /* slots of pages that are adjacent, the last one first */
        while (server->released + run < end && slots[run] == slots[run - 1] - 1)
            run++;
        failed = madvise(server->pages + (size_t)slots[run - 1] * PAGE_BYTES, (size_t)run * PAGE_BYTES, advice);
        if (!failed)
            server->released += run;
    }
    int has_more = server->released < server->free_count;
    pthread_mutex_unlock(&server->mutex);
    return failed ? -1 : has_more;
}
