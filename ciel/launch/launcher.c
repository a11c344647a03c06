/* ciel-launcher: starts programs and reaps them, so that neither master, worker nor client ever forks.
 *
 *     ciel-launcher SOCKET SALT      (run by launcher.py beside this file; messages.py is its wire)
 *
 * Requests come over SOCKET, a connected stream of AF_UNIX: START and KILL. Events go back: STARTED or
 * FAILED, once for each START, and EXITED, once for each STARTED. The end of the stream, or the death of
 * the process that made the socket, is the end of everything started here. Nothing else ends the launcher:
 * all signals are blocked, since a Ctrl-C is for the owner to decide.
 *
 * Three promises, and what keeps them:
 *   - A launch takes the same time whatever the size of its owner: vfork from this small process.
 *   - When EXITED arrives, nothing of that launch is alive. The program has its own session, so that its
 *     group can be killed in one step, which even a fork bomb does not outrun. What left that group is
 *     orphaned when its parents die, and comes to us, a subreaper; its tag says whose it was.
 *   - When the launcher is killed, its programs die with it (PR_SET_PDEATHSIG), and its owner finds the
 *     rest by the same tag.
 *
 * The tag of a launch is the soft RLIMIT_LOCKS of its processes, (SALT << 32 | slot). No kernel since 2.4
 * reads that limit, yet fork and exec hand it on, and one system call shows it. A mark in the environment
 * would be lost to `env -i`, and is unreadable for a moment while a process executes another program.
 *
 * Nothing is allocated: all tables are static, have their limits below, and cost memory only where used. */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    REQUEST_BYTES_MAX = 8 << 20, /* the kernel takes at most 6 MiB of arguments and environment */
    STRINGS_MAX = 1 << 20,       /* each costs at least 9 bytes of those 6 MiB */
    LAUNCHES_MAX = 1 << 16,
    EVENTS_MAX = 2 * LAUNCHES_MAX,
    REQUESTS_PER_TURN = 16, /* exits are not kept waiting behind a long row of starts */
    PASSED_MAX = 512,       /* the kernel passes at most 253 at a time; a request uses up to 3 */
    STARTED_WAITS_MS = 2,   /* for company: a brief program then wakes its owner once, not twice */
    PIDS = 1 << 22,         /* the kernel's PID_MAX_LIMIT */
};

/* The wire, as in messages.py: native byte order, no padding. */

enum { START = 1, KILL = 2 };
enum { STARTED = 1, FAILED = 2, EXITED = 3 };
enum stage { VFORK = 1, CHDIR, STDIN, STDOUT, STDERR, SETRLIMIT, EXEC };
enum stream { TO_PATH = 0, APPEND_TO_PATH, DESCRIPTOR, INHERITED, AS_STDOUT, STREAM_KINDS };
enum { STREAMS = 3, LIMITS = 4 };
static const int limited_resources[LIMITS] = {RLIMIT_AS, RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_CORE};

struct request {
    uint32_t size_bytes; /* of the whole request */
    uint32_t kind;
    uint64_t id;
};
struct kill_request {
    struct request head;
    int32_t signal;
    uint32_t zero;
};
/* Followed by zero-terminated strings: directory (empty: ours), a path for each stream (empty where it
 * has none), the arguments, then NAME=VALUE to set or NAME to unset. */
struct start_request {
    struct request head;
    uint32_t argument_count, environment_count;
    uint8_t streams[STREAMS], zero;
    uint32_t passed_count;   /* descriptors that came along, in the order of the streams that use them */
    uint64_t limits[LIMITS]; /* as limited_resources; UINT64_MAX leaves one alone */
};
struct event {
    uint16_t kind, stage; /* stage: FAILED only */
    int32_t value;        /* STARTED: process id; FAILED: errno; EXITED: wait status */
    uint64_t id, user_us, system_us, max_rss_bytes; /* the last three: EXITED only */
};
_Static_assert(sizeof(struct kill_request) == 24, "messages.py says 24");
_Static_assert(sizeof(struct start_request) == 64, "messages.py says 64");
_Static_assert(sizeof(struct event) == 40, "messages.py says 40");

