"""Prints or writes the outputs of the runs of a job file, and lists the failed runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ciel.cli.jobfiles.submission import Run, Submission
from ciel.cli.outcome import UsageError, say
from ciel.cli.output.files import make_directory
from ciel.cli.output.printing import (
    JSON_OUTPUT_MAX_BYTES,
    json_content,
    print_json,
    write_output,
)
from ciel.cli.output.progress import Counts
from ciel.cli.submission.elements import substitute
from ciel.cli.submission.result_files import write_whole
from ciel.client.client import Client
from ciel.client.errors import ObjectUnreadableError, TaskFailedError
from ciel.client.jobs import Job
from ciel.core.refs import Failure, Reference

_LISTED_MAX: Final = 20
_CONSEQUENCES: Final = frozenset(("DEPENDENCY_FAILED", "CANCELLED"))
"""Reasons of runs that did not start, or were ended, because of others."""


class Results:
    """The outputs of all runs. Outputs that other tasks read are not printed."""

    def __init__(self, client: Client, job: Job, submission: Submission, *, as_json: bool) -> None:
        self._client = client
        self._job = job
        self._submission = submission
        self._json = as_json
        tasks = submission.content.tasks
        self._read = {
            source.task for task in tasks for source in (*task.stdin, *task.inputs.values())
        }
        self._failures: list[str] = []
        self.failed_count = 0
        self._prevented = 0

    def clear(self) -> None:
        """Remove the files of an earlier job, and make the directories for new files."""
        for task in self._submission.content.tasks:
            for element in task.elements if task.out else ():
                path = Path(substitute(task.out, element))
                make_directory(path.parent)
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    text = f"out: cannot remove {path} of an earlier run: {error.strerror}"
                    raise UsageError(text) from None

    def counts(self) -> Counts:
        """Return the progress of the runs."""
        total, failed = len(self._submission.runs), self._job.failed_count
        done = self._job.settled_count - failed
        states = self._job.summary.counts if self._job.summary else {}
        running = min(states.get("assigned", 0), total - done - failed)
        return Counts(done, max(0, running), failed, total)

    def arriving(self) -> Iterator[tuple[Run, Reference]]:
        """Yield the runs with their results, in the order of the tasks."""
        runs = self._submission.runs
        return zip(runs, self._job.results([run.output for run in runs]), strict=True)

    def put(self, run: Run, ref: Reference) -> None:
        """Print the output of a run, or write it to its file."""
        row: dict[str, Any] = {
            "task": run.task.name, "number": run.element.number, "element": None, "object": ref.id,
        }  # fmt: skip
        if run.element.text is not None:
            row |= json_content("element", os.fsencode(run.element.text))
        if isinstance(ref, Failure):
            self._note(run, ref)
            row |= {"state": "failed", "reason": ref.reason, "story": ref.text}
        else:
            row |= {"state": "done", **self._use(run, ref)}
        if self._json:
            print_json(row)

    def _use(self, run: Run, ref: Reference) -> dict[str, Any]:
        """Write or print an output; return its fields in a line of JSON."""
        while not isinstance(ref, Failure):
            try:
                if run.task.out:
                    path = Path(substitute(run.task.out, run.element))
                    write_whole(path, self._client.read_chunks(ref))
                    return {"size_bytes": path.stat().st_size, "file": str(path)}
                if run.task.name in self._read:
                    return {"size_bytes": None}
                content = self._client.read(ref)
            except ObjectUnreadableError as error:  # its worker was lost
                ref = self._job.await_copy(error, ref)
                continue
            if not self._json:
                write_output(content)
            elif len(content) <= JSON_OUTPUT_MAX_BYTES:
                return {"size_bytes": len(content), **json_content("output", content)}
            return {"size_bytes": len(content)}
        self._note(run, ref)
        return {"state": "failed", "reason": ref.reason, "story": ref.text}

    def _note(self, run: Run, failure: Failure) -> None:
        self.failed_count += 1
        if failure.reason in _CONSEQUENCES:
            self._prevented += 1
        elif len(self._failures) < _LISTED_MAX:
            self._failures.append(f"{run.name}: {TaskFailedError(failure)}")

    def list_failures(self) -> None:
        """Print the errors of failed runs, unless JSON lines have them."""
        if not self.failed_count or self._json:
            return
        failed = self.failed_count - self._prevented
        say(f"{failed} of {len(self._submission.runs)} runs failed:")
        for text in self._failures:
            say(text)
        if more := failed - len(self._failures):
            say(f"and {more} more; ciel job info {self._job.label} shows them")
        if self._prevented:
            is_one = self._prevented == 1
            who = (
                "1 run did not end, since it needs another one"
                if is_one
                else (f"{self._prevented} runs did not end, since they need others")
            )
            say(f"{who} or the job was ended")
