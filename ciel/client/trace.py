"""What ran where and when, as a file for `chrome://tracing` and https://ui.perfetto.dev.

The file is a JSON array of events, as Google's "Trace Event Format" says: a process for each
worker, in it a row for each slot, and on that a complete event (`X`) for each attempt. Times are
the master's, in microseconds from the beginning. An attempt's arguments tell how long it waited:
for a worker (`waited_in_line_s`), and there for its inputs and a slot (`waited_on_worker_s`).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ciel.client.errors import ClientError
from ciel.python import sessions

if TYPE_CHECKING:
    from ciel.client.api import Client


class Attempt(NamedTuple):
    """What the master tells of an attempt: see `master.state.timeline`."""

    job: str
    task: str
    name: str
    executor: str
    parent: str
    attempt: int
    worker: str
    slots: int
    ready_at_s: float
    given_at_s: float | None
    ended_at_s: float | None
    run_s: float
    fault: str


class Bar(NamedTuple):
    """An attempt on its row."""

    attempt: Attempt
    row: int
    start_s: float
    end_s: float


def lay_out(attempts: Iterable[Attempt], slots: int, now_s: float) -> list[Bar]:
    """Give each attempt of one worker a row, so that no two of a row overlap but for those that run
    within their parents.

    A worker tells of ends in batches, so that several seem to end at once. They are told in their
    order; so from the last to the first, each goes to the row that is free the latest, and ends
    there when the next begins, at the latest.
    """
    begins = [float("inf")] * max(1, slots)
    bars: list[Bar] = []
    rows: dict[str, Bar] = {}  # of each task, by which its children find theirs
    listed = list(attempts)
    for attempt in reversed([attempt for attempt in listed if attempt.slots]):
        row = max(range(len(begins)), key=lambda number: begins[number])
        told_s = now_s if attempt.ended_at_s is None else attempt.ended_at_s
        end_s = min(told_s, begins[row])
        bar = Bar(attempt, row, end_s - attempt.run_s, end_s)
        begins[row] = bar.start_s
        bars.append(bar)
        rows[attempt.task] = bar
    for attempt in reversed([attempt for attempt in listed if not attempt.slots]):
        around = rows.get(attempt.parent)
        end_s = now_s if attempt.ended_at_s is None else attempt.ended_at_s
        start_s = end_s - attempt.run_s
        if around is not None:
            end_s = max(around.start_s, min(end_s, around.end_s))
            start_s = min(end_s, max(start_s, around.start_s))
        bar = Bar(attempt, 0 if around is None else around.row, start_s, end_s)
        bars.append(bar)
        rows[attempt.task] = bar
    return bars[::-1]


def events_of(
    attempts: Iterable[Attempt], slots: Mapping[str, int], now_s: float
) -> list[dict[str, Any]]:
    """Return the events of a trace."""
    by_worker: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_worker.setdefault(attempt.worker, []).append(attempt)
    placed = [
        (number, worker, lay_out(of_worker, slots.get(worker, 1), now_s))
        for number, (worker, of_worker) in enumerate(sorted(by_worker.items()), 1)
    ]
    first_s = min([bar.start_s for _, _, bars in placed for bar in bars], default=0.0)
    events: list[dict[str, Any]] = []
    for number, worker, bars in placed:
        events.append(_named("process_name", number, 0, f"worker {worker}"))
        rows = range(max(1, slots.get(worker, 1)))
        events += [_named("thread_name", number, row + 1, f"slot {row + 1}") for row in rows]
        events += [_complete(bar, number, first_s) for bar in bars]
    return events


def _named(kind: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": 0, "pid": process, "tid": row, "args": {"name": name}}


def _complete(bar: Bar, process: int, first_s: float) -> dict[str, Any]:
    attempt = bar.attempt
    told: dict[str, Any] = {"task": attempt.task, "attempt": attempt.attempt, "job": attempt.job}
    if attempt.parent:
        told["parent"] = attempt.parent
    if attempt.given_at_s is not None:
        if attempt.ready_at_s:
            told["waited_in_line_s"] = _rounded(attempt.given_at_s - attempt.ready_at_s)
        told["waited_on_worker_s"] = _rounded(bar.start_s - attempt.given_at_s)
    running = attempt.ended_at_s is None
    told["outcome"] = attempt.fault or ("running" if running else "done")
    return {
        "name": attempt.name or attempt.executor,
        "cat": attempt.executor,
        "ph": "X",
        "ts": round((bar.start_s - first_s) * 1e6, 3),
        "dur": round((bar.end_s - bar.start_s) * 1e6, 3),
        "pid": process,
        "tid": bar.row + 1,
        "args": told,
    }


def _rounded(seconds: float) -> float:
    return round(max(0.0, seconds), 6)


class Trace:
    """A file with what the jobs of some clients did. As a context: with what ends, or runs, while
    that lasts, and it is written at its end.
    """

    def __init__(self, path: str | os.PathLike[str], client: Client | None = None) -> None:
        self._path = path
        self._client = client
        self._firsts: dict[int, int] = {}
        self._events: list[dict[str, Any]] = []  # of clients that were closed meanwhile

    def __enter__(self) -> Self:
        for client in self._clients():
            self._firsts[id(client)] = client.ask("trace", {"first": None})["next"]
        self._events = []
        _open.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _open.remove(self)
        try:
            self.write()
        except (ClientError, OSError):
            if error is None:  # else that tells more
                raise

    def write(self) -> None:
        """Write the file, as it is now; raises OSError and what `Client.ask` does."""
        before = self._events
        for client in self._clients():
            self.take(client)
        events, self._events = self._events, before
        partial = f"{os.fspath(self._path)}.partial"
        try:
            with open(partial, "w", encoding="utf-8") as file:
                file.write("[\n" + ",\n".join([json.dumps(event) for event in events]) + "\n]\n")
            os.replace(partial, self._path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)

    def take(self, client: Client) -> None:
        """Take in what the jobs of a client did."""
        attempts: list[Attempt] = []
        slots: dict[str, int] = {}
        place: int | None = self._firsts.get(id(client), 0)
        now_s = 0.0
        while place is not None:
            page = client.ask("trace", {"jobs": client.job_ids, "first": place})
            attempts += [Attempt(*span) for span in page["spans"]]
            slots |= page["slots"]
            place, now_s = page["next"], page["now_s"]
        highest = max([event["pid"] for event in self._events], default=0)
        events = events_of(attempts, slots, now_s)
        self._events = self._events + [{**event, "pid": event["pid"] + highest} for event in events]

    def _clients(self) -> list[Any]:
        if self._client is not None:
            return [self._client]
        return [session for session in sessions.everyone() if hasattr(session, "job_ids")]

    def takes(self, client: Client) -> bool:
        """Whether what a client does belongs into it."""
        return self._client is None or self._client is client


_open: list[Trace] = []


def closing(client: Client) -> None:
    """Have the traces that are open take in what a client did, before nobody can be asked."""
    for trace in _open:
        if trace.takes(client):
            with contextlib.suppress(ClientError):
                trace.take(client)


def trace(path: str | os.PathLike[str], client: Client | None = None) -> Trace:
    """Write a file for `chrome://tracing` or Perfetto with what the jobs of a client did so far: a
    row for each slot, a bar for each attempt at a task. The master remembers its last 100,000.

    With `with ciel.trace("out.json"):` the file is written (again) at the end, with what ended or
    ran in between. `client`: by default all that are open. Raises OSError and what `Client.ask`
    does.
    """
    found = Trace(path, client)
    found.write()
    return found
