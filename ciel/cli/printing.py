"""What is seen: tables, JSON, and one live line while a job runs.

Results go to standard output, all else to standard error.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

from ciel.cli.outcome import OutputClosedError
from ciel.execution.report import visible

if TYPE_CHECKING:
    from ciel.client.jobs import Job

_REDRAW_S = 0.2
_PLAIN_S = 30.0  # between lines where nothing can be redrawn
_ERASE = "\r\x1b[K"
_GAP = "  "  # between columns


def write_output(chunk: bytes) -> None:
    """Write to standard output as it is; raises OutputClosedError when nobody reads it."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosedError from None
    except OSError as error:
        error.filename = "standard output"
        raise


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    write_output(json.dumps(value, ensure_ascii=False).encode() + b"\n")


def print_text(text: str) -> None:
    """Print text and a line end, whatever the locale."""
    write_output(text.encode(errors="backslashreplace") + b"\n")


def screen_width() -> int | None:
    """Return how many columns there are to fill; None where it is no terminal that we write to."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None
) -> str:
    """Lay out rows under headings; columns that hold only numbers lean to the right.

    Where the table is wider than `width`, the widest columns of text are cut.
    """
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    columns = range(len(headings))
    right = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in columns]
    widths = [max([len(headings[i]), *(len(row[i]) for row in cells)]) for i in columns]
    if width is not None:
        _narrow(widths, [i for i in columns if not right[i]], headings, width)

    def line(row: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if to_right else cut(text, width).ljust(width)
            for text, width, to_right in zip(row, widths, right, strict=True)
        ]
        return _GAP.join(padded).rstrip()

    return "\n".join([line(headings), *map(line, cells)])


def _narrow(widths: list[int], texts: Sequence[int], headings: Sequence[str], width: int) -> None:
    """Take what is too wide from the widest columns of text, as long as their headings fit."""
    for _ in range(sum(widths) + len(_GAP) * (len(widths) - 1) - width):
        wide = [i for i in texts if widths[i] > len(headings[i])]
        if not wide:
            return
        widths[max(wide, key=lambda i: widths[i])] -= 1


def cut(text: str, width: int) -> str:
    """Return text that takes at most `width` columns, with a mark where something is missing."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def duration(seconds: float) -> str:
    """Write a time span in at most two units: `0.3s`, `42s`, `3m 5s`, `2h 1m`, `4d 3h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    for unit_s, unit, smaller_s, smaller in (
        (86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")
    ):  # fmt: skip
        if whole >= unit_s:
            return f"{whole // unit_s}{unit} {whole % unit_s // smaller_s}{smaller}"
    return f"{whole}s"


class Counts(NamedTuple):
    """How far a job is; `growing`: the total is what is known so far."""

    done: int
    running: int
    failed: int
    total: int
    growing: bool = False

    @classmethod
    def of_states(cls, counts: Mapping[str, int]) -> Counts:
        """Return how far a job is that may grow, by how many tasks are in which state."""
        return cls(
            counts.get("done", 0), counts.get("assigned", 0), counts.get("failed", 0),
            sum(counts.values()), growing=True,
        )  # fmt: skip


def progress_text(name: str, counts: Counts, elapsed_s: float) -> str:
    """Write the live line."""
    ended = counts.done + counts.failed
    parts = [f"{counts.done} done", f"{counts.running} running"]
    if counts.failed:
        parts.append(f"{counts.failed} failed")
    parts.append(f"{counts.total} {'so far' if counts.growing else 'in all'}")
    if ended and elapsed_s > 0:
        parts.append(f"{ended / elapsed_s:.1f}/s")
    return f"{name}: {', '.join(parts)}"


class Progress:
    """A line about a job on a terminal, redrawn while the context lasts; elsewhere a plain line now
    and then; with `quiet`, nothing. Whoever prints meanwhile does so within `aside`.
    """

    def __init__(
        self,
        name: str,
        counts: Callable[[], Counts],
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self._name = name
        self._counts = counts
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._live = not quiet and self._stream.isatty()
        self._drawn = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._draw_on, name="ciel-progress", daemon=True)
        self._start_s = time.monotonic()

    @classmethod
    def of_job(cls, job: Job, *, quiet: bool = False) -> Self:
        """Tell of a job that may grow as it runs."""
        return cls(
            job.name,
            lambda: Counts.of_states(job.summary.counts if job.summary else {}),
            quiet=quiet,
        )

    def __enter__(self) -> Self:
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
        if not self._quiet:
            self._thread.join()
        self._erase()

    def aside(self, print_something: Callable[[], None]) -> None:
        """Call it while the live line is out of the way."""
        with self._lock:
            self._erase()
            print_something()

    def _draw_on(self) -> None:
        while not self._stop.wait(_REDRAW_S if self._live else _PLAIN_S):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        text = progress_text(self._name, self._counts(), time.monotonic() - self._start_s)
        try:
            self._stream.write(f"{_ERASE}{text}" if self._live else f"ciel: {text}\n")
            self._stream.flush()
        except OSError:
            self._stop.set()  # the terminal is gone; the job goes on
        self._drawn = self._live

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write(_ERASE)
            self._stream.flush()
            self._drawn = False
