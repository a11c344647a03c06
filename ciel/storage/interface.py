"""What a store is: write-once objects by id, behind one small synchronous interface.

An object is absent, being written, committed, or gone. Only committed objects are visible.
Committing is atomic, fixes the size and makes the object read-only for good.

    with store.begin("4f2a:out:0", size_hint_bytes=len(content)) as writer:
        writer.write(content)
        writer.commit()
    with store.open("4f2a:out:0") as reader:
        view = reader.view()

Callers ask for `capabilities` and never for a class. Where a store may block, the caller moves the
call to a thread: stores may be used by several threads at once, a writer or a reader by one at a
time. Every method may raise `StoreSystemError`, and `StoreClosedError` after close; those taking an
id raise `ciel.core.errors.InvalidIdError` before anything is touched. Who implements a store
inherits `ciel.testing.store_suite`.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

from ciel.storage.errors import CorruptObjectError, ObjectNotFoundError, StoreSystemError

Chunk = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Questions a caller may ask before it chooses how to use a store."""

    mappable: bool
    """`ObjectReader.view` is the store's own memory: no copy is made."""
    nameable: bool
    """Readers and writers have a `path` which a child process can open."""
    streaming: bool
    """What has been written so far can be read through the writer, before commit."""
    shared_between_processes: bool
    """Several processes may open the same store at once."""
    bounded: bool
    """There is a capacity, and `begin` or `write` beyond it raises `NoSpaceError`."""
    may_block: bool
    """Calls may wait for a device; a caller which must not wait uses a thread."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A committed object. The checksum is XXH3-64 in 16 hex digits, or None while nobody asked."""

    object_id: str
    size_bytes: int
    checksum: str | None


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """How full a store is. `used_bytes` are committed, `reserved_bytes` promised to open writers.

    Both are what the objects occupy, so rounded up to the store's blocks. The capacity is what was
    set, or what the device has if that is less; None if none was set.
    """

    capacity_bytes: int | None
    used_bytes: int
    reserved_bytes: int
    object_count: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Fingerprint:
    """Which file it is (device and number), its size, and the time of its last change in ns;
    `is_named`: whether its name still leads to it.
    """

    file: tuple[int, int]
    size_bytes: int
    changed_ns: int
    is_named: bool = field(compare=False)


MEMORY, DISK = "memory", "disk"
LEVELS = (MEMORY, DISK)
"""Where an object may lie; a task may say where its outputs are to begin."""


