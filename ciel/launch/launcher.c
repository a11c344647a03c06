/* ciel-launcher SOCKET SALT [DIRECTORY...]: starts and reaps programs, so that daemons never fork.
 *
 * launcher.py runs it; messages.py has the wire format. The owner sends START, ADOPT and KILL over
 * SOCKET. Each START and ADOPT is answered by STARTED or FAILED, and each STARTED is followed by
 * EXITED. When the stream ends, or the process that created the stream ends, the launcher kills all
 * programs and exits. Signals do not end it: all are blocked, with their default actions.
 *
 *   - A START may have to wait until fewer than a given number of programs run. The launcher starts
 *     the next one without asking the owner, and reports several ends in one message: a wake-up of
 *     the owner costs as much as a launch.
 *   - The cost of a launch does not depend on the owner's size: this small process uses vfork.
 *   - When EXITED is sent, no process of that launch is alive. Each program leads a session, so its
 *     process group is killed in one step, which no fork bomb can outrun. Processes that left the
 *     group become orphans when their parents die, and then children of this process, a subreaper;
 *     their tag identifies the launch. If new ones keep appearing, all are stopped before they are
 *     killed, because a stopped process does not fork.
 *   - If the launcher is killed, its programs die, too. The owner finds their orphans by the tag.
 *   - An orphan that a program has forked may be adopted, and is then a program like any other. It
 *     has set itself up as the launcher would have done, and waits for the signal ADOPTED to start.
 *   - Programs, including root's, cannot write to any DIRECTORY, if the kernel permits this: the
 *     launcher and its programs have a mount namespace in which it is mounted read-only on itself.
 *
 * The tag is the soft RLIMIT_LOCKS, SALT << 32 | slot: no kernel since 2.4 enforces that limit,
 * fork and exec inherit it, and one call reads it. A mark in the environment would be lost to
 * `env -i`, and cannot be read during an exec. Tables are static; only used pages take memory. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "execute.h"

enum {
    REQUEST_BYTES_MAX = 8 << 20, /* the kernel's limit of arguments and environment is 6 MiB; */
    STRINGS_MAX = 1 << 20,       /* each string of them takes at least 9 bytes */
    LAUNCHES_MAX = 1 << 16,
    EVENTS_MAX = 4 * LAUNCHES_MAX,
    REQUESTS_PER_TICK = 16,        /* so that exits need not wait for a long queue of starts */
    BATCH_MS = 2,                  /* how long events that are not urgent are collected */
    PASSED_MAX = 512,              /* at most 253 arrive at once, 3 may wait for their request */
    ROUNDS_MAX = 3,                /* of killing orphans, before all of them are stopped first */
    QUELL_MS = 500,                /* how long stopping them may block everything else */
    PIDS = 1 << 22,                /* the kernel's PID_MAX_LIMIT */
    ADOPTED = SIGUSR1,
};

/* The wire, as in messages.py: native byte order, no padding. */

enum { START = 1, KILL, ADOPT };
enum { STARTED = 1, FAILED, EXITED };
enum stage { VFORK = 1, CHDIR, STDIN, STDOUT, STDERR, SETRLIMIT, EXEC };
enum stream { TO_PATH, APPEND_TO_PATH, DESCRIPTOR, INHERITED, AS_STDOUT, STREAM_KINDS };
enum { STREAMS = 3, LIMITS = 4 };
enum { NO_NEW_PRIVILEGES = 1 }; /* a flag */
static const int resources[LIMITS] = {RLIMIT_AS, RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_CORE};

struct request {
    uint32_t size_bytes;   /* of the whole request */
    uint16_t kind, signal; /* signal: KILL only, which has no further fields */
    uint64_t id;
};
/* START is followed by zero-terminated strings: directory (empty: ours), a path for each stream,
 * the arguments, and changes to the environment: NAME=VALUE to set, NAME to unset. */
