"""Runs calls, and what they spawn: in this very program, when somebody needs it; elsewhere, what
was given away before (see docs/adr/0032).

Functions that hand their result on, generators and coroutines leave Python's stack while they wait;
what runs for them lies on a list. `result()` within a function does not: whatever that needs runs
above it.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from threading import get_ident, local
from typing import TYPE_CHECKING, Any

from ciel.executors.programs.python.functions import Copied, is_apart
from ciel.python.calls import Mapped
from ciel.python.contents import ERROR, MOVED
from ciel.python.options import Options
from ciel.python.packing import Buffer, UnpackedError, unpack
from ciel.python.task_futures import (
    DONE,
    PENDING,
    PLAIN,
    REMOTE,
    RUNNING,
    Items,
    Result,
    TaskFuture,
    WorkItem,
    result_of,
    unpack_result,
)
from ciel.python.tasks import Task

if TYPE_CHECKING:
    from ciel.executors.programs.python.evaluation.coroutines import Looping
    from ciel.executors.programs.python.evaluation.sharing import Sharing

NESTED_MAX = 100
"""Calls that wait in `result()` above each other; what one more needs runs elsewhere."""
FRAMES = 1000
"""Calls of Python's within each of them."""
STANDING_FOR_ANOTHER = frozenset(
    (TaskFuture, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
)
"""Types of what a function returns that is not its result yet."""
ITEMS_ITERATOR: type = type(iter([]))
_FRAMES_OF_OURS = 3  # in a traceback


class Evaluator:
    """All works of one task."""

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self._lock = sharing.lock
        self._thread = get_ident()
        self._threads = local()
        self._home: Any = None  # of the body that runs now
        self._depth = 0
        self._loopings: list[Looping] = []
        self.waiting_in_other_loops: dict[int, WorkItem] = {}
        self.locals_wanted = False
        self.is_careful = False  # the program has died of this task: what it spawns runs elsewhere
        self._runs_others = False
        self._frames = sys.getrecursionlimit()

    # --- as the host of futures -------------------------------------------------------------------

    def spawn(self, work: WorkItem) -> None:
        if get_ident() != self._thread:
            return  # it stays here: that thread could not wait for what others do
        sharing = self.sharing
        with self._lock:
            home = self._home
            if home is None:
                home = self._home = sharing.new_home()
            elif type(home) is not dict:  # a coroutine runs
                home = self._home_of_coroutine()
            work.scope = home
            home[id(work)] = weakref.ref(work)
        if not sharing.is_armed:
            sharing.arm()

    def complete(
        self, works: Sequence[WorkItem], *, any_one: bool = False, timeout_s: float | None = None
    ) -> None:
        if get_ident() != self._thread:
            self._beside().complete(works, any_one=any_one, timeout_s=timeout_s)
            return
        for work in works:
            if work.state is PENDING and self.may_run(work):
                if timeout_s is not None and self._given(work):
                    continue
                self._drive(work)
                if any_one:
                    return
        missing = [work for work in works if work.state is not DONE]
        if missing:
            self.sharing.wait(missing, any_one=any_one, timeout_s=timeout_s)

    def _given(self, work: WorkItem) -> bool:
        """Have others do a work, as what runs here is not interrupted; False if that cannot be."""
        with self._lock:
            return self.sharing.may_wait and self.sharing.give(work, wanted=True)

    def _beside(self) -> Evaluator:
        """Return who evaluates in this thread, which a function has started."""
        found: Evaluator | None = getattr(self._threads, "evaluator", None)
        if found is None:
            found = self._threads.evaluator = Evaluator(self.sharing)
            found.is_careful, found.locals_wanted = self.is_careful, self.locals_wanted
        return found

    def writable(self, buffer: Buffer) -> Buffer:
        return self.sharing.writable(buffer)

    def poll(self, work: WorkItem) -> bool:
        return work.state is DONE or (work.state is REMOTE and self.sharing.look((work,)))

    def wait_in_coroutine(self, future: TaskFuture[Any]) -> Generator[Any, Any, Any]:
        from ciel.executors.programs.python.evaluation.coroutines import awaited

        return awaited(self, future)

    def cancel(self, work: WorkItem) -> bool:
        from ciel.python.failures import TaskCancelledError

        with self._lock:
            if work.state is DONE or work.state is RUNNING:
                return False
            self.sharing.forget(work)
            error = TaskCancelledError(
                "it was called off by the task that had spawned it", "CANCELLED"
            )
            self._end(work, [Result(ERROR, self.packed_error(error))] * work.options.returns)
        return True

    # --- coroutines -------------------------------------------------------------------------------

    def looping(self) -> Looping:
        """Return the loop in which a coroutine is to run that begins now."""
        from ciel.executors.programs.python.evaluation.coroutines import Looping

        if self._home is not None and type(self._home) is not dict:
            return self.looping_now()
        if not self._loopings or self._loopings[-1].is_running:
            self._loopings.append(Looping(self))
        return self._loopings[-1]

    def looping_now(self) -> Looping:
        """Return the loop that runs, and in which we are."""
        return next(looping for looping in reversed(self._loopings) if looping.is_running)

    def looping_of(self, loop: Any) -> Looping | None:
        """Return what runs an event loop; None for one that a function has made."""
        return next((looping for looping in self._loopings if looping.loop is loop), None)

    def _home_of_coroutine(self) -> Any:
        from ciel.executors.programs.python.evaluation.coroutines import home

        found = home.get()
        if found is None:
            found = self.sharing.new_home()
            home.set(found)
        return found

    def close(self) -> None:
        """End what coroutines have left behind."""
        for looping in reversed(self._loopings):
            looping.close()
        self._loopings.clear()

    # --- running ----------------------------------------------------------------------------------

    def may_run(self, work: WorkItem) -> bool:
        """Whether we may run a work that others could run."""
        if not work.may_run_inline or (self.is_careful and not self.sharing.is_closed):
            return False  # where the output is open, nobody else can
        if not self._runs_others:
            self._runs_others = True
            self.sharing.note_within()
        return True

    def evaluate(self, work: WorkItem, *, may_hand_on: bool = False) -> TaskFuture[Any] | None:
        """Run a work until it is done, with all that it needs. If it `may_hand_on` its result to
        what others do, return the future of that instead of waiting for it.
        """
        return self._drive(work, may_hand_on)

    def _drive(self, goal: WorkItem, may_hand_on: bool = False) -> TaskFuture[Any] | None:
        if self._depth >= NESTED_MAX:
            self.sharing.wait([goal])
            return None
        outer, self._home = self._home, None
        self._depth += 1
        sys.setrecursionlimit(self._frames + self._depth * FRAMES)
        stack = [goal]
        try:
            while goal.state is not DONE:
                work = stack[-1]
                if work.state is DONE:
                    stack.pop()
                    continue
                needed = self.advance(work)
                if not needed or shorten(stack):
                    continue
                for need in needed:
                    if (need.state is PENDING and self.may_run(need)) or is_handed_on(need, stack):
                        stack.append(need)
                        break
                else:
                    if may_hand_on and (heir := self._heir_of(stack)) is not None:
                        return heir
                    self._wait_for(work, needed, stack)
            return None
        finally:
            self._home = outer
            self._depth -= 1
            sys.setrecursionlimit(self._frames + self._depth * FRAMES)

    def _heir_of(self, stack: Sequence[WorkItem]) -> TaskFuture[Any] | None:
        """Return the future to which a work has handed its result on, through all those on a list;
        None if somebody has to wait for it.
        """
        for work, need in zip(stack, [*stack[1:], None], strict=True):
            if work.forward is None:
                return None
            found = work.forward.target()
            if need is None:
                return self.sharing.handed_on(found)
            if found.work is not need or need.options.returns != 1:
                return None
        return None

    def _wait_for(
        self, work: WorkItem, needed: Sequence[WorkItem], stack: Sequence[WorkItem]
    ) -> None:
        if any(need.state is RUNNING and need in stack for need in needed):
            error = RuntimeError("it waits for its own result")
            self._end(work, [Result(ERROR, self.packed_error(error))] * work.options.returns)
        else:
            self.sharing.wait(needed)

    def advance(self, work: WorkItem) -> Sequence[WorkItem]:
        """Take a work as far as it goes; return what it needs now."""
        if work.state is PENDING:
            with self._lock:
                if work.state is PENDING:
                    work.state = RUNNING
                    self.sharing.forget(work)
        if work.state is REMOTE:
            return (work,)
        if work.forward is not None:
            return self._hand_on(work, work.forward)
        if work.suspended is not None:
            needed: Sequence[WorkItem] = work.suspended.advance(self, work)
            return needed
        if work.dependencies:
            missing = [f.target().work for f in work.dependencies if f.outcome() is None]
            if missing:
                return missing
        self._begin(work)
        return ()

    def _hand_on(self, work: WorkItem, forward: TaskFuture[Any]) -> Sequence[WorkItem]:
        outcome = forward.outcome()
        if outcome is None:
            return (forward.target().work,)
        self._end(work, [outcome])
        return ()

    def _begin(self, work: WorkItem) -> None:
        try:
            for future in work.dependencies:
                outcome = future.wait()
                if outcome.kind == ERROR:
                    self._end(work, [outcome] * work.options.returns)
                    return
            args, kwargs = arguments_of(work, self.writable)
            function: Any = work.function
            copy = None
            if type(function) is Copied:
                copy, loaded = function.loaded.take(), function.loaded
                function = copy.function
            elif type(function) is Task:
                function = function.function
            value = self._call(function, args, kwargs)
        except BaseException as error:  # whatever a function raises is its result
            self.fail(work, error, 2)
        else:
            self.take(work, value)
            if copy is not None and is_apart(value, [result.payload for result in work.results]):
                loaded.give_back(copy)

    def _call(self, function: Any, args: Any, kwargs: Any) -> Any:
        outer, self._home = self._home, None
        try:
            return function(*args, **kwargs)
        finally:
            self._home = outer

    def stepped(self, home: Any, step: Callable[[], Any]) -> tuple[Any, Any]:
        """Go on with a body that was left; return what it gave, and where it keeps its works."""
        outer, self._home = self._home, home
        try:
            return step(), self._home
        finally:
            self._home = outer

    # --- what comes of it -------------------------------------------------------------------------

    def take(self, work: WorkItem, value: Any, put: Any = None) -> None:
        """Make of what a function has returned what becomes of its work. `put`: where items go that
        it yields.
        """
        returns = work.options.returns
        kind = type(value)
        if kind is TaskFuture and returns == 1:
            work.forward = value
        elif kind is types.GeneratorType:
            from ciel.executors.programs.python.evaluation.generators import Generating

            work.suspended = Generating(value, put)
        elif kind is types.CoroutineType or kind is types.AsyncGeneratorType:
            from ciel.executors.programs.python.evaluation.coroutines import Asynchronous

            work.suspended = Asynchronous(self, work, value, put)
        else:
            self._end(work, self._results(work, value))

    def resolve(self, value: Any, name: str) -> Any:
        if type(value) not in STANDING_FOR_ANOTHER:
            return value
        work = WorkItem(None, (), {}, Options(name=name))
        self.take(work, value)
        self._drive(work)
        found: Any = TaskFuture(self, work).result()
        return list(found) if type(found) is Items else found

    def _results(self, work: WorkItem, value: Any) -> list[Result]:
        returns = work.options.returns
        try:
            if returns == 1:
                return [result_of(value)]
            try:
                values = list(value)
            except TypeError:
                values = []
            if len(values) != returns:
                what = f"it is declared to return {returns} values, and returned {value!r:.80}"
                raise UnpackedError(what)
            return [
                Result(MOVED, item) if type(item) is TaskFuture else result_of(item)
                for item in values
            ]
        except BaseException as error:  # of anybody's __reduce__
            if type(value) is Mapped and (found := self._until_unpackable(work, value)):
                return [found]
            return [Result(ERROR, self.packed_error(unpackable(work, error)))] * returns

    def _until_unpackable(self, work: WorkItem, mapped: Mapped) -> Result | None:
        """Keep the results of a part of a map up to the first without bytes, which has failed."""
        for place, value in enumerate(mapped.values):
            try:
                result_of(value)
            except BaseException as error:  # as above
                packed = self.packed_error(unpackable(work, error))
                return result_of(Mapped(mapped.values[:place], packed))
        return None

    def fail(self, work: WorkItem, error: BaseException, skipped_frames: int = 0) -> None:
        """End a work with what it raised."""
        packed = self.packed_error(error, skipped_frames, work.name)
        self._end(work, [Result(ERROR, packed)] * work.options.returns)

    def packed_error(self, error: BaseException, skipped_frames: int = 0, name: str = "") -> bytes:
        from ciel.python.failures import pack_error

        worker = os.environ.get("CIEL_WORKER", "")
        return pack_error(error, skipped_frames, self.locals_wanted, worker, name)

    def _end(self, work: WorkItem, results: list[Result]) -> None:
        work.results = results
        work.state = DONE
        work.packed = work.forward = work.suspended = None
        work.args, work.kwargs, work.dependencies = (), {}, ()

    def fail_to_give(self, work: WorkItem) -> None:
        """End a work that others should do, and that cannot be sent to them."""
        from ciel.python.failures import PackingError

        text = f"{work.name} cannot be sent elsewhere: it has no bytes, or takes what waits for it"
        self.fail(work, PackingError(text, "UNPACKED"))

    def settle_away(self, work: WorkItem, results: list[Result]) -> None:
        """Learn what became of a work that others did."""
        self._end(work, results)


def shorten(stack: list[WorkItem]) -> bool:
    """Take a work from a list that has handed on what another one had handed on to it: so a loop of
    works that hand on takes no more room with each. Return whether there was one.
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


def is_handed_on(work: WorkItem, stack: Sequence[WorkItem]) -> bool:
    """Whether a work waits for nothing but what it has handed its result on to."""
    return work.state is RUNNING and work.forward is not None and work not in stack


def arguments_of(
    work: WorkItem, writable: Callable[[Buffer], Buffer]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the arguments of a work all of whose futures are done, with their values, in memory of
    their own (`writable`: see `unpack_result`).
    """
    if work.packed is None:
        if not work.dependencies:
            return work.args, work.kwargs
        return [_value(item) if type(item) is TaskFuture else item for item in work.args], {}
    given = [_value(future) for future in work.dependencies]
    packed = work.packed
    args, kwargs = unpack(packed.head, map(writable, packed.buffers), given)
    streams = {
        id(value): future
        for future, value in zip(work.dependencies, given, strict=True)
        if type(value) is ITEMS_ITERATOR
    }
    if not streams:
        return args, kwargs
    own = each_its_own(streams, _value)
    return [own(value) for value in args], {name: own(value) for name, value in kwargs.items()}


def each_its_own(streams: Mapping[int, Any], again: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what makes of an argument one with an iterator of its own: a pickle that was given a
    stream twice holds one iterator, and whoever has read that leaves nothing to the next.
    `streams`: what each was made of, by its identity; `again` makes one more of that.
    """
    left = dict(streams)

    def own(value: Any) -> Any:
        is_first = left.pop(id(value), None) is not None
        return value if is_first or id(value) not in streams else again(streams[id(value)])

    return own


def _value(future: TaskFuture[Any]) -> Any:
    """Return a copy of a value, for whoever may change it."""
    outcome = future.wait()
    if outcome.kind == PLAIN:
        return outcome.payload
    value = unpack_result(outcome, future.host.writable)
    return iter(value) if type(value) is Items else value


def unpackable(work: WorkItem, error: BaseException) -> BaseException:
    """Say that a result has no bytes."""
    from ciel.python.failures import packing_error

    if not isinstance(error, UnpackedError):
        error = UnpackedError(f"{type(error).__name__}: {error}")
    return packing_error(f"the result of {work.name}", error)


def results_of(works: Iterable[WorkItem]) -> list[Result]:
    """List what became of works."""
    return [result for work in works for result in work.results]
