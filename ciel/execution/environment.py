"""Computes the environment variables of a task.

They are those of the worker or of the client, without secrets, and variables that describe the
task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

from ciel.core.jobs import CallerContext
from ciel.core.offers.resources import Amounts, Given, amounts_text
from ciel.core.tasks import TaskSpec

TEMPORARY_MAX_BYTES = 64
"""The longest path of a scratch directory that a task gets as its TMPDIR.

The task's temporary files are then removed with the directory. A socket's path has at most 107
bytes, so TMPDIR must leave some for the socket's name.
"""
KV_URL = "CIEL_KV"
KV_KEY_FILE = "CIEL_KV_KEY_FILE"
KV_CLUSTER = "CIEL_KV_CLUSTER"
"""The URL of the key-value base, the path of a file with its key, and the id of the cluster."""
MASTER = "CIEL_MASTER_CONTROL"
CLUSTER = "CIEL_CLUSTER"
SERVICE_KEY_FILE = "CIEL_SERVICE_KEY_FILE"
SERVICE_HOST = "CIEL_SERVICE_HOST"
"""For services: the control address of the master, the id of the cluster, the path of a file with
the key of the role `service`, and the host at which replicas listen, which is the worker's."""
SHMD = "CIEL_SHMD"
"""The directory of the block store whose daemon serves the programs of the worker's tasks."""
RESOURCES = "CIEL_RESOURCES"
"""The resources of an attempt, as `gpu=2,licence/matlab=1`."""
RESOURCE_PREFIX = "CIEL_RESOURCE_"
"""With the name of an indexed resource: the indices that the attempt has of it, as `0,2`."""
GPU = "gpu"
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables by which the run-times of NVIDIA and AMD choose devices. `ROCR_VISIBLE_DEVICES` is not
one of them: HIP would then count only the devices that it leaves."""
GPU_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
"""With this order, CUDA counts devices as the kernel and `nvidia-smi` do."""
_NO_LETTER = re.compile("[^A-Z0-9]")

SECRET_NAMES = frozenset(("CIEL_ACCESS", "CIEL_KEY"))
SECRET_PARTS = ("SECRET", "TOKEN", "PASSWORD", "PASSWD", "CREDENTIAL", "PRIVATE_KEY", "API_KEY")

MACHINE_NAMES = frozenset(
    (
        "_", "COLUMNS", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "DBUS_SESSION_BUS_ADDRESS",
        "DISPLAY", "HIP_VISIBLE_DEVICES", "HOME", "HOST", "HOSTNAME", "INVOCATION_ID",
        "JOURNAL_STREAM", "LINES", "LOGNAME", "MAIL", "NOTIFY_SOCKET", "NVIDIA_VISIBLE_DEVICES",
        "OLDPWD", "PWD", "ROCR_VISIBLE_DEVICES", "SHELL", "SHLVL", "STY", "TERM_SESSION_ID",
        "TMPDIR", "TMUX", "TMUX_PANE", "TTY", "USER", "WATCHDOG_PID", "WATCHDOG_USEC",
        "WAYLAND_DISPLAY", "WINDOWID", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SEAT",
        "XDG_SESSION_ID", "XDG_SESSION_TYPE", "XDG_VTNR",
    )
)  # fmt: skip
"""Variables that describe a machine, an account or a terminal. Tasks get the worker's values."""
MACHINE_PREFIXES = ("CIEL_", "SSH_")


class Caller(NamedTuple):
    """The working directory and environment that a job's programs get from the client.

    Both replace or change the worker's. `cwd`: the working directory; "": a private one. `env`:
    changes to the worker's environment; None unsets a variable. `digest`: equal for two callers
    only if `cwd` and `env` are equal.
    """

    cwd: str
    env: Mapping[str, str | None]
    digest: str


class Callers:
    """The callers of the jobs whose tasks run on a worker, by job."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ`: the variables that programs inherit from the worker."""
        self._environ = environ
        self._by_job: dict[str, Caller] = {}

    def describe(self, job: str, context: CallerContext | None) -> None:
        """Set the context of a job; None: the job has ended."""
        if context is None:
            self._by_job.pop(job, None)
            return
        env = changes(context, self._environ)
        text = repr((context.cwd, sorted(env.items(), key=lambda item: item[0])))
        digest = blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        self._by_job[job] = Caller(context.cwd, env, digest)

    def find(self, job: str) -> Caller | None:
        """Return the caller of a job; None if the job has no context."""
        return self._by_job.get(job)

    def clear(self) -> None:
        """Forget all jobs, since a new master sends its own."""
        self._by_job.clear()


def device_order(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that fixes the order of GPUs, unless the worker's own variables do."""
    is_set = GPU_ORDER[0] in environ or GPU_VARIABLES[0] in environ
    return {} if is_set else dict((GPU_ORDER,))


def is_secret(name: str) -> bool:
    """Whether a variable's name marks it as secret, so that tasks do not get it."""
    upper = name.upper()
    return upper in SECRET_NAMES or any(part in upper for part in SECRET_PARTS)


def is_of_machine(name: str) -> bool:
    """Whether a variable describes a machine, so that it is not sent to another one."""
    return name in MACHINE_NAMES or name.startswith(MACHINE_PREFIXES)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every task of a worker inherits."""
    return {name: value for name, value in environ.items() if not is_secret(name)}


def travelling(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a client to send with its job.

    These are not secret, do not describe the client's machine, and are UTF-8.
    """
    return {
        name: value
        for name, value in environ.items()
        if not (is_secret(name) or is_of_machine(name)) and _is_text(name + value)
    }


def changes(context: CallerContext, own: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes to a worker's environment for a job's programs; None unsets a variable."""
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
    spec: TaskSpec,
    attempt: int,
    worker: str,
    scratch: str,
    extra: Mapping[str, str | None],
    given: Given = (),
) -> dict[str, str | None]:
    """Return the variables to add for one attempt.

    `extra`, the variables of the task, override the others, except those of its resources: a client
    may send variables about devices of the client's machine. `given`: the indices of its resources.
    """
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
    environment |= extra
    if spec.needs.resources:
        environment |= resource_environment(spec.needs.resources, given)
    return environment


def resource_environment(amounts: Amounts, given: Given) -> dict[str, str | None]:
    """Return the variables that name the resources of an attempt, and its indices of them."""
    environment: dict[str, str | None] = {RESOURCES: amounts_text(amounts)}
    for name, indices in given:
        text = ",".join([index for index, _ in indices])
        environment[RESOURCE_PREFIX + _NO_LETTER.sub("_", name.upper())] = text
        if name == GPU:
            environment |= dict.fromkeys(GPU_VARIABLES, text)
    return environment
