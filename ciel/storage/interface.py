"""The interface of stores, which keep write-once objects by id.

An object is absent, being written, committed, or deleted. Only committed objects are visible.
Committing is atomic, fixes the size and makes the object read-only.

    with store.begin("4f2a:out:0", size_hint_bytes=len(content)) as writer:
        writer.write(content)
        writer.commit()
    with store.open("4f2a:out:0") as reader:
        view = reader.view()

Callers check `capabilities`, never a class. All methods are synchronous. If a store may block,
callers use it in a thread. Several threads may use a store at once, but only one thread at a time
may use a writer or a reader. Every method may raise `StoreSystemError`, and `StoreClosedError`
after close. Methods that take an id raise `ciel.core.errors.InvalidIdError` before they change
anything. The tests of a store inherit `ciel.testing.store_suite`.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from ciel.storage.errors import CorruptObjectError, ObjectNotFoundError, StoreSystemError
from ciel.storage.remote.memory import Lender

Chunk = bytes | bytearray | memoryview
Guard = AbstractContextManager[object]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The properties of a store by which a caller chooses how to use it."""

    mappable: bool
    """`ObjectReader.view` returns the store's own memory, without a copy."""
    nameable: bool
    """Readers and writers have a `path` that a child process can open."""
    streaming: bool
    """The writer can read its content before commit."""
    shared_between_processes: bool
    """Several processes may open the same store at once."""
    bounded: bool
    """The store has a capacity; `begin` or `write` beyond it raises `NoSpaceError`."""
    may_block: bool
    """Calls may wait for a device; a caller that must not wait uses a thread."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A committed object. The checksum is XXH3-64 in 16 hex digits, or None if not computed yet."""

    object_id: str
    size_bytes: int
    checksum: str | None


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """How full a store is. `used_bytes` are committed, `reserved_bytes` reserved by open writers.

    Both count what objects occupy, rounded up to the store's blocks. The capacity is the configured
    one, or the device's if that is less; None if none is configured.
    """

    capacity_bytes: int | None
    used_bytes: int
    reserved_bytes: int
    object_count: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Fingerprint:
    """Identifies a state of a file: device and inode number, size, and time of the last change in
    ns. `is_named`: whether the file's name still leads to this file.
    """

    file: tuple[int, int]
    size_bytes: int
    changed_ns: int
    is_named: bool = field(compare=False)


MEMORY, DISK = "memory", "disk"
LEVELS = (MEMORY, DISK)
"""The levels of a store. A task may choose the level to which its outputs are written."""


class StoreLevel(NamedTuple):
    """The current state of one level of a store, and its counters since the store was opened.

    Counters of objects: `evicted` were moved from this level to the next one; `dropped` were
    deleted here, since they can be fetched again; `promoted` were loaded into this level; `spilled`
    were started here, because the level above had no space. `waited` counts the writers that found
    this level full. `copied_bytes` were copied for programs that could not use the store's own
    file.
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


class Verify(Enum):
    """When to verify an object: when this worker first reads it, each time, or never."""

    FIRST = "first"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem found by `check`.

    Codes: `checksum` (the content differs from what was committed), `writable` (a committed object
    can be changed), `foreign` (no store created this file), `unreadable` (the
    device fails), `output` (a program left at a
    writer's path a file that is not regular, or that another user owns).
    """

    code: str
    place: str
    detail: str


