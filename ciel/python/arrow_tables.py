"""Writes and reads tables of Arrow as objects of their own format (POOL-2, POOL-6).

`executors/sdk/c/ciel_table.c` writes and reads the format; programs in C use it, too. The
descriptor of a table contains the offsets of its buffers in the object. A reader maps the object,
and copies nothing.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ciel.core.errors import CielError

if TYPE_CHECKING:
    import pyarrow

MAGIC: Final = b"ciel.ar1"
LIBRARY: Final = Path(__file__).parent.parent / "arrow" / "tables.so"
ALIGNMENT_BYTES: Final = 64
_TABLE, _BATCH = 0, 1
_TYPICAL_BYTES: Final = 4096
_TYPICAL_ABSENT: Final = 64
_DEPTH_MAX: Final = 64
_GAP_BYTES: Final = 512  # a further request has about as many bytes
_NULLABLE: Final = 2  # a flag of the C data interface
_HEADER: Final = struct.Struct("<8sQQ")
_BEFORE_SCHEMA: Final = struct.Struct("<IdII")
_TYPE: Final = struct.Struct("<qIIII")
_ARRAY: Final = struct.Struct("<qqqI")
_BUFFER: Final = struct.Struct("<qq")
_RELEASE: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class TableError(CielError, ValueError):
    """An object is not a valid table, or a table cannot be stored in this format."""


class Absent(NamedTuple):
    """A buffer that does not lie in the object yet. Its offset there belongs at `entries` in the
    descriptor.
    """

    content: memoryview
    entries: Sequence[int]


class Description(NamedTuple):
    """The descriptor of a table, and the buffers that the writer has to add, in order.

    `placed_count`: how many other buffers lie in the object already.
    """

    descriptor: bytearray
    absent: Sequence[Absent]
    placed_count: int

    def place(self, absent: Absent, offset: int) -> None:
        """Note the offset at which a buffer was added."""
        for entry in absent.entries:
            self.descriptor[entry : entry + 8] = offset.to_bytes(8, "little")


class Locator(NamedTuple):
    """A function in C that finds out where bytes lie in the object, and its first argument."""

    function: Any
    context: Any = None


class _AbsentBuffer(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_void_p),
        ("size_bytes", ctypes.c_int64),
        ("entry", ctypes.c_int64),
    )


class _Description(ctypes.Structure):
    _fields_ = (
        ("bytes", ctypes.c_void_p),
        ("capacity_bytes", ctypes.c_int64),
        ("size_bytes", ctypes.c_int64),
        ("absent", ctypes.POINTER(_AbsentBuffer)),
        ("absent_capacity", ctypes.c_int64),
        ("absent_count", ctypes.c_int64),
        ("placed_count", ctypes.c_int64),
    )


class _Schema(ctypes.Structure):
    """The C data interface's ArrowSchema."""

    _fields_ = (
        ("content", ctypes.c_int64 * 7),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class _Array(ctypes.Structure):
    """The C data interface's ArrowArray."""

    _fields_ = (
        ("content", ctypes.c_int64 * 8),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class _Exported:
    """A schema and chunks that pyarrow has exported."""

    def __init__(self) -> None:
        self.schema = _Schema()
        self.chunks: list[_Array] = []

    def __del__(self) -> None:
        for structure in (self.schema, *self.chunks):
            if structure.release:
                _RELEASE(structure.release)(ctypes.addressof(structure))


class _Stream(ctypes.Structure):
    """The C stream interface's ArrowArrayStream."""

    _fields_ = (("content", ctypes.c_void_p * 5),)


Place = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
"""The type of a locator's function: it returns an offset in the object, or -1."""


# --- writing --------------------------------------------------------------------------------------


def is_table(value: Any) -> bool:
    """Whether a value is a table or a record batch that can be stored in this format.

    Types that are defined in Python cannot: their pickle says how to restore them.
    """
    kind = type(value)
    if kind.__module__ != "pyarrow.lib" or kind.__name__ not in ("Table", "RecordBatch"):
        return False
    return not any(_is_of_python(field.type) for field in value.schema)


def _is_of_python(kind: Any) -> bool:
    """Whether a type, or a part of it, is defined in Python."""
    of = type(kind)
    if of.__name__ == "DataType":  # most types
        return False
    if of.__module__ != "pyarrow.lib":
        return True
    parts = [kind.field(n).type for n in range(kind.num_fields)]
    parts += [getattr(kind, name) for name in ("storage_type", "value_type") if hasattr(kind, name)]
    return any(map(_is_of_python, parts))


def describe(value: Any, took_s: float, locator: Locator | None = None) -> Description:
    """Return the descriptor of a table or record batch. Raises TableError.

    `locator` knows which buffers lie in the object already; None: none do.
    """
    import pyarrow

    is_batch = isinstance(value, pyarrow.RecordBatch)
    library, exported = _library(), _Exported()
    types = ctypes.byref(exported.schema)
    value.schema._export_to_c(ctypes.addressof(exported.schema))
    for batch in (value,) if is_batch else value.to_batches():
        exported.chunks.append(chunk := _Array())
        batch._export_to_c(ctypes.addressof(chunk))
    room_bytes, room_absent = _TYPICAL_BYTES, _TYPICAL_ABSENT
    while True:
        descriptor = bytearray(room_bytes)
        absent = (_AbsentBuffer * room_absent)()
        raw = (ctypes.c_char * room_bytes).from_buffer(descriptor)
        to = _Description(ctypes.addressof(raw), room_bytes, 0, absent, room_absent)
        kind, count = _BATCH if is_batch else _TABLE, len(exported.chunks)
        _check(library.ciel_table_begin(ctypes.byref(to), kind, took_s, types, count))
        for chunk in exported.chunks:
            _check(library.ciel_table_add(
                ctypes.byref(to), types, ctypes.byref(chunk), *(locator or _NOWHERE)
            ))  # fmt: skip
        del raw  # so that the descriptor may change its size
        if to.size_bytes <= room_bytes and to.absent_count <= room_absent:
            break
        room_bytes = max(room_bytes, to.size_bytes)
        room_absent = max(room_absent, to.absent_count)
    del descriptor[to.size_bytes :]
    return Description(descriptor, _absent(absent[: to.absent_count], exported), to.placed_count)


_NOWHERE: Final = (None, None)


def _absent(found: Sequence[_AbsentBuffer], owner: _Exported) -> list[Absent]:
    """Return buffers in memory. Two of them with the same address become one, the longer one."""
    sizes: dict[int, int] = {}
    entries: dict[int, list[int]] = {}
    for item in found:
        sizes[item.address] = max(item.size_bytes, sizes.get(item.address, 0))
        entries.setdefault(item.address, []).append(item.entry)
    absent = []
    for address, size_bytes in sizes.items():
        memory: Any = (ctypes.c_char * size_bytes).from_address(address)
        memory.owner = owner  # so that the buffer lives as long as the view
        absent.append(Absent(memoryview(memory).cast("B"), entries[address]))
    return absent


def encode(value: Any, took_s: float) -> list[Any]:
    """Return the pieces of an object with a table, in the order of the file. Raises TableError."""
    description = describe(value, took_s)
    position = _HEADER.size
    pieces: list[Any] = []
    for absent in description.absent:
        if gap := -position % ALIGNMENT_BYTES:
            pieces.append(bytes(gap))
        description.place(absent, position + gap)
        pieces.append(absent.content)
        position += gap + absent.content.nbytes
    descriptor = bytes(description.descriptor)
    return [header(position, len(descriptor)), *pieces, descriptor]


def header(descriptor_at: int, size_bytes: int) -> bytes:
    """Return the header of an object with a table."""
    return _HEADER.pack(MAGIC, descriptor_at, size_bytes)


# --- reading --------------------------------------------------------------------------------------


def read(content: memoryview) -> pyarrow.Table | pyarrow.RecordBatch:
    """Return the table or record batch in an object; its columns use the content.

    Raises TableError. Places and lengths are checked, but not each value in the buffers:
    `validate(full=True)` does that.
    """
    import pyarrow

    reader = _reader(content, pyarrow.py_buffer(content).address, content.nbytes)
    kind, *_ = _BEFORE_SCHEMA.unpack_from(content, _HEADER.unpack_from(content)[1])
    try:
        return reader.read_next_batch() if kind == _BATCH else reader.read_all()
    except pyarrow.ArrowException as error:
        raise TableError(str(error)) from None


def time_of(content: memoryview) -> float:
    """Return how long the task has run that made a table.

    Raises ValueError if the object is not a table, and struct.error if it is incomplete.
    """
    magic, start, _ = _HEADER.unpack_from(content)
    if magic != MAGIC:
        raise ValueError("the object is not a table")
    return float(_BEFORE_SCHEMA.unpack_from(content, start)[1])


def _reader(owner: object, address: Any, size_bytes: int) -> pyarrow.RecordBatchReader:
    """Return a reader of the table at an address; its chunks keep `owner` alive."""
    import pyarrow

    stream = _Stream()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    wrong = _library().ciel_table_stream(
        ctypes.byref(stream), address, size_bytes, _let_go(), id(owner)
    )
    if wrong:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(owner))
        _check(wrong)
    try:
        return pyarrow.RecordBatchReader._import_from_c(ctypes.addressof(stream))
    except pyarrow.ArrowException as error:
        raise _refusal(str(error)) from None


# --- describing -----------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column. `type`: as pyarrow prints it; the format of the C data interface without it."""

    name: str
    type: str


class Array(NamedTuple):
    """An array of a column: where its buffers lie in the object, as offsets and sizes.

    Its values begin with number `start` in the buffers. A buffer that does not exist has no size.
    `encoded`: its record in the descriptor.
    """

    length: int
    start: int
    buffers: Sequence[tuple[int, int]]
    encoded: bytes

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.buffers)


