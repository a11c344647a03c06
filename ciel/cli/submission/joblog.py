"""Writes the file of `ciel submit --joblog`, in the format of GNU parallel.

It has a line for each finished element.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any, Final, NamedTuple, Self

from ciel.cli.outcome import UsageError
from ciel.cli.submission.elements import Element, Template
from ciel.client.client import Client
from ciel.client.jobs import Job
from ciel.client.jobs.failed_output import exit_of
from ciel.core.refs import Concrete, Failure, Reference, Sweetheart, Value

COLUMNS: Final = (
    "Seq", "Host", "Starttime", "JobRuntime", "Send", "Receive", "Exitval", "Signal", "Command",
)  # fmt: skip
_UNKNOWN_STATUS = "-1"  # as in parallel, for a program that never ran


class _Attempt(NamedTuple):
    """The last attempt of an element, from the master's trace."""

    worker: str
    start_s: float  # since the epoch
    run_s: float


class JobLog:
    """Writes the lines as results arrive; a context manager that opens and closes the file."""

    def __init__(
        self, path: str, client: Client, job: Job, template: Template, *, continues: bool = False
    ) -> None:
        """`continues`: keep the lines of an earlier run, and append new lines."""
        self._path = path
        self._mode = "ab" if continues else "wb"
        self._client = client
        self._job = job
        self._template = template
        self._first: int = client.ask("trace", {"first": None})["next"]
        self._attempts: dict[str, _Attempt] = {}  # by name of a task without a line so far
        self._hosts: dict[str, str] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._file = open(self._path, self._mode)
        except OSError as error:
            raise UsageError(f"--joblog {self._path}: {error.strerror}") from None
        if not self._file.tell():
            self._write(COLUMNS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._file is not None
        self._file.close()

    def note(self, batch: Sequence[tuple[Element, Reference]]) -> None:
        """Write a line for each of these elements, which have finished."""
        self._ask()
        for element, ref in batch:
            self._write(self._row(element, ref))
        assert self._file is not None
        self._file.flush()

    def _row(self, element: Element, ref: Reference) -> list[str]:
        attempt = self._attempts.pop(str(element.number), None)
        status, signal_number = _ending(ref)
        words, _ = self._template.fill(element)
        host = start = run = ""
        if attempt is not None:
            host = self._host_of(attempt.worker)
            start, run = f"{attempt.start_s:.3f}", f"{attempt.run_s:.3f}"
        return [
            str(element.number), host, start, run, "0", str(_size_bytes(ref)), status,
            signal_number, shlex.join(words),
        ]  # fmt: skip

    def _write(self, row: Sequence[str]) -> None:
        assert self._file is not None
        line = "\t".join([cell(text) for text in row])
        self._file.write(os.fsencode(line) + b"\n")

    def _ask(self) -> None:
        """Fetch the attempts that have ended since the last call."""
        upto: int = self._client.ask("trace", {"first": None})["next"]
        place: int | None = self._first
        while place is not None and place < upto:
            page = self._client.ask("trace", {"jobs": [self._job.id], "first": place})
            now_s = time.time() - page["now_s"]  # the time at which the master's clock was 0
            for span in page["spans"]:
                fields: dict[str, Any] = dict(zip(page["fields"], span, strict=True))
                if fields["ended_at_s"] is not None:
                    start_s = now_s + fields["ended_at_s"] - fields["run_s"]
                    self._attempts[fields["name"]] = _Attempt(
                        fields["worker"], start_s, fields["run_s"]
                    )
            place = page["next"]
        self._first = upto

    def _host_of(self, worker: str) -> str:
        if worker not in self._hosts:
            for row in self._client.ask("workers"):
                self._hosts[row["worker"]] = row["netloc"].rpartition(":")[0]
        place = self._hosts.get(worker, "")
        return socket.gethostname() if place in ("127.0.0.1", "[::1]", "localhost") else place


def cell(text: str) -> str:
    """Return a text as it stands in a column."""
    return text.replace("\t", " ").replace("\n", " ").replace("\r", " ")


def _ending(ref: Reference) -> tuple[str, str]:
    """Return the exit status and the number of the signal, as parallel writes them."""
    if not isinstance(ref, Failure):
        return "0", "0"
    status, name = exit_of(ref)
    number = getattr(signal, name, 0) if name else 0
    return status or ("0" if number else _UNKNOWN_STATUS), str(int(number))


def _size_bytes(ref: Reference) -> int:
    if isinstance(ref, Value):
        return len(ref.content)
    return (ref.size_bytes or 0) if isinstance(ref, Concrete | Sweetheart) else 0
