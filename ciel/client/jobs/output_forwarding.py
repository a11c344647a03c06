"""Forwards the standard output and standard error of tasks to those of the client.

For each watched job the master sends what its tasks have written, before it sends anything that
follows from their end. A message contains a short text; a longer one is read from the worker's log.
A thread writes the texts first, and only then delivers the messages that arrived after them. So the
lines of a task appear before its result is known. Guarantees:

- The lines of a task appear in the order in which it wrote them, each complete, and never within
  another line.
- All output that a task's program had flushed when the task ended is written before its future is
  done, even if the task failed. Exceptions: the worker is lost or does not answer within some
  seconds (then a line on standard error says so), or its log has more than 64 MiB of this job.
- A task that runs again writes its lines again. The worker polls for output and keeps up with 2.5
  MB/s; what a program writes more than 1 MiB ahead is left out, and a line says so. Lines above 64
  KiB are split.

Results wait until the lines are written: if the client's standard output is a full pipe, no results
are delivered.
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
from ciel.client.data.logs import LogReader
from ciel.client.errors import LogUnreadableError
from ciel.client.locks import ForkSafeCondition
from ciel.core.events import JobChanged, JobPrinted, Message, ObjectSettled
from ciel.execution.report import visible

BUNDLE: Final = re.compile(r"\d+ calls of ")
"""The prefix of the name of a task of several calls."""
FETCH_S: Final = 3.0
"""The time that a worker has to answer; results wait meanwhile."""
_LAST_S = 3.0  # for the remaining lines when the client is closed
_BEHIND = (ObjectSettled, JobChanged)


class Sink(Protocol):
    """Any text file."""

    def write(self, text: str, /) -> Any: ...
    def flush(self) -> Any: ...


class OutputForwarder:
    """Forwards the output of one client's jobs.

    `deliver` receives the messages that arrived after some output. `sink`: where all output is
    written; None: the current `sys.stdout` and `sys.stderr`. `label` returns the text in brackets
    before each line; for an empty text the brackets are left out. `each` receives the lines of a
    message in place of a sink.
    """

    def __init__(
        self,
        key: Key,
        deliver: Callable[[list[Message]], None],
        sink: Sink | None = None,
        label: Callable[[JobPrinted], str] | None = None,
        each: Callable[[JobPrinted, str], object] | None = None,
    ) -> None:
        self._each = each
        self._key = key
        self._deliver = deliver
        self._sink = sink
        self._label = label or label_of
        self._changed = ForkSafeCondition()
        self._queue: list[Message] = []  # output, and the messages that came after it, in order
        self._is_busy = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def sift(self, messages: list[Message]) -> list[Message]:
        """Queue the output among these messages, and the messages that must not overtake it.

        Return the other messages.
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
                self._queue.append(message)
            if self._is_busy:
                if self._thread is None and not self._is_closed:
                    self._thread = threading.Thread(
                        target=self._run, name="ciel-prints", daemon=True
                    )
                    self._thread.start()
                self._changed.notify_all()
        return passed

    def close(self) -> None:
        """Write queued output, for some seconds at most, and then stop."""
        if os.getpid() != self._changed.owner_pid:
            return  # a forked child has no such thread
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.drain()

    def drain(self) -> None:
        """Wait, for some seconds at most, until the queue is written and delivered."""
        if self._thread is not threading.current_thread():
            self._changed.wait_for(lambda: not self._is_busy, _LAST_S)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread
        while True:
            with self._changed:
                self._is_busy = bool(self._queue)
                self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._queue) or self._is_closed)
            with self._changed:
                queued, self._queue = self._queue, []
            if not queued:
                return
            for printed, behind in _grouped(queued):
                for message in printed if self._each is not None else ():
                    self._give(message)
                for is_stderr, some in (
                    ()
                    if self._each is not None
                    else groupby(printed, lambda message: message.is_stderr)
                ):
                    self._write("".join([self._text_of(message) for message in some]), is_stderr)
                if behind:
                    try:
                        self._deliver(behind)
                    except BaseException:  # a user's callback; other messages follow
                        traceback.print_exc()

    def _give(self, printed: JobPrinted) -> None:
        assert self._each is not None
        try:
            self._each(printed, printed.text or self._fetched(printed))
        except OSError as error:
            _say(f"the output of {label_of(printed)} cannot be written: {error}")

    def _text_of(self, printed: JobPrinted) -> str:
        text = printed.text or self._fetched(printed)
        label = self._label(printed)
        if not label:
            return text
        return "".join([f"[{label}] {line}\n" for line in text.splitlines()])

    def _fetched(self, printed: JobPrinted) -> str:
        """Read lines from the worker's log, without the task's name at the beginning of each.

        Return no lines if the log cannot be read.
        """
        reader = LogReader(
            printed.netloc, "", printed.job, self._key, offset=printed.start, timeout_s=FETCH_S
        )
        content = b""
        try:
            while len(content) < printed.size_bytes and (more := reader.read()):
                content += more
        except LogUnreadableError as error:
            _say(f"the output of {label_of(printed)} is lost: {error}")
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
        except (OSError, ValueError, AttributeError):
            pass  # it is a broken pipe, it is closed, or the program has none


def label_of(printed: JobPrinted) -> str:
    """Return the label of a task: its name, and its number among the client's tasks."""
    number = str(printed.number) if printed.number else printed.task[:6]
    name = visible(BUNDLE.sub("", printed.name))
    return f"{name} {number}" if name and name != number else number


def _grouped(queued: Sequence[Message]) -> Iterable[tuple[list[JobPrinted], list[Message]]]:
    """Yield groups of output, each with the messages that came after it."""
    printed: list[JobPrinted] = []
    behind: list[Message] = []
    for message in queued:
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
        pass  # standard error is closed
