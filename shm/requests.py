"""The state machine of a daemon's requests: messages, results and the time go in, orders come out.

The methods do not block (CIB-13). The machine keeps a state for each request: its connection,
whether it may ask peers (*recursive*), and its stage. For a load, the daemon looks up the object in
its store, then in the store behind it: the store on a disk of a daemon without a worker. If the
load is recursive, the daemon then asks all peers at once; the first usable answer wins. The loads
that it sends to peers are not recursive, so a request makes at most one hop (CIB-12).

A slow job (copying, or reading for a checksum) runs once for all requests that need it. A few run
at a time. A request without a slow job never waits for one.

A write belongs to an attempt and to the connections that requested it. Repeated requests return the
same file (CIB-11). If the last of these connections ends before the commit, the file is deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from ciel.core.errors import InvalidIdError
from ciel.core.ids import check_id
from ciel.shm.messages import Abandon, Code, Commit, Fail, Load, Ok, Request, Response, Write

DEADLINE_S: Final = 60.0
"""The timeout of a request that has none, so that every client gets an answer."""

REQUESTS_MAX: Final = 64
"""How many unanswered requests one connection may have; each takes memory."""

WRITES_MAX: Final = 128
"""Files that one connection may have open for writing; each takes a descriptor of the daemon."""

SLOW_MAX: Final = 4
"""How many slow jobs run at a time: fewer than the reactor has threads, so that lookups never wait
for one."""


class Stage(Enum):
    """The stage of a request: the daemon works on it, or waits for the answers of peers."""

    SERVING = "serving"
    ASKING = "asking"


class Slow(Enum):
    """Kinds of slow jobs."""

    READ = "read"
    """Read an object of the daemon's store, for its checksum, or to bring it back to this host."""
    LIFT = "lift"
    """Copy an object from the store behind into the daemon's store."""
    TAKE = "take"
    """Link or copy a peer's file."""


class Seen(NamedTuple):
    """A committed object of the daemon's store, with the path to read or, for a peer, to adopt. The
    checksum is `""` if it is unknown.
    """

    path: str
    size_bytes: int
    checksum: str


class Place(Enum):
    """Other places of an object."""

    BEHIND = "behind"
    """Only in the store behind the daemon's store."""
    REMOTE = "remote"
    """In the daemon's store, which keeps it in memory of other machines."""
    NOWHERE = "nowhere"
    """In neither store; a peer may have it."""


class Refusal(NamedTuple):
    """The cause of a failure."""

    code: Code
    reason: str


# --- orders ---------------------------------------------------------------------------------------


class LookUp(NamedTuple):
    """Look up an object; answered by `looked_up`. `described`: for a peer."""

    serial: int
    name: str
    described: bool


class AskPeers(NamedTuple):
    """Ask all peers; answered by `asking`, then by one `peer_answered` for each peer."""

    serial: int
    name: str
    deadline_s: float


class StartSlow(NamedTuple):
    """Start a slow job; answered by `slow_done`. `offer`: for TAKE, a peer's answer."""

    kind: Slow
    name: str
    offer: Ok | None


class OpenWrite(NamedTuple):
    """Open an object for writing; answered by `write_opened`."""

    write: int
    name: str
    size_hint_bytes: int
    is_mapped: bool = False


class CommitWrite(NamedTuple):
    """Commit a write as an object of that name; answered by `write_committed`."""

    write: int
    name: str


class AbortWrite(NamedTuple):
    """Discard a write; there is no answer."""

    write: int


class Answer(NamedTuple):
    """Send the answer to a request."""

    source: Hashable
    request: Request
    message: Response


Order = LookUp | AskPeers | StartSlow | OpenWrite | CommitWrite | AbortWrite | Answer


# --- states ---------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _State:
    """A pending request."""

    serial: int
    source: Hashable
    message: Request
    deadline_s: float
    stage: Stage = Stage.SERVING
    unanswered: set[str] = field(default_factory=set)
    offers: deque[Ok] = field(default_factory=deque)
    reasons: list[str] = field(default_factory=list)

    @property
    def subject(self) -> str:
        """The requested name or path."""
        return _subject(self.message)


