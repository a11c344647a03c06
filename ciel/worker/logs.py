"""Writes what the programs of a job print to the job's log, which `GET /log/JOB` returns.

<directory>/job-<id>.log lines of `[task] text`, written while programs run and when they end

A directory belongs to one worker. It keeps the 1,000 logs that were written to last.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from twisted.internet.defer import Deferred

from ciel.core.ids import JobId
from ciel.execution.report import visible

JOBS_KEPT: Final = 1000
LOG_MAX_BYTES: Final = 64 << 20
"""Size of one log: a million programs that print must not fill the disk."""

CHUNK_BYTES: Final = 1 << 20
GROWTH_WAIT_S: Final = 20.0
"""A request for more text is answered after this time at the latest, within HTTP's idle time."""

_FULL = f"(this log is full at {LOG_MAX_BYTES >> 20} MiB; later output is missing)\n".encode()


class JobLogs:
    """Writes and reads the logs, and wakes readers that wait for one to grow."""

    def __init__(self, reactor: Any, directory: Path) -> None:
        self._reactor = reactor
        self._directory = directory
        self._waiting: dict[str, list[Deferred[None]]] = {}
        found = sorted((path.stat().st_mtime, path.name) for path in directory.glob("job-*.log"))
        self._kept = dict.fromkeys(name for _, name in found)  # the most recently written one last

    def append(self, job: JobId, task: str, text: str) -> tuple[int, int]:
        """Append text that a task's program printed, each line with the task.

        Return the offset in the log and the length, which is 0 once the log is full. Raises
        OSError.
        """
        name = _name(job)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._kept.pop(name, None)
        self._kept[name] = None
        lines = "".join([f"[{visible(task)}] {line}\n" for line in text.splitlines()]).encode()
        with open(self._directory / name, "ab") as file:
            size_bytes = file.tell()
            if size_bytes >= LOG_MAX_BYTES:
                return size_bytes, 0
            written = file.write(
                lines if size_bytes + len(lines) < LOG_MAX_BYTES else lines + _FULL
            )
        while len(self._kept) > JOBS_KEPT:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            (self._directory / oldest).unlink(missing_ok=True)
        for waiting in self._waiting.pop(job, ()):
            waiting.callback(None)
        return size_bytes, written

    def read(self, job: JobId, offset: int) -> bytes:
        """Return a log from `offset` on, at most 1 MiB; empty if there is no log."""
        try:
            with open(self._directory / _name(job), "rb") as file:
                file.seek(min(offset, os.fstat(file.fileno()).st_size))
                return file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return b""

    def grown(self, job: JobId) -> Deferred[None]:
        """Fire when a log has grown, or after 20 s. It may be cancelled."""
        waiting: Deferred[None] = Deferred(lambda cancelled: self._forget(job, cancelled))
        self._waiting.setdefault(job, []).append(waiting)
        return waiting.addTimeout(GROWTH_WAIT_S, self._reactor, lambda failure, after_s: None)

    def _forget(self, job: JobId, cancelled: Deferred[None]) -> None:
        waiting = self._waiting.get(job, [])
        waiting.remove(cancelled)
        if not waiting:
            self._waiting.pop(job, None)


def _name(job: JobId) -> str:
    return f"job-{job}.log"  # an id is a valid file name
