"""Decides which master a worker obeys, and whether a standby may take over.

A worker is a witness: what it promises to one candidate binds it against all others, also after it
has restarted. A candidate that has the promises of a majority of the voters is the only master of
its epoch, and no master of an earlier epoch can change the succession any more, since that needs a
majority, too. See docs/adr/0091.
"""

from __future__ import annotations

from typing import NamedTuple

from ciel.core.masters import NO_BALLOT, Ballot, Succession

SEEN_MAX = 16


class Promises(NamedTuple):
    """The promises that must survive a restart of the worker; see `Voter`."""

    promised: Ballot
    known: Succession | None
    seen: tuple[str, ...]


class Voter:
    """The successions that one worker knows, and its promises.

    After each call its owner stores `unstored`, if there is something, before it answers.
    """

    def __init__(
        self,
        promised: Ballot = NO_BALLOT,
        known: Succession | None = None,
        seen: tuple[str, ...] = (),
    ) -> None:
        self.promised = promised
        self.known = known
        """The latest succession that a master has named."""
        self.seen = seen
        """The URLs of masters in the latest successions. One that was struck off may have been
        elected before that was agreed."""
        self._stored = self.promises

    @property
    def promises(self) -> Promises:
        return Promises(self.promised, self.known, self.seen)

    @property
    def unstored(self) -> Promises | None:
        """The promises to store before the next answer leaves; None if nothing has changed."""
        return None if self.promises == self._stored else self.promises

    def stored(self, promises: Promises) -> None:
        """Note that these promises are durable."""
        self._stored = promises

    def must_leave(self, master: Ballot) -> bool:
        """Whether the worker must leave the master to which it is connected, since it obeys another
        one now, or that one after a restart. NO_BALLOT if it is connected to none.
        """
        return self.promised not in (NO_BALLOT, master)

    @property
    def urls(self) -> tuple[str, ...]:
        """Where a master may be, the most likely one first."""
        first = (self.promised.url,) if self.promised.url else ()
        return tuple(dict.fromkeys((*first, *self.seen)))

    def refusal(self, master: Ballot) -> str:
        """Return why this worker does not obey a master; "" if it does."""
        if master.epoch < self.promised.epoch:
            return (
                f"the master {self.promised.url} was elected in epoch {self.promised.epoch}, and "
                f"this one is of epoch {master.epoch}"
            )
        if master.epoch == self.promised.epoch and self.promised.url not in ("", master.url):
            return f"in epoch {master.epoch} this worker obeys the master {self.promised.url}"
        return ""

    def meet(self, master: Ballot) -> str:
        """Obey a master that the worker has reached; return why it is refused, or "".

        Without a succession, a master needs no votes, and the worker promises nothing.
        """
        reason = self.refusal(master)
        if not reason and self.known is not None:
            self.promised = master
        return reason

    def name(self, succession: Succession) -> str:
        """Take a succession from its master; return why it is refused, or ""."""
        if reason := self.refusal(Ballot(succession.epoch, succession.urls[0])):
            return reason
        if self.known is None or succession.version > self.known.version:
            self.known = succession
            self.seen = tuple(dict.fromkeys((*succession.urls, *self.seen)))[:SEEN_MAX]
        self.promised = Ballot(succession.epoch, succession.urls[0])
        return ""

    def vote(self, ballot: Ballot, latest: Succession, *, served_by: str, only_asks: bool) -> str:
        """Promise to obey a candidate; return why the vote is refused, or "".

        `latest`: the succession that the candidate knows. `served_by`: the URL of a master that
        this worker hears; "" if there is none. `only_asks`: promise nothing yet.
        """
        reason = self._objection(ballot, latest, served_by)
        if not reason and not only_asks:
            self.promised = ballot
        return reason

    def _objection(self, ballot: Ballot, latest: Succession, served_by: str) -> str:
        if served_by not in ("", ballot.url):
            return f"this worker hears the master {served_by}"
        if ballot.url not in latest.urls:
            return f"{ballot.url} is not in the succession"
        if self.known is not None and latest.version < self.known.version:
            return "the candidate does not know the latest succession"
        if ballot.epoch <= latest.epoch:
            return f"epoch {ballot.epoch} has already had a master"
        return self.refusal(ballot)