/* What runs. A slot is free (pid 0), running, or ended: its program is dead, but something it left behind
 * is not yet. A slot is not used anew before that is over, hence the tag of an orphan never lies. */

struct launch {
    uint64_t id;
    pid_t pid;
    uint32_t next_free;
    bool ended, survived;
    struct event exit;
};
static struct launch launches[LAUNCHES_MAX]; /* slot 0 means none */
static uint32_t slot_of_pid[PIDS];           /* programs that have not been reaped */
static uint32_t slots_used = 1, first_free, running_count;
static uint32_t ended[LAUNCHES_MAX], ended_count;

static unsigned char input[REQUEST_BYTES_MAX];
static size_t input_bytes;
static int passed[PASSED_MAX];
static unsigned passed_count;
static struct event output[EVENTS_MAX];
static size_t output_bytes;
static bool urgent; /* output holds more than STARTED */
static char *strings[STRINGS_MAX]; /* arguments and environment of the program being started */

static int owner, children, own_pid;
static uint64_t salt;
static char **own_environment;

/* Every child of ours, of whatever launch: the programs and the orphans, dead or alive. */
static void for_each_child(void (*visit)(pid_t))
{
    char text[4096];
    off_t offset = 0;
    ssize_t length;
    pid_t pid = 0;
    while ((length = pread(children, text, sizeof text, offset)) > 0) {
        for (ssize_t i = 0; i < length; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                pid = pid * 10 + (text[i] - '0');
            } else if (pid > 0) {
                visit(pid);
                pid = 0;
            }
        }
        offset += length;
    }
}

/* Kill an orphan with its group, which may be one that left its session. False if it may not be killed.
 * It is our child and not yet reaped: neither number can mean another process. */
static bool kill_orphan(pid_t pid)
{
    pid_t group = getpgid(pid);
    if (group > 1 && group != getpgrp())
        kill(-group, SIGKILL);
    return kill(pid, SIGKILL) == 0;
}

static void kill_child(pid_t pid)
{
    (void)kill_orphan(pid);
}

/* Kill all that was ever started here; return when the last of it is reaped. Groups go first, while every
 * program is unreaped and its number its own; then whatever comes to us as their parents die. */
static void kill_everything(void)
{
    siginfo_t dead;
    for (uint32_t slot = 1; slot < slots_used; slot++)
        if (launches[slot].pid && !launches[slot].ended)
            kill(-launches[slot].pid, SIGKILL);
    do {
        for_each_child(kill_child);
        while (waitid(P_ALL, 0, &dead, WEXITED | WNOHANG) == 0 && dead.si_pid)
            dead.si_pid = 0;
    } while (waitid(P_ALL, 0, &dead, WEXITED | WNOWAIT) == 0 || errno == EINTR);
}

static _Noreturn void give_up(const char *what, const char *why)
{
    fprintf(stderr, "ciel-launcher: %s: %s\n", what, why);
    kill_everything();
    exit(70); /* EX_SOFTWARE */
}

static bool room_for_events(void)
{
    return output_bytes / sizeof(struct event) + running_count + ended_count + 2 <= EVENTS_MAX;
}

static void emit(const struct event *event)
{
    urgent |= event->kind != STARTED;
    memcpy((char *)output + output_bytes, event, sizeof *event);
    output_bytes += sizeof *event;
}

static void send_events(void)
{
    if (!urgent)
        return;
    ssize_t sent = send(owner, output, output_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) { /* a dead owner is noticed by poll */
        if (errno == EAGAIN || errno == EINTR || errno == EPIPE || errno == ECONNRESET)
            return;
        give_up("send", strerror(errno));
    }
    output_bytes -= (size_t)sent;
    memmove(output, (char *)output + sent, output_bytes);
    urgent = output_bytes > 0;
}

