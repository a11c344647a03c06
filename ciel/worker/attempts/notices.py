"""Notices that a worker sends to the clients of a job, beside the results of its tasks."""

from __future__ import annotations

from typing import Final

from ciel.core.ids import JobId
from ciel.execution.executor import Task
from ciel.execution.report import visible
from ciel.worker.attempts.program_files import ProgramFiles
from ciel.worker.attempts.workplace import Workplace

NAMES_MAX: Final = 3
"""File names in one notice."""
JOBS_MAX: Final = 10_000


class Notices:
    """Sends each notice at most once for each job."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._notified: set[JobId] = set()

    def files_deleted(self, task: Task, files: ProgramFiles) -> None:
        """Notify if a program has created files in its private directory, which are deleted.

        Programs of packages and scripts expect that, so their clients get no notice.
        """
        spec = task.spec
        if task.caller is None or spec.job in self._notified:
            return
        names = files.made_files()
        if not names:
            return
        if len(self._notified) >= JOBS_MAX:
            self._notified.clear()
        self._notified.add(spec.job)
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        listed = ", ".join([visible(name) for name in names[:NAMES_MAX]]) + more
        text = (
            f"files that a program creates in its private directory are deleted with it: {listed}"
        )
        self._place.log(spec, task.attempt, text, is_notice=True)
