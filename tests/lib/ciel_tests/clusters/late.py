"""Explains why a result of a cluster came too late: the dumps of its daemons tell their state."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ciel.testing.homes import DUMPED_WITHIN_S, processes_below

SHOWN = 20_000
"""So many characters of each dump."""


@contextmanager
def explained(directory: Path) -> Iterator[None]:
    """Let a TimeoutError of the block fail with the dumps of the daemons of this process, which
    write them below `directory`.
    """
    try:
        yield
    except TimeoutError:
        for pid, command in processes_below(os.getpid()).items():
            if "ciel.cli.daemons." in command:
                os.kill(pid, signal.SIGUSR1)
        time.sleep(DUMPED_WITHIN_S)
        dumps = [path.read_text()[:SHOWN] for path in sorted(directory.rglob("*.dump"))]
        raise AssertionError("too late\n" + "\n\n".join(dumps)) from None