class Chunk(NamedTuple):
    """The array of a chunk's rows, and for each column its array, followed by its parts."""

    whole: Array
    columns: Sequence[Sequence[Array]]

    @property
    def rows(self) -> int:
        return self.whole.length

    @property
    def sizes_bytes(self) -> list[int]:
        """The bytes of each column."""
        return [sum(array.size_bytes for array in column) for column in self.columns]


class Layout(NamedTuple):
    """The columns and chunks of a table or record batch.

    `schema`: its type, whose parts are the types of the columns.
    """

    is_batch: bool
    columns: Sequence[Column]
    chunks: Sequence[Chunk]
    schema: Type

    @property
    def rows(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]


class Type(NamedTuple):
    """A type in a schema. `parts`: the types of its parts, then the type of its dictionary.

    `form`: its format in the C data interface. `record`: its record in the descriptor, which those
    of the parts follow.
    """

    column: Column
    form: str
    record: bytes
    parts: Sequence[Type]

    @property
    def encoded(self) -> bytes:
        return b"".join([self.record, *[part.encoded for part in self.parts]])

    def with_parts(self, parts: Sequence[Type]) -> bytes:
        """Return the records of this type with other parts, and without a dictionary."""
        *head, _ = _TYPE.unpack_from(self.record)
        record = _TYPE.pack(*head, len(parts) << 1) + self.record[_TYPE.size :]
        return b"".join([record, *[part.encoded for part in parts]])


