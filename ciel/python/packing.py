"""Packs values as a pickle (protocol 5) with out-of-band buffers, which are not copied.

Large bytes, bytearrays and memoryviews become buffers as well (ADR 76). The pickle refers to them
by a persistent id, and a prefix with a mark and their number precedes it.

Within `embedding`, values may contain futures at any depth. The pickle replaces each future by its
number, and `unpack` receives the replacements. Outside `embedding`, a future cannot be pickled.

Pickles come only from peers that have proved the key of the cluster (SECURITY.md).
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any, Final, NamedTuple

PROTOCOL: Final = 5

LARGE_MIN_BYTES: Final = 64 << 10
"""Bytes of at least this size become a buffer; copying fewer takes no longer than checking them."""
_LARGE_DEPTH: Final = 5
_LARGE_ITEMS: Final = 64
"""How many levels deep the search for large bytes goes, and how many items of each container it
checks.
"""
_LARGE_TYPES: Final = frozenset((bytes, bytearray, memoryview))
_SEARCHED_TYPES: Final = frozenset((tuple, list, dict))
_SMALL_TYPES: Final = frozenset((int, float, bool, str, type(None)))
_MARK: Final = b"L"  # pickles of protocol 5 start with another byte
_PREFIX: Final = struct.Struct("<cI")

TABLE: Final = b"T"
"""The head of a value whose only buffer is the content of an object with a table."""

PLAIN_TYPES: Final = frozenset((int, float, bool, str, bytes, type(None), complex))
"""Types whose values cannot change, so that they need no copy."""

Buffer = bytes | bytearray | memoryview | pickle.PickleBuffer


class UnpackedError(Exception):
    """A value cannot be pickled, or bytes cannot be unpickled; the text names the part."""


class Packed(NamedTuple):
    """A pickle, and the buffers that it refers to, in order."""

    head: bytes
    buffers: tuple[Buffer, ...] = ()

    @property
    def size_bytes(self) -> int:
        return len(self.head) + sum(memoryview(buffer).nbytes for buffer in self.buffers)


class PackedTable(Packed):
    """A table of Arrow, which `ciel.python.arrow_tables` stores if it is the only outcome of an
    object. Otherwise it is pickled.
    """

    value: Any

    @classmethod
    def of(cls, value: Any) -> PackedTable:
        self = cls(b"")
        self.value = value
        return self

    @cached_property
    def _pickled(self) -> Packed:
        head, buffers = _dumped(self.value)
        return Packed(head, tuple(buffers))

    @property
    def head(self) -> bytes:
        return self._pickled.head

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return self._pickled.buffers


class _Context(threading.local):
    embedded: list[Any] | None = None
    given: Sequence[Any] | None = None


_context = _Context()


@contextmanager
def embedding(found: list[Any]) -> Iterator[None]:
    """Let the block pack futures, and append these to `found`."""
    before, _context.embedded = _context.embedded, found
    try:
        yield
    finally:
        _context.embedded = before


def embed(future: Any) -> tuple[Any, tuple[int]]:
    """Reduce a future for pickle: `__reduce__` of every class of futures calls this.

    Raises pickle.PicklingError outside of `embedding`.
    """
    if _context.embedded is None:
        raise pickle.PicklingError(
            f"{future!r:.200} cannot be pickled, since its result may not be in this process: pass "
            "it to a task as an argument, return it from a task, or pickle its 'result()'"
        )
    _context.embedded.append(future)
    return _given, (len(_context.embedded) - 1,)


def _given(place: int) -> Any:
    if _context.given is None:
        raise UnpackedError("only a task or a client can unpickle a value that contains futures")
    return _context.given[place]


def pack(value: Any) -> Packed:
    """Pack a value; raises UnpackedError, which names the part that cannot be pickled.

    Functions and classes of the main module, or defined in a function, are packed with their code.
    """
    if type(value).__module__ == "pyarrow.lib" and _is_table(value):
        return PackedTable.of(value)
    if _holds_large(value, _LARGE_DEPTH):
        large: list[pickle.PickleBuffer] = []
        head, buffers = _dumped(value, _place_among(large))
        return Packed(_PREFIX.pack(_MARK, len(large)) + head, (*large, *buffers))
    head, buffers = _dumped(value)
    return Packed(head, tuple(buffers))


def _is_table(value: Any) -> bool:
    from ciel.python.arrow_tables import is_table

    return is_table(value)


def _dumped(value: Any, place_of: Any = None) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return a pickle, and its buffers. `place_of` is its `persistent_id`."""
    buffers: list[pickle.PickleBuffer] = []
    count = 0 if _context.embedded is None else len(_context.embedded)
    try:
        if place_of is None:
            head = pickle.dumps(value, PROTOCOL, buffer_callback=buffers.append)
        else:
            head = _written(pickle.Pickler, value, buffers, place_of)
        if b"__main__" not in head and not _by_value():  # other programs have another main module
            return head, buffers
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # other programs may not be able to import it
    except RecursionError:
        raise UnpackedError(
            "it is nested too deeply, or contains itself in a way that pickle cannot represent"
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
    elif _SMALL_TYPES.issuperset(map(type, items)):  # true for most calls
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
    if type(value) is memoryview:  # pickle does not support it
        return bool(value.c_contiguous and (value.nbytes or value.ndim == 1))
    return len(value) >= LARGE_MIN_BYTES


def _place_among(large: list[pickle.PickleBuffer]) -> Callable[[Any], Any]:
    """Return a `persistent_id` that collects large bytes; the id is their place and type."""
    known: dict[int, tuple[Any, Any]] = {}

    def place_of(value: Any) -> Any:
        if type(value) not in _LARGE_TYPES or not _is_large(value):
            return None
        if id(value) not in known:
            form: Any = type(value).__name__
            if type(value) is memoryview:
                form = (value.format, value.shape, value.readonly)
            known[id(value)] = (
                (len(large), form),
                value,
            )  # keeps the value alive, so that its id stays its own
            large.append(pickle.PickleBuffer(value))
        return known[id(value)][0]

    return place_of


def _written(pickler: Any, value: Any, buffers: list[Any], place_of: Any) -> bytes:
    file = io.BytesIO()
    writer = pickler(file, PROTOCOL, buffer_callback=buffers.append)
    if place_of is not None:
        writer.persistent_id = place_of
    writer.dump(value)
    return file.getvalue()


def _by_value() -> bool:
    """Return whether the user has registered a module with cloudpickle to be sent by value."""
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
            "it is nested too deeply, or contains itself in a way that pickle cannot represent"
        ) from None
    except Exception as error:  # a __reduce__ of the user may raise anything
        from ciel.python.unpicklable import describe_culprit

        culprit = describe_culprit(value, skips_futures=_context.embedded is None)
        raise UnpackedError(
            f"{culprit}; pickling raised {type(error).__name__}: {error}"
        ) from error


