"""Python binding of images in one file, which several kernels may map (`include/device.h`).

    with Device(Path("/sys/bus/pci/devices/0000:00:04.0/resource2")) as device:
        image = Image.on(device)
        core = device.message_core(3)

A thread in C counts the heartbeats of this process, so the interpreter's lock delays none. A child
of fork must open the device again. Errors are `StorageError`; errors of messages are `MpbError`.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal, NamedTuple, Self, get_args

from ciel.scc.builds import Build, load
from ciel.scc.mpb import Core, MpbError
from ciel.storage.errors import StoreSpecError, StoreSystemError

Kernels = Literal["shared", "separate"]
KERNELS: Final[tuple[Kernels, ...]] = get_args(Kernels)
DEAD_S: Final = 2.0
"""As `DEVICE_DEAD_MS`: how long an owner has no heartbeat until it is dead."""
_LOCK_S = 60.0  # the time to make the largest image on a slow machine
_SLICE_MS = 200  # so that Python can handle signals
_SLEEP_MAX_US = 1000  # no bell of another kernel ends a sleep
_BETWEEN_HOSTS = {
    "sysfs", "9p", "virtiofs", "nfs", "nfs4", "cifs", "smb3", "ceph", "gfs2", "ocfs2", "lustre",
    "fuse.sshfs", "fuse.glusterfs",
}  # fmt: skip
"""Types of file systems whose files other kernels may map."""


class Layout(NamedTuple):
    """The parts of an image, as `struct device_layout`."""

    control_offset: int
    control_bytes: int
    message_offset: int
    message_bytes: int
    data_offset: int
    data_bytes: int
    core_count: int
    message_count: int
    kernels: int
    kernel: int
    identity: int


class CoreState(NamedTuple):
    """A core of the store, as `struct device_core`; `incarnation` 0: no process uses it."""

    incarnation: int
    kernel: int
    object_count: int
    is_living: bool


class Device:
    """One process's use of a file with an image, or with room for one."""

    def __init__(self, path: Path, *, build: Build = "coherent", kernel: int = 0) -> None:
        """`kernel`: a number that stands for this kernel, in tests; 0: its boot id."""
        self.path = path
        self._module = load("device", "coherent" if build == "strict" else build)
        self._ffi: Any = self._module.ffi
        self._lib: Any = self._module.lib
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._users = 1
        self._raw: Any = None
        self.kernel: int = kernel or self._lib.device_kernel()
        self.fd = _opened(path)
        try:
            self.size_bytes = os.fstat(self.fd).st_size
            if self.size_bytes < self._lib.DEVICE_HEAD_BYTES:
                raise StoreSpecError(str(path), "the file is too small for an image")
            try:
                self.mapping = mmap.mmap(self.fd, self.size_bytes)
            except OSError as error:
                raise StoreSystemError(f"map {path}", error.errno or errno.EIO) from error
            self._base = self._ffi.from_buffer(self.mapping)
            self._attach()
        except BaseException:
            os.close(self.fd)
            self.fd = -1
            raise

    def _attach(self) -> None:
        ffi, size_bytes = self._ffi, self._lib.device_size()
        self._storage = ffi.new("uint8_t[]", size_bytes + 64)
        start = self._storage + -int(ffi.cast("uintptr_t", self._storage)) % 64
        found = ffi.new("struct device **")
        result = self._lib.device_attach(
            found, start, size_bytes, self._base, self.size_bytes, self.kernel
        )
        if result < 0:
            raise StoreSystemError(f"start heartbeats in {self.path}", ffi.errno or errno.EINVAL)
        self._raw = found[0]

    @property
    def address(self) -> int:
        """The address of the `struct device`."""
        return int(self._ffi.cast("uintptr_t", self._raw))

    def function(self, name: str) -> int:
        """Return the address of a function in C that takes the device as its first argument."""
        return int(self._ffi.cast("uintptr_t", self._ffi.addressof(self._lib, name)))

    # --- the image --------------------------------------------------------------------------------

    def layout(self) -> Layout | None:
        """Return the parts of the image; None if the file is empty. Raises StoreSpecError."""
        found = self._ffi.new("struct device_layout *")
        result = self._lib.device_layout_of(self._base, self.size_bytes, found)
        if result == self._lib.DEVICE_ERROR_EMPTY:
            return None
        if result < 0:
            reason = "the file holds other data, or an image of another version; shminit --force"
            raise StoreSpecError(str(self.path), f"{reason} replaces it")
        return Layout(*(int(getattr(found, name)) for name in Layout._fields))

    def plan(
        self, control_bytes: int, data_bytes: int, cores: int, kernels: Kernels
    ) -> tuple[Any, Layout]:
        """Return the layout of an image, for C and for Python. Raises StoreSpecError if the file is
        too small.
        """
        count = self._lib.device_message_count(cores)
        planned = self._ffi.new("struct device_layout *", {
            "control_bytes": control_bytes, "data_bytes": data_bytes, "core_count": cores,
            "message_bytes": load("mpb").lib.mpb_segment_bytes(count),
            "kernels": KERNELS.index(kernels) + 1,
        })  # fmt: skip
        result = self._lib.device_plan(planned)
        needed_bytes = self._lib.device_bytes(planned)
        if result < 0 or needed_bytes > self.size_bytes:
            reason = f"the image takes {needed_bytes:,} bytes, and the file has {self.size_bytes:,}"
            raise StoreSpecError(str(self.path), f"{reason}; ask for less capacity")
        return planned, Layout(*(int(getattr(planned, name)) for name in Layout._fields))

    def begin_image(self, planned: Any) -> None:
        """Start to make an image, under `alone`; an existing one is lost."""
        if self._lib.device_begin_image(self._raw, planned) < 0:
            raise StoreSystemError("draw a random number", self._ffi.errno or errno.EIO)

    def complete_image(self) -> None:
        """Complete an image whose parts are formatted."""
        self._lib.device_complete_image(self._raw)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the only lock of the file, which all kernels respect."""
        end_s = monotonic() + _LOCK_S
        while self._lib.device_lock(self._raw, _SLICE_MS) < 0:
            if monotonic() > end_s:
                raise StoreSystemError(f"lock {self.path}", errno.EBUSY)
        try:
            yield
        finally:
            self._lib.device_unlock(self._raw)

    def part(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """Return a part of the file, mapped."""
        return memoryview(self.mapping)[offset_bytes : offset_bytes + size_bytes]

    # --- cores ------------------------------------------------------------------------------------

    def core(self, number: int, *, waits: bool) -> CoreState:
        """Return the state of a core. `waits`: for up to `DEAD_S`, until it is known whether an
        owner that this process has not observed yet is alive.
        """
        found = self._lib.device_core_of(self._raw, number, waits)
        return CoreState(found.incarnation, found.kernel, found.object_count, bool(found.is_living))

    def set_core(self, number: int, incarnation: int) -> None:
        """Let a core begin an incarnation, or with 0 end it; under `alone`."""
        self._lib.device_set_core(self._raw, number, incarnation)

    def name_core(self, client: int, number: int, incarnation: int) -> None:
        """Name the incarnation that a client of this process belongs to; 0: none."""
        self._lib.device_name_core(self._raw, client, number, incarnation)

    def count(self, number: int, more: int) -> None:
        """Count objects of a core."""
        self._lib.device_count(self._raw, number, more)

    def message_core(self, number: int, *, build: Build = "coherent", check_ms: int = 0) -> Core:
        """Attach as a core of the image's segment of messages. A store with N cores leaves the
        numbers from N on to other programs. Raises MpbError.
        """
        layout = self.layout()
        if layout is None:
            raise StoreSpecError(str(self.path), "there is no image in the file")
        return Core(_Messages(self, layout), number, build=build, check_ms=check_ms)

    # --- life -------------------------------------------------------------------------------------

    def use(self) -> Self:
        """Add a user; each user calls `close`."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Remove a user; the last one ends the heartbeats."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._end()

    def _end(self) -> None:
        if self._raw is not None and self._pid == os.getpid():
            self._lib.device_detach(self._raw)
        self._raw = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._ffi.release(self._base)
            with suppress(BufferError):  # views of files exist, and keep the memory
                self.mapping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self._end()


