/* ciel-isolate MODE WORD... -- PROGRAM ARGUMENT...: runs a program that is not trusted.
 *
 * isolation.py builds the command line; the launcher runs it. Each word is a letter, a colon and a
 * value. The words are carried out in their order:
 *
 *   g:FILE   join a control group, by its file cgroup.procs
 *   r:FILE   open FILE for reading, as the next descriptor; the first is 3
 *   w:FILE   open FILE for reading and writing
 *   n:COUNT  the greatest number of processes (RLIMIT_NPROC)
 *   d:DIR    the working directory
 *   -:PATH   hide a directory below an empty one, or a file below /dev/null
 *   =:PATH   show a path that was hidden, read-only
 *   +:PATH   the same, and the program may write to it
 *
 * MODE is `open`, which carries out g, r and w and executes the program, or `strict`. With `strict`
 * three processes run:
 *
 *   - this process, which the launcher knows; it waits, and ends as the program ends;
 *   - the init process of new namespaces (user, mount, PID, network, IPC, UTS, control group). It
 *     sees the host's files read-only, a private /tmp, and a minimal /dev. It has no capability, and
 *     restricts itself by Landlock and seccomp. It keeps the descriptors of r and w open, so that
 *     the program reaches these files as /proc/1/fd/N;
 *   - the program. When it ends, so does init, and the kernel kills the rest of the namespace.
 *
 * Signals for the program arrive by the process group that all three share. If this process is
 * killed, PR_SET_PDEATHSIG kills init. An error that prevents the start is printed after
 * "ciel-isolate: ", and the exit status is 125. */

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#ifdef HAS_SECCOMP
#include <seccomp.h>
#endif

#include "execute.h"

enum { NOT_STARTED = 125, WORDS_MAX = 4096, SECUREBITS = 0x2f /* NOROOT, NO_SETUID_FIXUP, locked */ };
enum { PRIVATE_BYTES = 1 << 30 }; /* the most that /tmp, /var/tmp and /dev/shm hold, each */
#define NAMESPACES                                                                                \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS |   \
     CLONE_NEWCGROUP)

/* Rights of Landlock that the headers of older systems lack. */
#define WRITE_RIGHTS_1 (LANDLOCK_ACCESS_FS_WRITE_FILE | (0x1ffeULL & ~0xcULL & ~1ULL))
#define RIGHT_REFER (1ULL << 13)
#define RIGHT_TRUNCATE (1ULL << 14)
#define SCOPE_ABSTRACT_UNIX_SOCKET (1ULL << 0)
#define SCOPE_SIGNAL (1ULL << 1)
struct ruleset {
    uint64_t files, network, scopes;
};

static volatile int *program_status; /* shared with init: as waitpid returns it */
static int opened[WORDS_MAX]; /* for each word: its descriptor, or -1 */
static const char *directory;
static rlim_t processes_max = RLIM_INFINITY;

static _Noreturn void fail(const char *format, ...)
{
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    fputs("ciel-isolate: ", stderr);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, ": %s\n", strerror(error));
    va_end(arguments);
    _exit(NOT_STARTED);
}

static void check(long result, const char *what, const char *path)
{
    if (result < 0)
        fail("%s%s%s", what, path[0] ? " " : "", path);
}

static void write_file(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    check(file, "open", path);
    check(write(file, text, strlen(text)), "write", path);
    close(file);
}

/* Open a file for the program. O_NONBLOCK: a FIFO must not delay the start. */
static void open_for_program(const char *path, int access)
{
    int file = open(path, access | O_NONBLOCK | O_NOCTTY);
    check(file, "open", path);
    check(fcntl(file, F_SETFL, 0), "open", path);
}

/* Carry out the words that need the host's namespaces. */
static void prepare(char **words, int count)
{
    for (int i = 0; i < count; i++) {
        if (!words[i][0] || words[i][1] != ':') {
            errno = EINVAL;
            fail("word %s", words[i]);
        }
        const char *value = words[i] + 2;
        switch (words[i][0]) {
        case 'g':
            write_file(value, "0");
            break;
        case 'r':
            open_for_program(value, O_RDONLY);
            break;
        case 'w':
            open_for_program(value, O_RDWR);
            break;
        case 'n':
            processes_max = strtoull(value, NULL, 10);
            break;
        case 'd':
            directory = value;
            break;
        }
    }
}

