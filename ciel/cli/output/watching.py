"""Implements `--watch`: shows a text again and again, on a terminal in place of the one before."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

from ciel.cli.output.printing import print_text
from ciel.client.client import Client
from ciel.client.errors import WaitTimeoutError

EVERY_S: Final = 1.0
_UP_AND_ERASE: Final = "\x1b[{}A\x1b[J"  # to the first line, then to the end of the screen


class Redrawn:
    """A text on standard output; on a terminal, the next text replaces it.

    No line may be wider than the terminal: of a line that the terminal wraps, a part would stay.
    """

    def __init__(self) -> None:
        self._lines = 0

    def show(self, text: str) -> None:
        """Print a text; raises OutputClosedError."""
        erase = _UP_AND_ERASE.format(self._lines) if self._lines and sys.stdout.isatty() else ""
        print_text(erase + text)
        self._lines = text.count("\n") + 1


def pause(client: Client, for_s: float) -> None:
    """Wait while a client keeps its connection alive; raises ConnectionLostError."""
    with suppress(WaitTimeoutError):
        client.wait_until(lambda: False, for_s, "the next query")
