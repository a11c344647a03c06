"""`--follow` of `ciel submit` and `ciel job output`: prints what programs write to standard output
while they run.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress

from ciel.client.client import Client
from ciel.client.errors import ObjectUnreadableError
from ciel.core.refs import Reference

WHOLE_ONLY = "--follow prints outputs while they grow, and {} has whole ones"
"""Why an option cannot go with it."""


def rest_of(chunks: Iterable[bytes], start: int) -> Iterator[bytes]:
    """Yield what comes behind so many bytes of a content."""
    for chunk in chunks:
        if start < len(chunk):
            yield chunk[start:]
        start = max(0, start - len(chunk))


class Following:
    """Prints whole lines of outputs that grow, each once. A thread reads each of them."""

    def __init__(
        self, client: Client, write: Callable[[bytes], object], give_up: Callable[[], object]
    ) -> None:
        """The threads call `write`; if that raises an error, they call `give_up`, see `finish`."""
        self._client = client
        self._write = write
        self._give_up = give_up
        self._printed_bytes: defaultdict[str, int] = defaultdict(int)
        self._readers: dict[str, threading.Thread] = {}
        self._error: Exception | None = None

    def finish(self, object_id: str) -> int:
        """Wait for the last line of an output that is there; return how many bytes were printed.
        Raises what writing raised.
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
        """Raise what writing raised, if anything."""
        if self._error is not None:
            raise self._error

    def begin(self, ref: Reference, printed_bytes: int = 0) -> None:
        """Read an output that grows from now on: of its first attempt, or of another.
        `printed_bytes`: so much of it was printed by others.
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
            self._give_up()
