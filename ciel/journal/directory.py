"""The directory of a journal: its files, their order, and the lock of the process that writes.

00000001.journal, 00000002.journal, …   the records; each start of a master begins a new file
00000002.base                           the needed records of the files up to 00000002.journal
compacted                               an unfinished base
copied                                  an unfinished copy of another master's journal
lock                                    locked by the master; contains its process id

A base replaces the files up to its number. It is complete when it has its name; the files that it
replaces are removed afterwards, and ignored until then.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

from ciel.journal.errors import (
    JournalDamagedError,
    JournalError,
    JournalFormatError,
    JournalInUseError,
)
from ciel.journal.groups import Group, JournalReader

_NAME: Final = re.compile(r"([0-9]{8})\.(journal|base)")
_UNFINISHED: Final = "compacted"
_COPY: Final = "copied"


class JournalFiles(NamedTuple):
    """The files to read, in order, and the number of the next file. `replaced`: files whose content
    a base has.
    """

    paths: list[Path]
    next_number: int
    replaced: list[Path]


def journal_path(directory: Path, number: int) -> Path:
    """Return the path of the file with a number."""
    return directory / f"{number:08}.journal"


def base_path(directory: Path, number: int) -> Path:
    """Return the path of the base that replaces the files up to a number."""
    return directory / f"{number:08}.base"


def find_files(directory: Path) -> JournalFiles:
    """Find the files of a journal; raises JournalError if a file is missing."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise JournalError(directory, f"cannot be listed: {error.strerror}") from None
    bases: list[int] = []
    numbers: list[int] = []
    for name in names:
        if match := _NAME.fullmatch(name):
            (bases if match[2] == "base" else numbers).append(int(match[1]))
    base = max(bases, default=0)
    replaced = [base_path(directory, number) for number in bases if number < base]
    paths, next_number = ([base_path(directory, base)] if base else []), base + 1
    for number in sorted(numbers):
        path = journal_path(directory, number)
        if number <= base:
            replaced.append(path)
            continue
        if number != next_number:
            name = journal_path(directory, next_number).name
            raise JournalError(directory, f"the file {name} is missing")
        paths.append(path)
        next_number += 1
    return JournalFiles(paths, next_number, replaced)


def number_of(path: Path) -> int:
    """Return the number of a file."""
    return int(path.stem)


def unfinished_path(directory: Path) -> Path:
    """Return the path at which a base is written before it gets its name."""
    return directory / _UNFINISHED


def copy_path(directory: Path) -> Path:
    """Return the path at which a standby writes a copy before it replaces all files."""
    return directory / _COPY


def unfinished_paths(directory: Path) -> tuple[Path, ...]:
    """Return the paths of files that may be incomplete."""
    return unfinished_path(directory), copy_path(directory)


def adopt_copy(directory: Path) -> None:
    """Let the copy that was written replace all files. Raises OSError and JournalError."""
    os.rename(copy_path(directory), base_path(directory, find_files(directory).next_number))
    sync_directory(directory)
    for path in find_files(directory).replaced:
        path.unlink()


def adopt_base(directory: Path, number: int) -> None:
    """Let the base that was written replace the files up to a number, and remove these files.

    Raises OSError, and then the files are as before, or the base has replaced them.
    """
    os.rename(unfinished_path(directory), base_path(directory, number))
    sync_directory(directory)
    for path in find_files(directory).replaced:
        path.unlink()


def read_groups(directory: Path) -> Generator[Group, None, int]:
    """Yield the groups of all files of a journal, in order; return the size of the part of the last
    file that is intact. A last file that is cut off in its last group ends before that group.
    Raises JournalError for other damage.
    """
    paths = find_files(directory).paths
    good_bytes = 0
    for path in paths:
        reader = JournalReader(path.read_bytes())
        yield from reader.groups()
        damage, good_bytes = reader.damage, reader.good_bytes
        if damage is None:
            continue
        if reader.is_foreign:
            raise JournalFormatError(path, damage.reason)
        if path is not paths[-1] or not damage.is_tail or is_base(path):
            raise JournalDamagedError(path, damage.offset, damage.reason)
    return good_bytes


def is_base(path: Path) -> bool:
    """Whether a file is a base, which a crash cannot have left incomplete."""
    return path.suffix == ".base"


def cut_tail(path: Path, good_bytes: int) -> int:
    """Cut off what follows the intact part of a file; return the number of bytes that were cut."""
    cut_bytes = path.stat().st_size - good_bytes
    if cut_bytes:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, good_bytes)
            os.fsync(fd)
        finally:
            os.close(fd)
    return cut_bytes


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except OSError as error:
        os.close(fd)
        raise JournalError(directory, f"cannot be written: {error.strerror}") from None
    return fd


def sync_directory(directory: Path) -> None:
    """Make the names of the files in a directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
