"""The environment of a task: the worker's, less what is secret, plus what a task should know of
itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from ciel.core.tasks import TaskSpec

TEMPORARY_MAX_BYTES = 64
"""Temporary files of a task lie in its scratch directory, and go with it, unless the path is so
long that a socket there could have no name: the kernel takes 107 bytes.
"""
SECRET_NAMES = frozenset(("CIEL_ACCESS", "CIEL_KEY"))
SECRET_PARTS = ("SECRET", "TOKEN", "PASSWORD", "PASSWD", "CREDENTIAL", "PRIVATE_KEY", "API_KEY")


def is_secret(name: str) -> bool:
    """Whether a variable of the worker's environment is kept from tasks, by its name."""
    upper = name.upper()
    return upper in SECRET_NAMES or any(part in upper for part in SECRET_PARTS)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what every task of a worker inherits."""
    return {name: value for name, value in environ.items() if not is_secret(name)}


def task_environment(
    spec: TaskSpec, attempt: int, worker: str, scratch: str, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return what is added for one attempt; the task's own wishes come last."""
    environment = {
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
