"""Turns work items of a task into tasks of their own, which other programs run.

It does so if another worker has a free slot, or if the task has to wait for the item anyway. A
thread (`share_timer`) checks for free slots, so that the running function does not have to do it.
The lock of the channel guards all state that both threads change.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from ciel.core.tasks import TIMEOUT_MAX_S
from ciel.executors.programs.python.evaluation.interface import Evaluation
from ciel.executors.programs.python.evaluation.submission import Submission, item_of
from ciel.executors.programs.python.functions import Functions
from ciel.python.contents import ERROR
from ciel.python.task_futures import (
    DONE,
    PENDING,
    PLAIN,
    REMOTE,
    RUNNING,
    Result,
    TaskFuture,
    WorkItem,
    read_outcome,
    result_of,
)

if TYPE_CHECKING:
    from ciel.executors.programs.python.channel import Channel
    from ciel.executors.programs.python.evaluation.share_timer import ShareTimer
    from ciel.executors.programs.python.objects.inputs import Inputs
    from ciel.executors.programs.python.objects.outputs import Outputs
    from ciel.python.packing import Buffer

REMOTE_MAX = 64
"""The limit on remote items of a task while the worker does not know how many slots are idle."""
SCOPES_MAX = 1000

Scope = dict[int, "weakref.ref[WorkItem]"]
"""The pending items that one function has spawned, by identity, in order."""


class Batches(Protocol):
    """The batches of a bundle. Other tasks can run a batch that has not started."""

    @property
    def may_be_shared(self) -> bool:
        """Whether there are batches that have not started."""

    def hand_over(self, most: int) -> int:
        """Turn at most `most` batches into tasks; return how many. The caller holds the lock."""


class Sharing:
    """The work items of one task that other programs run, or could run."""

    evaluation: Evaluation

    def __init__(
        self,
        channel: Channel,
        inputs: Inputs,
        outputs: Outputs,
        functions: Functions,
        timer: ShareTimer,
    ) -> None:
        self.lock = channel.lock
        self._thread = get_ident()
        self.is_armed = False
        self.is_closed = False
        """Whether sharing has ended: an output is open, so that the task cannot wait for remote
        calls any more."""
        self.batches: Batches | None = None
        self._channel = channel
        self._inputs = inputs
        self._outputs = outputs
        self.submission = Submission(channel, outputs, functions, self._offload_or_run)
        self._timer = timer
        self._scopes: list[Scope] = []  # the outermost function's first
        self._remote: dict[WorkItem, None] = {}
        self._offloads_at_once = 1
        self._started_count = 0  # items that this program has started since the last sharing

    def writable(self, buffer: Buffer) -> Buffer:
        """Return the bytes of a buffer in private memory, which may be written to."""
        return self._inputs.writable(buffer)

    # --- pending items ----------------------------------------------------------------------------

    def new_scope(self) -> Scope:
        """Create a scope for a function that starts to spawn; the caller holds the lock."""
        if len(self._scopes) >= SCOPES_MAX:
            self._scopes = [scope for scope in self._scopes if scope]
        scope: Scope = {}
        self._scopes.append(scope)
        return scope

    def unlist(self, work: WorkItem) -> None:
        """Remove an item from its scope, since it starts; the caller holds the lock."""
        scope, work.scope = work.scope, None
        if scope is not None:
            scope.pop(id(work), None)
            self._started_count += 1
            if not scope and self._scopes and self._scopes[-1] is scope:
                self._scopes.pop()  # its function creates another one when it needs it

    def close(self) -> None:
        """Stop sharing: an output is open, so that the task must end in this program."""
        with self.lock:
            self.is_closed = True

    @property
    def has_items(self) -> bool:
        """Whether there may be pending items.

        After a call has ended, no other call needs its items.
        """
        return bool(self._scopes)

    def drop_all(self) -> None:
        """Forget all pending items."""
        with self.lock:
            self._scopes.clear()

    def report_inline(self) -> None:
        """Report to the worker that this program runs calls which other programs could run."""
        with self.lock:
            self._channel.notify("within", {})
            self._channel.flush()

    # --- called by the timer's thread -------------------------------------------------------------

    def arm(self) -> None:
        """Start the timer's thread, which calls `share`."""
        self.is_armed = True
        self._timer.watch(self)

    def share(self) -> bool:
        """Turn as many batches and items into tasks as workers have idle slots for.

        Return whether there may be more. The caller holds the lock.
        """
        if self.is_closed:
            return False
        room = self._channel.call("room", {})["slots"]
        if room == 0:
            return self._has_any
        rest = self._next_offload_count() if room is None else room
        if self.batches is not None:
            rest -= self.batches.hand_over(rest)
        while rest and (work := self._next_pending()) is not None:
            rest -= self.offload(work, wanted=True)
        self._channel.flush()
        return self._has_any

    @property
    def _has_any(self) -> bool:
        return bool(self._scopes) or (self.batches is not None and self.batches.may_be_shared)

    def _next_offload_count(self) -> int:
        """Return how many items become tasks if the worker does not know the idle slots."""
        if self._started_count:
            self._offloads_at_once = 1
        else:  # the current call takes long; its siblings may, too
            self._offloads_at_once = 2 * self._offloads_at_once
        self._started_count = 0
        return max(0, min(self._offloads_at_once, REMOTE_MAX - len(self._remote)))

    def _next_pending(self) -> WorkItem | None:
        """Remove and return a pending item: the last one of the outermost scope that has any.

        Its function probably needs this item last.
        """
        while self._scopes:
            scope = self._scopes[0]
            while scope:
                work = scope.popitem()[1]()
                if work is not None and work.state is PENDING:
                    work.scope = None
                    return work
            del self._scopes[0]
        return None

    # --- items become tasks -----------------------------------------------------------------------

    def offload(self, work: WorkItem, *, wanted: bool) -> bool:
        """Turn an item, and each item that it depends on, into tasks; the caller holds the lock.

        False: this is not possible now, so that this program has to run the item.
        """
        stack = [work]
        while stack:
            top = stack[-1]
            if top.state is not PENDING:
                stack.pop()
                continue
            needed = [future.target().work for future in top.dependencies]
            if any(other.state is RUNNING for other in needed):
                return False
            pending = [other for other in needed if other.state is PENDING]
            if pending:
                stack += pending
                continue
            stack.pop()
            if not self._submit(top, wanted):
                return False
        return True

    def _submit(self, work: WorkItem, wanted: bool) -> bool:
        for future in work.dependencies:
            outcome = future.outcome()
            if outcome is not None and outcome.kind == ERROR:
                self.evaluation.finish(work, [outcome] * work.options.returns)
                return True
        try:
            request = self.submission.request(work)
        except Exception:  # a __reduce__ raised: a caller that needs the result will see that
            return False
        if wanted:
            request["wanted"] = True
        self.spawn(work, request)
        return True

    def spawn(self, work: WorkItem, request: dict[str, Any]) -> None:
        """Turn an item into a task; `request` contains the arguments of the call `spawn`."""
        with self.lock:
            work.child = self._outputs.made_count
            self._outputs.made_count += 1
            self._channel.notify("spawn", request)
            work.state = REMOTE
            work.args, work.kwargs, work.packed, work.dependencies = (), {}, None, ()
            self._remote[work] = None

    def _offload_or_run(self, work: WorkItem) -> None:
        if not self.offload(work, wanted=False):  # it cannot be pickled, or depends on what runs
            self.evaluation.evaluate(work)

    def as_delegate(self, future: TaskFuture[Any]) -> TaskFuture[Any] | None:
        """Return `future` if its task can take over the output of this task.

        First offload its item if that is pending. Return None if the item cannot be remote, or if
        this task has to read the result itself: a stream, or raw bytes.
        """
        work = future.work
        with self.lock:
            if work.state is PENDING:
                self.offload(work, wanted=False)
            is_simple = work.state is REMOTE and not work.is_stream and not work.is_raw
            return future if is_simple else None

    def delegate(self, future: TaskFuture[Any]) -> None:
        """Delegate the output of this task to the task that produces a future."""
        work = future.work
        is_all = work.function is not None and work.options.returns == 1
        request = {"forward": item_of(work), "place": None if is_all else future.place}
        self._channel.notify("tail_spawn", request)

    # --- waiting ----------------------------------------------------------------------------------

    def poll(self, works: Sequence[WorkItem]) -> bool:
        """Query the worker for the results of remote items that are done, without waiting.

        Return whether all items are done.
        """
        remote = [work for work in works if work.state is REMOTE]
        with self.lock:
            reply = self._channel.call("look", {"items": [item_of(work) for work in remote]})
            for work, ref in zip(remote, reply["refs"], strict=True):
                self._update(work, ref["__ref__"])
        return all(work.state is DONE for work in works)

    @property
    def may_wait(self) -> bool:
        """Whether this thread can release the slot of the task and wait."""
        return not self.is_closed and get_ident() == self._thread

    def wait(
        self, works: Sequence[WorkItem], *, any_one: bool = False, timeout_s: float | None = None
    ) -> None:
        """Release the slot, and wait until all items that this program cannot run are done.

        With `any_one`, wait for one of them. With a timeout, return at the latest after that time,
        but already when one more item is done.
        """
        if timeout_s is not None and timeout_s >= TIMEOUT_MAX_S:
            timeout_s = None
        if get_ident() != self._thread:
            raise RuntimeError(
                "only the thread in which a task started can wait for calls that run elsewhere"
            )
        if self.is_closed:
            self.poll([work for work in works if work.state is REMOTE])
            are_done = [work.state is DONE for work in works]
            if any(are_done) if any_one else all(are_done):
                return
            raise RuntimeError(
                "a task that has yielded an item cannot wait for calls that run elsewhere: "
                "wait for them before the first yield"
            )
        with self.lock:
            works = [self._make_remote(work) for work in works if work.state is not DONE]
            works = [work for work in works if work.state is not DONE]
            if not works:
                return
            if self.poll(works) or (any_one and any(work.state is DONE for work in works)):
                return
            works = [work for work in works if work.state is not DONE]
            while (pending := self._next_pending()) is not None:
                if not self.offload(pending, wanted=True):
                    break
            self._suspend(works, any_one, timeout_s)

    def _make_remote(self, work: WorkItem) -> WorkItem:
        """Turn an item that this program cannot run now into a task; the caller holds the lock."""
        if work.state is RUNNING:  # below on the stack: it cannot continue before this wait ends
            work = work.copy(self.evaluation)
        if work.state is PENDING and not self.offload(work, wanted=True):
            from ciel.python.failures import PackingError

            text = (
                f"{work.name} cannot be sent to another program: it cannot be pickled, or depends "
                "on a call that waits for it"
            )
            self.evaluation.fail(work, PackingError(text, "UNPACKED"))
        return work

    def _suspend(self, works: Sequence[WorkItem], any_one: bool, timeout_s: float | None) -> None:
        """End this task.

        A successor task continues the same function in this process once the items are done.
        Meanwhile all other remote items stay wanted.
        """
        self._outputs.give_up_arrays()
        listed = list(dict.fromkeys([*works, *self._remote]))
        count = 0 if any_one or timeout_s is not None else len(set(works))
        items = [item_of(work) for work in listed]
        request: dict[str, Any] = {
            "is_fixed": True,
            "needed": items[:count],
            "others": items[count:],
        }
        if timeout_s is not None:
            request["timeout_s"] = timeout_s
        self._channel.notify("tail_spawn", request)
        self._channel.notify("exit", {"keep_process": "must_keep"})
        started = self._channel.next_start()
        if started is None:
            os._exit(0)  # the result of this task is not needed any more
        arguments, paths = started
        self._inputs.add_paths(paths)
        self._outputs.restart()
        if not self.evaluation.is_careful:
            self._channel.notify("within", {})
        self.submission.restart()
        refs = [item["__ref__"] for item in arguments["inputs"]]
        for work, ref in zip(listed, refs, strict=False):
            work.child, work.ref = -1, ref
            if ref[0] == "s2":
                ref = ["c2", *ref[1:]]  # a stream; it is read to its end, as it grows
            self._update(work, ref)

    def _update(self, work: WorkItem, ref: list[Any]) -> None:
        """Take the results of a remote item from the reference to its object, if that exists."""
        if ref[0] == "err":
            from ciel.executors.programs.python.objects.inputs import failed

            results = [Result(ERROR, failed(ref).packed.head)] * work.options.returns
        elif ref[0] in ("val", "c2", "<3"):
            if work.is_stream:
                from ciel.executors.programs.python.objects.streams import all_items

                results = [result_of(all_items(self._channel, work.ref or ref))]
            elif work.is_raw:
                results = [Result(PLAIN, bytes(self._inputs.content(ref)))]
            else:
                outcomes = self._inputs.outcomes(ref)
                results = [read_outcome(outcome, self.evaluation) for outcome in outcomes]
        else:
            return
        self._remote.pop(work, None)
        self.evaluation.finish(work, results)
