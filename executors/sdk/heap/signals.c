/* The signal of protected pages, between the pager and the program's own handlers and masks. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include "runtime.h"

static struct sigaction programs = {.sa_handler = SIG_DFL}; /* what the program wants for SIGSEGV */
static int has_handlers;         /* the program has handled any signal so far */
static __thread sigset_t before_block;
static __thread int is_blocked;
static int (*real_sigaction)(int, const struct sigaction *, struct sigaction *);
static int (*real_sigprocmask)(int, const sigset_t *, sigset_t *);
static int (*real_pthread_sigmask)(int, const sigset_t *, sigset_t *);

static void on_signal(int number, siginfo_t *info, void *context)
{
    enum { IS_WRITE = 2 }; /* in the error code of a page fault */
    int before = errno;
    const ucontext_t *machine = context;
    int is_write = (machine->uc_mcontext.gregs[REG_ERR] & IS_WRITE) != 0;
    if (info->si_code > 0 && pager_fault(info->si_addr, is_write)) {
        errno = before;
        return;
    }
    errno = before;
    if (programs.sa_flags & SA_SIGINFO) {
        programs.sa_sigaction(number, info, context);
    } else if (programs.sa_handler == SIG_IGN && info->si_code <= 0) {
        return;
    } else if (programs.sa_handler != SIG_DFL && programs.sa_handler != SIG_IGN) {
        programs.sa_handler(number);
    } else { /* the instruction runs again, or the signal is sent again, and ends the program */
        struct sigaction end = {.sa_handler = SIG_DFL};
        real_sigaction(number, &end, NULL);
        if (info->si_code <= 0)
            raise(number);
    }
}

/* A copy of a set without the signal of the pager: a thread that blocked it would be killed. */
static const sigset_t *without_ours(const sigset_t *set, sigset_t *copy)
{
    if (!set)
        return NULL;
    *copy = *set;
    sigdelset(copy, SIGSEGV);
    return copy;
}

static void find_real(void)
{
    if (real_sigaction)
        return;
    *(void **)&real_sigprocmask = dlsym(RTLD_NEXT, "sigprocmask");
    *(void **)&real_pthread_sigmask = dlsym(RTLD_NEXT, "pthread_sigmask");
    *(void **)&real_sigaction = dlsym(RTLD_NEXT, "sigaction");
}

int sigaction(int number, const struct sigaction *action, struct sigaction *before)
{
    find_real();
    if (number == SIGSEGV) {
        struct sigaction was = programs;
        if (action)
            programs = *action;
        if (before)
            *before = was;
        return 0;
    }
    if (!action)
        return real_sigaction(number, NULL, before);
    struct sigaction given = *action;
    if (given.sa_handler != SIG_DFL && given.sa_handler != SIG_IGN)
        has_handlers = 1;
    sigdelset(&given.sa_mask, SIGSEGV);
    return real_sigaction(number, &given, before);
}

void (*signal(int number, void (*function)(int)))(int)
{
    struct sigaction action = {.sa_handler = function, .sa_flags = SA_RESTART}, before;
    return sigaction(number, &action, &before) ? SIG_ERR : before.sa_handler;
}

int sigprocmask(int how, const sigset_t *set, sigset_t *before)
{
    sigset_t copy;
    find_real();
    return real_sigprocmask(how, how == SIG_UNBLOCK ? set : without_ours(set, &copy), before);
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    sigset_t copy;
    find_real();
    return real_pthread_sigmask(how, how == SIG_UNBLOCK ? set : without_ours(set, &copy), before);
}

void signals_block(void)
{
    sigset_t all;
    is_blocked = has_handlers;
    if (!is_blocked)
        return;
    sigfillset(&all);
    real_pthread_sigmask(SIG_SETMASK, &all, &before_block);
}

void signals_unblock(void)
{
    if (is_blocked)
        real_pthread_sigmask(SIG_SETMASK, &before_block, NULL);
}

void signals_start(void)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigset_t ours;
    find_real();
    sigemptyset(&action.sa_mask);
    sigemptyset(&ours);
    sigaddset(&ours, SIGSEGV);
    real_sigprocmask(SIG_UNBLOCK, &ours, NULL);
    if (real_sigaction(SIGSEGV, &action, NULL))
        fail(STORE_FAILED, "no handler for pages: %s", strerror(errno));
}
