"""Implements `--follow`: prints the standard output of programs while they run."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress

from ciel.client.client import Client
from ciel.client.errors import ObjectUnreadableError
from ciel.core.refs import Reference

WHOLE_ONLY = "--follow prints outputs while they grow, but {} needs complete ones"
"""Why another option excludes `--follow`."""


def rest_of(chunks: Iterable[bytes], start: int) -> Iterator[bytes]:
    """Yield content without its first `start` bytes."""
    for chunk in chunks:
        if start < len(chunk):
            yield chunk[start:]
        start = max(0, start - len(chunk))


class Following:
    """Prints whole lines of growing outputs, each once. One thread reads each output."""

    def __init__(
        self, client: Client, write: Callable[[bytes], object], give_up: Callable[[], object]
    ) -> None:
        """Reader threads call `write`. If it raises an error, they call `give_up`, and `finish`
        raises the error.
        """
        self._client = client
        self._write = write
        self._give_up = give_up
        self._printed_bytes: defaultdict[str, int] = defaultdict(int)
        self._readers: dict[str, threading.Thread] = {}
        self._error: Exception | None = None

    def finish(self, object_id: str) -> int:
        """Wait until the reader thread of a finished output has ended.

        Return how many bytes it has printed: the caller prints the rest. Raises the error of
        writing, if any.
        """
        reader = self._readers.pop(object_id, None)
        if reader is not None:
            reader.join()
        self.raise_error()
        return self._printed_bytes.pop(object_id, 0)

    @property
    def has_failed(self) -> bool:
        """Whether writing raised an error."""
        return self._error is not None

    def raise_error(self) -> None:
        """Raise the error of writing, if there was one."""
        if self._error is not None:
            raise self._error

    def begin(self, ref: Reference, printed_bytes: int = 0) -> None:
        """Start to read a growing output of a task, in its first or a later attempt.

        `printed_bytes`: how much of it the caller has printed already.
        """
        if printed_bytes:
            self._printed_bytes[ref.id] = printed_bytes
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
            # ObjectUnreadableError: the output no longer grows, or its worker was lost. The caller
            # prints the rest.
            suppress(ObjectUnreadableError),
            closing(self._client.read_growing(ref)) as reading,
        ):
            while piece := reading.read_some():
                rest += piece
                end = rest.rfind(b"\n") + 1
                self._print(ref.id, start, rest[:end])
                start, rest = start + end, rest[end:]

    def _print(self, object_id: str, start: int, lines: bytes) -> None:
        """Print lines that start at byte `start` of an output.

        Omit bytes that were printed for an earlier attempt.
        """
        new = lines[max(0, self._printed_bytes[object_id] - start) :]
        if not new or self._error is not None:
            return
        self._printed_bytes[object_id] = start + len(lines)
        try:
            self._write(new)
        except Exception as error:
            self._error = error
            self._give_up()
