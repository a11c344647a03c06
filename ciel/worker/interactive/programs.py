"""The strategy for interactive programs: chooses the process that serves an attempt.

Processes that stay running serve later attempts.
"""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.ids import ObjectId
from ciel.core.offers.resources import Given
from ciel.execution.conversation import Over
from ciel.execution.executor import Action, Executor, Talk, Task
from ciel.launch import LaunchSpecError
from ciel.net.ticks import DelayedCall
from ciel.storage.errors import ObjectNotFoundError, StorageError
from ciel.worker.attempts.faults import preparation_fault
from ciel.worker.attempts.lifecycle import Lifecycle
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.interactive.attached import AttachedProcess
from ciel.worker.interactive.attempt import InteractiveAttempt
from ciel.worker.interactive.channel import ProgramChannel
from ciel.worker.interactive.outgoing import OutgoingFrames
from ciel.worker.interactive.process import USUAL_PATIENCE, Patience, Process
from ciel.worker.interactive.starting import attach, indices_of, kind_of, start
from ciel.worker.limits.growth import GrowingFiles
from ciel.worker.state.orders import StartAttempt
from ciel.worker.state.pool import Pool


class InteractivePrograms:
    """All processes of interactive programs on this worker."""

    def __init__(self, lifecycle: Lifecycle, patience: Patience = USUAL_PATIENCE) -> None:
        place = self._place = lifecycle.place
        self._lifecycle = lifecycle
        self._patience = patience
        self._processes: dict[int, Process] = {}
        self._attached: dict[int, Process] = {}  # a subset of `_processes`
        self._waiting: dict[ObjectId, Process] = {}  # in the middle of a task, by fixed object
        self._pool = Pool(patience.idle_s)
        self._count = 0
        self._outgoing = OutgoingFrames(place.reactor, place.ticks)
        self._reaping: DelayedCall | None = None

    def idle_count(self) -> int:
        """Return how many of the launcher's programs serve no attempt.

        An attached process lowers the result while it serves one: it takes a slot, but is not a
        program of the launcher.
        """
        if not self._processes:
            return 0
        busy_count = sum([1 for process in self._processes.values() if process.stack])
        return len(self._processes) - busy_count - len(self._attached)

    # --- starting ---------------------------------------------------------------------------------

    def start(
        self,
        order: StartAttempt,
        task: Task,
        executor: Executor,
        action: Action,
        level: str = "",
    ) -> None:
        """As `Strategy` says; `action` is `Talk`."""
        assert isinstance(action, Talk)
        attempt = InteractiveAttempt(order, task, executor, self, self._lifecycle, level=level)
        if action.fixed is not None:
            process = self._waiting.pop(action.fixed, None)
            if process is None:
                losses = ((action.fixed, self._place.netloc),)
                text = f"the program that waited on worker {self._place.worker} is gone"
                self._place.owner.inputs_gone(attempt.key, losses, text)
                return
        else:
            number = self._pool.take(kind_of(attempt, action), task.inputs)
            process = None if number is None else self._processes[number]
            if order.given and process is None:
                self.make_way(order.given)
        if process is None:
            process = self._start_process(attempt, action)
        if process is not None:
            process.serve(attempt, action)

    def _start_process(self, attempt: InteractiveAttempt, talk: Talk) -> Process | None:
        place = self._place
        try:
            process = start(attempt, talk, place, self._make)
        except ObjectNotFoundError as error:
            losses = ((ObjectId(error.object_id), place.netloc),)
            place.owner.inputs_gone(attempt.key, losses, f"on worker {place.worker}: {error}")
            return None
        except (StorageError, LaunchSpecError, OSError) as error:
            fault = preparation_fault(place.worker, error, place.device)
            self._lifecycle.report(attempt.key, (), fault, 0.0)
            return None
        self._processes[process.number] = process
        paths = (process.scratch.stdout_path, process.scratch.stderr_path)
        self._lifecycle.growth.add(process.key, GrowingFiles(paths, {}, process.log_lines))
        process.expect_first_call()
        return process

    def _make(self, kind: str, scratch: Scratch) -> Process:
        self._count += 1
        return Process(
            self._count, kind, scratch, self._lifecycle, self, self._outgoing, self._patience
        )

    def attach(self, attached: AttachedProcess) -> None:
        """Let a running process wait for the root task of its job. Raises OSError."""
        process = attach(attached, self._place, self._make)
        self._processes[process.number] = self._attached[process.number] = process
        self._waiting[attached.id] = process
        attached.watch(process.ended)

    def attached(self) -> list[tuple[AttachedProcess, ProgramChannel]]:
        """List the attached processes, each with its channel."""
        return [(each.attached, each.channel) for each in self._attached.values() if each.attached]

    # --- processes without a task -----------------------------------------------------------------

    def kept(self, process: Process, attempt: InteractiveAttempt, over: Over) -> None:
        """As `ProcessOwner` says."""
        if attempt.fixed is not None:
            self._waiting[attempt.fixed] = process
            return
        process.scratch.drop_inputs()
        process.held_objects = frozenset().union(*over.soft_keys)
        now_s = self._place.reactor.seconds()
        for number in self._pool.put(process.number, process.kind, over.soft_keys, now_s):
            self._processes[number].dismiss("others are needed more")
        self._reap_later()

    def stop_using(self, process: Process) -> None:
        """As `ProcessOwner` says."""
        self._pool.remove(process.number)
        for object_id in [o for o, waiting in self._waiting.items() if waiting is process]:
            del self._waiting[object_id]

    def gone(self, process: Process) -> None:
        """As `ProcessOwner` says."""
        self._processes.pop(process.number, None)
        self._attached.pop(process.number, None)
        self.stop_using(process)

    def end_waiting(self, objects: Iterable[ObjectId]) -> None:
        """End programs that are suspended in the middle of a task which is not needed any more."""
        for object_id in objects:
            process = self._waiting.get(object_id)
            if process is not None:
                process.terminate()

    def _reap_later(self) -> None:
        due_s = self._pool.due_s()
        if due_s is not None and (self._reaping is None or not self._reaping.active()):
            delay_s = max(due_s - self._place.reactor.seconds(), 0.0) + 0.01
            self._reaping = self._place.reactor.callLater(delay_s, self._reap)

    def _reap(self) -> None:
        for number in self._pool.expired(self._place.reactor.seconds()):
            self._processes[number].dismiss("Garbage collected")
        self._reap_later()

    def make_way(self, given: Given) -> None:
        """As `Strategy` says: an idle program may hold memory of a device."""
        wanted = indices_of(given)
        for process in list(self._processes.values()):
            if not wanted.isdisjoint(process.indices) and self._pool.remove(process.number):
                process.dismiss("its devices are given to another task")

    def close(self) -> None:
        """As `Strategy` says."""
        if self._reaping is not None and self._reaping.active():
            self._reaping.cancel()
        for process in list(self._processes.values()):
            process.close()
