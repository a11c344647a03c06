"""Decides which command line a job of Snakemake runs, and what its task needs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from snakemake.settings.types import DeploymentMethod
from snakemake.shell import shell

from ciel.core.offers.resources import read_amounts
from ciel.core.tasks import DEFAULT_NEEDS, PRIORITY_MAX, PRIORITY_MIN, Needs

MEBIBYTE = 1 << 20
SNAKEMAKE_MIB = 256
"""How much memory a Snakemake on a worker needs, in addition to the memory of its job."""
WORD_MAX_BYTES = 100_000
"""The kernel allows 128 KiB for one argument of a program."""
_UNKNOWN = "<TBD>"
"""Snakemake prints it for values that only the job's host knows."""
_THREAD_LIMITS = (
    "OMP_NUM_THREADS", "GOTO_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip
_TEMPORARIES = ("TMPDIR", "TMP", "TEMPDIR", "TEMP")


def direct_command(job: Any, deployment: Iterable[DeploymentMethod]) -> str | None:
    """Return the command of a shell rule that needs nothing of Snakemake on the worker.

    Return None for every other job: a Snakemake on the worker has to activate its environment or
    container, create its shadow directory, measure it, look into the cache, or run Python.
    """
    if job.is_group() or not job.is_shell or job.is_shadow or job.benchmark is not None:
        return None
    if job.rule.cache.output or job.rule.is_handover or job.is_template_engine:
        return None
    if DeploymentMethod.CONDA in deployment and job.conda_env:
        return None
    if DeploymentMethod.APPTAINER in deployment and job.container_img_url:
        return None
    if DeploymentMethod.ENV_MODULES in deployment and job.env_modules:
        return None
    if job.resources.get("shell_exec") is not None:
        return None
    words = (shell._get_process_prefix(), job.shellcmd, shell._process_suffix)
    command = " ".join(words).strip()
    if _UNKNOWN in command or len(command.encode(errors="surrogateescape")) > WORD_MAX_BYTES:
        return None
    return command


def logged(command: str, log: str) -> list[str]:
    """Return the words of a shell that writes the output of a command to a file."""
    return [shell.get_executable() or "/bin/sh", "-c", f"exec >{shlex.quote(log)} 2>&1\n{command}"]


def variables(job: Any) -> dict[str, str]:
    """Return the variables that Snakemake sets for a shell command."""
    found = dict.fromkeys(_THREAD_LIMITS, str(job.threads))
    if directory := job.resources.get("tmpdir"):  # false while only the job's host knows it
        found |= dict.fromkeys(_TEMPORARIES, str(directory))
    return found


def needs_of(job: Any, requested: Iterable[str], *, is_direct: bool) -> Needs:
    """Return the needs of a job's task. `requested`: the resources that workers have to offer."""
    memory_mb, minutes = _number(job, "mem_mb"), _number(job, "runtime")
    if memory_mb and not is_direct:
        memory_mb += SNAKEMAKE_MIB
    needs = DEFAULT_NEEDS._replace(
        slots=max(1, _number(job, "_cores")),
        memory_bytes=memory_mb * MEBIBYTE,
        timeout_s=60.0 * minutes,
        priority=min(max(job.priority, PRIORITY_MIN), PRIORITY_MAX),
    )
    counts = {name: count for name in requested if (count := _number(job, name))}
    return needs._replace(resources=read_amounts(counts)) if counts else needs


def _number(job: Any, resource: str) -> int:
    """Return how much of a resource a job needs; 0 if it does not say so in numbers."""
    value = job.resources.get(resource)
    return value if type(value) is int else 0
