"""Attempts on this worker: from the order to start one to its outcome, with every file and process
it needs.

Acts on what executors say; decides nothing about slots, time or retries. Each attempt that was
started is told to the owner exactly once, when nothing of it runs any more and its outputs are
committed or gone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.core.errors import CielError
from ciel.core.events import TaskFault
from ciel.core.ids import ObjectId
from ciel.core.refs import INLINE_MAX_BYTES, Concrete, Reference, Value
from ciel.core.tasks import Mentions
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
from ciel.execution.report import failure_text
from ciel.launch import LaunchSpecError
from ciel.launch.messages import (
    DEV_NULL,
    Descriptor,
    File,
    LaunchSpec,
    ProgramExited,
    ProgramFailed,
)
from ciel.storage.errors import NoSpaceError, ObjectConflictError, ObjectNotFoundError, StorageError
from ciel.storage.interface import ObjectReader, ObjectStore, ObjectWriter
from ciel.wire.descriptors import read_arguments
from ciel.wire.errors import WireError
from ciel.worker.feeding import Feeder
from ciel.worker.launching import Launching
from ciel.worker.scratch import Scratch, ScratchPool
from ciel.worker.state.machine import Key, StartAttempt

log = Logger()


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
        self.task = task
        self.executor = executor
        self.argv: list[str] = []
        self.scratch: Scratch | None = None
        self.readers: list[ObjectReader] = []
        self.writer: ObjectWriter | None = None
        self.stdout: int | None = None
        self.feeder: Feeder | None = None
        self.launch_id: int | None = None
        self.started_at_s = 0.0

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
        logs: Path,
    ) -> None:
        self._reactor = reactor
        self._owner = owner
        self._launching = launching
        self._store = store
        self._executors = executors
        self._worker = worker
        self._here = frozenset((netloc,))
        self._kept = kept
        self._logs = logs
        self._hosted: dict[Key, Hosted] = {}
        self._scratch = ScratchPool(spool)

    def mentions_of(self, executor: str) -> Mentions:
        """Say what the outputs of an executor's tasks may name; of an unknown one, anything."""
        known = self._executors.get(executor)
        return Mentions.ANYTHING if known is None else known.mentions

    # --- starting ---------------------------------------------------------------------------------

    def start(self, order: StartAttempt) -> None:
        """Start an attempt; whatever goes wrong is told as its fault."""
        key = (order.spec.id, order.attempt)
        executor = self._executors[order.spec.executor]
        try:
            arguments = read_arguments(order.spec.payload)
            inputs = {ref.id: ref for ref in order.inputs}
            task = Task(order.spec, arguments, inputs, self.mentions_of)
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
            hosted.started_at_s = self._reactor.seconds()
            hosted.launch_id = self._launching.start(
                spec, lambda event: self._program_ended(hosted, event)
            )
            if hosted.feeder is not None:
                hosted.feeder.start()
        except ObjectNotFoundError as error:
            self._discard(hosted)
            gone = (ObjectId(error.object_id),)
            self._owner.inputs_gone(hosted.key, gone, f"on worker {self._worker}: {error}")
        except NoSpaceError as error:
            self._give_up(hosted, "NO_SPACE", str(error))
        except (StorageError, LaunchSpecError, OSError) as error:
            details = f"worker {self._worker} could not start it: {error}"
            self._give_up(hosted, "WORKER_FAULT", details)

    def _give_up(self, hosted: Hosted, reason: str, details: str) -> None:
        self._discard(hosted)
        self._owner.attempt_ended(hosted.key, (), TaskFault(reason, details), 0.0)

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

    def _program_ended(self, hosted: Hosted, event: ProgramExited | ProgramFailed) -> None:
        run_s = self._reactor.seconds() - hosted.started_at_s
        hosted.close_inputs()
        assert hosted.scratch is not None
        if isinstance(event, ProgramFailed):
            program = hosted.argv[0]
            place = "" if "/" in program else f" (sought in the PATH of worker {self._worker})"
            text = f"{program!r} could not be started{place}: {event.reason}"
            self._fail(hosted, TaskFault("PROGRAM_NOT_STARTED", text), run_s, keep=False)
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

    def _publish(self, hosted: Hosted, finish: Finish, run_s: float) -> None:
        published: list[Reference] = []
        outputs = hosted.task.spec.outputs
        try:
            if hosted.writer is not None and hosted.stdout is not None:
                published.append(self._commit(hosted.writer, outputs[hosted.stdout]))
                hosted.writer = None
            for number, content in finish.contents.items():
                published.append(self._put(outputs[number], content))
        except NoSpaceError as error:
            self._fail(hosted, TaskFault("NO_SPACE", str(error)), run_s, keep=False)
            return
        except StorageError as error:
            self._fail(hosted, TaskFault("WORKER_FAULT", str(error)), run_s, keep=False)
            return
        for child in finish.children:
            self._owner.attempt_spawned(hosted.key, child)
        self._clean(hosted)
        self._owner.attempt_ended(hosted.key, tuple(published), None, run_s)

    def _commit(self, writer: ObjectWriter, object_id: ObjectId) -> Reference:
        size_bytes = writer.size_bytes
        if size_bytes <= INLINE_MAX_BYTES:
            content = writer.read(0, size_bytes) if size_bytes else b""
            writer.abort()
            return Value.of(object_id, content)
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
        kept = self._kept / f"{hosted.key[0]}.{hosted.key[1]}"
        partial = hosted.writer.path if hosted.writer is not None else None
        keeping = deferToThread(hosted.scratch.keep, kept, partial)  # there may be much of it

        def done(_: object) -> None:
            hosted.scratch = None
            details = f"{fault.details}\nits files are kept in {kept}"
            self._failed(hosted, TaskFault(fault.reason, details), run_s)

        def not_done(failure: Any) -> None:
            why = failure.getErrorMessage()
            log.warn("files of a failed task could not be kept: {error}", error=why)
            self._failed(hosted, fault, run_s)

        keeping.addCallbacks(done, not_done)

    def _failed(self, hosted: Hosted, fault: TaskFault, run_s: float) -> None:
        if hosted.writer is not None:
            hosted.writer.abort()
        self._clean(hosted)
        self._owner.attempt_ended(hosted.key, (), fault, run_s)

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
        """Append what a program complained to its job's log, each line with the task's name."""
        spec = hosted.task.spec
        prefix = spec.name or spec.id[:12]
        try:
            with open(self._logs / f"job-{spec.job[:12]}.log", "a", encoding="utf-8") as file:
                file.writelines(f"[{prefix}] {line}\n" for line in tail.splitlines())
        except OSError as error:
            log.warn("the log of job {job} cannot be written: {error}", job=spec.job, error=error)

    def close(self) -> None:
        """Forget all attempts; their programs end with the launcher."""
        self._scratch.close()
        for hosted in list(self._hosted.values()):
            hosted.close_inputs()
            if hosted.writer is not None:
                hosted.writer.abort()
        self._hosted.clear()
