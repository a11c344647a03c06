"""What a worker itself tells the clients of a job, beside the results of its tasks."""

from __future__ import annotations

from typing import Final

from ciel.core.ids import JobId
from ciel.execution.report import visible
from ciel.worker.attempts.batch_attempt import Hosted
from ciel.worker.attempts.workplace import Workplace

NAMES_TOLD: Final = 3
JOBS_TOLD_MAX: Final = 10_000


class Notices:
    """The notices of one worker: each is sent once for a job, however many tasks give cause."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._told_of_files: set[JobId] = set()

    def tell_of_files(self, hosted: Hosted) -> None:
        """Tell that files are deleted, if a program made them in its private directory. Programs of
        packages and scripts expect that.
        """
        spec = hosted.task.spec
        if hosted.task.caller is None or hosted.cwd or hosted.scratch is None:
            return
        if spec.job in self._told_of_files:
            return
        placed = {name.partition("/")[0] for name in hosted.names.values()}
        names = hosted.scratch.made_files(placed)
        if not names:
            return
        if len(self._told_of_files) >= JOBS_TOLD_MAX:
            self._told_of_files.clear()
        self._told_of_files.add(spec.job)
        more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
        listed = ", ".join([visible(name) for name in names[:NAMES_TOLD]]) + more
        text = f"files made in a private directory are deleted with it: {listed}"
        self._place.log(spec, hosted.key[1], text, is_notice=True)
