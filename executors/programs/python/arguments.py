"""Unpacks the arguments of the calls of a bundle, with the values of the futures in them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ciel.executors.programs.python.evaluation.evaluator import each_with_own_iterator
from ciel.python.calls import AS_PARTS, AS_PATH, AS_STREAM, AS_VALUE, Call, Use
from ciel.python.contents import ERROR, MOVED, VALUE, Outcome
from ciel.python.elsewhere import ObjectElsewhere
from ciel.python.options import USUAL
from ciel.python.packing import Packed, UnpackedError, unpack, unpack_apart
from ciel.python.rows import Row, each_with_its_own
from ciel.python.task_futures import DONE, Host, TaskFuture, WorkItem, read_outcome

if TYPE_CHECKING:
    from ciel.executors.programs.python.channel import Channel
    from ciel.executors.programs.python.objects.inputs import Inputs


class InputFailedError(Exception):
    """The call that produces an argument has failed; the call that needs it fails, too."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("the call that produces an argument has failed")
        self.outcome = outcome


class _Given(Sequence[Any]):
    """The values of the futures of a call; each access unpacks a value again."""

    def __init__(self, given: Callable[[Use, Call], Any], call: Call) -> None:
        self._given = given
        self._call = call

    def __getitem__(self, place: Any) -> Any:
        return self._given(self._call.uses[place], self._call)

    def __len__(self) -> int:
        return len(self._call.uses)


class Arguments:
    """The arguments of one bundle's calls.

    `made`: the outcomes of the calls that have ended, by batch.
    """

    def __init__(
        self, inputs: Inputs, channel: Channel, host: Host, made: list[list[Outcome]]
    ) -> None:
        self._inputs = inputs
        self._channel = channel
        self._host = host
        self._made = made

    def of(self, call: Call) -> Any:
        """Return (args, kwargs). Raises InputFailedError, and any error of unpickling."""
        packed = call.arguments
        if call.with_object >= 0:
            outcome = self._inputs.outcome(self._inputs.refs[call.with_object], 0)
            if outcome.kind != VALUE:
                raise InputFailedError(outcome)
            packed = outcome.packed
        if not call.uses and not packed.buffers:
            return pickle.loads(packed.head)
        given = [self._given(use, call) for use in call.uses]
        try:
            buffers = map(self._inputs.writable, packed.buffers)
            args, kwargs = unpack(packed.head, buffers, given)
        except UnpackedError:
            raise
        except BaseException as error:  # a class of the user may raise anything
            raise cannot_unpickle(f"the arguments of {call.name}", error) from error
        streams = {
            id(value): use
            for use, value in zip(call.uses, given, strict=True)
            if use.how == AS_STREAM
        }
        if not streams:
            return args, kwargs
        own = each_with_own_iterator(streams, lambda use: self._given(use, call))
        if call.is_map:
            return ([[own(value) for value in row] for row in args[0]], args[1]), kwargs
        return [own(value) for value in args], {name: own(value) for name, value in kwargs.items()}

    def with_own_copies(self, call: Call, rows: Sequence[Row]) -> Iterator[Row]:
        """Yield the rows of a map with fresh copies of the arguments that rows share."""
        return each_with_its_own(rows, self._inputs.writable, _Given(self._given, call))

    def _given(self, use: Use, call: Call) -> Any:
        """Return the value that a function gets for a future."""
        if use.how == AS_STREAM and use.input >= 0:
            ref = self._inputs.refs[use.input]
            if ref[0] != "err":
                from ciel.executors.programs.python.objects.streams import items_of

                return items_of(self._channel, ref)
        if use.how == AS_PARTS and use.input >= 0 and not use.raw:
            ref = self._inputs.refs[use.input]
            if self._inputs.is_elsewhere(ref):
                whole = use._replace(how=AS_VALUE)
                fetch, value = self._inputs.fetch_parts, partial(self._given, whole, call)
                return ObjectElsewhere(ref, self._inputs.size_bytes(ref), fetch, value)
        if use.input < 0:
            outcome = self._made[use.batch][use.place]
        else:
            ref = self._inputs.refs[use.input]
            if use.raw:
                return self._raw(ref, use.how)
            known = self._inputs.read_before(ref, use.place)
            if known is not None:
                return known
            outcome = self._inputs.outcome(ref, use.place)
        if outcome.kind == VALUE and not outcome.refs:
            try:
                value = unpack_apart(outcome.packed, self._inputs.writable)
                if use.input >= 0:
                    self._inputs.note_read(self._inputs.refs[use.input], use.place, value)
                return value
            except BaseException as error:  # a class of the user may raise anything
                raise cannot_unpickle(f"an argument of {call.name}", error) from error
        if outcome.kind == ERROR:
            raise InputFailedError(outcome)
        result = read_outcome(outcome, self._host)
        if result.kind == MOVED:
            result = result.payload.wait()
            if result.kind == ERROR:
                raise InputFailedError(Outcome(ERROR, Packed(result.payload)))
        work = WorkItem(None, (), {}, USUAL)
        work.results, work.state = [result], DONE
        return TaskFuture(self._host, work).result()

    def _raw(self, ref: list[Any], how: str) -> Any:
        """Return the content of an object of bytes, or its path."""
        if ref[0] == "err":
            raise InputFailedError(self._inputs.outcome(ref, 0))
        if how == AS_PATH:
            return self._inputs.path_for_user(ref)
        known = self._inputs.read_before(ref, 0)
        if known is None:
            known = bytes(self._inputs.content(ref))
            self._inputs.note_read(ref, 0, known)
        return known


def cannot_unpickle(what: str, error: BaseException) -> Exception:
    """Return the error for a function or arguments that this interpreter cannot unpickle."""
    from ciel.python.failures import packing_error

    text = f"it cannot be unpickled by {sys.executable}: {type(error).__name__}: {error}"
    return packing_error(what, UnpackedError(text))
