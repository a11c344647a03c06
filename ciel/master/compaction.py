"""Writes a base: the records of a journal's files that are still needed.

A master compacts while it serves: it continues in a new file, and starts this module as a process
of low priority that reads the files before it. Only the owner of the directory's lock gives the
base its name. Memory: the state of the master at the end of these files.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ciel.core.events import Message
from ciel.journal.directory import find_files, number_of, unfinished_path
from ciel.journal.errors import JournalDamagedError, JournalError
from ciel.journal.groups import HEADER, JournalReader, encode_records, seal
from ciel.master.state.compaction import Batch, compact

GROUP_S: Final = 0.1
GROUP_RECORDS: Final = 10_000
"""Records of groups that were written within this time become one group of at most this size."""
_NICE: Final = 10


def write_base(directory: Path, number: int, go_on: Callable[[], bool] = lambda: True) -> int:
    """Write the base of the files up to a number; return its size in bytes, or 0 if `go_on` has
    returned False before the end. Raises JournalError, also if one of the files is damaged.
    """
    paths = [path for path in find_files(directory).paths if number_of(path) <= number]
    path = unfinished_path(directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(HEADER)
            for time_s, records in _merged(compact(lambda: _read(paths, go_on))):
                file.write(seal(encode_records(records), time_s))
            if not go_on():
                return 0
            file.flush()
            os.fsync(file.fileno())
            return file.tell()
    except OSError as error:
        raise JournalError(path, f"cannot be written: {error.strerror}") from None


def _read(paths: Sequence[Path], go_on: Callable[[], bool]) -> Iterator[Batch]:
    for path in paths:
        reader = JournalReader(path.read_bytes())
        for group in reader.groups():
            yield group.time_s, group.records
            if not go_on():
                return
        if reader.damage is not None:
            raise JournalDamagedError(path, reader.damage.offset, reader.damage.reason)


def _merged(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Merge batches that were written soon after each other: larger groups compress better."""
    first_s, merged = 0.0, list[Message]()
    for time_s, records in batches:
        if merged and (time_s > first_s + GROUP_S or len(merged) >= GROUP_RECORDS):
            yield first_s, merged
            merged = []
        if not merged:
            first_s = time_s
        merged += records
    if merged:
        yield first_s, merged


def main() -> int:
    """Write a base for the process whose end of standard input is open."""
    os.nice(_NICE)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    try:
        return 0 if write_base(Path(sys.argv[1]), int(sys.argv[2]), lambda: not poll.poll(0)) else 2
    except JournalError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
