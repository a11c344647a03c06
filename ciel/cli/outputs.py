"""What becomes of the results of `ciel submit`: they are printed, written to files, or told as
JSON; and those that failed are listed at the end.
"""

from __future__ import annotations

import argparse
from bisect import insort
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ciel.cli.elements import Element
from ciel.cli.outcome import say
from ciel.cli.printing import cut, print_json, write_output
from ciel.client.client import Client
from ciel.client.errors import ObjectUnreadableError, TaskFailedError
from ciel.client.jobs import Job
from ciel.core.errors import CielError
from ciel.core.refs import Concrete, Failure, Reference, Sweetheart, Value
from ciel.execution.report import visible

_STORIES_MAX = 20
_TEXT_WIDTH = 100
_JSON_OUTPUT_MAX_BYTES = 64 << 10


class TornOutputError(CielError):
    """A result was lost while it was being printed."""

    def __init__(self, number: int, size_bytes: int, cause: ObjectUnreadableError) -> None:
        super().__init__(f"the output of element {number} broke off at byte {size_bytes}: {cause}")
        self.number = number
        self.size_bytes = size_bytes


class Outputs:
    """Takes results as they come; keeps none but the stories of the first that failed."""

    def __init__(self, client: Client, job: Job, args: argparse.Namespace) -> None:
        self.failed_count = 0
        self._client = client
        self._job = job
        self._out: Path | None = args.out
        self._json: bool = args.json
        self._first: list[tuple[int, str, str]] = []  # number, who it is, and its story
        self._is_elsewhere = bool(args.scratch or args.cwd or args.inputs or args.objects)
        self._words: list[str] = [word for word in args.program[1:] if "{}" not in word]
        self._sent = {path.name for path in args.inputs}

    def put(self, batch: Sequence[tuple[Element, Reference]]) -> None:
        """Print results, or write them where `--out` says; those that failed are told of later."""
        short: list[bytes] = []  # printed in one go
        for element, ref in batch:
            if self._json:
                self._print_line(element, ref)
                continue
            if isinstance(ref, Value) and self._out is None:
                short.append(ref.content)
                continue
            if short:
                write_output(b"".join(short))
                short.clear()
            write = self._print if self._out is None else self._write_file
            found = self._read(ref, partial(write, element))
            if isinstance(found, Failure):
                self._note(element, found)
        if short:
            write_output(b"".join(short))

    def list_failures(self, total: int) -> None:
        """Tell of those that failed, unless that was done as JSON."""
        if not self.failed_count or self._json:
            return
        if total > 1:
            say(f"{self.failed_count} of {total} elements failed:")
        for _, who, story in self._first:
            say(f"{who}{story}")
        more = self.failed_count - len(self._first)
        own = self._client.cluster
        if more:
            which = "--json tells of all" if own else f"ciel job info {self._job.label} tells more"
            say(f"and {more} more; {which}")
        if own is not None:
            say(f"logs, and what the failed left behind: {own.directory}")
        for word in self._words if self._is_elsewhere else ():
            if self._is_left_behind(word):
                say(
                    f"{cut(visible(word), _TEXT_WIDTH)} is a file here, but the program did not "
                    "run here: name it by its full path, or send it with --in"
                )
                break

    def _is_left_behind(self, word: str) -> bool:
        """Whether an argument names a file as if programs ran in our directory."""
        try:
            return word not in self._sent and not word.startswith("/") and Path(word).is_file()
        except (OSError, ValueError):  # it is too long, or no name at all
            return False

    def _note(self, element: Element, failure: Failure) -> None:
        self.failed_count += 1
        if len(self._first) == _STORIES_MAX and element.number > self._first[-1][0]:
            return
        if element.text is not None and not self._first:
            self._words.append(element.text)
        who = "" if element.text is None else f"{_name(element)}: "
        insort(self._first, (element.number, who, str(TaskFailedError(failure))))
        del self._first[_STORIES_MAX:]

    def _read(self, ref: Reference, use: Callable[[Reference], None]) -> Reference:
        """Call `use`, which reads a result; again with what it became if its worker was lost and it
        was made again. Return what it is in the end.
        """
        while not isinstance(ref, Failure):
            try:
                use(ref)
                break
            except ObjectUnreadableError as error:
                ref = self._job.await_copy(error, ref)
        return ref

    def _print(self, element: Element, ref: Reference) -> None:
        chunks = self._client.read_chunks(ref)
        size_bytes = 0
        try:
            for chunk in chunks:
                write_output(chunk)
                size_bytes += len(chunk)
        except ObjectUnreadableError as error:
            if size_bytes:  # what is printed cannot be taken back, and the rest may be another's
                raise TornOutputError(element.number, size_bytes, error) from None
            raise

    def _write_file(self, element: Element, ref: Reference) -> None:
        """Write an output; it has its name only when it is whole."""
        path = self._path(element)
        begun = path.with_name(f".{path.name}.partial")
        try:
            with begun.open("wb") as file:
                file.writelines(self._client.read_chunks(ref))
            begun.replace(path)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise
        finally:
            begun.unlink(missing_ok=True)

    def _path(self, element: Element) -> Path:
        assert self._out is not None  # else nothing is written
        return self._out / str(element.number)

    def _print_line(self, element: Element, ref: Reference) -> None:
        """Print one result as a line of JSON, with its output if that is short."""
        read: dict[str, Any] = {}

        def use(ref: Reference) -> None:
            size_bytes = read["size_bytes"] = _size_bytes(ref)
            if self._out is not None:
                self._write_file(element, ref)
                read["file"] = str(self._path(element))
            elif size_bytes is not None and size_bytes <= _JSON_OUTPUT_MAX_BYTES:
                read["output"] = self._client.read(ref).decode(errors="backslashreplace")

        ref = self._read(ref, use)
        line: dict[str, Any] = {"number": element.number, "element": element.text, "object": ref.id}
        if isinstance(ref, Failure):
            self.failed_count += 1
            print_json(line | {"state": "failed", "reason": ref.reason, "story": ref.text})
        else:
            print_json(line | {"state": "done"} | read)


def _name(element: Element) -> str:
    """Name an element to people."""
    text = element.text or ""
    if text == str(element.number):
        return f"element {text}"
    return f"element {element.number} ({cut(visible(text), _TEXT_WIDTH)})"


def _size_bytes(ref: Reference) -> int | None:
    if isinstance(ref, Value):
        return len(ref.content)
    return ref.size_bytes if isinstance(ref, Concrete | Sweetheart) else None
