"""Forwards what an interactive program prints to the log of the job whose task it serves."""

from __future__ import annotations

import os
from functools import partial

from ciel.worker.attempts.scratch import Scratch
from ciel.worker.interactive.attempt import InteractiveAttempt


class Printed:
    """One standard stream of a program, over all tasks that the program serves."""

    def __init__(self, scratch: Scratch, path: str, *, is_stderr: bool) -> None:
        self._scratch = scratch
        self._path = path
        self._is_stderr = is_stderr
        self._start_bytes = 0  # where the output of the current task begins
        self._logged_bytes = 0  # how much of the file is in logs
        self._fd = -1  # opened once the program is kept for other tasks
        self._is_closed = False

    def log(self, attempt: InteractiveAttempt, *, to_the_end: bool) -> None:
        """Log new output: whole lines, or everything."""
        log_text = partial(attempt.log, is_stderr=self._is_stderr)
        self._logged_bytes = self._scratch.log_lines(
            self._logged_bytes, log_text, to_the_end=to_the_end, path=self._path
        )

    def log_rest(self, attempt: InteractiveAttempt) -> None:
        """Log what the program has written for a task that is over."""
        if self._may_have_grown():
            self.log(attempt, to_the_end=True)
        self._start_bytes = self._logged_bytes

    def tail(self) -> str:
        """Return the end of what the program has written for the current task."""
        return self._scratch.stderr_tail(self._start_bytes, self._path)

    def close(self) -> None:
        self._is_closed = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _may_have_grown(self) -> bool:
        """Whether there may be something to log.

        Every task calls this, so an open descriptor saves lookups of the path.
        """
        if self._fd < 0 and not self._is_closed:
            self._fd = self._scratch.open_printed(self._path)
        return self._fd < 0 or os.lseek(self._fd, 0, os.SEEK_END) > self._logged_bytes
