"""An interactive program: it serves one attempt at a time, and may be kept for others.

    fresh ──▶ busy ──▶ idle (may_keep) ──▶ busy …
                  ├──▶ waits (must_keep) in the middle of a task, as a fixed object ──▶ busy
                  └──▶ leaves (no)

The process reports an attempt to the life cycle once its conversation is over. If the program must
end or has failed, it reports the attempt once all processes of the program have ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, cast

from twisted.logger import Logger

from ciel.core.errors import CielError
from ciel.core.events import TaskFault
from ciel.core.ids import TaskId
from ciel.core.refs import Reference, with_text
from ciel.execution.conversation import Conversation, ConversingExecutor, Over
from ciel.execution.executor import ProgramExit, Talk
from ciel.execution.report import command_text
from ciel.launch.messages import ProgramExited, ProgramFailed
from ciel.net.ticks import DelayedCall
from ciel.storage.errors import StorageError
from ciel.wire.calls import Call, encode_call, frame_call
from ciel.wire.errors import EncodeError, WireError
from ciel.worker.attempts.faults import (
    INTERRUPTED,
    arguments_fault,
    executor_fault,
    lacking_fault,
    serving_fault,
    start_fault,
    storing_fault,
    whose_signal,
)
from ciel.worker.attempts.lifecycle import Lifecycle
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.interactive.attached import ENDED, AttachedProcess, Left
from ciel.worker.interactive.attempt import InteractiveAttempt
from ciel.worker.interactive.channel import ProgramChannel
from ciel.worker.interactive.outgoing import Outbox, OutgoingFrames
from ciel.worker.interactive.printed import Printed
from ciel.worker.state.orders import Key
from ciel.worker.state.pool import IDLE_MAX_S

GRACE_S = 0.25
"""Between SIGTERM and SIGKILL."""
_PF_EXITING = 4  # a flag of Linux in /proc/PID/stat
_LAST_WORDS_S = 0.5  # between the end of a channel and the end of its program

log = Logger(__name__)  # compiled code cannot determine its own module

End = ProgramExited | ProgramFailed | Left


class Patience(NamedTuple):
    """Time limits of interactive programs.

    `first_call_s`: for a new program to read its first task. `attached_s`: for an attached process
    to do so; a person may open its pipes by hand. `leave_s`: for a program to end after its last
    task. `idle_s`: for an idle program to get another task.
    """

    first_call_s: float = 30.0
    attached_s: float = 600.0
    leave_s: float = 2.0
    idle_s: float = IDLE_MAX_S


USUAL_PATIENCE = Patience()


class ProcessOwner(Protocol):
    """Keeps the processes that serve no attempt at the moment."""

    def kept(self, process: Process, attempt: InteractiveAttempt, over: Over) -> None:
        """Give other tasks to the process, which has completed an attempt and waits."""

    def stop_using(self, process: Process) -> None:
        """Give the process no more tasks."""

    def gone(self, process: Process) -> None:
        """Forget the process, which has ended."""


class Process:
    """One program, the attempt that it serves, and how both have ended.

    The launcher reports its start (`started`) and its end (`ended`), and the channel its calls.
    """

    channel: ProgramChannel
    _outbox: Outbox

    def __init__(
        self,
        number: int,
        kind: str,
        scratch: Scratch,
        lifecycle: Lifecycle,
        owner: ProcessOwner,
        outgoing: OutgoingFrames,
        patience: Patience,
    ) -> None:
        self.number = number
        self.key: Key = (TaskId(""), number)  # as attempts have one
        self.kind = kind
        self.scratch = scratch
        self.argv: list[str] = []
        self.attached: AttachedProcess | None = None  # if it was not started here
        self.search_path: str | None = None
        self.cwd = ""  # its working directory, if that is not its scratch directory
        self.indices: frozenset[tuple[str, str]] = frozenset()  # of resources, of all its tasks
        self.launch_id = 0
        self.pid = 0
        self.stack: list[InteractiveAttempt] = []  # the attempt that it serves, and those within
        self.interrupted: Sequence[Key] = ()  # attempts of these that ended because it did
        self.conversation: Conversation | None = None
        self.held_objects: frozenset[str] = frozenset()  # that it has in memory from earlier tasks
        self.is_cancelled = False  # it was sent a signal, for its current task
        self.fault: TaskFault | None = None  # of its current task, once that has failed
        self.end: End | None = None
        self._place = lifecycle.place
        self._lifecycle = lifecycle
        self._owner = owner
        self._outgoing = outgoing
        self._patience = patience
        self._subject = ""  # the name of the failed part for people, if not its command
        self._has_called = False  # for its current task
        self._is_warm = False  # it has served a task before
        self._verdict: TaskFault | None = None  # how a completed task has failed, if it has, ...
        self._published: tuple[Reference, ...] = ()  # ...and its outputs
        self._run_s = 0.0
        self._channel_end = ""  # how its channel ended
        self._due: DelayedCall | None = None
        self._printed = (
            Printed(scratch, scratch.stdout_path, is_stderr=False),
            Printed(scratch, scratch.stderr_path, is_stderr=True),
        )

    @property
    def attempt(self) -> InteractiveAttempt | None:
        """The attempt that its calls are about now."""
        return self.stack[-1] if self.stack else None

    @property
    def name(self) -> str:
        """The name of the program in messages."""
        if self.attached is not None:
            return self.attached.name
        return command_text(self.argv[: -len(self.channel.arguments)])

    @property
    def exit_status(self) -> int | None:
        event = self.end
        return os.waitstatus_to_exitcode(event.status) if isinstance(event, ProgramExited) else None

    # --- starting ---------------------------------------------------------------------------------

    def connect(self, channel: ProgramChannel) -> None:
        """Converse with the program by a channel."""
        self.channel = channel
        self._outbox = Outbox(channel, self._outgoing)

    def expect_first_call(self) -> None:
        """Give the program some time to read its first task."""
        patience = self._patience
        limit_s = patience.first_call_s if self.attached is None else patience.attached_s
        self._due_in(limit_s, lambda: self._check_first_call(limit_s))

    def _check_first_call(self, limit_s: float) -> None:
        self._due = None
        if not self.channel.has_spoken and not self.channel.has_listened:
            text = f"it did not read its first task within {limit_s:g} s"
            self._fail(TaskFault("RUNTIME_ERROR", text))

    def started(self, pid: int) -> None:
        """Note the process id; the launcher has started the program."""
        self.pid = pid
        self._limit_memory()

    def _limit_memory(self) -> None:
        """Watch the memory of the program, if it runs and its task has a limit."""
        attempt = self.attempt
        limit_bytes = 0 if attempt is None else attempt.task.spec.needs.memory_bytes
        if attempt is not None and limit_bytes and self.pid:
            self._lifecycle.memory.add(attempt.key, self.pid, limit_bytes)

    # --- conversing -------------------------------------------------------------------------------

    def serve(self, attempt: InteractiveAttempt, talk: Talk) -> None:
        """Start an attempt."""
        self.stack = [attempt]
        self._outbox.is_urgent = True
        self.is_cancelled = self._has_called = False
        attempt.owner = self
        attempt.scratch, attempt.at_hand = self.scratch, self.held_objects
        attempt.attached = None if self.attached is None else self.attached.id
        self._lifecycle.started(attempt)
        try:
            executor = cast(ConversingExecutor, attempt.executor)
            conversation = self.conversation = executor.converse(attempt, self._outbox.say)
            self._subject = conversation.subject
            if talk.encoded is None:
                frame = encode_call("start_task", talk.arguments)
            else:
                frame = frame_call("start_task", talk.encoded)
            self._outbox.send(frame)
        except EncodeError as error:
            self._fail(arguments_fault(attempt.executor.name, error))
        except Exception as error:  # third-party executors may raise anything
            self._fail(executor_fault(attempt.executor, error))
        self._limit_memory()
        if self.attached is not None and self.fault is None:
            self.expect_first_call()

    def calls_came(self, channel: ProgramChannel, calls: list[Call]) -> None:
        """As `ChannelOwner` says."""
        attempt, conversation = self.attempt, self.conversation
        if attempt is not None and conversation is not None:
            self._has_called = True
            self.go_on(attempt, partial(conversation.called, calls))
        elif attempt is None:
            log.warn("{command} made a call without a task; the worker ends it", command=self.name)
            self._channel_end = "it made a call before it got a task"
            self.terminate()

    def go_on(self, attempt: InteractiveAttempt, step: Callable[[], None]) -> None:
        """As `AttemptOwner` says; then check whether the task has come to its end."""
        if self.attempt is not attempt or self.fault is not None:
            return
        try:
            step()
        except StorageError as error:
            self._fail(self._storing_fault(error))
        except (CielError, WireError) as error:
            self._fail(TaskFault("RUNTIME_ERROR", str(error)))
        except OSError as error:
            self._fail(serving_fault(self._place.worker, error))
        except Exception as error:  # third-party executors may raise anything
            log.failure("a call could not be answered")
            self._fail(executor_fault(attempt.executor, error))
        else:
            self._check_end(self.attempt or attempt)

    def entered(self, outer: InteractiveAttempt, inner: InteractiveAttempt) -> None:
        """As `AttemptOwner` says."""
        self._lifecycle.started(inner)
        self.stack.append(inner)

    def left(self, inner: InteractiveAttempt, fault: tuple[str, str] | None) -> None:
        """As `AttemptOwner` says."""
        self._lifecycle.forget(inner.key)
        self.stack.pop()
        inner.close()
        published = tuple(inner.outputs.published.values()) if fault is None else ()
        run_s = self._place.reactor.seconds() - inner.started_s
        ended = None if fault is None else TaskFault(*fault)
        self._place.owner.inline_child_ended(inner.key, published, ended, run_s)

    def _storing_fault(self, error: StorageError) -> TaskFault:
        place = self._place
        return storing_fault(place.worker, self.argv, error, place.store_device)

    def _check_end(self, attempt: InteractiveAttempt) -> None:
        """Check whether the task has come to its end."""
        if attempt.lost is not None:
            self._fail(TaskFault("MISSING_INPUT", attempt.lost[1]))
            return
        over = None if self.conversation is None else self.conversation.over
        if over is None:
            return
        if (fault := fault_at_end(attempt, over, self._place.worker)) is not None:
            self._fail(fault)
        else:
            self._finish(attempt, over)

    def _finish(self, attempt: InteractiveAttempt, over: Over) -> None:
        """Complete a task whose program works, even if the task has failed."""
        fault = None if over.fault is None else TaskFault(*over.fault)
        try:
            if fault is None:
                attempt.close_outputs()
            else:
                attempt.roll_back_outputs()
        except StorageError as error:
            self._fail(self._storing_fault(error))
            return
        if fault is not None and attempt.outputs.may_have_lacked_space:
            fault = lacking_fault(self._place.worker, fault, self._place.store_device)
        self._verdict, published = fault, attempt.outputs.published.values()
        self._published = tuple(published) if fault is None else ()
        self._run_s = self._place.reactor.seconds() - attempt.started_s
        is_kept = over.keep == "must_keep" or (over.keep == "may_keep" and self.attached is None)
        if not is_kept or self.is_cancelled:
            self._leave()
            if self.end is not None:
                self._settle()
            return
        self._release(attempt)
        self._is_warm = True
        self._owner.kept(self, attempt, over)
        self._report(attempt)

    def _report(self, attempt: InteractiveAttempt) -> None:
        """Report an attempt whose program has completed it."""
        fault = self._verdict
        if fault is None or not self._run_again_on_disk(attempt, fault):
            if self.end is not None:
                self._lifecycle.remove(self.scratch)
            self._lifecycle.report(attempt.key, self._published, fault, self._run_s)

    def _run_again_on_disk(self, attempt: InteractiveAttempt, fault: TaskFault) -> bool:
        if fault.reason != "NO_SPACE":
            return False
        return self._lifecycle.run_again_on_disk(attempt, self.name)

    def _release(self, attempt: InteractiveAttempt) -> None:
        """Close everything that an ended attempt has open, and log what its program has printed."""
        self._lifecycle.memory.remove(attempt.key)
        attempt.close()
        self._lifecycle.forget(attempt.key)
        self.stack, self.conversation = [], None
        self._outbox.is_urgent = False
        for printed in self._printed:
            printed.log_rest(attempt)

    def log_lines(self) -> None:
        """Log the whole lines that the program has printed meanwhile."""
        if self.attempt is not None:
            for printed in self._printed:
                printed.log(self.attempt, to_the_end=False)

    # --- its end ----------------------------------------------------------------------------------

    def channel_broke(self, channel: ProgramChannel, why: str) -> None:
        """As `ChannelOwner` says."""
        self._channel_end = why
        self._owner.stop_using(self)
        is_serving = self.attempt is not None and self.fault is None
        if is_serving and channel.is_misused:
            self._fail(TaskFault("RUNTIME_ERROR", why))
        elif self.end is not None:
            self._settle()
        elif not is_serving:
            self.terminate()
        else:  # wait for the end of the program, which explains more
            text = f"{why}, before it called 'exit'"
            lost = TaskFault("RUNTIME_ERROR", text)
            self._await_end(lost)

    def _await_end(self, lost: TaskFault) -> None:
        """Fail the attempt if the program lives on; its end may be reported late on a busy host."""

        def check() -> None:
            if self.attached is None and is_ending(self.pid):
                self._await_end(lost)
            else:
                self._fail(lost)

        self._due_in(_LAST_WORDS_S, check)

    def ended(self, event: End) -> None:
        """Process the end of the program, once its last calls have come."""
        self._owner.stop_using(self)
        if self._channel_end or not self.channel.will_break:
            self.end = event
            self._settle()
        else:  # wait for the calls, but not for another process that keeps the channel open
            self._due_in(self._patience.leave_s, self._settle)
            self.end = event

    def _settle(self) -> None:
        """Settle the attempt that the program served; the program has ended."""
        attempt = self.attempt
        self.close()
        if attempt is not None:
            self._interrupt_outer()
            self._lifecycle.program_ended(attempt, self.end)
            return
        self._lifecycle.remove(self.scratch)
        if self.attached is not None:
            text = self._left_text(self._place.worker)
            self._place.owner.attached_process_left(self.attached, text)

    def _interrupt_outer(self) -> None:
        """End the outer attempts, which the program would have continued after the innermost one.

        The end of the program is the fault of the innermost attempt, unless the program was killed.
        The outer attempts run again, with their children elsewhere.
        """
        if self.is_cancelled and len(self.stack) > 1:
            self.fault = self.fault or INTERRUPTED
            self.stack[-1].roll_back_outputs()
        outer = self.stack[-2::-1]
        del self.stack[:-1]
        for attempt in outer:
            attempt.roll_back_outputs()
            attempt.close()
            self._lifecycle.forget(attempt.key)
        self.interrupted = [attempt.key for attempt in outer]

    def settle(self, attempt: InteractiveAttempt) -> None:
        """As `RunningAttempt` says."""
        over = None if self.conversation is None else self.conversation.over
        if over is not None and self.fault is None:
            self._release(attempt)
            self._report(attempt)
            return
        if self._was_gone:
            self._release(attempt)
            log.info("{program} ended before it read its task; another starts", program=self.name)
            self._lifecycle.run_again(attempt)
            return
        fault = self.fault
        if fault is None:
            attempt.roll_back_outputs()
            fault = self._end_fault(self._place.worker)
            if self.conversation is not None:
                how, was_ended = self._how_it_ended, self.is_cancelled
                fault = self.conversation.died(fault, how, was_ended=was_ended)
        tail = self._tail()
        self._release(attempt)
        if attempt.lost is not None:
            self._lifecycle.lose_inputs(attempt, *attempt.lost)
        else:
            self._fail_attempt(attempt, fault, tail)

    @property
    def _was_gone(self) -> bool:
        """Whether a warm program had ended before it read its task."""
        has_missed = not self._has_called and (self._outbox.is_unsent or self.channel.left_unread)
        return self._is_warm and has_missed and self.fault is None and not self.is_cancelled

    def _fail_attempt(self, attempt: InteractiveAttempt, fault: TaskFault, tail: str) -> None:
        worker = self._place.worker
        run_s = self._place.reactor.seconds() - attempt.started_s
        if attempt.outputs.may_have_lacked_space:
            fault = lacking_fault(worker, fault, self._place.store_device)
        if self._run_again_on_disk(attempt, fault):
            return
        has_run = not isinstance(self.end, ProgramFailed)
        if has_run:
            lines = [f"{self._subject or f'{self.name} on worker {worker}'}: {fault.text}"]
            if tail:
                lines += ["the end of its output:", *[f"  {line}" for line in tail.splitlines()]]
            fault = TaskFault(fault.reason, with_text(fault.details, "\n".join(lines)))
        keeps_files = has_run and self.attached is None
        self._lifecycle.fail(attempt, fault, run_s, keeps_files=keeps_files)

    def clean_up(self, *, files_kept: bool) -> None:
        """As `RunningAttempt` says; a program that runs keeps its private files."""
        if self.end is not None and not files_kept:
            self._lifecycle.remove(self.scratch)

    # --- ending it --------------------------------------------------------------------------------

    def kill(self, *, force: bool) -> None:
        """As `RunningAttempt` says."""
        self.is_cancelled = True
        self._send(signal.SIGKILL if force else signal.SIGTERM)

    def stop(self, fault: TaskFault) -> None:
        """As `RunningAttempt` says."""
        self._send(signal.SIGKILL)
        self._fail(fault)

    def dismiss(self, reason: str) -> None:
        """End the program while it is idle."""
        self._outbox.say("die", {"reason": reason})
        self._leave()

    def _send(self, number: int) -> None:
        """Send the program a signal. An attached process gets none: it is detached instead."""
        if self.attached is None:
            self._place.launching.kill(self.launch_id, number)
        else:
            self.channel.close()
            self.attached.cut_off()

    def _fail(self, fault: TaskFault) -> None:
        """Fail the task that the program serves, and end the program."""
        if self.fault is not None or not self.stack:
            return
        self.fault = fault
        for attempt in self.stack:
            attempt.roll_back_outputs()
        if self.end is not None:
            self._settle()
        else:
            self.terminate()

    def terminate(self) -> None:
        """End the program by signals, whatever it does."""
        self._owner.stop_using(self)
        self._send(signal.SIGTERM)
        self._due_in(GRACE_S, lambda: self._send(signal.SIGKILL))

    def _leave(self) -> None:
        """Let a program that has done its work end by itself."""
        self._channel_end = self._channel_end or "closed"
        self._outbox.flush()
        self.channel.close()
        # An attached process runs on, so its end is not awaited.
        leave_s = self._patience.leave_s if self.attached is None else 0.0
        self._due_in(leave_s, self.terminate)

    def _due_in(self, delay_s: float, call: Callable[[], None]) -> None:
        if self._due is not None and self._due.active():
            self._due.cancel()
        self._due = self._place.reactor.callLater(delay_s, call) if self.end is None else None

    def close(self) -> None:
        """Close everything that is open, and forget the process."""
        self._owner.gone(self)
        self._lifecycle.growth.remove(self.key)
        self.channel.close()
        for printed in self._printed:
            printed.close()
        if self.attached is not None:
            self.attached.close()
        if self._due is not None and self._due.active():
            self._due.cancel()

    # --- texts ------------------------------------------------------------------------------------

    def _tail(self) -> str:
        """Return the end of its standard error for the task; if empty, of its standard output."""
        stdout, stderr = self._printed
        return stderr.tail() or stdout.tail()

    def _end_fault(self, worker: str) -> TaskFault:
        """Return the fault of the task during which the program ended."""
        event = self.end
        if isinstance(event, ProgramFailed):
            cwd = self.cwd or self.scratch.path
            return start_fault(worker, self.argv, event, cwd, self.search_path)
        assert event is not None
        said = "before it called 'exit'"
        if "in the middle" in self._channel_end:
            said = f"in the middle of a call: {self._channel_end.partition(': ')[2]}"
        why = "" if self.is_cancelled else whose_signal(_signal_of(event))
        return TaskFault("RUNTIME_ERROR", f"it {self._how_it_ended} {said}" + (why and f"; {why}"))

    @property
    def _how_it_ended(self) -> str:
        """How its process has ended, in words; empty if it was never started."""
        event = self.end
        if event is None or isinstance(event, ProgramFailed):
            return ""
        if isinstance(event, Left):
            return event.how
        return ProgramExit(event.exit_status, _signal_of(event), event.wall_s, "").describe()

    def _left_text(self, worker: str) -> str:
        """Return a text for an attached process that has left while it waited for a task."""
        how = f"it {self._how_it_ended}"
        if self.end != ENDED and self._channel_end:
            how = self._channel_end
        return f"{self.name} on worker {worker}: {how}, before it called 'exit'"


def _signal_of(event: ProgramExited | Left) -> int | None:
    if isinstance(event, Left) or event.exit_status is not None:
        return None
    return os.WTERMSIG(event.status)


def fault_at_end(attempt: InteractiveAttempt, over: Over, worker: str) -> TaskFault | None:
    """Return the fault if a conversation has ended in a wrong state, else None."""
    if over.fault is not None and over.keep != "may_keep":
        return TaskFault(*over.fault)
    if (error := attempt.input_error) is not None:
        return serving_fault(worker, error)
    if attempt.fixed is not None and over.keep != "must_keep":
        text = (
            "it announced that it would continue in this process, and then called 'exit' without "
            "'must_keep'"
        )
        return TaskFault("RUNTIME_ERROR", text)
    if attempt.has_delegated and attempt.outputs.writers:
        numbers = ", ".join(map(str, attempt.outputs.writers))
        text = f"it delegated its outputs to another task with output {numbers} still open"
        return TaskFault("RUNTIME_ERROR", text)
    return None


def is_ending(pid: int) -> bool:
    """Whether a process of the launcher has ended, or is ending: the launcher reports that soon.

    `pid`: 0 if the launcher has not reported its start yet.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in (b"Z", b"X") or bool(int(fields[5]) & _PF_EXITING)
