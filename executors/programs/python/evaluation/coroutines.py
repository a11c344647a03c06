"""Runs coroutines, and the calls that they await, in an asyncio event loop.

The program releases its slot while all its coroutines wait for remote calls. The loop's selector
decides this, since the loop calls it when no callback is ready.
"""

from __future__ import annotations

import asyncio
import selectors
import types
import weakref
from asyncio import events
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from typing import Any

from ciel.executors.programs.python.evaluation.interface import (
    COROUTINE_SCOPE,
    Evaluation,
    shorten,
)
from ciel.executors.programs.python.evaluation.sharing import Sharing
from ciel.python.task_futures import DONE, PENDING, REMOTE, RUNNING, Items, TaskFuture, WorkItem

POLL_FIRST_S, POLL_MAX_S = 0.005, 0.25
"""The shortest and longest interval at which a loop that also waits for timers or files polls for
results of remote calls.
"""
STAYS_S = 0.5
"""How long a loop polls before the program releases its slot, which the remote calls may need.

The program takes the slot back when the loop has work, and releases it again after this time.
"""
LEAVES_MIN_S = 0.1
"""The shortest time for which the program releases its slot; timers may be late by this time."""

CANCEL_MAX_S = 1.0
"""How long the remaining coroutines have to end after they are cancelled at the end of a task."""

TICKS_TO_CANCEL = 3
"""Iterations of the loop until an expired timer has cancelled its task.

The loop finds the timer, runs its callback, and resumes what the callback woke
(`asyncio.wait_for`).
"""

_scope: ContextVar[Any] = ContextVar("scope", default=None)
"""The scope of the current coroutine."""


class _Selector(selectors.DefaultSelector):
    """Calls `idle` before the loop sleeps."""

    idle: Callable[[float | None], float | None]

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            found = super().select(0)
            if found:
                return found
            timeout = self.idle(timeout)
        return super().select(timeout)

    @property
    def has_files(self) -> bool:
        """Whether it watches any file except the loop's own."""
        return len(self.get_map()) > 1


_spare: list[tuple[asyncio.SelectorEventLoop, _Selector]] = []


