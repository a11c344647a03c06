"""Writes a timeline of tasks for `chrome://tracing` and https://ui.perfetto.dev.

The file is a JSON array of events in Google's "Trace Event Format": a process for each worker, a
row in it for each slot, and on the row a complete event (`X`) for each attempt. Times are those of
the master's clock, in microseconds from the first event. The arguments of an attempt say how long
it waited for a worker (`waited_in_line_s`), and how long it then waited on the worker for its
inputs and a slot (`waited_on_worker_s`). The bar of a task of several Python calls contains a bar
for each call.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from ciel.client.data.files import whole_file
from ciel.client.errors import ClientError
from ciel.core.ids import JobId
from ciel.python import sessions
from ciel.python.contents import Times


class TracedClient(Protocol):
    """The part of a client that a trace uses."""

    job_ids: list[JobId]

    def ask(self, topic: str, argument: Any = None) -> Any: ...


class AttemptSpan(NamedTuple):
    """An attempt, as the master describes it: see `master.state.timeline`."""

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
    """A call of a function, timed by the program that ran it.

    `output`: the id of the object that contains its result. `begun_s`: when it started, in seconds
    since the epoch.
    """

    output: str
    name: str
    worker: str
    begun_s: float
    took_s: float


class Bar(NamedTuple):
    """An attempt on the row of a slot."""

    attempt: AttemptSpan
    row: int
    start_s: float
    end_s: float


def lay_out(attempts: Iterable[AttemptSpan], slots: int, now_s: float) -> list[Bar]:
    """Assign the attempts of one worker to rows.

    Attempts on a row do not overlap, except for attempts that run within their parents. A worker
    reports ends in batches, so several attempts seem to end at the same time; but the reports are
    in order. So this function goes from the last attempt to the first. It puts each on the row
    whose next attempt starts the latest, and moves its end before that start.
    """
    begins = [float("inf")] * max(1, slots)
    bars: list[Bar] = []
    rows: dict[str, Bar] = {}  # by task, for its children
    listed = list(attempts)
    for attempt in reversed([attempt for attempt in listed if attempt.slots]):
        row = max(range(len(begins)), key=lambda number: begins[number])
        reported_s = now_s if attempt.ended_at_s is None else attempt.ended_at_s
        end_s = min(reported_s, begins[row])
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
    attempts: Iterable[AttemptSpan], slots: Mapping[str, int], now_s: float,
    calls: Sequence[CallSpan] = (), epoch_s: float = 0.0,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the events of a trace.

    `epoch_s` is the difference between the time since the epoch and the time of the master's clock.
    """
    by_worker: dict[str, list[AttemptSpan]] = {}
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
            if len(known) > 1:  # the bar of a task with one call shows that call
                events += [_call_event(call, bar, number, first_s) for call in known]
    return events


def _fit(
    attempts: list[AttemptSpan],
    calls: Iterable[CallSpan],
    within: dict[tuple[str, int], list[CallSpan]],
) -> list[AttemptSpan]:
    """Find the attempt that ran each call, and return the attempts in the order of their ends.

    It is an attempt of the task that declares the output, or of a child to which that task
    delegated the output. The attempts get the times of their calls, which are more exact than the
    reports.
    """
    by_task: dict[str, list[AttemptSpan]] = {}
    for attempt in attempts:
        by_task.setdefault(attempt.task, []).append(attempt)
        if attempt.parent:
            by_task.setdefault(attempt.parent, []).append(attempt)
    for call in calls:
        candidates = by_task.get(call.output.partition(":")[0])
        if candidates is not None:  # otherwise it ended before the trace, or was removed
            found = min(candidates, key=lambda attempt: _distance_s(attempt, call))
            within.setdefault((found.task, found.attempt), []).append(call)
    exact = [
        _timed_by(attempt, within.get((attempt.task, attempt.attempt))) for attempt in attempts
    ]
    return sorted(exact, key=lambda a: float("inf") if a.ended_at_s is None else a.ended_at_s)


def _distance_s(attempt: AttemptSpan, call: CallSpan) -> float:
    """Return how far a call is outside the reported time of an attempt."""
    if attempt.ended_at_s is None:
        return 0.0
    middle_s = call.begun_s + call.took_s / 2
    start_s = attempt.ended_at_s - attempt.run_s
    return max(start_s - middle_s, middle_s - attempt.ended_at_s, 0.0)


