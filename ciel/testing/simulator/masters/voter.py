"""The vote of a simulated worker, which outlives it in its work directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ciel.core.masters import NO_BALLOT, SILENT_S, Ballot, Succession
from ciel.net.places import Places
from ciel.testing.simulator.world import Connection, World
from ciel.worker.state.voter import Promises, Voter


class Spool:
    """The work directory of a worker, with the promises that outlive the worker. `masters`: the
    URLs that an administrator has named: a worker may have missed all successions with the master.
    """

    def __init__(self, name: str, masters: Sequence[str]) -> None:
        self.name = name
        self.masters = masters
        self.promises = Promises(NO_BALLOT, None, ())


class FakeVoter:
    """The vote of one worker, as `worker.masters` has it."""

    def __init__(self, world: World[Any], spool: Spool) -> None:
        self.name = spool.name
        self.places = Places(spool.masters[0])
        self.places.alternatives = lambda: [*dict.fromkeys((*self.state.urls, *spool.masters))]
        self.leave: Callable[[], object] = lambda: None
        """Called when the worker must leave the master that it has."""
        self.connection: Callable[[], Connection | None] = lambda: None
        """Returns the connection of the worker's session."""
        self.heard_at_s = 0.0
        self.state = Voter(*spool.promises)
        self._world = world
        self._spool = spool

    def hears(self, silent_max_s: float) -> str:
        """Return the URL of the master that was heard within a time, or ""."""
        connection = self.connection()
        is_silent = self._world.timeline.now_s - self.heard_at_s >= silent_max_s
        return "" if connection is None or is_silent else connection.master.url

    def objection(self, master: Ballot) -> str:
        """Return why a master that this worker has reached is not obeyed; "" if it is."""
        reason = self.state.meet(master)
        self._store()
        return reason

    def name_succession(self, succession: Succession) -> str:
        """Store a succession; return why it is refused, or ""."""
        reason = self.state.name(succession)
        if self._store():
            self._follow_promise()
        return reason

    def vote(self, ballot: Ballot, latest: Succession, *, only_asks: bool) -> str:
        """Vote for a candidate; return why the vote is refused, or ""."""
        served_by = self.hears(SILENT_S)
        reason = self.state.vote(ballot, latest, served_by=served_by, only_asks=only_asks)
        if self._store():
            self._follow_promise()
        return reason

    def _store(self) -> bool:
        """Make changes durable. Raises OSError if the disk is full."""
        promises = self.state.unstored
        if promises is None:
            return False
        if self._world.has_fault(
            self._world.options.full_share, f"the promises of {self.name} cannot be stored"
        ):
            raise OSError
        self._spool.promises = promises
        self._world.chronicle.promised(self.name, promises.promised)
        self.state.stored(promises)
        return True

    def _follow_promise(self) -> None:
        connection = self.connection()
        if self.state.must_leave(NO_BALLOT if connection is None else connection.master):
            self.places.redirect(self.state.promised.url, self._world.timeline.now_s)
            self.leave()
