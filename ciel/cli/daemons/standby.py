"""The start of a master that has to be elected: a standby, or a master that had standbys."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import ciel
from ciel.access.keys import Key, Role
from ciel.access.settings import find_master
from ciel.cli.daemons.compactor import Compactor
from ciel.cli.daemons.errors import DaemonError
from ciel.cli.daemons.process import log, settle_memory, start_failure
from ciel.core.errors import CielError
from ciel.journal.errors import JournalError
from ciel.journal.file_journal import FileJournal
from ciel.master.election import Election
from ciel.master.following import Following
from ciel.master.state.machine import MasterMachine
from ciel.master.state.restoring import RETURN_S, Restoration
from ciel.master.succession.candidacy import Round, may_run
from ciel.master.voters import Voters
from ciel.net.control import ControlPeer, Owner
from ciel.net.errors import NetError
from ciel.net.ticks import Ticks
from ciel.net.transports import Reconnector, Reserved
from ciel.wire.errors import RefusedError
from ciel.wire.session import Session

TAKEOVER_RETURN_S: Final = 2.0
"""How long a standby that took over waits for workers: those that voted for it reconnect at once,
and the others may have died with the host of the earlier master."""

SERVE_ERRORS = (NetError, DaemonError, JournalError, CielError, OSError)


class Candidate(Protocol):
    """The daemon that becomes a master when it is elected."""

    def reserve(self) -> tuple[Reserved, str]: ...
    def open_journal(self) -> FileJournal: ...
    def new_machine(self) -> MasterMachine: ...
    def finish(self, journal: FileJournal, restoration: Restoration, return_s: float) -> Any: ...
    def serve_alone(
        self, cluster_id: str, key: Key, restored: Any, door: Reserved, url: str, epoch: int,
        before: Any = (),
    ) -> None: ...  # fmt: skip
    def keep(self, close: Callable[[], object]) -> None: ...
    def fail(self, reason: str) -> None: ...


def run_again(
    candidate: Candidate, reactor: Any, cluster_id: str, key: Key, journal: FileJournal,
    restoration: Restoration, door: Reserved, url: str,
) -> None:  # fmt: skip
    """Serve when the workers agree: a standby of this master may have taken over meanwhile.

    Raises DaemonError if they cannot agree: this journal will not change before it serves.
    """
    if not may_run(url, restoration.latest):
        first = restoration.latest[0].urls[0]
        raise DaemonError(
            f"{url} may not serve with the journal in {journal.directory}: it is that of {first}; "
            f"start this one as its standby (ciel-master --standby {first}), or, if no master of "
            "this cluster runs and none has a later copy, with --promote"
        )
    log.info("this master had standbys: it asks the workers whether it may serve")

    def won(epoch: int) -> None:
        restored = candidate.finish(journal, restoration, RETURN_S)
        _attempt(
            candidate, candidate.serve_alone, cluster_id, key, restored, door, url, epoch,
            restoration.latest,
        )  # fmt: skip

    def lost(round_: Round) -> None:
        if round_.elected:
            candidate.fail(
                f"the master {round_.elected} was elected while this one was away; start this one "
                f"as its standby: ciel-master --standby {round_.elected}"
            )

    voters = Voters(reactor, key)
    election = Election(
        reactor,
        voters,
        url,
        lambda: restoration.latest,
        lambda: True,
        won,
        lambda: restoration.epoch,
    )
    election.on_lost = lost
    candidate.keep(election.close)
    candidate.keep(door.close)


def follow(candidate: Candidate, reactor: Any, options: argparse.Namespace) -> None:
    """Follow the master that the options name, and serve when it is gone and the workers agree.

    Raises AccessError, DaemonError, NetError.
    """
    if not options.journal:
        raise DaemonError("--standby needs --journal: a directory for the copy", status=2)
    found = find_master(options.standby, options.access, os.environ)
    assert found is not None
    settle_memory()  # before the copy grows
    door, url = candidate.reserve()
    candidate.keep(door.close)
    following = Following(
        reactor, Path(options.journal), candidate.open_journal, candidate.new_machine
    )
    ticks = Ticks(reactor)
    compactors: list[Compactor] = []

    def stop_compacting() -> None:
        for compactor in compactors:
            compactor.close()

    def connect(owner: Owner) -> ControlPeer:
        session = Session.initiator(
            found.key, Role.STANDBY, software=ciel.__version__, cluster_id=found.cluster_id,
            about={"url": url},
        )  # fmt: skip
        return ControlPeer(reactor, ticks, session, owner, recorder=reactor.recorder)

    def won(epoch: int) -> None:
        copy, journal = following.copy, following.journal
        assert copy is not None
        assert journal is not None
        log.info("takes over from {url}", url=found.url)
        reconnector.stop()
        following.close()
        stop_compacting()
        latest = copy.restoration.latest
        restored = candidate.finish(journal, copy.restoration, TAKEOVER_RETURN_S)
        _attempt(
            candidate, candidate.serve_alone, found.cluster_id, found.key, restored, door, url,
            epoch, latest,
        )  # fmt: skip

    def copied(journal: FileJournal) -> None:
        stop_compacting()
        compactors[:] = [Compactor(reactor, journal, options.journal_compact_from)]

    voters = Voters(reactor, found.key)
    election = Election(
        reactor,
        voters,
        url,
        lambda: following.latest,
        lambda: following.master_is_silent,
        won,
        lambda: following.epoch,
    )
    address = found.url.removeprefix("http://")
    reconnector = Reconnector(reactor, address, connect, following)
    reconnector.places.alternatives = lambda: _addresses(found.url, url, following)
    following.on_lost = election.check
    following.on_copied = copied
    following.on_failed = candidate.fail
    following.on_refused = partial(_refused, candidate)
    for close in (following.close, reconnector.stop, election.close, stop_compacting):
        candidate.keep(close)
    following.open_existing()
    reconnector.start()
    log.info("standby at {url} of the master {master}", url=url, master=found.url)


def _addresses(first: str, own: str, following: Following) -> list[str]:
    """Return where a master may be."""
    urls = [first, *(url for item in following.latest for url in item.urls if url != own)]
    return [url.removeprefix("http://") for url in dict.fromkeys(urls)]


def _refused(candidate: Candidate, error: RefusedError) -> None:
    candidate.fail(f"the master does not accept this standby: {error.reason}")


def _attempt(candidate: Candidate, act: Callable[..., None], *arguments: Any) -> None:
    try:
        act(*arguments)
    except SERVE_ERRORS as error:
        candidate.fail(start_failure(error)[0])
