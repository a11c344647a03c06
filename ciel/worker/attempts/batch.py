"""Runs batch programs, whose exit decides the outcome of their task."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from twisted.logger import Logger

from ciel.core.events import TaskFault
from ciel.core.ids import ObjectId
from ciel.core.offers.resources import Given
from ciel.core.refs import INLINE_MAX_BYTES, Reference, Stream, Value
from ciel.execution.executor import Action, Executor, Fail, Finish, Program, ProgramExit, Run, Task
from ciel.execution.outputs import commit_output
from ciel.execution.report import command_text, failure_text, full_device_text, with_stderr
from ciel.launch import LaunchSpecError
from ciel.launch.messages import ProgramExited, ProgramFailed
from ciel.net.ticks import DelayedCall
from ciel.storage.errors import (
    ObjectConflictError,
    ObjectNotFoundError,
    StorageError,
)
from ciel.storage.interface import ObjectWriter
from ciel.worker.attempts.failed_output import ending
from ciel.worker.attempts.faults import (
    changed_fault,
    executor_fault,
    preparation_fault,
    start_fault,
    storing_fault,
    whose_signal,
)
from ciel.worker.attempts.lifecycle import Lifecycle
from ciel.worker.attempts.notices import Notices
from ciel.worker.attempts.program_files import ProgramFiles
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.limits.growth import GrowingFiles
from ciel.worker.limits.sandboxes import isolation_fault
from ciel.worker.state.orders import CANCELLED, Key, StartAttempt
from ciel.worker.streams.growing import Growing

log = Logger(__name__)  # compiled code cannot determine its own module


class BatchPrograms:
    """The strategy for batch programs, and for tasks that need no program at all."""

    def __init__(self, lifecycle: Lifecycle, idle_count: Callable[[], int]) -> None:
        """`idle_count`: returns how many of the launcher's programs are idle, and take no slot."""
        self.lifecycle = lifecycle
        self.place = lifecycle.place
        self.notices = Notices(self.place)
        self.is_bounded = self.place.store.capabilities.bounded
        self._idle_count = idle_count

    def start(
        self,
        order: StartAttempt,
        task: Task,
        executor: Executor,
        action: Action,
        level: str = "",
    ) -> None:
        """As `Strategy` says; `action` is `Run` or `Finish`."""
        if isinstance(action, Finish):
            BatchAttempt(order, task, executor, self, None).publish(action, 0.0)
            return
        assert isinstance(action, Run)
        program = replace(action.program, store=level) if level else action.program
        attempt = BatchAttempt(order, task, executor, self, program)
        self.lifecycle.started(attempt)
        if program.delay_s and not level:  # else the attempt has waited before
            attempt.start_later(program.delay_s)
        else:
            attempt.start()

    def launched_max(self, at_most: int) -> int:
        """Return the number of the launcher's programs below which a program may start; 0: any.

        `at_most`: this number for programs that take a slot. Programs without a slot are added.
        """
        if not at_most:
            return 0
        others = self._idle_count() + self.place.launching.parent_count
        return max(1, at_most + others)

    def make_way(self, given: Given) -> None:
        """As `Strategy` says: no batch program is idle."""

    def close(self) -> None:
        """Nothing is open but the files of attempts."""