class Loop:
    """An event loop, and the remote calls that its coroutines wait for."""

    def __init__(self, evaluation: Evaluation, sharing: Sharing) -> None:
        self._evaluation = evaluation
        self._sharing = sharing
        self.is_running = False
        if _spare:
            self.loop, self._selector = _spare.pop()
        else:
            self._selector = _Selector()
            self.loop = asyncio.SelectorEventLoop(self._selector)
        self._selector.idle = self._idle
        self._requests: list[tuple[WorkItem, asyncio.Future[None]]] = []
        self._goal: WorkItem | None = None
        self._poll_s = POLL_FIRST_S
        self._leaves_s: float | None = None
        self._stays_until_s = 0.0
        self._requested: weakref.WeakSet[WorkItem] = weakref.WeakSet()
        self._has_timers = False

    def run(self, goal: WorkItem) -> None:
        """Run the loop until the coroutine of an item has ended.

        Release the slot while the loop has nothing to do but to wait for remote calls.
        """
        while not _has_ended(goal):
            self._goal = goal
            outer = events._get_running_loop()
            events._set_running_loop(None)
            self.is_running = True
            try:
                self._evaluation.resume(COROUTINE_SCOPE, self.loop.run_forever)
            finally:
                self.is_running = False
                events._set_running_loop(outer)
            self._answer()
            waited = [work for work, _ in self._requests]
            leaves_s, self._leaves_s = self._leaves_s, None
            if _has_ended(goal) or not waited:
                continue
            if leaves_s is not None or not self._is_busy_otherwise():
                self._sharing.wait(waited, any_one=True, timeout_s=leaves_s)
                self._stays_until_s = self.loop.time() + STAYS_S
                self._answer()

    def request(self, work: WorkItem) -> asyncio.Future[None]:
        """Return a future that is done when a remote item is done."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._requests.append((work, future))
        if work not in self._requested:  # a request after a timeout does not restart the intervals
            self._requested.add(work)
            self._poll_s = POLL_FIRST_S
            self._stays_until_s = self.loop.time() + STAYS_S
        return future

    @property
    def is_late(self) -> bool:
        """Whether a timer has expired, such as one of `asyncio.timeout`."""
        timers = self.loop._scheduled  # type: ignore[attr-defined]  # asyncio has no public way
        return bool(timers) and bool(timers[0].when() <= self.loop.time())

    def stop(self) -> None:
        """Stop the loop if the coroutine for which it runs has ended."""
        if self.is_running and self._goal is not None and _has_ended(self._goal):
            self.loop.stop()

    def _answer(self) -> None:
        pending = []
        for work, future in self._requests:
            if future.done():
                continue
            if work.state is DONE:
                future.set_result(None)
            else:
                pending.append((work, future))
        self._requests = pending

    def _is_busy_otherwise(self) -> bool:
        return self._has_timers or self._can_be_woken

    @property
    def _can_be_woken(self) -> bool:
        """Whether files, or threads of the loop, can wake it."""
        return self._selector.has_files or self.loop._default_executor is not None  # type: ignore[attr-defined]  # asyncio has no public way

    def _idle(self, timeout: float | None) -> float | None:
        """Return how long the loop may sleep; called when no callback is ready."""
        self._has_timers = timeout is not None
        self._answer()
        goal = self._goal
        if goal is None or _has_ended(goal):
            self.loop.stop()
            return 0
        if not self._requests:
            return timeout
        if not self._is_busy_otherwise():
            self.loop.stop()
            return 0
        if self._sharing.poll([work for work, _ in self._requests]) or any(
            work.state is DONE for work, _ in self._requests
        ):
            self._answer()
            return 0
        rest_s = POLL_MAX_S if timeout is None else timeout
        if self._can_be_woken:
            rest_s = min(rest_s, POLL_MAX_S)
        if self.loop.time() >= self._stays_until_s and self._sharing.may_wait:
            self._leaves_s = max(rest_s, LEAVES_MIN_S)
            self.loop.stop()
            return 0
        self._poll_s = min(2 * self._poll_s, POLL_MAX_S)
        return min(rest_s, self._poll_s)

    def close(self) -> None:
        """Cancel the remaining coroutines, and keep the loop for another task if possible."""
        loop = self.loop
        left = asyncio.all_tasks(loop)
        if left:
            for task in left:
                task.cancel()
            self._run_to_end(asyncio.wait(left, timeout=CANCEL_MAX_S))
        self._run_to_end(loop.shutdown_asyncgens())
        if asyncio.all_tasks(loop):  # these coroutines have ignored their cancellation
            return
        if not self._can_be_woken:
            _spare.append((loop, self._selector))
        else:
            self._run_to_end(loop.shutdown_default_executor())
            loop.close()

    def _run_to_end(self, what: Any) -> None:
        self._selector.idle = lambda timeout: timeout
        outer = events._get_running_loop()
        events._set_running_loop(None)
        try:
            self.loop.run_until_complete(what)
        finally:
            events._set_running_loop(outer)


def _has_ended(work: WorkItem) -> bool:
    """Return whether the coroutine of an item has ended, maybe by forwarding its result."""
    return work.state is DONE or work.suspended is None


class SuspendedCoroutine:
    """A coroutine, or an asynchronous generator, that runs in an event loop."""

    def __init__(
        self,
        evaluation: Evaluation,
        loop: Loop,
        work: WorkItem,
        body: Any,
        put: Callable[[Any], None] | None = None,
    ) -> None:
        self._evaluation = evaluation
        self._work = work
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []
        if isinstance(body, types.AsyncGeneratorType):
            body = _items_of(body, put)
        outer = _scope.set(None)
        try:
            self._task = loop.loop.create_task(self._run(body))
        finally:
            _scope.reset(outer)

    async def _run(self, body: Any) -> None:
        try:
            value = await body
        except BaseException as error:  # a function may raise anything
            if self._work.state is not DONE:
                self._evaluation.fail(self._work, error, 1)
        else:
            if self._work.state is not DONE:
                self._work.suspended = None
                self._evaluation.take(self._work, value)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._loop.stop()

    def advance(self, evaluation: Evaluation, work: WorkItem) -> Sequence[WorkItem]:
        """Run the loop until the coroutine has ended."""
        self._loop.run(work)
        return ()

    def wait(self, loop: Loop) -> asyncio.Future[None] | None:
        """Return a future that is done when the coroutine has ended.

        None: the coroutine runs in another loop.
        """
        if loop is not self._loop:
            return None
        waiter: asyncio.Future[None] = loop.loop.create_future()
        self._waiters.append(waiter)
        return waiter


async def _items_of(body: Any, put: Callable[[Any], None] | None) -> Any:
    items = Items()
    keep = items.append if put is None else put
    async for item in body:
        keep(item)
    return items if put is None else None


class Loops:
    """The event loops of one task.

    A task has several if a function that runs in a loop waits for a coroutine in `result()`.
    """

    def __init__(self, evaluation: Evaluation, sharing: Sharing) -> None:
        self._evaluation = evaluation
        self._sharing = sharing
        self._loops: list[Loop] = []
        self._waiting_elsewhere: dict[int, WorkItem] = {}
        """Items that coroutines wait for in loops of the user, such as `asyncio.run`."""

    def suspend(self, work: WorkItem, body: Any, put: Callable[[Any], None] | None) -> Any:
        """Start a coroutine or an asynchronous generator, which is the body of an item."""
        return SuspendedCoroutine(self._evaluation, self._loop_for_start(), work, body, put)

    def _loop_for_start(self) -> Loop:
        if self._evaluation.runs_coroutine:
            return next(loop for loop in reversed(self._loops) if loop.is_running)
        if not self._loops or self._loops[-1].is_running:
            self._loops.append(Loop(self._evaluation, self._sharing))
        return self._loops[-1]

    def scope(self) -> Any:
        """Return the scope of the current coroutine."""
        found = _scope.get()
        if found is None:
            found = self._sharing.new_scope()
            _scope.set(found)
        return found

    def close(self) -> None:
        """Cancel the remaining coroutines."""
        for loop in reversed(self._loops):
            loop.close()
        self._loops.clear()

    # --- await ------------------------------------------------------------------------------------

    def wait_for(self, future: TaskFuture[Any]) -> Generator[Any, Any, Any]:
        """Wait for a future in a coroutine; return its value, or raise its exception."""
        while (outcome := future.outcome()) is None:
            work = future.target().work
            running = events._get_running_loop()
            loop = next((loop for loop in self._loops if loop.loop is running), None)
            if loop is None:
                yield from self._complete_in_other_loop(work)
            else:
                yield from self._complete(loop, work)
        return future.value_of(outcome)

    def _complete_in_other_loop(self, goal: WorkItem) -> Generator[Any, Any, None]:
        """Wait for an item in an event loop of the user.

        Nothing reports when such a loop is idle. So the first of its waiting coroutines blocks the
        loop for short times.
        """
        waiting = self._waiting_elsewhere
        waiting[id(goal)] = goal
        try:
            while goal.state is not DONE:
                if goal.state is PENDING and self._evaluation.may_run(goal):
                    self._evaluation.complete([goal])
                    return
                yield
                all_wait = not any(work.state is DONE for work in waiting.values())
                if all_wait and next(iter(waiting.values())) is goal:
                    self._evaluation.complete(
                        [*waiting.values()], any_one=True, timeout_s=LEAVES_MIN_S
                    )
        finally:
            waiting.pop(id(goal), None)

    def _complete(self, loop: Loop, goal: WorkItem) -> Generator[Any, Any, None]:
        """Wait for an item in a loop of this class, which runs what this program can run for it."""
        evaluation = self._evaluation
        stack = [goal]
        while stack:
            work = stack[-1]
            if work.state is DONE:
                stack.pop()
                continue
            suspended = work.suspended
            if work.state is RUNNING and isinstance(suspended, SuspendedCoroutine):
                waiter = suspended.wait(loop)
                yield from waiter or loop.request(work)
                continue
            if work.state is REMOTE or (work.state is PENDING and not evaluation.may_run(work)):
                yield from loop.request(work)
                continue
            events._set_running_loop(None)  # the function may run another loop
            try:
                needed = evaluation.advance(work)
            finally:
                events._set_running_loop(loop.loop)
            if loop.is_late:
                for _ in range(TICKS_TO_CANCEL):
                    yield
            if shorten(stack):
                continue
            for need in needed:
                runs_below = need.state is RUNNING and not (need.suspended or need.forward)
                if runs_below or need in stack:
                    yield from loop.request(need)
                else:
                    stack.append(need)
                    break