struct start_request {
    struct request head;
    uint32_t argument_count, change_count;
    uint8_t streams[STREAMS], flags; /* each DESCRIPTOR is sent along, in the order of streams */
    uint32_t at_most; /* the launch waits until fewer than so many programs run; 0: no wait */
    uint64_t limits[LIMITS]; /* as in resources; UINT64_MAX keeps the launcher's limit */
};
struct adopt_request {
    struct request head;
    uint64_t parent_id, pid; /* parent_id: the running launch that has forked the process */
};
struct event {
    uint16_t kind, stage; /* stage: FAILED only */
    int32_t value;        /* STARTED: process id; FAILED: errno; EXITED: wait status */
    uint64_t id, wall_us, user_us, system_us, max_rss_bytes; /* all but the id: EXITED only */
};
_Static_assert(sizeof(struct request) == 16 && sizeof(struct start_request) == 64 &&
               sizeof(struct adopt_request) == 32 && sizeof(struct event) == 48, "as in messages.py");

/* A launch is running, or has ended: its program is dead, but other processes of it may be alive.
 * Its slot becomes free (pid 0) only when they are dead, so no tag identifies the wrong launch. Slot
 * 0 means none. */
static struct launch {
    pid_t pid;
    uint32_t next_free;
    bool ended, survived;
    uint8_t rounds; /* of killing its orphans, in which one survived */
    struct event exit; /* to send at the end; wall_us is the start time until then */
} launches[LAUNCHES_MAX];
static uint32_t slot_of_pid[PIDS]; /* for programs that have not been reaped */
static uint32_t ended[LAUNCHES_MAX], ended_count, running_count, slots_used = 1, first_free;

static char input[REQUEST_BYTES_MAX], output[EVENTS_MAX * sizeof(struct event)];
static char waiting[REQUEST_BYTES_MAX]; /* START requests, the next one first */
static size_t input_bytes, output_bytes, waiting_bytes;
static uint32_t waiting_count;
static bool urgent; /* the output is to be sent now */
static uint64_t batch_due_us; /* when to send the output, if it is not urgent */
static int passed[PASSED_MAX], owner, children = -1;
static unsigned passed_count;
static pid_t own_pid;
static uint64_t salt;
static char **own_environment;

/* Visit every child process: programs and orphans, dead or alive. */
static void for_each_child(bool (*visit)(pid_t))
{
    char text[4096]; /* numbers, each with a space after it */
    ssize_t length;
    pid_t pid = 0;
    for (off_t at = 0; (length = pread(children, text, sizeof text, at)) > 0; at += length)
        for (ssize_t i = 0; i < length; i++) {
            if (text[i] == ' ')
                visit(pid);
            pid = text[i] == ' ' ? 0 : pid * 10 + (text[i] - '0');
        }
}

/* Kill a child and its process group, which may be in another session; false if not permitted. The
 * child is not reaped yet, so no other process or group can have its number. */
