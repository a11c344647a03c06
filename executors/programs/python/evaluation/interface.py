"""The interface of the evaluator, so that the modules that it uses need not import it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ciel.python.task_futures import Host, Result, TaskFuture, WorkItem

COROUTINE_SCOPE: object = object()
"""A placeholder for the scope of a coroutine while it runs; the scope itself is in the coroutine's
context (see `Loops.scope`).
"""


class Evaluation(Host, Protocol):
    """The work items of one task, and how they run."""

    is_careful: bool

    @property
    def runs_coroutine(self) -> bool:
        """Whether the current code is a coroutine in an event loop of `coroutines.Loops`."""

    def may_run(self, work: WorkItem) -> bool:
        """Return whether this program may run an item that another program could run."""

    def evaluate(self, work: WorkItem, *, may_delegate: bool = False) -> TaskFuture[Any] | None:
        """Run an item, and all that it depends on, until it is done."""

    def advance(self, work: WorkItem) -> Sequence[WorkItem]:
        """Run an item until it has to wait; return the items that it waits for."""

    def resume(self, scope: Any, step: Callable[[], Any]) -> tuple[Any, Any]:
        """Call `step`, which resumes a generator or an event loop.

        Return its result, and the scope of the items that it has spawned.
        """

    def take(self, work: WorkItem, value: Any, put: Any = None) -> None:
        """Accept the value that the function of an item has returned.

        `put` is called with each item that a returned generator yields.
        """

    def fail(self, work: WorkItem, error: BaseException, skipped_frames: int = 0) -> None:
        """End an item with the exception that its function has raised."""

    def finish(self, work: WorkItem, results: list[Result]) -> None:
        """End an item with its results."""


def shorten(stack: list[WorkItem]) -> bool:
    """Remove the top of a stack of items if it only passes a result on; return whether it did.

    If the item below forwards to the top, and the top forwards to a third item, the item below can
    forward to the third itself. So a loop of functions that forward needs a stack of constant size.
    """
    if len(stack) < 2 or stack[-1].forward is None or stack[-1].options.returns != 1:
        return False
    before = stack[-2].forward
    if before is None or before.target().work is not stack[-1]:
        return False
    shortened = stack.pop()
    first = stack[-1]
    first.forward, shortened.forward = shortened.forward, TaskFuture(before.host, first)
    return True
