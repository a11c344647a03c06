"""Implements `ciel job log`: prints what a job's programs wrote to standard error."""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

from ciel.cli.jobs.queries import chosen_jobs, has_ended
from ciel.cli.outcome import Status, say
from ciel.cli.output.printing import print_json, write_output
from ciel.client.client import Client
from ciel.client.data.logs import LogReader
from ciel.client.errors import ClientError, LogUnreadableError
from ciel.core.jobs import JobSummary

_FIND_WORKERS_S = 20.0  # the interval of queries for workers that have joined


class _Part(NamedTuple):
    """The part of a job's log that one worker has."""

    job: JobSummary
    reader: LogReader


Write = Callable[[_Part, list[bytes]], None]


def print_log(client: Client, args: Namespace) -> int:
    """Print the log of each job, or follow them until all have ended; return the exit status."""
    return print_lines(client, chosen_jobs(client, args.jobs), args)


def print_lines(
    client: Client, jobs: list[JobSummary], args: Namespace, tasks: Iterable[str] | None = None
) -> int:
    """Print the log of each job; with `tasks`, only the lines of these tasks."""
    write = _writer(args.json, several=len(jobs) > 1)
    lines = _Lines(write if tasks is None else _only(tasks, write))
    if args.follow:
        _Following(client, lines).follow([job for job in jobs if not has_ended(job)])
        jobs = [job for job in jobs if has_ended(job)]
    for job in jobs:
        for part in _parts(client, job):
            lines.take_rest(part)
    return Status.FAILED if lines.failed else Status.DONE


def follow(client: Client, job: JobSummary, show: Callable[[list[bytes]], None]) -> None:
    """Show the lines of a job's log as they arrive, until the job has ended."""
    lines = _Lines(lambda part, found: show(found))
    _Following(client, lines).follow([job])


def _parts(client: Client, job: JobSummary) -> list[_Part]:
    return [_Part(job, reader) for reader in client.log_readers(job.id)]


def _only(tasks: Iterable[str], write: Write) -> Write:
    """Wrap `write`, so that it gets only the lines of tasks with these names."""
    beginnings = tuple([f"[{task}] ".encode() for task in tasks])

    def write_some(part: _Part, lines: list[bytes]) -> None:
        if found := [line for line in lines if line.startswith(beginnings)]:
            write(part, found)

    return write_some


def _writer(as_json: bool, several: bool) -> Write:
    def write_json(part: _Part, lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="backslashreplace").removesuffix("\n")
            print_json({"job": part.job.number, "worker": part.reader.worker, "line": text})

    def write(part: _Part, lines: list[bytes]) -> None:
        prefix = f"job {part.job.number} ".encode() if several else b""
        write_output(b"".join([prefix + line for line in lines]))

    return write_json if as_json else write


class _Lines:
    """Joins the pieces that readers return into whole lines."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._partial: dict[_Part, bytes] = {}  # lines without an end so far
        self.failed = False

    def take(self, part: _Part, content: bytes) -> None:
        *whole, rest = (self._partial.pop(part, b"") + content).split(b"\n")
        if rest:
            self._partial[part] = rest
        if whole:
            self._write(part, [line + b"\n" for line in whole])

    def take_rest(self, part: _Part) -> None:
        """Read the rest of a part; print an error if it cannot be read."""
        try:
            while content := part.reader.read():
                self.take(part, content)
            if rest := self._partial.pop(part, b""):  # the job has ended: no newline follows
                self._write(part, [rest + b"\n"])
        except LogUnreadableError as error:
            say(str(error))
            self.failed = True


class _Following:
    """Follows logs while they grow: a thread for each worker reads, one for each job waits.

    The threads put the lines that they read, and ended jobs, on the queue `_events`.
    """

    def __init__(self, client: Client, lines: _Lines) -> None:
        self._client = client
        self._lines = lines
        self._events: SimpleQueue[tuple[_Part, bytes] | JobSummary | ClientError] = SimpleQueue()
        self._parts: dict[tuple[str, str], _Part] = {}
        self._threads: list[threading.Thread] = []

    def follow(self, jobs: Sequence[JobSummary]) -> None:
        """Print lines until all of these jobs have ended and all lines are printed."""
        unfinished = {job.id: job for job in jobs}
        for job in jobs:
            self._start(self._await_end, job)
        queried_s = -_FIND_WORKERS_S
        while unfinished:
            left_s = queried_s + _FIND_WORKERS_S - time.monotonic()
            if left_s <= 0:
                self._find_workers(unfinished.values())
                queried_s = time.monotonic()
                continue
            try:
                event = self._events.get(timeout=left_s)
            except Empty:
                continue
            if isinstance(event, JobSummary):
                self._find_workers([unfinished.pop(event.id)])
            else:
                self._take(event)
        self._finish()

    def _find_workers(self, jobs: Iterable[JobSummary]) -> None:
        for job in jobs:
            for part in _parts(self._client, job):
                if (job.id, part.reader.netloc) not in self._parts:
                    self._parts[job.id, part.reader.netloc] = part
                    self._threads.append(self._start(self._read_on, part))

    def _finish(self) -> None:
        for part in self._parts.values():
            part.reader.interrupt()
        for thread in self._threads:
            thread.join()
        while not self._events.empty():
            self._take(self._events.get())
        for part in self._parts.values():
            self._lines.take_rest(part)

    def _take(self, event: tuple[_Part, bytes] | JobSummary | ClientError) -> None:
        if isinstance(event, ClientError):
            raise event
        if not isinstance(event, JobSummary):
            self._lines.take(*event)

    def _start(self, run: Callable[..., None], subject: object) -> threading.Thread:
        thread = threading.Thread(target=run, args=(subject,), name="ciel-log", daemon=True)
        thread.start()
        return thread

    def _await_end(self, job: JobSummary) -> None:
        try:
            self._events.put(self._client.wait_for_job(job.id))
        except ClientError as error:
            self._events.put(error)

    def _read_on(self, part: _Part) -> None:
        try:
            while not part.reader.interrupted:
                if content := part.reader.read(wait=True):
                    self._events.put((part, content))
        except LogUnreadableError:
            pass  # the worker is lost, or `take_rest` reads from it once more