static bool kill_with_group(pid_t pid)
{
    pid_t group = getpgid(pid);
    if (group > 1 && group != getpgrp())
        kill(-group, SIGKILL);
    return kill(pid, SIGKILL) == 0;
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* Read the tag of a process; 0 if it has no tag of this launcher. Root may read the limits of other
 * users' processes by prlimit, but not in every container; /proc shows them to everyone. */
static rlim_t tag_of(pid_t pid)
{
    static const char name[] = "\nMax file locks ";
    struct rlimit locks;
    char text[4096]; /* a table of 16 lines */
    if (prlimit(pid, RLIMIT_LOCKS, NULL, &locks) < 0) {
        snprintf(text, sizeof text, "/proc/%d/limits", pid);
        int file = open(text, O_RDONLY | O_CLOEXEC);
        ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
        if (file >= 0)
            close(file);
        text[length > 0 ? length : 0] = 0;
        const char *line = strstr(text, name);
        locks.rlim_cur = line ? strtoul(line + sizeof name - 1, NULL, 10) : 0;
    }
    return locks.rlim_cur >> 32 == salt ? locks.rlim_cur : 0;
}

/* Kill processes that fork faster than they are killed, each child into a new session: those of
 * ended launches, or of all. A stopped process does not fork, but still counts against the limit of
 * processes, so that eventually all of them are stopped. Then they are killed together. */
static void quell(bool everything)
{
    static pid_t stopped[PIDS];
    static bool is_stopped[PIDS];
    uint32_t count = 0, before;
    uint64_t until_us = now_us() + QUELL_MS * 1000;
    do {
        DIR *processes = opendir("/proc");
        before = count;
        for (struct dirent *entry; processes && (entry = readdir(processes)) != NULL;) {
            pid_t pid = atoi(entry->d_name);
            rlim_t tag = pid > 0 && pid < PIDS && !is_stopped[pid] ? tag_of(pid) : 0;
            if (tag && (everything || launches[tag % LAUNCHES_MAX].ended) && !kill(pid, SIGSTOP)) {
                is_stopped[pid] = true;
                stopped[count++] = pid;
            }
        }
        if (processes)
            closedir(processes);
    } while (count > before && now_us() < until_us);
    while (count > 0) {
        pid_t pid = stopped[--count];
        is_stopped[pid] = false;
        if (tag_of(pid)) /* otherwise another process has reused its number */
            kill(pid, SIGKILL);
    }
}

/* Kill and reap all programs and their descendants. In each round the children of processes that
 * were killed in the last one become children of this process. */
static void kill_everything(void)
{
    unsigned rounds = 0;
    do {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            continue;
        for_each_child(kill_with_group);
        if (++rounds % ROUNDS_MAX == 0)
            quell(true);
    } while (wait(NULL) > 0);
}

static _Noreturn void give_up(const char *what, const char *why)
{
    fprintf(stderr, "ciel-launcher: %s: %s\n", what, why);
    kill_everything();
    exit(70); /* EX_SOFTWARE */
}

static void check(long result, const char *what)
{
    if (result < 0)
        give_up(what, strerror(errno));
}

static void require(bool well_formed, const char *what)
{
    if (!well_formed)
        give_up("malformed request", what);
}

/* Whether half of the output is free. Then the ends of all running programs fit. */
static bool room(void)
{
    return output_bytes < sizeof output / 2;
}

/* Queue an event. FAILED is urgent; EXITED only while few launches wait, as the owner may then send
 * another START. */
static void emit(struct event event)
{
    if (output_bytes == 0)
        batch_due_us = now_us() + BATCH_MS * 1000;
    memcpy(output + output_bytes, &event, sizeof event);
    output_bytes += sizeof event;
    urgent |= event.kind == FAILED || (event.kind == EXITED && waiting_count <= running_count);
}

static void send_events(void)
{
    ssize_t sent = urgent ? send(owner, output, output_bytes, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    if (sent > 0) { /* if the owner is dead, poll reports it */
        output_bytes -= (size_t)sent;
        memmove(output, output + sent, output_bytes);
        urgent = output_bytes > 0;
    }
}

/* Data for the child of vfork, which shares our memory until it executes its program. */
static struct start_request request;
static char *directory, *paths[STREAMS], *strings[2 * STRINGS_MAX], **environment;
static int descriptors[STREAMS];
static volatile int failed_stage, failed_error; /* set by the child */
static const sigset_t no_signals;

static _Noreturn void fail(enum stage stage)
{
    failed_error = errno;
    failed_stage = stage;
    _exit(127);
}

static void open_stream(int stream)
{
    enum stream kind = request.streams[stream];
    int from = kind == INHERITED ? stream : kind == AS_STDOUT ? STDOUT_FILENO : descriptors[stream];
    if (kind == TO_PATH || kind == APPEND_TO_PATH) {
        int append = kind == APPEND_TO_PATH ? O_APPEND : 0;
        int direction = stream == 0 ? O_RDONLY : O_WRONLY | O_CREAT | (append ? append : O_TRUNC);
        /* O_NONBLOCK: waiting here for the other end of a FIFO would delay every launch. */
        from = open(paths[stream], direction | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
        if (from < 0 || fcntl(from, F_SETFL, append) < 0)
            fail(STDIN + stream);
    }
    if (dup2(from, stream) < 0)
        fail(STDIN + stream);
}

/* Runs in the child of vfork: makes only system calls, and never returns. All our descriptors close
 * on exec. */
static _Noreturn void become(rlim_t tag)
{
    setsid(); /* so no terminal can stop the program, and, as session leader, it stays in its group */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct rlimit limit = {tag, RLIM_INFINITY};
    if (getppid() != own_pid /* the launcher died before prctl took effect */ ||
        setrlimit(RLIMIT_LOCKS, &limit) < 0)
        fail(SETRLIMIT);
    if (directory[0] && chdir(directory) < 0)
        fail(CHDIR);
    for (int stream = 0; stream < STREAMS; stream++)
        open_stream(stream);
    for (int i = 0; i < LIMITS; i++) {
        limit.rlim_cur = limit.rlim_max = request.limits[i];
        if (limit.rlim_cur != UINT64_MAX && setrlimit(resources[i], &limit) < 0)
            fail(SETRLIMIT);
    }
    if (request.flags & NO_NEW_PRIVILEGES && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        fail(SETRLIMIT);
    sigprocmask(SIG_SETMASK, &no_signals, NULL);
    environ = environment; /* execute reads PATH from it; the parent restores environ */
    execute(strings);
    fail(EXEC);
}

static uint32_t free_slot(void)
{
    return first_free ? first_free : slots_used;
}

/* Record a program, which has run since `start_us`, in a free slot, and report it. */
static void enter(uint32_t slot, pid_t pid, uint64_t id, uint64_t start_us)
{
    first_free = launches[slot].next_free;
    slots_used += slot == slots_used;
    launches[slot] = (struct launch){.pid = pid, .exit = {.id = id, .wall_us = start_us}};
    slot_of_pid[pid] = slot;
    running_count++;
    emit((struct event){STARTED, 0, pid, .id = id});
}

static void start(void)
{
    uint64_t id = request.head.id;
    uint32_t slot = free_slot();
    pid_t pid = -1;
    /* Before vfork: it returns when the program runs, and we may get the CPU much later. */
    uint64_t start_us = now_us();
    errno = EAGAIN;
    failed_stage = 0;
    if (slot < LAUNCHES_MAX && (pid = vfork()) == 0)
        become(salt << 32 | slot);
    environ = own_environment;
    if (pid < 0) {
        emit((struct event){FAILED, VFORK, errno, .id = id});
    } else if (failed_stage) {
        waitpid(pid, NULL, 0);
        emit((struct event){FAILED, (uint16_t)failed_stage, failed_error, .id = id});
    } else {
        enter(slot, pid, id, start_us);
    }
}

/* Whether a process is a living child of ours, a session leader, and has the tag of a running
 * program. Then only this process can reap it, so its number cannot be reused meanwhile. */
static bool may_adopt(pid_t pid, uint64_t parent_id)
{
    siginfo_t dead = {0};
    if (waitid(P_PID, (id_t)pid, &dead, WEXITED | WNOHANG | WNOWAIT) < 0 || dead.si_pid)
        return false;
    const struct launch *parent = &launches[tag_of(pid) % LAUNCHES_MAX];
    return parent->pid && !parent->ended && parent->exit.id == parent_id && parent->pid != pid &&
           !slot_of_pid[pid] && getsid(pid) == pid;
}

/* Until a process is adopted, it has the tag of its parent, and is killed when the parent ends. */
static void obey_adopt(const char *bytes)
{
    struct adopt_request asked;
    uint32_t slot = free_slot();
    struct rlimit tag = {salt << 32 | slot, RLIM_INFINITY};
    memcpy(&asked, bytes, sizeof asked);
    require(asked.head.size_bytes == sizeof asked, "ADOPT has a wrong size");
    require(asked.pid > 0 && asked.pid < PIDS, "ADOPT has no process id");
    if (slot < LAUNCHES_MAX && may_adopt((pid_t)asked.pid, asked.parent_id) &&
        prlimit((pid_t)asked.pid, RLIMIT_LOCKS, &tag, NULL) == 0) {
        enter(slot, (pid_t)asked.pid, asked.head.id, now_us());
        kill((pid_t)asked.pid, ADOPTED);
    } else {
        emit((struct event){FAILED, VFORK, ESRCH, .id = asked.head.id});
    }
}

static char *next_string(char **rest, const char *end)
{
    char *string = *rest, *zero = memchr(string, 0, (size_t)(end - string));
    require(zero != NULL, "a string has no end");
    *rest = zero + 1;
    return string;
}

/* Apply the request's changes to our environment. It fits: the kernel's limit is far below
 * STRINGS_MAX. */
static void merge_environment(char **result, char **changes)
{
    for (char **own = own_environment; *own; own++) {
        uint32_t i = 0;
        for (size_t bytes; i < request.change_count; i++) {
            bytes = strcspn(changes[i], "=");
            if (strncmp(*own, changes[i], bytes) == 0 && (*own)[bytes] == '=')
                break;
        }
        if (i == request.change_count)
            *result++ = *own;
    }
    for (uint32_t i = 0; i < request.change_count; i++)
        if (strchr(changes[i], '='))
            *result++ = changes[i];
    *result = NULL;
}

static void obey_start(char *bytes, size_t size_bytes)
{
    char *rest = bytes + sizeof request, *end = bytes + size_bytes, **changes;
    uint32_t taken = 0;
    memcpy(&request, bytes, sizeof request);
    directory = next_string(&rest, end);
    for (int i = 0; i < STREAMS; i++) {
        paths[i] = next_string(&rest, end);
        require(request.streams[i] < STREAM_KINDS, "START has a stream of an unknown kind");
        require(request.streams[i] != DESCRIPTOR || taken < passed_count, "missing descriptor");
        if (request.streams[i] == DESCRIPTOR)
            descriptors[i] = passed[taken++];
    }
    require(request.argument_count > 0, "START names no program");
    require(request.argument_count + 2ULL * request.change_count < STRINGS_MAX, "too many strings");
    for (uint32_t i = 0; i < request.argument_count; i++)
        strings[i] = next_string(&rest, end);
    strings[request.argument_count] = NULL;
    changes = strings + request.argument_count + 1;
    for (uint32_t i = 0; i < request.change_count; i++)
        changes[i] = next_string(&rest, end);
    require(rest == end, "START has bytes left over");
    merge_environment(environment = changes + request.change_count, changes);
    start();
    for (unsigned i = 0; i < taken; i++)
        close(passed[i]);
    passed_count -= taken;
    memmove(passed, passed + taken, passed_count * sizeof passed[0]);
}

static uint32_t at_most(const char *bytes)
{
    uint32_t number;
    memcpy(&number, bytes + offsetof(struct start_request, at_most), sizeof number);
    return number;
}

static void take_waiting(char *bytes, size_t size_bytes)
{
    waiting_count--;
    waiting_bytes -= size_bytes;
    memmove(bytes, bytes + size_bytes, waiting_bytes - (size_t)(bytes - waiting));
}

/* Start waiting launches for which few enough programs run. */
static void start_waiting(void)
{
    uint32_t size_bytes;
    while (waiting_count && room() && running_count < at_most(waiting)) {
        memcpy(&size_bytes, waiting, sizeof size_bytes);
        obey_start(waiting, size_bytes);
        take_waiting(waiting, size_bytes);
    }
}

/* Start a program, or append the launch to the waiting ones; false if there is no space for it. */
static bool queue_start(char *bytes, uint32_t size_bytes)
{
    require(size_bytes >= sizeof request, "START is too short");
    if (!at_most(bytes) || (!waiting_count && running_count < at_most(bytes))) {
        obey_start(bytes, size_bytes);
        return true;
    }
    if (waiting_bytes + size_bytes > sizeof waiting)
        return false;
    require(!memchr(bytes + offsetof(struct start_request, streams), DESCRIPTOR, STREAMS),
            "a launch with a descriptor cannot wait");
    memcpy(waiting + waiting_bytes, bytes, size_bytes);
    waiting_bytes += size_bytes;
    waiting_count++;
    return true;
}

/* Signal the program's group, unless the program has ended. Processes that left the group are
 * killed once the program has ended, so SIGKILL reaches all of them. A waiting launch is reported
 * as ended by the signal; signal 0 cancels it, and has no effect on a running program. */
static void obey_kill(const struct request *head)
{
    struct request other;
    require(head->size_bytes == sizeof *head, "KILL has a wrong size");
    for (size_t at = 0; at < waiting_bytes; at += other.size_bytes) {
        memcpy(&other, waiting + at, sizeof other);
        if (other.id == head->id) {
            take_waiting(waiting + at, other.size_bytes);
            emit(head->signal ? (struct event){EXITED, 0, head->signal, .id = head->id}
                              : (struct event){FAILED, VFORK, ECANCELED, .id = head->id});
            return;
        }
    }
    for (uint32_t slot = 1; slot < slots_used; slot++)
        if (launches[slot].pid && launches[slot].exit.id == head->id && !launches[slot].ended)
            kill(-launches[slot].pid, head->signal);
}

/* Process received requests; return whether there may be more for the next iteration. */
static bool obey_requests(void)
{
    size_t done_bytes = 0;
    unsigned count = 0;
    for (; count < REQUESTS_PER_TICK && room(); count++) {
        struct request head;
        if (input_bytes - done_bytes < sizeof head)
            break;
        memcpy(&head, input + done_bytes, sizeof head);
        require(head.kind >= START && head.kind <= ADOPT, "unknown kind of request");
        require(head.size_bytes >= sizeof head && head.size_bytes <= sizeof input, "wrong size");
        if (input_bytes - done_bytes < head.size_bytes)
            break;
        if (head.kind == KILL)
            obey_kill(&head);
        else if (head.kind == ADOPT)
            obey_adopt(input + done_bytes);
        else if (!queue_start(input + done_bytes, head.size_bytes))
            break; /* until a program ends */
        done_bytes += head.size_bytes;
    }
    input_bytes -= done_bytes;
    memmove(input, input + done_bytes, input_bytes);
    return count == REQUESTS_PER_TICK || !room();
}

/* Read available requests; false at the end of the stream. Descriptors arrive no later than their
 * request, and at most those of one sendmsg arrive before it. */
static bool receive(void)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))];
    struct iovec space = {input + input_bytes, sizeof input - input_bytes};
    struct msghdr message = {NULL, 0, &space, 1, control, sizeof control, 0};
    ssize_t length = recvmsg(owner, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (length <= 0)
        return length < 0 && (errno == EAGAIN || errno == EINTR);
    input_bytes += (size_t)length;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        size_t bytes = c->cmsg_type == SCM_RIGHTS ? c->cmsg_len - CMSG_LEN(0) : 0;
        require(passed_count + bytes / sizeof(int) <= PASSED_MAX, "unused descriptors");
        memcpy(passed + passed_count, CMSG_DATA(c), bytes);
        passed_count += (unsigned)(bytes / sizeof(int));
    }
    require(!(message.msg_flags & MSG_CTRUNC), "descriptors are lost: too many files are open");
    return true;
}

