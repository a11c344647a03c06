"""The store `scc`: objects in memory that several cores share, with or without coherent caches.

All workers that name the same instance share one image (`shmfs`). Each worker is a core with its
own object names (`core_registration`). A core finds an object of another core by looking up its
name, and links it under a second name. So no bytes are copied, and each core keeps and deletes its
own names.
Readers that map memory read in place, also in other processes (`attachments`), and so do writers. A
program that needs a file gets a sealed copy (`copies`), or writes a file that is copied in
(`uncommitted`); the store counts copied bytes.

    /dev/shm/ciel-scc-<instance>/     exists while a process holds a lease on it (`leases`)
        control, data                 the image
        image                         instead of these: a link to the file of the image (`path`)
        cores/                        registered cores, unless the image has them
        owner-<core>                  process id of the worker that owns the core, which locks it
        incoming/                     files that programs write
        messages                      message-passing buffers of the cores (`messages=yes`)
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

from ciel.core.ids import check_id
from ciel.scc.attachments import image_place, place_of
from ciel.scc.builds import BUILDS
from ciel.scc.copies import Copies
from ciel.scc.cores.by_heartbeats import HeartbeatRegistration
from ciel.scc.cores.by_locks import LockRegistration
from ciel.scc.cores.registration import OF_A_CORE, CoreRegistration
from ciel.scc.device import KERNELS, Device, Kernels
from ciel.scc.fifos import Fifos
from ciel.scc.instances import (
    BLOCK_BYTES,
    BLOCK_MAX_BYTES,
    BLOCK_MIN_BYTES,
    BLOCKS_MAX,
    CAPACITY_BYTES,
    CORES,
    CORES_MAX,
    ROOT,
    SHARDS_MAX,
    ImageFile,
    Layout,
    directory_name,
    instance_of,
    open_in_file,
    open_instance,
    remove_instance,
)
from ciel.scc.mpb import CORES_MAX as CORES_MAX_OF_MESSAGES
from ciel.scc.mpb import segment_core
from ciel.scc.neighbours import Neighbours
from ciel.scc.objects import (
    OpenObjects,
    SccReader,
    SccWriter,
    checksum_of,
    digest_of,
    translated,
)
from ciel.scc.shapes import Info, ShmfsError
from ciel.scc.shmfs import File, Image
from ciel.scc.uncommitted import UncommittedFile
from ciel.storage import leases
from ciel.storage.errors import (
    CannotAdoptError,
    CorruptObjectError,
    ObjectConflictError,
    ObjectNotFoundError,
    StoreClosedError,
    StoreSpecError,
    StoreSystemError,
)
from ciel.storage.fullness import Fullness
from ciel.storage.interface import (
    MEMORY,
    Capabilities,
    MessageCore,
    ObjectInfo,
    ObjectStore,
    Problem,
    StoreLevel,
    StoreUsage,
)
from ciel.storage.specs import check_options, parse_size
from ciel.storage.spill import with_spill
from ciel.storage.temporaries import Temporaries

_OPTIONS = (
    "cores", "capacity", "block", "shards", "build", "instance", "core", "messages", "spill",
    "path", "kernels",
)  # fmt: skip

# Each retry means that another process deleted or replaced something meanwhile.
_PUBLISH_TRIES = 8
_CHECK_LOOKS = 3
_SWEEPS_S = 1.0  # at most that often
_DRAFT = "~"  # between the core and a number, in the name of a file that a program writes in place
_COPIES_SHARE = 8  # of the capacity, for copies without readers


def open_scc(options: Mapping[str, str], directory: Path) -> ObjectStore:
    """Open a store in memory that several cores share; objects that do not fit go to a disk store.

    Options: `cores` (how many cores may share it), `capacity` and `block` (sizes), `instance`
    (letters, digits, `_` and `-`; random by default; the store joins an existing instance), `core`
    (the number of this core; the first free one by default), `shards` (the number of locks of each
    kind), `build` (`coherent`, `flushing` or `strict`), `messages` (`yes`: the workers find each
    other's objects by messages in shared memory, not by sockets), and `spill` (the disk store:
    `yes` for `directory`, `no` for none, or a path). `path`: the file of the image, such as the
    memory of a device, instead of `instance`. `kernels`: `separate` if several kernels map the
    file; they always use messages.
    """
    return with_spill(open_cores(options), options.get("spill", "yes"), directory)


def open_cores(options: Mapping[str, str], *, kernel: int = 0) -> SccStore:
    """Open only the memory, which several processes may share as one core. `kernel`: a number that
    stands for this kernel, in tests; 0: its boot id.
    """
    layout, core = read_options(options)
    has_messages = options.get("messages") == "yes"
    if (path := options.get("path")) is None:
        instance = options.get("instance") or secrets.token_hex(8)
        return SccStore(instance, layout, core, has_messages=has_messages)
    kernels = cast(Kernels | None, options.get("kernels"))
    file = ImageFile(Path(path), kernels, frozenset(options), kernel)
    return SccStore(instance_of(path, kernel), layout, core, file, has_messages=has_messages)


def read_options(options: Mapping[str, str]) -> tuple[Layout, int | None]:
    """Return the parameters of the image, and the number of the core if there is one. Raises
    `StoreSpecError`.
    """
    check_options("scc", options, _OPTIONS)
    _check_path(options)
    build = options.get("build", "coherent")
    if build not in BUILDS:
        raise StoreSpecError(f"build={build}", f"expected one of {', '.join(BUILDS)}")
    if (messages := options.get("messages", "no")) not in ("yes", "no"):
        raise StoreSpecError(f"messages={messages}", "expected yes or no")
    layout = Layout(
        cores=_number(options, "cores", 1, CORES_MAX, CORES),
        capacity_bytes=parse_size(options.get("capacity", str(CAPACITY_BYTES))),
        block_bytes=parse_size(options.get("block", str(BLOCK_BYTES))),
        shards=_number(options, "shards", 1, SHARDS_MAX, 0),
        build=build,
    )
    if messages == "yes" and layout.cores > CORES_MAX_OF_MESSAGES:
        reason = f"messages=yes is for at most {CORES_MAX_OF_MESSAGES}"
        raise StoreSpecError(f"cores={layout.cores}", reason)
    _check_shape(layout)
    core = _number(options, "core", 0, CORES_MAX - 1, -1)  # the registration checks the upper limit
    return layout, None if core < 0 else core


def open_bridge_core(options: Mapping[str, str], number: int) -> MessageCore:
    """Return the core of the messages that belongs to a bridge. Bridges have numbers from 0."""
    layout, _ = read_options(options)
    if (path := options.get("path")) is not None:
        with Device(Path(path)) as device:
            found = device.layout()
            cores = 0 if found is None else found.core_count
            _check_bridge(number, cores)
            return device.message_core(cores + number)
    instance = options.get("instance")
    if instance is None:
        raise StoreSpecError("instance", "name the instance that the workers share")
    _check_bridge(number, layout.cores)
    root_fd = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        hold_fd = leases.hold(directory_name(instance), parent_fd=root_fd)
    finally:
        os.close(root_fd)

    def let_go() -> None:
        os.close(hold_fd)
        remove_instance(instance)  # unless another process has it open

    return segment_core(hold_fd, layout.cores + number, layout.cores, let_go)


def _check_bridge(number: int, cores: int) -> None:
    most = max(0, min(cores, CORES_MAX_OF_MESSAGES - cores))
    if not 0 <= number < most:
        reason = f"an image with cores={cores} has room for {most}, numbered from 0"
        raise StoreSpecError(f"bridge {number}", reason)


class ImageDiskLimit:
    """The number of disk jobs that the image counts for all its cores (`storage.DiskLimit`)."""

    def __init__(self, image: Image) -> None:
        self._image = image

    def begin(self, at_most: int, timeout_s: float) -> bool:
        try:
            self._image.io_begin(at_most, timeout_s)
        except ShmfsError as error:
            if error.reason == "LIMIT":
                return False
            raise
        return True

    def end(self) -> None:
        self._image.io_end()


class SccStore(ObjectStore):
    """The objects of one core, in memory that it shares with other cores."""

    def __init__(
        self,
        instance: str,
        layout: Layout,
        core: int | None = None,
        file: ImageFile | None = None,
        *,
        has_messages: bool = False,
    ) -> None:
        """`file`: the image lies there, and `instance` is the directory of this kernel."""
        self.instance = instance
        self._has_messages = has_messages
        self.readers, self._writers = OpenObjects(), OpenObjects()
        self.writes_in_place = layout.build != "strict"
        self.kernels: Kernels = "shared"
        self._device: Device | None = None
        self._reserved_bytes = 0
        self._next_sweep_s = 0.0
        self._fifos: Fifos | None = None
        self._lock = threading.RLock()  # collecting a writer may call `charge` within any call
        self._pid = os.getpid()
        self._is_closed = True
        self._owner_fd = -1
        name = directory_name(instance)
        self.scheme = f"scc:{name}/"
        if file is None:
            self._hold_fd, self._image = open_instance(name, layout)
        else:
            opened = open_in_file(name, layout, file)
            self._hold_fd, self._image, self._device, layout, self.kernels = opened
            found = self._device.layout()
            assert found is not None
            self.scheme = f"scc:{found.identity:016x}/"  # the same in all kernels
        self.sources = ("/", self.scheme)
        self._core_count = layout.cores
        self.copies = Copies(layout.capacity_bytes // _COPIES_SHARE)
        try:
            self.places = (image_place(instance),)
            self._fullness = Fullness(ROOT)
            self._image.sweep()
            self._registration = self._registered(core, layout.cores)
            self._temporaries = Temporaries(self._hold_fd, f"{ROOT}/{name}", self._fullness)
            self._neighbours = Neighbours(self._hold_fd, self._registration.name)
        except BaseException:
            if hasattr(self, "_registration"):
                self._registration.close()
            self._image.close()
            if self._device is not None:
                self._device.close()
            os.close(self._hold_fd)
            remove_instance(instance)
            if hasattr(self, "_fullness"):
                self._fullness.close()
            raise
        self.block_bytes = self._image.geometry.block_bytes
        self._capacity_bytes = self.block_bytes * self._image.geometry.block_count
        self._is_closed = False
        self.capabilities = Capabilities(
            mappable=self.writes_in_place,
            nameable=True,
            streaming=True,
            shared_between_processes=True,
            bounded=True,
            may_block=False,
        )

    def disk_limit(self) -> ImageDiskLimit:
        return ImageDiskLimit(self._image)

    # --- one object -------------------------------------------------------------------------------

    def begin(self, object_id: str, *, size_hint_bytes: int | None = None) -> SccWriter:
        check_id(object_id)
        self.require_open()
        writer = SccWriter(self, object_id, size_hint_bytes or 0)
        self._writers.add(writer)
        return writer

    def open(self, object_id: str) -> SccReader:
        return SccReader(self, object_id, self._opened_file(object_id))

    def stat(self, object_id: str) -> ObjectInfo | None:
        name = self.file_name(object_id)
        self.require_open()
        info = self._image.stat(name)
        if info is None or not info.is_committed:
            return None
        return ObjectInfo(object_id, info.size_bytes, checksum_of(info))

    def checksum(self, object_id: str) -> str:
        with self._opened_file(object_id) as file:
            return checksum_of(file.info()) or self._compute_checksum(file)

    def verify(self, object_id: str) -> ObjectInfo:
        with self._opened_file(object_id) as file:
            info, found = file.info(), digest_of(file)
            if (expected := checksum_of(info)) not in (None, found):
                detail = f"committed as {expected}, now {found}"
                raise CorruptObjectError(object_id, "checksum", detail)
            return ObjectInfo(object_id, info.size_bytes, found)

    def adopt(self, object_id: str, path: str, *, checksum: str, size_bytes: int) -> ObjectInfo:
        self.require_open()
        expected = ObjectInfo(check_id(object_id), size_bytes, checksum)
        if not path.startswith(self.scheme):
            raise CannotAdoptError(object_id, path, "it is not in memory that this store shares")
        found = self._share(path.removeprefix(self.scheme), object_id, expected)
        if found is None:
            raise CannotAdoptError(object_id, path, "it does not exist, or is not committed")
        return found

    def discover(self, object_id: str) -> ObjectInfo | None:
        check_id(object_id)
        self.require_open()
        for other in self._registration.others():
            if (found := self._share(f"{other}:{object_id}", object_id)) is not None:
                return found
        return None

    def delete(self, object_id: str) -> bool:
        name = self.file_name(object_id)
        self.require_open()
        return self._unlink(name)

    # --- the whole --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[str]:
        self.require_open()
        return self._own_names()

    def usage(self) -> StoreUsage:
        self.require_open()
        reserved_bytes = self._reserved_bytes
        used_bytes = self._capacity_bytes - self.free_bytes() - reserved_bytes
        return StoreUsage(
            self._capacity_bytes,
            max(0, used_bytes),
            reserved_bytes,
            self._registration.object_count,
        )

    def levels(self) -> tuple[StoreLevel, ...]:
        self.require_open()
        if time.monotonic() >= self._next_sweep_s:
            self._image.sweep()  # programs may die while they map files
            self._registration.sweep()
            self._next_sweep_s = time.monotonic() + _SWEEPS_S
        usage = self.usage()
        return (
            StoreLevel(
                MEMORY, usage.capacity_bytes, usage.used_bytes, usage.reserved_bytes,
                usage.object_count, readers=len(self.readers), writers=len(self._writers),
                copied_bytes=self.copies.copied_bytes,
            ),
        )  # fmt: skip

    def check(self) -> list[Problem]:
        self.require_open()
        found = self._image.check()
        for _ in range(_CHECK_LOOKS - 1):  # a change in progress is temporary
            found = [problem for problem in found if problem in self._image.check()]
        problems = [
            Problem("image", f"{problem.code} at {problem.place}", problem.text)
            for problem in found
        ]
        return problems + super().check()

    def counted_io(self) -> AbstractContextManager[None]:
        self.require_open()
        return self._image.counted_io()

    def claim(self) -> None:
        self.require_open()
        core = self._registration.core
        if self._owner_fd >= 0:
            return
        try:
            self._owner_fd = leases.own(
                f"owner-{core}", parent_fd=self._hold_fd, subject=f"instance={self.instance}",
                what=f"core {core} of it", instead="instance, or another core (core=N)",
            )  # fmt: skip
        except OSError as error:
            raise StoreSystemError("claim", error.errno or errno.EIO) from error

    def neighbours(self) -> Neighbours:
        return self._neighbours

    def message_core(self) -> MessageCore | None:
        core = self._registration.core
        if self._device is not None and (self._has_messages or self.kernels == "separate"):
            return self._device.message_core(core)
        return segment_core(self._hold_fd, core, self._core_count) if self._has_messages else None

    def gone(self) -> str:
        return leases.moved((self._temporaries.place,))

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._pid == os.getpid():
            self._neighbours.close()
            for writer in self._writers.all():
                writer.abort()  # type: ignore[union-attr]  # all are writers
            if self._fifos is not None:
                self._fifos.close()
            self._temporaries.close()
            self.copies.close()
        self._registration.close()
        self._image.close()
        if self._device is not None:
            self._device.close()
        for fd in (self._owner_fd, self._hold_fd):
            if fd >= 0:
                os.close(fd)
        if self._pid == os.getpid():
            with self._fullness.giving_back():
                remove_instance(self.instance)  # unless another process has it open
        self._fullness.close()

    def __del__(self) -> None:
        self.close()

    # --- for readers and writers ------------------------------------------------------------------

    def require_open(self) -> None:
        """Raise `StoreClosedError` after close."""
        if self._is_closed:
            raise StoreClosedError("the store")

    def file_name(self, object_id: str) -> str:
        """Return the name of an object of this core."""
        return f"{self._registration.name}:{check_id(object_id)}"

    def free_bytes(self) -> int:
        """Return the free space, which all cores share."""
        return self._image.statistics()["free_block_count"] * self.block_bytes

    def charge(self, more_bytes: int) -> None:
        """Count bytes that writers occupy."""
        with self._lock:
            self._reserved_bytes += more_bytes

    def done_writing(self, writer: SccWriter, charged_bytes: int) -> None:
        """Unregister a writer and the bytes that it occupied."""
        self._writers.discard(writer)
        self.charge(-charged_bytes)

    def new_file(self, object_id: str) -> File:
        """Create a file without a name."""
        try:
            return self._image.create()
        except ShmfsError as error:
            raise translated(error, object_id) from error

    def new_draft(self, object_id: str, size_bytes: int) -> str:
        """Create a file with space for this program or another one to write; return its name."""
        name = f"{self._registration.name}{_DRAFT}{secrets.token_hex(8)}"
        try:
            self._image.create(name, size_hint_bytes=size_bytes).close()
        except ShmfsError as error:
            raise translated(error, object_id, size_bytes, self.free_bytes()) from error
        return name

    def draft_info(self, name: str) -> Info | None:
        """Return the status of a draft; None if it does not exist."""
        return self._image.stat(name)

    def open_draft(self, name: str) -> File:
        """Open a draft that a program has committed."""
        return self._image.open_file(name)

    def drop_draft(self, name: str) -> None:
        """Delete a draft. If a program that has died was writing it, its space is free then."""
        try:
            self._image.unlink(name)
        except ShmfsError as error:
            if error.reason != "NOT_FOUND":
                raise
        self._image.sweep()

    def place(self, name: str) -> str:
        """Return the place at which other processes open a file of the image."""
        return place_of(self._image.build, self.instance, name)

    def publish_draft(self, name: str, info: Info, found: ObjectInfo) -> None:
        """Give a committed draft the name of its object, or keep an equal existing object.

        Raises `ObjectConflictError`.
        """
        if not self._link(name, info, found):
            raise StoreSystemError("commit", errno.ENOENT)

    def new_uncommitted(self, object_id: str) -> UncommittedFile:
        """Create a file that a program can write."""
        try:
            return UncommittedFile(self._temporaries, object_id, self._fullness)
        except OSError as error:
            raise StoreSystemError("begin", error.errno or errno.EIO) from error

    def fifos(self) -> Fifos:
        """Return the server of FIFOs, whose thread starts with the first use."""
        with self._lock:
            if self._fifos is None:
                self._fifos = Fifos(Path(self._temporaries.path_of("")))
            return self._fifos

    def publish(self, file: File, info: ObjectInfo) -> ObjectInfo:
        """Commit a written file, or keep an equal existing object. Raises `ObjectConflictError`."""
        for _ in range(_PUBLISH_TRIES):
            try:
                file.commit(self.file_name(info.object_id))
            except ShmfsError as error:
                if error.reason != "EXISTS":
                    raise
                assert info.checksum is not None
                if (kept := self._kept_instead(info.object_id, info.checksum)) is not None:
                    return kept
                continue
            self._registration.count(1)
            return info
        raise StoreSystemError("commit", errno.EBUSY)

    # --- within -----------------------------------------------------------------------------------

    def _opened_file(self, object_id: str) -> File:
        name = self.file_name(object_id)
        self.require_open()
        try:
            return self._image.open_file(name)
        except ShmfsError as error:
            raise translated(error, object_id) from error

    def _registered(self, core: int | None, core_count: int) -> CoreRegistration:
        client = self._image.client
        if self._device is not None and self.kernels == "separate":
            return HeartbeatRegistration(self._device, core, core_count, client, self._forget)
        place = client, self._image.geometry.client_count
        registration = LockRegistration(self._hold_fd, core, core_count, place, self._forget)
        if self._device is not None:  # the file outlives the directory in which cores register
            found = {
                match[1] for name, _ in self._image.names() if (match := OF_A_CORE.match(name))
            }
            for incarnation in found - {registration.name, *registration.others()}:
                self._forget(incarnation)
        return registration

    def _own_names(self) -> Iterator[str]:
        prefix = f"{self._registration.name}:"
        for name, info in self._image.names():
            if name.startswith(prefix) and info.is_committed:
                yield name.removeprefix(prefix)

    def _forget(self, incarnation: str) -> None:
        """Remove all names of an incarnation."""
        prefixes = (f"{incarnation}:", f"{incarnation}{_DRAFT}")
        try:
            for name in [name for name, _ in self._image.names() if name.startswith(prefixes)]:
                self._image.unlink(name)
        except ShmfsError:
            pass  # a damaged image fails later calls, and its last user removes it

    def _unlink(self, name: str) -> bool:
        if self.copies.has_kept and (info := self._image.stat(name)) is not None:
            self.copies.forget((info.inode, info.generation))
        try:
            self._image.unlink(name)
        except ShmfsError as error:
            if error.reason == "NOT_FOUND":
                return False
            raise
        self._registration.count(-1)
        return True

    def _compute_checksum(self, file: File) -> str:
        """Return the checksum of a file's content, and store it with the file."""
        found = digest_of(file)
        try:
            file.set_tag(int(found, 16))
        except ShmfsError:
            pass  # the next caller computes it again
        return found

    def _kept_instead(self, object_id: str, refused: str) -> ObjectInfo | None:
        """Return the equal object that was committed first; None if there is none.

        The existing content is always read, whatever checksum is recorded: the object may have
        been recomputed because the first one was found damaged, and a damaged object is deleted.
        """
        try:
            file = self._opened_file(object_id)
        except ObjectNotFoundError:
            return None
        with file:
            info, kept = file.info(), digest_of(file)
        if checksum_of(info) not in (None, kept):
            self._unlink(self.file_name(object_id))
            return None
        if kept != refused:
            raise ObjectConflictError(object_id, kept, refused)
        return ObjectInfo(object_id, info.size_bytes, kept)

    def _share(
        self, name: str, object_id: str, expected: ObjectInfo | None = None
    ) -> ObjectInfo | None:
        """Link another core's file under a name of this core; None if that file does not exist."""
        try:
            file = self._image.open_file(name)
        except ShmfsError as error:
            if error.reason in ("NOT_FOUND", "WRITING"):
                return None
            raise translated(error, object_id) from error
        with file:
            info = file.info()
            checksum = checksum_of(info) or self._compute_checksum(file)
            found = ObjectInfo(object_id, info.size_bytes, checksum)
            if expected is not None and found != expected:
                reason = f"{found.size_bytes} bytes with checksum {found.checksum}"
                raise CannotAdoptError(object_id, self.scheme + name, f"it is {reason}")
            return found if self._link(name, info, found) else None

    def _checksum_at(self, name: str) -> str:
        with self._image.open_file(name) as file:
            return self._compute_checksum(file)

    def _link(self, name: str, info: Info, found: ObjectInfo) -> bool:
        own = self.file_name(found.object_id)
        for _ in range(_PUBLISH_TRIES):
            try:
                self._image.link(name, own)
            except ShmfsError as error:
                if error.reason == "NOT_FOUND":
                    return False
                if error.reason != "EXISTS":
                    raise translated(error, found.object_id, found.size_bytes) from error
                if _is_same(self._image.stat(own), info):
                    return True
                checksum = found.checksum or self._checksum_at(name)
                if self._kept_instead(found.object_id, checksum) is not None:
                    return True
                continue
            self._registration.count(1)
            if _is_same(self._image.stat(own), info):
                return True
            self._unlink(own)  # the name had moved to another file before it was linked
            return False
        raise StoreSystemError("link", errno.EBUSY)


