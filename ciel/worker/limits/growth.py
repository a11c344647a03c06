"""Limits what running programs write, so that none fills a device.

A program writes its outputs and its standard error to files without asking the worker, and a limit
of the kernel (RLIMIT_FSIZE) would also apply to its private files. So the worker checks the files
in intervals: it charges outputs to the store, and kills a program that has no room; it frees the
blocks at the beginning of a long standard error. A program can exceed its limit by the bytes that
it writes in one interval.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.net.ticks import DelayedCall
from ciel.storage.errors import NoSpaceError, StorageError
from ciel.storage.interface import ObjectWriter
from ciel.storage.space import PAGE_BYTES, release_blocks
from ciel.worker.state.orders import Key

CHECK_S = 0.1
STDERR_MAX_BYTES = 16 << 20
STDERR_LEFT_BYTES = 1 << 20
"""The worker cuts a standard error of more than STDERR_MAX_BYTES to its last STDERR_LEFT_BYTES."""

log = Logger()


class GrowingFiles(NamedTuple):
    """The growing files of one attempt.

    `outputs` may change; it is empty if the store has no limit. `printed` is called in each
    interval, since there may be more text in `printed_paths`.
    """

    printed_paths: tuple[str, ...]
    outputs: Mapping[int, ObjectWriter]
    printed: Callable[[], None] | None = None


class GrowthWatch:
    """Checks the files of attempts while any runs.

    Calls `outgrown` for an attempt whose output does not fit into the store.
    """

    def __init__(self, reactor: Any, outgrown: Callable[[Key, NoSpaceError], None]) -> None:
        self._reactor = reactor
        self._outgrown = outgrown
        self._growing: dict[Key, GrowingFiles] = {}
        self._due: DelayedCall | None = None

    def add(self, key: Key, growing: GrowingFiles) -> None:
        """Start to check the files of an attempt."""
        self._growing[key] = growing
        if self._due is None:
            self._due = self._reactor.callLater(CHECK_S, self._check)

    def remove(self, key: Key) -> None:
        """Stop checking; the program of the attempt has ended."""
        self._growing.pop(key, None)

    def close(self) -> None:
        self._growing.clear()
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _check(self) -> None:
        self._due = None
        for key, growing in list(self._growing.items()):
            for path in growing.printed_paths:
                if is_too_long(path):
                    deferToThread(shorten, path).addErrback(_not_shortened)
            if growing.printed is not None:
                growing.printed()
            for output in list(growing.outputs.values()):
                try:
                    output.account()
                except NoSpaceError as error:
                    self.remove(key)
                    self._outgrown(key, error)
                    break
                except (StorageError, OSError) as error:
                    log.warn("an output of {key} cannot be checked: {error}", key=key, error=error)
        if self._growing:
            self._due = self._reactor.callLater(CHECK_S, self._check)


def _not_shortened(failure: Any) -> None:
    if not failure.check(FileNotFoundError):  # it was removed with its attempt
        log.failure("a long standard error could not be cut", failure)


def is_too_long(stderr_path: str) -> bool:
    """Whether a standard error takes more space than it may."""
    try:
        return os.stat(stderr_path, follow_symlinks=False).st_blocks * 512 > STDERR_MAX_BYTES
    except OSError:
        return False  # the program may have removed it


def shorten(stderr_path: str) -> None:
    """Free the blocks of everything but the end; the size of the file stays.

    Takes long if the file is large.
    """
    fd = os.open(stderr_path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        surplus_bytes = os.fstat(fd).st_size - STDERR_LEFT_BYTES
        release_blocks(fd, surplus_bytes // PAGE_BYTES * PAGE_BYTES)
    finally:
        os.close(fd)
