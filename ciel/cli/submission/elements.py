"""Reads the elements of an array, and inserts them into command lines.

Elements are numbers, the lines of a file that may still grow, or pieces of standard input. Bytes
that are not valid UTF-8 become surrogate escapes, as in `os.fsdecode`.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from math import prod
from typing import Final, NamedTuple, Protocol

from ciel.cli.outcome import UsageError, say
from ciel.cli.submission.numbers import Numbers
from ciel.cli.submission.replacements import expand, places_in, replace

WORD_MAX_BYTES: Final = (128 << 10) - 1
"""The longest argument or variable of a program: MAX_ARG_STRLEN of Linux, without the NUL."""

_NUMBER_MAX_LENGTH = 20
_BLOCK_BYTES = 64 << 10
_AT_ONCE = 1000
_BLOCKS_MAX = 4  # read before their lines are taken


class Element(NamedTuple):
    """One run of the program.

    `text` is None for a single program. `content`: its piece of standard input, with `--pipe`.
    `values`: what `{1}`, `{2}`, … stand for; empty if the element is a single value.
    """

    number: int
    text: str | None
    content: bytes | None = None
    values: tuple[str, ...] = ()


class Template:
    """A command line and variables with placeholders for an element.

    `replacements` lists them. The program, the first word, stays unchanged.
    """

    def __init__(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._words = list(words)
        self._env = dict(env or {})
        self._places = [i for i, word in enumerate(words) if i and has_place(word)]
        self._named = [name for name, value in self._env.items() if has_place(value)]
        filled = [words[i] for i in self._places] + [f"{n}={self._env[n]}" for n in self._named]
        copies = max([1, *(places_in(word) for word in filled)])
        longest = max([32, *(len(os.fsencode(word)) for word in filled)])
        longest += _NUMBER_MAX_LENGTH * max([0, *(word.count("{#}") for word in filled)])
        self._harmless_length = (WORD_MAX_BYTES - longest) // copies // 4  # UTF-8 takes up to 4

    def fill(self, element: Element) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment of an element.

        Raises ValueError if they are too long.
        """
        words, env = self._words.copy(), self._env.copy()
        if element.text is None:
            return words, env
        for i in reversed(self._places):
            words[i : i + 1] = expand(words[i], element.number, element.text, element.values)
        for name in self._named:
            env[name] = substitute(env[name], element)
        env["CIEL_INDEX"], env["CIEL_ELEMENT"] = str(element.number), element.text
        if len(element.text) > self._harmless_length:
            for word in (*words, *[f"{name}={value}" for name, value in env.items()]):
                size_bytes = len(os.fsencode(word))
                if size_bytes > WORD_MAX_BYTES:
                    raise ValueError(
                        f"results in an argument or variable of {size_bytes} bytes; "
                        f"a program can receive {WORD_MAX_BYTES}"
                    )
        return words, env


def has_place(word: str) -> bool:
    """Return whether a string has a placeholder for an element or its number."""
    return "{" in word and places_in(word) > 0


def substitute(word: str, element: Element) -> str:
    """Insert an element into a text; placeholders in the element itself stay unchanged."""
    return replace(word, element.number, element.text or "", element.values)


class Known:
    """Elements that are known before the job starts."""

    def __init__(self, elements: Iterable[Element], total: int) -> None:
        self.total: int | None = total
        self._elements = iter(elements)
        self._left = total

    @classmethod
    def numbers(cls, numbers: Numbers) -> Known:
        """Elements that are their own numbers."""
        return cls((Element(number, text) for number, text in numbers), len(numbers))

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
        """Return a name of an element for messages."""
        return f"element {element.number}"


