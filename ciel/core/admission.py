"""Decides which disk jobs run now: one `Admission` for each device (CIB-40, CIB-41).

A rotating disk loses half of its speed when it serves two jobs; other devices are slow when they
serve only one. So each device has a limit: none, a number, or the number that measured best. The
caller reports events with their time, and starts the jobs that the method returns.

The queue is ordered by the time of arrival plus the expected duration of a job. The expected
duration is always computed with `DEFAULT_BYTES_PER_S`, and capped at `OVERTAKEN_MAX_S`. So a small
job overtakes a large one only if it arrives soon enough: within the large job's expected duration.
Every job waits only for jobs that arrived before it, or within its own expected duration after it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import log2
from typing import Generic, TypeVar

DEFAULT_BYTES_PER_S = 1e8  # the rate of a rotating disk
OVERTAKEN_MAX_S = 10.0
"""Smaller jobs that arrive within this time after a large job can overtake it."""

AT_A_TIME_MAX = 32
"""The highest limit that is tried: the hardware queues of devices are this long."""

FIRST_AT_A_TIME = 4
"""The first limit on a device that does not rotate: it keeps the device busy between jobs
(docs/measured/disk-jobs.md)."""

BETTER = 1.05
"""A higher limit must raise the rate by this factor. A lower limit may reduce the rate by less than
this factor, since new jobs then wait for fewer running jobs."""

WORSE = 0.8
"""A tried limit whose rate is below this share of the settled limit's rate in the first round is
rejected."""

WAITING_FOR_EACH = 4
"""Another limit is tried only while at least this many times the limit wait as jobs. Then many jobs
share the cost of a failed trial."""

ROUNDS = 2
PAUSE_MIN_S = 10.0
PAUSE_MAX_S = 600.0
"""The pause between trials, doubled after each trial that finds no better limit."""

_SLACK = 0.25
"""For this share of the time of a measurement, fewer jobs may run than the limit allows."""

REPORTED_FROM_S = 0.1
"""A shorter queue is reported to the master as empty."""

Key = TypeVar("Key", bound=Hashable)


def level_of(busy_s: float) -> int:
    """Return a coarse level for the length of a queue: 0 if it is empty, one more per doubling.

    A coarse level changes rarely, so that the queue is rarely reported.
    """
    return 0 if busy_s < REPORTED_FROM_S else 1 + int(log2(busy_s / REPORTED_FROM_S))


@dataclass(frozen=True, slots=True)
class Policy:
    """The limit on concurrent disk jobs of a device.

    `at_most`: the limit; None for no limit. `adapts`: search for the limit with the best
    throughput.
    """

    at_most: int | None = None
    adapts: bool = False

    @classmethod
    def from_text(cls, text: str) -> Policy:
        """Read `off`, `adaptive` or a number; ValueError for anything else."""
        if text == "off":
            return cls()
        if text == "adaptive":
            return cls(adapts=True)
        if text.isascii() and text.isdecimal() and 0 < int(text) <= 1000:
            return cls(int(text))
        raise ValueError(f"{text!r} is not off, adaptive or a number of 1 to 1000")

    def __str__(self) -> str:
        return "adaptive" if self.adapts else str(self.at_most or "off")


class Search:
    """Searches for the number of concurrent jobs with the highest throughput.

    It measures the settled limit, then twice or half of it, and settles on the better one. When
    neither is better, it pauses. A measurement counts only if as many jobs run as the limit allows,
    except for `_SLACK` of its time. The limit stays between `least` and `most`; if both are equal,
    the search only measures the throughput.
    """

    def __init__(self, first: int, *, least: int = 1, most: int = AT_A_TIME_MAX) -> None:
        self.settled = first
        self.limit = first
        """The current limit: the settled limit, or a limit on trial."""
        self.bytes_per_s: float | None = None
        """The throughput at the settled limit; None before the first measurement."""
        self._least, self._most = least, most
        self._upwards = True
        self._rates: dict[int, list[float]] = {}
        self._not_before_s = 0.0
        self._pause_s = PAUSE_MIN_S
        self._stale = 0  # running jobs that started under another limit
        self._measured_from_s: float | None = None
        self._updated_s = 0.0
        self._underused_s = 0.0
        self._bytes = 0
        self._ended = 0
        self._ran_full = False

    def update(
        self, running: int, now_s: float, *, waiting: int = 0, ended_bytes: int | None = None,
        has_ended: bool = False,
    ) -> None:  # fmt: skip
        """Note how many jobs run and wait from now on.

        `ended_bytes`: the size of a job that has just succeeded. `has_ended`: a job has just ended,
        successfully or not.
        """
        if self._measured_from_s is None:
            self._stale -= has_ended and self._stale > 0
            if running == self.limit and not self._stale:
                self._measure(now_s)
            return
        if not self._ran_full:
            self._underused_s += now_s - self._updated_s
        self._updated_s, self._ran_full = now_s, running >= self.limit
        elapsed_s = now_s - self._measured_from_s
        if ended_bytes is not None:
            self._bytes += ended_bytes
            self._ended += 1
        is_first = self.limit != self.settled and self.limit not in self._rates
        if self._ended >= (self.limit if is_first else max(2 * self.limit, 3)) and elapsed_s > 0:
            self._measured_from_s = None
            limit = self.limit
            if self._underused_s <= _SLACK * elapsed_s:
                self._measured(self._bytes / elapsed_s, now_s, waiting)
            self._stale = 0 if self.limit == limit else running
            if running == self.limit and not self._stale:
                self._measure(now_s)

    def all_ended(self) -> None:
        """Note that no job is running, and discard the current measurement."""
        self._measured_from_s = None
        self._stale = 0

    def _measure(self, now_s: float) -> None:
        self._measured_from_s = self._updated_s = now_s
        self._underused_s, self._bytes, self._ended, self._ran_full = 0.0, 0, 0, True

    def _measured(self, rate: float, now_s: float, waiting: int) -> None:
        """Record a rate at the current limit, and choose the next limit to measure."""
        if self.limit == self.settled:
            known = self.bytes_per_s
            self.bytes_per_s = rate if known is None else (known + rate) / 2
        rates = self._rates.setdefault(self.limit, [])
        rates.append(rate)
        if self.limit != self.settled:
            base = self._rates[self.settled]
            if self._is_worth_it(rates, base):
                if len(rates) >= ROUNDS:
                    self._settle(self.limit, now_s)
                    return
            else:
                self._reject(now_s)
                return
            self.limit = self.settled
        elif now_s >= self._not_before_s:
            tried = 2 * self.settled if self._upwards else self.settled // 2
            tried = min(max(tried, self._least), self._most)
            if tried == self.settled:
                self._reject(now_s)
            elif waiting >= WAITING_FOR_EACH * tried:
                self._rates[self.settled] = rates[-ROUNDS:]
                self.limit = tried
        else:
            self._rates.clear()

    def _is_worth_it(self, rates: list[float], base: list[float]) -> bool:
        gain = (sum(rates) / len(rates)) / (sum(base) / len(base))
        if len(rates) < ROUNDS:
            return gain >= WORSE
        return gain >= (BETTER if self._upwards else 1 / BETTER)

    def _settle(self, limit: int, now_s: float) -> None:
        self.bytes_per_s = self._rates[limit][-1]
        self._rates = {limit: self._rates[limit]}
        self.settled = self.limit = limit
        self._pause_s = PAUSE_MIN_S
        self._not_before_s = now_s

    def _reject(self, now_s: float) -> None:
        """Return to the settled limit.

        Try the other direction next; pause after both directions have failed.
        """
        self._rates.clear()
        self.limit = self.settled
        self._upwards = not self._upwards
        if self._upwards or self.settled == self._least:
            self._upwards = True
            self._not_before_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)


class Admission(Generic[Key]):
    """The disk jobs of one device: waiting, admitted, or running.

    `request` adds a job. `request` and `end` return the jobs that are admitted now. `started` notes
    that an admitted job reads or writes: until then it may wait for other processes on this host.
    `end` removes a job in any state.
    """

    def __init__(self, policy: Policy, *, is_rotating: bool) -> None:
        self.search: Search | None = None
        if policy.adapts:
            self.search = Search(1 if is_rotating else FIRST_AT_A_TIME)
        elif policy.at_most is not None:
            self.search = Search(policy.at_most, least=policy.at_most, most=policy.at_most)
        self._queue: list[tuple[float, int, Key]] = []
        self._number = 0
        self._waiting: dict[Key, tuple[int, int]] = {}  # the size and the queue number of each
        self._admitted: dict[Key, int] = {}
        self._running: set[Key] = set()
        self.pending_bytes = 0
        """The bytes of all waiting and admitted jobs."""

    @property
    def limit(self) -> int | None:
        """How many jobs may be admitted at a time; None: any number."""
        return None if self.search is None else self.search.limit

    @property
    def waiting_count(self) -> int:
        """The number of jobs that are not admitted yet."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """The number of jobs that read or write."""
        return len(self._running)

    @property
    def bytes_per_s(self) -> float:
        """The throughput of the device; before the first measurement, `DEFAULT_BYTES_PER_S`."""
        return (self.search and self.search.bytes_per_s) or DEFAULT_BYTES_PER_S

    @property
    def busy_s(self) -> float:
        """The expected duration of all pending jobs."""
        return self.pending_bytes / self.bytes_per_s

    def request(self, key: Key, size_bytes: int, now_s: float) -> list[Key]:
        """Add a job; return the jobs to be started."""
        if key in self._waiting or key in self._admitted:
            raise ValueError(f"the disk job {key!r} was added already")
        self._number += 1
        order_s = now_s + min(size_bytes / DEFAULT_BYTES_PER_S, OVERTAKEN_MAX_S)
        heappush(self._queue, (order_s, self._number, key))
        self._waiting[key] = size_bytes, self._number
        self.pending_bytes += size_bytes
        return self._admit()

    def started(self, key: Key, now_s: float) -> None:
        """Note that an admitted job reads or writes now."""
        if key in self._admitted and key not in self._running:
            self._running.add(key)
            if self.search is not None:
                self.search.update(len(self._running), now_s)

    def end(self, key: Key, now_s: float, *, is_good: bool = True) -> list[Key]:
        """Remove a job that has ended or was abandoned; return the jobs to be started."""
        if (waited := self._waiting.pop(key, None)) is not None:
            self.pending_bytes -= waited[0]  # its entry stays in the queue until it is popped
            return []
        if (size_bytes := self._admitted.pop(key, None)) is None:
            return []
        self.pending_bytes -= size_bytes
        if key in self._running:
            self._running.discard(key)
            if self.search is not None:
                ended_bytes = size_bytes if is_good else None
                running = len(self._running)
                self.search.update(
                    running, now_s, waiting=len(self._waiting), ended_bytes=ended_bytes,
                    has_ended=True,
                )  # fmt: skip
        admitted = self._admit()
        if not self._admitted and self.search is not None:
            self.search.all_ended()
        return admitted

    def _admit(self) -> list[Key]:
        admitted = []
        while self._waiting and (self.limit is None or len(self._admitted) < self.limit):
            _, number, key = heappop(self._queue)
            if key in self._waiting and self._waiting[key][1] == number:
                self._admitted[key] = self._waiting.pop(key)[0]
                admitted.append(key)
        if not self._waiting:
            self._queue.clear()
        return admitted