class _Messages:
    """The segment of messages of a device, see `ciel.scc.mpb.Segment`."""

    sleep_max_us = _SLEEP_MAX_US

    def __init__(self, device: Device, layout: Layout) -> None:
        self._device = device
        self._count = layout.message_count
        self.memory = device.part(layout.message_offset, layout.message_bytes)

    def claim(self, core: int) -> None:
        device, lib = self._device, load("mpb").lib
        if core >= self._count:
            text = f"the segment has {self._count} cores, numbered from 0"
            raise MpbError(lib.MPB_ERROR_ARGUMENT, text, core)
        if not device._lib.device_message_claim(device._raw, core, True):
            raise MpbError(lib.MPB_ERROR_TAKEN, "a live process is attached as that core", core)
        device.use()

    def attached(self, core: int) -> None:
        self._device._lib.device_message_ready(self._device._raw, core)

    def release(self, core: int) -> None:
        device = self._device
        if device._pid == os.getpid():
            device._lib.device_message_claim(device._raw, core, False)
        self.memory.release()
        device.close()

    def liveness(self) -> tuple[int, int]:
        return self._device.function("device_message_lives"), self._device.address


def may_have_other_kernels(fd: int) -> bool:
    """Return whether a file lies in a file system whose files other kernels may map."""
    status = os.fstat(fd)
    number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        if words[2] == number:
            return words[words.index("-") + 1] in _BETWEEN_HOSTS
    return False


def _opened(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise StoreSystemError(f"open {path}", error.errno or errno.EIO) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StoreSpecError(str(path), "not a file, nor the memory of a device as a file")
    return fd