#define US(time) ((uint64_t)(time).tv_sec * 1000000 + (uint64_t)(time).tv_usec)

/* Reap all dead children. Kill a program's group before that: until the program is reaped, no other
 * group can have its number. */
static void reap(void)
{
    siginfo_t dead = {0};
    struct rusage usage;
    int status;
    for (; !waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) && dead.si_pid; dead.si_pid = 0) {
        uint32_t slot = slot_of_pid[dead.si_pid];
        if (slot)
            kill(-dead.si_pid, SIGKILL);
        check(wait4(dead.si_pid, &status, 0, &usage), "wait4");
        slot_of_pid[dead.si_pid] = 0;
        if (slot == 0)
            continue;
        launches[slot].ended = true;
        launches[slot].exit = (struct event){
            EXITED, 0, status, launches[slot].exit.id, now_us() - launches[slot].exit.wall_us,
            US(usage.ru_utime), US(usage.ru_stime), (uint64_t)usage.ru_maxrss * 1024};
        ended[ended_count++] = slot;
        running_count--;
    }
}

/* Kill an orphan if the program that it came from has ended; an orphan without a tag, if no program
 * runs. */
static bool judge_child(pid_t pid)
{
    if (slot_of_pid[pid])
        return true;
    struct launch *launch = &launches[tag_of(pid) % LAUNCHES_MAX];
    if (launch->pid ? launch->ended : running_count == 0)
        launch->survived |= kill_with_group(pid);
    return true;
}

