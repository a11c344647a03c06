"""Which disk jobs run now: one `Admission` for each device (CIB-40, CIB-41).

A disk that turns loses half of its speed as soon as it must serve two; one that does not is slow
when it serves only one. So there is a limit for each device: none, a number, or the number that was
measured to be best. Whoever acts says what happened and when, and begins what is returned.

The order knows sizes. A job's place is the time at which it came plus the time that it will take,
counted at `USUAL_BYTES_PER_S` and at most `PASSED_FOR_S`. So a small one passes large ones, and
whatever comes later than a job's own length after it does not pass it any more: no job waits for
more than what came before it and in that time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import log2
from typing import Generic, TypeVar

USUAL_BYTES_PER_S = 1e8  # a disk that turns; until something is measured
PASSED_FOR_S = 10.0
"""However large a job is, what comes so much later than it waits behind it."""

AT_A_TIME_MAX = 32
"""As far as is searched: such queues devices have, and so many threads are no burden."""

FIRST_AT_A_TIME = 4
"""Where the search begins on a device that does not turn: enough to keep it busy while one job
follows another, and no worse than one where that is enough (docs/measured/disk-jobs.md)."""

BETTER = 1.05
"""More at a time must be worth so much, and fewer may cost less than that: less waits for who comes
next."""

WORSE = 0.8
"""What is so much slower in the first round is not tried in a second."""

WAITING_FOR_EACH = 4
"""So many jobs must wait, for each that would run, before another number is tried: a trial that
fails is to be earned back."""

ROUNDS = 2
PAUSE_MIN_S = 10.0
PAUSE_MAX_S = 600.0
"""Between trials, doubled each time that nothing better was found."""

_SLACK = 0.25
"""For so much of a measurement fewer may run than could: a job ends before the next begins."""

TOLD_FROM_S = 0.1
"""A queue that is shorter is as good as none, for those who look from elsewhere."""

Key = TypeVar("Key", bound=Hashable)


def level_of(busy_s: float) -> int:
    """Say how long a queue is, so that telling whenever this changes is not often: 0 for none, and
    one more for each doubling.
    """
    return 0 if busy_s < TOLD_FROM_S else 1 + int(log2(busy_s / TOLD_FROM_S))


@dataclass(frozen=True, slots=True)
class Policy:
    """How many disk jobs at a time: `at_most` of them, any number if that is None, or as many as
    are best if it `adapts`.
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
    """Looks for the number of jobs at a time at which most bytes pass.

    It measures the present number and twice or half of it in turns, and keeps what is better.
    Only times count in which as many ran as could. When neither is better it rests. It stays
    between `least` and `most`, and with both the same it only measures.
    """

    def __init__(self, first: int, *, least: int = 1, most: int = AT_A_TIME_MAX) -> None:
        self.settled = first
        self.limit = first
        """What to go by now: the settled number, or the one that is being tried."""
        self.bytes_per_s: float | None = None
        """What passes at the settled number, once that was measured."""
        self._least, self._most = least, most
        self._upwards = True
        self._rates: dict[int, list[float]] = {}
        self._not_before_s = 0.0
        self._pause_s = PAUSE_MIN_S
        self._stale = 0  # how many run that began when the limit was another
        self._begun_s: float | None = None
        self._looked_s = 0.0
        self._short_s = 0.0
        self._bytes = 0
        self._ended = 0
        self._ran_full = False

    def ran(
        self, running: int, now_s: float, *, waiting: int = 0, ended_bytes: int | None = None,
        has_ended: bool = False,
    ) -> None:  # fmt: skip
        """Learn how many run from now on, and how many wait; if a job has just ended, its size
        unless that says nothing.
        """
        if self._begun_s is None:
            self._stale -= has_ended and self._stale > 0
            if running == self.limit and not self._stale:
                self._measure(now_s)
            return
        if not self._ran_full:
            self._short_s += now_s - self._looked_s
        self._looked_s, self._ran_full = now_s, running >= self.limit
        elapsed_s = now_s - self._begun_s
        if ended_bytes is not None:
            self._bytes += ended_bytes
            self._ended += 1
        is_first = self.limit != self.settled and self.limit not in self._rates
        if self._ended >= (self.limit if is_first else max(2 * self.limit, 3)) and elapsed_s > 0:
            self._begun_s = None
            limit = self.limit
            if self._short_s <= _SLACK * elapsed_s:
                self._measured(self._bytes / elapsed_s, now_s, waiting)
            self._stale = 0 if self.limit == limit else running
            if running == self.limit and not self._stale:
                self._measure(now_s)

    def ran_out(self) -> None:
        """Learn that there is nothing to do: what was being measured is worth nothing."""
        self._begun_s = None
        self._stale = 0

    def _measure(self, now_s: float) -> None:
        self._begun_s = self._looked_s = now_s
        self._short_s, self._bytes, self._ended, self._ran_full = 0.0, 0, 0, True

    def _measured(self, rate: float, now_s: float, waiting: int) -> None:
        """Take a rate at the present limit, and say what is measured next."""
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
                self._refuse(now_s)
                return
            self.limit = self.settled
        elif now_s >= self._not_before_s:
            tried = 2 * self.settled if self._upwards else self.settled // 2
            tried = min(max(tried, self._least), self._most)
            if tried == self.settled:
                self._refuse(now_s)
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

    def _refuse(self, now_s: float) -> None:
        """Go on as before; look the other way next, and rest after both."""
        self._rates.clear()
        self.limit = self.settled
        self._upwards = not self._upwards
        if self._upwards or self.settled == self._least:
            self._upwards = True
            self._not_before_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)


