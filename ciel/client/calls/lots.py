"""Tracks the output objects of calls, *lots*.

A lot is one object that contains the outcomes of several calls. A result is identified by its lot
and its position in the lot.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ciel.client.calls.functions import PackedFunction
from ciel.client.calls.pending import PendingCall
from ciel.client.locks import Condition
from ciel.core.ids import ObjectId
from ciel.core.refs import Future, Reference
from ciel.python.contents import ERROR, Outcome


class Lots:
    """The lots of one client. Thread-safe.

    An object has exactly one `Lot`, however many values refer to it: with several, the client would
    release the object when the first of them is deleted.
    """

    def __init__(self) -> None:
        self.by_id: weakref.WeakValueDictionary[ObjectId, Lot] = weakref.WeakValueDictionary()
        self.dropped: deque[Reference] = deque()
        """Objects to which this program no longer has a reference."""
        self._shared: set[ObjectId] = set()

    def find(self, ref: Reference, *, raw: bool) -> Lot:
        """Return the lot of an object; add it if the object is new."""
        return self.by_id.get(ref.id) or Lot(self, ref, raw=raw)

    def share(self, object_id: ObjectId) -> None:
        """Note that another client has sent a task that reads an object.

        The master may receive that task after this client's release of the object.
        """
        self._shared.add(object_id)

    def take_dropped(self) -> list[Reference]:
        """Return the objects to release; each only once.

        For an object that another client reads, return a reference without locations: then the
        master does not delete the object at once.
        """
        dropped = [self.dropped.popleft() for _ in range(len(self.dropped))]
        # A value that has arrived meanwhile may refer to one of these objects.
        return [self._as_released(ref) for ref in dropped if ref.id not in self.by_id]

    def _as_released(self, ref: Reference) -> Reference:
        if ref.id not in self._shared:
            return ref
        self._shared.discard(ref.id)
        return Future(ref.id)


class Lot:
    """An object that contains the outcomes of some calls, or (`raw`) the output of a program.

    The client releases the object when the lot is deleted. `functions`: the functions of its calls;
    each represents `rows` calls. `futures`: weak references to the futures that wait for the
    object. `call`: the only call, if that is a map that may be divided. `named`: lots to which the
    content refers, and which must live as long as this lot.
    """

    __slots__ = (
        "__weakref__", "_growth", "_lots", "call", "content", "functions", "futures",
        "is_counted", "is_stream", "lock", "named", "raw", "ref", "rows",
    )  # fmt: skip

    def __init__(
        self, lots: Lots, ref: Reference, *, raw: bool = False, is_stream: bool = False
    ) -> None:
        self._lots = lots
        self.ref = ref
        self.raw = raw
        self.is_stream = is_stream
        self.futures: list[weakref.ref[Any]] = []
        self.call: PendingCall | None = None
        self.functions: list[PackedFunction] = []
        self.rows = 1
        self.named: list[Lot] = []
        self.is_counted = False
        self.content: list[Outcome] | None = None
        self.lock = threading.Lock()
        self._growth = StreamLocation() if is_stream else None
        lots.by_id[ref.id] = self

    @property
    def id(self) -> ObjectId:
        return self.ref.id

    @property
    def exists(self) -> bool:
        """Whether the object was produced, as far as the client knows."""
        return not isinstance(self.ref, Future)

    def count(self, outcomes: Sequence[Outcome] | None = None, *, failed: bool = False) -> None:
        """Count its calls as done or failed, once; `failed` applies to all of them."""
        if self.is_counted:
            return
        self.is_counted = True
        place = 0
        for function in self.functions:
            if failed or (outcomes is not None and outcomes[place].kind == ERROR):
                function.tally.failed += self.rows
            else:
                function.tally.done += self.rows
            place += function.options.returns

    def uncount(self) -> None:
        """Subtract its calls from the tallies: the program no longer waits for them."""
        self.is_counted = True
        self.end_trial()
        for function in self.functions:
            function.tally.submitted -= self.rows

    def take_futures(self) -> list[Any]:
        """Remove the futures that wait for the object; return those that still exist."""
        known, self.futures = self.futures, []
        return [future for found in known if (future := found()) is not None]

    def grow(self, ref: Reference) -> None:
        """Note the worker on which the object can be read while a task writes it."""
        if self._growth is not None:
            self._growth.note(ref)

    def no_growth(self, ref: Reference) -> None:
        """Note that the object can no longer be read there."""
        if self._growth is not None:
            self._growth.forget(ref)

    def await_growth(self, is_over: Callable[[], bool]) -> Reference | None:
        """Wait until the object can be read, and return its location.

        Return None if `is_over` becomes true before.
        """
        return None if self._growth is None else self._growth.wait(is_over)

    def end_growth(self) -> None:
        """Wake the threads in `await_growth`."""
        if self._growth is not None:
            self._growth.wake()

    def end_trial(self) -> None:
        """Subtract its calls from the trials of their functions."""
        for function in self.functions:
            function.trial_count = max(0, function.trial_count - 1)

    def __del__(self) -> None:
        if not self.is_counted and self.functions:  # the program dropped it before it was produced
            self.uncount()
        self._lots.dropped.append(self.ref)  # a deque, since a destructor must not take a lock


class StreamLocation:
    """Tracks which worker holds an object that a task still writes."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._ref: Reference | None = None

    def note(self, ref: Reference) -> None:
        with self._changed:
            self._ref = ref
            self._changed.notify_all()

    def forget(self, ref: Reference) -> None:
        with self._changed:
            if self._ref is ref:
                self._ref = None

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait(self, is_over: Callable[[], bool]) -> Reference | None:
        """Wait for the location, and return it; None if `is_over` becomes true before."""
        with self._changed:
            while self._ref is None and not is_over():
                self._changed.wait()
            return None if is_over() else self._ref
