"""Chooses how messages and objects travel between two daemons, and says why (CIB-53).

Each choice is a table: the first row that applies decides. `ciel status --transports` prints the
reasons. The figures behind the rows are in `docs/measured/transports.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ciel.core.refs import INLINE_MAX_BYTES

TCP: Final = "tcp"
SOCKET: Final = "socket"
RING: Final = "ring"
AUTO: Final = "auto"
"""The wish of a daemon that leaves the choice to the tables."""

CORES_MIN: Final = 4
"""With fewer cores, a polling process takes the core that its peer needs to answer."""

VALUE: Final = "value"
MEMORY: Final = "memory"
LINK: Final = "link"
COPY: Final = "copy"
HTTP: Final = "http"


class Choice(NamedTuple):
    """A way, and the reason for it as the rest of a sentence after "because"."""

    way: str
    reason: str


# --- control messages -----------------------------------------------------------------------------


class End(NamedTuple):
    """A daemon at one end of a control connection.

    `wish`: the channel that its user chose, or AUTO. `kinds`: the channels that it can open.
    `cores`: how many its process may use. `polls`: whether its user lets it poll before it sleeps.
    """

    wish: str = AUTO
    kinds: tuple[str, ...] = ()
    cores: int = 0
    polls: bool = True

    def described(self) -> dict[str, Any]:
        """Return the fields of a hello that describe this end."""
        kinds = list(self.kinds)
        return {"channels": kinds, "channel": self.wish, "cores": self.cores, "polls": self.polls}


def read_end(about: Mapping[str, Any]) -> End:
    """Read the fields of a peer's hello; fields that are missing or malformed count as unknown.

    A peer of an earlier version sends only the channel that its user chose.
    """
    sent, cores = about.get("channels"), about.get("cores")
    kinds = tuple([kind for kind in sent if isinstance(kind, str)]) if type(sent) is list else ()
    wish = about.get("channel", kinds[0] if kinds else SOCKET)
    return End(
        wish if isinstance(wish, str) else SOCKET,
        kinds,
        cores if type(cores) is int else 0,
        about.get("polls") is not False,
    )


class ControlSituation(NamedTuple):
    """Two ends of a connection. `is_local`: it is a UNIX socket, which can carry descriptors."""

    master: End
    worker: End
    is_local: bool

    @property
    def wishes(self) -> list[str]:
        """The different channels that users chose."""
        return sorted({end.wish for end in (self.master, self.worker)} - {AUTO})

    @property
    def wish(self) -> str:
        """The only channel that users chose; AUTO if they chose none."""
        return self.wishes[0] if self.wishes else AUTO

    @property
    def cores(self) -> int:
        return min(self.master.cores, self.worker.cores)

    def both_have(self, kind: str) -> bool:
        return kind in self.master.kinds and kind in self.worker.kinds


class ControlRow(NamedTuple):
    """`way`: WISH stands for the channel that a user chose. `reason` may name `wish`, `cores` and
    the ends.
    """

    way: str
    applies: Callable[[ControlSituation], bool]
    reason: str


WISH: Final = "wish"

CONTROL_ROWS: Final[tuple[ControlRow, ...]] = (
    ControlRow(TCP, lambda s: not s.is_local, "the worker reaches the master over the network"),
    ControlRow(
        SOCKET,
        lambda s: len(s.wishes) > 1,
        "the master was started with --channel {0.master.wish}, and the worker with --channel "
        "{0.worker.wish}",
    ),
    ControlRow(SOCKET, lambda s: s.wish == SOCKET, "--channel socket was given"),
    ControlRow(
        SOCKET,
        lambda s: s.wish != AUTO and not s.both_have(s.wish),
        "--channel {0.wish} was given, but only one of the two daemons has such a channel",
    ),
    ControlRow(WISH, lambda s: s.wish != AUTO, "--channel {0.wish} was given"),
    ControlRow(
        SOCKET,
        lambda s: s.cores < CORES_MIN,
        f"a ring is faster only if both daemons poll it, which needs {CORES_MIN} cores; they may "
        "use {0.cores}",
    ),
    ControlRow(
        SOCKET,
        lambda s: not (s.master.polls and s.worker.polls),
        "a ring is faster only if both daemons poll it, and --spin 0 was given",
    ),
    ControlRow(
        SOCKET, lambda s: not s.both_have(RING), "one of the two daemons cannot open a ring"
    ),
    ControlRow(
        RING,
        lambda s: True,
        "both daemons are on one host with {0.cores} cores, and can poll shared memory",
    ),
)


def control_choice(
    situation: ControlSituation, rows: Sequence[ControlRow] = CONTROL_ROWS
) -> Choice:
    """Choose how a master and a worker exchange messages."""
    row = next(row for row in rows if row.applies(situation))
    way = situation.wish if row.way == WISH else row.way
    return Choice(way, row.reason.format(situation))


def channel_alone(own: End) -> str:
    """Return the channel that a daemon prefers, before it knows another one: SOCKET or a kind."""
    return control_choice(ControlSituation(own, own, is_local=True)).way


NOT_OPEN: Final = "could not be opened; the logs of both daemons say why"
"""Why another way than the chosen one carries the messages."""


# --- objects --------------------------------------------------------------------------------------


class Store(NamedTuple):
    """The store of a worker, as other workers can reach it.

    `host`: workers with the same host share kernel, network and mounts. `user`: the number of the
    user. `places`: names the memory or file system of each level, the fastest first; empty if its
    worker does not share its store. None: not known.
    """

    host: str
    user: int | None = None
    places: tuple[str, ...] | None = None


class ObjectSituation(NamedTuple):
    """An object travels between two workers. `size_bytes`: None if it is not known."""

    source: Store
    taker: Store
    size_bytes: int | None = None

    @property
    def are_known(self) -> bool:
        return self.source.places is not None and self.taker.places is not None

    def in_common(self, kind: str) -> bool:
        """Whether the fastest level of the source is one of the taker's levels, of some kind."""
        first = (self.source.places or ("",))[0]
        return first.startswith(kind) and first in (self.taker.places or ())

    @property
    def lacks_sharing(self) -> bool:
        return self.source.places == () or self.taker.places == ()