class _Cursor:
    """Reads a descriptor, which may contain anything; raises TableError at its end."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.position = 0

    def take(self, size_bytes: int) -> bytes:
        piece = self._content[self.position : self.position + size_bytes]
        if len(piece) < size_bytes:
            raise _refusal("its descriptor is incomplete")
        self.position += size_bytes
        return piece

    def since(self, position: int) -> bytes:
        """Return the bytes that were read since a position."""
        return self._content[position : self.position]

    def fields(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.take(form.size))


def place_of_descriptor(start: bytes, size_bytes: int) -> tuple[int, int]:
    """Return the offset and size of the descriptor; raises TableError.

    `start`: the first bytes of the object, which has `size_bytes`.
    """
    if len(start) < _HEADER.size or not start.startswith(MAGIC):
        raise _refusal("it is no table of ciel")
    _, offset, length = _HEADER.unpack_from(start)
    if offset + length > size_bytes:
        raise _refusal("its descriptor lies outside of the object")
    return offset, length


def layout_of(descriptor: bytes, size_bytes: int) -> Layout:
    """Return the layout of a table in an object of `size_bytes`, without its buffers.

    Raises TableError.
    """
    cursor = _Cursor(descriptor)
    kind, _, count, schema_bytes = cursor.fields(_BEFORE_SCHEMA)
    if kind not in (_TABLE, _BATCH):
        raise _refusal("it is of a later version of ciel")
    encoded = cursor.take(schema_bytes)
    schema = _take_type(_Cursor(encoded))
    columns = [part.column for part in schema.parts]
    chunks = [_take_chunk(cursor, schema, size_bytes) for _ in range(count)]
    return Layout(kind == _BATCH, _as_pyarrow_prints(encoded, columns), chunks, schema)


class Choice(NamedTuple):
    """A choice of columns and rows of a table.

    `descriptor`: of a table with these columns, and all chunks with one of the rows. `skip_rows`:
    how many rows of it precede the first chosen row. `parts`: where the chosen rows lie in the
    object, as offsets and sizes, in order.
    """

    descriptor: bytes
    skip_rows: int
    parts: Sequence[tuple[int, int]]


def choose(layout: Layout, names: Collection[str], first_row: int, end_row: int) -> Choice:
    """Choose columns and rows of a table.

    Of columns whose values vary in size, all rows of a chunk are parts. Parts with only a small
    gap between them are joined.
    """
    places = [place for place, name in enumerate(layout.names) if name in names]
    types = [layout.schema.parts[place] for place in places]
    records: list[bytes] = []
    parts: list[tuple[int, int]] = []
    before = count = skip_rows = 0
    for chunk in layout.chunks:
        first, end = max(first_row - before, 0), min(end_row - before, chunk.rows)
        before += chunk.rows
        if first >= end:
            continue
        skip_rows = skip_rows if count else first
        count += 1
        records.append(chunk.whole.encoded)
        for kind, place in zip(types, places, strict=True):
            arrays = chunk.columns[place]
            records += [array.encoded for array in arrays]
            if width_bits := _width_bits(kind):
                parts += _rows_in(arrays[0], width_bits, first, end)
            else:
                parts += [buffer for array in arrays for buffer in array.buffers]
    schema = layout.schema.with_parts(types)
    head = _BEFORE_SCHEMA.pack(_TABLE, 0.0, count, len(schema))
    descriptor = b"".join([head, schema, *records])
    return Choice(descriptor, skip_rows, _joined(sorted([part for part in parts if part[1]])))


def _rows_in(array: Array, width_bits: int, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where rows of an array lie: in the bitmap of valid rows, and in the values."""
    first, end = array.start + first, array.start + end
    for (offset, size), bits in zip(array.buffers, (1, width_bits), strict=False):
        start, stop = first * bits // 8, min(-(-end * bits // 8), size)
        yield offset + start, max(stop - start, 0)


