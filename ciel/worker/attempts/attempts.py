"""Starts attempts as the worker's machine orders, and ends them on its orders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.core.errors import CielError
from ciel.core.events import TaskFault
from ciel.core.ids import ObjectId
from ciel.execution.environment import Callers
from ciel.execution.executor import Action, BadArgumentsError, Executor, Fail, Talk, Task
from ciel.wire.descriptors import read_arguments
from ciel.wire.errors import WireError
from ciel.worker.attempts.faults import arguments_fault, executor_fault
from ciel.worker.attempts.lifecycle import Lifecycle
from ciel.worker.attempts.strategy import Strategy
from ciel.worker.checksums import Damaged
from ciel.worker.state.orders import CANCELLED, Key, StartAttempt

log = Logger(__name__)  # compiled code cannot determine its own module

_INLINE_MAX_BYTES: Final = 64 << 10
"""Larger arguments are decoded in a thread; smaller ones block the reactor for 10 ms at most."""


class Attempts:
    """All attempts on this worker.

    The executor of an attempt translates the task into an action, and the strategy for that action
    starts the attempt. The workplace's owner gets one report of the end of each attempt.
    """

    def __init__(
        self, lifecycle: Lifecycle, batch: Strategy, interactive: Strategy, callers: Callers
    ) -> None:
        self._place = lifecycle.place
        self._callers = callers
        self._lifecycle = lifecycle
        self._batch = batch
        self._interactive = interactive
        self._preparing: set[Key] = set()  # in a thread

    def start(self, order: StartAttempt) -> None:
        """Verify the inputs of an attempt, and start it; every error is reported as its fault."""
        key, place = (order.spec.id, order.attempt), self._place
        executor = place.executors.get(order.spec.executor)
        if executor is None:  # the master assigns no such task, unless it has a bug
            text = f"worker {place.worker} has no executor {order.spec.executor!r}"
            self._lifecycle.report(key, (), TaskFault("WORKER_FAULT", text), 0.0)
            return
        waiting = place.checksums.verify(order.inputs)
        if waiting is None:
            self._start_verified(order, executor)
        else:
            self._start_when_verified(order, executor, waiting)

    # Functions that contain others cost time with each call, so most attempts do without.

    def _start_when_verified(
        self, order: StartAttempt, executor: Executor, waiting: Deferred[Damaged]
    ) -> None:
        key, place = (order.spec.id, order.attempt), self._place
        self._preparing.add(key)

        def verified(damaged: Iterable[ObjectId]) -> None:
            if key not in self._preparing:
                return  # it was cancelled
            self._preparing.remove(key)
            lost = {ref.id for ref in order.inputs}.intersection(damaged)
            if lost:
                losses = tuple([(object_id, place.netloc) for object_id in sorted(lost)])
                text = f"on worker {place.worker}: {', '.join(sorted(lost))} was damaged"
                place.owner.inputs_gone(key, losses, text)
            else:
                self._start_verified(order, executor)

        waiting.addCallback(verified)
        waiting.addErrback(lambda failure: log.failure("a task could not be started", failure))

    def _start_verified(self, order: StartAttempt, executor: Executor) -> None:
        if len(order.spec.payload) <= _INLINE_MAX_BYTES:
            self._carry_out(order, executor, self._translate(order, executor))
        else:
            self._translate_in_thread(order, executor)

    def _translate_in_thread(self, order: StartAttempt, executor: Executor) -> None:
        key = (order.spec.id, order.attempt)
        self._preparing.add(key)

        def translated(done: tuple[Task, Action] | TaskFault) -> None:
            if key in self._preparing:  # else it was cancelled
                self._preparing.remove(key)
                self._carry_out(order, executor, done)

        deferred = deferToThread(self._translate, order, executor)
        deferred.addCallback(translated)
        deferred.addErrback(lambda failure: log.failure("a task could not be started", failure))

    def _translate(
        self, order: StartAttempt, executor: Executor
    ) -> tuple[Task, Action] | TaskFault:
        """Have the executor translate the task into an action. Any thread may call this."""
        try:
            arguments = read_arguments(order.spec.payload)
            inputs = {ref.id: ref for ref in order.inputs}
            executors, within = self._place.executors, order.may_run_children
            caller, number = self._callers.find(order.spec.job), order.attempt
            task = Task(
                order.spec, arguments, inputs, executors, within, number, caller, order.taken,
                order.given,
            )  # fmt: skip
            return task, executor.begin(task)
        except (BadArgumentsError, CielError, WireError, TypeError, ValueError) as error:
            return arguments_fault(executor.name, error)
        except Exception as error:  # third-party executors may raise anything
            return executor_fault(executor, error)

    def _carry_out(
        self, order: StartAttempt, executor: Executor, done: tuple[Task, Action] | TaskFault
    ) -> None:
        if isinstance(done, TaskFault):
            self._lifecycle.report((order.spec.id, order.attempt), (), done, 0.0)
            return
        task, action = done
        if isinstance(action, Fail):
            fault = TaskFault(action.reason, action.details)
            self._lifecycle.report((order.spec.id, order.attempt), (), fault, 0.0)
        elif why := self._why_not_isolated(order, is_interactive=isinstance(action, Talk)):
            self._lifecycle.report((order.spec.id, order.attempt), (), why, 0.0)
        elif isinstance(action, Talk):
            self._interactive.start(order, task, executor, action)
        else:
            if order.given:
                self._interactive.make_way(order.given)
            self._batch.start(order, task, executor, action)

    def _why_not_isolated(self, order: StartAttempt, *, is_interactive: bool) -> TaskFault | None:
        """Return the fault of a task that cannot be isolated as it asks."""
        place = self._place
        if why := place.sandboxes.why_not(order.spec.needs, is_interactive=is_interactive):
            return TaskFault("NO_WORKER_FITS", f"worker {place.worker}: {why}")
        return None

    def kill(self, key: Key, *, force: bool) -> None:
        """Send SIGTERM, or SIGKILL by `force`, to the program of a cancelled attempt."""
        if key in self._preparing:
            self._preparing.remove(key)
            self._lifecycle.report(key, (), CANCELLED, 0.0)
        else:
            self._lifecycle.kill(key, force=force)

    def recall(self, key: Key) -> None:
        """Give up an attempt if its program has not been started yet."""
        self._lifecycle.recall(key)

    def close(self) -> None:
        """Forget all attempts; their programs end with the launcher."""
        self._preparing.clear()
        self._lifecycle.close()
        self._interactive.close()
        self._batch.close()
        self._place.scratch.close()
