"""Coroutines as tasks: they run in an event loop, as anywhere, and what they await of ours is begun
in it. Where all of them wait for what others do, the program waits in no slot.

The loop is asked by its selector: when it has nothing to do, and when it only waits.
"""

from __future__ import annotations

import asyncio
import selectors
import types
import weakref
from asyncio import events
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ciel.executors.programs.python.evaluation.evaluator import shorten
from ciel.python.task_futures import DONE, PENDING, REMOTE, RUNNING, Items, TaskFuture, WorkItem

if TYPE_CHECKING:
    from ciel.executors.programs.python.evaluation.evaluator import Evaluator

LOOK_FIRST_S, LOOK_MAX_S = 0.005, 0.25
"""How often it looks what others have done, while something else of the loop waits, too."""

STAYS_S = 0.5
"""Then it leaves its slot, in which they might have to run, until that may have something to do;
and again, when it has been back for so long.
"""
LEAVES_MIN_S = 0.1
"""It leaves for so long, at least: all its timers are that late."""

CANCEL_MAX_S = 1.0
"""So long coroutines that were left behind may take to end."""

TURNS_TO_BE_HEARD = 3
"""So often the loop comes round until what is due has cancelled us, if that is what it does: it is
found; it runs; and whom it woke up does (`asyncio.wait_for`).
"""

home: ContextVar[Any] = ContextVar("home", default=None)
"""Where the works of a coroutine wait to be run."""


class _Selector(selectors.DefaultSelector):
    """Says when the loop would sleep."""

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
        """Whether anything but the loop's own is watched."""
        return len(self.get_map()) > 1


_spare: list[tuple[asyncio.SelectorEventLoop, _Selector]] = []


class Looping:
    """A loop, and what its coroutines wait for that others do."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self.is_running = False
        if _spare:
            self.loop, self._selector = _spare.pop()
        else:
            self._selector = _Selector()
            self.loop = asyncio.SelectorEventLoop(self._selector)
        self._selector.idle = self._idle
        self._requests: list[tuple[WorkItem, asyncio.Future[None]]] = []
        self._goal: WorkItem | None = None
        self._look_s = LOOK_FIRST_S
        self._leaves_s: float | None = None
        self._stays_until_s = 0.0
        self._requested: weakref.WeakSet[WorkItem] = weakref.WeakSet()

    def run(self, goal: WorkItem) -> None:
        """Run the loop until a coroutine has ended; wait for others where nothing else is left."""
        while not _has_ended(goal):
            self._goal = goal
            outer = events._get_running_loop()
            events._set_running_loop(None)
            self.is_running = True
            try:
                self._evaluator.stepped(IN_LOOP, self.loop.run_forever)
            finally:
                self.is_running = False
                events._set_running_loop(outer)
            self._answer()
            waited = [work for work, _ in self._requests]
            leaves_s, self._leaves_s = self._leaves_s, None
            if _has_ended(goal) or not waited:
                continue
            if leaves_s is not None or not self._is_busy_otherwise():
                self._evaluator.sharing.wait(waited, any_one=True, timeout_s=leaves_s)
                self._stays_until_s = self.loop.time() + STAYS_S
                self._answer()

    def request(self, work: WorkItem) -> asyncio.Future[None]:
        """Return what is done when others have done a work."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._requests.append((work, future))
        if work not in self._requested:  # not once more, after a time-out
            self._requested.add(work)
            self._look_s = LOOK_FIRST_S
            self._stays_until_s = self.loop.time() + STAYS_S
        return future

    @property
    def is_late(self) -> bool:
        """Whether something is due, such as the end of an `asyncio.timeout`."""
        timers = self.loop._scheduled  # type: ignore[attr-defined]  # there is no other way to ask
        return bool(timers) and bool(timers[0].when() <= self.loop.time())

    def stop(self) -> None:
        """Leave the loop if what it was run for has ended."""
        if self.is_running and self._goal is not None and _has_ended(self._goal):
            self.loop.stop()

    def _answer(self) -> None:
        left = []
        for work, future in self._requests:
            if future.done():
                continue
            if work.state is DONE:
                future.set_result(None)
            else:
                left.append((work, future))
        self._requests = left

    def _is_busy_otherwise(self) -> bool:
        return self._has_timers or self._hears

    @property
    def _hears(self) -> bool:
        """Whether it may be woken up by more than the clock: by files, or by threads of its own."""
        return self._selector.has_files or self.loop._default_executor is not None  # type: ignore[attr-defined]  # there is no other way to ask

    _has_timers = False

    def _idle(self, timeout: float | None) -> float | None:
        """Say how long the loop may sleep that has nothing to do now."""
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
        if self._evaluator.sharing.look([work for work, _ in self._requests]) or any(
            work.state is DONE for work, _ in self._requests
        ):
            self._answer()
            return 0
        rest_s = LOOK_MAX_S if timeout is None else timeout
        if self._hears:
            rest_s = min(rest_s, LOOK_MAX_S)
        if self.loop.time() >= self._stays_until_s and self._evaluator.sharing.may_wait:
            self._leaves_s = max(rest_s, LEAVES_MIN_S)
            self.loop.stop()
            return 0
        self._look_s = min(2 * self._look_s, LOOK_MAX_S)
        return min(rest_s, self._look_s)

    def close(self) -> None:
        """End what coroutines have left behind."""
        loop = self.loop
        left = asyncio.all_tasks(loop)
        self._goal = WorkItem(None, (), {}, None)  # type: ignore[arg-type]  # it stands for the end
        if left:
            for task in left:
                task.cancel()
            self._run_to_end(asyncio.wait(left, timeout=CANCEL_MAX_S))
        self._run_to_end(loop.shutdown_asyncgens())
        if asyncio.all_tasks(loop):  # they will not go
            return
        if not self._hears:
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
    """Whether the coroutine of a work has ended, be it by handing its result on."""
    return work.state is DONE or work.suspended is None