class Input:
    """Elements that are read from a file, or from standard input (`-`).

    A thread reads at most a few blocks ahead.
    """

    def __init__(self, option: str, name: str) -> None:
        self.total: int | None = None
        """The number of elements; None while it is unknown."""
        self._name = "standard input" if name == "-" else name
        self._fd = _open(option, name)
        self._blocks: deque[bytes] = deque()  # the last is empty
        self._room = threading.Semaphore(_BLOCKS_MAX)
        self._cut: deque[bytes] = deque()  # elements that `take` has not returned yet
        self._taken = 0
        self._ended = False
        self._error: OSError | None = None

    def start(self, wake: Callable[[], None]) -> None:
        """Start to read; the thread calls `wake` after each block."""
        threading.Thread(
            target=self._read, args=(wake,), name="ciel-input", daemon=True
        ).start()  # a daemon thread, since it may wait for ever

    def take(self, count: int) -> list[Element]:
        """Return the next elements that were read, at most `count`; raises UsageError, OSError."""
        while len(self._cut) < count and self._blocks:
            self._split(self._blocks.popleft())
        taken: list[Element] = []
        while self._cut and len(taken) < count:
            self._taken += 1
            taken.append(self._element(self._cut.popleft()))
        if self.ended:
            self.total = self._taken
        return taken

    def is_ready(self) -> bool:
        return bool(self._cut or self._blocks)

    @property
    def ended(self) -> bool:
        return self._ended and not self._cut

    def place(self, element: Element) -> str:
        """Return a name of an element for messages."""
        return f"{self._name} {self._kind} {element.number}"

    _kind = "element"

    def _element(self, content: bytes) -> Element:
        raise NotImplementedError

    def _whole(self, block: bytes) -> list[bytes]:
        """Add a block; return the elements that it completes.

        The last block is empty, and completes the rest.
        """
        raise NotImplementedError

    def _split(self, block: bytes) -> None:
        self._room.release()
        if not block and self._error is not None:
            raise self._error
        self._cut.extend(self._whole(block))
        self._ended = not block

    def _read(self, wake: Callable[[], None]) -> None:
        # A signal that this thread received would not wake the main thread.
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


class Lines(Input):
    """The lines of a file as elements.

    A CR at the end of a line belongs to the element. `end`: the byte that ends each element, a
    newline or a NUL. `separator`: a pattern between the values of a line, with `--colsep`.
    """

    def __init__(
        self, name: str, end: bytes = b"\n", separator: re.Pattern[str] | None = None
    ) -> None:
        super().__init__("--each-line", name)
        self._kind = "line" if end == b"\n" else "element"
        self._end = end
        self._separator = separator
        self._rest = b""  # of a line without an end so far
        self._has_warned = False  # of a carriage return

    def _whole(self, block: bytes) -> list[bytes]:
        if not block:
            return [self._rest] if self._rest else []
        *lines, self._rest = (self._rest + block).split(self._end)
        if len(self._rest) > WORD_MAX_BYTES:  # do not read a whole file without lines
            number = self._taken + len(self._cut) + len(lines) + 1
            raise UsageError(
                f"{self._name} {self._kind} {number} is longer than {WORD_MAX_BYTES} bytes, "
                "more than a program can receive"
            )
        return lines

    def _element(self, content: bytes) -> Element:
        if b"\0" in content:
            raise UsageError(
                f"{self._name} line {self._taken} contains a NUL byte (-0 reads elements that end "
                "with NUL)"
            )
        if content.endswith(b"\r") and self._end == b"\n" and not self._has_warned:
            self._has_warned = True
            say(
                f"{self._name} line {self._taken} ends with a carriage return, which is part of "
                "the element, as with xargs; tr -d '\\r' removes it"
            )
        text = os.fsdecode(content)
        values = () if self._separator is None else tuple(self._separator.split(text))
        return Element(self._taken, text, None, values)


