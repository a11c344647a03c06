"""Lets a memory server offer less while its host is short of memory (`ciel.memory.pressure`)."""

from __future__ import annotations

import argparse
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ciel.cli.daemons.process import log
from ciel.memory.host import PROC, HostMemory, read_host
from ciel.memory.page_server import EXTENT_BYTES, EXTENT_PAGES, PageServer
from ciel.memory.pressure import PRESSURE_MAX_PERCENT, Offer

WINDOW_US: Final = 2_000_000
"""The window of the kernel's trigger; a process without privileges may use multiples of 2 s."""
TRIGGER_FACTOR: Final = 5
"""Waiting for two seconds at five times the limit is the limit in an average of ten seconds."""


def add_pressure(add: Callable[..., object]) -> None:
    """Add the options of this module to a parser."""
    add(
        "--pressure-max",
        type=_percent_or_off,
        metavar="PERCENT",
        default=PRESSURE_MAX_PERCENT,
        help="offer less memory while tasks of this host wait for memory for a larger part of the "
        f"time (default {PRESSURE_MAX_PERCENT:.0f}), or while little is available; off: never",
    )
    add("--proc", type=Path, default=PROC, help=argparse.SUPPRESS)  # of tests


def _percent_or_off(text: str) -> float | None:
    if text == "off":
        return None
    try:
        percent = float(text)
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is neither a percentage nor off")
    return percent


class HostWatch:
    """Reads the memory of the host, changes the offer, and gives memory back to the system."""

    def __init__(
        self, reactor: Any, options: argparse.Namespace, pages: PageServer,
        changed: Callable[[], object],
    ) -> None:  # fmt: skip
        """`changed` is called when `offer` has changed."""
        self.offer = Offer(options.offer // EXTENT_BYTES, options.pressure_max)
        self._reactor = reactor
        self._proc: Path = options.proc
        self._pages: PageServer | None = pages
        self._changed = changed
        self._held = self._used = 0
        self._is_releasing = False
        self._trigger: _Trigger | None = None
        if options.pressure_max is not None and self._proc == PROC:
            self._watch(options.pressure_max)

    def close(self) -> None:
        self._pages = None
        if self._trigger is not None:
            self._reactor.removeReader(self._trigger)
            self._trigger.close()
            self._trigger = None

    def read(self) -> HostMemory:
        """Return the present memory of the host."""
        return read_host(self._proc)

    def observe(self, held: int, pages_used: int) -> HostMemory:
        """Read the memory of the host, and change the offer.

        `held`: the extents that the server holds; `pages_used`: its pages with content.
        """
        self._held, self._used = held, -(-pages_used // EXTENT_PAGES)
        host = self.read()
        self._take(host)
        if self.offer.extents < self.offer.extents_max and not self._is_releasing:
            self._release()
        return host

    def _take(self, host: HostMemory) -> None:
        before = self.offer.extents
        if not self.offer.observe(host, self._held, self._used, self._reactor.seconds()):
            return
        log.info(
            "offers {now} MiB, before {before} MiB: of {total} MiB of this host {free} MiB are "
            "available, and tasks wait for memory for {some} % of the time",
            now=self.offer.extents, before=before, total=host.total_bytes >> 20,
            free=host.available_bytes >> 20, some=host.some_percent,
        )  # fmt: skip
        self._changed()

    def _release(self) -> None:
        """Give the memory of free pages back in parts: the server serves clients between them."""
        self._is_releasing = False
        if self._pages is None:
            return
        try:
            self._is_releasing = self._pages.release()
        except OSError as error:
            log.warn("{error}", error=error)
            self._pages = None  # the next try would fail, too
        if self._is_releasing:
            self._reactor.callLater(0, self._release)

    def _watch(self, limit_percent: float) -> None:
        path = self._proc / "pressure/memory"
        try:
            self._trigger = _Trigger(path, limit_percent, self._triggered)
        except OSError as error:  # the kernel is too old, or does not permit it
            log.info("no notice of {path}: {why}", path=path, why=error.strerror)
        else:
            self._reactor.addReader(self._trigger)

    def _triggered(self, percent: float) -> None:
        host = self.read()
        self._take(host._replace(some_percent=max(host.some_percent, percent)))


class _Trigger:
    """Tells at once that tasks wait for memory for a long time. A reader of the reactor."""

    def __init__(self, path: Path, limit_percent: float, call: Callable[[float], object]) -> None:
        """`call` gets a percentage that is above the limit. Raises OSError."""
        self._percent = limit_percent + 1.0
        self._call = call
        threshold_us = min(TRIGGER_FACTOR * limit_percent / 100, 1.0) * WINDOW_US
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.epoll()
        try:
            os.write(self._file, f"some {threshold_us:.0f} {WINDOW_US}\0".encode())
            self._poll.register(self._file, select.EPOLLPRI)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        self._poll.close()
        os.close(self._file)

    def fileno(self) -> int:
        return self._poll.fileno()

    def doRead(self) -> None:  # noqa: N802  # Twisted names it
        """Pass the notice on."""
        if self._poll.poll(0):
            self._call(self._percent)

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        """Do nothing: `close` frees the descriptors."""

    def logPrefix(self) -> str:  # noqa: N802
        return "pressure"