class BatchAttempt:
    """An attempt whose program, if there is one, runs to its end."""

    def __init__(
        self,
        order: StartAttempt,
        task: Task,
        executor: Executor,
        strategy: BatchPrograms,
        program: Program | None,
    ) -> None:
        self.key: Key = (order.spec.id, order.attempt)
        self.order = order
        self.task = task
        self.executor = executor
        self.strategy = strategy
        self.exit_status: int | None = None
        self.interrupted: Sequence[Key] = ()
        self._lifecycle = strategy.lifecycle
        self._place = strategy.place
        self._program = program
        self._files: ProgramFiles | None = None  # once its program is about to start
        self._streams: dict[int, Growing] = {}  # outputs that other tasks read meanwhile
        self._due: DelayedCall | None = None
        self._launch_id: int | None = None
        self._logged_bytes = 0  # how much of its standard error is in the log of the job
        self._fault: TaskFault | None = None  # why this worker has killed its program
        self._is_cancelled = False
        self._stderr_tail = ""  # once its program has ended

    # --- starting ---------------------------------------------------------------------------------

    def start_later(self, delay_s: float) -> None:
        self._due = self._place.reactor.callLater(delay_s, self.start)

    def start(self) -> None:
        """Start the program; if it requires complete inputs, wait until they are complete."""
        assert self._program is not None
        self._start_after(self._unfinished_inputs() if self._program.whole else [])

    def _unfinished_inputs(self) -> list[Growing]:
        streams = self._place.streams
        refs = [ref for ref in self.task.inputs.values() if isinstance(ref, Stream)]
        return [growing for ref in refs if (growing := streams.get(ref.id)) is not None]

    def _start_after(self, growing: list[Growing]) -> None:
        """Start the program once all these inputs are complete.

        If one breaks, the state machine cancels the attempt like every reader; no program runs
        then.
        """
        if not growing:
            self._launch()
            return

        def ended(first: Growing) -> None:
            if not self._lifecycle.is_running(self):
                return
            if first.broken or self._fault is not None:
                losses = ((ObjectId(first.object_id), self._place.netloc),)
                self._lifecycle.lose_inputs(self, losses, first.broken or CANCELLED.text)
            else:
                self._start_after(growing[1:])

        self._place.streams.when(growing[0], float("inf"), ended)

    def _launch(self) -> None:
        place, lifecycle, program = self._place, self._lifecycle, self._program
        assert program is not None
        try:
            at_most = self.strategy.launched_max(self.order.at_most)
            files = self._files = ProgramFiles(place, self.task, program)
            spec = files.launch_spec(at_most)
            is_limited = bool(self.task.spec.needs.memory_bytes)
            started = self._limit_memory if is_limited else None
            self._launch_id = place.launching.start(spec, self._program_ended, started)
            if files.feeder is not None:
                files.feeder.start()
            outputs = files.writers if self.strategy.is_bounded else {}
            growing = GrowingFiles((files.scratch.stderr_path,), outputs, self._log_stderr)
            lifecycle.growth.add(self.key, growing)
            if program.streams:
                self._open_streams(files)
        except ObjectNotFoundError as error:
            losses = ((ObjectId(error.object_id), place.netloc),)
            lifecycle.lose_inputs(self, losses, f"on worker {place.worker}: {error}")
        except (StorageError, LaunchSpecError, OSError) as error:
            fault = preparation_fault(place.worker, error, place.device)
            if self._launch_id is None:
                lifecycle.fail(self, fault, 0.0, keeps_files=False)
            else:  # the program is reported as failed when it has ended
                self._fault = fault
                place.launching.kill(self._launch_id, signal.SIGKILL)

    def _limit_memory(self, pid: int) -> None:
        self._lifecycle.memory.add(self.key, pid, self.task.spec.needs.memory_bytes)

    def _open_streams(self, files: ProgramFiles) -> None:
        for number, writer in files.writers.items():
            growing = self._place.streams.open(writer.object_id, writer.fileno())
            self._streams[number] = growing
        opened = tuple([ObjectId(growing.object_id) for growing in self._streams.values()])
        self._place.owner.streams_opened(self.key, opened)

    # --- running ----------------------------------------------------------------------------------

    @property
    def argv(self) -> Sequence[str]:
        return () if self._files is None else self._files.argv

    @property
    def level(self) -> str:
        return "" if self._files is None else self._files.level

    @property
    def scratch(self) -> Scratch | None:
        return None if self._files is None else self._files.scratch

    @property
    def partial_output(self) -> str | None:
        return None if self._files is None else self._files.partial_output

    @property
    def is_repeatable(self) -> bool:
        return not self._is_cancelled and self._program is not None and not self._program.streams

    def kill(self, *, force: bool) -> None:
        """As `RunningAttempt` says."""
        if self._launch_id is not None:
            self._is_cancelled = True
            number = signal.SIGKILL if force else signal.SIGTERM
            self._place.launching.kill(self._launch_id, number)
        elif self._files is None:  # it waits for an input, or for its delay
            self._lifecycle.fail(self, CANCELLED, 0.0, keeps_files=False)

    def recall(self) -> None:
        if self._launch_id is not None:
            self._place.launching.recall(self._launch_id)

    def stop(self, fault: TaskFault) -> None:
        assert self._launch_id is not None  # only a program that runs exceeds its limits
        self._fault = fault
        self._place.launching.kill(self._launch_id, signal.SIGKILL)

    def _log_stderr(self, *, to_the_end: bool = False) -> None:
        """Append what the program has written to standard error meanwhile to the log of its job."""
        if self._files is not None:
            log_text = partial(self._place.log, self.task.spec, self.key[1], is_stderr=True)
            self._logged_bytes = self._files.scratch.log_lines(
                self._logged_bytes, log_text, to_the_end=to_the_end
            )

    # --- settling ---------------------------------------------------------------------------------

    def _program_ended(self, event: ProgramExited | ProgramFailed) -> None:
        self._lifecycle.program_ended(self, event)

    def settle(self, event: ProgramExited | ProgramFailed) -> None:
        """As `RunningAttempt` says."""
        self._lifecycle.growth.remove(self.key)
        self._lifecycle.memory.remove(self.key)
        files = self._files
        if files is None:  # it has failed already, as its streams could not be opened
            return
        changed = files.delete_changed_inputs()
        files.close_inputs()
        if changed:
            self._fault = changed_fault(changed)
        if isinstance(event, ProgramFailed):
            why = start_fault(self._place.worker, files.argv, event, files.cwd, files.search_path)
            self._fail(changed_fault(changed) if changed else why, 0.0, keeps_files=False)
            return
        run_s = event.wall_s
        self.exit_status = os.waitstatus_to_exitcode(event.status)
        tail = files.scratch.stderr_tail() if files.scratch.stderr_size() else ""
        self._stderr_tail = tail
        if tail:
            self._log_stderr(to_the_end=True)
        fault = self._fault
        if fault is not None and fault.reason == "NO_SPACE":
            self._fail_for_space(fault, run_s)
            return
        if fault is None and (problem := files.input_problem):
            self._fail(TaskFault("WORKER_FAULT", problem), run_s, keeps_files=False)
            return
        if files.trace is not None:
            line = f"trace_io: {files.trace.text}"
            self._place.log(self.task.spec, self.key[1], line, is_stderr=True)
        if files.sandbox is not None and fault is None and tail:
            why_not = isolation_fault(self._place.worker, files.argv, event.exit_status, tail)
            if why_not is not None:
                self._fail(why_not, run_s, keeps_files=False)
                return
        signal_number = None if event.exit_status is not None else os.WTERMSIG(event.status)
        self._judge(ProgramExit(event.exit_status, signal_number, run_s, tail), files)

    def _judge(self, program_exit: ProgramExit, files: ProgramFiles) -> None:
        """Decide the outcome of the task by the exit of its program."""
        worker, run_s, tail = self._place.worker, program_exit.run_s, program_exit.stderr_tail
        fault = self._fault
        if fault is not None:
            text = failure_text(program_exit.describe(), worker, files.argv, tail, fault.details)
            details = {"text": text, **ending(program_exit)}
            self._fail(TaskFault(fault.reason, details), run_s, keeps_files=True)
            return
        try:
            action = self.executor.ended(self.task, program_exit)
        except Exception as error:  # third-party executors may raise anything
            self._fail(executor_fault(self.executor, error), run_s, keeps_files=True)
            return
        if isinstance(action, Finish):
            self.publish(action, run_s)
        elif isinstance(action, Fail):
            place = self._place
            if not self._is_cancelled and (files.may_lack_output or place.lacks_room):
                what = failure_text(action.details, worker, files.argv, "")
                text = f"{what}, and {place.device} of its work directory is full"
                if files.may_lack_output:
                    device, written_bytes = place.store_device, files.written_bytes
                    text = f"{what}; {full_device_text(worker, (), device, written_bytes)}"
                self._fail_for_space(TaskFault("NO_SPACE", text), run_s, program_exit)
                return
            why = "" if self._is_cancelled else whose_signal(program_exit.signal_number)
            text = failure_text(action.details, worker, files.argv, tail, why)
            details = {"text": text, **ending(program_exit)}
            self._fail(TaskFault(action.reason, details), run_s, keeps_files=True)

    def publish(self, finish: Finish, run_s: float) -> None:
        """Commit the outputs, and report success."""
        files = self._files
        writers: dict[int, ObjectWriter] = {} if files is None else files.writers
        published: list[Reference] = []
        try:
            for number in list(writers):
                published.append(self._commit(number, writers[number]))
                del writers[number]
            for number, content in finish.contents.items():
                published.append(self._put(number, content))
        except StorageError as error:
            place = self._place
            fault = storing_fault(place.worker, self.argv, error, place.store_device)
            if fault.reason == "NO_SPACE":
                self._fail_for_space(fault, run_s)
            else:
                self._fail(fault, run_s, keeps_files=False)
            return
        for child in finish.children:
            self._place.owner.attempt_spawned(self.key, child)
        if files is not None:
            self.strategy.notices.files_deleted(self.task, files)
            self._lifecycle.forget(self.key)
            self._lifecycle.remove(files.scratch)
        self._lifecycle.report(self.key, tuple(published), None, run_s, self.exit_status)

    def _commit(self, number: int, writer: ObjectWriter) -> Reference:
        conflicts: list[ObjectConflictError] = []

        def commit() -> Reference:
            place = self._place
            return commit_output(place.store, writer, place.here, conflicts.append, is_alone=True)

        growing = self._streams.get(number)
        if growing is None:
            ref = commit()
        else:
            ref, why = self._place.streams.seal(growing, writer.path or "", commit, conflicts)
            del self._streams[number]
            if why:
                self._place.owner.stream_broken(ObjectId(growing.object_id), why)
        for error in conflicts:  # the object that was committed first stays, but users should know
            log.warn("a task is not deterministic: {error}", error=error)
        return ref

    def _put(self, number: int, content: bytes) -> Reference:
        object_id = self.task.spec.outputs[number]
        if len(content) <= INLINE_MAX_BYTES:
            return Value.of(object_id, content)
        with self._place.store.begin(object_id, size_hint_bytes=len(content)) as writer:
            writer.write(content)
            return self._commit(number, writer)

    def _fail(self, fault: TaskFault, run_s: float, *, keeps_files: bool) -> None:
        for growing in self._streams.values():
            why = f"{growing.object_id}: its producer has failed"
            self._place.streams.break_off(growing, why)
        self._lifecycle.fail(self, fault, run_s, keeps_files=keeps_files)

    def _fail_for_space(
        self, fault: TaskFault, run_s: float, program_exit: ProgramExit | None = None
    ) -> None:
        """Run the attempt again on disk, or fail it; there is no space for its files, either."""
        if self._lifecycle.run_again_on_disk(self, command_text(self.argv)):
            return
        text = with_stderr(fault.text, self._stderr_tail)
        details = text if program_exit is None else {"text": text, **ending(program_exit)}
        self._fail(TaskFault("NO_SPACE", details), run_s, keeps_files=False)

    # --- cleaning up ------------------------------------------------------------------------------

    def clean_up(self, *, files_kept: bool = False) -> None:
        """As `RunningAttempt` says."""
        self.abandon()
        files, self._files = self._files, None
        if files is not None and not files_kept:
            self._lifecycle.remove(files.scratch)

    def abandon(self) -> None:
        """As `RunningAttempt` says."""
        if self._due is not None and self._due.active():
            self._due.cancel()
        files = self._files
        if files is None:
            return
        if files.feeder is not None and self._launch_id is None:
            os.close(files.feeder.descriptor)
        files.close_inputs()
        files.abort_outputs()
