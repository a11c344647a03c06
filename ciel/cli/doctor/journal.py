"""The checks of a journal: access, space, the master that uses it, and its contents."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ciel.access.paths import current_path
from ciel.cli.doctor.findings import Finding, fault, note, ok
from ciel.cli.output.tables import size_text
from ciel.journal.directory import find_files, is_base
from ciel.journal.errors import JournalError
from ciel.journal.groups import JournalReader

CHECK: Final = "journal"
FREE_MIN_BYTES: Final = 64 << 20
"""Less space is a fault: a master without space for a record ends."""

_AWAY: Final = (
    "restore the file from a copy; or look at it with `ciel journal dump`, and move the directory "
    "away to start without its jobs"
)


def journal_here(environ: Mapping[str, str]) -> Path | None:
    """Return the journal of the cluster of `ciel up`; None if there is none."""
    directory = current_path(environ).resolve().parent / "journal"
    return directory if directory.is_dir() else None


def check_journal(directory: Path) -> list[Finding]:
    """Check a journal, which a master may be using."""
    try:
        return [*_access(directory), *_space(directory), *_contents(directory)]
    except JournalError as error:
        return [fault(CHECK, str(error), _AWAY)]
    except OSError as error:
        advice = "name another directory, or run this as the user of the master"
        return [fault(CHECK, f"{error.filename or directory}: {error.strerror}", advice)]


def _access(directory: Path) -> Iterator[Finding]:
    status = directory.stat()
    if status.st_uid != os.geteuid():
        what = f"{directory} belongs to user {status.st_uid}, and this is user {os.geteuid()}"
        yield fault(CHECK, what, "run the master and this command as that user")
    elif not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        yield fault(CHECK, f"{directory} is not writable", f"chmod 700 {directory}")
    if status.st_mode & 0o077:
        what = f"other users may read {directory}, which contains commands and environments"
        yield fault(CHECK, what, f"chmod 700 {directory}")


def _space(directory: Path) -> Iterator[Finding]:
    room = os.statvfs(directory)
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < FREE_MIN_BYTES:
        what = f"only {size_text(free_bytes)} are free for {directory}"
        yield fault(CHECK, what, "free space there: without space, the master ends")


def _contents(directory: Path) -> Iterator[Finding]:
    """Read all files. The master that uses the journal may be writing the last group."""
    owner = _owner(directory)
    paths = find_files(directory).paths
    size_bytes = records = faults = 0
    for path in paths:
        data = path.read_bytes()
        reader = JournalReader(data)
        size_bytes += len(data)
        records += sum(len(group.records) for group in reader.groups())
        damage = reader.damage
        if damage is None:
            continue
        if reader.is_foreign:
            faults += 1
            advice = "use the version of ciel that has written it, or another directory"
            yield fault(CHECK, f"{path}: {damage.reason}", advice)
        elif damage.is_tail and path is paths[-1] and not is_base(path):
            if not owner:
                what = f"{path} is cut off at byte {damage.offset:,}: {damage.reason}"
                yield note(CHECK, what, "the next master removes this end, which a crash has left")
        else:
            faults += 1
            yield fault(CHECK, f"{path}: at byte {damage.offset:,} {damage.reason}", _AWAY)
    if not faults:
        use = f"in use by process {owner}" if owner else "not in use"
        yield ok(CHECK, f"{directory}: {records:,} records, {size_text(size_bytes)}, {use}")


def _owner(directory: Path) -> str:
    """Return the id of the process that uses a journal; empty if there is none."""
    try:
        fd = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 20, 0).decode(errors="replace").strip() or "?"
    finally:
        os.close(fd)
    return ""
