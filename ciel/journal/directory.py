"""The directory of a journal: its files, their order, and the lock of the process that writes.

00000001.journal, 00000002.journal, …   the records; each start of a master begins a new file
lock                                    locked by the master; contains its process id
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ciel.journal.errors import (
    JournalDamagedError,
    JournalError,
    JournalFormatError,
    JournalInUseError,
)
from ciel.journal.groups import Group, JournalReader

_NAME: Final = re.compile(r"([0-9]{8})\.journal")


class JournalFiles(NamedTuple):
    """The files to read, in order, and the number of the next file."""

    paths: list[Path]
    next_number: int


def journal_path(directory: Path, number: int) -> Path:
    """Return the path of the file with a number."""
    return directory / f"{number:08}.journal"


def find_files(directory: Path) -> JournalFiles:
    """Find the files of a journal; raises JournalError if a file is missing."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise JournalError(directory, f"cannot be listed: {error.strerror}") from None
    numbers = sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))
    for expected, number in enumerate(numbers, 1):
        if number != expected:
            name = journal_path(directory, expected).name
            raise JournalError(directory, f"the file {name} is missing")
    return JournalFiles([journal_path(directory, n) for n in numbers], len(numbers) + 1)


def read_groups(directory: Path) -> Iterator[Group]:
    """Yield the groups of all files of a journal, in order. A last file that is cut off in its last
    group ends before that group. Raises JournalError for other damage.
    """
    paths = find_files(directory).paths
    for path in paths:
        reader = JournalReader(path.read_bytes())
        yield from reader.groups()
        damage = reader.damage
        if damage is None:
            continue
        if reader.is_foreign:
            raise JournalFormatError(path, damage.reason)
        if path is not paths[-1] or not damage.is_tail:
            raise JournalDamagedError(path, damage.offset, damage.reason)


def cut_tail(path: Path) -> int:
    """Cut off the incomplete last group of a file; return the number of bytes that were cut.

    Other damage stays.
    """
    reader = JournalReader(path.read_bytes())
    for _ in reader.groups():
        pass
    if reader.damage is None or not reader.damage.is_tail or reader.is_foreign:
        return 0
    size_bytes = path.stat().st_size
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, reader.good_bytes)
        os.fsync(fd)
    finally:
        os.close(fd)
    return size_bytes - reader.good_bytes


def lock_directory(directory: Path) -> int:
    """Create the directory if it is missing, and lock it; return the descriptor that holds the
    lock. Raises JournalInUseError and JournalError.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(
            directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError as error:
        raise JournalError(directory, f"cannot be created: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.pread(fd, 20, 0).decode(errors="replace").strip()
        os.close(fd)
        raise JournalInUseError(directory, owner or "?") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def sync_directory(directory: Path) -> None:
    """Make the names of the files in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
