"""`ciel submit --follow`: prints what programs write to standard output while they run."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing, suppress

from ciel.client.client import Client
from ciel.client.errors import ObjectUnreadableError
from ciel.client.jobs import Job
from ciel.core.refs import Reference


class Following:
    """Prints whole lines of outputs that grow, each once. A thread reads each of them."""

    def __init__(self, client: Client, job: Job, write: Callable[[bytes], object]) -> None:
        """The threads call `write`. If that raises an error, the job is cancelled; see `finish`."""
        self._client = client
        self._job = job
        self._write = write
        self._printed_bytes: defaultdict[str, int] = defaultdict(int)
        self._readers: dict[str, threading.Thread] = {}
        self._error: Exception | None = None
        job.on_growing = self._begin

    def finish(self, object_id: str) -> int:
        """Wait for the last line of an output that is there; return how many bytes were printed.
        Raises what writing raised.
        """
        reader = self._readers.pop(object_id, None)
        if reader is not None:
            reader.join()
        self.raise_error()
        return self._printed_bytes.pop(object_id, 0)

    def raise_error(self) -> None:
        """Raise what writing raised, if anything."""
        if self._error is not None:
            raise self._error

    def _begin(self, ref: Reference) -> None:
        """Read an output that grows from now on: of its first attempt, or of another."""
        before = self._readers.get(ref.id)
        reader = threading.Thread(
            target=self._follow, args=(ref, before), name="ciel-following", daemon=True
        )
        self._readers[ref.id] = reader
        reader.start()

    def _follow(self, ref: Reference, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        start, rest = 0, b""
        with (
            suppress(ObjectUnreadableError),  # it is whole by now, or its worker was lost
            closing(self._client.read_growing(ref)) as reading,
        ):
            while piece := reading.read_some():
                rest += piece
                end = rest.rfind(b"\n") + 1
                self._print(ref.id, start, rest[:end])
                start, rest = start + end, rest[end:]

    def _print(self, object_id: str, start: int, lines: bytes) -> None:
        """Print lines that begin at a place of an output, unless an earlier attempt was read so
        far.
        """
        new = lines[max(0, self._printed_bytes[object_id] - start) :]
        if not new or self._error is not None:
            return
        self._printed_bytes[object_id] = start + len(lines)
        try:
            self._write(new)
        except Exception as error:
            self._error = error
            self._job.cancel("nobody reads its output")
