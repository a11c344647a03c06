"""Runs work items: the calls that a task spawns, and their children (docs/adr/0032).

An item runs in this program when the task needs its result, unless the task has offloaded it to
another program before. Functions that forward their result, generators and coroutines leave
Python's stack while they wait; a list contains the items that they wait for. A function that waits
in `result()` stays on the stack, and the items that it needs run on top of it.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from threading import get_ident, local
from typing import TYPE_CHECKING, Any

from ciel.executors.programs.python.evaluation.interface import COROUTINE_SCOPE, shorten
from ciel.executors.programs.python.evaluation.sharing import Sharing
from ciel.executors.programs.python.functions import Snapshot, is_independent
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
    from ciel.executors.programs.python.evaluation.coroutines import Loops

NESTED_MAX = 100
"""How many calls may wait in `result()` on top of each other; deeper ones run in other programs."""
FRAMES_PER_CALL = 1000
"""How many Python frames each of these calls may use."""
UNRESOLVED_TYPES = frozenset(
    (TaskFuture, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
)
"""Types that a function returns in place of a value that does not exist yet."""
ITEMS_ITERATOR: type = type(iter([]))


class Evaluator:
    """The work items of one task (see `interface.Evaluation` and `task_futures.Host`)."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._lock = sharing.lock
        self._thread = get_ident()
        self._threads = local()
        self._scope: Any = None
        """The items that the current function has spawned; None: no items yet."""
        self._depth = 0
        self._loops: Loops | None = None
        self.locals_wanted = False
        self.is_careful = False
        """An earlier attempt has killed its program: items of this task run in other programs."""
        self._has_reported_inline = False
        self._frames = sys.getrecursionlimit()

    # --- as the host of futures -------------------------------------------------------------------

    def spawn(self, work: WorkItem) -> None:
        if get_ident() != self._thread:
            return  # the item is not shared, since this thread cannot wait for remote calls
        sharing = self._sharing
        with self._lock:
            scope = self._scope
            if scope is None:
                scope = self._scope = sharing.new_scope()
            elif scope is COROUTINE_SCOPE:
                scope = self._event_loops().scope()
            work.scope = scope
            scope[id(work)] = weakref.ref(work)
        if not sharing.is_armed:
            sharing.arm()

    def complete(
        self, works: Sequence[WorkItem], *, any_one: bool = False, timeout_s: float | None = None
    ) -> None:
        if get_ident() != self._thread:
            self._of_this_thread().complete(works, any_one=any_one, timeout_s=timeout_s)
            return
        for work in works:
            if work.state is PENDING and self.may_run(work):
                if timeout_s is not None and self._offload(work):
                    continue
                self.evaluate(work)
                if any_one:
                    return
        missing = [work for work in works if work.state is not DONE]
        if missing:
            self._sharing.wait(missing, any_one=any_one, timeout_s=timeout_s)

    def _offload(self, work: WorkItem) -> bool:
        """Offload an item, since a timeout cannot interrupt code that runs in this program.

        False: the item cannot be offloaded.
        """
        with self._lock:
            return self._sharing.may_wait and self._sharing.offload(work, wanted=True)

    def _of_this_thread(self) -> Evaluator:
        """Return the evaluator of this thread, which a function has started."""
        found: Evaluator | None = getattr(self._threads, "evaluator", None)
        if found is None:
            found = self._threads.evaluator = Evaluator(self._sharing)
            found.is_careful, found.locals_wanted = self.is_careful, self.locals_wanted
        return found

    def writable(self, buffer: Buffer) -> Buffer:
        return self._sharing.writable(buffer)

    def poll(self, work: WorkItem) -> bool:
        return work.state is DONE or (work.state is REMOTE and self._sharing.poll((work,)))

    def wait_in_coroutine(self, future: TaskFuture[Any]) -> Generator[Any, Any, Any]:
        return self._event_loops().wait_for(future)

    def cancel(self, work: WorkItem) -> bool:
        from ciel.python.failures import TaskCancelledError

        with self._lock:
            if work.state is DONE or work.state is RUNNING:
                return False
            self._sharing.unlist(work)
            error = TaskCancelledError(
                "the task that spawned this call has cancelled it", "CANCELLED"
            )
            self.finish(work, [Result(ERROR, self.packed_error(error))] * work.options.returns)
        return True

    # --- coroutines -------------------------------------------------------------------------------

    @property
    def runs_coroutine(self) -> bool:
        return self._scope is COROUTINE_SCOPE

    def _event_loops(self) -> Loops:
        if self._loops is None:
            from ciel.executors.programs.python.evaluation.coroutines import Loops  # takes long

            self._loops = Loops(self, self._sharing)
        return self._loops

    def close(self) -> None:
        """Cancel the remaining coroutines."""
        if self._loops is not None:
            self._loops.close()

    # --- running ----------------------------------------------------------------------------------

    def may_run(self, work: WorkItem) -> bool:
        if not work.may_run_inline or (self.is_careful and not self._sharing.is_closed):
            # A task whose output is open cannot wait for remote calls, and so must run its items.
            return False
        if not self._has_reported_inline:
            self._has_reported_inline = True
            self._sharing.report_inline()
        return True

    def evaluate(self, goal: WorkItem, *, may_delegate: bool = False) -> TaskFuture[Any] | None:
        """Run an item, and all that it depends on, until it is done.

        With `may_delegate`: if the item forwards its result to a remote item, return the future of
        that item instead of waiting for it.
        """
        if self._depth >= NESTED_MAX:
            self._sharing.wait([goal])
            return None
        outer, self._scope = self._scope, None
        self._depth += 1
        sys.setrecursionlimit(self._frames + self._depth * FRAMES_PER_CALL)
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
                    if (need.state is PENDING and self.may_run(need)) or _only_forwards(
                        need, stack
                    ):
                        stack.append(need)
                        break
                else:
                    if may_delegate and (delegate := self._delegate_of(stack)) is not None:
                        return delegate
                    self._wait_for(work, needed, stack)
            return None
        finally:
            self._scope = outer
            self._depth -= 1
            sys.setrecursionlimit(self._frames + self._depth * FRAMES_PER_CALL)

    def _delegate_of(self, stack: Sequence[WorkItem]) -> TaskFuture[Any] | None:
        """Return the remote future to which all items of a stack forward their result.

        None: one of the items has to wait.
        """
        for work, need in zip(stack, [*stack[1:], None], strict=True):
            if work.forward is None:
                return None
            target = work.forward.target()
            if need is None:
                return self._sharing.as_delegate(target)
            if target.work is not need or need.options.returns != 1:
                return None
        return None

    def _wait_for(
        self, work: WorkItem, needed: Sequence[WorkItem], stack: Sequence[WorkItem]
    ) -> None:
        if any(need.state is RUNNING and need in stack for need in needed):
            error = RuntimeError("the call waits for its own result")
            self.finish(work, [Result(ERROR, self.packed_error(error))] * work.options.returns)
        else:
            self._sharing.wait(needed)

    def advance(self, work: WorkItem) -> Sequence[WorkItem]:
        if work.state is PENDING:
            with self._lock:
                if work.state is PENDING:
                    work.state = RUNNING
                    self._sharing.unlist(work)
        if work.state is REMOTE:
            return (work,)
        if work.forward is not None:
            return self._finish_forwarding(work, work.forward)
        if work.suspended is not None:
            needed: Sequence[WorkItem] = work.suspended.advance(self, work)
            return needed
        if work.dependencies:
            missing = [f.target().work for f in work.dependencies if f.outcome() is None]
            if missing:
                return missing
        self._start(work)
        return ()

    def _finish_forwarding(self, work: WorkItem, forward: TaskFuture[Any]) -> Sequence[WorkItem]:
        outcome = forward.outcome()
        if outcome is None:
            return (forward.target().work,)
        self.finish(work, [outcome])
        return ()

    def _start(self, work: WorkItem) -> None:
        try:
            for future in work.dependencies:
                outcome = future.wait()
                if outcome.kind == ERROR:
                    self.finish(work, [outcome] * work.options.returns)
                    return
            args, kwargs = arguments_of(work, self.writable)
            function: Any = work.function
            copy = None
            if type(function) is Snapshot:
                copy, loaded = function.loaded.take(), function.loaded
                function = copy.function
            elif type(function) is Task:
                function = function.function
            value = self._call(function, args, kwargs)
        except BaseException as error:  # a function may raise anything
            self.fail(work, error, 2)
        else:
            self.take(work, value)
            if copy is not None:
                payloads = [result.payload for result in work.results]
                if is_independent(value, payloads):
                    loaded.give_back(copy)

    def _call(self, function: Any, args: Any, kwargs: Any) -> Any:
        outer, self._scope = self._scope, None
        try:
            return function(*args, **kwargs)
        finally:
            self._scope = outer

    def resume(self, scope: Any, step: Callable[[], Any]) -> tuple[Any, Any]:
        outer, self._scope = self._scope, scope
        try:
            return step(), self._scope
        finally:
            self._scope = outer

    # --- results ----------------------------------------------------------------------------------

    def take(self, work: WorkItem, value: Any, put: Any = None) -> None:
        returns = work.options.returns
        kind = type(value)
        if kind is TaskFuture and returns == 1:
            work.forward = value
        elif kind is types.GeneratorType:
            from ciel.executors.programs.python.evaluation.generators import SuspendedGenerator

            work.suspended = SuspendedGenerator(value, put)
        elif kind is types.CoroutineType or kind is types.AsyncGeneratorType:
            work.suspended = self._event_loops().suspend(work, value, put)
        else:
            self.finish(work, self._results(work, value))

    def resolve(self, value: Any, name: str) -> Any:
        if type(value) not in UNRESOLVED_TYPES:
            return value
        work = WorkItem(None, (), {}, Options(name=name))
        self.take(work, value)
        self.evaluate(work)
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
                what = f"it is declared to return {returns} values, but returned {value!r:.80}"
                raise UnpackedError(what)
            return [
                Result(MOVED, item) if type(item) is TaskFuture else result_of(item)
                for item in values
            ]
        except BaseException as error:  # a __reduce__ of the user may raise anything
            if type(value) is Mapped and (found := self._until_unpackable(work, value)):
                return [found]
            return [Result(ERROR, self.packed_error(_unpackable(work, error)))] * returns

    def _until_unpackable(self, work: WorkItem, mapped: Mapped) -> Result | None:
        """Return the results of a map up to the first one that cannot be pickled, and its error."""
        for place, value in enumerate(mapped.values):
            try:
                result_of(value)
            except BaseException as error:  # as above
                packed = self.packed_error(_unpackable(work, error))
                return result_of(Mapped(mapped.values[:place], packed))
        return None

    def fail(self, work: WorkItem, error: BaseException, skipped_frames: int = 0) -> None:
        packed = self.packed_error(error, skipped_frames, work.name)
        self.finish(work, [Result(ERROR, packed)] * work.options.returns)

    def packed_error(self, error: BaseException, skipped_frames: int = 0, name: str = "") -> bytes:
        """Pack an exception with the traceback that its caller will see."""
        from ciel.python.failures import pack_error

        worker = os.environ.get("CIEL_WORKER", "")
        return pack_error(error, skipped_frames, self.locals_wanted, worker, name)

    def finish(self, work: WorkItem, results: list[Result]) -> None:
        work.results = results
        work.state = DONE
        work.packed = work.forward = work.suspended = None
        work.args, work.kwargs, work.dependencies = (), {}, ()


