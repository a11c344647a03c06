"""Implements `ciel job output --follow`: prints the results of a job as they arrive."""

from __future__ import annotations

import threading
from collections import deque

from ciel.cli.jobs.queries import has_ended
from ciel.cli.outcome import say
from ciel.cli.output.following import Following, rest_of
from ciel.cli.output.printing import write_output, write_unlocked
from ciel.client.client import Client
from ciel.client.errors import ObjectUnreadableError
from ciel.client.jobs.failed_output import output_of
from ciel.core.jobs import JobSummary
from ciel.core.refs import Failure, Reference, Stream, Value
from ciel.execution.commands import can_be_followed
from ciel.wire.descriptors import read_summary


class LiveOutput:
    """Prints results of a job until it ends.

    It prints growing results line by line, and other results as a whole. `start_of` returns how
    many bytes of a result it has printed.
    """

    def __init__(self, client: Client, job: JobSummary) -> None:
        self._client = client
        self._job = job
        self._following = Following(client, self._write, client.wake)
        self._lock = threading.Lock()  # held while writing to standard output
        self._short: list[bytes] = []  # contents that the next `_flush` prints together
        self._whole: dict[str, bool] = {}  # results printed to the end: True if the run failed
        self._printed_bytes: dict[str, int] = {}  # of each other result: how many bytes are printed

    def follow(self) -> None:
        """Print until the job has ended. Ctrl-C stops the printing, not the job."""
        self._warn_if_not_growing()
        try:
            self._follow()
        except KeyboardInterrupt:
            say(f"job {self._job.number} continues; ciel job wait {self._job.number}")
            raise

    def start_of(self, ref: Reference) -> int | None:
        """Return the offset of the first byte of a finished result that is not printed.

        None: all of it is printed. Raises errors of writing.
        """
        if self._whole.get(ref.id) is isinstance(ref, Failure):
            return None
        if ref.id not in self._printed_bytes:
            self._printed_bytes[ref.id] = self._following.finish(ref.id)
        return self._printed_bytes[ref.id]

    def _warn_if_not_growing(self) -> None:
        """Print a note if the job cannot be followed.

        Then outputs can be read only after their programs have ended.
        """
        answer = self._client.ask("job", {"job": self._job.id})
        first = answer["first_task"]
        if first is None or first["executor"] != "stdinout" or first["payload"] is None:
            return
        if not (has_ended(read_summary(answer["summary"])) or can_be_followed(first["payload"])):
            say(
                f"job {self._job.number} was submitted without --follow: the output of a program "
                "is printed only when the program has ended"
            )

    def _follow(self) -> None:
        arrived: deque[Reference] = deque()
        job = self._client.attach(self._job.id, arrived)

        def is_due() -> bool:
            return bool(arrived) or job.has_ended or self._following.has_failed

        is_over = False
        while not is_over:
            self._client.wait_until(is_due, None, f"job {self._job.number}")
            is_over = job.has_ended  # all results arrive before the end of the job
            for _ in range(len(arrived)):
                self._take(arrived.popleft())
            with self._lock:
                self._flush()
            self._following.raise_error()

    def _take(self, ref: Reference) -> None:
        """Print a result, or start to follow a growing one.

        Ignore a result that is printed already. It may arrive again, for instance because it was
        recomputed after its worker was lost.
        """
        is_failure = isinstance(ref, Failure)
        if self._whole.get(ref.id) in (False, is_failure):
            return
        if isinstance(ref, Stream):
            self._following.begin(ref, self._printed_bytes.pop(ref.id, 0))
            return
        start = self.start_of(ref) or 0
        with self._lock:
            if self._print(ref, start):
                self._whole[ref.id] = is_failure
                del self._printed_bytes[ref.id]

    def _print(self, ref: Reference, start: int) -> bool:
        """Print a result, or the output of a failed run, from byte `start` on.

        Return whether it could be read to its end.
        """
        if isinstance(ref, Failure):
            self._short.append(output_of(self._client, ref).content[start:])
        elif isinstance(ref, Value):
            self._short.append(ref.content[start:])
        else:
            self._flush()
            try:
                for chunk in rest_of(self._client.read_chunks(ref), start):
                    write_output(chunk)
                    self._printed_bytes[ref.id] += len(chunk)
            except ObjectUnreadableError:
                return False  # a worker recomputes it, or the job ends without it
        return True

    def _flush(self) -> None:
        if self._short:
            write_output(b"".join(self._short))
            self._short.clear()

    def _write(self, lines: bytes) -> None:
        with self._lock:
            write_unlocked(lines)
