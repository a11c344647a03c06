"""Shows the progress of a job in one line, which is redrawn while the job runs."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TextIO

from ciel.cli.output.tables import cut, duration
from ciel.client.errors import ClientError
from ciel.execution.report import visible

if TYPE_CHECKING:
    from ciel.client.client import Client
    from ciel.client.jobs import Job

_REDRAW_S = 0.2
_PLAIN_S = 30.0  # between two lines on a stream that is not a terminal
_POLL_S = 0.5
_RATE_OVER_S = 20.0  # the time span over which the rate is measured
_DEFAULT_COLUMNS = 80
_BAR_WIDTH = 20
_RED, _GREEN, _PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[0m"
_ERASE = "\r\x1b[K"


class Counts(NamedTuple):
    """The tasks of a job by state; `growing`: the total may still increase."""

    done: int
    running: int
    failed: int
    total: int
    growing: bool = False

    @classmethod
    def of_states(cls, counts: Mapping[str, int]) -> Counts:
        """Return the counts of a job that may grow, from the number of tasks in each state."""
        return cls(
            counts.get("done", 0), counts.get("assigned", 0), counts.get("failed", 0),
            sum(counts.values()), growing=True,
        )  # fmt: skip


class RunningCount:
    """Estimates how many tasks of a job run.

    The master counts a task as assigned even while it waits on its worker. So the estimate is at
    most the number of busy slots that workers report, divided by the slots of a task.
    """

    def __init__(self, client: Client, slots: int = 1) -> None:
        self._client = client
        self._slots = slots  # of each task
        self._busy = 0
        self._polled_s = -_POLL_S

    def among(self, assigned: int) -> int:
        """Return how many of the assigned tasks run; may query the master."""
        now_s = time.monotonic()
        if assigned and now_s >= self._polled_s + _POLL_S:
            self._polled_s = now_s
            with suppress(ClientError):  # the command raises it where it waits for results
                self._busy = sum(worker["running"] for worker in self._client.ask("workers"))
        return min(assigned, self._busy // self._slots)


def progress_text(name: str, counts: Counts, elapsed_s: float, per_s: float | None = None) -> str:
    """Return the live line.

    `per_s`: how many tasks end in a second; by default the average rate.
    """
    ended = counts.done + counts.failed
    parts = [f"{counts.done} done", f"{counts.running} running"]
    if counts.failed:
        parts.append(f"{counts.failed} failed")
    parts.append(f"{counts.total} {'so far' if counts.growing else 'in all'}")
    if per_s is None:
        per_s = ended / elapsed_s if elapsed_s > 0 else 0.0
    if ended and per_s:
        parts.append(f"{per_s:.1f}/s")
        left = counts.total - ended
        if left > 0 and not counts.growing:
            parts.append(f"{duration(left / per_s)} left")
    return f"{visible(name)}: {', '.join(parts)}"


def bar_text(counts: Counts, per_s: float | None, now: datetime) -> str:
    """Return a bar with the share of ended tasks, and the time at which the last one will end.

    `per_s`: how many tasks end in a second. A job that still grows has no bar.
    """
    if counts.growing or not counts.total:
        return ""
    ended = counts.done + counts.failed
    filled = _BAR_WIDTH * ended // counts.total
    bar = f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {100 * ended // counts.total}% "
    left = counts.total - ended
    if not (ended and per_s and left):
        return bar
    try:
        end = now + timedelta(seconds=left / per_s)
    except OverflowError:
        return bar
    form = "%H:%M:%S" if end.date() == now.date() else "%Y-%m-%d %H:%M"
    return f"{bar}ends {end.strftime(form)} "


def summary_text(name: str, counts: Counts, elapsed_s: float) -> str:
    """Return the line that stays when the job has ended."""
    failed = f", {counts.failed} failed" if counts.failed else ""
    return f"{visible(name)}: {counts.done} done{failed} in {duration(elapsed_s)}"


def coloured(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to use colours: on a terminal that has them, unless NO_COLOR is set."""
    if environ.get("NO_COLOR") or environ.get("TERM", "dumb") == "dumb":
        return False
    return stream.isatty()