class Admission(Generic[Key]):
    """The disk jobs of one device that wait, were let in, or run.

    A job comes by `request`, is begun when one of the calls returns it, and leaves by `end`, at
    whatever stage. `started`: it has begun to read or write; until then it may have waited for
    others on this host.
    """

    def __init__(self, policy: Policy, *, is_rotating: bool) -> None:
        self.search: Search | None = None
        if policy.adapts:
            self.search = Search(1 if is_rotating else FIRST_AT_A_TIME)
        elif policy.at_most is not None:
            self.search = Search(policy.at_most, least=policy.at_most, most=policy.at_most)
        self._line: list[tuple[float, int, Key]] = []
        self._number = 0
        self._waiting: dict[Key, tuple[int, int]] = {}  # sizes, and numbers in the line
        self._begun: dict[Key, int] = {}
        self._running: set[Key] = set()
        self.pending_bytes = 0
        """Of all that wait or were begun."""

    @property
    def limit(self) -> int | None:
        """How many may be begun now; None: any number."""
        return None if self.search is None else self.search.limit

    @property
    def waiting_count(self) -> int:
        """How many were not begun yet."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """How many read or write."""
        return len(self._running)

    @property
    def bytes_per_s(self) -> float:
        """What passes, as far as it is known."""
        return (self.search and self.search.bytes_per_s) or USUAL_BYTES_PER_S

    @property
    def busy_s(self) -> float:
        """About how long what is pending will take."""
        return self.pending_bytes / self.bytes_per_s

    def request(self, key: Key, size_bytes: int, now_s: float) -> list[Key]:
        """Have a job wait; return those that are to begin."""
        if key in self._waiting or key in self._begun:
            raise ValueError(f"the disk job {key!r} is there already")
        self._number += 1
        place_s = now_s + min(size_bytes / USUAL_BYTES_PER_S, PASSED_FOR_S)
        heappush(self._line, (place_s, self._number, key))
        self._waiting[key] = size_bytes, self._number
        self.pending_bytes += size_bytes
        return self._begin()

    def started(self, key: Key, now_s: float) -> None:
        """Learn that a job that was begun runs now."""
        if key in self._begun and key not in self._running:
            self._running.add(key)
            if self.search is not None:
                self.search.ran(len(self._running), now_s)

    def end(self, key: Key, now_s: float, *, is_good: bool = True) -> list[Key]:
        """Forget a job, which has ended or was given up; return those that are to begin."""
        if (waited := self._waiting.pop(key, None)) is not None:
            self.pending_bytes -= waited[0]  # its place in the line stays until it is met
            return []
        if (size_bytes := self._begun.pop(key, None)) is None:
            return []
        self.pending_bytes -= size_bytes
        if key in self._running:
            self._running.discard(key)
            if self.search is not None:
                ended_bytes = size_bytes if is_good else None
                running = len(self._running)
                self.search.ran(
                    running, now_s, waiting=len(self._waiting), ended_bytes=ended_bytes,
                    has_ended=True,
                )  # fmt: skip
        begun = self._begin()
        if not self._begun and self.search is not None:
            self.search.ran_out()
        return begun

    def _begin(self) -> list[Key]:
        begun = []
        while self._waiting and (self.limit is None or len(self._begun) < self.limit):
            _, number, key = heappop(self._line)
            if key in self._waiting and self._waiting[key][1] == number:
                self._begun[key] = self._waiting.pop(key)[0]
                begun.append(key)
        if not self._waiting:
            self._line.clear()
        return begun
