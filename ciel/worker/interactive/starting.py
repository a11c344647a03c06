"""Starts the processes of interactive programs, and attaches processes that run already."""

from __future__ import annotations

from collections.abc import Callable

from ciel.core.ids import ObjectId
from ciel.core.offers.resources import Given
from ciel.execution.environment import task_environment
from ciel.execution.executor import Talk
from ciel.launch.messages import DEV_NULL, File, LaunchSpec, Standard
from ciel.storage.errors import ObjectNotFoundError
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.attempts.workplace import Workplace
from ciel.worker.interactive.attached import AttachedProcess
from ciel.worker.interactive.attempt import InteractiveAttempt
from ciel.worker.interactive.channel import ProgramChannel, channel_environment
from ciel.worker.interactive.process import Process

MakeProcess = Callable[[str, Scratch], Process]
"""Creates a process, of a kind, with private files."""


def start(attempt: InteractiveAttempt, talk: Talk, place: Workplace, make: MakeProcess) -> Process:
    """Start a program that is to serve an attempt.

    Raises StorageError, LaunchSpecError or OSError; then nothing is left of the program.
    """
    scratch = place.scratch.take()
    channel: ProgramChannel | None = None
    try:
        process = make(kind_of(attempt, talk), scratch)
        attempt.scratch = scratch
        process.search_path = talk.program.env.get("PATH")
        process.cwd = talk.program.cwd
        process.indices = indices_of(attempt.task.given)
        process.argv = _arguments(attempt, talk, scratch)
        directory = scratch.inputs_directory()
        channel = ProgramChannel(place.reactor, directory, process, place.channels)
        process.connect(channel)
        process.argv += channel.arguments
        spec = LaunchSpec(
            argv=process.argv,
            cwd=process.cwd or scratch.path,
            env=_environment(attempt, talk, place, scratch),
            stdout=File(scratch.stdout_path, append=True),
            stderr=File(scratch.stderr_path, append=True),
            no_new_privileges=place.sandboxes.forbids_privileges(attempt.task.spec.needs),
        )
        process.launch_id = place.launching.start(
            spec, process.ended, process.started, _parent(talk, scratch, spec.no_new_privileges)
        )
    except Exception:
        attempt.close()
        if channel is not None:
            channel.close()
        scratch.remove()
        raise
    return process


def attach(attached: AttachedProcess, place: Workplace, make: MakeProcess) -> Process:
    """Let a running process wait for a task. Raises OSError; then its files are removed."""
    scratch = place.scratch.take()
    process = make(attached.name, scratch)
    process.attached, process.pid = attached, attached.pid
    try:
        directory = scratch.inputs_directory()
        process.connect(ProgramChannel(place.reactor, directory, process))
    except OSError:
        scratch.remove()
        raise
    return process


def kind_of(attempt: InteractiveAttempt, talk: Talk) -> str:
    """Return the kind of the programs that may serve an attempt.

    A memory limit is part of the kind: a program may still hold memory that it took without a
    limit. So are resources: a library reads once which devices it may use. And so is a level of
    isolation, which a process has for its life.
    """
    needs = attempt.task.spec.needs
    if not (needs.memory_bytes or needs.resources or needs.isolate):
        return talk.kind
    limits = f"{needs.memory_bytes}\0{needs.isolate}"
    return f"{talk.kind}\0{limits}\0{needs.resources}\0{attempt.task.given}"


def indices_of(given: Given) -> frozenset[tuple[str, str]]:
    """Return the indices of an attempt, each with the name of its resource."""
    return frozenset([(name, index) for name, indices in given for index, _ in indices])


def _parent(talk: Talk, scratch: Scratch, no_new_privileges: bool) -> LaunchSpec | None:
    """Return the program that may fork this one, if there is one."""
    parent = talk.program.parent
    if parent is None:
        return None
    argv = [item for item in parent.argv if isinstance(item, str)]  # it has no inputs
    return LaunchSpec(
        argv, scratch.path, parent.env, stdout=DEV_NULL, stderr=Standard.STDOUT,
        no_new_privileges=no_new_privileges,
    )  # fmt: skip


def _arguments(attempt: InteractiveAttempt, talk: Talk, scratch: Scratch) -> list[str]:
    """Return the command line of the program, with its files copied."""
    argv = []
    for item in talk.program.argv:
        if isinstance(item, str):
            argv.append(item)
            continue
        path = _path_of(attempt, item.object_id)
        argv.append(scratch.copy_executable(path) if item.executable else path)
    for name, object_id in talk.program.files.items():
        scratch.copy(name, _path_of(attempt, object_id))
    return argv


def _path_of(attempt: InteractiveAttempt, object_id: ObjectId) -> str:
    paths: list[str] = []
    ref = attempt.task.inputs.get(object_id)
    if ref is not None:
        attempt.open_whole(ref, paths.append, in_file=True)
    if not paths:
        raise ObjectNotFoundError(object_id)
    return paths[0]


def _environment(
    attempt: InteractiveAttempt, talk: Talk, place: Workplace, scratch: Scratch
) -> dict[str, str | None]:
    """Return the additions to the environment of the program."""
    return {**channel_environment(place.channels)} | task_environment(
        attempt.task.spec, attempt.key[1], place.worker, scratch.path, talk.program.env,
        attempt.task.given,
    )  # fmt: skip
