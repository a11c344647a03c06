"""Values as bytes: a pickle (protocol 5), and beside it the buffers that it refers to, which are
neither copied into it nor out of it. Large bytes, bytearrays and memoryviews become buffers, too
(ADR 76): the pickle names them by a persistent id, and begins with a mark and their number.

What has futures inside, at any depth, is packed within `embedding`: each is replaced by its place
in a list, and `unpack` puts there what it is given. Outside of it a future cannot be pickled.

Pickles are read only of who has shown the key of the cluster: clients and workers (SECURITY.md).
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple

PROTOCOL: Final = 5

LARGE_MIN_BYTES: Final = 64 << 10
"""Bytes of this size become a buffer: less is copied as quickly as it is looked at."""
_LARGE_DEPTH: Final = 5
_LARGE_ITEMS: Final = 64
"""So deep in containers, and among so many items of each, large bytes are sought."""
_LARGE_TYPES: Final = frozenset((bytes, bytearray, memoryview))
_SEARCHED_TYPES: Final = frozenset((tuple, list, dict))
_SMALL_TYPES: Final = frozenset((int, float, bool, str, type(None)))
_MARK: Final = b"L"  # a pickle of protocol 5 begins with another byte
_PREFIX: Final = struct.Struct("<cI")

PLAIN_TYPES: Final = frozenset((int, float, bool, str, bytes, type(None), complex))
"""Types whose values cannot change, so that a value of them needs no copy."""

Buffer = bytes | bytearray | memoryview | pickle.PickleBuffer


class UnpackedError(Exception):
    """A value that has no bytes, or bytes that are no value; the text names it."""


class Packed(NamedTuple):
    """A value: its pickle, and the buffers that it refers to, in order."""

    head: bytes
    buffers: tuple[Buffer, ...] = ()

    @property
    def size_bytes(self) -> int:
        return len(self.head) + sum(memoryview(buffer).nbytes for buffer in self.buffers)


class _Context(threading.local):
    embedded: list[Any] | None = None
    given: Sequence[Any] | None = None


_context = _Context()


@contextmanager
def embedding(found: list[Any]) -> Iterator[None]:
    """Have the futures that are packed within the block appended to `found`."""
    before, _context.embedded = _context.embedded, found
    try:
        yield
    finally:
        _context.embedded = before


def embed(future: Any) -> tuple[Any, tuple[int]]:
    """Reduce a future that is being packed: `__reduce__` of every class of them ends here. Raises
    pickle.PicklingError outside of `embedding`.
    """
    if _context.embedded is None:
        raise pickle.PicklingError(
            f"{future!r:.200} stands for a result that is not here: give it to a task as an "
            "argument, or return it from one; anything else needs its 'result()'"
        )
    _context.embedded.append(future)
    return _given, (len(_context.embedded) - 1,)


def _given(place: int) -> Any:
    if _context.given is None:
        raise UnpackedError("what stands for a future can be read by a task or a client only")
    return _context.given[place]


def pack(value: Any) -> Packed:
    """Pack a value; raises UnpackedError, which names what in it has no bytes.

    What was defined in a program's main module, or in a function, is packed with its code.
    """
    if _holds_large(value, _LARGE_DEPTH):
        large: list[pickle.PickleBuffer] = []
        head, buffers = _dumped(value, _place_among(large))
        return Packed(_PREFIX.pack(_MARK, len(large)) + head, (*large, *buffers))
    head, buffers = _dumped(value)
    return Packed(head, tuple(buffers))


def _dumped(value: Any, place_of: Any = None) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return a pickle, and its buffers. `place_of` is its `persistent_id`."""
    buffers: list[pickle.PickleBuffer] = []
    count = 0 if _context.embedded is None else len(_context.embedded)
    try:
        if place_of is None:
            head = pickle.dumps(value, PROTOCOL, buffer_callback=buffers.append)
        else:
            head = _written(pickle.Pickler, value, buffers, place_of)
        if b"__main__" not in head and not _by_value():  # that is another module elsewhere
            return head, buffers
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # it may have no name by which others find it
    except RecursionError:
        raise UnpackedError(
            "it is nested too deeply, or contains itself in a way pickle cannot say"
        ) from None
    buffers.clear()
    if _context.embedded is not None:
        del _context.embedded[count:]
    return _with_code(value, buffers, place_of), buffers