/* Starting. */

struct program {
    char *directory, *paths[STREAMS], **arguments, **environment;
    const struct start_request *request;
    int descriptors[STREAMS];
    rlim_t tag;
};

/* Written by the child of vfork, which shares our memory until it executes its program. */
static volatile struct {
    enum stage stage;
    int error;
} failure;

static _Noreturn void fail(enum stage stage)
{
    failure.error = errno;
    failure.stage = stage;
    _exit(127);
}

static void open_stream(const struct program *program, int stream, enum stage stage)
{
    static const int flags[STREAMS] = {O_RDONLY, O_WRONLY | O_CREAT, O_WRONLY | O_CREAT};
    enum stream kind = program->request->streams[stream];
    if (kind == INHERITED)
        return;
    int from = kind == AS_STDOUT ? STDOUT_FILENO : program->descriptors[stream];
    if (kind == TO_PATH || kind == APPEND_TO_PATH) {
        int append = kind == APPEND_TO_PATH ? O_APPEND : 0;
        int truncate = stream == STDIN_FILENO || append ? 0 : O_TRUNC;
        /* Not to wait here for the other end of a FIFO: we are waited for by every launch. */
        int open_flags = flags[stream] | append | truncate | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
        from = open(program->paths[stream], open_flags, 0666);
        if (from < 0 || fcntl(from, F_SETFL, append) < 0)
            fail(stage);
    }
    if (dup2(from, stream) < 0)
        fail(stage);
}

/* In the child of vfork: system calls only, and no return. The parent's descriptors all close on exec. */
static _Noreturn void become(const struct program *program)
{
    setsid(); /* no terminal to stop or hang up the program; and a session's leader cannot leave its group */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != own_pid)
        _exit(127); /* the launcher died before that took effect */
    struct rlimit limit = {program->tag, RLIM_INFINITY};
    if (setrlimit(RLIMIT_LOCKS, &limit) < 0)
        fail(SETRLIMIT);
    if (program->directory[0] && chdir(program->directory) < 0)
        fail(CHDIR);
    open_stream(program, STDIN_FILENO, STDIN);
    open_stream(program, STDOUT_FILENO, STDOUT);
    open_stream(program, STDERR_FILENO, STDERR);
    for (int i = 0; i < LIMITS; i++) {
        if (program->request->limits[i] == UINT64_MAX)
            continue;
        limit.rlim_cur = limit.rlim_max = program->request->limits[i];
        if (setrlimit((__rlimit_resource_t)limited_resources[i], &limit) < 0)
            fail(SETRLIMIT);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    environ = program->environment; /* execvp seeks in the PATH found there; the parent sets its own back */
    execvp(program->arguments[0], program->arguments);
    fail(EXEC);
}

static void start(struct program *program)
{
    struct event event = {.kind = FAILED, .id = program->request->head.id};
    uint32_t slot = first_free ? first_free : slots_used;
    if (slot == LAUNCHES_MAX) {
        event.stage = VFORK;
        event.value = EAGAIN;
        emit(&event);
        return;
    }
    program->tag = salt << 32 | slot;
    failure.stage = 0;
    pid_t pid = vfork();
    if (pid == 0)
        become(program);
    environ = own_environment;
    if (pid < 0) {
        failure.error = errno;
        failure.stage = VFORK;
    }
    if (failure.stage) {
        event.stage = (uint16_t)failure.stage;
        event.value = failure.error;
        if (pid > 0)
            waitpid(pid, NULL, 0);
    } else {
        event.kind = STARTED;
        event.value = pid;
        first_free = launches[slot].next_free;
        slots_used += slot == slots_used;
        launches[slot] = (struct launch){.id = event.id, .pid = pid};
        slot_of_pid[pid] = slot;
        running_count++;
    }
    emit(&event);
}

