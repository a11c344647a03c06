"""The masters that a cluster may have, and the workers that elect them.

Each start of a master begins an *epoch*, which has a number. A worker obeys the master of the
latest epoch that it knows, and no earlier one. A *standby* is a master that follows the journal of
the current one. The *succession* lists the master, its standbys that have all its records, and the
workers that vote when a standby is to take over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

SILENT_S: Final = 1.0
"""A master that has sent nothing for this time may be replaced."""
PROMOTION_EPOCHS: Final = 1 << 20
"""More epochs than elections are lost between two masters."""


class Succession(NamedTuple):
    """The masters that may be elected, and their voters. A master changes it during its epoch; the
    one with the greater `epoch` and `number` is the later one.

    `urls`: the master, then its standbys. `voters`: the addresses of workers, by the identity of
    their work directories.
    """

    epoch: int
    number: int
    urls: tuple[str, ...]
    voters: Mapping[str, str]

    @property
    def version(self) -> tuple[int, int]:
        """The order of successions."""
        return self.epoch, self.number

    @property
    def standbys(self) -> tuple[str, ...]:
        return self.urls[1:]

    def is_majority(self, voters: Collection[str]) -> bool:
        """Whether these are more than half of the voters; False if there are no voters."""
        return 2 * len(self.voters.keys() & set(voters)) > len(self.voters)


class Ballot(NamedTuple):
    """The promise of a worker to obey no master of an earlier epoch, and in this epoch only the
    master with this URL.
    """

    epoch: int
    url: str


NO_BALLOT = Ballot(0, "")


def was_replaced(master: Ballot, met: Ballot) -> bool:
    """Whether the master `met`, which a peer has met before, has replaced this one.

    A master at the same URL in an earlier epoch has lost its journal.
    """
    return master.epoch < met.epoch and master.url != met.url


def promoted_epoch(latest: int) -> int:
    """Return the epoch of a master that serves without votes.

    It is later than those which workers may have promised to candidates since the epoch `latest`.
    """
    return (latest // PROMOTION_EPOCHS + 1) * PROMOTION_EPOCHS
