"""What ran where and when, as a file for `chrome://tracing` and https://ui.perfetto.dev.

The file is a JSON array of events, as Google's "Trace Event Format" says: a process for each
worker, in it a row for each slot, and on that a complete event (`X`) for each attempt. Times are
the master's, in microseconds from the beginning. An attempt's arguments tell how long it waited:
for a worker (`waited_in_line_s`), and there for its inputs and a slot (`waited_on_worker_s`).
Within the bar of a task that ran several calls of functions, each of these has a bar of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ciel.client.errors import ClientError
from ciel.python import sessions

if TYPE_CHECKING:
    from ciel.client.client import Client
    from ciel.python.contents import Times


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


class CallSpan(NamedTuple):
    """A call of a function, as the program that ran it has timed it. `output`: which output of
    which task it helped to make; `begun_s` is since the epoch.
    """

    output: str
    name: str
    worker: str
    begun_s: float
    took_s: float


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
    attempts: Iterable[Attempt], slots: Mapping[str, int], now_s: float,
    calls: Sequence[CallSpan] = (), epoch_s: float = 0.0,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the events of a trace. `epoch_s`: what makes a time of the master's clock one since
    the epoch.
    """
    by_worker: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_worker.setdefault(attempt.worker, []).append(attempt)
    placed = []
    within: dict[tuple[str, int], list[CallSpan]] = {}
    for number, (worker, of_worker) in enumerate(sorted(by_worker.items()), 1):
        timed = [
            call._replace(begun_s=call.begun_s - epoch_s)
            for call in calls if call.worker == worker
        ]  # fmt: skip
        exact = _fit(of_worker, timed, within) if timed else of_worker
        placed.append((number, worker, lay_out(exact, slots.get(worker, 1), now_s)))
    first_s = min([bar.start_s for _, _, bars in placed for bar in bars], default=0.0)
    events: list[dict[str, Any]] = []
    for number, worker, bars in placed:
        events.append(_named("process_name", number, 0, f"worker {worker}"))
        rows = range(max(1, slots.get(worker, 1)))
        events += [_named("thread_name", number, row + 1, f"slot {row + 1}") for row in rows]
        events += [_complete(bar, number, first_s) for bar in bars]
        for bar in bars:
            known = within.get((bar.attempt.task, bar.attempt.attempt), ())
            if len(known) > 1:  # else its bar is that of its only call
                events += [_call_event(call, bar, number, first_s) for call in known]
    return events


def _fit(
    attempts: list[Attempt],
    calls: Iterable[CallSpan],
    within: dict[tuple[str, int], list[CallSpan]],
) -> list[Attempt]:
    """Find the attempt that ran each call: at the task that was to make its output, or at a child
    to which that was handed over. Return the attempts with the times that their calls tell, which
    are more exact than those of the reports, in the order of their ends.
    """
    by_task: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        by_task.setdefault(attempt.task, []).append(attempt)
        if attempt.parent:
            by_task.setdefault(attempt.parent, []).append(attempt)
    for call in calls:
        candidates = by_task.get(call.output.partition(":")[0])
        if candidates is not None:  # else it ended before the trace began, or is forgotten
            found = min(candidates, key=lambda attempt: _distance_s(attempt, call))
            within.setdefault((found.task, found.attempt), []).append(call)
    exact = [
        _timed_by(attempt, within.get((attempt.task, attempt.attempt))) for attempt in attempts
    ]
    return sorted(exact, key=lambda a: float("inf") if a.ended_at_s is None else a.ended_at_s)


def _distance_s(attempt: Attempt, call: CallSpan) -> float:
    """Return how far a call lies outside of the time of an attempt, as its report tells that."""
    if attempt.ended_at_s is None:
        return 0.0
    middle_s = call.begun_s + call.took_s / 2
    start_s = attempt.ended_at_s - attempt.run_s
    return max(start_s - middle_s, middle_s - attempt.ended_at_s, 0.0)


def _timed_by(attempt: Attempt, calls: list[CallSpan] | None) -> Attempt:
    """Return an attempt that lasts from the first to the last of its calls."""
    if not calls or attempt.ended_at_s is None:
        return attempt
    ended_at_s = max(call.begun_s + call.took_s for call in calls)
    begun_s = min(call.begun_s for call in calls)
    return attempt._replace(ended_at_s=ended_at_s, run_s=ended_at_s - begun_s)


def _call_event(call: CallSpan, bar: Bar, process: int, first_s: float) -> dict[str, Any]:
    start_s = min(max(call.begun_s, bar.start_s), bar.end_s)
    end_s = min(max(call.begun_s + call.took_s, start_s), bar.end_s)
    return {
        "name": call.name,
        "cat": "call",
        "ph": "X",
        "ts": round((start_s - first_s) * 1e6, 3),
        "dur": round((end_s - start_s) * 1e6, 3),
        "pid": process,
        "tid": bar.row + 1,
        "args": {"task": bar.attempt.task, "job": bar.attempt.job},
    }


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
        self._calls: dict[int, list[CallSpan]] = {}  # of each client

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
        calls = self._calls.get(id(client), [])
        epoch_s = client.ask("status")["epoch_s"] if calls else 0.0
        events = events_of(attempts, slots, now_s, calls, epoch_s)
        self._events = self._events + [{**event, "pid": event["pid"] + highest} for event in events]

    def _clients(self) -> list[Any]:
        if self._client is not None:
            return [self._client]
        return [session for session in sessions.everyone() if hasattr(session, "job_ids")]

    def note(self, client: Client, calls: Iterable[CallSpan]) -> None:
        """Take in when calls of a client ran."""
        self._calls.setdefault(id(client), []).extend(calls)

    def takes(self, client: Client) -> bool:
        """Whether what a client does belongs into it."""
        return self._client is None or self._client is client


_open: list[Trace] = []


def is_traced(client: Client) -> bool:
    """Whether a trace is open to which what a client does belongs: its calls are to be timed."""
    return any(trace.takes(client) for trace in _open)


def note_calls(client: Client, output: str, names: Sequence[str], times: Times) -> None:
    """Have the traces that are open take in when calls ran. `names`: of the functions of an output;
    the last is that of all further calls, which are elements of a map.
    """
    for trace in _open:
        if trace.takes(client) and names:
            trace.note(client, [
                CallSpan(output, names[min(place, len(names) - 1)], times.worker, *span)
                for place, span in enumerate(times.spans)
            ])  # fmt: skip


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