class ObjectWriter(ABC):
    """Writes one object: write, then commit or abort.

    If a writer is garbage-collected before its commit, it aborts.

    A program may write the object itself, through `path` or `fileno`, and must end before the
    commit. Do not call `write` for such an object. After a call of `path`
    or `fileno` the store computes the checksum only on demand, because that means reading the file.

    A duplicate of the descriptor, or a descriptor that was opened through it, can read the written
    content for any time, also after commit or abort.
    """

    object_id: str
    may_overrun = False
    """Whether the store accepts bytes beyond its capacity that a program has already written. Only
    for callers that free space afterwards. It has no effect if the capacity is a physical one."""

    @property
    @abstractmethod
    def path(self) -> str | None:
        """A file name to open for writing, valid until commit or abort; None unless `nameable`."""

    @property
    def mapped_path(self) -> str | None:
        """`path` for a program that only maps and writes the file. Its initial content and size
        are undefined, within the hinted size if there is one; the program sets the final size.

        It may be a place (see `ObjectReader.place`): then the program commits the file, too.
        """
        return self.path

    @abstractmethod
    def fileno(self, *, to_write: bool = True) -> int:
        """Return a descriptor open for reading and writing, owned by the writer. With
        `to_write=False` nothing is written through it, so the checksum need not be deferred.
        """

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """How many bytes this writer and programs have written so far."""

    @abstractmethod
    def write(self, chunk: Chunk) -> None:
        """Append to the object; after a `NoSpaceError` only abort makes sense."""

    def view(self, size_bytes: int) -> memoryview:
        """Set the size of an object that is still empty, and return its memory, to be filled in
        place. Its initial content is undefined. Release the view before the commit. Only for stores
        that are `mappable`; raises `NoSpaceError`.
        """
        raise StoreSystemError("map", errno.EOPNOTSUPP)

    def account(self) -> None:  # noqa: B027  # a store without a capacity has nothing to do
        """Account for what a program has written by now, since the store does not notice that.

        Raises `NoSpaceError` if that exceeds the capacity: end the program, then abort.
        """

    @property
    def may_be_short(self) -> bool:
        """Whether a program's write to this file may have failed because there was no space, even
        if the program has not reported that. If so, `take` and `commit` raise `ShortOutputError`.
        """
        return False

    @abstractmethod
    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Return bytes that `write` or a program has written, from an offset; fewer at the end."""

    def take(self, max_bytes: int, *, is_alone: bool = False) -> bytes | None:
        """Return the whole content and abort, if the content has at most `max_bytes`. Else return
        None and change nothing. A program that wrote the object must have succeeded.

        `is_alone`: no other process has the file open, since all programs that knew its name have
        ended. In this case the store may reuse the file for another object.
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

        The content of a later commit is compared and dropped: if equal, commit returns the kept
        object; else it aborts and raises `ObjectConflictError`. `CorruptObjectError`: a program
        left a file that is not regular, or that another user owns (code `output`), or the content
        does not match `checksum` (code `checksum`). `NoSpaceError`: a program wrote more than there
        is space for. `ShortOutputError`: a program's write may have failed. After these three
        errors the writer stays open.
        """

    @abstractmethod
    def abort(self) -> None:
        """Discard the content and free its space; after commit or abort, do nothing."""

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
    """An open committed object. It stays readable if the object is deleted meanwhile."""

    object_id: str
    size_bytes: int

    @property
    @abstractmethod
    def path(self) -> str | None:
        """A file to open for reading, valid until the object is deleted; None unless `nameable`."""

    @property
    def mapped_path(self) -> str | None:
        """`path` for a program that maps or reads the file and does not pass it on. Then the store
        may reuse its memory for another object when this one is deleted and no mapping is left.

        If there is a `place`, it is that.
        """
        return self.path

    @property
    def place(self) -> str | None:
        """The name by which other processes map an object that has no file; else None.

        They are processes of this host and user. The name is `SCHEME:REST`, without a slash before
        the colon: the module of the entry point SCHEME in the group `ciel.places` opens it. It is
        valid until the object is deleted.
        """
        return None

    @property
    def piped_path(self) -> str | None:
        """A name to open once and read sequentially while the reader is open. It names a pipe if
        `path` would cost a copy.
        """
        return self.path

    @property
    def source(self) -> str | None:
        """The path for `adopt` of another store on this host, valid until the object is deleted."""
        return self.path

    @abstractmethod
    def fileno(self) -> int:
        """Return a descriptor open for reading, owned by the reader."""

    def fingerprint(self) -> Fingerprint | None:
        """Return the state of the file that programs read; None if they cannot change it."""
        return None

    @abstractmethod
    def read_into(self, buffer: bytearray | memoryview, offset_bytes: int) -> int:
        """Fill the buffer from the offset; return the number of bytes, fewer only at the end."""

    @abstractmethod
    def view(self) -> memoryview:
        """Return the whole content, read-only. The view stays valid after `close`."""

    @abstractmethod
    def close(self) -> None:
        """Close the reader; a second call does nothing."""

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Return the bytes from the offset, fewer only at the end."""
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


NEVER_S = float("inf")


class Answer(NamedTuple):
    """The answer to a question for space: the bytes that were freed, and the last use of the object
    that would move next. `NEVER_S`: there is none.
    """

    freed_bytes: int
    next_s: float


class AskNeighbours(Protocol):
    """A way to ask other stores for space. Every wait ends. Times are of `time.monotonic`."""

    def others(self) -> Sequence[str]:
        """Return the stores that this way reaches."""

    def question(self, other: str, wanted_bytes: int, before_s: float) -> Answer:
        """Ask one store; a store that does not answer has nothing to move."""