def _timed_by(attempt: AttemptSpan, calls: list[CallSpan] | None) -> AttemptSpan:
    """Return an attempt with the time from its first to its last call."""
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
    arguments: dict[str, Any] = {
        "task": attempt.task,
        "attempt": attempt.attempt,
        "job": attempt.job,
    }
    if attempt.parent:
        arguments["parent"] = attempt.parent
    if attempt.given_at_s is not None:
        if attempt.ready_at_s:
            arguments["waited_in_line_s"] = _rounded(attempt.given_at_s - attempt.ready_at_s)
        arguments["waited_on_worker_s"] = _rounded(bar.start_s - attempt.given_at_s)
    running = attempt.ended_at_s is None
    arguments["outcome"] = attempt.fault or ("running" if running else "done")
    return {
        "name": attempt.name or attempt.executor,
        "cat": attempt.executor,
        "ph": "X",
        "ts": round((bar.start_s - first_s) * 1e6, 3),
        "dur": round((bar.end_s - bar.start_s) * 1e6, 3),
        "pid": process,
        "tid": bar.row + 1,
        "args": arguments,
    }


def _rounded(seconds: float) -> float:
    return round(max(0.0, seconds), 6)


class Trace:
    """A timeline of the jobs of some clients, in a file.

    As a context manager it writes the file at the end of the block, with the attempts that end or
    run during the block.
    """

    def __init__(self, path: str | os.PathLike[str], client: TracedClient | None = None) -> None:
        self._path = path
        self._client = client
        self._firsts: dict[int, int] = {}
        self._events: list[dict[str, Any]] = []  # of clients that were closed during the block
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
            if error is None:  # otherwise the user needs the error of the block
                raise

    def write(self) -> None:
        """Write the file; raises OSError, and as `Client.ask`."""
        before = self._events
        for client in self._clients():
            self.take(client)
        events, self._events = self._events, before
        lines = ",\n".join([json.dumps(event) for event in events])
        with whole_file(Path(self._path)) as file:
            file.write(f"[\n{lines}\n]\n".encode())

    def take(self, client: TracedClient) -> None:
        """Query the master for the attempts of a client's jobs, and add them."""
        attempts: list[AttemptSpan] = []
        slots: dict[str, int] = {}
        place: int | None = self._firsts.get(id(client), 0)
        now_s = 0.0
        while place is not None:
            page = client.ask("trace", {"jobs": client.job_ids, "first": place})
            attempts += [AttemptSpan(*span) for span in page["spans"]]
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
        found: list[Any] = [each for each in sessions.everyone() if hasattr(each, "job_ids")]
        return [client for client in found if not client.is_lost] or found

    def note(self, client: object, calls: Iterable[CallSpan]) -> None:
        """Add the times of calls of a client."""
        self._calls.setdefault(id(client), []).extend(calls)

    def takes(self, client: object) -> bool:
        """Whether this trace includes a client."""
        return self._client is None or self._client is client


_open: list[Trace] = []


def is_traced(client: object) -> bool:
    """Whether an open trace includes a client, so that its calls must be timed."""
    return any(trace.takes(client) for trace in _open)


def note_calls(client: object, output: str, names: Sequence[str], times: Times) -> None:
    """Add the times of calls to the open traces.

    `names`: the functions of an output; the last is also the name of all further calls, which are
    elements of a map.
    """
    for trace in _open:
        if trace.takes(client) and names:
            trace.note(client, [
                CallSpan(output, names[min(place, len(names) - 1)], times.worker, *span)
                for place, span in enumerate(times.spans)
            ])  # fmt: skip


def closing(client: TracedClient) -> None:
    """Add the attempts of a client to the open traces, before its connection is closed."""
    for trace in _open:
        if trace.takes(client):
            with contextlib.suppress(ClientError):
                trace.take(client)


def trace(path: str | os.PathLike[str], client: TracedClient | None = None) -> Trace:
    """Write a timeline of a client's jobs for `chrome://tracing` or Perfetto.

    It has a row for each slot, and a bar for each attempt at a task. The master remembers the last
    100,000 attempts. `with ciel.trace("out.json"):` writes the file again at the end of the block,
    with the attempts that ended or ran during the block. `client`: by default all open clients that
    have not lost their master. Raises OSError, and as `Client.ask`.
    """
    found = Trace(path, client)
    found.write()
    return found
