"""The disk of a simulated master, and a journal on it.

The journal has the format and the reader of the real one (`ciel.journal.groups`). In place of its
thread there are events: a group is written, and becomes durable some time later. A crash keeps what
was written, unless the power fails: then the disk keeps any part of the data that is not durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from ciel.core.events import Message
from ciel.journal.groups import HEADER, Group, JournalReader, encode_records, seal
from ciel.testing.simulator.world import World

SECTOR_BYTES = 512


class DamagedJournalError(Exception):
    """Groups follow a damaged one, or a file that is not the last one ends in a damaged group: a
    real master would not start.
    """


class FakeFile:
    """A file: its `content` as programs read it, and how much of it a power failure cannot lose."""

    def __init__(self) -> None:
        self.content = b""
        self.safe_bytes = 0

    def lose_power(self, chance: Random) -> None:
        """Keep the durable bytes and any part of the rest: a beginning, or single sectors."""
        unsafe = self.content[self.safe_bytes :]
        kept = unsafe[: chance.randint(0, len(unsafe))]
        if chance.random() < 0.3:  # the file was extended before its sectors were written
            lost = len(unsafe) - len(kept)
            kept += bytes(chance.randint(0, lost))
        if chance.random() < 0.3 and kept:
            start = chance.randrange(len(kept))
            kept = kept[:start] + bytes(len(kept[start : start + SECTOR_BYTES]))
        self.content = self.content[: self.safe_bytes] + kept


class FakeDisk:
    """The files of one journal. They outlive the masters that write them."""

    def __init__(self) -> None:
        self.files: list[FakeFile] = []

    def lose_power(self, chance: Random) -> None:
        for file in self.files:
            file.lose_power(chance)

    def groups(self) -> Iterator[Group]:
        """Cut off the incomplete end that a crash has left, and yield the groups.

        Raises DamagedJournalError.
        """
        for file in self.files:
            reader = JournalReader(file.content)
            yield from reader.groups()
            damage, is_last = reader.damage, file is self.files[-1]
            if damage is not None and not (is_last and damage.is_tail and not reader.is_foreign):
                raise DamagedJournalError(damage.reason)
            if is_last:
                file.content = file.content[: reader.good_bytes]
                file.safe_bytes = len(file.content)

    def adopt_copy(self, content: bytes) -> None:
        """Let a durable file with groups, of a base or another journal, replace all files."""
        file = FakeFile()
        file.content = HEADER + content
        file.safe_bytes = len(file.content)
        self.files = [file]

    def begin_file(self) -> FakeFile:
        """Begin a new file, whose header is safe when this returns."""
        file = FakeFile()
        file.content = HEADER
        file.safe_bytes = len(HEADER)
        self.files.append(file)
        return file


class FakeJournal:
    """The journal of one master, until that master dies. `on_durable` is called when `durable`, the
    number of the last durable append, has grown; `followers` with each append, before it is stored.
    """

    def __init__(self, world: World[Any], disk: FakeDisk, *, is_open: bool = True) -> None:
        """Without `is_open`, the owner first reads the `groups`, and then calls `open`."""
        self.on_durable: Callable[[], object] = lambda: None
        self.followers: list[Callable[[int, bytes], object]] = []
        self.durable = 0
        self._world = world
        self._disk = disk
        self._file = disk.begin_file() if is_open else FakeFile()
        self._actions: list[Callable[[int], object]] = []  # after the next group
        self.appended = 0
        """The number of the last append."""
        self._waiting: list[bytes] = []
        self._is_writing = False
        self._is_syncing = False
        self._is_closed = False
        self._compactions = 0  # how many were begun

    def append(self, records: Sequence[Message]) -> int:
        """Store records; return the number of this append."""
        return self.append_frames(encode_records(records))

    def append_frames(self, frames: bytes) -> int:
        """Store encoded records; return the number of this append."""
        for follow in self.followers:
            follow(self.appended + 1, frames)
        self._waiting.append(frames)
        self.appended += 1
        self._write_soon()
        return self.appended

    def _write_soon(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._after(self._write)

    def groups(self) -> Iterator[Group]:
        """Yield the groups on the disk. Raises DamagedJournalError."""
        return self._disk.groups()

    def open(self) -> None:
        """Begin a new file after the existing ones."""
        self._file = self._disk.begin_file()

    def begin_file(self, done: Callable[[bytes, int], object]) -> None:
        """Continue in a new file soon, and then call `done` with the content of the files before
        it, without their headers, and with the last append in them.
        """
        self._actions.append(lambda last: self._begin_file(done, last))
        self._write_soon()

    def _begin_file(self, done: Callable[[bytes, int], object], last: int) -> None:
        self._file.safe_bytes = len(self._file.content)
        content = b"".join([file.content[len(HEADER) :] for file in self._disk.files])
        self._file = self._disk.begin_file()
        done(content, last)

    def compact(
        self, base_of: Callable[[bytes], bytes], takes_s: float, done: Callable[[], object]
    ) -> None:
        """Continue in a new file soon, let a base replace the files before it, and call `done`.

        `base_of` returns the groups of the base, by the groups of these files. `takes_s`: until the
        base is written. An earlier compaction, of the standby that became this master, is given up.
        """
        self._compactions += 1
        number = self._compactions

        def write(content: bytes, _: int) -> None:
            def adopt() -> None:
                if number == self._compactions:
                    self._adopt_base(count, base, done)

            count, base = len(self._disk.files) - 1, base_of(content)
            self._world.timeline.after(takes_s, adopt)

        self.begin_file(write)

    def _adopt_base(self, count: int, groups: bytes, done: Callable[[], object]) -> None:
        if self._is_closed:
            return  # only the owner of the directory gives the base its name
        later = self._disk.files[count:]
        self._disk.adopt_copy(groups)
        self._disk.files += later
        done()

    def close(self) -> None:
        """Stop, as at the end of the master's process: nothing more is written."""
        self._is_closed = True

    def die(self) -> None:
        """End with the master's process, which may have written a part of a group.

        Only when a group is durable, the next one is written.
        """
        self.close()
        if self._waiting and not self._is_syncing and self._world.chance.random() < 0.5:
            data = seal(b"".join(self._waiting), self._world.timeline.now_s)
            self._file.content += data[: self._world.chance.randint(0, len(data))]

    def make_durable(self) -> None:
        """Write and sync what waits at once."""
        if self._waiting:
            self._file.content += seal(b"".join(self._waiting), self._world.timeline.now_s)
            self._waiting.clear()
        self._file.safe_bytes = len(self._file.content)
        self._report(self.appended)

    def _after(self, act: Callable[..., None], *arguments: object) -> None:
        delay_s = self._world.mean(self._world.options.sync_mean_s / 2)
        self._world.timeline.after(delay_s, act, *arguments)

    def _write(self) -> None:
        if self._is_closed:
            return
        if self._waiting:
            self._file.content += seal(b"".join(self._waiting), self._world.timeline.now_s)
            self._waiting.clear()
        self._is_syncing = True
        actions, self._actions = self._actions, []
        self._after(self._sync, self.appended, actions)

    def _sync(self, last: int, actions: Sequence[Callable[[int], object]]) -> None:
        if self._is_closed:
            return
        self._is_syncing = False
        if not self._world.happens(self._world.options.lying_share):
            self._file.safe_bytes = len(self._file.content)
        for action in actions:
            action(last)
        self._is_writing = bool(self._waiting or self._actions)
        if self._is_writing:
            self._after(self._write)
        self._report(last)

    def _report(self, last: int) -> None:
        if last > self.durable:
            self.durable = last
            self.on_durable()
