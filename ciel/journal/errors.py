"""The errors of the journal."""

from __future__ import annotations

from pathlib import Path

from ciel.core.errors import CielError


class JournalError(CielError):
    """Root of the errors of `ciel.journal`. `path`: the file or directory concerned."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"journal {path}: {reason}")
        self.path = path
        self.reason = reason


class JournalInUseError(JournalError):
    """Another process has this journal open. `owner`: its process id, or `?`."""

    def __init__(self, path: Path, owner: str) -> None:
        super().__init__(path, f"process {owner} uses it; end that master first")
        self.owner = owner


class JournalDamagedError(JournalError):
    """A group is damaged, and not by a crash: acknowledged work may be missing."""

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        why = f"at byte {offset:,} {reason}, which no crash leaves"
        advice = (
            "restore the file from a copy; or look at it with `ciel journal dump`, and move the "
            "journal's directory away to start without its jobs"
        )
        super().__init__(path, f"{why}; {advice}")
        self.offset = offset


class JournalFormatError(JournalError):
    """A file is not a journal, or one of a newer version of ciel."""
