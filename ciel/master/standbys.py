"""Serves the standbys of a master: sends them its journal, and names successions to workers.

A standby first gets a copy of the journal's files, and then each append. The master's own journal
goes on in a new file, so the files that are copied do not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, BinaryIO, Final

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ciel.access.keys import Role
from ciel.core.events import Heartbeat, JournalCopied, JournalStored, Message
from ciel.core.masters import NO_BALLOT, Ballot
from ciel.journal.directory import find_files, number_of
from ciel.journal.file_journal import FileJournal
from ciel.journal.groups import HEADER
from ciel.master.memory import MemoryServers
from ciel.master.service import MasterService
from ciel.master.succession.candidacy import VoterAnswer
from ciel.master.succession.feed import Feed
from ciel.master.succession.leadership import (
    BEAT_INTERVAL_S,
    SILENT_MAX_S,
    AnnounceMasters,
    Leadership,
    NameSuccession,
    Order,
    RunAgain,
)
from ciel.master.voters import Voters
from ciel.memory.volumes import LEASE_S
from ciel.net.control import ControlPeer
from ciel.wire.errors import DecodeError
from ciel.wire.limits import PART_BYTES
from ciel.wire.masters import ballot_from_json, ballot_to_json

log = Logger(__name__)

RIVAL_S: Final = SILENT_MAX_S + 2 * BEAT_INTERVAL_S + LEASE_S
"""After this time, no memory server has a lease of a master that was replaced. That master stops
granting leases when it notices that its standby is silent."""


class Follower:
    """The connection of one standby."""

    def __init__(self, peer: ControlPeer, url: str) -> None:
        self.peer = peer
        self.url = url
        self._feed = Feed()
        self._files: deque[BinaryIO] = deque()

    def appended(self, number: int, frames: bytes) -> None:
        """Send an append, or hold it until the copy ends."""
        self._send(self._feed.appended(number, frames))
        if self._feed.is_too_slow:
            self.peer.refuse("it copies the journal more slowly than the journal grows")

    def copy(self, files: list[BinaryIO], last: int) -> None:
        """Send the content of files, which ends with the append `last`."""
        self._files.extend(files)
        self._feed.chose_files(last)
        self.send_some()

    def send_some(self) -> None:
        """Send more of the files, as far as the standby reads."""
        if not self._feed.is_copying:
            return
        while self._files and not self.peer.is_congested:
            content = self._files[0].read(PART_BYTES)
            if content:
                self.peer.send(JournalCopied(content))
                self.peer.flush()
            else:
                self._files.popleft().close()
        if not self._files:
            self._send(self._feed.sent_files())

    def _send(self, messages: list[Message]) -> None:
        for message in messages:
            self.peer.send(message)

    def close(self) -> None:
        """Close the files, and send no more of them."""
        while self._files:
            self._files.popleft().close()
        self._feed = Feed()


class Standbys:
    """Owns the connections of a master's standbys; carries out what its `Leadership` decides."""

    def __init__(
        self,
        reactor: Any,
        journal: FileJournal,
        leadership: Leadership,
        service: MasterService,
        voters: Voters,
    ) -> None:
        self.on_urls: Callable[[tuple[str, ...]], object] = lambda urls: None
        """Called with the masters of each succession that takes effect."""
        self.on_challenged: Callable[[Ballot], object] = lambda promised: None
        """Called when a worker obeys another master."""
        self._journal = journal
        self._leadership = leadership
        self._service = service
        self._voters = voters
        self._followers: dict[ControlPeer, Follower] = {}
        self._timer = LoopingCall(self._beat)
        self._timer.clock = reactor
        self._timer.start(BEAT_INTERVAL_S, now=False)
        journal.followers.append(self._appended)

    def close(self) -> None:
        self._leadership.end()
        if self._timer.running:
            self._timer.stop()
        for follower in self._followers.values():
            follower.close()

    @property
    def status(self) -> list[dict[str, Any]]:
        """Describe the standbys for people."""
        return [
            {"url": follower.url, "can_take_over": self._leadership.can_take_over(follower.url)}
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
        self._leadership.copy_begins()
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
            self._leadership.standby_stored(follower.url, message.number)
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
        self._leadership.standby_lost(follower.url)

    def _appended(self, number: int, frames: bytes) -> None:
        for follower in list(self._followers.values()):
            follower.appended(number, frames)

    # --- the succession ---------------------------------------------------------------------------

    def admits(self, worker: ControlPeer) -> bool:
        """Whether a worker that has connected obeys this master.

        Otherwise the worker closes the connection, and this master runs again, in a later epoch.
        """
        assert worker.hello is not None
        try:
            value = worker.hello.about.get("promised", ballot_to_json(NO_BALLOT))
            promised = ballot_from_json(value)
        except DecodeError as error:
            worker.refuse(f"its promise to a master is wrong: {error}")
            return False
        orders = self._leadership.worker_promised(promised)
        if orders:
            self._carry_out(orders)
        return not orders

    def workers_changed(self, workers: Mapping[str, str]) -> None:
        """Note which workers have joined: addresses by identity."""
        self._leadership.workers_changed(workers)
        self._step()

    def journal_durable(self) -> None:
        """Note that appends have become durable at this master."""
        if self._leadership.awaits_journal:
            self._step()
        else:
            self._service.journal_durable()

    def begin(self) -> None:
        """Take office, if this master was elected."""
        self._step()

    def _step(self) -> None:
        """Carry the succession on, and release what waited for it."""
        self._carry_out(self._leadership.step())

    def _carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case AnnounceMasters(urls):
                    log.info("succession: {urls}", urls=", ".join(urls))
                    self.on_urls(urls)
                case NameSuccession(voter, netloc, succession):
                    done = partial(self._named, order)
                    self._voters.name(voter, netloc, succession, done)
                case RunAgain(promised):
                    self.on_challenged(promised)
                    return  # this master ends
        self._service.journal_durable()

    def _named(self, order: NameSuccession, answer: VoterAnswer) -> None:
        self._carry_out(self._leadership.voter_answered(order, answer))

    def _beat(self) -> None:
        """Let all peers hear from this master, and look for silent standbys."""
        for follower in list(self._followers.values()):
            follower.peer.send(Heartbeat())
            if self._leadership.is_gone(follower.url, follower.peer.silent_s):
                follower.peer.refuse("it was silent for too long")
                self._remove(follower)
        if self._leadership.must_beat:
            self._service.beat()
        self._step()


class ByRole:
    """Passes the events of connections to the owner for the role of the peer."""

    def __init__(
        self, service: MasterService, memory: MemoryServers, standbys: Standbys | None
    ) -> None:
        self._service = service
        self._memory = memory
        self._standbys = standbys

    def _owner(self, peer: ControlPeer) -> Any:
        assert peer.hello is not None
        if peer.hello.role is Role.MEMORY:
            return self._memory
        is_standby = peer.hello.role is Role.STANDBY
        return self._standbys if is_standby and self._standbys is not None else self._service

    def peer_opened(self, peer: ControlPeer) -> None:
        assert peer.hello is not None
        if peer.hello.role is Role.STANDBY and self._standbys is None:
            peer.refuse(
                "this master has no journal that a standby could follow: start it with --journal"
            )
            return
        is_worker = peer.hello.role is Role.WORKER
        if not is_worker or self._standbys is None or self._standbys.admits(peer):
            self._owner(peer).peer_opened(peer)

    def peer_said(self, peer: ControlPeer, messages: list[Message]) -> None:
        self._owner(peer).peer_said(peer, messages)

    def peer_drained(self, peer: ControlPeer) -> None:
        self._owner(peer).peer_drained(peer)

    def peer_closed(self, peer: ControlPeer, reason: str) -> None:
        self._owner(peer).peer_closed(peer, reason)