def _joined(parts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for offset, size in parts:
        start, before = joined[-1] if joined else (0, -_GAP_BYTES - 1)
        if offset <= start + before + _GAP_BYTES:
            joined[-1] = (start, max(before, offset + size - start))
        else:
            joined.append((offset, size))
    return joined


_WIDTHS_BITS: Final = {
    "b": 1, "c": 8, "C": 8, "s": 16, "S": 16, "i": 32, "I": 32, "l": 64, "L": 64,
    "e": 16, "f": 32, "g": 64, "tdD": 32, "tdm": 64, "tts": 32, "ttm": 32, "ttu": 64, "ttn": 64,
}  # fmt: skip
"""The size of the values of types, by their formats in the C data interface."""


def _width_bits(kind: Type) -> int:
    """Return the size of a column's values if all have the same and it has no parts; else 0."""
    if kind.parts:
        return 0
    form = kind.form
    if form.startswith(("ts", "tD")):  # timestamps and durations
        return 64
    if form.startswith("w:") and form[2:].isdecimal():
        return int(form[2:]) * 8
    return _WIDTHS_BITS.get(form, 0)


def _take_type(cursor: _Cursor, depth: int = 0) -> Type:
    if depth > _DEPTH_MAX:
        raise _refusal("its types are nested too deeply")
    start = cursor.position
    flags, *sizes, below = cursor.fields(_TYPE)
    form, name, _ = [cursor.take(size).rstrip(b"\0").decode(errors="replace") for size in sizes]
    record = cursor.since(start)
    parts = [_take_type(cursor, depth + 1) for _ in range((below >> 1) + (below & 1))]
    column = Column(name, form if flags & _NULLABLE else f"{form} not null")
    return Type(column, form, record, parts)


def _take_chunk(cursor: _Cursor, schema: Type, size_bytes: int) -> Chunk:
    whole = _take_array(cursor, size_bytes)
    return Chunk(whole, [list(_take_arrays(cursor, part, size_bytes)) for part in schema.parts])


def _take_arrays(cursor: _Cursor, kind: Type, size_bytes: int) -> Iterator[Array]:
    """Yield an array and its parts."""
    yield _take_array(cursor, size_bytes)
    for part in kind.parts:
        yield from _take_arrays(cursor, part, size_bytes)


def _take_array(cursor: _Cursor, size_bytes: int) -> Array:
    at = cursor.position
    length, _, start, count = cursor.fields(_ARRAY)
    if length < 0 or start < 0:
        raise _refusal("a column has an impossible length")
    buffers = []
    for _ in range(count):
        offset, size = cursor.fields(_BUFFER)
        is_absent = (offset, size) == (-1, 0)
        if not is_absent and (offset < 0 or size < 0 or offset + size > size_bytes):
            raise _refusal("a buffer lies outside of the object")
        buffers.append((offset, size))
    return Array(length, start, buffers, cursor.since(at))


def _as_pyarrow_prints(encoded: bytes, columns: Sequence[Column]) -> Sequence[Column]:
    """Return columns with the types that pyarrow prints, if it is installed."""
    try:
        import pyarrow

        descriptor = _BEFORE_SCHEMA.pack(_TABLE, 0.0, 0, len(encoded)) + encoded
        content = header(_HEADER.size, len(descriptor)) + descriptor
        fields = _reader(content, content, len(content)).schema
        types = [f"{each.type}" if each.nullable else f"{each.type} not null" for each in fields]
    except (ImportError, OSError):  # without pyarrow or the library
        return columns
    except TableError:
        raise
    except (pyarrow.ArrowException, ValueError) as error:
        raise _refusal(str(error)) from None
    return [column._replace(type=kind) for column, kind in zip(columns, types, strict=True)]


# --- the library ----------------------------------------------------------------------------------


def _refusal(wrong: str) -> TableError:
    return TableError(f"the object is no valid table: {wrong}")


def _check(wrong: bytes | None) -> None:
    if wrong:
        raise _refusal(wrong.decode())


@cache
def _library() -> Any:
    library = ctypes.CDLL(str(LIBRARY))
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    signatures: dict[str, tuple[Any, ...]] = {
        "ciel_table_begin": (pointer, ctypes.c_int, ctypes.c_double, pointer, ctypes.c_uint32),
        "ciel_table_add": (pointer, pointer, pointer, pointer, pointer),
        "ciel_table_stream": (pointer, pointer, ctypes.c_int64, pointer, pointer),
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = text, arguments
    names = ("PyGILState_Ensure", "PyGILState_Release", "Py_DecRef", "Py_IsInitialized")
    of_python = [ctypes.cast(getattr(ctypes.pythonapi, name), pointer) for name in names]
    library.ciel_use_python(*of_python)
    return library


@cache
def _let_go() -> ctypes.c_void_p:
    return ctypes.cast(_library().ciel_let_go, ctypes.c_void_p)