class _InLoop:
    """Stands for where the works of a coroutine wait: its context knows."""


IN_LOOP = _InLoop()


class Asynchronous:
    """A coroutine on its way, or an asynchronous generator."""

    def __init__(
        self,
        evaluator: Evaluator,
        work: WorkItem,
        body: Any,
        put: Callable[[Any], None] | None = None,
    ) -> None:
        self._evaluator = evaluator
        self._work = work
        self._looping: Looping = evaluator.looping()
        self._waiters: list[asyncio.Future[None]] = []
        if isinstance(body, types.AsyncGeneratorType):
            body = _items_of(body, put)
        context_home = home.set(None)
        try:
            self._task = self._looping.loop.create_task(self._run(body))
        finally:
            home.reset(context_home)

    async def _run(self, body: Any) -> None:
        try:
            value = await body
        except BaseException as error:  # whatever a function raises is its result
            if self._work.state is not DONE:
                self._evaluator.fail(self._work, error, 1)
        else:
            if self._work.state is not DONE:
                self._work.suspended = None
                self._evaluator.take(self._work, value)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._looping.stop()

    def advance(self, evaluator: Evaluator, work: WorkItem) -> Sequence[WorkItem]:
        """Run the loop until the coroutine has ended."""
        self._looping.run(work)
        return ()

    def wait(self, looping: Looping) -> asyncio.Future[None] | None:
        """Return what is done when the coroutine has ended; None if it runs in another loop."""
        if looping is not self._looping:
            return None
        waiter: asyncio.Future[None] = looping.loop.create_future()
        self._waiters.append(waiter)
        return waiter


async def _items_of(body: Any, put: Callable[[Any], None] | None) -> Any:
    items = Items()
    keep = items.append if put is None else put
    async for item in body:
        keep(item)
    return items if put is None else None


def awaited(evaluator: Evaluator, future: TaskFuture[Any]) -> Generator[Any, Any, Any]:
    """Wait for a future in a coroutine; return its value, or raise it."""
    while (outcome := future.outcome()) is None:
        work = future.target().work
        looping = evaluator.looping_of(events._get_running_loop())
        if looping is None:
            yield from _settled_in_another_loop(evaluator, work)
        else:
            yield from _settled(evaluator, looping, work)
    return future.value_of(outcome)


def _settled_in_another_loop(evaluator: Evaluator, goal: WorkItem) -> Generator[Any, Any, None]:
    """Wait for a work in a loop of the function's own, as that of `asyncio.run`. It cannot be asked
    when it has nothing to do, so one of the coroutines that wait waits in its place, briefly.
    """
    waiting = evaluator.waiting_in_other_loops
    waiting[id(goal)] = goal
    try:
        while goal.state is not DONE:
            if goal.state is PENDING and evaluator.may_run(goal):
                evaluator.complete([goal])
                return
            yield
            all_wait = not any(work.state is DONE for work in waiting.values())
            if all_wait and next(iter(waiting.values())) is goal:
                evaluator.complete([*waiting.values()], any_one=True, timeout_s=LEAVES_MIN_S)
    finally:
        waiting.pop(id(goal), None)


def _settled(evaluator: Evaluator, looping: Looping, goal: WorkItem) -> Generator[Any, Any, None]:
    """Wait for a work in a coroutine: what can be done here is done in its loop."""
    stack = [goal]
    while stack:
        work = stack[-1]
        if work.state is DONE:
            stack.pop()
            continue
        step = work.suspended
        if work.state is RUNNING and isinstance(step, Asynchronous):
            waiter = step.wait(looping)
            yield from waiter or looping.request(work)
            continue
        if work.state is REMOTE or (work.state is PENDING and not evaluator.may_run(work)):
            yield from looping.request(work)
            continue
        events._set_running_loop(None)  # a function may run one of its own
        try:
            needed = evaluator.advance(work)
        finally:
            events._set_running_loop(looping.loop)
        if looping.is_late:
            for _ in range(TURNS_TO_BE_HEARD):
                yield
        if shorten(stack):
            continue
        for need in needed:
            if need in stack or (
                need.state is RUNNING and need.suspended is None and not need.forward
            ):
                yield from looping.request(need)  # whoever runs it is below us
            else:
                stack.append(need)
                break