/* Requests. */

static char *next_string(char **rest, const char *end)
{
    char *string = *rest;
    char *zero = memchr(string, 0, (size_t)(end - string));
    if (zero == NULL)
        give_up("malformed request", "a string has no end");
    *rest = zero + 1;
    return string;
}

/* Our environment less what is set or unset, then what is set; `changes` become the result's tail. */
static void merge_environment(char **result, char **changes, uint32_t count)
{
    for (char **own = own_environment; *own; own++) {
        bool kept = true;
        for (uint32_t i = 0; i < count && kept; i++) {
            size_t name_bytes = strcspn(changes[i], "=");
            kept = strncmp(*own, changes[i], name_bytes) != 0 || (*own)[name_bytes] != '=';
        }
        if (kept)
            *result++ = *own;
    }
    for (uint32_t i = 0; i < count; i++)
        if (strchr(changes[i], '='))
            *result++ = changes[i];
    *result = NULL;
}

static void obey_start(const unsigned char *bytes, uint32_t size_bytes)
{
    struct start_request request;
    if (size_bytes < sizeof request)
        give_up("malformed request", "START is too short");
    memcpy(&request, bytes, sizeof request);
    struct program program = {.request = &request};
    char *rest = (char *)bytes + sizeof request;
    const char *end = (const char *)bytes + size_bytes;
    unsigned taken = 0;
    program.directory = next_string(&rest, end);
    for (int i = 0; i < STREAMS; i++) {
        enum stream kind = request.streams[i];
        if (kind >= STREAM_KINDS || (kind == AS_STDOUT && i != STDERR_FILENO))
            give_up("malformed request", "START has an unknown kind of stream");
        program.paths[i] = next_string(&rest, end);
        if (kind == DESCRIPTOR && taken < passed_count)
            program.descriptors[i] = passed[taken++];
        else if (kind == DESCRIPTOR)
            give_up("malformed request", "START lacks a descriptor");
    }
    uint64_t own_count = 0;
    while (own_environment[own_count])
        own_count++;
    uint64_t given_count = (uint64_t)request.argument_count + request.environment_count;
    if (request.argument_count == 0 || taken != request.passed_count)
        give_up("malformed request", "START has a wrong count");
    if (2 * given_count + own_count + 2 > STRINGS_MAX) {
        struct event event = {.kind = FAILED, .stage = EXEC, .value = E2BIG, .id = request.head.id};
        emit(&event);
    } else {
        program.arguments = strings;
        for (uint32_t i = 0; i < request.argument_count; i++)
            strings[i] = next_string(&rest, end);
        strings[request.argument_count] = NULL;
        char **changes = strings + request.argument_count + 1;
        for (uint32_t i = 0; i < request.environment_count; i++)
            changes[i] = next_string(&rest, end);
        if (rest != end)
            give_up("malformed request", "START has bytes left over");
        program.environment = changes + request.environment_count;
        merge_environment(program.environment, changes, request.environment_count);
        start(&program);
    }
    for (unsigned i = 0; i < taken; i++)
        close(passed[i]);
    passed_count -= taken;
    memmove(passed, passed + taken, passed_count * sizeof passed[0]);
}

/* One who has ended in the meantime is no error. What left the group of the program is not signalled, but
 * killed when it has ended: SIGKILL thus reaches everything. */
static void obey_kill(const unsigned char *bytes, uint32_t size_bytes)
{
    struct kill_request request;
    if (size_bytes != sizeof request)
        give_up("malformed request", "KILL has a wrong size");
    memcpy(&request, bytes, sizeof request);
    for (uint32_t slot = 1; slot < slots_used; slot++)
        if (launches[slot].id == request.head.id && launches[slot].pid && !launches[slot].ended)
            kill(-launches[slot].pid, request.signal);
}