class Neighbours(Protocol):
    """Stores that share the space of this one. Each moves only the objects that it has.

    All times are of the clock `time.monotonic`.
    """

    def serve(self, free: Callable[[int, float], Answer]) -> None:
        """Let them call `free` in a thread: it frees up to so many bytes, of objects that were last
        used before some time.
        """

    @property
    def free(self) -> Callable[[int, float], Answer] | None:
        """What `serve` was called with."""

    def ask(self, wanted_bytes: int, before_s: float) -> Answer:
        """Let them do so, the least recently used objects first."""

    def ask_by(self, way: AskNeighbours) -> None:
        """Ask them in another way from now on."""

    def close(self) -> None:
        """Serve no more."""


class CoreMessage(Protocol):
    """A message that a core has started to send or to receive."""

    @property
    def is_over(self) -> bool: ...
    @property
    def core(self) -> int:
        """The peer; after a receive, the sender."""

    @property
    def content(self) -> bytes:
        """The received bytes."""


class MessageCore(Protocol):
    """One core of memory with message-passing buffers, see `mpb.h`. Only `bell`, `sleep` and `ring`
    may be called in another thread. All raise `CielError`.
    """

    @property
    def number(self) -> int: ...
    @property
    def count(self) -> int:
        """The number of cores."""

    def isend(self, core: int, content: bytes) -> CoreMessage: ...
    def irecv(self, room_bytes: int) -> CoreMessage: ...
    def push(self) -> int: ...
    def test(self, request: Any) -> bool:
        """Return whether a message is over; raises its error."""

    def lives(self, core: int) -> bool: ...
    def incarnation_of(self, core: int) -> int: ...
    def bell(self) -> int: ...
    def sleep(self, seen: int, timeout_s: float | None = None) -> bool: ...
    def ring(self, core: int) -> None: ...
    def close(self) -> None: ...


class DiskLimit(Protocol):
    """A limit of disk jobs that processes of several kernels share. Any thread may call this."""

    def begin(self, at_most: int, timeout_s: float) -> bool:
        """Start a job once fewer than `at_most` jobs run; False after the timeout.

        The jobs of a process end with it. Raises StorageError.
        """

    def end(self) -> None:
        """End a job. Raises StorageError."""