def _is_same(one: Info | None, other: Info) -> bool:
    return one is not None and (one.inode, one.generation) == (other.inode, other.generation)


def _check_path(options: Mapping[str, str]) -> None:
    kernels = options.get("kernels", KERNELS[0])
    if kernels not in KERNELS:
        raise StoreSpecError(f"kernels={kernels}", f"expected {' or '.join(KERNELS)}")
    if "path" not in options and "kernels" in options:
        reason = "this is for an image in a file; add path=FILE"
        raise StoreSpecError(f"kernels={kernels}", reason)
    if "path" in options and not options["path"].startswith("/"):
        raise StoreSpecError(f"path={options['path']}", "expected a path that begins with /")
    if "path" in options and "instance" in options:
        reason = "the file is the instance; leave this out"
        raise StoreSpecError(f"instance={options['instance']}", reason)


def _number(options: Mapping[str, str], name: str, least: int, most: int, default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not (text.isdecimal() and least <= int(text) <= most):
        raise StoreSpecError(f"{name}={text}", f"expected a number from {least} to {most}")
    return int(text)


def _check_shape(layout: Layout) -> None:
    """Check the options that `shmfs_format` would refuse without an explanation."""
    block_bytes, shards = layout.block_bytes, layout.shards
    if not BLOCK_MIN_BYTES <= block_bytes <= BLOCK_MAX_BYTES or block_bytes & block_bytes - 1:
        most = BLOCK_MAX_BYTES >> 20
        raise StoreSpecError(
            f"block={block_bytes}", f"expected a power of two from 4KiB to {most}MiB"
        )
    if shards & shards - 1:
        raise StoreSpecError(f"shards={shards}", f"expected a power of two up to {SHARDS_MAX}")
    if not block_bytes <= layout.capacity_bytes <= block_bytes * BLOCKS_MAX:
        detail = f"expected 1 to {BLOCKS_MAX} blocks of {block_bytes} bytes"
        raise StoreSpecError(f"capacity={layout.capacity_bytes}", detail)
