"""Python binding of the file system in memory (`include/shmfs.h`).

    with Image.open(control, data, Geometry(block_bytes=65536)) as image:
        with image.create("4f2a:out:0", size_hint_bytes=10) as file:
            file.write(b"0123456789", 0)
            file.commit()
        view = image.open_file("4f2a:out:0").view()

An image consists of two files, one of control data and one of blocks, or it lies in one file
(`device`); every process maps it. The rules of the header apply: several threads may use one
`Image`, only one thread at a time may use a `File`, and a child of fork must open its own image.
Errors are `ShmfsError`; `ShmfsError.reason` is the name in the header, such as `NOT_FOUND`.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ciel.scc.builds import Build, load
from ciel.scc.device import Device, Kernels, Layout
from ciel.scc.images import map_runs, reserve_whole, unmap
from ciel.scc.shapes import Geometry, ImageProblem, Info, ShmfsError
from ciel.storage.errors import StorageError, StoreClosedError, StoreSystemError
from ciel.storage.interface import Chunk

_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE = 0o600
_MAGIC_BYTES = 8
_PROBLEMS_MAX = 100
_SEPARATE = 2  # as `DEVICE_SEPARATE`

_attached: weakref.WeakSet[Image] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a child of fork, close the descriptors whose locks show that the parent is alive."""
    if not _attached:
        return
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for image in _attached:
        if image._liveness_fd >= 0:
            os.dup2(nothing, image._liveness_fd, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_leave_to_parent)


