"""What running programs write, looked at while they run, so that none fills a device.

A program writes its output and its complaints into files by itself; nobody is asked before a block
is taken, and a limit of the kernel's (RLIMIT_FSIZE) would also bind the files of its own. So a look
is taken now and then: an output is charged to the store, and the program killed that outgrew it; of
a long standard error the head is given back to the file system. What a program can write between
two looks is the overshoot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.net.turns import DelayedCall
from ciel.storage.errors import NoSpaceError, StorageError
from ciel.storage.interface import ObjectWriter
from ciel.storage.space import PAGE_BYTES, release_blocks
from ciel.worker.state.orders import Key

LOOK_S = 0.1
STDERR_MAX_BYTES = 16 << 20
"""More than that of one standard error is not left on the device..."""
STDERR_LEFT_BYTES = 1 << 20
"""...but cut to this much of its end."""

log = Logger()


class Growing(NamedTuple):
    """The files of one attempt that grow; `outputs`, which may change, only where there is a limit
    for them. `printed` is called now and then, since there may be more in the first ones.
    """

    printed_paths: tuple[str, ...]
    outputs: Mapping[int, ObjectWriter]
    printed: Callable[[], None] | None = None


class GrowthWatch:
    """Looks at files of attempts while any runs; `outgrown` is told whose output has no room."""

    def __init__(self, reactor: Any, outgrown: Callable[[Key, NoSpaceError], None]) -> None:
        self._reactor = reactor
        self._outgrown = outgrown
        self._growing: dict[Key, Growing] = {}
        self._due: DelayedCall | None = None

    def add(self, key: Key, growing: Growing) -> None:
        """Look at an attempt's files from now on."""
        self._growing[key] = growing
        if self._due is None:
            self._due = self._reactor.callLater(LOOK_S, self._look)

    def remove(self, key: Key) -> None:
        """Look no more; the attempt's program has ended."""
        self._growing.pop(key, None)

    def close(self) -> None:
        self._growing.clear()
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _look(self) -> None:
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
                    log.warn(
                        "an output of {key} cannot be looked at: {error}", key=key, error=error
                    )
        if self._growing:
            self._due = self._reactor.callLater(LOOK_S, self._look)


def _not_shortened(failure: Any) -> None:
    if not failure.check(FileNotFoundError):  # it went with its attempt meanwhile
        log.failure("a long standard error could not be cut", failure)


def is_too_long(stderr_path: str) -> bool:
    """Whether a standard error takes more room than it may."""
    try:
        return os.stat(stderr_path, follow_symlinks=False).st_blocks * 512 > STDERR_MAX_BYTES
    except OSError:
        return False  # the program may have removed it


def shorten(stderr_path: str) -> None:
    """Give back the room of all but the end; the size stays, and tells how much there was.

    May take as long as the file is large.
    """
    fd = os.open(stderr_path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        surplus_bytes = os.fstat(fd).st_size - STDERR_LEFT_BYTES
        release_blocks(fd, surplus_bytes // PAGE_BYTES * PAGE_BYTES)
    finally:
        os.close(fd)
