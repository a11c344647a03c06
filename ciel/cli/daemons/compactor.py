"""Compacts the journal of a master while the master serves.

When the files after the base have grown enough, the journal continues in a new file, a process of
low priority writes a base from the files before it, and the journal adopts the base.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any, Final

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ciel.journal.file_journal import FileJournal

COMPACT_FROM_BYTES: Final = 64 << 20
"""Restoring a master takes about ten seconds for so many bytes of records."""
_CHECK_INTERVAL_S: Final = 1.0
_FAILED_WAITS_S: Final = 60.0
_SHOWN_MAX_LENGTH: Final = 500

log = Logger()


class Compactor:
    """Compacts a journal whenever it has grown by `from_bytes`, and to twice its base."""

    def __init__(self, reactor: Any, journal: FileJournal, from_bytes: int) -> None:
        self._reactor = reactor
        self._journal = journal
        self._from_bytes = from_bytes
        self._not_before_s = 0.0
        self._is_busy = False
        self._process: subprocess.Popen[bytes] | None = None
        self._timer = LoopingCall(self._check)
        self._timer.clock = reactor
        self._timer.start(_CHECK_INTERVAL_S, now=False)

    def close(self) -> None:
        """Stop; a process that writes a base ends without one."""
        if self._timer.running:
            self._timer.stop()
        if self._process is not None:
            self._process.kill()

    def _check(self) -> None:
        added_bytes = self._journal.added_bytes
        is_due = added_bytes >= max(self._from_bytes, self._journal.base_bytes)
        if is_due and not self._is_busy and self._reactor.seconds() >= self._not_before_s:
            self._is_busy = True
            self._journal.begin_file(self._begun)

    def _begun(self, number: int, last: int) -> None:
        if not number:
            self._failed("a new file cannot be created")
        elif self._timer.running:
            name = "ciel-journal-compaction"
            threading.Thread(target=self._write, args=(number,), name=name, daemon=True).start()

    def _write(self, number: int) -> None:
        """Run the process that writes a base, and wait for it in this thread."""
        command = [sys.executable, "-P", "-m", "ciel.master.compaction"]
        try:
            self._process = process = subprocess.Popen(
                [*command, str(self._journal.directory), str(number)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            assert process.stdin is not None
            assert process.stderr is not None
            with process.stdin:  # its end tells the process that this master has ended
                reason = process.stderr.read().decode(errors="replace")[-_SHOWN_MAX_LENGTH:]
                status = process.wait()
        except OSError as error:
            reason, status = str(error), 1
        self._process = None
        if self._timer.running:
            self._reactor.callFromThread(self._written, number, status, reason.strip())

    def _written(self, number: int, status: int, reason: str) -> None:
        if status:
            self._failed(reason or f"its process ended with status {status}")
        elif self._timer.running:
            before_bytes = self._journal.base_bytes + self._journal.added_bytes
            self._journal.adopt_base(number, lambda why: self._adopted(why, before_bytes))

    def _adopted(self, reason: str, before_bytes: int) -> None:
        if reason:
            self._failed(reason)
            return
        self._is_busy = False
        after_bytes = self._journal.base_bytes + self._journal.added_bytes
        log.info("journal: compacted {before:,} to {after:,} bytes", before=before_bytes,
                 after=after_bytes)  # fmt: skip

    def _failed(self, reason: str) -> None:
        log.error("journal: it could not be compacted: {reason}", reason=reason)
        self._is_busy = False
        self._not_before_s = self._reactor.seconds() + _FAILED_WAITS_S
