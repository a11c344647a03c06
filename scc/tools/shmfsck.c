/* shmfsck: checks the image in shared memory. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tool.h"

enum {
    CHECK_CLEAN = 0,
    CHECK_PROBLEMS = 1,
    CHECK_UNREADABLE = 2,
    SHOWN_MOST = 100,
    LOOKS = 100, /* checks; a change in progress may look like damage, and real damage stays */
    LOOK_AGAIN_MS = 10,
};

/* Check a copy, which cannot change. */
static int64_t look(const struct shmfs_memory *memory, void *copy, void *scratch,
                    size_t scratch_bytes, struct shmfs_problem *problems)
{
    memcpy(copy, memory->control, memory->control_bytes);
    return shmfs_check(copy, memory->control_bytes, memory->data_bytes, scratch, scratch_bytes,
                       problems, SHOWN_MOST);
}

static int check(struct tool *tool, const struct tool_image *image)
{
    const struct shmfs_memory *memory = &image->memory;
    size_t scratch_bytes = shmfs_check_scratch_bytes(memory->control, memory->control_bytes);
    struct shmfs_problem problems[SHOWN_MOST];
    void *copy = aligned_alloc(4096, (memory->control_bytes + 4095) / 4096 * 4096);
    void *scratch = malloc(scratch_bytes ? scratch_bytes : 1);
    int64_t found = 0;
    if (!copy || !scratch) {
        tool_failed(tool, "out of memory");
        free(copy);
        free(scratch);
        return CHECK_UNREADABLE;
    }
    for (int i = 0; i < LOOKS; i++) {
        struct timespec pause = {.tv_nsec = LOOK_AGAIN_MS * 1000000L};
        if (i)
            nanosleep(&pause, NULL);
        found = look(memory, copy, scratch, scratch_bytes, problems);
        if (found == 0 || !memcmp(copy, memory->control, memory->control_bytes))
            break;
    }
    for (int64_t i = 0; i < found && i < SHOWN_MOST; i++)
        printf("%.4s at %" PRIu64 ", value %" PRIu64 ": %s\n", problems[i].code,
               problems[i].place, problems[i].detail, shmfs_problem_text(problems[i].code));
    free(copy);
    free(scratch);
    if (found < 0) {
        tool_failed(tool, "%s cannot be checked: %s", image->control_path,
                    tool_error_text((int)found));
        return CHECK_UNREADABLE;
    }
    if (found)
        tool_failed(tool, "%s has %" PRId64 " problem%s", image->control_path, found,
                    found == 1 ? "" : "s");
    else
        printf("%s is clean\n", image->control_path);
    return found ? CHECK_PROBLEMS : CHECK_CLEAN;
}

int main(int argc, char **argv)
{
    struct tool_option options[] = {
        {.name = "sweep", .text = "first clean up after dead clients"},
        {0},
    };
    struct tool tool = {
        .name = "shmfsck",
        .text = "Check the invariants of the image in shared memory, and list violations. Exit\n"
                "status: 0 if there are none, 1 if there are some, 2 if it cannot be read.",
        .options = options,
        .cut_status = CHECK_UNREADABLE,
    };
    struct tool_image image;
    tool_begin(&tool, argc, argv);
    if (!tool_map(&tool, &image, false) || !tool_is_whole(&tool, &image))
        return CHECK_UNREADABLE;
    if (options[0].given) {
        if (tool_attach(&tool, &image, true)) {
            int swept = shmfs_sweep(image.fs);
            if (swept < 0)
                tool_failed(&tool, "cannot clean up after dead clients: %s",
                            tool_error_text(swept));
            else
                printf("%d dead client%s swept\n", swept, swept == 1 ? "" : "s");
            shmfs_detach(image.fs);
            image.fs = NULL;
        } /* otherwise the check below reports the problem */
    }
    if (!image.memory.control || !image.memory.data)
        return CHECK_UNREADABLE;
    int status = check(&tool, &image);
    int ended = tool_end(&tool, &image);
    return status == CHECK_CLEAN ? ended : status;
}
