"""Writes the requests that turn work items into tasks, and stores the values that they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ciel.core.tasks import DEFAULT_NEEDS, needs_json
from ciel.executors.programs.python.objects.outputs import encoded
from ciel.python.calls import (
    AS_PARTS,
    AS_STREAM,
    AS_VALUE,
    INLINE_MAX_BYTES,
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
    from ciel.executors.programs.python.functions import Functions
    from ciel.executors.programs.python.objects.outputs import Outputs

ALONE_MIN_BYTES = 64 << 10
"""Arguments of this size become an object of their own."""
CO_GENERATOR = 0x20
"""A flag of a function's code. (Importing `inspect` for it takes long.)"""


class Submission:
    """The requests of one task.

    `start` is called with a pending item that becomes part of a value: it turns the item into a
    task, or runs it.
    """

    bundle: Bundle
    """The bundle of this task; its children inherit the settings."""

    def __init__(
        self,
        channel: Channel,
        outputs: Outputs,
        functions: Functions,
        start: Callable[[WorkItem], None],
    ) -> None:
        self._channel = channel
        self._outputs = outputs
        self._functions = functions
        self._start = start
        self._stored: dict[tuple[WorkItem, int], int] = {}
        """The numbers of the objects that contain results of this program."""

    def restart(self) -> None:
        """Forget the numbers of objects: the task continues as another task, which has none yet."""
        self._stored.clear()

    def request(self, work: WorkItem) -> dict[str, Any]:
        """Return the arguments of a `spawn` that turns an item into a task.

        Raises any error of pickling the item.
        """
        function = self._functions.packed(work.function)
        packed, dependencies = work.packed, work.dependencies
        if packed is None:
            packed, dependencies = pack_with_futures((work.args, work.kwargs))
        inputs: list[Any] = []
        uses = tuple([self._use(future, inputs) for future in dependencies])
        with_object = -1
        if packed.size_bytes > ALONE_MIN_BYTES:
            with_object = len(inputs)
            inputs.append(self._store([Outcome(VALUE, packed)]))
            packed = Packed(b"")
        returns = work.options.returns
        call = Call(0, packed, uses, with_object, False, work.name, returns)
        work.is_stream = _yields(work.function)
        bundle = self.bundle._replace(
            functions=(function,),
            batches=((call,),),
            streams=work.is_stream,
            raw=False,
            timed=False,
        )
        content = pack_bundle(bundle)
        request: dict[str, Any] = {"name": work.name}
        if len(content) <= INLINE_MAX_BYTES:
            request["calls"] = encoded(content)
        else:
            inputs.append(self._store_pieces([content]))
        if inputs:
            request["inputs"] = inputs
        whole = {use.input for use in uses if use.how != AS_PARTS}
        if apart := sorted({use.input for use in uses} - whole):
            request["apart"] = apart
        if work.options.python:
            request["python"] = work.options.python
        needs = work.options.needs
        if needs is not DEFAULT_NEEDS:
            usual = needs_json(DEFAULT_NEEDS)
            request |= {k: value for k, value in needs_json(needs).items() if value != usual[k]}
        return request

    def _use(self, future: TaskFuture[Any], inputs: list[Any]) -> Use:
        target = future.target()
        work = target.work
        if work.state is DONE:
            item, place = self._stored_number(target), 0
        else:
            item, place = item_of(work), target.place
        if item not in inputs:
            inputs.append(item)
        how = getattr(future, "how", AS_VALUE)
        if work.is_stream and work.state is REMOTE:
            how = AS_STREAM
        return Use(inputs.index(item), 0, place, work.is_raw, how)

    def _stored_number(self, target: TaskFuture[Any]) -> int:
        """Return the number of the object with a result of this program; store it if necessary."""
        key = (target.work, target.place)
        number = self._stored.get(key)
        if number is None:
            result = target.work.results[target.place]
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
        """Store an outcome as an object, and return its number; the caller holds the lock."""
        return self._store([outcome])

    def outcome_of(self, result: Result) -> Outcome:
        """Return a result in the form for objects; the pending items in it become tasks."""
        if result.kind == ERROR:
            return Outcome(ERROR, Packed(result.payload))
        packed = packed_value(result)
        if not result.futures:
            return Outcome(VALUE, packed)
        with self._channel.lock:
            return Outcome(VALUE, packed, tuple(self._addresses(result.futures)))

    def _addresses(self, futures: Sequence[TaskFuture[Any]]) -> list[Any]:
        """Return where a reader of a value finds the futures in it; the caller holds the lock.

        An address is the reference to an object in JSON form, the place in it, and whether it is
        raw.
        """
        items, places = [], []
        for future in futures:
            target = future.target()
            if target.work.state is PENDING:
                self._start(target.work)
            target = target.target()
            if target.work.state is DONE:
                items.append(self._stored_number(target))
                places.append((0, False))
            else:
                items.append(item_of(target.work))
                places.append((target.place, target.work.is_raw))
        reply = self._channel.call("made", {"items": items})
        refs = [ref["__ref__"] for ref in reply["refs"]]
        return [(ref, *place) for ref, place in zip(refs, places, strict=True)]


def item_of(work: WorkItem) -> Any:
    """Return how messages name the object of a remote item: by its number, or its reference."""
    return work.child if work.ref is None else {"__ref__": work.ref}


def _yields(function: Any) -> bool:
    inner = function.function if type(function) is Task else function
    return bool(getattr(getattr(inner, "__code__", None), "co_flags", 0) & CO_GENERATOR)