def _holds_large(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind in _LARGE_TYPES:
        return _is_large(value)
    if kind not in _SEARCHED_TYPES:
        return False
    items = value.values() if kind is dict else value
    if len(items) > _LARGE_ITEMS:
        items = islice(items, _LARGE_ITEMS)
    elif _SMALL_TYPES.issuperset(map(type, items)):  # of most calls
        return False
    for item in items:
        kind = type(item)
        if kind in _LARGE_TYPES:
            if _is_large(item):
                return True
        elif kind in _SEARCHED_TYPES and depth and item and _holds_large(item, depth - 1):
            return True
    return False


def _is_large(value: Any) -> bool:
    if type(value) is memoryview:  # pickle has no form for it at all
        return bool(value.c_contiguous and (value.nbytes or value.ndim == 1))
    return len(value) >= LARGE_MIN_BYTES


def _place_among(large: list[pickle.PickleBuffer]) -> Callable[[Any], Any]:
    """Return a `persistent_id` that collects large bytes: each is named by its place and kind."""
    known: dict[int, tuple[Any, Any]] = {}

    def place_of(value: Any) -> Any:
        if type(value) not in _LARGE_TYPES or not _is_large(value):
            return None
        if id(value) not in known:
            form: Any = type(value).__name__
            if type(value) is memoryview:
                form = (value.format, value.shape, value.readonly)
            known[id(value)] = (len(large), form), value  # it lives while its number is known
            large.append(pickle.PickleBuffer(value))
        return known[id(value)][0]

    return place_of


def _written(pickler: Any, value: Any, buffers: list[Any], place_of: Any) -> bytes:
    file = io.BytesIO()
    made = pickler(file, PROTOCOL, buffer_callback=buffers.append)
    if place_of is not None:
        made.persistent_id = place_of
    made.dump(value)
    return file.getvalue()


def _by_value() -> bool:
    """Tell whether somebody has said that a module of theirs travels with its code."""
    cloudpickle = sys.modules.get("cloudpickle")
    return cloudpickle is not None and bool(cloudpickle.list_registry_pickle_by_value())


def _with_code(value: Any, buffers: list[pickle.PickleBuffer], place_of: Any) -> bytes:
    from ciel.python.pickling import Pickler

    try:
        return _written(Pickler, value, buffers, place_of)
    except UnpackedError:
        raise
    except RecursionError:
        raise UnpackedError(
            "it is nested too deeply, or contains itself in a way pickle cannot say"
        ) from None
    except Exception as error:  # of anybody's __reduce__
        from ciel.python.unpicklable import describe_culprit

        culprit = describe_culprit(value, skips_futures=_context.embedded is None)
        raise UnpackedError(f"{culprit}: {type(error).__name__}: {error}") from error


def pack_with_futures(value: Any) -> tuple[Packed, list[Any]]:
    """Pack a value and return the futures in it, too, in the order in which they are embedded."""
    found: list[Any] = []
    before, _context.embedded = _context.embedded, found
    try:
        return pack(value), found
    finally:
        _context.embedded = before


def unpack(head: Buffer, buffers: Iterable[Buffer] = (), given: Sequence[Any] | None = None) -> Any:
    """Return the value; `given` stands in the places of its futures. Raises whatever the classes of
    the value raise.
    """
    if given is None:
        return _loaded(head, buffers)
    before, _context.given = _context.given, given
    try:
        return _loaded(head, buffers)
    finally:
        _context.given = before


def copy_buffers(packed: Packed) -> Packed:
    """Return a packed value with copies of the buffers that may still change."""
    if not packed.buffers:
        return packed
    return Packed(packed.head, tuple([_frozen(buffer) for buffer in packed.buffers]))


def _frozen(buffer: Any) -> Buffer:
    view = buffer.raw() if hasattr(buffer, "raw") else memoryview(buffer)
    return view if view.readonly else bytes(view)


def _loaded(head: Buffer, buffers: Iterable[Buffer]) -> Any:
    view = memoryview(head)
    if bytes(view[:1]) != _MARK:
        return pickle.loads(head, buffers=buffers)
    _, count = _PREFIX.unpack_from(view)
    others = iter(buffers)
    large = list(islice(others, count))
    loader: Any = pickle.Unpickler(io.BytesIO(view[_PREFIX.size :]), buffers=others)
    known: dict[int, Any] = {}

    def load(place: tuple[int, Any]) -> Any:
        number, form = place
        if number not in known:
            known[number] = _as_it_was(large[number], form)
        return known[number]

    loader.persistent_load = load
    return loader.load()


def _as_it_was(buffer: Buffer, form: Any) -> Any:
    """Return bytes as an object of the kind that they were sent as."""
    if form == "bytes":
        return bytes(buffer)
    if form == "bytearray":
        return bytearray(buffer)
    format_, shape, is_read_only = form
    view = memoryview(buffer).cast("B")
    if format_ != "B" or len(shape) != 1:
        view = view.cast(format_, shape)
    return view.toreadonly() if is_read_only else view