/* Obey what has come; return whether a further turn finds more. */
static bool obey_requests(void)
{
    size_t done_bytes = 0;
    unsigned count = 0;
    struct request request;
    while (count < REQUESTS_PER_TURN && room_for_events()) {
        if (input_bytes - done_bytes < sizeof request)
            break;
        memcpy(&request, input + done_bytes, sizeof request);
        if (request.size_bytes < sizeof request || request.size_bytes > REQUEST_BYTES_MAX)
            give_up("malformed request", "impossible size");
        if (input_bytes - done_bytes < request.size_bytes)
            break;
        if (request.kind == START)
            obey_start(input + done_bytes, request.size_bytes);
        else if (request.kind == KILL)
            obey_kill(input + done_bytes, request.size_bytes);
        else
            give_up("malformed request", "unknown kind");
        done_bytes += request.size_bytes;
        count++;
    }
    input_bytes -= done_bytes;
    if (done_bytes)
        memmove(input, input + done_bytes, input_bytes);
    return count == REQUESTS_PER_TURN;
}

/* Read what is there; false at the end of the stream. Descriptors come no later than the request that
 * uses them, and never more than one sendmsg's worth ahead. */
static bool receive(void)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(253 * sizeof(int))];
    } control;
    struct iovec free_input = {input + input_bytes, sizeof input - input_bytes};
    struct msghdr message = {.msg_iov = &free_input, .msg_iovlen = 1,
                             .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t length = recvmsg(owner, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (length <= 0)
        return false;
    input_bytes += (size_t)length;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        if (passed_count + count > PASSED_MAX)
            give_up("malformed request", "more descriptors than requests use");
        memcpy(passed + passed_count, CMSG_DATA(c), count * sizeof(int));
        passed_count += (unsigned)count;
    }
    if (message.msg_flags & MSG_CTRUNC)
        give_up("recvmsg", "descriptors were lost; the limit of open files is too low");
    return true;
}

/* Ends. */

static uint64_t us(struct timeval time)
{
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_usec;
}

/* Take every child that is dead. A program is first looked at, then killed with its group while its
 * number is still its own, and only then reaped. */
static void reap(void)
{
    for (;;) {
        siginfo_t dead = {0};
        if (waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) < 0 || dead.si_pid == 0)
            return;
        uint32_t slot = slot_of_pid[dead.si_pid];
        if (slot)
            kill(-dead.si_pid, SIGKILL);
        int status;
        struct rusage usage;
        if (wait4(dead.si_pid, &status, 0, &usage) < 0)
            give_up("wait4", strerror(errno));
        if (slot == 0)
            continue;
        slot_of_pid[dead.si_pid] = 0;
        launches[slot].ended = true;
        launches[slot].exit = (struct event){
            .kind = EXITED, .value = status, .id = launches[slot].id, .user_us = us(usage.ru_utime),
            .system_us = us(usage.ru_stime), .max_rss_bytes = (uint64_t)usage.ru_maxrss * 1024};
        ended[ended_count++] = slot;
        running_count--;
    }
}

/* An orphan lives as long as the program it came from; one without a tag of ours, as long as any does. */
static void judge_child(pid_t pid)
{
    if (slot_of_pid[pid])
        return;
    struct rlimit tag;
    bool known = prlimit(pid, RLIMIT_LOCKS, NULL, &tag) == 0 && tag.rlim_cur >> 32 == salt;
    uint32_t slot = known ? (uint32_t)tag.rlim_cur : 0;
    if (slot > 0 && slot < slots_used && launches[slot].pid) {
        if (launches[slot].ended && kill_orphan(pid))
            launches[slot].survived = true;
    } else if (running_count == 0) {
        kill_child(pid);
    }
}

/* Kill what ended programs left behind; report those that left nothing. The others wait for the deaths of
 * their orphans, each of which is a SIGCHLD and thus a further turn. */