@dataclass(slots=True, eq=False)
class _Job:
    """A slow job, and the requests that wait for it."""

    offer: Ok | None
    waiting: list[_State]


@dataclass(slots=True, eq=False)
class _Written:
    """An object that is being written."""

    serial: int
    key: tuple[str, Hashable]
    owners: set[Hashable]
    waiting: list[_State]
    path: str = ""
    """The path; empty until the file is open."""
    becomes: str = ""
    """The name under which it is being committed; empty before that."""


class Requests:
    """The requests of one daemon. Its methods add orders, which the caller takes and executes."""

    def __init__(self, slow_max: int = SLOW_MAX) -> None:
        self.orders: list[Order] = []
        self._slow_max = slow_max
        self._serials = count(1)
        self._states: dict[int, _State] = {}
        self._counts: dict[Hashable, int] = {}  # unanswered, by source
        self._due: list[tuple[float, int]] = []
        self._jobs: dict[tuple[Slow, str], _Job] = {}
        self._queue: deque[tuple[Slow, str]] = deque()  # jobs that have not started
        self._running = 0
        self._written: dict[int, _Written] = {}
        self._by_key: dict[tuple[str, Hashable], _Written] = {}
        self._by_path: dict[str, _Written] = {}

    def take_orders(self) -> list[Order]:
        """Return the new orders, and clear the list."""
        orders, self.orders = self.orders, []
        return orders

    def stages(self) -> list[Stage]:
        """Return the stage of each unanswered request."""
        return [state.stage for state in self._states.values()]

    @property
    def open_writes(self) -> int:
        return len(self._written)

    # --- start and end of requests ----------------------------------------------------------------

    def asked(self, source: Hashable, message: Request, now_s: float) -> None:
        """Handle a request, which gets exactly one answer unless its connection ends."""
        if self._counts.get(source, 0) >= REQUESTS_MAX:
            reason = f"this connection already has {REQUESTS_MAX} unanswered requests"
            self._refuse_at_once(source, message, reason)
            return
        wait_s = message.timeout_ms / 1000 if message.timeout_ms else DEADLINE_S
        state = _State(next(self._serials), source, message, now_s + wait_s)
        self._states[state.serial] = state
        self._counts[source] = self._counts.get(source, 0) + 1
        heappush(self._due, (state.deadline_s, state.serial))
        try:
            if not isinstance(message, Abandon):
                check_id(message.name)
            if isinstance(message, Write) and message.attempt:
                check_id(message.attempt)
        except InvalidIdError as error:
            self._fail(state, Refusal(Code.BAD_NAME, str(error)))
            return
        match message:
            case Load():
                self.orders.append(LookUp(state.serial, message.name, message.described))
            case Write():
                self._write(state, message)
            case Commit():
                self._commit(state, message)
            case Abandon():
                self._abandon(state, message)

    def _refuse_at_once(self, source: Hashable, message: Request, reason: str) -> None:
        fail = Fail(message.number, Code.BUSY, _subject(message), reason)
        self.orders.append(Answer(source, message, fail))

    def gone(self, source: Hashable) -> None:
        """Handle the end of a connection: drop its requests, and the writes that only it owns."""
        for state in [state for state in self._states.values() if state.source == source]:
            self._forget(state)
        for written in [*self._written.values()]:
            written.owners.discard(source)
            self._abort_if_unowned(written)

    def tick(self, now_s: float) -> None:
        """Fail requests that have timed out. Their slow jobs continue, and the store keeps the
        results.
        """
        while self._due and self._due[0][0] <= now_s:
            state = self._states.get(heappop(self._due)[1])
            if state is None:
                continue
            reasons = [*state.reasons, *[f"{peer}: no answer" for peer in state.unanswered]]
            details = f" ({'; '.join(sorted(reasons))})" if reasons else ""
            what = "waiting for its peers" if state.stage is Stage.ASKING else "working on it"
            reason = f"not done in time; the daemon was still {what}{details}"
            self._fail(state, Refusal(Code.TIMEOUT, reason))

    def due_s(self) -> float | None:
        """Return the time of the next `tick`, None if none is needed."""
        while self._due and self._due[0][1] not in self._states:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    # --- loads ------------------------------------------------------------------------------------

    def looked_up(self, serial: int, found: Seen | Place | Refusal) -> None:
        """Handle the result of looking up the object in the daemon's store."""
        state = self._states.get(serial)
        if state is None:
            return
        load = _load_of(state)
        if isinstance(found, Refusal):
            self._fail(state, found)
        elif isinstance(found, Seen):
            if load.described and not found.checksum:
                self._wait_for(state, Slow.READ, None)
            else:
                self._have(state, found)
        elif found is Place.REMOTE:
            self._wait_for(state, Slow.READ, None)
        elif found is Place.BEHIND:
            self._wait_for(state, Slow.LIFT, None)
        elif load.recursive:
            state.stage = Stage.ASKING
            self.orders.append(AskPeers(serial, load.name, state.deadline_s))
        else:
            self._fail(state, Refusal(Code.NOT_FOUND, "not in this store"))

    def asking(self, serial: int, peers: Collection[str]) -> None:
        """Handle the list of peers to which a load was sent."""
        state = self._states.get(serial)
        if state is not None:
            state.unanswered = set(peers)
            self._go_on(state)

    def peer_answered(self, serial: int, peer: str, answer: Response) -> None:
        """Handle the answer of a peer, or its failure."""
        state = self._states.get(serial)
        if state is None:
            return
        state.unanswered.discard(peer)
        if isinstance(answer, Ok):
            state.offers.append(answer)
        else:
            state.reasons.append(f"{peer}: {answer.reason}")
        if state.stage is Stage.ASKING:
            self._go_on(state)

    def _go_on(self, state: _State) -> None:
        """Take the next offer, wait for an answer, or give up."""
        if state.offers:
            state.stage = Stage.SERVING
            self._wait_for(state, Slow.TAKE, state.offers.popleft())
        elif state.unanswered:
            state.stage = Stage.ASKING
        else:
            reasons = f": {'; '.join(sorted(state.reasons))}" if state.reasons else ""
            reason = f"neither in this store nor in another{reasons}"
            self._fail(state, Refusal(Code.NOT_FOUND, reason))

    def _wait_for(self, state: _State, kind: Slow, offer: Ok | None) -> None:
        key = (kind, _load_of(state).name)
        job = self._jobs.get(key)
        if job is not None:
            job.waiting.append(state)
            return
        self._jobs[key] = _Job(offer, [state])
        self._queue.append(key)
        self._start_slow()

    def _start_slow(self) -> None:
        while self._queue and self._running < self._slow_max:
            key = self._queue.popleft()
            job = self._jobs[key]
            if job.waiting:
                self._running += 1
                self.orders.append(StartSlow(*key, job.offer))
            else:  # the requests that waited for it have ended
                del self._jobs[key]

    def slow_done(self, kind: Slow, name: str, result: Seen | Refusal) -> None:
        """Handle the end of a slow job."""
        job = self._jobs.pop((kind, name))
        self._running -= 1
        for state in [*job.waiting]:
            if isinstance(result, Seen):
                self._have(state, result)
            elif kind is Slow.TAKE:
                state.reasons.append(result.reason)
                if result.code is Code.NO_SPACE:
                    self._fail(state, result)
                else:
                    self._go_on(state)
            else:
                self._fail(state, result)
        self._start_slow()

    def _have(self, state: _State, seen: Seen) -> None:
        self._succeed(state, seen.path, seen.size_bytes, seen.checksum)

    # --- writes -----------------------------------------------------------------------------------

    def _write(self, state: _State, message: Write) -> None:
        source = state.source
        key = (message.name, message.attempt or (source,))
        written = self._by_key.get(key)
        if written is None:
            if sum(source in other.owners for other in self._written.values()) >= WRITES_MAX:
                reason = f"this connection has {WRITES_MAX} files open for writing"
                self._fail(state, Refusal(Code.BUSY, reason))
                return
            written = _Written(state.serial, key, {source}, [state])
            self._written[written.serial] = self._by_key[key] = written
            hint_bytes = message.size_hint_bytes
            order = OpenWrite(written.serial, message.name, hint_bytes, message.is_mapped)
            self.orders.append(order)
            return
        written.owners.add(source)
        if written.path:
            self._succeed(state, written.path)
        else:
            written.waiting.append(state)

    def write_opened(self, write: int, result: str | Refusal) -> None:
        """Handle the result of opening a file for writing: its path, or a failure."""
        written = self._written[write]
        waiting, written.waiting = written.waiting, []
        if isinstance(result, Refusal):
            self._drop(written)
            for state in waiting:
                self._fail(state, result)
            return
        written.path = result
        self._by_path[result] = written
        for state in waiting:
            self._succeed(state, result)
        self._abort_if_unowned(written)

    def _owned(self, state: _State, path: str) -> _Written | None:
        """Return what the connection of a request writes at a path, or refuse the request."""
        written = self._by_path.get(path)
        if written is not None and state.source in written.owners:
            return written
        reason = "this connection has no file open for writing at this path; send a write first"
        self._fail(state, Refusal(Code.UNKNOWN_PATH, reason))
        return None

    def _commit(self, state: _State, message: Commit) -> None:
        written = self._owned(state, message.path)
        if written is None:
            return
        if written.becomes not in ("", message.name):
            reason = f"this file is already being committed as {written.becomes}"
            self._fail(state, Refusal(Code.CONFLICT, reason))
        else:
            written.waiting.append(state)
            if not written.becomes:
                written.becomes = message.name
                self._by_key.pop(written.key, None)  # a new write of this name gets a new file
                self.orders.append(CommitWrite(written.serial, message.name))

    def _abandon(self, state: _State, message: Abandon) -> None:
        written = self._owned(state, message.path)
        if written is None:
            return
        if written.becomes:
            reason = f"this file is already being committed as {written.becomes}"
            self._fail(state, Refusal(Code.CONFLICT, reason))
            return
        written.owners.discard(state.source)
        self._abort_if_unowned(written)
        self._succeed(state, message.path)

    def write_committed(self, write: int, result: Seen | Refusal) -> None:
        """Handle the end of a commit, which also ends the write."""
        written = self._written[write]
        self._drop(written)
        for state in written.waiting:
            if isinstance(result, Seen):
                self._have(state, result)
            else:
                self._fail(state, result)

    def _abort_if_unowned(self, written: _Written) -> None:
        """Abort a write without owners, unless it is being opened or committed."""
        if written.path and not written.owners and not written.becomes:
            self._drop(written)
            self.orders.append(AbortWrite(written.serial))

    def _drop(self, written: _Written) -> None:
        self._written.pop(written.serial)
        if self._by_key.get(written.key) is written:
            del self._by_key[written.key]
        self._by_path.pop(written.path, None)

    # --- answers ----------------------------------------------------------------------------------

    def _succeed(self, state: _State, path: str, size_bytes: int = 0, checksum: str = "") -> None:
        self._answer(state, Ok(state.message.number, path, size_bytes, checksum))

    def _fail(self, state: _State, why: Refusal) -> None:
        self._answer(state, Fail(state.message.number, why.code, state.subject, why.reason))

    def _answer(self, state: _State, message: Response) -> None:
        if self._forget(state):
            self.orders.append(Answer(state.source, state.message, message))

    def _forget(self, state: _State) -> bool:
        """Remove a request, also from the slow jobs that it waits for; False if it was removed
        before. A write keeps the request in its list, but sends it no answer.
        """
        if self._states.pop(state.serial, None) is None:
            return False
        left = self._counts[state.source] - 1
        if left:
            self._counts[state.source] = left
        else:
            del self._counts[state.source]
        if isinstance(state.message, Load):
            for kind in Slow:
                job = self._jobs.get((kind, state.message.name))
                if job is not None and state in job.waiting:
                    job.waiting.remove(state)
        return True


def _subject(message: Request) -> str:
    return message.path if isinstance(message, Commit | Abandon) else message.name


def _load_of(state: _State) -> Load:
    assert isinstance(state.message, Load)
    return state.message
