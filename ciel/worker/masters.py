"""Keeps what this worker has promised to masters, and leads it to the master that it obeys.

Promises are stored in the work directory before they are given: a restarted worker keeps them.
"""

from __future__ import annotations

import os
from pathlib import Path

from twisted.logger import Logger

from ciel.core.errors import CielError
from ciel.core.masters import SILENT_S, Ballot, Succession
from ciel.net.control import Peer
from ciel.net.transports import Reconnector
from ciel.wire import codec
from ciel.wire.errors import DecodeError
from ciel.wire.masters import (
    ballot_from_json,
    ballot_to_json,
    succession_from_json,
    succession_to_json,
)
from ciel.worker.master_session import MasterSession
from ciel.worker.state.voter import Promises, Voter

log = Logger(__name__)  # compiled code cannot determine its own module


class Masters:
    """The vote of one worker. `path`: the file with its promises. `voter`: its identity."""

    def __init__(self, path: Path, voter: str, cluster_id: str, session: MasterSession) -> None:
        self.voter = voter
        self._path = path
        self._cluster_id = cluster_id
        self._session = session
        self._state = self._read()
        self._reconnector: Reconnector | None = None

    @property
    def promised(self) -> Ballot:
        return self._state.promised

    @property
    def hears(self) -> str:
        """The URL of the master from which this worker has heard recently, or ""."""
        return self._session.hears(SILENT_S)

    def lead(self, reconnector: Reconnector) -> None:
        """Let the masters of the succession be tried in turn."""
        self._reconnector = reconnector
        reconnector.places.alternatives = lambda: [_address(url) for url in self._state.urls]

    def objection(self, peer: Peer) -> str:
        """Return why a master that this worker has reached is not obeyed; "" if it is."""
        about = {} if peer.hello is None else peer.hello.about
        epoch, url = about.get("epoch", 0), about.get("url", "")
        if type(epoch) is not int or not isinstance(url, str):
            return "it does not say its epoch and its URL"
        reason = self._state.meet(Ballot(epoch, url))
        self._store()
        return reason

    def name(self, succession: Succession) -> str:
        """Store the succession that a master names; return why it is refused, or ""."""
        reason = self._state.name(succession)
        if self._store():
            self._follow_promise()
        return reason

    def vote(self, ballot: Ballot, latest: Succession, *, only_asks: bool) -> str:
        """Vote for a candidate; return why the vote is refused, or "".

        A worker that has voted leaves the master that it had.
        """
        reason = self._state.vote(ballot, latest, served_by=self.hears, only_asks=only_asks)
        if self._store():
            log.info("voted for {url} in epoch {epoch}", url=ballot.url, epoch=ballot.epoch)
            self._follow_promise()
        return reason

    def _store(self) -> bool:
        """Make changes durable; return whether there were any. Raises OSError, and then
        nothing was promised to the peer.
        """
        promises = self._state.unstored
        if promises is None:
            return False
        self._write(promises)
        self._state.stored(promises)
        return True

    def _follow_promise(self) -> None:
        """Leave a master that this worker does not obey any more."""
        reconnector = self._reconnector
        if reconnector is not None and self._state.must_leave(self._session.master()):
            reconnector.redirect(_address(self._state.promised.url))
            self._session.cut_off()

    def forget(self) -> None:
        """Forget all promises, since an administrator has named another master."""
        self._state = Voter()
        self._path.unlink(missing_ok=True)

    def _read(self) -> Voter:
        try:
            value = codec.decode(self._path.read_bytes())
            if value["cluster_id"] != self._cluster_id:
                return Voter()
            known = value["known"] and succession_from_json(value["known"])
            seen = tuple(str(url) for url in value["seen"])
            return Voter(ballot_from_json(value["promised"]), known, seen)
        except FileNotFoundError:
            return Voter()
        except (OSError, DecodeError, KeyError, TypeError) as error:
            raise CielError(
                f"{self._path} cannot be read ({error}): it has the promises of this worker to "
                "masters; remove it only if no standby may take over"
            ) from None

    def _write(self, promises: Promises) -> None:
        content = {
            "cluster_id": self._cluster_id, "promised": ballot_to_json(promises.promised),
            "known": promises.known and succession_to_json(promises.known),
            "seen": list(promises.seen),
        }  # fmt: skip
        temporary = self._path.with_suffix(".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, codec.encode(content))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, self._path)
        directory_fd = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory_fd)
        finally:
            os.close(directory_fd)


def _address(url: str) -> str:
    return url.removeprefix("http://")
