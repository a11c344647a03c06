"""What tasks print, brought to where the client prints: their standard output to its own, and their
standard error to its standard error.

The master says of each job that is listened to what its tasks have printed, before it says anything
that followed from their end. Short texts ride along, the others are read from the worker's log. A
thread writes them, and what came behind is delivered only then: so the lines of a task are out when
its result is known. What is promised:

- Lines of one task come in the order in which it wrote them, each whole, and never within another.
- All that a task's program had written out when its task ended, well or badly, is written before
  its future is done, unless the worker is lost, or cannot be asked within some seconds, or has more
  than 64 MiB of this job in its log: then a line on standard error says so (not of the last).
- A task that runs again prints again. What a program has written over 1 MiB ahead of its worker's
  looks (2.5 MB/s are kept up with) is left out, with a line that says so. Lines of over 64 KiB are
  broken up.

Results wait for whoever reads what is written: a pipe that nobody empties stops them.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, Protocol

from ciel.access.keys import Key
from ciel.client.data.objects import LogReader
from ciel.client.errors import LogUnreadableError
from ciel.client.locks import Changes
from ciel.core.events import JobChanged, JobPrinted, Message, ObjectSettled
from ciel.execution.report import visible

BUNDLE: Final = re.compile(r"\d+ calls of ")
"""How the name of a task begins that has several calls."""
FETCH_S: Final = 3.0
"""So long a worker has to answer; results wait meanwhile."""
_LAST_S = 3.0  # at the end, for what is still to be written
_BEHIND = (ObjectSettled, JobChanged)


class Sink(Protocol):
    """Where prints go: any text file."""

    def write(self, text: str, /) -> Any: ...
    def flush(self) -> Any: ...


class Prints:
    """The prints of one client. `deliver` takes the messages that came behind; `sink` takes all
    that is printed: None is `sys.stdout` and `sys.stderr`, whatever these are when something is
    written. `label` says what stands in brackets before each line; nothing does if it is empty.
    """

    def __init__(
        self,
        key: Key,
        deliver: Callable[[list[Message]], None],
        sink: Sink | None = None,
        label: Callable[[JobPrinted], str] | None = None,
    ) -> None:
        self._key = key
        self._deliver = deliver
        self._sink = sink
        self._label = label or label_of
        self._changed = Changes()
        self._line: list[Message] = []  # what is printed, and what came behind, in order
        self._is_busy = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def sift(self, messages: list[Message]) -> list[Message]:
        """Take out of what the master said what is printed, and what must not overtake it; return
        the rest.
        """
        if not self._is_busy and not any(type(message) is JobPrinted for message in messages):
            return messages
        passed: list[Message] = []
        with self._changed:
            for message in messages:
                if type(message) is JobPrinted:
                    self._is_busy = True
                elif not (self._is_busy and isinstance(message, _BEHIND)):
                    passed.append(message)
                    continue
                self._line.append(message)
            if self._is_busy:
                if self._thread is None and not self._is_closed:
                    self._thread = threading.Thread(
                        target=self._run, name="ciel-prints", daemon=True
                    )
                    self._thread.start()
                self._changed.notify_all()
        return passed

    def close(self) -> None:
        """Write what there is, for some seconds at most, and nothing more."""
        if os.getpid() != self._changed.owner_pid:
            return  # a forked child has no thread for that
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.drain()

    def drain(self) -> None:
        """Wait, for some seconds at most, until what has come is written and delivered."""
        if self._thread is not threading.current_thread():
            self._changed.wait_for(lambda: not self._is_busy, _LAST_S)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main one's
        while True:
            with self._changed:
                self._is_busy = bool(self._line)
                self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._line) or self._is_closed)
            with self._changed:
                line, self._line = self._line, []
            if not line:
                return
            for printed, behind in _parted(line):
                for is_stderr, some in groupby(printed, lambda message: message.is_stderr):
                    self._write("".join([self._text_of(message) for message in some]), is_stderr)
                if behind:
                    try:
                        self._deliver(behind)
                    except BaseException:  # of anybody's callback; others wait for what follows
                        traceback.print_exc()

    def _text_of(self, printed: JobPrinted) -> str:
        text = printed.text or self._fetched(printed)
        label = self._label(printed)
        if not label:
            return text
        return "".join([f"[{label}] {line}\n" for line in text.splitlines()])

    def _fetched(self, printed: JobPrinted) -> str:
        """Read lines from the worker's log, without the task's name, with which each begins there;
        nothing if that cannot be.
        """
        reader = LogReader(
            printed.netloc, "", printed.job, self._key, offset=printed.start, timeout_s=FETCH_S
        )
        content = b""
        try:
            while len(content) < printed.size_bytes and (more := reader.read()):
                content += more
        except LogUnreadableError as error:
            _say(f"what {label_of(printed)} printed is lost to us: {error}")
        prefix = f"[{visible(printed.name or printed.task[:12])}] "
        lines = content[: printed.size_bytes].decode(errors="replace").splitlines()
        return "".join([f"{line.removeprefix(prefix)}\n" for line in lines])

    def _write(self, text: str, is_stderr: bool) -> None:
        sink = self._sink or (sys.stderr if is_stderr else sys.stdout)
        try:
            sink.write(text)
            sink.flush()
        except UnicodeEncodeError:
            self._write(text.encode("ascii", "backslashreplace").decode(), is_stderr)
        except (
            OSError,
            ValueError,
            AttributeError,
        ):  # nobody reads it, it is closed, there is none
            pass


def label_of(printed: JobPrinted) -> str:
    """Name a task to people: what it is called, and which of the client's tasks it is."""
    number = str(printed.number) if printed.number else printed.task[:6]
    name = visible(BUNDLE.sub("", printed.name))
    return f"{name} {number}" if name and name != number else number


def _parted(line: Sequence[Message]) -> Iterable[tuple[list[JobPrinted], list[Message]]]:
    """Part what came into prints, and what came behind each."""
    printed: list[JobPrinted] = []
    behind: list[Message] = []
    for message in line:
        if isinstance(message, JobPrinted):
            if behind:
                yield printed, behind
                printed, behind = [], []
            printed.append(message)
        else:
            behind.append(message)
    yield printed, behind


def _say(text: str) -> None:
    try:
        print(f"ciel: {text}", file=sys.stderr)
    except (OSError, ValueError):
        pass  # nobody can be told
