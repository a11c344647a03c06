"""The memory pool of Arrow whose buffers lie in the output of the calling task (POOL-1, POOL-4).

`store_pool.cpp` is the pool. This module loads it, and hands it to pyarrow, whose Python classes
wrap pools but cannot define one. The two were not compiled together: the pool has the layout of the
class in the headers of pyarrow, and is not used if the headers declare another one.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow

from ciel.python.arrow_tables import Locator
from ciel.python.task_session import Growth, output_region

LIBRARY: Final = Path(__file__).with_name("store-pool.so")
_VIRTUAL: Final = (
    "~MemoryPool()",
    "Allocate(int64_t size, int64_t alignment, uint8_t** out)",
    "Reallocate(int64_t old_size, int64_t new_size, int64_t alignment, uint8_t** ptr)",
    "Free(uint8_t* buffer, int64_t size, int64_t alignment)",
    "ReleaseUnused()",
    "PrintStats()",
    "bytes_allocated()",
    "max_memory()",
    "total_bytes_allocated()",
    "num_allocations()",
    "backend_name()",
)
"""The virtual functions of arrow::MemoryPool, in the order in which store_pool.cpp has them."""


class Arena:
    """A part of the file of a task's output in which the pool allocates (`OutputRegion`)."""

    def __init__(self, library: Any, descriptor: int, offset: int, growth: Growth | None) -> None:
        self._library = library
        self._growth = growth
        if growth is None:
            self._arena = library.ciel_arena_open(descriptor, offset, None, 0)
        else:
            given = (ctypes.c_void_p * 5)(
                growth.reserve, growth.place, growth.fs, growth.handle, growth.first_bytes
            )
            self._arena = library.ciel_arena_open(descriptor, offset, given, growth.handle_bytes)
        if not self._arena:
            os.close(descriptor)
            raise MemoryError("a limit on addresses leaves no room for buffers in the store")

    def skip(self, size_bytes: int) -> int:
        """Set whole pages of the file aside; return their offset. Raises MemoryError."""
        found: int = self._library.ciel_arena_skip(self._arena, size_bytes)
        if found < 0:
            raise MemoryError(f"the store has no space for {size_bytes} bytes")
        return found

    def place(self, address: int, size_bytes: int) -> int | None:
        """Return the offset in the file of bytes in memory; None if they are elsewhere."""
        found: int = self._library.ciel_arena_place(self._arena, address, size_bytes)
        return None if found < 0 else found

    @property
    def locator(self) -> Locator:
        """What `place` does, as a function in C."""
        return Locator(self._library.ciel_arena_place, self._arena)

    def close(self, *, is_final: bool) -> int:
        """Allocate nothing more; return the offset where the used part of the file ends.

        `is_final`: the content becomes an object, so its memory becomes read-only. Otherwise the
        buffers stay as ordinary memory.
        """
        return int(self._library.ciel_arena_close(self._arena, is_final))

    def __del__(self) -> None:
        if getattr(self, "_arena", None):
            if self._growth is not None:
                _in_images[self._arena] = self._growth
            self._library.ciel_arena_close(self._arena, False)
            self._library.ciel_arena_let_go(self._arena)
            if self._growth is not None:
                _collect()


_in_images: dict[int, Growth] = {}
"""The arenas in images that Python needs no longer, by address: their buffers may be in use."""


def _collect(_: object = None) -> int:
    """Let the images free the memory of arenas that are gone."""
    library = _library()
    for arena in tuple(_in_images):
        growth = _in_images.pop(arena, None)  # this function may be called within any step here
        if growth is not None and not library.ciel_arena_is_gone(arena):
            _in_images[arena] = growth
    return 0


_collected: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_collect)