def pack_with_futures(value: Any) -> tuple[Packed, list[Any]]:
    """Pack a value; return also the futures in it, in the order in which they were embedded."""
    found: list[Any] = []
    before, _context.embedded = _context.embedded, found
    try:
        return pack(value), found
    finally:
        _context.embedded = before


def unpack(head: Buffer, buffers: Iterable[Buffer] = (), given: Sequence[Any] | None = None) -> Any:
    """Return a value; `given` replaces the futures in it.

    Raises whatever the classes of its parts raise.
    """
    if given is None:
        return _loaded(head, buffers)
    before, _context.given = _context.given, given
    try:
        return _loaded(head, buffers)
    finally:
        _context.given = before


def unpack_apart(
    packed: Packed, writable: Callable[[Buffer], Buffer], given: Sequence[Any] | None = None
) -> Any:
    """Return a value that shares no memory that may be changed. `writable` returns the bytes of a
    buffer in private memory. Tables of Arrow cannot be changed, and share theirs.
    """
    if isinstance(packed, PackedTable):
        return packed.value
    if packed.head == TABLE:
        return unpack(packed.head, packed.buffers)
    return unpack(packed.head, map(writable, packed.buffers), given)


def copy_buffers(packed: Packed) -> Packed:
    """Return a packed value with copies of the buffers that may still change."""
    if not packed.buffers:
        return packed
    return Packed(packed.head, tuple([_frozen(buffer) for buffer in packed.buffers]))


def _frozen(buffer: Any) -> Buffer:
    view = buffer.raw() if hasattr(buffer, "raw") else memoryview(buffer)
    return view if view.readonly else bytes(view)


def _loaded(head: Buffer, buffers: Iterable[Buffer]) -> Any:
    if head == TABLE:
        from ciel.python.arrow_tables import read

        (content,) = buffers
        return read(memoryview(content))
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
            known[number] = _restored(large[number], form)
        return known[number]

    loader.persistent_load = load
    return loader.load()


def _restored(buffer: Buffer, form: Any) -> Any:
    """Return bytes as an object of the type that was packed."""
    if form == "bytes":
        return bytes(buffer)
    if form == "bytearray":
        return bytearray(buffer)
    format_, shape, is_read_only = form
    view = memoryview(buffer).cast("B")
    if format_ != "B" or len(shape) != 1:
        view = view.cast(format_, shape)
    return view.toreadonly() if is_read_only else view
