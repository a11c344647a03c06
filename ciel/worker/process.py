"""A program that talks, from its start to its end: what is known of it, and said of its end."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ciel.core.events import TaskFault
from ciel.core.ids import ObjectId, TaskId
from ciel.core.refs import Reference
from ciel.execution.environment import task_environment
from ciel.execution.executor import ProgramExit, Talk
from ciel.execution.report import command_text
from ciel.launch.messages import ProgramExited, ProgramFailed
from ciel.net.turns import DelayedCall
from ciel.storage.errors import ObjectNotFoundError
from ciel.worker.faults import start_fault, whose_signal
from ciel.worker.programs import ProgramChannel, channel_environment
from ciel.worker.scratch import Scratch
from ciel.worker.state.pool import IDLE_MAX_S
from ciel.worker.talked import Talked
from ciel.worker.workplace import Workplace


class Patience(NamedTuple):
    """How long a program has to take its first task from its FIFO; to end, once it has said it
    would, or was told to; and how long it may wait for another task.
    """

    first_call_s: float = 30.0
    leave_s: float = 2.0
    idle_s: float = IDLE_MAX_S


USUAL_PATIENCE = Patience()


class Process:
    """One program, the attempt that it serves, and how both have ended."""

    def __init__(self, number: int, kind: str, scratch: Scratch) -> None:
        self.number = number
        self.key = (TaskId(""), number)  # where attempts have theirs
        self.kind = kind
        self.scratch = scratch
        self.channel: ProgramChannel
        self.argv: list[str] = []
        self.search_path: str | None = None
        self.launch_id = 0
        self.pid = 0
        self.stack: list[Talked] = []  # the attempt that it serves, and those within it
        self.aside: list[Talked] = []  # of these, when it has ended: they are given back
        self.conversation: Any = None  # about these
        self.subject = ""  # what people are told has failed, if not its command
        self.has_begun = False  # it has said something about them
        self.is_warm = False  # it has served before
        self.holds: frozenset[str] = frozenset()  # objects that it has at hand since then
        self.is_called_off = False  # it was sent a signal for the present task
        self.fault: TaskFault | None = None  # why its task has failed, once it has
        self.published: tuple[Reference, ...] = ()  # by the task that it leaves after, ...
        self.verdict: TaskFault | None = None  # ...or what it said of that
        self.unsaid: list[bytes] = []  # frames for it, until the turn ends
        self.end: ProgramExited | ProgramFailed | None = None
        self.broke = ""  # how its channel ended
        self.stderr_start = 0  # where that of the present task begins
        self.logged_bytes = 0  # how much of it is in logs
        self.run_s = 0.0
        self.due: DelayedCall | None = None

    @property
    def talked(self) -> Talked | None:
        """The attempt that it talks about now."""
        return self.stack[-1] if self.stack else None

    @property
    def is_done(self) -> bool:
        """Whether its task has come to an end, and to a good one."""
        over = None if self.conversation is None else self.conversation.over
        return over is not None and self.fault is None

    @property
    def is_stale(self) -> bool:
        """Whether it was gone before it had taken its task."""
        has_missed = not self.has_begun and (bool(self.unsaid) or self.channel.left_unread)
        return self.is_warm and has_missed and self.fault is None and not self.is_called_off

    def log_lines(self) -> None:
        """Log what it has printed meanwhile, as far as that is whole lines."""
        if self.talked is not None:
            self._log(self.talked, to_the_end=False)

    def log_rest(self, talked: Talked) -> None:
        """Log what it has printed for a task that is over."""
        self._log(talked, to_the_end=True)
        self.stderr_start = self.logged_bytes

    def _log(self, talked: Talked, *, to_the_end: bool) -> None:
        self.logged_bytes = self.scratch.log_lines(
            self.logged_bytes, talked.log, to_the_end=to_the_end
        )

    def lost_fault(self) -> TaskFault:
        """Say that it has left the conversation, and nothing is known of its end."""
        return TaskFault("RUNTIME_ERROR", f"{self.broke}, before it had said 'exit'")

    def end_fault(self, worker: str) -> TaskFault:
        """Say how it ended in the middle of its task."""
        event = self.end
        if isinstance(event, ProgramFailed):
            return start_fault(worker, self.argv, event, self.scratch.path, self.search_path)
        assert event is not None
        said = "before it had said 'exit'"
        if "in the middle" in self.broke:
            said = f"in the middle of a call: {self.broke.partition(': ')[2]}"
        number = None if event.exit_status is not None else os.WTERMSIG(event.status)
        why = "" if self.is_called_off else whose_signal(number)
        return TaskFault("RUNTIME_ERROR", f"it {self.how_it_ended} {said}" + (why and f"; {why}"))

    @property
    def how_it_ended(self) -> str:
        """How its process has ended, in words; nothing if it was never started."""
        event = self.end
        if event is None or isinstance(event, ProgramFailed):
            return ""
        number = None if event.exit_status is not None else os.WTERMSIG(event.status)
        return ProgramExit(event.exit_status, number, event.wall_s, "").describe()

    def failure_text(self, worker: str, details: str, tail: str) -> str:
        """Compose the message for a task that it failed."""
        command = command_text(self.argv[: -len(self.channel.arguments)])
        lines = [f"{self.subject or f'{command} on worker {worker}'}: {details}"]
        if tail:
            lines += ["its output ends:", *[f"  {line}" for line in tail.splitlines()]]
        return "\n".join(lines)


def arguments_of(talked: Talked, talk: Talk, scratch: Scratch) -> list[str]:
    """Return the command line of a program that is to serve an attempt, with its files copied."""
    argv = []
    for item in talk.program.argv:
        if isinstance(item, str):
            argv.append(item)
            continue
        path = _path_of(talked, item.object_id)
        argv.append(scratch.copy_executable(path) if item.executable else path)
    for name, object_id in talk.program.files.items():
        scratch.copy(name, _path_of(talked, object_id))
    return argv


def _path_of(talked: Talked, object_id: ObjectId) -> str:
    paths: list[str] = []
    ref = talked.task.inputs.get(object_id)
    if ref is not None:
        talked.open_whole(ref, paths.append)
    if not paths:
        raise ObjectNotFoundError(object_id)
    return paths[0]


def environment_of(
    talked: Talked, talk: Talk, place: Workplace, scratch: Scratch
) -> dict[str, str]:
    """Return what is added to the environment of a program that is to serve an attempt."""
    return {**channel_environment(place.channels)} | task_environment(
        talked.task.spec, talked.key[1], place.worker, scratch.path, talk.program.env
    )


def discard(talked: Talked, scratch: Scratch | None, channel: ProgramChannel | None) -> None:
    """Undo what was prepared for a program that was not started."""
    talked.close()
    if channel is not None:
        channel.close()
    if scratch is not None:
        scratch.remove()


def kind_of(talked: Talked, talk: Talk) -> str:
    """Say which programs may serve an attempt: what one took without a limit it may still have."""
    limit_bytes = talked.task.spec.needs.memory_bytes
    return f"{talk.kind}\0{limit_bytes}" if limit_bytes else talk.kind