/* Kill the orphans of ended programs, and report the programs that have none left. The rest wait:
 * each death of an orphan causes a SIGCHLD, and with it another call. */
static void settle_ended(void)
{
    uint32_t waiting_count = 0;
    bool outran = false; /* orphans fork faster than they are killed */
    for_each_child(judge_child);
    for (uint32_t i = 0; i < ended_count; i++) {
        struct launch *launch = &launches[ended[i]];
        if (launch->survived) {
            launch->survived = false;
            ended[waiting_count++] = ended[i];
            outran |= ++launch->rounds % ROUNDS_MAX == 0;
        } else {
            emit(launch->exit);
            *launch = (struct launch){.next_free = first_free};
            first_free = ended[i];
        }
    }
    ended_count = waiting_count;
    if (outran)
        quell(false);
}

/* Make these directories read-only for programs. If that is not permitted, as in most containers,
 * nothing changes; the owner reads the result in our mountinfo. The namespace still receives later
 * mounts from its parent namespace. */
static void protect(char **paths)
{
    struct statvfs status;
    if (!*paths || unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0)
        return;
    for (; *paths; paths++) {
        if (statvfs(*paths, &status) < 0 || mount(*paths, *paths, NULL, MS_BIND, NULL) < 0)
            continue;
        /* Flags of the mount below must stay; ST_NOSUID, ST_NODEV and ST_NOEXEC are as MS_. */
        unsigned long kept = status.f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC);
        if (mount(NULL, *paths, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | kept, NULL) < 0)
            umount2(*paths, MNT_DETACH);
    }
}