class ObjectRow(NamedTuple):
    """A row of the table of objects."""

    way: str
    applies: Callable[[ObjectSituation], bool]
    reason: str


IMAGE: Final = "image:"
"""Begins the names of places that are images of shmfs; other places are file systems."""

OBJECT_ROWS: Final[tuple[ObjectRow, ...]] = (
    ObjectRow(
        VALUE,
        lambda s: s.size_bytes is not None and s.size_bytes <= INLINE_MAX_BYTES,
        f"an object of at most {INLINE_MAX_BYTES:,} bytes travels within its reference",
    ),
    ObjectRow(MEMORY, lambda s: s.in_common(IMAGE), "both stores are cores of one image"),
    ObjectRow(HTTP, lambda s: s.source.host != s.taker.host, "the workers do not share a host"),
    ObjectRow(
        HTTP, lambda s: s.source.user != s.taker.user, "the workers belong to different users"
    ),
    ObjectRow(HTTP, lambda s: s.lacks_sharing, "one of the workers does not share its store"),
    ObjectRow(LINK, lambda s: s.in_common(""), "both stores are on one file system"),
    ObjectRow(
        COPY,
        lambda s: s.are_known,
        "the stores of this host are not on one file system, so a link is impossible",
    ),
    ObjectRow(LINK, lambda s: True, "both workers are on one host"),
)


def object_choice(situation: ObjectSituation, rows: Sequence[ObjectRow] = OBJECT_ROWS) -> Choice:
    """Choose how an object gets from one worker to another one."""
    row = next(row for row in rows if row.applies(situation))
    return Choice(row.way, row.reason)