static void settle_ended(void)
{
    uint32_t waiting_count = 0;
    for_each_child(judge_child);
    for (uint32_t i = 0; i < ended_count; i++) {
        struct launch *launch = &launches[ended[i]];
        if (launch->survived) {
            launch->survived = false;
            ended[waiting_count++] = ended[i];
            continue;
        }
        emit(&launch->exit);
        *launch = (struct launch){.next_free = first_free};
        first_free = ended[i];
    }
    ended_count = waiting_count;
}

/* The process at the other end, as a descriptor that polls readable when it dies. The stream ends then as
 * well, unless a forked copy of the owner holds it open. PR_SET_PDEATHSIG would be of no use here: it
 * tells the end of a thread, and would leave us no time to clean up. -1, which poll passes over, if the
 * kernel does not say. */
static int open_owner_process(void)
{
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    if (getsockopt(owner, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0 || peer.pid <= 0)
        return -1;
    return (int)syscall(SYS_pidfd_open, peer.pid, 0);
}

/* Forget what the owner handed down: descriptors, and signals ignored (as Python does with SIGPIPE).
 * Returns the descriptor that tells of SIGCHLD. */
static int prepare(void)
{
    sigset_t all, child;
    while (fcntl(STDERR_FILENO, F_GETFD) < 0) /* what a program gets must not land on 0 to 2 */
        if (open("/dev/null", O_RDWR) < 0)
            give_up("/dev/null", strerror(errno));
    if ((owner > 3 && close_range(3, (unsigned)owner - 1, 0) < 0) ||
        close_range((unsigned)owner + 1, ~0U, 0) < 0 || fcntl(owner, F_SETFD, FD_CLOEXEC) < 0)
        give_up("descriptors", strerror(errno));
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL); /* fails for the two that cannot be caught */
    struct sigaction only_ends = {.sa_handler = SIG_DFL, .sa_flags = SA_NOCLDSTOP};
    sigaction(SIGCHLD, &only_ends, NULL);
    sigfillset(&all);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_SETMASK, &all, NULL);
    struct rlimit locks;
    if (getrlimit(RLIMIT_LOCKS, &locks) < 0 || locks.rlim_max != RLIM_INFINITY)
        give_up("RLIMIT_LOCKS", "has a hard limit, but must be free to tag programs with");
    children = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
    int ends = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (children < 0 || ends < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        give_up("/proc, signalfd or subreaper", strerror(errno));
    setsid(); /* fails if the owner has done it for us */
    return ends;
}

int main(int argc, char **argv)
{
    if (argc != 3 || (owner = atoi(argv[1])) < 3 || (salt = strtoul(argv[2], NULL, 10)) == 0 ||
        salt >> 31) {
        fprintf(stderr, "usage: ciel-launcher SOCKET SALT (started by ciel.launch, not by hand)\n");
        return 64; /* EX_USAGE */
    }
    own_pid = getpid();
    own_environment = environ;
    int ends = prepare();
    struct pollfd polled[] = {{.fd = owner}, {.fd = ends, .events = POLLIN},
                              {.fd = open_owner_process(), .events = POLLIN}};
    struct signalfd_siginfo news;
    bool more = false;
    for (;;) {
        polled[0].events = (room_for_events() ? POLLIN : 0) | (urgent ? POLLOUT : 0);
        int ready = poll(polled, 3, more ? 0 : output_bytes && !urgent ? STARTED_WAITS_MS : -1);
        if (ready < 0 && errno != EINTR)
            give_up("poll", strerror(errno));
        urgent |= ready == 0 && output_bytes;
        send_events();
        if (polled[2].revents || ((polled[0].revents & (POLLIN | POLLHUP)) && !more && !receive()))
            break;
        more = obey_requests();
        if (polled[1].revents && read(ends, &news, sizeof news) > 0) {
            reap();
            if (ended_count > 0 || running_count == 0)
                settle_ended();
        }
        send_events();
    }
    kill_everything();
    return 0;
}
