"""Attempts on this worker: from the order to start one to its outcome, with every file and process
it needs.

Acts on what executors say; decides nothing about slots, time or retries. Each attempt that was
started is told to the owner exactly once, when nothing of it runs any more and its outputs are
committed or gone.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.core.errors import CielError
from ciel.core.events import RECALLED, TaskFault
from ciel.core.ids import ObjectId
from ciel.core.refs import INLINE_MAX_BYTES, Concrete, Reference, Value
from ciel.execution.environment import task_environment
from ciel.execution.executor import (
    BadArgumentsError,
    Child,
    Executor,
    Fail,
    Finish,
    Program,
    ProgramExit,
    Run,
    Task,
)
from ciel.execution.kept import KeptAttempts
from ciel.execution.report import command_text, failure_text, no_room_text
from ciel.launch import LaunchSpecError, Stage, why_refused
from ciel.launch.limits import open_files_advice
from ciel.launch.messages import (
    DEV_NULL,
    Descriptor,
    File,
    LaunchSpec,
    ProgramExited,
    ProgramFailed,
)
from ciel.storage.errors import (
    CorruptObjectError,
    NoSpaceError,
    ObjectConflictError,
    ObjectNotFoundError,
    StorageError,
)
from ciel.storage.interface import ObjectReader, ObjectStore, ObjectWriter
from ciel.wire.descriptors import read_arguments
from ciel.wire.errors import WireError
from ciel.worker.feeding import Feeder
from ciel.worker.growth import Growing, GrowthWatch
from ciel.worker.keeping import keep_files
from ciel.worker.launching import Launching
from ciel.worker.logs import JobLogs
from ciel.worker.scratch import Scratch, ScratchPool
from ciel.worker.state.machine import Key, StartAttempt

log = Logger()

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class HostingOwner(Protocol):
    """Who is told of attempts."""

    def attempt_ended(
        self, key: Key, published: tuple[Reference, ...], fault: TaskFault | None, run_s: float
    ) -> None: ...

    def attempt_spawned(self, key: Key, child: Child) -> None: ...

    def inputs_gone(self, key: Key, objects: tuple[ObjectId, ...], details: str) -> None: ...


class Hosted:
    """One attempt that runs here, with all that it has open."""

    def __init__(self, order: StartAttempt, task: Task, executor: Executor) -> None:
        self.key: Key = (order.spec.id, order.attempt)
        self.at_most = order.at_most
        self.task = task
        self.executor = executor
        self.argv: list[str] = []
        self.search_path: str | None = None  # where its own environment says so
        self.scratch: Scratch | None = None
        self.readers: list[ObjectReader] = []
        self.writer: ObjectWriter | None = None
        self.stdout: int | None = None
        self.feeder: Feeder | None = None
        self.launch_id: int | None = None
        self.outgrown: NoSpaceError | None = None  # why its program was killed

    def close_inputs(self) -> None:
        if self.feeder is not None:
            self.feeder.close()
        for reader in self.readers:
            reader.close()
        self.readers.clear()


def _executor_fault(executor: Executor, error: Exception) -> TaskFault:
    log.error("executor {name} raised {error!r}", name=executor.name, error=error)
    return TaskFault("EXECUTOR_FAULT", f"executor {executor.name} raised {error!r}")


class Hosting:
    """All attempts that run on this worker."""

    def __init__(
        self,
        *,
        reactor: Any,
        owner: HostingOwner,
        launching: Launching,
        store: ObjectStore,
        executors: Mapping[str, Executor],
        worker: str,
        netloc: str,
        spool: Path,
        kept: Path,
        logs: JobLogs,
    ) -> None:
        self._reactor = reactor
        self._owner = owner
        self._launching = launching
        self._store = store
        self._executors = executors
        self._worker = worker
        self._here = frozenset((netloc,))
        self._kept = KeptAttempts(kept)
        self._growth = GrowthWatch(reactor, self._outgrown)
        self._is_bounded = store.capabilities.bounded
        self._logs = logs
        self._hosted: dict[Key, Hosted] = {}
        self._scratch = ScratchPool(spool)

    # --- starting ---------------------------------------------------------------------------------

    def start(self, order: StartAttempt) -> None:
        """Start an attempt; whatever goes wrong is told as its fault."""
        key = (order.spec.id, order.attempt)
        executor = self._executors.get(order.spec.executor)
        if executor is None:  # the master knows better, unless something is wrong with it
            text = f"worker {self._worker} has no executor {order.spec.executor!r}"
            self._owner.attempt_ended(key, (), TaskFault("WORKER_FAULT", text), 0.0)
            return
        try:
            arguments = read_arguments(order.spec.payload)
            inputs = {ref.id: ref for ref in order.inputs}
            task = Task(order.spec, arguments, inputs, self._executors)
            action = executor.begin(task)
        except (BadArgumentsError, CielError, WireError, TypeError, ValueError) as error:
            self._owner.attempt_ended(key, (), TaskFault("BAD_ARGUMENTS", str(error)), 0.0)
            return
        except Exception as error:  # an executor may be anybody's
            self._owner.attempt_ended(key, (), _executor_fault(executor, error), 0.0)
            return
        hosted = Hosted(order, task, executor)
        match action:
            case Run(program):
                self._hosted[key] = hosted
                self._run(hosted, program)
            case Finish():
                self._publish(hosted, action, 0.0)
            case Fail(reason, details):
                self._owner.attempt_ended(key, (), TaskFault(reason, details), 0.0)

    def _run(self, hosted: Hosted, program: Program) -> None:
        try:
            spec = self._prepare(hosted, program)
            hosted.launch_id = self._launching.start(
                spec, lambda event: self._program_ended(hosted, event)
            )
            if hosted.feeder is not None:
                hosted.feeder.start()
            if hosted.scratch is not None:
                output = hosted.writer if self._is_bounded else None
                self._growth.add(hosted.key, Growing(hosted.scratch.stderr_path, output))
        except ObjectNotFoundError as error:
            self._discard(hosted)
            gone = (ObjectId(error.object_id),)
            self._owner.inputs_gone(hosted.key, gone, f"on worker {self._worker}: {error}")
        except (StorageError, LaunchSpecError, OSError) as error:
            is_full = isinstance(error, NoSpaceError) or getattr(error, "errno", 0) in _DISK_FULL
            reason = "NO_SPACE" if is_full else "WORKER_FAULT"
            advice = open_files_advice(error)
            details = f"worker {self._worker} could not start it: {error}{advice}"
            self._discard(hosted)
            self._tell_fault(hosted, TaskFault(reason, details), 0.0)

    def _tell_fault(self, hosted: Hosted, fault: TaskFault, run_s: float) -> None:
        if fault.reason == "NO_SPACE":
            deferToThread(self._kept.make_room).addErrback(
                lambda failure: log.failure("kept files could not be removed", failure)
            )
        self._owner.attempt_ended(hosted.key, (), fault, run_s)

    def _discard(self, hosted: Hosted) -> None:
        """Undo what was prepared for a program that was not started."""
        self._hosted.pop(hosted.key, None)
        if hosted.feeder is not None and hosted.launch_id is None:
            os.close(hosted.feeder.descriptor)
        hosted.close_inputs()
        if hosted.writer is not None:
            hosted.writer.abort()
        if hosted.scratch is not None:
            hosted.scratch.remove()

    def _prepare(self, hosted: Hosted, program: Program) -> LaunchSpec:
        attempt = hosted.key[1]
        hosted.search_path = program.env.get("PATH")
        scratch = hosted.scratch = self._scratch.take()
        for item in program.argv:
            if isinstance(item, str):
                hosted.argv.append(item)
            else:
                path = self._input_path(hosted, item.object_id)
                hosted.argv.append(scratch.copy_executable(path) if item.executable else path)
        for name, object_id in program.files.items():
            scratch.place(name, self._input_path(hosted, object_id))
        stdin: File | Descriptor = DEV_NULL
        if len(program.stdin) == 1:
            stdin = File(self._input_path(hosted, program.stdin[0]))
        elif program.stdin:
            stdin = self._joined(hosted, program.stdin)
        stdout: File = DEV_NULL
        if program.stdout is not None:
            hosted.stdout = program.stdout
            hosted.writer = self._store.begin(hosted.task.spec.outputs[program.stdout])
            if hosted.writer.path is None:
                raise OSError("this store cannot take the output of a program by name")
            stdout = File(hosted.writer.path)
        return LaunchSpec(
            argv=hosted.argv,
            cwd=scratch.path,
            env=task_environment(
                hosted.task.spec, attempt, self._worker, scratch.path, program.env
            ),
            stdin=stdin,
            stdout=stdout,
            stderr=File(scratch.stderr_path),
            at_most=hosted.at_most,
        )

    def _input_path(self, hosted: Hosted, object_id: ObjectId) -> str:
        """Give an input a name that opens, for as long as the attempt runs."""
        assert hosted.scratch is not None
        ref = hosted.task.inputs.get(object_id)
        if isinstance(ref, Value):
            return hosted.scratch.write_input(ref.content)
        reader = self._store.open(object_id)
        hosted.readers.append(reader)
        if reader.path is None:
            return hosted.scratch.write_input(reader.read(0, reader.size_bytes))
        return reader.path

    def _joined(self, hosted: Hosted, objects: tuple[ObjectId, ...]) -> File | Descriptor:
        """Concatenate inputs: small ones, all inside their references, in a file; others through a
        pipe.
        """
        assert hosted.scratch is not None
        refs = [hosted.task.inputs.get(object_id) for object_id in objects]
        values = [ref for ref in refs if isinstance(ref, Value)]
        if len(values) == len(refs):
            return File(hosted.scratch.write_input(b"".join([value.content for value in values])))
        hosted.feeder = Feeder(self._reactor, [self._input_path(hosted, o) for o in objects])
        return Descriptor(hosted.feeder.descriptor)

    # --- ending -----------------------------------------------------------------------------------

    def kill(self, key: Key, *, force: bool) -> None:
        """Send an attempt's programs the polite signal, or the one that cannot be ignored."""
        hosted = self._hosted.get(key)
        if hosted is not None and hosted.launch_id is not None:
            self._launching.kill(hosted.launch_id, signal.SIGKILL if force else signal.SIGTERM)

    def recall(self, key: Key) -> None:
        """Give an attempt up if its program still waits for others to end."""
        hosted = self._hosted.get(key)
        if hosted is not None and hosted.launch_id is not None:
            self._launching.recall(hosted.launch_id)

    def _outgrown(self, key: Key, error: NoSpaceError) -> None:
        hosted = self._hosted[key]
        hosted.outgrown = error
        self.kill(key, force=True)

    def _program_ended(self, hosted: Hosted, event: ProgramExited | ProgramFailed) -> None:
        try:
            self._settle(hosted, event)
        except Exception as error:  # of ours; it must cost neither its slot nor other attempts
            log.failure("the end of a program was not understood")
            text = f"a bug of ours on worker {self._worker}: {error!r}; its log has more"
            self._failed(hosted, TaskFault("WORKER_FAULT", text), 0.0)

    def _settle(self, hosted: Hosted, event: ProgramExited | ProgramFailed) -> None:
        run_s = event.wall_s if isinstance(event, ProgramExited) else 0.0
        self._growth.remove(hosted.key)
        hosted.close_inputs()
        assert hosted.scratch is not None
        if isinstance(event, ProgramFailed):
            self._fail(hosted, self._not_started(hosted, event), run_s, keep=False)
            return
        if hosted.outgrown is not None:
            self._fail(hosted, self._not_stored(hosted, hosted.outgrown), run_s, keep=False)
            return
        if hosted.feeder is not None and hosted.feeder.error is not None:
            text = f"its standard input could not be read to the end: {hosted.feeder.error}"
            self._fail(hosted, TaskFault("WORKER_FAULT", text), run_s, keep=False)
            return
        tail = hosted.scratch.stderr_tail() if hosted.scratch.stderr_size() else ""
        signal_number = None if event.exit_status is not None else os.WTERMSIG(event.status)
        program_exit = ProgramExit(event.exit_status, signal_number, run_s, tail)
        if tail:
            self._log_stderr(hosted, tail)
        try:
            action = hosted.executor.ended(hosted.task, program_exit)
        except Exception as error:  # as above
            self._fail(hosted, _executor_fault(hosted.executor, error), run_s, keep=True)
            return
        if isinstance(action, Finish):
            self._publish(hosted, action, run_s)
        elif isinstance(action, Fail):
            text = failure_text(action.details, self._worker, hosted.argv, tail)
            self._fail(hosted, TaskFault(action.reason, text), run_s, keep=True)

    def _not_started(self, hosted: Hosted, event: ProgramFailed) -> TaskFault:
        program = hosted.argv[0]
        if event.stage is Stage.VFORK and event.errno == errno.ECANCELED:
            return TaskFault(RECALLED, "it was given back before it began")
        if event.stage is not Stage.EXEC:
            reason = "NO_SPACE" if event.errno in _DISK_FULL else "WORKER_FAULT"
            text = f"worker {self._worker} could not start {program!r}: {event.reason}"
            return TaskFault(reason, text)
        assert hosted.scratch is not None
        path = hosted.search_path or os.environ.get("PATH", os.defpath)
        why = why_refused(program, event.errno, cwd=hosted.scratch.path, path=path)
        text = f"{program!r} could not be started on worker {self._worker}: {why}"
        return TaskFault("PROGRAM_NOT_STARTED", text)

    def _not_stored(self, hosted: Hosted, error: StorageError) -> TaskFault:
        if isinstance(error, NoSpaceError):
            return TaskFault("NO_SPACE", no_room_text(self._worker, hosted.argv, error))
        if isinstance(error, CorruptObjectError) and error.code == "output":  # its program's doing
            command = command_text(hosted.argv)
            text = f"the output of {command} on worker {self._worker} is lost: {error.detail}"
            return TaskFault("RUNTIME_EXCEPTION", text)
        text = f"worker {self._worker} could not store its output: {error}"
        return TaskFault("WORKER_FAULT", text)

    def _publish(self, hosted: Hosted, finish: Finish, run_s: float) -> None:
        published: list[Reference] = []
        outputs = hosted.task.spec.outputs
        try:
            if hosted.writer is not None and hosted.stdout is not None:
                published.append(self._commit(hosted.writer, outputs[hosted.stdout]))
                hosted.writer = None
            for number, content in finish.contents.items():
                published.append(self._put(outputs[number], content))
        except StorageError as error:
            self._fail(hosted, self._not_stored(hosted, error), run_s, keep=False)
            return
        for child in finish.children:
            self._owner.attempt_spawned(hosted.key, child)
        self._clean(hosted)
        self._owner.attempt_ended(hosted.key, tuple(published), None, run_s)

    def _commit(self, writer: ObjectWriter, object_id: ObjectId) -> Reference:
        content = writer.take(INLINE_MAX_BYTES)
        if content is not None:
            return Value.of(object_id, content)
        size_bytes = writer.size_bytes
        try:
            size_bytes = writer.commit().size_bytes
        except ObjectConflictError as error:
            # The first one wins (failures.md, W12); that the task is not deterministic is worth
            # knowing.
            log.warn("not deterministic: {error}", error=error)
            info = self._store.stat(object_id)
            size_bytes = info.size_bytes if info is not None else size_bytes
        return Concrete(object_id, size_bytes, self._here)

    def _put(self, object_id: ObjectId, content: bytes) -> Reference:
        if len(content) <= INLINE_MAX_BYTES:
            return Value.of(object_id, content)
        with self._store.begin(object_id, size_hint_bytes=len(content)) as writer:
            writer.write(content)
            return self._commit(writer, object_id)

    def _fail(self, hosted: Hosted, fault: TaskFault, run_s: float, *, keep: bool) -> None:
        if not keep or hosted.scratch is None:
            self._failed(hosted, fault, run_s)
            return
        name = f"{hosted.key[0]}.{hosted.key[1]}"
        partial = hosted.writer.path if hosted.writer is not None else None
        keeping = deferToThread(keep_files, self._kept, name, hosted.scratch, partial)

        def told(what: str) -> None:
            details = f"{fault.details}\n{what}"
            self._failed(hosted, TaskFault(fault.reason, details), run_s)

        def done(what: str) -> None:
            hosted.scratch = None
            told(what)

        def not_done(failure: Any) -> None:
            why = getattr(failure.value, "strerror", None) or failure.getErrorMessage()
            told(f"its files could not be kept: {why}")

        keeping.addCallbacks(done, not_done)

    def _failed(self, hosted: Hosted, fault: TaskFault, run_s: float) -> None:
        if hosted.writer is not None:
            hosted.writer.abort()
        self._clean(hosted)
        self._tell_fault(hosted, fault, run_s)

    def _clean(self, hosted: Hosted) -> None:
        self._hosted.pop(hosted.key, None)
        if hosted.scratch is None or self._scratch.take_back(hosted.scratch):
            return
        if hosted.scratch.is_clean():
            hosted.scratch.remove()
        else:
            deferToThread(hosted.scratch.remove).addErrback(
                lambda failure: log.failure("scratch could not be removed", failure)
            )

    def _log_stderr(self, hosted: Hosted, tail: str) -> None:
        """Append what a program complained to its job's log."""
        spec = hosted.task.spec
        try:
            self._logs.append(spec.job, spec.name or spec.id[:12], tail)
        except OSError as error:
            log.warn("the log of job {job} cannot be written: {error}", job=spec.job, error=error)

    def close(self) -> None:
        """Forget all attempts; their programs end with the launcher."""
        self._growth.close()
        self._scratch.close()
        for hosted in list(self._hosted.values()):
            hosted.close_inputs()
            if hosted.writer is not None:
                hosted.writer.abort()
        self._hosted.clear()
