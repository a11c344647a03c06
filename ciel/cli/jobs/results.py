"""Implements `ciel job output`: prints the results of jobs, in the order of their requests."""

from __future__ import annotations

import re
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

from ciel.cli.jobs.live_results import LiveOutput
from ciel.cli.jobs.queries import chosen_jobs, has_ended
from ciel.cli.outcome import OF_JOB_STATE, Status, UsageError, say
from ciel.cli.output.following import WHOLE_ONLY, rest_of
from ciel.cli.output.printing import (
    JSON_OUTPUT_MAX_BYTES,
    json_content,
    print_json,
    write_output,
)
from ciel.cli.submission.result_files import FAILED
from ciel.client.client import Client
from ciel.client.data.files import whole_file
from ciel.client.errors import ObjectUnreadableError, TaskFailedError, WaitTimeoutError
from ciel.client.jobs import LOSS_NOTICE_S
from ciel.client.jobs.failed_output import output_of
from ciel.core.jobs import JobState, JobSummary
from ciel.core.refs import Failure, Reference, Value
from ciel.execution.report import visible
from ciel.wire.references import from_json

_STORIES_MAX = 20
_FILE_NAME = re.compile(r"[\w+=@,-][\w+=@,.-]{0,99}", re.ASCII)


def print_output(client: Client, args: Namespace) -> int:
    """Print the results of each job when it has ended, or as they arrive.

    Return the exit status.
    """
    if args.follow and (args.out is not None or args.json):
        raise UsageError(WHOLE_ONLY.format("--json" if args.json else "--out"))
    jobs = chosen_jobs(client, args.jobs)
    statuses = []
    for job in jobs:
        ended, live = job, None
        if job.unsettled or not has_ended(job):
            if args.follow:
                live = LiveOutput(client, job)
                live.follow()
            ended = client.wait_for_job(job.id, with_results=True)
        directory = None
        if args.out is not None:
            directory = Path(args.out, str(ended.number)) if len(jobs) > 1 else Path(args.out)
            directory.mkdir(parents=True, exist_ok=True)
        statuses.append(_Output(client, ended, directory, args.json, live).print_all())
    return max(statuses, default=Status.DONE)


class _LostError(Exception):
    """No byte of a result could be read; a worker may recompute it."""