class Image:
    """One client of an image. Files that are open stay usable after `close`."""

    def __init__(self, files: tuple[int, int] | Device, build: Build, lock_timeout_ms: int) -> None:
        """Attach to an image in these descriptors or in a device, which `close` closes, too."""
        module = load("shmfs", build)
        self.build = build
        self._ffi, self._lib = module.ffi, module.lib
        self._files = files
        # Holds the lock that shows that this client lives. It is a separate descriptor: `mmap`
        # keeps duplicates of `_files`, which would keep the lock after the image is closed.
        self._liveness_fd = -1
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a file may be collected, and closed, within any call
        self._file_count, self._is_closed = 0, False
        # By inode and generation: the slot of the handle, and the number of its users.
        self._shared: dict[tuple[int, int], list[int]] = {}
        self._fs: Any = None
        try:
            self._attach(lock_timeout_ms)
        except BaseException:
            self._let_go()
            raise
        geometry = self._lib.shmfs_geometry_of(self._fs)
        self.geometry = Geometry(*(getattr(geometry, name) for name in Geometry._fields))
        self.client: int = self._lib.shmfs_client_of(self._fs)

    @classmethod
    def open(
        cls,
        control: Path,
        data: Path,
        geometry: Geometry | None = None,
        *,
        build: Build = "coherent",
        lock_timeout_ms: int = 0,
    ) -> Image:
        """Attach to the image of two files. With a geometry, create the image if there is none; an
        existing image keeps its geometry. `lock_timeout_ms` limits how long a call waits for a lock
        before it fails with `BUSY`; 0 means no limit.
        """
        created = os.O_CREAT if geometry is not None else 0
        try:
            control_fd = os.open(control, _OPEN | created, _MODE)
        except FileNotFoundError:
            raise _no_image(control) from None
        except OSError as error:
            raise StoreSystemError(f"open {control}", error.errno or errno.EIO) from error
        try:
            data_fd = os.open(data, _OPEN | created, _MODE)
        except OSError as error:
            os.close(control_fd)
            if isinstance(error, FileNotFoundError):
                raise _no_image(data) from None
            raise StoreSystemError(f"open {data}", error.errno or errno.EIO) from error
        try:
            if geometry is not None:
                _make(control_fd, data_fd, geometry, build)
        except BaseException:
            os.close(control_fd)
            os.close(data_fd)
            raise
        return cls((control_fd, data_fd), build, lock_timeout_ms)

    @classmethod
    def on(cls, device: Device, *, build: Build = "coherent", lock_timeout_ms: int = 0) -> Image:
        """Attach to the image in a device, which the object closes later."""
        return cls(device, build, lock_timeout_ms)

    @staticmethod
    def make_on(
        device: Device, geometry: Geometry, *, build: Build, cores: int, kernels: Kernels
    ) -> None:
        """Create an image in a device, under `device.alone`."""
        module = load("shmfs", build)
        shape, sizes = _sizes(module, geometry)
        planned, layout = device.plan(*sizes, cores, kernels)
        device.begin_image(planned)
        _check_made(module, module.lib.shmfs_format(
            _Memory.of_device(device, layout, module.ffi).described, shape
        ))  # fmt: skip
        messages = load("mpb", build)
        base = messages.ffi.from_buffer(device.part(layout.message_offset, layout.message_bytes))
        memory = messages.ffi.new("struct mpb_memory *", (base, layout.message_bytes, -1))
        if messages.lib.mpb_format(memory, layout.message_count) < 0:
            raise StoreSystemError("format a segment of messages", errno.EINVAL)
        device.complete_image()

    def _attach(self, lock_timeout_ms: int) -> None:
        ffi, lib = self._ffi, self._lib
        options = ffi.new("struct shmfs_options *", {"lock_timeout_ms": lock_timeout_ms})
        if isinstance(self._files, Device):
            layout = self._files.layout()
            if layout is None:
                raise _no_image(self._files.path)
            self._memory = _Memory.of_device(self._files, layout, ffi)
            if layout.kernels == _SEPARATE:
                self._live_by_heartbeats(self._files, options)
        else:
            self._memory = _Memory.of_files(self._files, ffi)
        if not options.claim:
            place = f"/proc/self/fd/{self._memory.control_fd}"
            self._liveness_fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        self._memory.described.control_fd = self._liveness_fd
        size_bytes = lib.shmfs_size()
        storage = ffi.new("uint8_t[]", size_bytes + 64)
        start = ffi.cast("uint8_t *", -(-int(ffi.cast("uintptr_t", storage)) // 64) * 64)
        found = ffi.new("struct shmfs **")
        self._check(
            "attach", lib.shmfs_attach(found, start, size_bytes, self._memory.described, options)
        )
        self._storage = storage
        self._fs = found[0]
        _attached.add(self)

    def _live_by_heartbeats(self, device: Device, options: Any) -> None:
        types = dict(self._ffi.typeof("struct shmfs_options").fields)
        options.is_alive_argument = self._ffi.cast("void *", device.address)
        for field in ("is_alive", "claim", "begins_change"):
            name = "device_lives" if field == "is_alive" else f"device_{field}"
            setattr(options, field, self._ffi.cast(types[field].type, device.function(name)))

    def close(self) -> None:
        """Detach once the last open file is closed."""
        with self._lock:
            self._is_closed = True
            if not self._file_count:
                self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    # --- files ------------------------------------------------------------------------------------

    def create(self, name: str | None = None, *, size_hint_bytes: int = 0) -> File:
        """Create a file and open it for writing. A file without a name is freed when it is
        closed, unless `commit` or `link` has named it.
        """
        text = self._ffi.NULL if name is None else self._text(name)
        return self._opened("create", lambda h: self._lib.shmfs_create(
            self._open_fs(), text, size_hint_bytes, h
        ))  # fmt: skip

    def open_file(self, name: str) -> File:
        """Open a committed file for reading."""
        text = self._text(name)
        return self._opened("open", lambda h: self._lib.shmfs_open(self._open_fs(), text, h))

    def reopen(self, name: str) -> File:
        """Open an uncommitted file that has no writer, for writing."""
        text = self._text(name)
        return self._opened("reopen", lambda h: self._lib.shmfs_reopen(self._open_fs(), text, h))

    def stat(self, name: str) -> Info | None:
        """Return the status of a file; None if there is no file of that name."""
        info = self._ffi.new("struct shmfs_info *")
        result = self._lib.shmfs_stat(self._open_fs(), self._text(name), info)
        if result == self._lib.SHMFS_ERROR_NOT_FOUND:
            return None
        self._check("stat", result)
        return _info(info)

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name; the fastest query."""
        result = self._lib.shmfs_lookup(self._open_fs(), self._text(name))
        if result == self._lib.SHMFS_ERROR_NOT_FOUND:
            return False
        self._check("lookup", result)
        return True

    def link(self, target: str, name: str) -> None:
        """Add a name to the file named `target`."""
        names = self._text(target), self._text(name)
        self._check("link", self._lib.shmfs_link(self._open_fs(), *names))

    def unlink(self, name: str) -> None:
        """Remove a name; the content is freed with the last name, once no process has it open."""
        self._check("unlink", self._lib.shmfs_unlink(self._open_fs(), self._text(name)))

    def rename(self, name: str, to: str, *, replace: bool = False) -> None:
        """Rename a file, in one step."""
        names = self._text(name), self._text(to)
        self._check("rename", self._lib.shmfs_rename(self._open_fs(), *names, replace))

    def names(self) -> Iterator[tuple[str, Info]]:
        """Iterate over the names; a name that exists during the whole iteration is returned
        exactly once.
        """
        ffi = self._ffi
        cursor, info = ffi.new("uint64_t *"), ffi.new("struct shmfs_info *")
        name = ffi.new("char[]", self._lib.SHMFS_NAME_MAX_BYTES + 1)
        while self._check("list", self._lib.shmfs_list(self._open_fs(), cursor, name, info)):
            yield os.fsdecode(ffi.string(name)), _info(info)

    def load(self, fd: int, name: str) -> None:
        """Copy a file of another file system in, and commit it as `name`."""
        with self.counted_io():
            self._check("load", self._lib.shmfs_load(self._open_fs(), fd, self._text(name)))

    def store(self, name: str, fd: int) -> int:
        """Copy a committed file out; returns the number of bytes."""
        with self.counted_io():
            result = self._lib.shmfs_store(self._open_fs(), self._text(name), fd)
            return self._check("store", result)

    # --- statistics and checking ------------------------------------------------------------------

    def io_begin(self, limit: int, timeout_s: float = -1) -> None:
        """Wait until fewer than `limit` disk jobs run, then start one (requirement CIB-40)."""
        timeout_ms = -1 if timeout_s < 0 else round(timeout_s * 1000)
        result = self._lib.shmfs_io_begin(self._open_fs(), limit, timeout_ms)
        self._check("io_begin", result)

    def io_end(self) -> None:
        """End a disk job."""
        self._check("io_end", self._lib.shmfs_io_end(self._open_fs()))

    @contextmanager
    def counted_io(self) -> Iterator[None]:
        """Count an I/O operation while it is under way (requirement CIB-21)."""
        try:
            self.io_begin(0)
        except StorageError:  # the operation may succeed although it is not counted
            yield
            return
        try:
            yield
        finally:
            with suppress(StorageError):  # then `close` ends it
                self.io_end()

    def sweep(self) -> int:
        """Clean up after dead clients; returns how many there were."""
        return self._check("sweep", self._lib.shmfs_sweep(self._open_fs()))

    def statistics(self) -> dict[str, int]:
        """Return usage statistics, by the names of `struct shmfs_statistics`."""
        found = self._ffi.new("struct shmfs_statistics *")
        self._check("statfs", self._lib.shmfs_statfs(self._open_fs(), found))
        fields = self._ffi.typeof("struct shmfs_statistics").fields
        return {name: int(getattr(found, name)) for name, _ in fields}

    def check(self) -> list[ImageProblem]:
        """Return the problems of an image that no process is changing."""
        ffi, lib = self._ffi, self._lib
        self._open_fs()
        memory = self._memory.described
        scratch_bytes = lib.shmfs_check_scratch_bytes(memory.control, memory.control_bytes)
        scratch = ffi.new("uint8_t[]", scratch_bytes + 64)
        start = ffi.cast("uint8_t *", -(-int(ffi.cast("uintptr_t", scratch)) // 64) * 64)
        problems = ffi.new("struct shmfs_problem[]", _PROBLEMS_MAX)
        count = lib.shmfs_check(
            memory.control, memory.control_bytes, memory.data_bytes,
            start, scratch_bytes, problems, _PROBLEMS_MAX,
        )  # fmt: skip
        return [
            ImageProblem(
                ffi.string(problem.code, 4).decode(), problem.place, problem.detail,
                ffi.string(lib.shmfs_problem_text(problem.code)).decode(),
            )
            for problem in problems[0 : min(self._check("check", count), _PROBLEMS_MAX)]
        ]  # fmt: skip

    # --- within -----------------------------------------------------------------------------------

    def _opened(self, operation: str, call: Any) -> File:
        handle = self._ffi.new("struct shmfs_handle *")
        with self._lock:
            self._check(operation, call(handle))
            self._file_count += 1
            self._share_handle(handle)
        return File(self, handle)

    def _share_handle(self, handle: Any) -> None:
        """Reuse the handle through which this process has the file open, instead of a new one."""
        key = (handle.inode, handle.generation)
        shared = self._shared.get(key)
        if shared is None or not shared[1]:  # the last user may be collected within any step here
            self._shared[key] = [handle.slot, 1]
        else:
            shared[1] += 1
            self._lib.shmfs_close(self._fs, handle)
            handle.inode, handle.slot = key[0], shared[0]

    def _release_shared(self, handle: Any) -> bool:
        """Remove one user of a shared handle; return whether it still has users."""
        key = (handle.inode, handle.generation)
        shared = self._shared.get(key)
        if shared is None or shared[0] != handle.slot:
            return False
        shared[1] -= 1
        if not shared[1]:
            del self._shared[key]
        return shared[1] > 0

    def _close_handle(self, handle: Any) -> None:
        """Close a file's handle. A forked copy owns no handle."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if not self._release_shared(handle):
                self._lib.shmfs_close(self._fs, handle)
            self._file_count -= 1
            if self._is_closed and not self._file_count:
                self._let_go()

    def _let_go(self) -> None:
        if self._pid == os.getpid() and self._fs is not None:
            self._lib.shmfs_detach(self._fs)
        self._fs = self._memory = None  # type: ignore[assignment]  # no later access
        files, self._files = self._files, (-1, -1)  # a second call closes nothing
        if isinstance(files, Device):
            files.close()
            files = (-1, -1)
        for fd in (*files, self._liveness_fd):
            if fd >= 0:
                os.close(fd)
        self._liveness_fd = -1

    def _open_fs(self) -> Any:
        if self._is_closed:
            raise StoreClosedError("the image")
        return self._fs

    def _text(self, name: str) -> bytes:
        encoded = os.fsencode(name)
        if b"\0" in encoded:  # C would read a shorter name
            self._check("name", self._lib.SHMFS_ERROR_NAME)
        return encoded

    def _check(self, operation: str, result: int) -> int:
        """Return a call's result, or raise its error."""
        if result >= 0:
            return result
        ffi = self._ffi
        number = ffi.errno
        if result == self._lib.SHMFS_ERROR_SYSTEM:
            raise StoreSystemError(f"shmfs {operation}", number)
        reason = ffi.typeof("enum shmfs_error").elements.get(result, str(result))
        text = ffi.string(self._lib.shmfs_error_text(result)).decode()
        raise ShmfsError(operation, reason.removeprefix("SHMFS_ERROR_"), text)


class File:
    """An open file of an image. Closed when it is collected."""

    def __init__(self, image: Image, handle: Any) -> None:
        self._image = image
        self._handle = handle
        self._users = 1  # including views
        self._is_closed = False
        self.build = image.build

    def write(self, chunk: Chunk, offset_bytes: int) -> None:
        """Write at an offset, and grow the file if necessary."""
        image = self._image
        if size_bytes := memoryview(chunk).nbytes:
            source = image._ffi.from_buffer(memoryview(chunk).cast("B"))
            result = image._lib.shmfs_write(*self._open(), source, size_bytes, offset_bytes)
            image._check("write", result)

    def read_into(self, buffer: bytearray | memoryview, offset_bytes: int) -> int:
        """Fill the buffer from an offset; returns the number of bytes read."""
        image = self._image
        target = image._ffi.from_buffer(buffer, require_writable=True)
        size_bytes = memoryview(buffer).nbytes
        result = image._lib.shmfs_read(*self._open(), target, size_bytes, offset_bytes)
        return image._check("read", result)

    def reserve(self, size_bytes: int) -> None:
        """Reserve space for `size_bytes` in all."""
        image = self._image
        image._check("reserve", image._lib.shmfs_reserve(*self._open(), size_bytes))

    def truncate(self, size_bytes: int) -> None:
        """Shrink the file, or extend it with zeros."""
        image = self._image
        image._check("truncate", image._lib.shmfs_truncate(*self._open(), size_bytes))

    def commit(self, name: str | None = None) -> None:
        """Make the content final and visible, and add `name` if one is given."""
        image = self._image
        text = image._ffi.NULL if name is None else image._text(name)
        image._check("commit", image._lib.shmfs_commit(*self._open(), text))

    def set_tag(self, tag: int) -> None:
        """Store a number with the file."""
        image = self._image
        image._check("set_tag", image._lib.shmfs_set_tag(*self._open(), tag))

    def info(self) -> Info:
        """Return the file's status."""
        image = self._image
        info = image._ffi.new("struct shmfs_info *")
        image._check("stat", image._lib.shmfs_stat_handle(*self._open(), info))
        return _info(info)

    def runs(self, size_bytes: int, offset_bytes: int = 0) -> list[tuple[int, int]]:
        """Return the runs of blocks that hold a part of the content: offsets and lengths, in order.
        A writer may ask for reserved space too.
        """
        image, end_bytes = self._image, offset_bytes + size_bytes
        runs: list[tuple[int, int]] = []
        place, run = image._ffi.new("uint64_t *"), image._ffi.new("uint64_t *")
        while offset_bytes < end_bytes:
            result = image._lib.shmfs_place(*self._open(), offset_bytes, place, run)
            image._check("place", result)
            length_bytes = min(run[0], end_bytes - offset_bytes)
            if runs and runs[-1][0] + runs[-1][1] == place[0]:
                runs[-1] = (runs[-1][0], runs[-1][1] + length_bytes)
            else:
                runs.append((place[0], length_bytes))
            offset_bytes += length_bytes
        return runs

    def writable(self, size_bytes: int) -> memoryview:
        """Return the memory of a writer's first `size_bytes`, which must be reserved, to write in
        place. Call `set_written` afterwards. Do not use it after the file is closed.
        """
        image, runs = self._image, self.runs(size_bytes)
        if len(runs) == 1:
            start, _ = runs[0]
            return memoryview(image._memory.data)[start : start + size_bytes]
        ffi, mapped = image._ffi, image._memory.map(runs, writable=True)
        pinned = ffi.gc(ffi.cast("char *", mapped), lambda _: unmap(mapped, size_bytes))
        return memoryview(ffi.buffer(pinned, size_bytes))

    def set_written(self, size_bytes: int) -> None:
        """Report that content was written in place, up to `size_bytes`."""
        image = self._image
        image._check("wrote", image._lib.shmfs_wrote(*self._open(), size_bytes))

    def view(self) -> memoryview:
        """Return a read-only view of a committed file's content in place. The file stays open while
        the view exists. In the strict build, which simulates incoherent caches, it is a copy.
        """
        image, size_bytes = self._image, self.info().size_bytes
        if not size_bytes:
            return memoryview(b"")
        if image.build == "strict":
            buffer = bytearray(size_bytes)
            self.read_into(buffer, 0)
            return memoryview(buffer).toreadonly()
        ffi, runs = image._ffi, self.runs(size_bytes)
        if len(runs) == 1:
            start = ffi.cast("char *", image._memory.described.data) + runs[0][0]
            pinned = ffi.gc(start, lambda _: self._release_user())
        else:
            mapped = image._memory.map(runs)

            def end(_: Any) -> None:
                unmap(mapped, size_bytes)
                self._release_user()

            pinned = ffi.gc(ffi.cast("char *", mapped), end)
        with image._lock:
            self._users += 1
        return memoryview(ffi.buffer(pinned, size_bytes)).toreadonly()

    def mapped(
        self,
        size_bytes: int,
        offset_bytes: int = 0,
        *,
        writable: bool = False,
        private: bool = False,
    ) -> memoryview:
        """Map a part of the file, which stays open while the mapping exists.

        `writable`: a writer maps reserved space, to write in place. `private`: a reader may write,
        which copies the page. Otherwise pages are read-only. Not for the strict build.
        """
        image, before = self._image, offset_bytes % mmap.PAGESIZE
        room_bytes = size_bytes + before
        runs = self.runs(room_bytes, offset_bytes - before)
        address = image._memory.map(runs, writable=writable, private=private)

        def end(_: Any) -> None:
            unmap(address, room_bytes)
            self._release_user()

        ffi = image._ffi
        pinned = ffi.gc(ffi.cast("char *", address), end)
        with image._lock:
            self._users += 1
        view = memoryview(ffi.buffer(pinned, room_bytes))[before:]
        return view if writable or private else view.toreadonly()

    def growth(self) -> Growth:
        """Let code in C extend a writer's file. The file stays open while the result exists."""
        with self._image._lock:
            self._users += 1
        return Growth(self)

    def close(self) -> None:
        """Close the file; its views stay valid. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._release_user()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _open(self) -> tuple[Any, Any]:
        if self._is_closed:
            raise StoreClosedError("the file")
        return self._image._fs, self._handle

    def _release_user(self) -> None:
        with self._image._lock:
            self._users -= 1
            if not self._users:
                self._image._close_handle(self._handle)


class Growth:
    """The addresses by which code in C extends a file and finds its blocks.

    `reserve` and `place` are functions of `shmfs.h`, `fs` and `handle` their first arguments; the
    code uses a copy of the handle. `fileno` returns a descriptor of the file that has the blocks
    from `first_bytes` on.
    """

    def __init__(self, file: File) -> None:
        ffi, lib = file._image._ffi, file._image._lib
        self._file = file
        self.reserve, self.place = (
            int(ffi.cast("uintptr_t", ffi.addressof(lib, f"shmfs_{name}")))
            for name in ("reserve", "place")
        )
        self.fs, self.handle = (int(ffi.cast("uintptr_t", each)) for each in file._open())
        self.handle_bytes = int(ffi.sizeof("struct shmfs_handle"))
        self.first_bytes = file._image._memory.first_bytes

    def fileno(self) -> int:
        return self._file._image._memory.data_fd

    def __del__(self) -> None:
        if hasattr(self, "handle_bytes"):
            self._file._release_user()


class _Memory:
    """The parts of an image, mapped, and their description for C. The blocks begin at `first_bytes`
    in the file of `data_fd`.
    """

    def __init__(
        self, ffi: Any, control: Any, data: Any, fds: tuple[int, int], first_bytes: int = 0
    ) -> None:
        self.control, self.data = control, data
        self.control_fd, self.data_fd = fds
        self.first_bytes = first_bytes
        self._pointers = ffi.from_buffer(self.control), ffi.from_buffer(self.data)
        self.described = ffi.new("struct shmfs_memory *", {
            "control": self._pointers[0], "control_bytes": len(self.control),
            "data": self._pointers[1], "data_bytes": len(self.data), "control_fd": self.control_fd,
        })  # fmt: skip

    @classmethod
    def of_files(cls, fds: tuple[int, int], ffi: Any) -> _Memory:
        """Map both files."""
        try:
            control, data = (mmap.mmap(fd, 0) for fd in fds)
        except (OSError, ValueError) as error:  # ValueError: empty file
            number = error.errno if isinstance(error, OSError) else None
            raise StoreSystemError("map an image", number or errno.ENODATA) from error
        return cls(ffi, control, data, fds)

    @classmethod
    def of_device(cls, device: Device, layout: Layout, ffi: Any) -> _Memory:
        """Use the parts of a device."""
        control = device.part(layout.control_offset, layout.control_bytes)
        data = device.part(layout.data_offset, layout.data_bytes)
        return cls(ffi, control, data, (device.fd, device.fd), layout.data_offset)

    def map(
        self, runs: list[tuple[int, int]], *, writable: bool = False, private: bool = False
    ) -> int:
        """Map runs of blocks contiguously; see `map_runs`."""
        placed = [(self.first_bytes + offset, length) for offset, length in runs]
        return map_runs(self.data_fd, placed, writable=writable, private=private)


def _sizes(module: Any, geometry: Geometry) -> tuple[Any, tuple[int, int]]:
    """Return a geometry for C, and the sizes of both parts."""
    shape = module.ffi.new("struct shmfs_geometry *", geometry._asdict())
    sizes = module.ffi.new("uint64_t[2]")
    _check_made(module, module.lib.shmfs_sizes(shape, sizes, sizes + 1))
    return shape, (sizes[0], sizes[1])


def _check_made(module: Any, result: int) -> None:
    if result < 0:
        ffi = module.ffi
        reason = ffi.typeof("enum shmfs_error").elements.get(result, str(result))
        text = ffi.string(module.lib.shmfs_error_text(result)).decode()
        raise ShmfsError("format", reason.removeprefix("SHMFS_ERROR_"), text)


def _make(control_fd: int, data_fd: int, geometry: Geometry, build: Build) -> None:
    """Create an image unless there is one. If a process dies meanwhile, the next one starts again,
    because the magic number is written last.
    """
    module = load("shmfs", build)
    fcntl.flock(control_fd, fcntl.LOCK_EX)
    try:
        if any(os.pread(control_fd, _MAGIC_BYTES, 0)):
            return
        shape, sizes = _sizes(module, geometry)
        reserve_whole(control_fd, sizes[0])
        reserve_whole(data_fd, sizes[1])
        memory = _Memory.of_files((control_fd, data_fd), module.ffi)
        _check_made(module, module.lib.shmfs_format(memory.described, shape))
    finally:
        fcntl.flock(control_fd, fcntl.LOCK_UN)


def _no_image(path: Path) -> ShmfsError:
    return ShmfsError("attach", "FORMAT", f"there is no image at {path}")


def _info(info: Any) -> Info:
    return Info(
        info.inode, info.generation, info.size_bytes, info.block_count, info.link_count,
        info.handle_count, info.is_committed, info.is_writing, info.is_contiguous, info.tag,
    )  # fmt: skip