def _only_forwards(work: WorkItem, stack: Sequence[WorkItem]) -> bool:
    """Return whether an item waits only for the future to which it forwards."""
    return work.state is RUNNING and work.forward is not None and work not in stack


def arguments_of(
    work: WorkItem, writable: Callable[[Buffer], Buffer]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the arguments of an item whose futures are all done.

    The values of the futures are in private memory (`writable`: see `unpack_result`).
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
    own = each_with_own_iterator(streams, _value)
    return [own(value) for value in args], {name: own(value) for name, value in kwargs.items()}


def each_with_own_iterator(
    streams: Mapping[int, Any], again: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Return a function that gives each argument a separate iterator.

    A pickle that contains a stream twice yields one iterator twice, which can be read only once.
    The function replaces its second occurrence by a new iterator. `streams`: the source of each
    iterator, by the identity of the iterator; `again` creates another iterator from a source.
    """
    left = dict(streams)

    def own(value: Any) -> Any:
        is_first = left.pop(id(value), None) is not None
        return value if is_first or id(value) not in streams else again(streams[id(value)])

    return own


def _value(future: TaskFuture[Any]) -> Any:
    """Return a copy of a value, which a function may change."""
    outcome = future.wait()
    if outcome.kind == PLAIN:
        return outcome.payload
    value = unpack_result(outcome, future.host.writable)
    return iter(value) if type(value) is Items else value


def _unpackable(work: WorkItem, error: BaseException) -> BaseException:
    """Return the error for a result that cannot be pickled."""
    from ciel.python.failures import packing_error

    if not isinstance(error, UnpackedError):
        error = UnpackedError(f"{type(error).__name__}: {error}")
    return packing_error(f"the result of {work.name}", error)
