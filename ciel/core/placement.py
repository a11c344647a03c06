"""Computes the cost of running a task on each worker, in seconds, and explains the best choice.

Cost = bytes to be copied ÷ bandwidth of the path + the time until the disks are free (CIB-42) + the
time until a slot is free (CIB-53). Bandwidths are recent measurements between the two hosts, or a
guess until there are any. The candidate's disk counts if the candidate stores a copy or reads an
input there; the disk of the worker that sends an input counts, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ciel.core.refs import (
    Concrete,
    Reference,
    SocketStream,
    Stream,
    Sweetheart,
    locations_of,
)
from ciel.core.scheduling import DEFAULT_SCHEDULING, SWEETHEART_FACTOR, Scheduling

SAME_HOST_BYTES_PER_S = 5e9  # assumed for a link or a copy in memory, until it is measured
OTHER_HOST_BYTES_PER_S = 1e8  # assumed for a gigabit link, until it is measured
STREAM_BYTES = 10_000_000  # the assumed size of a stream of unknown length, as in the original

MEASURED_FROM_BYTES = 1_000_000
"""The duration of smaller copies depends on round trips more than on bandwidth."""
MEASURE_SHARE = 0.25
"""The weight of the latest copy in the moving average."""
PAIRS_MAX = 20_000
"""The number of pairs of hosts whose bandwidth is kept: about 5 MB. Further pairs are ignored."""


WAITS_FROM_BYTES = 64 << 10
"""Smaller inputs that a worker has are read without a wait for its disk, as disk jobs are."""


class Bandwidths:
    """Measured bandwidths between hosts, as seconds per byte, by source host and target host.

    Each is a moving average. It averages seconds per byte, not bytes per second, because a cost is
    a time: one slow copy then counts as much as it delays.
    """

    __slots__ = ("_s_per_byte",)

    def __init__(self) -> None:
        self._s_per_byte: dict[tuple[str, str], float] = {}

    def learn(self, source: str, target: str, size_bytes: int, run_s: float) -> None:
        """Record how long a copy took, unless it was too small."""
        if size_bytes < MEASURED_FROM_BYTES:
            return
        pair, now = (source, target), max(run_s, 1e-6) / size_bytes
        before = self._s_per_byte.get(pair)
        if before is not None:
            self._s_per_byte[pair] = before + MEASURE_SHARE * (now - before)
        elif len(self._s_per_byte) < PAIRS_MAX:
            self._s_per_byte[pair] = now

    def s_per_byte(self, source: str | None, target: str) -> float | None:
        """Return the measured seconds per byte from one host to another, or None."""
        return self._s_per_byte.get((source or "", target))

    def keep_only(self, hosts: Collection[str]) -> None:
        """Forget the pairs with other hosts."""
        self._s_per_byte = {
            pair: s for pair, s in self._s_per_byte.items() if pair[0] in hosts and pair[1] in hosts
        }

    def __len__(self) -> int:
        return len(self._s_per_byte)


NOTHING_MEASURED = Bandwidths()


class Candidate(NamedTuple):
    """A worker as placement sees it."""

    location: str
    host: str
    wait_s: float  # the expected time until a slot is free
    disk_s: float = 0.0  # the expected time until its disk has done the queued reads and writes


class Choice(NamedTuple):
    """A ranked worker, with its cost and the parts of the cost."""

    location: str
    cost_s: float
    missing_bytes: int
    move_s: float
    disk_s: float
    wait_s: float
    is_measured: bool  # at least one of the bandwidths
    ignores_inputs: bool = False  # the options of the policy ignore where the inputs are

    @property
    def reason(self) -> str:
        """Describe the cost for users."""
        slot = f"a free slot in about {self.wait_s:.3g} s"
        if self.ignores_inputs:
            return f"the policy's options ignore the cost of copying; this worker has {slot}"
        disk = f"disks that are busy for about {self.disk_s:.3g} s, " if self.disk_s else ""
        if not self.missing_bytes:
            return f"this worker has all inputs, {disk}and {slot}"
        how = ""
        if self.is_measured and self.move_s:
            how = f", measured {self.missing_bytes / self.move_s / 1e6:.3g} MB/s"
        fetched = f"{self.missing_bytes} bytes to fetch (about {self.move_s:.3g} s{how})"
        return f"this worker has {fetched}, {disk}and {slot}"


class Load(NamedTuple):
    """One input of a task, as placement sees it: its size, and the workers that store it.

    A worker outside of `locations` would have to fetch `size_bytes`.
    """

    size_bytes: int
    locations: frozenset[str]


def loads_of(
    inputs: Iterable[Reference], sweetheart_factor: float = SWEETHEART_FACTOR
) -> list[Load]:
    """List the sizes and locations of inputs. Inputs with inline content are left out."""
    loads = []
    for ref in inputs:
        if isinstance(ref, Concrete):
            loads.append(Load(_weight(ref.size_bytes), ref.locations))
        elif isinstance(ref, Sweetheart):
            weight = int(_weight(ref.size_bytes) * sweetheart_factor)
            loads.append(Load(weight, frozenset((ref.preferred,))))
        elif isinstance(ref, Stream | SocketStream):
            loads.append(Load(STREAM_BYTES, locations_of(ref)))
    return loads


def _weight(size_bytes: int | None) -> int:
    return STREAM_BYTES if size_bytes is None else size_bytes


def rank(
    loads: Sequence[Load],
    candidates: Sequence[Candidate],
    hosts: dict[str, str],
    measured: Bandwidths = NOTHING_MEASURED,
    scheduling: Scheduling = DEFAULT_SCHEDULING,
) -> list[Choice]:
    """Rank candidates by cost, cheapest first; ties keep the candidates' order.

    `hosts` maps locations to hosts; an unknown location counts as another host.
    """
    has_loads = bool(loads)
    if scheduling.options:
        loads, candidates = _apply_options(loads, candidates, scheduling)
    busy = {candidate.location: candidate.disk_s for candidate in candidates if candidate.disk_s}
    choices = [_price(loads, candidate, hosts, measured, busy) for candidate in candidates]
    if has_loads and not loads:
        choices = [choice._replace(ignores_inputs=True) for choice in choices]
    choices.sort(key=lambda choice: choice.cost_s)
    return choices


def _price(
    loads: Sequence[Load], candidate: Candidate, hosts: dict[str, str], measured: Bandwidths,
    busy: dict[str, float],
) -> Choice:  # fmt: skip
    """Return the cost of a candidate. `busy`: how long the disks of candidates are busy."""
    location, host, wait_s, _ = candidate
    move_s, missing_bytes, disk_s, source_s, is_measured = 0.0, 0, 0.0, 0.0, False
    for size_bytes, locations in loads:
        if location in locations:
            if size_bytes >= WAITS_FROM_BYTES:
                disk_s = candidate.disk_s
            continue
        missing_bytes += size_bytes
        if busy and locations:
            source_s = max(source_s, min([busy.get(place, 0.0) for place in locations]))
        near = any(hosts.get(place) == host for place in locations)
        if not near:
            disk_s = candidate.disk_s
        s_per_byte, is_known = _guess(near), False
        if len(measured) and locations:
            sources = [hosts.get(place) for place in locations]
            s_per_byte, is_known = min([_path_cost(source, host, measured) for source in sources])
        move_s += size_bytes * s_per_byte
        is_measured |= is_known
    disk_s += source_s
    cost_s = move_s + disk_s + wait_s
    return Choice(location, cost_s, missing_bytes, move_s, disk_s, wait_s, is_measured)


def _guess(near: bool) -> float:
    return 1 / (SAME_HOST_BYTES_PER_S if near else OTHER_HOST_BYTES_PER_S)


def _path_cost(source: str | None, host: str, measured: Bandwidths) -> tuple[float, bool]:
    """Return the seconds per byte from one host to another, and whether they were measured."""
    known = measured.s_per_byte(source, host)
    return (_guess(source == host), False) if known is None else (known, True)


def _apply_options(
    loads: Sequence[Load], candidates: Sequence[Candidate], scheduling: Scheduling
) -> tuple[Sequence[Load], Sequence[Candidate]]:
    """Apply the options of a job's policy to the loads and the candidates.

    Ignore local bytes below the threshold. With a margin, keep only the candidates that hold about
    as much as the best one, and treat their costs of copying as equal.
    """
    threshold = scheduling.option("min_saving_threshold", 0.0)
    margin = scheduling.option("equally_local_margin", 0.0)
    local_bytes = {c.location: _local_bytes(loads, c.location) for c in candidates}
    most = max(local_bytes.values())
    if most < threshold:
        return (), candidates
    if margin and most:
        local = [c for c in candidates if local_bytes[c.location] >= margin * most]
        return (), local
    poor = {place for place, size in local_bytes.items() if size < threshold}
    return [Load(size, places - poor) for size, places in loads], candidates


def _local_bytes(loads: Sequence[Load], location: str) -> int:
    return sum([size_bytes for size_bytes, locations in loads if location in locations])