static void enter_namespaces(void)
{
    char text[64];
    unsigned user = geteuid(), group = getegid();
    check(unshare(NAMESPACES), "new namespaces", "");
    write_file("/proc/self/setgroups", "deny");
    snprintf(text, sizeof text, "%u %u 1", user, user);
    write_file("/proc/self/uid_map", text);
    snprintf(text, sizeof text, "%u %u 1", group, group);
    write_file("/proc/self/gid_map", text);
}

/* Set or clear attributes of all mounts below a path. */
static void set_mounts(const char *path, uint64_t set, uint64_t clear)
{
    struct mount_attr attributes = {.attr_set = set, .attr_clr = clear};
    check(syscall(SYS_mount_setattr, AT_FDCWD, path, AT_RECURSIVE, &attributes, sizeof attributes),
          "mount_setattr (it needs Linux 5.12)", path);
}

/* Create a place for a mount, with the directories above it; only hidden places lack one. */
static void make_place(const char *path, bool is_directory)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(part, 0755);
        *slash = '/';
    }
    if (is_directory) {
        mkdir(part, 0755);
    } else {
        int file = open(part, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
        if (file >= 0)
            close(file);
    }
}

static void make_private(const char *path)
{
    char options[64];
    snprintf(options, sizeof options, "mode=1777,size=%d", PRIVATE_BYTES);
    check(mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options), "private", path);
}

static void hide(const char *path)
{
    struct stat status;
    if (lstat(path, &status) < 0 || S_ISLNK(status.st_mode))
        return;
    if (S_ISDIR(status.st_mode))
        check(mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"), "hide", path);
    else
        check(mount("/dev/null", path, NULL, MS_BIND, NULL), "hide", path);
}

/* Mount what a descriptor names, which may be hidden by now, at its path. */
static void show(int file, const char *path, bool is_writable)
{
    char source[64];
    struct stat status;
    snprintf(source, sizeof source, "/proc/self/fd/%d", file);
    check(fstat(file, &status), "show", path);
    make_place(path, S_ISDIR(status.st_mode));
    check(mount(source, path, NULL, MS_BIND | MS_REC, NULL), "show", path);
    if (is_writable)
        set_mounts(path, 0, MOUNT_ATTR_RDONLY);
}

static void make_devices(void)
{
    static const char *const names[] = {"null", "zero", "full", "random", "urandom", "tty"};
    enum { COUNT = sizeof names / sizeof names[0] };
    int files[COUNT];
    char path[64];
    for (int i = 0; i < COUNT; i++) {
        snprintf(path, sizeof path, "/dev/%s", names[i]);
        files[i] = open(path, O_PATH | O_CLOEXEC);
    }
    check(mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755"), "private", "/dev");
    for (int i = 0; i < COUNT; i++) {
        snprintf(path, sizeof path, "/dev/%s", names[i]);
        if (files[i] >= 0)
            show(files[i], path, true);
    }
    mkdir("/dev/shm", 01777);
    make_private("/dev/shm");
    check(symlink("/proc/self/fd", "/dev/fd"), "link", "/dev/fd");
    check(symlink("/proc/self/fd/0", "/dev/stdin"), "link", "/dev/stdin");
    check(symlink("/proc/self/fd/1", "/dev/stdout"), "link", "/dev/stdout");
    check(symlink("/proc/self/fd/2", "/dev/stderr"), "link", "/dev/stderr");
}

static void arrange_files(char **words, int count)
{
    check(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts", "");
    for (int i = 0; i < count; i++) {
        opened[i] = -1;
        if (words[i][0] == '+' || words[i][0] == '=')
            check(opened[i] = open(words[i] + 2, O_PATH | O_CLOEXEC), "open", words[i] + 2);
    }
    set_mounts("/", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0);
    make_devices();
    make_private("/tmp");
    make_private("/var/tmp");
    for (int i = 0; i < count; i++) {
        if (words[i][0] == '-')
            hide(words[i] + 2);
        else if (opened[i] >= 0)
            show(opened[i], words[i] + 2, words[i][0] == '+');
    }
    /* Read-only: root's files in /proc/sys are the host's. */
    check(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL),
          "a new /proc (a container may forbid it)", "");
    for (int i = 0; i < count; i++)
        if (opened[i] >= 0)
            close(opened[i]);
}

static void allow_writes(int rules, int file, uint64_t rights)
{
    struct landlock_path_beneath_attr beneath = {.allowed_access = rights, .parent_fd = file};
    check(syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0),
          "Landlock", "");
}

/* Restrict writes to the writable places once more, and signals and abstract sockets to this
 * sandbox. Does nothing if the kernel has no Landlock. */
static void enter_landlock(char **words, int count)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, 1 /* asks for the version */);
    if (version < 1)
        return;
    uint64_t of_files = LANDLOCK_ACCESS_FS_WRITE_FILE | (version >= 3 ? RIGHT_TRUNCATE : 0);
    uint64_t rights = of_files | WRITE_RIGHTS_1 | (version >= 2 ? RIGHT_REFER : 0);
    struct ruleset wanted = {rights, 0, SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL};
    size_t size = version >= 6 ? sizeof wanted : sizeof wanted.files;
    int rules = (int)syscall(SYS_landlock_create_ruleset, &wanted, size, 0);
    check(rules, "Landlock", "");
    static const char *const private[] = {"/tmp", "/var/tmp", "/dev"};
    for (int i = 0; i < count + 3; i++) {
        const char *path = i < 3 ? private[i] : words[i - 3] + 2;
        if (i >= 3 && words[i - 3][0] != '+')
            continue;
        int file = open(path, O_PATH | O_CLOEXEC);
        check(file, "Landlock", path);
        allow_writes(rules, file, rights);
        close(file);
    }
    for (int i = 0, file = 2; i < count; i++) {
        file += words[i][0] == 'r' || words[i][0] == 'w';
        if (words[i][0] == 'w')
            allow_writes(rules, file, of_files);
    }
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs", "");
    check(syscall(SYS_landlock_restrict_self, rules, 0), "Landlock", "");
    close(rules);
}

