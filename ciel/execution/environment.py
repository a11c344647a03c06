"""The environment of a task: the worker's or its caller's, less what is secret, plus what a task
should know of itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

from ciel.core.jobs import CallerContext
from ciel.core.tasks import TaskSpec

TEMPORARY_MAX_BYTES = 64
"""Temporary files of a task lie in its scratch directory, and go with it, unless the path is so
long that a socket there could have no name: the kernel takes 107 bytes.
"""
SECRET_NAMES = frozenset(("CIEL_ACCESS", "CIEL_KEY"))
SECRET_PARTS = ("SECRET", "TOKEN", "PASSWORD", "PASSWD", "CREDENTIAL", "PRIVATE_KEY", "API_KEY")

MACHINE_NAMES = frozenset(
    (
        "_", "COLUMNS", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "HOME", "HOST", "HOSTNAME",
        "INVOCATION_ID", "JOURNAL_STREAM", "LINES", "LOGNAME", "MAIL", "NOTIFY_SOCKET", "OLDPWD",
        "PWD", "SHELL", "SHLVL", "STY", "TERM_SESSION_ID", "TMPDIR", "TMUX", "TMUX_PANE", "TTY",
        "USER", "WAYLAND_DISPLAY", "WINDOWID", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SEAT",
        "XDG_SESSION_ID", "XDG_SESSION_TYPE", "XDG_VTNR",
    )
)  # fmt: skip
"""Variables that describe a machine, an account or a terminal: the worker's stay."""
MACHINE_PREFIXES = ("CIEL_", "SSH_")


class Caller(NamedTuple):
    """What a job's programs take over from the client, as one worker applies it.

    `cwd`: the working directory; "": a private one. `env`: changes to the worker's own environment;
    None unsets a variable. `digest`: the same for two callers only if both are.
    """

    cwd: str
    env: Mapping[str, str | None]
    digest: str


class Callers:
    """The callers of the jobs whose tasks run on a worker, by job."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ`: what programs inherit of the worker."""
        self._environ = environ
        self._by_job: dict[str, Caller] = {}

    def describe(self, job: str, context: CallerContext | None) -> None:
        """Learn the context of a job; None: the job is over."""
        if context is None:
            self._by_job.pop(job, None)
            return
        env = changes(context, self._environ)
        text = repr((context.cwd, sorted(env.items(), key=lambda item: item[0])))
        digest = blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        self._by_job[job] = Caller(context.cwd, env, digest)

    def find(self, job: str) -> Caller | None:
        """Return what the programs of a job take over; None if it has no context."""
        return self._by_job.get(job)

    def clear(self) -> None:
        """Forget all jobs: another master describes its own."""
        self._by_job.clear()


def is_secret(name: str) -> bool:
    """Whether a variable is kept from tasks, by its name."""
    upper = name.upper()
    return upper in SECRET_NAMES or any(part in upper for part in SECRET_PARTS)


def is_of_machine(name: str) -> bool:
    """Whether a variable describes a machine, so that it does not travel to another one."""
    return name in MACHINE_NAMES or name.startswith(MACHINE_PREFIXES)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what every task of a worker inherits."""
    return {name: value for name, value in environ.items() if not is_secret(name)}


def travelling(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a caller that travel with its job: neither secret nor of its machine,
    and text in UTF-8.
    """
    return {
        name: value
        for name, value in environ.items()
        if not (is_secret(name) or is_of_machine(name)) and _is_text(name + value)
    }


def changes(context: CallerContext, own: Mapping[str, str]) -> dict[str, str | None]:
    """Return what makes the environment of a job's programs of a worker's own: None unsets a
    variable.
    """
    changed: dict[str, str | None] = {}
    if context.replaces_env:
        theirs = {name: text for name, text in context.env.items() if not is_of_machine(name)}
        changed = {name: None for name in own if name not in theirs and not is_of_machine(name)}
    else:
        theirs = dict(context.env)
    return changed | {name: text for name, text in theirs.items() if own.get(name) != text}


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def task_environment(
    spec: TaskSpec, attempt: int, worker: str, scratch: str, extra: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Return what is added for one attempt; the task's own wishes come last."""
    environment: dict[str, str | None] = {
        "CIEL_JOB": spec.job,
        "CIEL_TASK": spec.id,
        "CIEL_ATTEMPT": str(attempt),
        "CIEL_WORKER": worker,
        "CIEL_SCRATCH": scratch,
        "CIEL_SLOTS": str(spec.needs.slots),
    }
    if len(scratch) <= TEMPORARY_MAX_BYTES:
        environment["TMPDIR"] = scratch.rstrip("/")
    if spec.needs.memory_bytes:
        environment["CIEL_MEMORY_BYTES"] = str(spec.needs.memory_bytes)
    return environment | dict(extra)