def memory_pool(at: str | None = None) -> pyarrow.MemoryPool:
    """Return a memory pool whose buffers lie in the store, in the output of the calling task.

    `at`: the address of a worker of this host, in whose memory the output is allocated; None: the
    worker that runs the task. Raises ValueError if no worker here has this address, or if the
    output has memory of another worker already.

    A table that the task returns is then stored without a copy, as far as its buffers were
    allocated there; other buffers are copied. Outside of a task, and where the pool cannot be used
    (`why_not`), this is the default pool of pyarrow. The pool may be used after its task: then it
    allocates as the default pool does.
    """
    pool = None if why_not() else _pool()
    if pool is None or output_region(_open, at) is None:
        return pyarrow.default_memory_pool()
    return pool


@contextmanager
def in_store(at: str | None = None) -> Iterator[None]:
    """Let pyarrow allocate in `memory_pool(at)` within the block, also where no pool can be passed.

    The whole process does so meanwhile, so intermediate results lie in the store, too.
    """
    before = pyarrow.default_memory_pool()
    pyarrow.set_memory_pool(memory_pool(at))
    try:
        yield
    finally:
        pyarrow.set_memory_pool(before)


@cache
def why_not() -> str:
    """Return why buffers cannot be allocated in the store on this host; "" if they can."""
    if not LIBRARY.exists():
        return "ciel was installed without a compiler for C++"
    header = Path(pyarrow.get_include(), "arrow", "memory_pool.h")
    try:
        declared = virtual_functions(header.read_text())
    except OSError as error:
        return f"pyarrow {pyarrow.__version__} has no headers to check: {error}"
    if declared != _VIRTUAL:
        return f"pyarrow {pyarrow.__version__} declares another class arrow::MemoryPool"
    return ""


def virtual_functions(header: str) -> tuple[str, ...]:
    """Return the virtual functions that a header declares for arrow::MemoryPool, in order."""
    found = re.search(r"^class ARROW_EXPORT MemoryPool \{$(.*?)^\};$", header, re.S | re.M)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", found[1] if found else "", flags=re.S)
    declared = re.findall(r"\bvirtual\b([^;{]*?[\w~]+)\s*(\([^)]*\))", text)
    return tuple(re.split(r"\s", name)[-1] + " ".join(given.split()) for name, given in declared)


def _open(descriptor: int, offset: int, growth: Growth | None) -> Arena:
    return Arena(_library(), descriptor, offset, growth)


@cache
def _library() -> Any:
    library = ctypes.CDLL(str(LIBRARY), use_errno=True)
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "ciel_pool": (ctypes.c_void_p, (ctypes.c_void_p,)),
        "ciel_pool_tell": (None, (ctypes.c_void_p, ctypes.c_void_p)),
        "ciel_arena_open": (
            ctypes.c_void_p,
            (ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64),
        ),
        "ciel_arena_is_gone": (ctypes.c_int, (ctypes.c_void_p,)),
        "ciel_arena_skip": (ctypes.c_int64, (ctypes.c_void_p, ctypes.c_int64)),
        "ciel_arena_close": (ctypes.c_int64, (ctypes.c_void_p, ctypes.c_int)),
        "ciel_arena_place": (
            ctypes.c_int64,
            (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64),
        ),
        "ciel_arena_let_go": (None, (ctypes.c_void_p,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@cache
def _pool() -> pyarrow.MemoryPool:
    """Return the pool of this process, which passes other allocations on to pyarrow's pool."""
    unbox = _from_pyarrow("maybe_unbox_memory_pool", ctypes.c_void_p, ctypes.py_object)
    box = _from_pyarrow("box_memory_pool", ctypes.py_object, ctypes.c_void_p)
    boxed: pyarrow.MemoryPool = box(_library().ciel_pool(unbox(_other_pool())))
    _library().ciel_pool_tell(ctypes.pythonapi.Py_AddPendingCall, _collected)
    return boxed


@cache  # which keeps it: a pool that a user has made would end with its object
def _other_pool() -> pyarrow.MemoryPool:
    return pyarrow.default_memory_pool()


def _from_pyarrow(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function that pyarrow offers to other modules in C."""
    import pyarrow.lib

    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = (ctypes.py_object,)
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    capsule = pyarrow.lib.__pyx_capi__[name]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return ctypes.PYFUNCTYPE(result, *arguments)(address)
