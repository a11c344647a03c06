"""The life cycle of attempts: the steps that are the same for batch and interactive programs.

    start ──▶ run (killed, over a limit) ──▶ settle ──▶ clean up ──▶ report, exactly once
      ▲                                         │
      └──── again, with outputs on disk ◀───────┘

A strategy starts a program and decides what its end means; this module does all that follows.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.core.events import TaskFault
from ciel.core.refs import Reference
from ciel.storage.errors import NoSpaceError
from ciel.storage.interface import DISK
from ciel.worker.attempts.failed_output import details_with, printed
from ciel.worker.attempts.faults import INTERRUPTED, memory_fault, storing_fault
from ciel.worker.attempts.kept_files import keep_files
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.attempts.strategy import RunningAttempt
from ciel.worker.attempts.workplace import Losses, Workplace
from ciel.worker.limits.growth import GrowthWatch
from ciel.worker.limits.memory import MemoryWatch
from ciel.worker.state.orders import Key

log = Logger(__name__)  # compiled code cannot determine its own module


class Lifecycle:
    """Owns the attempts that run on this worker, and takes each to its report."""

    def __init__(self, place: Workplace) -> None:
        self.place = place
        self.growth = GrowthWatch(place.reactor, self._outgrown)
        self.memory = MemoryWatch(place.reactor, self._exceeded)
        self._running: dict[Key, RunningAttempt] = {}

    # --- running ----------------------------------------------------------------------------------

    def started(self, attempt: RunningAttempt) -> None:
        """Add an attempt whose program is about to start."""
        self._running[attempt.key] = attempt

    def is_running(self, attempt: RunningAttempt) -> bool:
        return self._running.get(attempt.key) is attempt

    def forget(self, key: Key) -> None:
        """Remove an attempt whose program has ended, or serves another attempt."""
        self._running.pop(key, None)

    def kill(self, key: Key, *, force: bool) -> None:
        """Send SIGTERM, or SIGKILL by `force`, to the program of a cancelled attempt."""
        attempt = self._running.get(key)
        if attempt is not None:
            attempt.kill(force=force)

    def recall(self, key: Key) -> None:
        """Give up an attempt if its program has not been started yet."""
        attempt = self._running.get(key)
        if attempt is not None:
            attempt.recall()

    def _outgrown(self, key: Key, error: NoSpaceError) -> None:
        """Stop an attempt that has written more than there is room for."""
        attempt = self._running.get(key)
        if attempt is not None:
            place = self.place
            fault = storing_fault(place.worker, attempt.argv, error, place.store_device)
            attempt.stop(fault)

    def _exceeded(self, key: Key, used_bytes: int) -> None:
        """Stop an attempt whose program has taken more memory than it may."""
        attempt = self._running.get(key)
        if attempt is not None:
            limit_bytes = attempt.task.spec.needs.memory_bytes
            attempt.stop(memory_fault(used_bytes, limit_bytes))

    # --- settling ---------------------------------------------------------------------------------

    def program_ended(self, attempt: RunningAttempt, event: Any) -> None:
        """Settle an attempt. If that raises an exception, only this attempt fails."""
        try:
            attempt.settle(event)
        except Exception as error:
            log.failure("the end of a program could not be processed")
            text = (
                f"worker {self.place.worker} could not process the end of its program, because of "
                f"a bug in ciel: {error!r}; the worker's log has the details"
            )
            self._conclude(attempt, TaskFault("WORKER_FAULT", text), 0.0)

    def fail(
        self, attempt: RunningAttempt, fault: TaskFault, run_s: float, *, keeps_files: bool
    ) -> None:
        """Report a fault.

        `keeps_files`: first retain the attempt's private files for inspection, in a thread, and say
        in the fault where they are.
        """
        scratch = attempt.scratch
        if scratch is not None:
            self.place.sandboxes.remove(scratch.path)
        if not keeps_files or scratch is None:
            self._conclude(attempt, fault, run_s)
            return
        place = self.place
        name = f"{attempt.key[0]}.{attempt.key[1]}"
        partial = attempt.partial_output
        facts = printed(partial, place.netloc, name)

        def conclude(where: str, are_kept: bool) -> None:
            details = details_with(fault.details, where, facts)
            explained = TaskFault(fault.reason, details)
            self._conclude(attempt, explained, run_s, files_kept=are_kept)

        def not_kept(failure: Any) -> None:
            why = getattr(failure.value, "strerror", None) or failure.getErrorMessage()
            conclude(f"its files could not be retained: {why}", False)

        keeping = deferToThread(keep_files, place.kept, name, scratch, partial)
        keeping.addCallbacks(lambda where: conclude(where, True), not_kept)

    def lose_inputs(self, attempt: RunningAttempt, losses: Losses, details: str) -> None:
        """Report that inputs are missing at the locations that the master named."""
        self.forget(attempt.key)
        attempt.clean_up()
        self.place.owner.inputs_gone(attempt.key, losses, details)
        self._report_interrupted(attempt)

    def run_again_on_disk(self, attempt: RunningAttempt, program: str) -> bool:
        """Run an attempt again, with its outputs on disk, since the store in memory was full.

        Return False if there is no disk, or if the attempt is not repeatable.
        """
        levels = [level.name for level in self.place.store.levels()]
        if DISK not in levels[1:] or attempt.level == DISK or not attempt.is_repeatable:
            return False
        text = "memory was full while {program} wrote; its task runs again, with outputs on disk"
        log.info(text, program=program)
        self.run_again(attempt, DISK)
        return True

    def run_again(self, attempt: RunningAttempt, level: str = "") -> None:
        """Start an attempt again, as if its program had not run."""
        self.forget(attempt.key)
        attempt.clean_up()
        action = attempt.executor.begin(attempt.task)
        attempt.strategy.start(attempt.order, attempt.task, attempt.executor, action, level)

    def _conclude(
        self, attempt: RunningAttempt, fault: TaskFault, run_s: float, *, files_kept: bool = False
    ) -> None:
        self.forget(attempt.key)
        attempt.clean_up(files_kept=files_kept)
        self.report(attempt.key, (), fault, run_s, attempt.exit_status)
        self._report_interrupted(attempt)

    # --- reporting --------------------------------------------------------------------------------

    def report(
        self,
        key: Key,
        published: tuple[Reference, ...],
        fault: TaskFault | None,
        run_s: float,
        exit_status: int | None = None,
    ) -> None:
        """Report the end of an attempt."""
        if fault is not None and fault.reason == "NO_SPACE":
            deferToThread(self.place.kept.make_room).addErrback(
                lambda failure: log.failure("retained files could not be removed", failure)
            )
        self.place.owner.attempt_ended(key, published, fault, run_s, exit_status)

    def _report_interrupted(self, attempt: RunningAttempt) -> None:
        """Report the attempts that ended with this one, after it: they depend on its outcome."""
        for key in attempt.interrupted:
            self.report(key, (), INTERRUPTED, 0.0)

    # --- cleaning up ------------------------------------------------------------------------------

    def remove(self, scratch: Scratch) -> None:
        """Remove private files, in a thread if that may take long; or keep them for reuse."""
        self.place.sandboxes.remove(scratch.path)
        if self.place.scratch.take_back(scratch):
            return
        if scratch.is_clean():
            scratch.remove()
        else:
            deferToThread(scratch.remove).addErrback(
                lambda failure: log.failure("scratch could not be removed", failure)
            )

    def close(self) -> None:
        """Forget all attempts; their programs end with the launcher."""
        self.growth.close()
        self.memory.close()
        for attempt in list(self._running.values()):
            attempt.abandon()
        self._running.clear()
