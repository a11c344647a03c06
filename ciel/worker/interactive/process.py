"""A program that talks, from its start to its end: what is known of it, and said of its end. One
that was there before is a guest: it was not started, and gets no signals.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ciel.core.events import TaskFault
from ciel.core.ids import ObjectId, TaskId
from ciel.core.refs import Reference
from ciel.execution.environment import task_environment
from ciel.execution.executor import ProgramExit, Talk
from ciel.execution.report import command_text
from ciel.launch.messages import DEV_NULL, File, LaunchSpec, ProgramExited, ProgramFailed, Standard
from ciel.net.turns import DelayedCall
from ciel.storage.errors import ObjectNotFoundError
from ciel.worker.attempts.faults import serving_fault, start_fault, whose_signal
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.attempts.workplace import Workplace
from ciel.worker.interactive.attached import ENDED, Guest, Left
from ciel.worker.interactive.attempt import Talked
from ciel.worker.interactive.channel import ChannelOwner, ProgramChannel, channel_environment
from ciel.worker.limits.memory import MemoryWatch
from ciel.worker.state.pool import IDLE_MAX_S

End = ProgramExited | ProgramFailed | Left


class Patience(NamedTuple):
    """How long a program has to take its first task from its FIFO; to end, once it has said it
    would, or was told to; and how long it may wait for another task.
    """

    first_call_s: float = 30.0
    leave_s: float = 2.0
    idle_s: float = IDLE_MAX_S


USUAL_PATIENCE = Patience()


class _Printed:
    """One standard stream of a program, over all tasks that the program serves."""

    def __init__(self, scratch: Scratch, path: str, *, is_stderr: bool) -> None:
        self._scratch = scratch
        self._path = path
        self._is_stderr = is_stderr
        self._start_bytes = 0  # where that of the present task begins
        self._logged_bytes = 0  # how much of it is in logs
        self._fd = -1  # opened once it is kept
        self._is_closed = False

    def log(self, talked: Talked, *, to_the_end: bool) -> None:
        """Log what is there, as far as it is whole lines, or to the end."""
        log_text = partial(talked.log, is_stderr=self._is_stderr)
        self._logged_bytes = self._scratch.log_lines(
            self._logged_bytes, log_text, to_the_end=to_the_end, path=self._path
        )

    def log_rest(self, talked: Talked) -> None:
        """Log what was written for a task that is over."""
        if self._may_have_grown():
            self.log(talked, to_the_end=True)
        self._start_bytes = self._logged_bytes

    def tail(self) -> str:
        return self._scratch.stderr_tail(self._start_bytes, self._path)

    def close(self) -> None:
        self._is_closed = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _may_have_grown(self) -> bool:
        """Whether there may be something to log: asked after every task, so not by a path."""
        if self._fd < 0 and not self._is_closed:
            self._fd = self._scratch.open_printed(self._path)
        return self._fd < 0 or os.lseek(self._fd, 0, os.SEEK_END) > self._logged_bytes


class Process:
    """One program, the attempt that it serves, and how both have ended."""

    def __init__(self, number: int, kind: str, scratch: Scratch) -> None:
        self.number = number
        self.key = (TaskId(""), number)  # where attempts have theirs
        self.kind = kind
        self.scratch = scratch
        self.channel: ProgramChannel
        self.argv: list[str] = []
        self.guest: Guest | None = None  # if it was there before
        self.search_path: str | None = None
        self.cwd = ""  # its working directory, if that is not its scratch directory
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
        self.end: End | None = None
        self.broke = ""  # how its channel ended
        self._printed = (
            _Printed(scratch, scratch.stdout_path, is_stderr=False),
            _Printed(scratch, scratch.stderr_path, is_stderr=True),
        )
        self.run_s = 0.0
        self.due: DelayedCall | None = None

    @property
    def talked(self) -> Talked | None:
        """The attempt that it talks about now."""
        return self.stack[-1] if self.stack else None

    @property
    def called(self) -> str:
        """What people know it by."""
        if self.guest is not None:
            return self.guest.name
        return command_text(self.argv[: -len(self.channel.arguments)])

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
            for printed in self._printed:
                printed.log(self.talked, to_the_end=False)

    def log_rest(self, talked: Talked) -> None:
        """Log what it has printed for a task that is over."""
        for printed in self._printed:
            printed.log_rest(talked)

    def tail(self) -> str:
        """Return the end of what it wrote to standard error for its task; if that is nothing, to
        standard output.
        """
        stdout, stderr = self._printed
        return stderr.tail() or stdout.tail()

    def limit_memory(self, watch: MemoryWatch) -> None:
        """Have it held, once it is there, to what its task may take."""
        talked = self.talked
        limit_bytes = 0 if talked is None else talked.task.spec.needs.memory_bytes
        if talked is not None and limit_bytes and self.pid:
            watch.add(talked.key, self.pid, limit_bytes)

    def close(self) -> None:
        """Hold nothing open any more."""
        self.channel.close()
        for printed in self._printed:
            printed.close()

    def lost_fault(self) -> TaskFault:
        """Say that it has left the conversation, and nothing is known of its end."""
        return TaskFault("RUNTIME_ERROR", f"{self.broke}, before it had said 'exit'")

    def end_fault(self, worker: str) -> TaskFault:
        """Say how it ended in the middle of its task."""
        event = self.end
        if isinstance(event, ProgramFailed):
            cwd = self.cwd or self.scratch.path
            return start_fault(worker, self.argv, event, cwd, self.search_path)
        assert event is not None
        said = "before it had said 'exit'"
        if "in the middle" in self.broke:
            said = f"in the middle of a call: {self.broke.partition(': ')[2]}"
        why = "" if self.is_called_off else whose_signal(_signal_of(event))
        return TaskFault("RUNTIME_ERROR", f"it {self.how_it_ended} {said}" + (why and f"; {why}"))

    @property
    def how_it_ended(self) -> str:
        """How its process has ended, in words; nothing if it was never started."""
        event = self.end
        if event is None or isinstance(event, ProgramFailed):
            return ""
        if isinstance(event, Left):
            return event.how
        return ProgramExit(event.exit_status, _signal_of(event), event.wall_s, "").describe()

    def desertion(self, worker: str) -> str:
        """Say that a guest has left while it waited for a task."""
        how = self.broke if self.end != ENDED and self.broke else f"it {self.how_it_ended}"
        return f"{self.called} on worker {worker}: {how}, before it had said 'exit'"

    def failure_text(self, worker: str, details: str, tail: str) -> str:
        """Compose the message for a task that it failed."""
        lines = [f"{self.subject or f'{self.called} on worker {worker}'}: {details}"]
        if tail:
            lines += ["its output ends:", *[f"  {line}" for line in tail.splitlines()]]
        return "\n".join(lines)


def _signal_of(event: ProgramExited | Left) -> int | None:
    if isinstance(event, Left) or event.exit_status is not None:
        return None
    return os.WTERMSIG(event.status)


def fault_at_end(talked: Talked, over: Any, worker: str) -> TaskFault | None:
    """Say what is wrong with how a conversation has come to its end, if anything is."""
    if over.fault is not None and over.keep != "may_keep":
        return TaskFault(*over.fault)
    if (error := talked.input_error) is not None:
        return serving_fault(worker, error)
    if talked.fixed is not None and over.keep != "must_keep":
        text = "it said that it would go on in place, and then 'exit' without 'must_keep'"
        return TaskFault("RUNTIME_ERROR", text)
    if talked.has_delegated and talked.outputs.open_ones:
        numbers = ", ".join(map(str, talked.outputs.open_ones))
        text = f"it handed its outputs over to another task with output {numbers} still open"
        return TaskFault("RUNTIME_ERROR", text)
    return None


# --- beginning ------------------------------------------------------------------------------------


def start(
    number: int,
    talked: Talked,
    talk: Talk,
    place: Workplace,
    owner: ChannelOwner,
    started: Callable[[Process, int], None],
    ended: Callable[[Process, End], None],
) -> Process:
    """Start a program that is to serve an attempt. Raises StorageError, LaunchSpecError or OSError,
    and then nothing is left of it.
    """
    scratch: Scratch | None = None
    channel: ProgramChannel | None = None
    try:
        scratch = place.scratch.take()
        process = Process(number, kind_of(talked, talk), scratch)
        talked.scratch = scratch
        process.search_path = talk.program.env.get("PATH")
        process.cwd = talk.program.cwd
        process.argv = arguments_of(talked, talk, scratch)
        directory = scratch.inputs_directory()
        channel = process.channel = ProgramChannel(place.reactor, directory, owner, place.channels)
        process.argv += channel.arguments
        spec = LaunchSpec(
            argv=process.argv,
            cwd=process.cwd or scratch.path,
            env=environment_of(talked, talk, place, scratch),
            stdout=File(scratch.stdout_path, append=True),
            stderr=File(scratch.stderr_path, append=True),
        )
        process.launch_id = place.launching.start(
            spec,
            lambda event: ended(process, event),
            lambda pid: started(process, pid),
            parent_of(talk, scratch),
        )
    except Exception:
        discard(talked, scratch, channel)
        raise
    return process


def parent_of(talk: Talk, scratch: Scratch) -> LaunchSpec | None:
    """Return the program that may fork the one that is to serve an attempt, if one may."""
    parent = talk.program.parent
    if parent is None:
        return None
    argv = [item for item in parent.argv if isinstance(item, str)]  # it has no inputs
    return LaunchSpec(argv, scratch.path, parent.env, stdout=DEV_NULL, stderr=Standard.STDOUT)


def take_in(number: int, guest: Guest, place: Workplace, owner: ChannelOwner) -> Process:
    """Have a guest be a program that waits for a task. Raises OSError, and then nothing is left."""
    scratch = place.scratch.take()
    process = Process(number, guest.name, scratch)
    process.guest, process.pid = guest, guest.pid
    try:
        process.channel = ProgramChannel(place.reactor, scratch.inputs_directory(), owner)
    except OSError:
        scratch.remove()
        raise
    return process


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
) -> dict[str, str | None]:
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
