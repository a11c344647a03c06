"""Writes the outputs of a Python task.

Small outputs are part of the call `exit`; large ones are written to files of the store.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ciel.python.contents import Outcome, Times, encode

if TYPE_CHECKING:
    from ciel.executors.programs.python.channel import Channel
    from ciel.executors.programs.python.objects.output_arrays import OutputArrays
    from ciel.python.packing import Buffer
    from ciel.python.task_session import MakeRegion, OutputRegion

INLINE_MAX_BYTES = 64 << 10
"""Larger objects are written to files."""


class Outputs:
    """The outputs of one task, one for each batch, and further objects that it creates."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._batch = 0  # the number of the batch that runs now
        self._arrays: OutputArrays | None = None  # the arrays of this batch
        self._published: list[OutputArrays] = []
        self._values: dict[int, str] = {}  # contents for `exit`, by batch
        self._numbers: dict[int, int] = {}  # of the outputs, by batch
        self.made_count = 0
        """How many objects the task has created; messages name each by its number among them."""

    def expect(self, batch_count: int) -> None:
        """Note how many batches there are."""
        self._numbers = {batch: batch for batch in range(batch_count)}

    def give_up(self, batches: Sequence[int]) -> list[int]:
        """Hand the outputs of batches over to other tasks; return the numbers of these outputs."""
        return [self._numbers.pop(batch) for batch in batches]

    def restart(self) -> None:
        """Renumber the remaining outputs: the task continues as another one with only these."""
        self.made_count = 0
        self._numbers = {batch: number for number, batch in enumerate(self._numbers)}

    def values(self) -> list[tuple[int, str]]:
        """Return the number and content of each output that is part of `exit`."""
        return [(self._numbers[batch], value) for batch, value in self._values.items()]

    def begin(self, batch: int) -> None:
        """Note which batch runs now."""
        self._batch = batch

    def array(self, shape: Any, dtype: Any) -> Any:
        """Return an array in the file of the output of this batch, which has only one call."""
        return self._arrays_now().array(shape, dtype)

    def region(self, make: MakeRegion, at: str | None) -> OutputRegion:
        """Return the region of another allocator in the same file; `make` makes it once."""
        return self._arrays_now().region(make, at)

    def _arrays_now(self) -> OutputArrays:
        from ciel.executors.programs.python.objects.output_arrays import OutputArrays

        if self._arrays is None:
            self._arrays = OutputArrays(self._channel, self._numbers[self._batch])
        return self._arrays

    def give_up_arrays(self) -> None:
        """Discard the file with arrays; the arrays stay as ordinary memory."""
        if self._arrays is not None:
            self._arrays.give_up()
            self._arrays = None

    def close(self) -> None:
        """Unmap the published outputs, so that the store can reuse their memory one day."""
        self._published.clear()

    @property
    def has_surviving_arrays(self) -> bool:
        """Whether an array is still referenced, so that code could change a published object."""
        return any(arrays.has_survivors for arrays in self._published)

    def publish(
        self, batch: int, outcomes: Sequence[Outcome], took_s: float, times: Times | None = None
    ) -> None:
        """Write the output of a batch."""
        arrays, self._arrays = self._arrays, None
        if arrays is not None and arrays.publish(outcomes, took_s):
            self._published.append(arrays)
            del self._numbers[batch]
            return
        self.publish_pieces(batch, encode(outcomes, took_s, times))

    def publish_pieces(self, batch: int, pieces: Sequence[Buffer]) -> None:
        """Write the output of a batch, which consists of these bytes."""
        size_bytes = sum(map(_length, pieces))
        if size_bytes <= INLINE_MAX_BYTES:
            self._values[batch] = encoded(b"".join(pieces))
            return
        number = self._numbers.pop(batch)
        reply = self._channel.call("open_output", {"index": number, "size": size_bytes})
        write(self._channel, number, reply["filename"], pieces)
        self._channel.request("close_output", {"index": number, "size": size_bytes})

    def create(self, pieces: Sequence[Buffer]) -> None:
        """Create a further object. The caller counts it in `made_count`."""
        size_bytes = sum(map(_length, pieces))
        if size_bytes <= INLINE_MAX_BYTES:
            self._channel.notify("put", {"value": encoded(b"".join(pieces))})
            return
        request = {"size": size_bytes, "digest": _digest_of(pieces)}
        reply = self._channel.call("create", request)
        if reply["filename"] is None:
            return  # the task has created the same object before
        write(self._channel, reply["index"], reply["filename"], pieces)
        self._channel.request("close_output", {"index": reply["index"], "size": size_bytes})


def _digest_of(pieces: Sequence[Buffer]) -> str:
    from xxhash import xxh3_128

    digest = xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _length(piece: Any) -> int:
    return len(piece)  # bytes, or views of bytes


def encoded(content: bytes) -> str:
    """Return bytes in base64, as messages contain them."""
    return b2a_base64(content, newline=False).decode("ascii")


def write(channel: Channel, number: int, path: str, pieces: Sequence[Buffer]) -> None:
    """Write the pieces of an output at the path that the worker has given."""
    from ciel.executors.programs.python.objects.drafts import open_draft

    draft = open_draft(channel, number, path, sum(map(_length, pieces)))
    try:
        draft.write_all(pieces)
    finally:
        draft.close()