static void drop_capabilities(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    check(prctl(PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0), "securebits", "");
    for (unsigned long i = 0; prctl(PR_CAPBSET_READ, i, 0, 0, 0) >= 0; i++)
        check(prctl(PR_CAPBSET_DROP, i, 0, 0, 0), "capabilities", "");
    check(syscall(SYS_capset, &header, none), "capabilities", "");
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs", "");
}

#ifdef HAS_SECCOMP
static void deny(scmp_filter_ctx filter, int call, unsigned count, struct scmp_arg_cmp argument)
{
    int error = seccomp_rule_add_array(filter, SCMP_ACT_ERRNO(EPERM), call, count, &argument);
    if (error < 0 && error != -EDOM) { /* EDOM: another architecture lacks it */
        errno = -error;
        fail("seccomp, system call %d", call);
    }
}

/* Refuse the system calls that reach more of the kernel than a program needs: namespaces, mounts,
 * keys, tracing, modules, BPF, io_uring, and sockets that no network namespace confines. */
static void enter_seccomp(void)
{
    static const int calls[] = {
        SCMP_SYS(unshare), SCMP_SYS(setns), SCMP_SYS(mount), SCMP_SYS(umount2),
        SCMP_SYS(pivot_root), SCMP_SYS(chroot), SCMP_SYS(open_tree), SCMP_SYS(move_mount),
        SCMP_SYS(fsopen), SCMP_SYS(fsconfig), SCMP_SYS(fsmount), SCMP_SYS(fspick),
        SCMP_SYS(mount_setattr), SCMP_SYS(open_by_handle_at), SCMP_SYS(name_to_handle_at),
        SCMP_SYS(add_key), SCMP_SYS(request_key), SCMP_SYS(keyctl), SCMP_SYS(ptrace),
        SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev), SCMP_SYS(bpf),
        SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd), SCMP_SYS(io_uring_setup),
        SCMP_SYS(io_uring_enter), SCMP_SYS(io_uring_register), SCMP_SYS(init_module),
        SCMP_SYS(finit_module), SCMP_SYS(delete_module), SCMP_SYS(kexec_load),
        SCMP_SYS(kexec_file_load), SCMP_SYS(reboot), SCMP_SYS(swapon), SCMP_SYS(swapoff),
        SCMP_SYS(acct), SCMP_SYS(quotactl), SCMP_SYS(syslog), SCMP_SYS(settimeofday),
        SCMP_SYS(clock_settime), SCMP_SYS(clock_adjtime), SCMP_SYS(adjtimex), SCMP_SYS(personality),
        SCMP_SYS(vhangup), SCMP_SYS(nfsservctl), SCMP_SYS(iopl), SCMP_SYS(ioperm),
    };
    static const unsigned flags[] = {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET,
                                     CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP};
    enum { UNIX = 1, INET = 2, INET6 = 10, NETLINK = 16, FAMILIES = 64, TIOCSTI_ = 0x5412,
           TIOCLINUX_ = 0x541c };
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (filter == NULL)
        fail("seccomp");
