"""Works on their way to other programs, and results with futures in them: what was made here of
what they refer to becomes objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ciel.core.tasks import Needs
from ciel.executors.programs.python.objects.outputs import encoded
from ciel.python.calls import (
    AS_STREAM,
    AS_VALUE,
    INLINE_MAX_BYTES,
    VERSION,
    Bundle,
    Call,
    Use,
    pack_bundle,
)
from ciel.python.contents import ERROR, VALUE, Outcome, encode
from ciel.python.packing import Packed, pack_with_futures
from ciel.python.task_futures import (
    DONE,
    PENDING,
    REMOTE,
    Result,
    TaskFuture,
    WorkItem,
    packed_value,
)
from ciel.python.tasks import Task

if TYPE_CHECKING:
    from ciel.executors.programs.python.channel import Channel
    from ciel.executors.programs.python.evaluation.sharing import Sharing
    from ciel.executors.programs.python.functions import Functions
    from ciel.executors.programs.python.objects.outputs import Outputs

ALONE_MIN_BYTES = 64 << 10
"""Arguments of this size become an object of their own."""
CO_GENERATOR = 0x20
"""Of the flags of a function's code; `inspect` takes long to load."""


class Sending:
    """What one task sends."""

    def __init__(
        self, sharing: Sharing, channel: Channel, outputs: Outputs, functions: Functions
    ) -> None:
        self.places: tuple[str, ...] = ()
        self.moved: tuple[str, dict[str, str | None]] | None = None
        self.log_level = 0
        self._sharing = sharing
        self._channel = channel
        self._outputs = outputs
        self._functions = functions
        self._stored: dict[tuple[WorkItem, int], int] = {}

    def begin_anew(self) -> None:
        """The task goes on as another, which has made nothing yet."""
        self._stored.clear()

    def told(self, work: WorkItem) -> dict[str, Any]:
        """Return what a task is spawned with."""
        function = self._functions.packed(work.function)
        packed, taken = work.packed, work.dependencies
        if packed is None:
            packed, taken = pack_with_futures((work.args, work.kwargs))
        inputs: list[Any] = []
        uses = tuple([self._use(future, inputs) for future in taken])
        with_object = -1
        if packed.size_bytes > ALONE_MIN_BYTES:
            with_object = len(inputs)
            inputs.append(self._store([Outcome(VALUE, packed)]))
            packed = Packed(b"")
        returns = work.options.returns
        call = Call(0, packed, uses, with_object, False, work.name, returns)
        work.is_stream = _yields(work.function)
        bundle = Bundle(VERSION, self.places, (function,), ((call,),), work.is_stream)
        wanted = self._sharing.evaluator.locals_wanted
        bundle = bundle._replace(locals_wanted=wanted, moved=self.moved, log_level=self.log_level)
        content = pack_bundle(bundle)
        told: dict[str, Any] = {"name": work.name}
        if len(content) <= INLINE_MAX_BYTES:
            told["calls"] = encoded(content)
        else:
            inputs.append(self._store_pieces([content]))
        if inputs:
            told["inputs"] = inputs
        if work.options.python:
            told["python"] = work.options.python
        needs = work.options.needs
        usual = Needs()
        told |= {
            name: value for name, value in needs._asdict().items() if value != getattr(usual, name)
        }
        return told

    def _use(self, future: TaskFuture[Any], inputs: list[Any]) -> Use:
        found = future.target()
        if found.work.state is DONE:
            item, place = self._stored_number(found), 0
        else:
            item, place = item_of(found.work), found.place
        if item not in inputs:
            inputs.append(item)
        how = AS_STREAM if found.work.is_stream and found.work.state is REMOTE else AS_VALUE
        return Use(inputs.index(item), 0, place, found.work.is_raw, how)

    def _stored_number(self, found: TaskFuture[Any]) -> int:
        """Return the number of the object that holds what became of a work here."""
        key = (found.work, found.place)
        number = self._stored.get(key)
        if number is None:
            result = found.work.results[found.place]
            number = self._stored[key] = self._store([self.outcome_of(result)])
        return number

    def _store(self, outcomes: Sequence[Outcome]) -> int:
        return self._store_pieces(encode(outcomes))

    def _store_pieces(self, pieces: Sequence[Any]) -> int:
        number = self._outputs.made_count
        self._outputs.made_count += 1
        self._outputs.create(pieces)
        return number

    def store_outcome(self, outcome: Outcome) -> int:
        """Return the number of an object that is made of an outcome; the lock is held."""
        return self._store([outcome])

    def outcome_of(self, result: Result) -> Outcome:
        """Return an outcome as it is written; the futures in it become tasks."""
        if result.kind == ERROR:
            return Outcome(ERROR, Packed(result.payload))
        packed = packed_value(result)
        if not result.futures:
            return Outcome(VALUE, packed)
        with self._channel.lock:
            return Outcome(VALUE, packed, tuple(self._addresses(result.futures)))

    def _addresses(self, futures: Sequence[TaskFuture[Any]]) -> list[Any]:
        """Return where whoever reads a value finds the futures in it; the lock is held."""
        items, places = [], []
        for future in futures:
            found = future.target()
            if found.work.state is PENDING and not self._sharing.give(found.work, wanted=False):
                self._sharing.evaluator.evaluate(found.work)  # it has no bytes, or is needed here
            found = found.target()
            if found.work.state is DONE:
                items.append(self._stored_number(found))
                places.append((0, False))
            else:
                items.append(item_of(found.work))
                places.append((found.place, found.work.is_raw))
        reply = self._channel.reply("made", {"items": items})
        arrays = [ref["__ref__"] for ref in reply["refs"]]
        return [(array, *place) for array, place in zip(arrays, places, strict=True)]


def item_of(work: WorkItem) -> Any:
    """Return how the worker is told what object a work makes that others do."""
    return work.child if work.ref is None else {"__ref__": work.ref}


def _yields(function: Any) -> bool:
    inner = function.function if type(function) is Task else function
    return bool(getattr(getattr(inner, "__code__", None), "co_flags", 0) & CO_GENERATOR)
