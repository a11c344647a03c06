"""The elements of an array: numbers, or the lines of a file that may still grow; and the places
that they take in a command line.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ciel.cli.outcome import UsageError

WORD_MAX_BYTES: Final = (128 << 10) - 1
"""Of one argument or variable that a program can be given: Linux's MAX_ARG_STRLEN, less its end."""

_PLACE = re.compile(r"\{#?\}")
_NUMBER_MAX_LENGTH = 20
_BLOCK_BYTES = 64 << 10
_BLOCKS_MAX = 4  # read ahead of who takes the lines


class Element(NamedTuple):
    """One run of the program; `text` is None where there is no array."""

    number: int
    text: str | None


class Template:
    """A command line in which `{}` stands for an element and `{#}` for its number; the program
    itself is as it is.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self._places = [i for i, word in enumerate(words) if i and _PLACE.search(word)]
        copies = max([1, *(words[i].count("{}") for i in self._places)])
        longest = max([32, *(len(words[i].encode()) for i in self._places)])
        longest += _NUMBER_MAX_LENGTH * max([0, *(words[i].count("{#}") for i in self._places)])
        self._harmless_length = (WORD_MAX_BYTES - longest) // copies // 4  # UTF-8 takes up to 4

    def fill(self, element: Element) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment of an element; raises ValueError if a
        program cannot be given it.
        """
        words = self._words.copy()
        if element.text is None:
            return words, {}
        for i in self._places:
            words[i] = substitute(words[i], element)
        env = {"CIEL_INDEX": str(element.number), "CIEL_ELEMENT": element.text}
        if len(element.text) > self._harmless_length:
            for word in (*words, f"CIEL_ELEMENT={element.text}"):
                size_bytes = len(word.encode())
                if size_bytes > WORD_MAX_BYTES:
                    raise ValueError(
                        f"makes an argument or variable of {size_bytes} bytes; "
                        f"a program can be given {WORD_MAX_BYTES}"
                    )
        return words, env


def substitute(word: str, element: Element) -> str:
    """Put an element into an argument; what it brings along is not looked at again."""
    text = element.text or ""
    if word == "{}":
        return text
    return _PLACE.sub(lambda match: str(element.number) if match[0] == "{#}" else text, word)


class Known:
    """Elements that are all known beforehand."""

    def __init__(self, elements: Iterable[Element], total: int) -> None:
        self.total: int | None = total
        self._elements = iter(elements)
        self._left = total

    @classmethod
    def numbers(cls, numbers: range) -> Known:
        """Elements that are their own numbers."""
        return cls((Element(number, str(number)) for number in numbers), len(numbers))

    def start(self, wake: Callable[[], None]) -> None: ...

    def take(self, count: int) -> list[Element]:
        taken = list(islice(self._elements, count))
        self._left -= len(taken)
        return taken

    def is_ready(self) -> bool:
        return True

    @property
    def ended(self) -> bool:
        return not self._left

    def place(self, element: Element) -> str:
        """Say where an element comes from."""
        return f"element {element.number}"


class Lines:
    """The lines of a file, or of standard input (`-`), as they come. A thread waits for them, and
    reads no further while nobody takes them. Raises UsageError.
    """

    def __init__(self, name: str) -> None:
        self.total: int | None = None
        """How many there are, once that is known."""
        self._name = "standard input" if name == "-" else name
        self._fd = _open(name)
        self._blocks: deque[bytes] = deque()  # the last is empty
        self._room = threading.Semaphore(_BLOCKS_MAX)
        self._lines: deque[bytes] = deque()
        self._rest = b""  # of a line whose end did not come yet
        self._taken = 0
        self._ended = False
        self._error: OSError | None = None

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to read; `wake` is called whenever something came."""
        threading.Thread(
            target=self._read, args=(wake,), name="ciel-lines", daemon=True
        ).start()  # it may wait for ever: it has nothing to clean up

    def take(self, count: int) -> list[Element]:
        while len(self._lines) < count and self._blocks:
            self._split(self._blocks.popleft())
        taken: list[Element] = []
        while self._lines and len(taken) < count:
            self._taken += 1
            taken.append(Element(self._taken, self._text(self._lines.popleft())))
        if self.ended:
            self.total = self._taken
        return taken

    def is_ready(self) -> bool:
        return bool(self._lines or self._blocks)

    @property
    def ended(self) -> bool:
        return self._ended and not self._lines

    def place(self, element: Element) -> str:
        """Say where an element comes from."""
        return f"{self._name} line {element.number}"

    def _split(self, block: bytes) -> None:
        self._room.release()
        if not block:
            if self._error is not None:
                raise self._error
            self._ended = True
            if self._rest:
                self._lines.append(self._rest)
            return
        *lines, self._rest = (self._rest + block).split(b"\n")
        self._lines.extend(lines)
        if len(self._rest) > WORD_MAX_BYTES:  # do not read all of what has no lines
            number = self._taken + len(self._lines) + 1
            raise UsageError(
                f"{self._name} line {number} is longer than {WORD_MAX_BYTES} bytes, "
                "more than a program can be given"
            )

    def _text(self, line: bytes) -> str:
        try:
            text = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise UsageError(f"{self._name} line {self._taken} is not UTF-8") from None
        if "\0" in text:
            raise UsageError(f"{self._name} line {self._taken} holds a zero byte")
        return text

    def _read(self, wake: Callable[[], None]) -> None:
        # Signals are the main thread's: one taken here would not end its waiting.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            self._room.acquire()
            try:
                block = os.read(self._fd, _BLOCK_BYTES)
            except OSError as error:
                error.filename = self._name
                self._error, block = error, b""
            self._blocks.append(block)
            wake()
            if not block:
                return


def _open(name: str) -> int:
    if name == "-":
        if sys.stdin is None:
            raise UsageError("--each-line -: standard input is closed")
        return 0
    try:
        fd = os.open(name, os.O_RDONLY)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--each-line {name}: {reason}") from None
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise UsageError(f"--each-line {name}: it is a directory")
    return fd
