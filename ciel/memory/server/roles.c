/* Takes over roles for extents, which the owner decides: epochs and the lease. */
#include "server.h"

static int is_possible(const struct holding *holding)
{
    if (holding->role > ROLE_JOINING || holding->backup_count > BACKUPS_MAX)
        return 0;
    for (int n = 0; n < holding->backup_count; n++)
        if (holding->backups[n] >= PEERS_MAX)
            return 0;
    return 1;
}

/* Note the backups that the primary has to make equal: this order names some, and some remain from
 * earlier orders. */
static void note_unequal(struct extent *extent, const struct holding *holding)
{
    uint64_t backups = 0;

    for (int n = 0; n < holding->backup_count; n++) {
        backups |= (uint64_t)1 << holding->backups[n];
        if (holding->rejoining >> n & 1)
            extent->unequal |= (uint64_t)1 << holding->backups[n];
    }
    extent->unequal &= holding->role == ROLE_PRIMARY ? backups : 0;
}

/* Take over one role. 0: no memory. */
static int hold(struct page_server *server, const struct holding *holding)
{
    struct extent *extent = find_extent(server, holding->volume, holding->extent);
    uint64_t remaining = 0;

    if (extent != NULL && holding->epoch < extent->epoch)
        return 1; /* an earlier decision, which is late */
    if (extent != NULL && (holding->role == ROLE_NONE || holding->role == ROLE_JOINING)) {
        free_extent(server, extent);
        extent = NULL;
    }
    if (holding->role == ROLE_NONE)
        return 1;
    if (extent == NULL)
        extent = add_extent(server, holding);
    if (extent == NULL)
        return 0;
    extent->epoch = holding->epoch;
    extent->role = holding->role;
    extent->joining = holding->joining;
    extent->backup_count = holding->backup_count;
    memcpy(extent->backups, holding->backups, sizeof extent->backups);
    note_unequal(extent, holding);
    for (int n = 0; n < extent->backup_count; n++) {
        int peer = extent->backups[n], is_unequal = extent->unequal >> peer & 1;
        remaining |= (uint64_t)1 << peer;
        if ((is_unequal || extent->joining >> n & 1) && !start_sync(server, extent, peer))
            return 0;
    }
    /* A joining backup gets the earlier writes with the pages. */
    for (int n = 0; n < extent->backup_count; n++)
        if (extent->joining >> n & 1)
            remaining &= ~((uint64_t)1 << extent->backups[n]);
    for (struct pending *pending = extent->first; pending != NULL; pending = pending->next)
        pending->waits &= remaining;
    if (extent->role == ROLE_PRIMARY) {
        complete_writes(server, extent);
        answer_waiting(server, extent);
    } else {
        refuse_pending(server, extent);
        refuse_waiting(server, extent);
    }
    return 1;
}

int page_server_hold(struct page_server *server, const struct holding *holdings, int count)
{
    for (int n = 0; n < count; n++)
        if (!is_possible(&holdings[n])) {
            errno = EINVAL;
            return -1;
        }
    pthread_mutex_lock(&server->mutex);
    int is_done = 1;
    for (int n = 0; n < count && is_done; n++)
        is_done = hold(server, &holdings[n]);
    send_queued(server);
    pthread_mutex_unlock(&server->mutex);
    page_server_wake(server);
    if (!is_done)
        errno = ENOMEM;
    return is_done ? 0 : -1;
}

void page_server_lease(struct page_server *server, double until_s)
{
    pthread_mutex_lock(&server->mutex);
    server->lease_until_s = until_s;
    pthread_mutex_unlock(&server->mutex);
}
