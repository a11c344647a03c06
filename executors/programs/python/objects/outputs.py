"""What a Python task writes: small outputs ride in the call that ends it, large ones go straight
into the store's files.
"""

from __future__ import annotations

import os
from binascii import b2a_base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ciel.python.contents import Outcome, Times, encode

if TYPE_CHECKING:
    from ciel.executors.programs.python.channel import Channel
    from ciel.executors.programs.python.objects.output_arrays import Drafts
    from ciel.python.packing import Buffer

TOLD_MAX_BYTES = 64 << 10
"""What is larger is written to a file."""
_PIECES_MAX = 1000  # that writev takes


class Outputs:
    """The outputs of one task, one for each of its lots, and what else it makes."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.drafts: Drafts | None = None  # what lies in a file of the store already
        self._values: dict[int, str] = {}  # what is to be told of lots in the end
        self._numbers: dict[int, int] = {}  # of lots, as outputs
        self.made_count = 0  # since the worker was told to go on last

    def expect(self, lot_count: int) -> None:
        """Learn how many lots there are."""
        self._numbers = {lot: lot for lot in range(lot_count)}

    def give_up(self, lots: Sequence[int]) -> list[int]:
        """Have others make lots; return which outputs they are."""
        return [self._numbers.pop(lot) for lot in lots]

    def begin_anew(self) -> None:
        """The task goes on as another, with what outputs are left."""
        self.made_count = 0
        self._numbers = {lot: number for number, lot in enumerate(self._numbers)}

    def values(self) -> list[tuple[int, str]]:
        """Return number and content of outputs, to be told with `exit`."""
        return [(self._numbers[lot], value) for lot, value in self._values.items()]

    def array(self, shape: Any, dtype: Any) -> Any:
        """Return an array that lies where the only lot is to be written."""
        from ciel.executors.programs.python.objects.output_arrays import Drafts

        if self.drafts is None:
            self.drafts = Drafts(self._channel, self._numbers[0])
        return self.drafts.array(shape, dtype)

    def give_up_drafts(self) -> None:
        """Have arrays that lie in a file be ordinary ones."""
        if self.drafts is not None:
            self.drafts.give_up()
            self.drafts = None

    def publish(
        self, lot: int, outcomes: Sequence[Outcome], took_s: float, times: Times | None = None
    ) -> None:
        """Make an output of what became of some calls."""
        if self.drafts is not None and self.drafts.publish(outcomes, took_s):
            del self._numbers[lot]
            return
        self.publish_pieces(lot, encode(outcomes, took_s, times))

    def publish_pieces(self, lot: int, pieces: Sequence[Buffer]) -> None:
        """Make an output of some bytes."""
        size_bytes = sum(map(_length, pieces))
        if size_bytes <= TOLD_MAX_BYTES:
            self._values[lot] = encoded(b"".join(pieces))
            return
        number = self._numbers.pop(lot)
        reply = self._channel.reply("open_output", {"index": number, "size": size_bytes})
        write(reply["filename"], pieces)
        self._channel.ask("close_output", {"index": number, "size": size_bytes})

    def create(self, pieces: Sequence[Buffer]) -> None:
        """Make an object of its own; it is numbered among what the task has made."""
        size_bytes = sum(map(_length, pieces))
        if size_bytes <= TOLD_MAX_BYTES:
            self._channel.tell("put", {"value": encoded(b"".join(pieces))})
            return
        told = {"size": size_bytes, "digest": _digest_of(pieces)}
        reply = self._channel.reply("create", told)
        if reply["filename"] is None:
            return
        write(reply["filename"], pieces)
        self._channel.ask("close_output", {"index": reply["index"], "size": size_bytes})


def _digest_of(pieces: Sequence[Buffer]) -> str:
    from xxhash import xxh3_128

    digest = xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _length(piece: Any) -> int:
    return len(piece)  # bytes, or views of bytes


def encoded(content: bytes) -> str:
    """Return bytes as they are told."""
    return b2a_base64(content, newline=False).decode("ascii")


def write(path: str, pieces: Sequence[Buffer]) -> None:
    """Write the pieces of an object to the file that is to hold it, and nothing else."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        waiting: list[Any] = [memoryview(piece) for piece in pieces if _length(piece)]
        waiting.reverse()
        os.ftruncate(descriptor, sum(piece.nbytes for piece in waiting))
        while waiting:
            batch = waiting[: -_PIECES_MAX - 1 : -1]
            written = os.writev(descriptor, batch)
            while waiting and written >= len(waiting[-1]):
                written -= len(waiting.pop())
            if written:
                waiting[-1] = waiting[-1][written:]
    finally:
        os.close(descriptor)