class StoreLevel(NamedTuple):
    """One level of a store as it stands, and what has passed through it since it was opened.

    `evicted`: moved down from here. `dropped`: deleted here, since it can be had again. `promoted`:
    loaded up to here. `spilled`: begun here, as there was no room above. `waited`: steps of writers
    that found it full. `copied_bytes`: for programs that could not be given the store's own file.
    """

    name: str
    capacity_bytes: int | None
    used_bytes: int
    reserved_bytes: int
    objects: int
    readers: int = 0
    writers: int = 0
    evicted: int = 0
    evicted_bytes: int = 0
    dropped: int = 0
    promoted: int = 0
    spilled: int = 0
    waited: int = 0
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing `check` found.

    Codes: `checksum` (content is not what was committed), `writable` (a committed object that can
    be changed), `foreign` (something no store put there; treated as missing), `unreadable` (the
    device fails), `output` (what a program left under a writer's path is no file of ours).
    """

    code: str
    place: str
    detail: str


class ObjectWriter(ABC):
    """One object on its way: write, then commit or abort. Dropped without either, it is aborted.

    A program may write the object itself, through `path` or `fileno`; have it end before the
    commit. Bytes written here go where the descriptor stands, so do not mix the two.
    Once either was asked for, the checksum waits until somebody wants it: it takes reading the
    file.

    A duplicate of the descriptor, and whoever opened the file through it, can read what was written
    for as long as they like, whatever becomes of the writer.
    """

    object_id: str
    may_overrun = False
    """Whether what is physically there is charged even beyond the capacity: only for who makes room
    afterwards. Without effect where the capacity is a physical one."""

    @property
    @abstractmethod
    def path(self) -> str | None:
        """A name to open for writing, valid until commit or abort; None unless `nameable`."""

    @property
    def mapped_path(self) -> str | None:
        """`path` for a program that has this file for nothing but to map and to write it. Up to the
        size that was hinted it may hold anything; the program gives it its size in the end.
        """
        return self.path

    @abstractmethod
    def fileno(self, *, to_write: bool = True) -> int:
        """Return a descriptor open for reading and writing, owned by the writer. Who will not write
        through it says so, and the checksum need not wait.
        """

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """What has been written so far, by whomever."""

    @abstractmethod
    def write(self, chunk: Chunk) -> None:
        """Append; after a `NoSpaceError` only abort makes sense."""

    def view(self, size_bytes: int) -> memoryview:
        """Give an object of which nothing is written yet its size, and return its memory, to be
        filled in place: what is there before is anything. Release it before the commit. Only where
        the store is `mappable`; raises `NoSpaceError`.
        """
        raise StoreSystemError("map", errno.EOPNOTSUPP)

    def account(self) -> None:  # noqa: B027  # a store without a capacity has nothing to do
        """Charge the store for what a program has written by now, which it does not see itself.

        `NoSpaceError`: more than there is room for; end the program, then abort.
        """

    @property
    def may_be_short(self) -> bool:
        """Whether a program that writes by itself may have been refused a block for want of room.
        It need not have said so; `take` and `commit` then raise `ShortOutputError`.
        """
        return False

    @abstractmethod
    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Return what has been written there so far, by whomever; short or empty past its end."""

    def take(self, max_bytes: int, *, is_alone: bool = False) -> bytes | None:
        """Return all that has been written, and abort, if that is at most `max_bytes`; else None,
        and nothing has changed. Only for one whose program, if it had one, has done well.

        `is_alone`: nobody else can have the file open, as all who knew its name have ended. Then it
        may serve for another object.
        """
        size_bytes = self.size_bytes
        if size_bytes > max_bytes:
            return None
        content = self.read(0, size_bytes)
        self.abort()
        return content

    @abstractmethod
    def commit(self, *, checksum: str | None = None) -> ObjectInfo:
        """Make the object visible. The first commit of an id wins.

        A later one is compared and dropped: equal content returns the kept object, other content
        raises `ObjectConflictError`. `CorruptObjectError`: what a program left is not a file of
        ours (code `output`), or what was written is not what has this `checksum` (code `checksum`).
        `NoSpaceError`: it wrote more than there is room for. `ShortOutputError`: it may have been
        refused some. After these three the writer stays open.
        """

    @abstractmethod
    def abort(self) -> None:
        """Forget what was written and give its space back; after commit or abort, do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()


class ObjectReader(ABC):
    """A committed object, open. It stays readable when the object is deleted meanwhile."""

    object_id: str
    size_bytes: int

    @property
    @abstractmethod
    def path(self) -> str | None:
        """A name to open for reading, valid until the object is deleted; None unless `nameable`."""

    @property
    def mapped_path(self) -> str | None:
        """`path` for a program that maps or reads the file itself and hands it on to nobody: then
        its memory may serve another object when this one is deleted, and all mappings are gone.
        """
        return self.path

    @property
    def piped_path(self) -> str | None:
        """A name to be opened once and read from beginning to end while the reader is open: where
        `path` would cost a copy, that of a pipe.
        """
        return self.path

    @property
    def source(self) -> str | None:
        """What another store on this host is told to `adopt`, valid until the object is deleted."""
        return self.path

    @abstractmethod
    def fileno(self) -> int:
        """Return a descriptor open for reading, owned by the reader."""

    def fingerprint(self) -> Fingerprint | None:
        """Look at the file that programs read by its name; None if they cannot change it."""
        return None

    @abstractmethod
    def read_into(self, buffer: bytearray | memoryview, offset_bytes: int) -> int:
        """Fill the buffer from there and return how many bytes came: fewer only at the end."""

    @abstractmethod
    def view(self) -> memoryview:
        """Return the whole content, read-only. It outlives `close`, and ends with its last user."""

    @abstractmethod
    def close(self) -> None:
        """End the reader; closing twice is closing once."""

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Return the bytes from there, fewer only at the end."""
        buffer = bytearray(max(0, min(length_bytes, self.size_bytes - offset_bytes)))
        count = self.read_into(buffer, offset_bytes)
        return bytes(memoryview(buffer)[:count])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ObjectStore(ABC):
    """Write-once objects by id."""

    capabilities: Capabilities
    sources: tuple[str, ...] = ("/",)
    """What a `source` begins with that can be taken in here, by `adopt` or by copying a file."""
    directories: tuple[str, ...] = ()
    """Directories of files that are committed objects, into which no program should write."""
    about: str = ""
    """What it has found to work with, in words, where that is not always the same."""

    @abstractmethod
    def begin(self, object_id: str, *, size_hint_bytes: int | None = None) -> ObjectWriter:
        """Start writing. Two writers of one id do not meet before they commit.

        A size hint is reserved at once, so that writing that much cannot fail for want of space;
        raises `NoSpaceError` when that much is not there.
        """

    def begin_in(
        self, level: str, object_id: str, *, size_hint_bytes: int | None = None
    ) -> ObjectWriter:
        """Start writing in one of `LEVELS`, if this store has it; an empty text is no wish."""
        return self.begin(object_id, size_hint_bytes=size_hint_bytes)

    @abstractmethod
    def open(self, object_id: str) -> ObjectReader:
        """Open a committed object, or raise `ObjectNotFoundError`."""

    @abstractmethod
    def stat(self, object_id: str) -> ObjectInfo | None:
        """Return what is known of a committed object without reading it; None if there is none."""

    @abstractmethod
    def checksum(self, object_id: str) -> str:
        """Return the checksum, reading the object only when nobody has asked before."""

    @abstractmethod
    def verify(self, object_id: str) -> ObjectInfo:
        """Read the object and compare; raises `CorruptObjectError` (code `checksum`)."""

    @abstractmethod
    def adopt(self, object_id: str, path: str, *, checksum: str, size_bytes: int) -> ObjectInfo:
        """Take over, without copying, what another store on this host has committed: the `source`
        of one of its readers.

        It is committed as by a writer (first wins). Raises `CannotAdoptError` with the reason when
        the file cannot be shared or is not the one described.
        """

    def discover(self, object_id: str) -> ObjectInfo | None:
        """Take over, without a message, what others who use the same memory have committed under
        this id; None where there is none. Quick enough to be asked before anybody else is.
        """
        return None

    @abstractmethod
    def delete(self, object_id: str) -> bool:
        """Remove a committed object; True if something went. Its open readers keep it."""

    @abstractmethod
    def __iter__(self) -> Iterator[str]:
        """Yield the ids of the objects committed at this moment, in no order."""

    @abstractmethod
    def usage(self) -> StoreUsage:
        """Return how full the store is; cheap enough for every heartbeat."""

    def levels(self) -> tuple[StoreLevel, ...]:
        """Return what there is to tell of each level, the quickest first."""
        usage = self.usage()
        return (
            StoreLevel(
                DISK if self.capabilities.may_block else MEMORY,
                usage.capacity_bytes, usage.used_bytes, usage.reserved_bytes, usage.object_count,
            ),
        )  # fmt: skip

    def advise(  # noqa: B027  # most stores keep what they have
        self,
        can_be_had_again: Callable[[str], bool],
        dropped: Callable[[str], None],
        turn: Callable[[str, int], AbstractContextManager[None]],
    ) -> None:
        """Let a store that is full drop what can be had again; it tells of what it dropped. A
        thread of its own that moves so many bytes to or from a path has its `turn` first. All are
        called from any thread, and only the last may wait.
        """

    def claim(self) -> None:  # noqa: B027  # a store that nobody else can open is its opener's
        """Be the one worker that has this store, until it is closed: a worker offers all that it
        finds there, and deletes what its master does not know. Others may open it as before. Raises
        `StoreSpecError` when another has it.
        """

    def gone(self) -> str:
        """Return the directory of the store that another program has removed or replaced, so that
        nothing can be stored any more; empty while all are there.
        """
        return ""

    @abstractmethod
    def close(self) -> None:
        """End the store. Open writers are aborted, open readers live on; twice is once."""

    def check(self) -> list[Problem]:
        """Scrub: read every object and return the problems, none when the store is healthy.

        A store adds what it knows of its own shape.
        """
        problems = []
        for object_id in self:
            try:
                self.verify(object_id)
            except ObjectNotFoundError:
                continue  # deleted while we walked
            except CorruptObjectError as error:
                problems.append(Problem(error.code, object_id, error.detail))
        return problems

    def put(self, object_id: str, content: Chunk) -> ObjectInfo:
        """Write and commit in one step."""
        with self.begin(object_id, size_hint_bytes=memoryview(content).nbytes) as writer:
            writer.write(content)
            return writer.commit()

    def get(self, object_id: str) -> bytes:
        """Return a whole object; for small ones."""
        with self.open(object_id) as reader:
            return reader.read(0, reader.size_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