class Grouped:
    """Elements of another source, so many together as the values of one."""

    def __init__(self, source: Lines, size: int) -> None:
        self.total: int | None = None
        self._source = source
        self._size = size
        self._values: list[str] = []  # of the next elements
        self._taken = 0
        self.start = source.start
        self.is_ready = source.is_ready

    def take(self, count: int) -> list[Element]:
        found = self._source.take(count * self._size - len(self._values))
        self._values += [each.text or "" for each in found]
        taken = []
        while len(self._values) >= self._size or (self._values and self._source.ended):
            self._taken += 1
            values, self._values = self._values[: self._size], self._values[self._size :]
            taken.append(Element(self._taken, " ".join(values), None, tuple(values)))
        if self.ended:
            self.total = self._taken
        return taken

    @property
    def ended(self) -> bool:
        return self._source.ended and not self._values

    def place(self, element: Element) -> str:
        """Return a name of an element for messages."""
        return f"element {element.number}"


class Source(Protocol):
    """The elements of an array."""

    @property
    def total(self) -> int | None:
        """The number of elements; None while it is unknown."""

    @property
    def ended(self) -> bool:
        """Whether all elements were taken."""

    def start(self, wake: Callable[[], None]) -> None:
        """Start to read; another thread may call `wake` when elements are available."""

    def take(self, count: int) -> list[Element]:
        """Return the available elements, at most `count`; raises UsageError, OSError."""

    def is_ready(self) -> bool:
        """Return whether elements are available, or the source has ended."""

    def place(self, element: Element) -> str:
        """Return a name of an element for messages."""


def batches(source: Source) -> Iterator[list[Element]]:
    """Yield all elements of a source, and wait for them; raises UsageError, OSError."""
    arrived = threading.Event()
    source.start(arrived.set)
    while not source.ended:
        arrived.clear()
        if batch := source.take(_AT_ONCE):
            yield batch
        elif not source.ended:
            arrived.wait()


def known(source: Source) -> Known:
    """Read a source to its end."""
    found = [element for batch in batches(source) for element in batch]
    return Known(found, len(found))


def combined(sources: Sequence[Sequence[Element]]) -> Known:
    """Return an element for each combination of elements; the last source varies fastest."""

    def elements() -> Iterator[Element]:
        for number, several in enumerate(product(*sources), 1):
            values = tuple(
                [value for each in several for value in each.values or (each.text or "",)]
            )
            yield Element(number, " ".join(values), None, values)

    return Known(elements(), prod([len(source) for source in sources]))


class Pieces(Input):
    """Pieces of standard input, cut at ends of lines; each run of the program reads one.

    A line that is longer than `size_bytes` is a piece by itself.
    """

    _kind = "piece"

    def __init__(self, size_bytes: int) -> None:
        super().__init__("--pipe", "-")
        self._size_bytes = size_bytes
        self._rest = bytearray()
        self._searched_bytes = 0  # of a long line, so far without an end

    def _whole(self, block: bytes) -> list[bytes]:
        self._rest += block
        pieces: list[bytes] = []
        while len(self._rest) >= self._size_bytes and (end := self._piece_end()):
            pieces.append(bytes(self._rest[:end]))
            del self._rest[:end]
            self._searched_bytes = 0
        if not block and self._rest:
            pieces.append(bytes(self._rest))
        return pieces

    def _piece_end(self) -> int:
        """Return where the next piece ends; 0 if the end of its line was not read yet."""
        if not self._searched_bytes and (end := self._rest.rfind(b"\n", 0, self._size_bytes) + 1):
            return end
        start = max(self._size_bytes, self._searched_bytes)
        self._searched_bytes = len(self._rest)
        return self._rest.find(b"\n", start) + 1

    def _element(self, content: bytes) -> Element:
        return Element(self._taken, str(self._taken), content)


def _open(option: str, name: str) -> int:
    if name == "-":
        if sys.stdin is None:
            raise UsageError(f"{option}: standard input is closed")
        return 0
    try:
        fd = os.open(name, os.O_RDONLY)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{option} {name}: {reason}") from None
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise UsageError(f"{option} {name}: it is a directory")
    return fd
