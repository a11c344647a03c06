/* Requests that a new primary answers when its backups are equal to it: reads, and writes that were
 * completed before. Until then its backups may lack some of its pages. */
#include "server.h"

/* Let a request wait; sync.c then sends this extent before others. */
void wait_until_equal(struct page_server *server, struct extent *extent,
                      struct connection *from, const struct frame *frame)
{
    struct waiting *waiting = calloc(1, sizeof *waiting);

    if (waiting == NULL) {
        reply(server, from, frame, STATUS_NO_SPACE);
        return;
    }
    *waiting = (struct waiting){.from = from, .frame = *frame};
    from->references++;
    *extent->last_waiting = waiting;
    extent->last_waiting = &waiting->next;
    hurry_sync(server, extent);
}

/* Remove the request that waits longest. */
static struct waiting take_first(struct extent *extent)
{
    struct waiting *first = extent->first_waiting, taken = *first;

    extent->first_waiting = first->next;
    if (extent->first_waiting == NULL)
        extent->last_waiting = &extent->first_waiting;
    if (taken.from != NULL)
        taken.from->references--;
    free(first);
    return taken;
}

/* Answer the requests that wait, unless a backup is not equal yet. */
void answer_waiting(struct page_server *server, struct extent *extent)
{
    while (extent->first_waiting != NULL && extent->unequal == 0) {
        struct waiting waiting = take_first(extent);
        if (waiting.from == NULL)
            continue;
        if (waiting.frame.op == OP_READ)
            read_pages(server, waiting.from, &waiting.frame);
        else
            reply(server, waiting.from, &waiting.frame,
                  is_primary(server, extent, waiting.frame.epoch) ? STATUS_OK : STATUS_STALE);
    }
}

void refuse_waiting(struct page_server *server, struct extent *extent)
{
    while (extent->first_waiting != NULL) {
        struct waiting waiting = take_first(extent);
        if (waiting.from != NULL)
            reply(server, waiting.from, &waiting.frame, STATUS_STALE);
    }
}
