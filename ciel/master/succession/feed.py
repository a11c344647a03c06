"""Decides which appends of a journal a standby still needs after the copy of its files."""

from __future__ import annotations

from collections import deque
from typing import Final

from ciel.core.events import JournalCopyEnds, JournalGrew, Message
from ciel.wire.limits import PART_BYTES

HELD_MAX_BYTES: Final = 256 << 20
"""A standby that is copied to more slowly than the journal grows by so much is dropped."""


class Feed:
    """The appends for one standby: they wait until the files were sent, and those in the files are
    left out.
    """

    def __init__(self) -> None:
        self._last_copied = -1  # the last append in the files; -1: they are not known yet
        self._held: deque[tuple[int, bytes]] | None = deque()  # appends during the copy
        self._held_bytes = 0

    @property
    def is_copying(self) -> bool:
        """Whether the files are known, and not all were sent."""
        return self._last_copied >= 0 and self._held is not None

    @property
    def is_too_slow(self) -> bool:
        """Whether too much waits for the end of the copy."""
        return self._held_bytes > HELD_MAX_BYTES

    def appended(self, number: int, frames: bytes) -> list[Message]:
        """Take an append; return the messages to send now."""
        if self._held is None:
            return _in_parts(number, frames)
        self._held.append((number, frames))
        self._held_bytes += len(frames)
        return []

    def chose_files(self, last: int) -> None:
        """Note that files will be sent which end with the append `last`."""
        self._last_copied = last

    def sent_files(self) -> list[Message]:
        """Note that all files were sent; return the messages that follow them."""
        messages: list[Message] = [JournalCopyEnds(self._last_copied)]
        held, self._held = self._held or (), None
        self._held_bytes = 0
        for number, frames in held:
            if number > self._last_copied:
                messages += _in_parts(number, frames)
        return messages


def _in_parts(number: int, frames: bytes) -> list[Message]:
    starts = range(0, len(frames), PART_BYTES)
    return [
        JournalGrew(number, start + PART_BYTES >= len(frames), frames[start : start + PART_BYTES])
        for start in starts
    ]