class ObjectStore(ABC):
    """Write-once objects by id."""

    capabilities: Capabilities
    sources: tuple[str, ...] = ("/",)
    """If a `source` starts with one of these, this store can adopt it or copy it as a file."""
    directories: tuple[str, ...] = ()
    """Directories of files that are committed objects, into which no program should write."""
    places: tuple[str, ...] = ()
    """Names the memory or file system of each level, the fastest first. Stores of one user on one
    host exchange objects without a copy if they have a place in common (`core.transports`)."""
    about: str = ""
    """The resources that the store found, for the log, if these differ between hosts. An example:
    `/dev/shm; no arena with huge pages: Operation not permitted`."""

    @abstractmethod
    def begin(self, object_id: str, *, size_hint_bytes: int | None = None) -> ObjectWriter:
        """Start writing. Several writers of one id are independent until they commit.

        The store reserves a size hint at once, so that the caller can write that much without
        running out of space. Raises `NoSpaceError` if it cannot reserve that much.
        """

    def begin_in(
        self, level: str, object_id: str, *, size_hint_bytes: int | None = None
    ) -> ObjectWriter:
        """Start writing in one of `LEVELS`, if this store has it; empty means no preference."""
        return self.begin(object_id, size_hint_bytes=size_hint_bytes)

    def begin_moved(self, object_id: str, size_bytes: int) -> ObjectWriter:
        """Start writing an object that a level above moves here. It may wait for other machines."""
        return self.begin(object_id, size_hint_bytes=size_bytes)

    @abstractmethod
    def open(self, object_id: str) -> ObjectReader:
        """Open a committed object, or raise `ObjectNotFoundError`."""

    def is_remote(self, object_id: str) -> bool:
        """Whether an object is only on other machines: `bring_back` it before it is opened."""
        return False

    def bring_back(self, object_id: str) -> None:
        """Move an object from other machines here, and let it stay for whoever opens it soon. It
        may wait for other machines, so only threads call it. Does nothing if the object is here.
        Raises CorruptObjectError if it is lost, and ObjectNotFoundError.
        """
        return

    def expect(self, object_id: str) -> bool:
        """Let an object stay for whoever opens it soon; False if it is only on other machines, so
        that `bring_back` is needed, which does the same.
        """
        return True

    def settle(self, object_id: str, guard: Guard, may_go_on: Callable[[], bool]) -> bool:
        """Move an object that was written here to where this store moves objects; True if it was.

        `may_go_on` becomes false when a reader or writer opens the object. This store changes the
        object's place within `guard`, and only if `may_go_on` is still true.
        """
        return False

    def disk_limit(self) -> DiskLimit | None:
        """Return the limit of disk jobs that all processes of this store share, if there is one."""
        return None

    def use_memory(self, lender: Lender) -> bool:
        """Let a store that spills to other machines use their memory; return whether it does."""
        return False

    @abstractmethod
    def stat(self, object_id: str) -> ObjectInfo | None:
        """Return a committed object's metadata without reading its content; None if missing."""

    @abstractmethod
    def checksum(self, object_id: str) -> str:
        """Return the checksum; the object is read only if no checksum is recorded yet."""

    @abstractmethod
    def verify(self, object_id: str) -> ObjectInfo:
        """Read the object and compare its checksum, or raise `CorruptObjectError`."""

    @abstractmethod
    def adopt(self, object_id: str, path: str, *, checksum: str, size_bytes: int) -> ObjectInfo:
        """Take over an object of another store on this host without a copy. `path` is the `source`
        of a reader of that store.

        The object is committed as by a writer (first wins). Raises `CannotAdoptError` with the
        reason if the file cannot be shared or does not match checksum and size.
        """

    def discover(self, object_id: str) -> ObjectInfo | None:
        """Take over an object that another process, which uses the same memory, has committed under
        this id; None if there is none. This sends no message, so callers try it first.
        """
        return None

    @abstractmethod
    def delete(self, object_id: str) -> bool:
        """Delete a committed object; True if it existed. Open readers can still read it."""

    @abstractmethod
    def __iter__(self) -> Iterator[str]:
        """Yield the ids of all committed objects, in no particular order."""

    @abstractmethod
    def usage(self) -> StoreUsage:
        """Return how full the store is; this is cheap enough for every heartbeat."""

    def levels(self) -> tuple[StoreLevel, ...]:
        """Return the state of each level, the fastest first."""
        usage = self.usage()
        return (
            StoreLevel(
                DISK if self.capabilities.may_block else MEMORY,
                usage.capacity_bytes, usage.used_bytes, usage.reserved_bytes, usage.object_count,
            ),
        )  # fmt: skip

    def advise(  # noqa: B027  # most stores never evict objects
        self,
        can_be_had_again: Callable[[str], bool],
        dropped: Callable[[str], None],
        turn: Callable[[str, int], AbstractContextManager[None]],
    ) -> None:
        """Set the callbacks of a store that evicts objects. A full store may drop objects for which
        `can_be_had_again` is true (the engine can fetch them again), and reports them to `dropped`.
        Its thread enters `turn(path, size)`, which waits for the disk, before it moves that many
        bytes to or from a path. The store may call all of them from any thread. Only `turn` may
        wait.
        """

    def counted_io(self) -> AbstractContextManager[None]:
        """Count an I/O operation between this store and another level while it is under way, if the
        store has such statistics (requirement CIB-21). Any thread may call this.
        """
        return nullcontext()

    def claim(self) -> None:  # noqa: B027  # stores of one process need no claim
        """Claim the store for this worker until the store is closed. A worker offers all objects
        that it finds in its store, and deletes those unknown to its master. Other processes may
        still open the store. Raises `StoreSpecError` if another worker has claimed it.
        """

    def neighbours(self) -> Neighbours | None:
        """Return the stores that share the space of this one; None if there can be none."""
        return None

    def message_core(self) -> MessageCore | None:
        """Return this store's core, by which the processes that share its memory find each other;
        None if they find each other by sockets. The caller closes it.
        """
        return None

    def gone(self) -> str:
        """Return a directory of the store that another program has removed or replaced, so that the
        store is unusable; empty while all are present.
        """
        return ""

    @abstractmethod
    def close(self) -> None:
        """Close the store. Open writers abort, open readers stay usable; a second call does
        nothing.
        """

    def check(self) -> list[Problem]:
        """Scrub: read every object and return the problems; empty if the store is healthy.

        Stores override this to add checks of their own structure.
        """
        problems = []
        for object_id in self:
            try:
                self.verify(object_id)
            except ObjectNotFoundError:
                continue  # deleted during the check
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
