/* shmfs-fuse: mounts an image in shared memory as an ordinary directory.
 *
 * The program stays in the foreground. It prints a line when the directory is ready, serves until
 * it is unmounted or terminated, and unmounts however it ends (unmounting.c). It is an ordinary
 * client of the image. docs/adr/0030-a-mount-over-flat-names.md explains when files are committed,
 * and how modes, owners and times are handled. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cutting.h"
#include "operations.h"
#include "unmounting.h"
#include "../tools/tool.h"

enum { ENTRY_TIMEOUT, WRITEBACK, OTHERS, OPTION_COUNT };

static int serve(struct tool *tool, struct mount *mount, struct fuse_session *session,
                 const char *place)
{
    if (fuse_set_signal_handlers(session))
        return tool_failed(tool, "cannot install signal handlers");
    if (fuse_session_mount(session, place)) {
        fuse_remove_signal_handlers(session);
        return tool_failed(tool, "cannot mount on %s: this needs /dev/fuse and, for users other "
                                 "than root, fusermount3", place);
    }
    printf("%s is mounted on %s\n", tool->image_name, place);
    fflush(stdout);
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_clone_fd(config, 1);
    int ended = fuse_session_loop_mt(session, config);
    fuse_loop_cfg_destroy(config);
    fuse_session_unmount(session);
    fuse_remove_signal_handlers(session);
    nodes_free(mount);
    return ended < 0 ? tool_failed(tool, "the mount failed: %s", strerror(-ended)) : TOOL_DONE;
}

/* Create a session, with options that libfuse passes to the kernel. */
static struct fuse_session *make_session(struct mount *mount, bool is_for_others)
{
    char *words[] = {
        "shmfs-fuse", "-o",
        is_for_others ? "fsname=shmfs,subtype=shmfs,default_permissions,allow_other"
                      : "fsname=shmfs,subtype=shmfs,default_permissions",
        NULL,
    };
    struct fuse_args arguments = FUSE_ARGS_INIT(3, words);
    struct fuse_lowlevel_ops operations = {0};
    operations_of_names(&operations);
    operations_of_listing(&operations);
    operations_of_contents(&operations);
    struct fuse_session *session =
        fuse_session_new(&arguments, &operations, sizeof operations, mount);
    fuse_opt_free_args(&arguments);
    return session;
}

static int run(struct tool *tool, struct tool_image *image)
{
    const struct tool_option *options = tool->options;
    struct stat status;
    const char *place = tool->given[0];
    if (stat(place, &status) || !S_ISDIR(status.st_mode))
        return tool_failed(tool, "cannot mount on %s: it is not a directory", place);
    fstat(image->memory.control_fd, &status);
    struct mount mount = {
        .fs = image->fs,
        .data = image->memory.data,
        .geometry = shmfs_geometry_of(image->fs),
        .entry_timeout_s =
            (double)tool_number(tool, &options[ENTRY_TIMEOUT], 0, 3600000, 0) / 1000,
        .attribute_timeout_s = 1,
        .is_writeback = options[WRITEBACK].given,
        .uid = status.st_uid,
        .gid = status.st_gid,
        .began = now(),
    };
    if (!survive_cutting(&image->memory))
        return tool_failed(tool, "cannot install a signal handler: %s", strerror(errno));
    if (!nodes_make(&mount))
        return tool_failed(tool, "out of memory");
    struct fuse_session *session = make_session(&mount, options[OTHERS].given);
    mount.session = session;
    int ended = session ? serve(tool, &mount, session, place)
                        : tool_failed(tool, "cannot initialize libfuse");
    if (session)
        fuse_session_destroy(session);
    return ended;
}

int main(int argc, char **argv)
{
    struct tool_option options[OPTION_COUNT + 1] = {
        [ENTRY_TIMEOUT] = {"name-timeout-ms", "N",
                           "how long the kernel may cache a name; default 0", NULL, NULL},
        [WRITEBACK] = {"writeback", NULL,
                       "gather small writes; only if no other program writes to the image", NULL,
                       NULL},
        [OTHERS] = {"allow-other", NULL, "allow other users to use the mount", NULL, NULL},
    };
    struct tool tool = {
        .name = "shmfs-fuse",
        .arguments = "DIR",
        .text = "Mount shared memory as a directory, until it is unmounted (fusermount3 -u DIR).",
        .least = 1,
        .most = 1,
        .options = options,
    };
    struct tool_image image;
    tool_begin(&tool, argc, argv);
    unmount_dead(tool.given[0]);
    if (is_mounted_on(tool.given[0])) /* a second mount would hide the first one */
        return tool_failed(&tool, "cannot mount on %s: shared memory is mounted there already",
                           tool.given[0]);
    if (!unmount_when_dead(tool.given[0]))
        return tool_failed(&tool, "cannot start the process that unmounts after a crash: %s",
                           strerror(errno));
    if (!tool_attach(&tool, &image, true))
        return TOOL_FAILED;
    run(&tool, &image);
    return tool_end(&tool, &image);
}