#if defined(__x86_64__)
    seccomp_arch_add(filter, SCMP_ARCH_X86); /* x32 is refused: its calls end the program */
#endif
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        deny(filter, calls[i], 0, SCMP_A0(SCMP_CMP_EQ, 0));
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        deny(filter, SCMP_SYS(clone), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, flags[i], flags[i]));
    /* The flags of clone3 are in memory, where a filter cannot read them; libraries then use clone. */
    seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    for (unsigned family = 0; family < FAMILIES; family++)
        if (family != UNIX && family != INET && family != INET6 && family != NETLINK)
            deny(filter, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_EQ, family));
    deny(filter, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_GE, FAMILIES));
    deny(filter, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffff, TIOCSTI_));
    deny(filter, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffff, TIOCLINUX_));
    int error = seccomp_load(filter);
    if (error < 0) {
        errno = -error;
        fail("seccomp");
    }
    seccomp_release(filter);
}
#else
static void enter_seccomp(void)
{
    errno = ENOSYS;
    fail("seccomp: ciel was built without libseccomp (install libseccomp-dev, build again)");
}
#endif

/* The descriptors of r and w stay open in init only. */
static _Noreturn void run_program(char **program)
{
    struct rlimit limit = {processes_max, processes_max};
    if (processes_max != RLIM_INFINITY)
        check(setrlimit(RLIMIT_NPROC, &limit), "limit of processes", "");
    check(close_range(3, ~0U, 0), "close_range", "");
    execute(program);
    fail("exec");
}

/* Be the init process: reap orphans until the program has ended. */
static _Noreturn void be_init(char **words, int count, char **program)
{
    int status;
    arrange_files(words, count);
    if (directory)
        check(chdir(directory), "working directory", directory);
    enter_landlock(words, count);
    drop_capabilities();
    enter_seccomp();
    check(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "/proc/1/fd", ""); /* the program opens it */
    check(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "end with the launcher", "");
    pid_t child = fork();
    check(child, "fork", "");
    if (child == 0)
        run_program(program);
    for (pid_t ended; (ended = waitpid(-1, &status, 0)) != child;)
        if (ended < 0 && errno != EINTR)
            fail("wait");
    *program_status = status;
    _exit(0);
}

/* End as a process with this status ended. */
static _Noreturn void end_as(int status)
{
    if (WIFSIGNALED(status)) {
        sigset_t none;
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(WTERMSIG(status), SIG_DFL);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        raise(WTERMSIG(status));
    }
    _exit(WEXITSTATUS(status));
}

static _Noreturn void run_strictly(char **words, int count, char **program)
{
    sigset_t all, before;
    int status;
    program_status = mmap(NULL, sizeof *program_status, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (program_status == MAP_FAILED)
        fail("memory");
    *program_status = NOT_STARTED << 8;
    enter_namespaces();
    sigfillset(&all); /* signals are for the program, which gets them itself */
    sigprocmask(SIG_SETMASK, &all, &before);
    pid_t init = fork();
    check(init, "fork", "");
    if (init == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        be_init(words, count, program);
    }
    close_range(0, ~0U, 0); /* a reader of the output waits for the end of the program only */
    while (waitpid(init, &status, 0) < 0)
        continue;
    end_as(WIFSIGNALED(status) ? status : *program_status);
}

int main(int argc, char **argv)
{
    int end = 2;
    while (end < argc && strcmp(argv[end], "--") != 0)
        end++;
    int count = end - 2;
    if (argc < 3 || end + 1 >= argc || count > WORDS_MAX) {
        errno = EINVAL;
        fail("usage: ciel-isolate strict|open WORD... -- PROGRAM ARGUMENT...");
    }
    prepare(argv + 2, count);
    if (strcmp(argv[1], "strict") == 0)
        run_strictly(argv + 2, count, argv + end + 1);
    execute(argv + end + 1);
    fail("exec");
}