/* Close inherited descriptors, and fill in what else to poll: SIGCHLD, and the process that created
 * the stream, because a fork of it may keep the stream open. (PR_SET_PDEATHSIG would report the end
 * of a thread, and leave no time to clean up.) */
static void prepare(struct pollfd *ends, struct pollfd *owner_process)
{
    sigset_t all, child;
    struct rlimit locks;
    struct ucred peer;
    socklen_t length = sizeof peer;
    int null = 0;
    while (null <= STDERR_FILENO) /* so that none of our descriptors takes these numbers */
        check(null = open("/dev/null", O_RDWR), "/dev/null");
    check(owner == 3 ? 0 : close_range(3, (unsigned)owner - 1, 0), "close_range");
    check(close_range((unsigned)owner + 1, ~0U, 0), "close_range");
    check(fcntl(owner, F_SETFD, FD_CLOEXEC), "socket");
    check(getsockopt(owner, SOL_SOCKET, SO_PEERCRED, &peer, &length), "socket");
    owner_process->fd = (int)syscall(SYS_pidfd_open, peer.pid, 0); /* poll ignores -1 */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    check(ends->fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd");
    check(prctl(PR_SET_CHILD_SUBREAPER, 1), "subreaper");
    check(children = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC), "/proc");
    if (getrlimit(RLIMIT_LOCKS, &locks) < 0 || locks.rlim_max != RLIM_INFINITY)
        give_up("RLIMIT_LOCKS", "has a hard limit; the launcher stores tags in it");
    own_pid = getpid();
    own_environment = environ;
}