class _Output:
    """Prints the results of one job, and counts the failed ones."""

    def __init__(
        self,
        client: Client,
        job: JobSummary,
        directory: Path | None,
        json: bool,
        live: LiveOutput | None,
    ) -> None:
        self._client = client
        self._job = job
        self._directory = directory
        self._json = json
        self._live = live
        self._file_names: dict[str, int] = {}
        self._short: list[bytes] = []  # printed by one call
        self._failed: list[str] = []  # a line or more for each
        self._failed_count = 0
        self._has_waited = False

    def print_all(self) -> int:
        number = 0
        first: int | None = 0
        while first is not None:
            page = self._client.ask("results", {"job": self._job.id, "first": first})
            first = page["next"]
            for name, ref in from_json(page["results"]):
                number += 1
                try:
                    self._put(number, name, ref)
                except _LostError as error:
                    if self._was_recomputed():
                        number -= 1
                        first = number  # read the page again
                        break
                    self._count_failure(number, name, ref.id, {"state": "lost"}, str(error))
            self._flush()
        return self._conclude(number)

    def _put(self, number: int, name: str, ref: Reference) -> None:
        """Print a result, or write it to a file; raises _LostError if no byte of it can be read."""
        start = 0 if self._live is None else self._live.start_of(ref)
        if isinstance(ref, Failure):
            facts: dict[str, Any] = {"state": "failed", "reason": ref.reason, "story": ref.text}
            if start is not None:
                self._put_printed(number, name, ref, facts, start)
            self._count_failure(number, name, ref.id, facts, str(TaskFailedError(ref)))
        elif start is None:
            pass  # `LiveOutput` has printed it
        elif self._json or self._directory is not None:
            try:
                self._report(number, name, ref)
            except ObjectUnreadableError as error:
                raise _LostError(str(error)) from None
        elif isinstance(ref, Value):
            self._short.append(ref.content[start:])
        else:
            self._flush()
            self._print(number, name, ref, start)

    def _put_printed(
        self, number: int, name: str, failure: Failure, facts: dict[str, Any], start: int
    ) -> None:
        """Print the output of a failed run, as `ciel submit` does."""
        content = output_of(self._client, failure).content
        if not content:
            return
        if self._directory is not None:
            path = self._directory / f"{self._file_name(number, name)}{FAILED}"
            path.write_bytes(content)
        elif self._json:
            facts.update(json_content("output", content[:JSON_OUTPUT_MAX_BYTES]))
        else:
            self._flush()
            write_output(content[start:])

    def _flush(self) -> None:
        if self._short:
            write_output(b"".join(self._short))
            self._short.clear()

    def _print(self, number: int, name: str, ref: Reference, start: int) -> None:
        printed_bytes = start
        try:
            for chunk in rest_of(self._client.read_chunks(ref), start):
                write_output(chunk)
                printed_bytes += len(chunk)
        except ObjectUnreadableError as error:
            if printed_bytes == start:
                raise _LostError(str(error)) from None
            text = f"its output was lost after {printed_bytes} bytes were printed: {error}"
            self._count_failure(number, name, ref.id, {}, text)

    def _report(self, number: int, name: str, ref: Reference) -> None:
        """Write a result to its file, or print it as JSON, with its output if that is short."""
        size_bytes = (
            len(ref.content) if isinstance(ref, Value) else getattr(ref, "size_bytes", None)
        )
        facts: dict[str, Any] = {"state": "done", "size_bytes": size_bytes}
        if self._directory is not None:
            facts["file"] = self._write_file(self._directory / self._file_name(number, name), ref)
        elif size_bytes is not None and size_bytes <= JSON_OUTPUT_MAX_BYTES:
            facts.update(json_content("output", self._client.read(ref)))
        if self._json:
            self._print_line(number, name, ref.id, facts)

    def _print_line(self, number: int, name: str, object_id: str, facts: dict[str, Any]) -> None:
        line = {"job": self._job.number, "number": number, "name": name, "object": object_id}
        print_json(line | facts)

    def _was_recomputed(self) -> bool:
        """Wait until lost results are recomputed; return whether they were.

        Recomputing starts when the master declares their worker dead. Return False if this method
        has waited before, or if the job is cancelled.
        """
        if self._has_waited or self._job.state == str(JobState.CANCELLED):
            return False
        self._has_waited = True
        with suppress(WaitTimeoutError):
            self._client.wait_until(lambda: False, LOSS_NOTICE_S, "nothing")
        self._client.wait_for_job(self._job.id, with_results=True)
        return True

    def _write_file(self, path: Path, ref: Reference) -> str:
        with whole_file(path) as file:
            file.writelines(self._client.read_chunks(ref))
        return str(path)

    def _file_name(self, number: int, name: str) -> str:
        """Name a file by its task, if no other file has that name, else by its number."""
        wanted = name if _FILE_NAME.fullmatch(name) else str(number)
        while self._file_names.setdefault(wanted, number) != number:
            wanted = f"{wanted}.{number}"
        return wanted

    def _count_failure(
        self, number: int, name: str, object_id: str, facts: dict[str, Any], text: str
    ) -> None:
        self._failed_count += 1
        if self._json:
            self._print_line(number, name, object_id, facts)
        elif len(self._failed) < _STORIES_MAX:
            self._failed.append(f"{visible(name) or number}: {text}")

    def _conclude(self, total: int) -> int:
        """Print which results are missing; return the exit status."""
        job = self._job
        if self._failed:
            say(f"{self._failed_count} of {total} results of job {job.number} failed:")
            for text in self._failed:
                say(text)
            if self._failed_count > len(self._failed):
                say(f"and {self._failed_count - len(self._failed)} more; --json lists all")
        if job.handed_over:
            say(
                f"job {job.number} handed {job.handed_over} results over to the command that "
                "waited for it, so they cannot be printed again; ciel submit --detach keeps results"
            )
        short = self._failed_count or job.handed_over
        return max(Status.FAILED if short else Status.DONE, OF_JOB_STATE[job.state])
