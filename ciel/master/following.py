"""Follows the journal of another master: a standby has all records, and their effects, at hand.

It owns the files of the copy and the connection; `succession.copying` decides what happens to them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from twisted.logger import Logger

from ciel.core.events import Message
from ciel.core.masters import SILENT_S, Succession
from ciel.journal.directory import adopt_copy, copy_path, find_files
from ciel.journal.errors import JournalError
from ciel.journal.file_journal import FileJournal
from ciel.journal.groups import HEADER
from ciel.master.state.machine import MasterMachine
from ciel.master.succession.copying import AdoptCopy, Copy, Copying, WriteCopy
from ciel.net.control import ControlPeer
from ciel.wire.errors import RefusedError

log = Logger(__name__)


class Following:
    """Owns the copy, and the connection to the master that it comes from."""

    def __init__(
        self,
        reactor: Any,
        directory: Path,
        open_journal: Callable[[], FileJournal],
        new_machine: Callable[[], MasterMachine],
    ) -> None:
        self.journal: FileJournal | None = None
        """The journal with the copy; None before there is one."""
        self.on_lost: Callable[[], object] = lambda: None
        """Called when the connection to the master was lost."""
        self.on_copied: Callable[[FileJournal], object] = lambda journal: None
        """Called with the journal of a new copy."""
        self.on_failed: Callable[[str], object] = lambda reason: None
        """Called with a reason when the copy cannot be written."""
        self.on_refused: Callable[[RefusedError], object] = lambda error: None
        """Called when a master does not accept this standby."""
        self._reactor = reactor
        self._directory = directory
        self._open_journal = open_journal
        self._new_machine = new_machine
        self._state = Copying()
        self._peer: ControlPeer | None = None
        self._file: BinaryIO | None = None  # of the copy that is being received

    def open_existing(self) -> None:
        """Restore the copy that this standby has from before. Raises JournalError."""
        if not self._directory.is_dir() or not find_files(self._directory).paths:
            return
        journal = self._open_journal()
        copy = Copy(journal, self._new_machine())
        copy.restore()
        if not copy.restoration.latest:
            journal.close()
            raise JournalError(
                self._directory, "has the journal of a master without standbys, which a copy would "
                "replace: name another directory",
            )  # fmt: skip
        self._state.copy = copy
        self._take(journal)

    @property
    def copy(self) -> Copy | None:
        """The last complete copy."""
        return self._state.copy

    @property
    def latest(self) -> tuple[Succession, ...]:
        """The successions that are known here; none before the copy is complete."""
        return self._state.latest

    @property
    def epoch(self) -> int:
        """The epoch of the last master in the copy; 0 before the copy is complete."""
        return self._state.epoch

    @property
    def master_is_silent(self) -> bool:
        """Whether no master is connected, or it has sent nothing for a while."""
        return self._peer is None or self._peer.silent_s >= SILENT_S

    def peer_opened(self, peer: ControlPeer) -> None:
        assert peer.hello is not None
        if not self._state.opened(peer.hello.about.get("epoch")):
            log.warn("the master at {at} is of an earlier epoch", at=peer.address)
            peer.turn_away()
            return
        self._peer = peer
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.fdopen(os.open(copy_path(self._directory), flags, 0o600), "wb")
            self._file.write(HEADER)
        except OSError as error:
            self._fail(error)
        log.info("copying the journal of the master at {address}", address=peer.address)

    def peer_said(self, peer: ControlPeer, messages: list[Message]) -> None:
        if peer is not self._peer:
            return
        for message in messages:
            match self._state.said(message, time.time()):
                case WriteCopy(content):
                    self._write(content)
                case AdoptCopy(number):
                    self._adopt(number)
        self._confirm()

    def peer_drained(self, peer: ControlPeer) -> None:
        """Do nothing: only short messages are sent."""

    def peer_closed(self, peer: ControlPeer, reason: str) -> None:
        if peer is self._peer:
            log.warn("lost the master: {reason}", reason=reason)
            self._peer = None
            self._state.closed()
            self._drop_file()
            if self.copy is None and isinstance(peer.failure, RefusedError):
                self.on_refused(peer.failure)
            else:
                self.on_lost()

    def connection_refused(self, error: RefusedError) -> bool:
        """Report a refusal, which is final."""
        self.on_refused(error)
        return False

    def close(self) -> None:
        """Close the connection; the copy stays open."""
        peer, self._peer = self._peer, None
        self._drop_file()
        if peer is not None:
            peer.close()

    # --- the copy ---------------------------------------------------------------------------------

    def _write(self, content: bytes) -> None:
        if self._file is None:
            return  # it could not be created: this standby ends
        try:
            self._file.write(content)
        except OSError as error:
            self._fail(error)

    def _adopt(self, number: int) -> None:
        """Replace the journal by the copy that was received, and restore a master from it."""
        if self._file is None:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._drop_file()
            if self.journal is not None:
                self.journal.close()
                self.journal = None
            adopt_copy(self._directory)
            journal = self._open_journal()
        except OSError as error:
            self._fail(error)
            return
        copy = Copy(journal, self._new_machine())
        copy.restore()
        confirmation = self._state.adopted(copy, number)
        self._take(journal)
        log.info("the copy is complete: {jobs} jobs", jobs=len(copy.machine.jobs))
        assert self._peer is not None
        self._peer.send(confirmation)

    def _take(self, journal: FileJournal) -> None:
        self.journal = journal
        journal.on_durable = self._confirm
        journal.on_failed = self.on_failed
        self.on_copied(journal)

    def _confirm(self) -> None:
        if self._peer is not None and (confirmation := self._state.confirmation()) is not None:
            self._peer.send(confirmation)

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fail(self, error: OSError) -> None:
        self.on_failed(f"the journal {self._directory} cannot be written: {error.strerror}")
