"""Attempts on this worker: from the order to start one to its outcome, with every file and process
it needs.

Acts on what executors say; decides nothing about slots, time or retries. Each attempt that was
started is told to the owner exactly once, when nothing of it runs any more and its outputs are
committed or gone. Here are those whose program runs from its start to its end; `talking` has those
that talk meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.core.errors import CielError
from ciel.core.events import TaskFault
from ciel.core.ids import ObjectId
from ciel.core.refs import INLINE_MAX_BYTES, Reference, Stream, Value
from ciel.execution.environment import Callers
from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    Executor,
    Fail,
    Finish,
    Program,
    ProgramExit,
    Run,
    Talk,
    Task,
)
from ciel.execution.kept import KeptAttempts
from ciel.execution.outputs import commit_output
from ciel.execution.report import command_text, failure_text
from ciel.launch import LaunchSpecError
from ciel.launch.messages import (
    ProgramExited,
    ProgramFailed,
)
from ciel.net.channels import Channels
from ciel.net.turns import Turns
from ciel.storage.errors import (
    NoSpaceError,
    ObjectConflictError,
    ObjectNotFoundError,
    ShortOutputError,
    StorageError,
)
from ciel.storage.interface import DISK, MEMORY, ObjectStore
from ciel.wire.descriptors import read_arguments
from ciel.wire.errors import WireError
from ciel.worker.attempts.batch_attempt import Hosted
from ciel.worker.attempts.failed_output import details_with, ending, printed
from ciel.worker.attempts.faults import (
    arguments_fault,
    changed_fault,
    executor_fault,
    memory_fault,
    preparation_fault,
    start_fault,
    storing_fault,
    whose_signal,
)
from ciel.worker.attempts.kept_files import keep_files
from ciel.worker.attempts.launching import Launching
from ciel.worker.attempts.notices import Notices
from ciel.worker.attempts.program_files import Preparation
from ciel.worker.attempts.scratch import ScratchPool
from ciel.worker.attempts.workplace import AttemptsOwner, Workplace
from ciel.worker.interactive.attached import Guest
from ciel.worker.interactive.channel import ProgramChannel
from ciel.worker.interactive.process import USUAL_PATIENCE, Patience
from ciel.worker.interactive.programs import Talking
from ciel.worker.limits.growth import Growing as GrowingFiles
from ciel.worker.limits.growth import GrowthWatch
from ciel.worker.limits.memory import MemoryWatch
from ciel.worker.logs import JobLogs
from ciel.worker.state.orders import Key, StartAttempt
from ciel.worker.streams.growing import Growing, Streams

log = Logger(__name__)  # compiled, it cannot be found out

_AT_ONCE_MAX_BYTES = 64 << 10
"""Of arguments that are read on the reactor's thread; some 10 ms."""