class Progress:
    """Shows the progress of one job.

    On a terminal it is a line, redrawn regularly and when the terminal is resized; elsewhere a new
    line every 30 s. With `quiet` nothing is shown. Other output must be printed by `aside`, or
    written to this object, which is also a file.
    """

    def __init__(
        self,
        name: str,
        counts: Callable[[], Counts],
        *,
        quiet: bool = False,
        has_summary: bool = True,
        has_bar: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self._has_summary = has_summary
        self._has_bar = has_bar
        self._name = name
        self._counts = counts
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._live = not quiet and self._stream.isatty()
        self._has_colours = self._live and coloured(self._stream)
        self._drawn = False
        self._was_shown = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._due = threading.Event()  # set to draw before the next regular time
        self._thread = threading.Thread(
            target=self._draw_until_stopped, name="ciel-progress", daemon=True
        )
        self._start_s = time.monotonic()
        self._past: deque[tuple[float, int]] = deque([(self._start_s, 0)])
        self._restore_signal: Callable[[], object] | None = None

    @classmethod
    def of_job(cls, job: Job, *, quiet: bool = False) -> Self:
        """Return the line for a job that may grow while it runs."""
        return cls(
            job.name,
            lambda: Counts.of_states(job.summary.counts if job.summary else {}),
            quiet=quiet,
        )

    def __enter__(self) -> Self:
        if self._live and threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGWINCH, lambda number, frame: self._due.set())
            self._restore_signal = partial(signal.signal, signal.SIGWINCH, before)
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._due.set()
        if not self._quiet:
            self._thread.join()
        if self._restore_signal is not None:
            self._restore_signal()
        self._erase()
        if self._was_shown and self._has_summary and error is None:
            self._conclude()

    def aside(self, print_something: Callable[[], object]) -> None:
        """Erase the live line, and call a function that prints something."""
        with self._lock:
            self._erase()
            print_something()

    def write(self, text: str) -> None:
        """Write text, which must end with a line end, above the live line."""
        self.aside(lambda: self._stream.write(text))

    def flush(self) -> None:
        self._stream.flush()

    def _draw_until_stopped(self) -> None:
        while not self._stop.is_set():
            self._due.wait(_REDRAW_S if self._live else _PLAIN_S)
            self._due.clear()
            if not self._stop.is_set():
                counts = self._counts()  # may query the master, so without the lock
                with self._lock:
                    self._draw(counts)

    def _draw(self, counts: Counts) -> None:
        now_s = time.monotonic()
        self._past.append((now_s, counts.done + counts.failed))
        while len(self._past) > 2 and self._past[0][0] < now_s - _RATE_OVER_S:
            self._past.popleft()
        past_s, past_ended = self._past[0]
        per_s = (counts.done + counts.failed - past_ended) / max(now_s - past_s, 1e-3)
        text = progress_text(self._name, counts, now_s - self._start_s, per_s)
        if self._has_bar and self._live:
            text = bar_text(counts, per_s, datetime.now()) + text
        try:
            if self._live:
                text = self._paint(cut(text, self._columns() - 1))
            self._stream.write(f"{_ERASE}{text}" if self._live else f"ciel: {text}\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._stop.set()  # the terminal is closed; the job continues
        self._drawn, self._was_shown = self._live, True

    def _columns(self) -> int:
        """Return the current width of the terminal."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _DEFAULT_COLUMNS
        except (OSError, ValueError):
            return _DEFAULT_COLUMNS

    def _paint(self, text: str) -> str:
        if not self._has_colours:
            return text
        text = re.sub(r"\d+ failed", f"{_RED}\\g<0>{_PLAIN}", text)
        return re.sub(r"\d+ done", f"{_GREEN}\\g<0>{_PLAIN}", text)

    def _conclude(self) -> None:
        """Print the line that stays after the job has ended."""
        counts = self._counts()
        if counts.total > 1:
            text = summary_text(self._name, counts, time.monotonic() - self._start_s)
            with suppress(OSError, ValueError):
                self._stream.write(f"ciel: {self._paint(text)}\n")
                self._stream.flush()

    def _erase(self) -> None:
        if self._drawn:
            self._drawn = False
            with suppress(OSError, ValueError):
                self._stream.write(_ERASE)
                self._stream.flush()
