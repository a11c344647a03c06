"""Generators as tasks: what they yield is a future, whose value they are given back, or an item."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from ciel.python.task_futures import Items, TaskFuture, WorkItem

if TYPE_CHECKING:
    from ciel.executors.programs.python.evaluation.evaluator import Evaluator


class Generating:
    """A generator on its way. `put`: where items go; None: they are its value, as a list."""

    def __init__(
        self, generator: Generator[Any, Any, Any], put: Callable[[Any], None] | None = None
    ) -> None:
        self._generator = generator
        self._put = put
        self._items: Items | None = None
        self._awaited: TaskFuture[Any] | None = None
        self._home: Any = None
        self._has_yielded = False

    def advance(self, evaluator: Evaluator, work: WorkItem) -> Sequence[WorkItem]:
        """Take it as far as it goes; return what it needs now."""
        generator = self._generator
        step: Callable[[], Any] = generator.__next__
        if self._awaited is not None:
            awaited, outcome = self._awaited, self._awaited.outcome()
            if outcome is None:
                return (awaited.target().work,)
            self._awaited = None
            try:
                value = awaited.value_of(outcome)
            except BaseException as error:  # whatever that has raised
                step = lambda error=error: generator.throw(error)  # type: ignore[misc]  # noqa: E731  # bound now
            else:
                step = lambda: generator.send(value)  # noqa: E731
        try:
            given, self._home = evaluator.stepped(self._home, step)
        except StopIteration as end:
            self._finish(evaluator, work, end.value)
        except BaseException as error:  # whatever a function raises is its result
            evaluator.fail(work, error, 2)
        else:
            self._has_yielded = True
            if type(given) is TaskFuture:
                self._awaited = given
            elif self._put is not None:
                self._give(evaluator, work, given)
            elif self._items is None:
                self._items = Items([given])
            else:
                self._items.append(given)
        return ()

    def _give(self, evaluator: Evaluator, work: WorkItem, item: Any) -> None:
        assert self._put is not None
        try:
            self._put(item)
        except Exception as error:  # it has no bytes
            evaluator.fail(work, error)

    def _finish(self, evaluator: Evaluator, work: WorkItem, value: Any) -> None:
        work.suspended = None
        if self._items is not None:
            value = self._items
        elif value is None and not self._has_yielded:
            value = Items()
        evaluator.take(work, value)
