"""Decides when an array stops early: `--halt now,fail=3`, `--halt soon,success=10%`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ciel.client.jobs import Job

BY_MAX_FAILS = "(max-fails)"
"""The end of the reason for which the master cancels a job of which too many tasks have failed."""
_FORM = re.compile(r"(now|soon),(fail|success|done)=(\d{1,9})(%?)", re.ASCII)


class Halt(NamedTuple):
    """The end of an array after `amount` elements that failed, succeeded, or did either.

    `kind`: which of them count. `is_share`: the amount is a percentage of all elements. With
    `is_now`, running programs are ended; otherwise they go on, and no others are started. `option`:
    what the user wrote.
    """

    is_now: bool
    kind: str
    amount: int
    is_share: bool
    option: str = ""

    def is_reached(self, failed: int, done: int, total: int | None) -> bool:
        """Return whether to stop. `total`: the number of elements; None while it is unknown."""
        ended = {"fail": failed, "success": done, "done": failed + done}[self.kind]
        if not self.is_share:
            return ended >= self.amount
        return total is not None and ended > 0 and ended * 100 >= self.amount * total


def read_halt(text: str) -> Halt | None:
    """Read the value of `--halt` (an argparse type); `never` is None."""
    if text == "never":
        return None
    match = _FORM.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: write never, or now or soon with a condition, as in now,fail=1, "
            "soon,fail=30% or now,success=1"
        )
    amount, is_share = int(match[3]), bool(match[4])
    if amount < 1 or (is_share and amount > 100):
        raise argparse.ArgumentTypeError(
            f"{text!r}: the number must be at least 1, and 100% at most"
        )
    return Halt(match[1] == "now", match[2], amount, is_share, f"--halt {text}")


class Halting:
    """Stops an array once one of its limits is reached."""

    def __init__(
        self, job: Job, halts: Iterable[Halt], total: Callable[[], int | None], wanted_each: int
    ) -> None:
        """`wanted_each`: how many objects the job wants for each element."""
        self._job = job
        self._halts = list(halts)
        self._total = total
        self._wanted_each = wanted_each
        self.reached: Halt | None = None

    def is_reached(self) -> bool:
        """Return whether to stop."""
        failed = self._job.failed_count // self._wanted_each
        done = self._job.settled_count // self._wanted_each - failed
        for halt in self._halts if self.reached is None else ():
            if halt.is_reached(failed, done, self._total()):
                self.reached = halt
        return self.reached is not None

    def stop(self) -> None:
        """End the programs that run, if the limit says so."""
        if self.reached is not None and self.reached.is_now:
            self._job.cancel(self.reason)

    @property
    def reason(self) -> str:
        """Why the job was stopped."""
        return f"stopped by {self.reached.option}" if self.reached is not None else ""

    def has_stopped(self, reason: str) -> bool:
        """Return whether a job that was cancelled for a reason was stopped by a limit."""
        return self.reached is not None and (reason == self.reason or reason.endswith(BY_MAX_FAILS))
