"""Runs generators as calls: a yielded future is awaited, any other yielded value is an item."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from ciel.executors.programs.python.evaluation.interface import Evaluation
from ciel.python.task_futures import Items, TaskFuture, WorkItem


class SuspendedGenerator:
    """A generator between two of its steps.

    `put` is called with each item; if it is None, the list of all items becomes the value.
    """

    def __init__(
        self, generator: Generator[Any, Any, Any], put: Callable[[Any], None] | None = None
    ) -> None:
        self._generator = generator
        self._put = put
        self._items: Items | None = None
        self._awaited: TaskFuture[Any] | None = None
        self._scope: Any = None
        self._has_yielded = False

    def advance(self, evaluation: Evaluation, work: WorkItem) -> Sequence[WorkItem]:
        """Run the generator to its next `yield`; return the work items that it waits for."""
        generator = self._generator
        step: Callable[[], Any] = generator.__next__
        if self._awaited is not None:
            awaited, outcome = self._awaited, self._awaited.outcome()
            if outcome is None:
                return (awaited.target().work,)
            self._awaited = None
            try:
                value = awaited.value_of(outcome)
            except BaseException as error:  # a call may raise anything
                step = lambda error=error: generator.throw(error)  # type: ignore[misc]  # noqa: E731  # bound now
            else:
                step = lambda: generator.send(value)  # noqa: E731
        try:
            given, self._scope = evaluation.resume(self._scope, step)
        except StopIteration as end:
            self._finish(evaluation, work, end.value)
        except BaseException as error:  # a function may raise anything
            evaluation.fail(work, error, 2)
        else:
            self._has_yielded = True
            if type(given) is TaskFuture:
                self._awaited = given
            elif self._put is not None:
                self._give(evaluation, work, given)
            elif self._items is None:
                self._items = Items([given])
            else:
                self._items.append(given)
        return ()

    def _give(self, evaluation: Evaluation, work: WorkItem, item: Any) -> None:
        assert self._put is not None
        try:
            self._put(item)
        except Exception as error:  # the item cannot be pickled
            evaluation.fail(work, error)

    def _finish(self, evaluation: Evaluation, work: WorkItem, value: Any) -> None:
        work.suspended = None
        if self._items is not None:
            value = self._items
        elif value is None and not self._has_yielded:
            value = Items()
        evaluation.take(work, value)