class Hosting:
    """All attempts that run on this worker."""

    def __init__(
        self,
        *,
        reactor: Any,
        turns: Turns,
        owner: AttemptsOwner,
        launching: Launching,
        store: ObjectStore,
        streams: Streams,
        executors: Mapping[str, Executor],
        worker: str,
        netloc: str,
        spool: Path,
        kept: Path,
        logs: JobLogs,
        patience: Patience = USUAL_PATIENCE,
        channels: Channels | None = None,
    ) -> None:
        place = self._place = Workplace(
            reactor=reactor, turns=turns, owner=owner, worker=worker, netloc=netloc,
            executors=executors, launching=launching, store=store, streams=streams,
            scratch=ScratchPool(spool), growth=GrowthWatch(reactor, self._outgrown),
            memory=MemoryWatch(reactor, self._exceeded), kept=KeptAttempts(kept), logs=logs,
            channels=channels,
        )  # fmt: skip
        self.callers = Callers(launching.environ)
        self._notices = Notices(place)
        self._owner = owner
        self._is_bounded = store.capabilities.bounded
        self._hosted: dict[Key, Hosted] = {}
        self._translating: set[Key] = set()  # in a thread
        self._talking = Talking(place, self._tell_fault, patience)

    # --- starting ---------------------------------------------------------------------------------

    def start(self, order: StartAttempt) -> None:
        """Start an attempt; whatever goes wrong is told as its fault."""
        key, place = (order.spec.id, order.attempt), self._place
        executor = place.executors.get(order.spec.executor)
        if executor is None:  # the master knows better, unless something is wrong with it
            text = f"worker {place.worker} has no executor {order.spec.executor!r}"
            self._owner.attempt_ended(key, (), TaskFault("WORKER_FAULT", text), 0.0)
            return
        if len(order.spec.payload) <= _AT_ONCE_MAX_BYTES:
            self._carry_out(order, executor, self._translate(order, executor))
            return
        self._translating.add(key)

        def translated(done: tuple[Task, Action] | TaskFault) -> None:
            if key in self._translating:  # else it was called off
                self._translating.remove(key)
                self._carry_out(order, executor, done)

        deferred = deferToThread(self._translate, order, executor)
        deferred.addCallback(translated)
        deferred.addErrback(lambda failure: log.failure("a task was not begun", failure))

    def _translate(
        self, order: StartAttempt, executor: Executor
    ) -> tuple[Task, Action] | TaskFault:
        """Ask the executor what to do; of what is large, in a thread."""
        try:
            arguments = read_arguments(order.spec.payload)
            inputs = {ref.id: ref for ref in order.inputs}
            executors, within = self._place.executors, order.may_run_children
            caller = self.callers.find(order.spec.job)
            task = Task(order.spec, arguments, inputs, executors, within, order.attempt, caller)
            return task, executor.begin(task)
        except (BadArgumentsError, CielError, WireError, TypeError, ValueError) as error:
            return arguments_fault(executor.name, error)
        except Exception as error:  # an executor may be anybody's
            return executor_fault(executor, error)

    def _carry_out(
        self, order: StartAttempt, executor: Executor, done: tuple[Task, Action] | TaskFault
    ) -> None:
        key, place = (order.spec.id, order.attempt), self._place
        if isinstance(done, TaskFault):
            self._owner.attempt_ended(key, (), done, 0.0)
            return
        task, action = done
        match action:
            case Run(program):
                hosted = self._hosted[key] = Hosted(order, task, executor)
                if program.delay_s:
                    hosted.due = place.reactor.callLater(
                        program.delay_s, self._begin, hosted, program
                    )
                else:
                    self._begin(hosted, program)
            case Talk():
                self._talking.begin(order, task, executor, action)
            case Finish():
                self._publish(Hosted(order, task, executor), action, 0.0)
            case Fail(reason, details):
                self._owner.attempt_ended(key, (), TaskFault(reason, details), 0.0)

    def _begin(self, hosted: Hosted, program: Program) -> None:
        growing = self._unfinished(hosted.task) if program.whole else []
        self._await_whole(hosted, program, growing)

    def _unfinished(self, task: Task) -> list[Growing]:
        streams = self._place.streams
        refs = [ref for ref in task.inputs.values() if isinstance(ref, Stream)]
        return [growing for ref in refs if (growing := streams.get(ref.id)) is not None]

    def _await_whole(self, hosted: Hosted, program: Program, growing: list[Growing]) -> None:
        """Run a program once all these inputs are whole. If one breaks, the attempt is called off
        as every reader is, and finds nothing started.
        """
        if not growing:
            self._run(hosted, program)
            return

        def ended(first: Growing) -> None:
            if self._hosted.get(hosted.key) is not hosted:
                return
            if first.broken or hosted.killed is not None:
                self._discard(hosted)
                losses = ((ObjectId(first.object_id), self._place.netloc),)
                self._owner.inputs_gone(hosted.key, losses, first.broken or "it was called off")
            else:
                self._await_whole(hosted, program, growing[1:])

        self._place.streams.when(growing[0], float("inf"), ended)

    def _run(self, hosted: Hosted, program: Program) -> None:
        place = self._place
        try:
            # Programs that wait for a task count for the launcher, and take no slot.
            others = self._talking.waiting_count + place.launching.parent_count
            at_most = hosted.at_most and max(1, hosted.at_most + others)
            spec = Preparation(place, hosted, program).spec(at_most)
            limit_bytes = hosted.task.spec.needs.memory_bytes
            hosted.launch_id = place.launching.start(
                spec,
                lambda event: self._program_ended(hosted, event),
                (lambda pid: place.memory.add(hosted.key, pid, limit_bytes))
                if limit_bytes
                else None,
            )
            if hosted.feeder is not None:
                hosted.feeder.start()
            if hosted.scratch is not None:
                outputs = hosted.writers if self._is_bounded else {}
                path = hosted.scratch.stderr_path
                place.growth.add(
                    hosted.key, GrowingFiles((path,), outputs, lambda: self._log_stderr(hosted))
                )
            if program.streams:
                self._open_streams(hosted)
        except ObjectNotFoundError as error:
            self._discard(hosted)
            losses = ((ObjectId(error.object_id), place.netloc),)
            self._owner.inputs_gone(hosted.key, losses, f"on worker {place.worker}: {error}")
        except (StorageError, LaunchSpecError, OSError) as error:
            self._discard(hosted)
            self._tell_fault(hosted.key, preparation_fault(place.worker, error), 0.0)

    def _open_streams(self, hosted: Hosted) -> None:
        for number, writer in hosted.writers.items():
            growing = self._place.streams.open(writer.object_id, writer.fileno())
            hosted.streams[number] = growing
        opened = tuple([ObjectId(growing.object_id) for growing in hosted.streams.values()])
        self._owner.streams_opened(hosted.key, opened)

    def _tell_fault(
        self, key: Key, fault: TaskFault, run_s: float, exit_status: int | None = None
    ) -> None:
        if fault.reason == "NO_SPACE":
            deferToThread(self._place.kept.make_room).addErrback(
                lambda failure: log.failure("kept files could not be removed", failure)
            )
        self._owner.attempt_ended(key, (), fault, run_s, exit_status)

    def _discard(self, hosted: Hosted) -> None:
        """Undo what was prepared for a program that was not started."""
        self._hosted.pop(hosted.key, None)
        if hosted.feeder is not None and hosted.launch_id is None:
            os.close(hosted.feeder.descriptor)
        hosted.close_inputs()
        for writer in hosted.writers.values():
            writer.abort()
        if hosted.scratch is not None:
            hosted.scratch.remove()

    # --- what was there before --------------------------------------------------------------------

    def attach(self, guest: Guest) -> None:
        """Have a process of this host wait for the root task of its job, under the name of a fixed
        object. Raises OSError.
        """
        self._talking.attach(guest)

    def guests(self) -> list[tuple[Guest, ProgramChannel]]:
        """List those that are attached."""
        return self._talking.guests()

    # --- ending -----------------------------------------------------------------------------------

    def kill(self, key: Key, *, force: bool) -> None:
        """Send an attempt's programs the polite signal, or the one that cannot be ignored."""
        hosted = self._hosted.get(key)
        if key in self._translating:
            self._translating.remove(key)
            self._call_off(key)
        elif hosted is None:
            self._talking.kill(key, force=force)
        elif hosted.launch_id is not None:
            hosted.is_called_off = True
            number = signal.SIGKILL if force else signal.SIGTERM
            self._place.launching.kill(hosted.launch_id, number)
        elif hosted.scratch is None:  # it waits for an input, or for its time
            self._discard(hosted)
            self._call_off(key)

    def _call_off(self, key: Key) -> None:
        self._owner.attempt_ended(key, (), TaskFault("CANCELLED", "it was called off"), 0.0)

    def recall(self, key: Key) -> None:
        """Give an attempt up if its program still waits for others to end."""
        hosted = self._hosted.get(key)
        if hosted is not None and hosted.launch_id is not None:
            self._place.launching.recall(hosted.launch_id)

    def end_processes(self, objects: Iterable[ObjectId]) -> None:
        """End the programs that wait in the middle of a task under these names."""
        self._talking.end_fixed(objects)

    def _outgrown(self, key: Key, error: NoSpaceError) -> None:
        """End an attempt that has written more than there is room for."""
        hosted = self._hosted.get(key)
        argv = [] if hosted is None else hosted.argv
        self._end_with(key, storing_fault(self._place.worker, argv, error))

    def _exceeded(self, key: Key, used_bytes: int) -> None:
        """End an attempt that has taken more memory than it may."""
        hosted = self._hosted.get(key)
        self._end_with(key, memory_fault(used_bytes, self._limit_bytes(key, hosted)))

    def _limit_bytes(self, key: Key, hosted: Hosted | None) -> int:
        spec = hosted.task.spec if hosted is not None else self._talking.spec_of(key)
        return 0 if spec is None else spec.needs.memory_bytes

    def _end_with(self, key: Key, fault: TaskFault) -> None:
        hosted = self._hosted.get(key)
        if hosted is None:
            self._talking.fail(key, fault)
        else:
            assert hosted.launch_id is not None  # it is its program that was looked at
            hosted.killed = fault
            self._place.launching.kill(hosted.launch_id, signal.SIGKILL)

    def _program_ended(self, hosted: Hosted, event: ProgramExited | ProgramFailed) -> None:
        try:
            self._settle(hosted, event)
        except Exception as error:  # of ours; it must cost neither its slot nor other attempts
            log.failure("the end of a program was not understood")
            text = f"a bug of ours on worker {self._place.worker}: {error!r}; its log has more"
            self._failed(hosted, TaskFault("WORKER_FAULT", text), 0.0)

    def _settle(self, hosted: Hosted, event: ProgramExited | ProgramFailed) -> None:
        run_s = event.wall_s if isinstance(event, ProgramExited) else 0.0
        worker = self._place.worker
        self._place.growth.remove(hosted.key)
        self._place.memory.remove(hosted.key)
        changed = hosted.drop_changed(self._place.store) if hosted.fingerprints else []
        hosted.close_inputs()
        assert hosted.scratch is not None
        if isinstance(event, ProgramFailed):
            path = hosted.cwd or hosted.scratch.path
            fault = start_fault(worker, hosted.argv, event, path, hosted.search_path)
            fault = changed_fault(changed) if changed else fault
            self._fail(hosted, fault, run_s, keep=False)
            return
        hosted.exit_status = os.waitstatus_to_exitcode(event.status)
        killed = hosted.killed
        if changed:
            hosted.killed = killed = changed_fault(changed)
        if killed is not None and killed.reason == "NO_SPACE":  # what it left would not fit either
            if not self._again_on_disk(hosted):
                self._fail(hosted, killed, run_s, keep=False)
            return
        if killed is None and (unread := hosted.unread):
            self._fail(hosted, TaskFault("WORKER_FAULT", unread), run_s, keep=False)
            return
        tail = hosted.scratch.stderr_tail() if hosted.scratch.stderr_size() else ""
        signal_number = None if event.exit_status is not None else os.WTERMSIG(event.status)
        program_exit = ProgramExit(event.exit_status, signal_number, run_s, tail)
        if tail:
            self._log_stderr(hosted, to_the_end=True)
        if hosted.trace is not None:
            line = f"trace_io: {hosted.trace.text}"
            self._place.log(hosted.task.spec, hosted.key[1], line, is_stderr=True)
        how = ending(program_exit)
        if killed is not None:
            text = failure_text(program_exit.describe(), worker, hosted.argv, tail, killed.details)
            self._fail(hosted, TaskFault(killed.reason, {"text": text, **how}), run_s, keep=True)
            return
        try:
            action = hosted.executor.ended(hosted.task, program_exit)
        except Exception as error:  # as above
            self._fail(hosted, executor_fault(hosted.executor, error), run_s, keep=True)
            return
        if isinstance(action, Finish):
            self._publish(hosted, action, run_s)
        elif isinstance(action, Fail):
            if hosted.may_lack_output and self._again_on_disk(hosted):
                return
            why = "" if hosted.is_called_off else whose_signal(signal_number)
            text = failure_text(action.details, worker, hosted.argv, tail, why)
            self._fail(hosted, TaskFault(action.reason, {"text": text, **how}), run_s, keep=True)

    def _publish(self, hosted: Hosted, finish: Finish, run_s: float) -> None:
        published: list[Reference] = []
        try:
            for number in list(hosted.writers):
                published.append(self._commit(hosted, number))
                del hosted.writers[number]
            for number, content in finish.contents.items():
                published.append(self._put(hosted, number, content))
                hosted.writers.pop(number, None)
        except StorageError as error:
            lacks_room = isinstance(error, ShortOutputError | NoSpaceError)
            if not (lacks_room and self._again_on_disk(hosted)):
                fault = storing_fault(self._place.worker, hosted.argv, error)
                self._fail(hosted, fault, run_s, keep=False)
            return
        for child in finish.children:
            self._owner.attempt_spawned(hosted.key, child)
        self._notices.tell_of_files(hosted)
        self._clean(hosted)
        status = hosted.exit_status
        self._owner.attempt_ended(hosted.key, tuple(published), None, run_s, status)

    def _again_on_disk(self, hosted: Hosted) -> bool:
        """Run a program once more whose output was in memory when that was full, and may have been
        refused some of it or would not have fitted; False if there is no disk for that, or somebody
        reads it already.
        """
        action = hosted.executor.begin(hosted.task)
        if not isinstance(action, Run) or action.program.streams or hosted.is_called_off:
            return False
        levels = [level.name for level in self._place.store.levels()]
        if levels != [MEMORY, DISK] or hosted.level == DISK:
            return False
        called = command_text(hosted.argv)
        log.info("memory was full while {called} wrote; it runs again, on disk", called=called)
        for writer in hosted.writers.values():
            writer.abort()
        self._clean(hosted)
        again = Hosted(hosted.order, hosted.task, hosted.executor)
        self._hosted[again.key] = again
        self._begin(again, replace(action.program, store=DISK))
        return True

    def _commit(self, hosted: Hosted, number: int) -> Reference:
        writer = hosted.writers[number]
        growing = hosted.streams.get(number)
        conflicts: list[ObjectConflictError] = []

        def commit() -> Reference:
            place = self._place
            return commit_output(place.store, writer, place.here, conflicts.append, is_alone=True)

        if growing is None:
            ref = commit()
        else:
            ref, why = self._place.streams.seal(growing, writer.path or "", commit, conflicts)
            del hosted.streams[number]
            if why:
                self._owner.stream_broken(ObjectId(growing.object_id), why)
        for error in conflicts:  # the first one wins (failures.md, W12); but it is worth knowing
            log.warn("not deterministic: {error}", error=error)
        return ref

    def _put(self, hosted: Hosted, number: int, content: bytes) -> Reference:
        object_id = hosted.task.spec.outputs[number]
        if len(content) <= INLINE_MAX_BYTES:
            return Value.of(object_id, content)
        with self._place.store.begin(object_id, size_hint_bytes=len(content)) as writer:
            writer.write(content)
            hosted.writers[number] = writer
            return self._commit(hosted, number)

    def _fail(self, hosted: Hosted, fault: TaskFault, run_s: float, *, keep: bool) -> None:
        for growing in hosted.streams.values():
            why = f"{growing.object_id}: its producer has failed"
            self._place.streams.break_off(growing, why)
        if not keep or hosted.scratch is None:
            self._failed(hosted, fault, run_s)
            return
        name = f"{hosted.key[0]}.{hosted.key[1]}"
        writer = None if hosted.stdout is None else hosted.writers.get(hosted.stdout)
        partial = writer.path if writer is not None else None
        facts = printed(partial, self._place.netloc, name)
        keeping = deferToThread(keep_files, self._place.kept, name, hosted.scratch, partial)

        def told(what: str) -> None:
            details = details_with(fault.details, what, facts)
            self._failed(hosted, TaskFault(fault.reason, details), run_s)

        def done(what: str) -> None:
            hosted.scratch = None
            told(what)

        def not_done(failure: Any) -> None:
            why = getattr(failure.value, "strerror", None) or failure.getErrorMessage()
            told(f"its files could not be kept: {why}")

        keeping.addCallbacks(done, not_done)

    def _failed(self, hosted: Hosted, fault: TaskFault, run_s: float) -> None:
        for writer in hosted.writers.values():
            writer.abort()
        self._clean(hosted)
        self._tell_fault(hosted.key, fault, run_s, hosted.exit_status)

    def _clean(self, hosted: Hosted) -> None:
        self._hosted.pop(hosted.key, None)
        if hosted.scratch is None or self._place.scratch.take_back(hosted.scratch):
            return
        if hosted.scratch.is_clean():
            hosted.scratch.remove()
        else:
            deferToThread(hosted.scratch.remove).addErrback(
                lambda failure: log.failure("scratch could not be removed", failure)
            )

    def _log_stderr(self, hosted: Hosted, *, to_the_end: bool = False) -> None:
        """Append what a program has complained meanwhile to its job's log."""
        if hosted.scratch is not None:
            spec, attempt = hosted.task.spec, hosted.key[1]
            log_text = partial(self._place.log, spec, attempt, is_stderr=True)
            hosted.logged_bytes = hosted.scratch.log_lines(
                hosted.logged_bytes, log_text, to_the_end=to_the_end
            )

    def close(self) -> None:
        """Forget all attempts; their programs end with the launcher."""
        self._place.growth.close()
        self._place.memory.close()
        self._talking.close()
        self._place.scratch.close()
        self._translating.clear()
        for hosted in list(self._hosted.values()):
            hosted.close_inputs()
            for writer in hosted.writers.values():
                writer.abort()
        self._hosted.clear()
