"""Follows the journal of another master: a standby has all records, and their effects, at hand.

The standby first receives a copy of the journal. When the copy is complete, it replaces all files
of the standby's own journal; the standby restores a master from them, and applies each later record
to it. It confirms records when they are durable here.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from twisted.logger import Logger

from ciel.core.events import JournalCopied, JournalCopyEnds, JournalGrew, JournalStored, Message
from ciel.core.masters import SILENT_S, Succession
from ciel.journal.directory import adopt_copy, copy_path, find_files
from ciel.journal.errors import JournalError
from ciel.journal.file_journal import FileJournal
from ciel.journal.groups import HEADER, decode_records
from ciel.master.state.machine import MasterMachine
from ciel.master.state.restoring import Restoration
from ciel.master.succession.candidacy import may_follow
from ciel.net.control import ControlPeer
from ciel.wire.errors import RefusedError

log = Logger(__name__)


class Copy:
    """A complete copy of the journal, with a master that was restored from it."""

    def __init__(self, journal: FileJournal, machine: MasterMachine) -> None:
        self.journal = journal
        self.machine = machine
        self.restoration = Restoration(machine)
        self._stored: deque[tuple[int, int]] = deque()  # numbers of our and of the master's append

    def restore(self) -> None:
        """Restore the master from the files, and open the journal. Raises JournalError."""
        for group in self.journal.groups():
            for record in group.records:
                self.restoration.apply(record, group.time_s)
        self.journal.open()

    def append(self, number: int, frames: bytes) -> None:
        """Store and apply records that the master has appended under a number."""
        self._stored.append((self.journal.append_frames(frames), number))
        now_s = time.time()
        for record in decode_records(frames):
            self.restoration.apply(record, now_s)

    def take_durable(self) -> int:
        """Return the master's number of the last append that has become durable; 0 if none has."""
        number = 0
        while self._stored and self._stored[0][0] <= self.journal.durable:
            number = self._stored.popleft()[1]
        return number


class Following:
    """Owns the copy, and the connection to the master that it comes from."""

    def __init__(
        self,
        reactor: Any,
        directory: Path,
        open_journal: Callable[[], FileJournal],
        new_machine: Callable[[], MasterMachine],
    ) -> None:
        self.copy: Copy | None = None
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
        self._peer: ControlPeer | None = None
        self._file: BinaryIO | None = None  # of the copy that is being received
        self._parts: list[bytes] = []  # of the append that is being received
        self._follows = False  # the copy is complete, and this connection continues it

    def open_existing(self) -> None:
        """Restore the copy that this standby has from before. Raises JournalError."""
        if not self._directory.is_dir() or not find_files(self._directory).paths:
            return
        copy = Copy(self._open_journal(), self._new_machine())
        copy.restore()
        if not copy.restoration.latest:
            copy.journal.close()
            raise JournalError(
                self._directory, "has the journal of a master without standbys, which a copy would "
                "replace: name another directory",
            )  # fmt: skip
        self._take(copy)

    @property
    def latest(self) -> tuple[Succession, ...]:
        """The successions that are known here; none before the copy is complete."""
        return () if self.copy is None else self.copy.restoration.latest

    @property
    def master_is_silent(self) -> bool:
        """Whether no master is connected, or it has sent nothing for a while."""
        return self._peer is None or self._peer.silent_s >= SILENT_S

    def peer_opened(self, peer: ControlPeer) -> None:
        assert peer.hello is not None
        epoch = peer.hello.about.get("epoch")
        if type(epoch) is not int or not may_follow(self.latest, epoch):
            log.warn("the master at {at} is of an earlier epoch", at=peer.address)
            peer.turn_away()
            return
        self._peer = peer
        self._follows = False
        self._parts.clear()
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
            match message:
                case JournalCopied(content) if self._file is not None:
                    self._write(content)
                case JournalCopyEnds(number):
                    self._end_copy(number)
                case JournalGrew(number, is_last_part, content):
                    self._parts.append(content)
                    if is_last_part and self.copy is not None and self._follows:
                        self.copy.append(number, b"".join(self._parts))
                        self._parts.clear()
        self._confirm()

    def peer_drained(self, peer: ControlPeer) -> None:
        """Do nothing: only short messages are sent."""

    def peer_closed(self, peer: ControlPeer, reason: str) -> None:
        if peer is self._peer:
            log.warn("lost the master: {reason}", reason=reason)
            self._peer = None
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
        assert self._file is not None
        try:
            self._file.write(content)
        except OSError as error:
            self._fail(error)

    def _end_copy(self, number: int) -> None:
        """Replace the journal by the copy that was received, and restore a master from it."""
        if self._file is None:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._drop_file()
            if self.copy is not None:
                self.copy.journal.close()
                self.copy = None
            adopt_copy(self._directory)
            journal = self._open_journal()
        except OSError as error:
            self._fail(error)
            return
        copy = Copy(journal, self._new_machine())
        copy.restore()
        self._take(copy)
        self._follows = True
        log.info("the copy is complete: {jobs} jobs", jobs=len(copy.machine.jobs))
        assert self._peer is not None
        self._peer.send(JournalStored(number))

    def _take(self, copy: Copy) -> None:
        self.copy = copy
        copy.journal.on_durable = self._confirm
        copy.journal.on_failed = self.on_failed
        self.on_copied(copy.journal)

    def _confirm(self) -> None:
        if self.copy is None or self._peer is None or not self._follows:
            return
        if number := self.copy.take_durable():
            self._peer.send(JournalStored(number))

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fail(self, error: OSError) -> None:
        self.on_failed(f"the journal {self._directory} cannot be written: {error.strerror}")
