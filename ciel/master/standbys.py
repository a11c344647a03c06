"""Serves the standbys of a master: sends them its journal, and names successions to workers.

A standby first gets a copy of the journal's files, and then each append. The master's own journal
goes on in a new file, so the files that are copied do not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO, Final

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ciel.access.keys import Role
from ciel.core.events import (
    Heartbeat,
    JournalCopied,
    JournalCopyEnds,
    JournalGrew,
    JournalStored,
    Message,
    SuccessionChanged,
)
from ciel.core.masters import Ballot
from ciel.journal.directory import find_files, number_of
from ciel.journal.file_journal import FileJournal
from ciel.journal.groups import HEADER
from ciel.master.service import MasterService
from ciel.master.succession.reign import Reign
from ciel.master.voters import VoterAnswer, Voters
from ciel.net.control import ControlPeer
from ciel.wire.limits import PART_BYTES

BEAT_INTERVAL_S: Final = 0.3
"""While a standby follows, every peer hears from the master this often: a master that is silent for
a second may be replaced."""
SILENT_MAX_S: Final = 2.0
"""A standby that is silent for this time is gone: nothing of the master leaves meanwhile."""
HELD_MAX_BYTES: Final = 256 << 20
"""A standby that is copied to more slowly than the journal grows by so much is dropped."""

log = Logger(__name__)


class FollowedJournal:
    """The journal of a master with standbys: an append is durable when all of them have it, too."""

    def __init__(self, journal: FileJournal, reign: Reign) -> None:
        self._journal = journal
        self._reign = reign

    @property
    def durable(self) -> int:
        return min(self._journal.durable, self._reign.limit)

    def append(self, records: Sequence[Message]) -> int:
        return self._journal.append(records)

    def close(self) -> None:
        self._journal.close()


class Follower:
    """The connection of one standby."""

    def __init__(self, peer: ControlPeer, url: str) -> None:
        self.peer = peer
        self.url = url
        self._files: deque[BinaryIO] = deque()
        self._last_copied = -1  # the last append in these files; -1: they are not known yet
        self._held: deque[tuple[int, bytes]] | None = deque()  # appends during the copy
        self._held_bytes = 0

    def appended(self, number: int, frames: bytes) -> None:
        """Send an append, or hold it until the copy ends."""
        if self._held is None:
            self._send(number, frames)
            return
        self._held.append((number, frames))
        self._held_bytes += len(frames)
        if self._held_bytes > HELD_MAX_BYTES:
            self.peer.refuse("it copies the journal more slowly than the journal grows")

    def copy(self, files: list[BinaryIO], last: int) -> None:
        """Send the content of files, which ends with the append `last`."""
        self._files.extend(files)
        self._last_copied = last
        self.send_some()

    def send_some(self) -> None:
        """Send more of the files, as far as the standby reads."""
        if self._last_copied < 0 or self._held is None:
            return
        while self._files and not self.peer.is_congested:
            content = self._files[0].read(PART_BYTES)
            if content:
                self.peer.send(JournalCopied(content))
                self.peer.flush()
            else:
                self._files.popleft().close()
        if not self._files:
            self.peer.send(JournalCopyEnds(self._last_copied))
            held, self._held = self._held, None
            for number, frames in held:
                if number > self._last_copied:
                    self._send(number, frames)

    def _send(self, number: int, frames: bytes) -> None:
        for start in range(0, len(frames), PART_BYTES):
            part = frames[start : start + PART_BYTES]
            is_last = start + PART_BYTES >= len(frames)
            self.peer.send(JournalGrew(number, is_last, part))

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.popleft().close()
        self._held = deque()


class Standbys:
    """Owns the connections of a master's standbys, and carries out what its `Reign` decides."""

    def __init__(
        self,
        reactor: Any,
        journal: FileJournal,
        reign: Reign,
        service: MasterService,
        voters: Voters,
        *,
        is_recorded: bool,
    ) -> None:
        """`is_recorded`: the journal has the succession in effect."""
        self.reign = reign
        self.on_urls: Callable[[tuple[str, ...]], object] = lambda urls: None
        """Called with the masters of each succession that takes effect."""
        self.on_challenged: Callable[[Ballot], object] = lambda promised: None
        """Called when a worker obeys another master."""
        self._reactor = reactor
        self._journal = journal
        self._service = service
        self._voters = voters
        self._is_recorded = is_recorded
        self._followers: dict[ControlPeer, Follower] = {}
        self._asked: set[str] = set()  # the voters that have not answered yet
        self._announced: tuple[str, ...] = (reign.url,)
        self._agreed_at = 0  # the number of the append with the succession in effect
        self._is_closed = False
        self._timer = LoopingCall(self._beat)
        self._timer.clock = reactor
        self._timer.start(BEAT_INTERVAL_S, now=False)
        journal.followers.append(self._appended)

    def close(self) -> None:
        self._is_closed = True
        if self._timer.running:
            self._timer.stop()
        for follower in self._followers.values():
            follower.close()

    @property
    def status(self) -> list[dict[str, Any]]:
        """Describe the standbys for people."""
        return [
            {"url": follower.url, "can_take_over": follower.url in self._announced}
            for follower in self._followers.values()
        ]

    # --- connections ------------------------------------------------------------------------------

    def peer_opened(self, peer: ControlPeer) -> None:
        assert peer.hello is not None
        url = peer.hello.about.get("url")
        if not isinstance(url, str) or not url.isprintable():
            peer.refuse("a standby must say its URL")
            return
        for other in [item for item in self._followers.values() if item.url == url]:
            other.peer.refuse("another standby connected with the same URL")
            self._remove(other)
        log.info("standby {url} copies the journal", url=url)
        follower = self._followers[peer] = Follower(peer, url)
        self._journal.begin_file(partial(self._begun, follower))

    def _begun(self, follower: Follower, number: int, last: int) -> None:
        if self._followers.get(follower.peer) is not follower:
            return
        if not number:
            follower.peer.refuse("the master cannot create a file of its journal")
            return
        files: list[BinaryIO] = []
        for path in find_files(self._journal.directory).paths:
            if number_of(path) <= number:
                file = path.open("rb")
                file.seek(len(HEADER))
                files.append(file)
        follower.copy(files, last)

    def peer_said(self, peer: ControlPeer, messages: list[Message]) -> None:
        follower = self._followers.get(peer)
        for message in messages if follower is not None else ():
            assert isinstance(message, JournalStored)
            assert follower is not None
            self.reign.standby_stored(follower.url, message.number)
        self._step()

    def peer_drained(self, peer: ControlPeer) -> None:
        if peer in self._followers:
            self._followers[peer].send_some()

    def peer_closed(self, peer: ControlPeer, reason: str) -> None:
        follower = self._followers.get(peer)
        if follower is not None:
            log.warn("standby {url} is gone: {reason}", url=follower.url, reason=reason)
            self._remove(follower)
            self._step()

    def _remove(self, follower: Follower) -> None:
        follower.close()
        del self._followers[follower.peer]
        self.reign.standby_lost(follower.url)

    def _appended(self, number: int, frames: bytes) -> None:
        for follower in list(self._followers.values()):
            follower.appended(number, frames)

    # --- the succession ---------------------------------------------------------------------------

    def workers_changed(self, workers: Mapping[str, str]) -> None:
        """Note which workers have joined: addresses by identity."""
        self.reign.workers_changed(workers)
        self._step()

    def begin(self) -> None:
        """Take office, if this master was elected."""
        self._step()

    def _step(self) -> None:
        """Carry out what the reign decides, and release what waited for it."""
        if self._is_closed:
            return
        reign = self.reign
        while True:
            if reign.agree():
                self._agreed_at = self._journal.append([SuccessionChanged(reign.agreed, True)])
            before = reign.agreed
            proposal = reign.propose()
            if proposal is None:
                break
            if not self._is_recorded:
                self._is_recorded = True
                self._journal.append([SuccessionChanged(before, True)])
            reign.proposal_appended(self._journal.append([SuccessionChanged(proposal, False)]))
        is_known = reign.took_office and reign.limit >= self._agreed_at
        if reign.agreed.urls != self._announced and is_known:
            self._announced = reign.agreed.urls  # all standbys know now that they may take over
            log.info("succession: {urls}", urls=", ".join(self._announced))
            self.on_urls(self._announced)
        self._name()
        self._service.journal_durable()

    def _name(self) -> None:
        """Name the latest succession to the voters that should store it."""
        latest = self.reign.proposed or self.reign.agreed
        for voter, netloc in self.reign.voters_to_inform().items():
            if voter not in self._asked:
                self._asked.add(voter)
                done = partial(self._named, voter, latest.version)
                self._voters.name(voter, netloc, latest, done)

    def _named(self, voter: str, version: tuple[int, int], answer: VoterAnswer) -> None:
        self._asked.discard(voter)
        if self._is_closed or answer.is_absent:
            return  # it is asked again with the next beat
        if not answer.reason:
            self.reign.voter_stored(voter, version)
            self._step()
        elif answer.promised.epoch >= self.reign.epoch:
            self.on_challenged(answer.promised)

    def _beat(self) -> None:
        """Let all peers hear from this master, and look for silent standbys."""
        for follower in list(self._followers.values()):
            follower.peer.send(Heartbeat())
            if follower.peer.silent_s >= SILENT_MAX_S and follower.url in self.reign.agreed.urls:
                follower.peer.refuse("it was silent for too long")
                self._remove(follower)
        if len(self.reign.agreed.urls) > 1:
            self._service.beat()
        self._step()


class ByRole:
    """Passes the events of connections to the owner for the role of the peer."""

    def __init__(self, service: MasterService, standbys: Standbys | None) -> None:
        self._service = service
        self._standbys = standbys

    def _owner(self, peer: ControlPeer) -> Any:
        assert peer.hello is not None
        is_standby = peer.hello.role is Role.STANDBY
        return self._standbys if is_standby and self._standbys is not None else self._service

    def peer_opened(self, peer: ControlPeer) -> None:
        assert peer.hello is not None
        if peer.hello.role is Role.STANDBY and self._standbys is None:
            peer.refuse(
                "this master has no journal that a standby could follow: start it with --journal"
            )
            return
        self._owner(peer).peer_opened(peer)

    def peer_said(self, peer: ControlPeer, messages: list[Message]) -> None:
        self._owner(peer).peer_said(peer, messages)

    def peer_drained(self, peer: ControlPeer) -> None:
        self._owner(peer).peer_drained(peer)

    def peer_closed(self, peer: ControlPeer, reason: str) -> None:
        self._owner(peer).peer_closed(peer, reason)