int main(int argc, char **argv)
{
    owner = argc >= 3 ? atoi(argv[1]) : 0;
    salt = argc >= 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (owner < 3 || salt == 0 || salt >> 31)
        give_up("usage", "ciel-launcher SOCKET SALT [DIRECTORY...] (started by ciel.launch)");
    protect(argv + 3);
    struct pollfd polled[] = {{owner, 0, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
    struct signalfd_siginfo info;
    prepare(&polled[1], &polled[2]);
    for (bool more = false;;) {
        int timeout_ms = more && room() ? 0 : output_bytes && !urgent ? BATCH_MS : -1;
        bool space = room() && input_bytes < sizeof input;
        polled[0].events = (space ? POLLIN : 0) | (urgent ? POLLOUT : 0);
        check(poll(polled, 3, timeout_ms), "poll");
        urgent |= output_bytes && now_us() >= batch_due_us;
        send_events();
        if (polled[2].revents || (polled[0].revents & ~POLLOUT && !more && !receive()))
            break;
        more = obey_requests();
        start_waiting(); /* an earlier launch may have failed to start */
        if (polled[1].revents && read(polled[1].fd, &info, sizeof info) > 0) {
            reap();
            start_waiting(); /* before settle_ended, which may take longer */
            if (ended_count > 0 || running_count == 0)
                settle_ended();
        }
        send_events();
    }
    kill_everything();
    return 0;
}
