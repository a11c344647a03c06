"""The faults of attempts that failed on this worker."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Sequence

from twisted.logger import Logger

from ciel.core.events import RECALLED, TaskFault
from ciel.core.graph.failures import size_text
from ciel.core.refs import details_text
from ciel.execution.executor import Executor
from ciel.execution.report import command_text, full_device_text, no_room_text, unicode_text
from ciel.launch import Stage, why_refused
from ciel.launch.limits import open_files_advice
from ciel.launch.messages import ProgramFailed
from ciel.storage.errors import (
    CorruptObjectError,
    NoSpaceError,
    ShortOutputError,
    StorageError,
)

log = Logger()

INTERRUPTED = TaskFault(RECALLED, "the program that ran it ended while it ran a child")
"""The fault of an attempt whose interactive program ended while it ran a child inline."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: BaseException) -> bool:
    """Whether a store or its device has no room."""
    return isinstance(error, NoSpaceError) or getattr(error, "errno", 0) in _DISK_FULL


def executor_fault(executor: Executor, error: Exception) -> TaskFault:
    """Return the fault for an exception of a third-party executor."""
    log.error("executor {name} raised {error!r}", name=executor.name, error=error)
    return TaskFault("EXECUTOR_FAULT", f"executor {executor.name} raised {error!r}")


def preparation_fault(worker: str, error: Exception, device: str) -> TaskFault:
    """Return the fault if the worker could not prepare what a program needs.

    `device`: describes the device of the work directory.
    """
    text = f"worker {worker} could not start it: {error}{open_files_advice(error)}"
    if is_full(error):
        return TaskFault("NO_SPACE", f"{text}; its work directory is on {device}")
    return TaskFault("WORKER_FAULT", text)


def serving_fault(worker: str, error: OSError) -> TaskFault:
    """Return the fault if the worker could not carry out a call of a program."""
    reason = "NO_SPACE" if error.errno in _DISK_FULL else "WORKER_FAULT"
    text = f"worker {worker} could not fulfil its request: {error}{open_files_advice(error)}"
    return TaskFault(reason, text)


def start_fault(
    worker: str, argv: Sequence[str], event: ProgramFailed, cwd: str, search_path: str | None
) -> TaskFault:
    """Return the fault of a program that could not be started, or was recalled before that."""
    program = unicode_text(argv[0])
    if event.stage is Stage.VFORK and event.errno == errno.ECANCELED:
        return TaskFault(RECALLED, "it was returned to the master before it started")
    if event.stage is Stage.CHDIR:
        return TaskFault("PROGRAM_NOT_STARTED", directory_text(worker, cwd, event.errno))
    if event.stage is not Stage.EXEC:
        reason = "NO_SPACE" if event.errno in _DISK_FULL else "WORKER_FAULT"
        text = f"worker {worker} could not start {program!r}: {event.reason}"
        return TaskFault(reason, text)
    path = search_path or os.environ.get("PATH", os.defpath)
    why = unicode_text(why_refused(argv[0], event.errno, cwd=cwd, path=path))
    text = f"{program!r} could not be started on worker {worker}: {why}"
    return TaskFault("PROGRAM_NOT_STARTED", text)


def directory_text(worker: str, cwd: str, number: int) -> str:
    """Explain that a program cannot run in its caller's directory on this host, and what to do."""
    what = "there is no such directory" if number == errno.ENOENT else os.strerror(number)
    return (
        f"the working directory {cwd!r} cannot be entered on worker {worker} "
        f"(host {socket.gethostname()}): {what}. Either name one that all workers have "
        "(--cwd DIR, in Python cwd=DIR), or have programs run in private directories "
        "(--scratch, in Python scratch=True)"
    )


def storing_fault(
    worker: str, argv: Sequence[str], error: StorageError, device: str = ""
) -> TaskFault:
    """Return the fault if the store could not commit what a program wrote.

    `device`: describes the device of the store.
    """
    if isinstance(error, NoSpaceError):
        return TaskFault("NO_SPACE", no_room_text(worker, argv, error))
    if isinstance(error, ShortOutputError):
        text = full_device_text(worker, argv, device, error.size_bytes)
        return TaskFault("NO_SPACE", text)
    if isinstance(error, CorruptObjectError) and error.code == "output":  # by its program
        text = f"the output of {command_text(argv)} on worker {worker} is lost: {error.detail}"
        return TaskFault("RUNTIME_EXCEPTION", text)
    return TaskFault("WORKER_FAULT", f"worker {worker} could not store its output: {error}")


def lacking_fault(worker: str, fault: TaskFault, device: str = "") -> TaskFault:
    """Replace the fault of a program whose output may not have fit into the store.

    The result blames the store. Faults that are not the program's own stay.
    """
    if fault.reason not in ("RUNTIME_EXCEPTION", "RUNTIME_ERROR", "RAISED"):
        return fault
    text = f"{details_text(fault.details)}\n{full_device_text(worker, (), device)}"
    return TaskFault("NO_SPACE", text)


def changed_fault(names: Sequence[str]) -> TaskFault:
    """Return the fault if a program has written to inputs, which several programs may read."""
    text = (
        f"its input {', '.join(names)} was changed while it ran, by it or by another program that "
        "reads the same file; the worker has deleted its copy. Programs of this worker can write "
        "into their inputs, since it may not mount them read-only: let them write to a copy"
    )
    return TaskFault("INPUT_CHANGED", text)


def memory_fault(used_bytes: int, limit_bytes: int) -> TaskFault:
    """Return the fault of a program that has exceeded its memory limit."""
    used, limit = size_text(used_bytes), size_text(limit_bytes)
    return TaskFault(
        "MEMORY_LIMIT", f"it used {used} of private memory, more than its limit of {limit}"
    )


def arguments_fault(executor: str, error: Exception) -> TaskFault:
    """Return the fault of a task whose executor does not accept its arguments."""
    name = getattr(error, "executor", "") or executor
    text = f"the arguments of executor {name} are wrong: {error}"
    return TaskFault("BAD_ARGUMENTS", text)


def whose_signal(signal_number: int | None) -> str:
    """Say what may have killed a program, if that was not its worker."""
    if signal_number != signal.SIGKILL:
        return ""
    return (
        "ciel did not kill it; the kernel kills programs when a host or container is out of memory "
        "(see dmesg), otherwise another program or a user did"
    )
