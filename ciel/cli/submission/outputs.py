"""Prints the results of `ciel submit`, or writes them to files or as JSON.

At the end it lists the failures.
"""

from __future__ import annotations

import argparse
import os
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciel.cli.outcome import Status, say
from ciel.cli.output.printing import JSON_OUTPUT_MAX_BYTES, json_content, print_json, write_output
from ciel.cli.output.tables import cut
from ciel.cli.submission.collected_files import CollectedFiles
from ciel.cli.submission.elements import Element
from ciel.cli.submission.halting import Halting
from ciel.cli.submission.result_files import ResultFiles
from ciel.client.client import Client
from ciel.client.errors import ObjectUnreadableError, TaskFailedError
from ciel.client.jobs import Job
from ciel.client.jobs.failed_output import output_of
from ciel.core.errors import CielError
from ciel.core.events import JobPrinted
from ciel.core.refs import Concrete, Failure, Reference, Sweetheart, Value
from ciel.execution.report import visible

if TYPE_CHECKING:
    from ciel.cli.submission.joblog import JobLog

_STORIES_MAX = 20
_TEXT_WIDTH = 100


class TornOutputError(CielError):
    """A result was lost while the command printed it."""

    def __init__(self, number: int, size_bytes: int, cause: ObjectUnreadableError) -> None:
        super().__init__(
            f"the output of element {number} was lost after {size_bytes} bytes were "
            f"printed: {cause}"
        )
        self.number = number
        self.size_bytes = size_bytes


class Outputs:
    """Prints or writes results as they arrive; keeps only the errors of the first failures."""

    def __init__(
        self,
        client: Client,
        job: Job,
        files: ResultFiles | None,
        args: argparse.Namespace,
        collected: CollectedFiles | None = None,
        halting: Halting | None = None,
    ) -> None:
        self.halting = Halting(job, (), lambda: None, 1) if halting is None else halting
        self.joblog: JobLog | None = None
        self.failed_count = 0
        self.printed_bytes: Mapping[str, int] = {}
        """By object: how much of a result of the next batch is printed already."""
        self._client = client
        self._job = job
        self._files = files
        self._collected = collected
        self._json: bool = args.json
        self._first: list[tuple[int, str, str]] = []  # number, name, and error
        self._is_elsewhere = bool(args.scratch or args.cwd or args.inputs or args.objects)
        self._words: list[str] = [word for word in args.program[1:] if "{}" not in word]
        self._sent = {Path(path).name for path in args.inputs}

    def put(self, batch: Sequence[tuple[Element, Reference]]) -> None:
        """Print results, or write them to the files of `--out`; also the output of failed runs.

        `list_failures` prints their errors later.
        """
        if self.halting.is_reached():  # elements that were cancelled for it did not fail
            batch = [(element, ref) for element, ref in batch if not _is_cancelled(ref)]
        if self.joblog is not None:
            self.joblog.note(batch)
        short: list[bytes] = []  # printed by one call
        for element, ref in batch:
            if self._json:
                self._print_line(element, ref)
                continue
            if self._collected is not None and not isinstance(ref, Failure):
                self._collected.unpack(element, ref)
            if isinstance(ref, Value) and self._files is None:
                short.append(ref.content[self.printed_bytes.get(ref.id, 0) :])
                continue
            if short:
                write_output(b"".join(short))
                short.clear()
            found = self._read(ref, partial(self._put, element))
            if isinstance(found, Failure):
                self._note(element, found)
                self._put_printed(element, found)
        if short:
            write_output(b"".join(short))

    def put_error(self, printed: JobPrinted, text: str) -> None:
        """Write standard error of an element to its file."""
        if printed.is_stderr and self._files is not None:
            self._files.write_error(printed.name, text)

    @property
    def status(self) -> int:
        """The exit status that the elements cause."""
        return Status.FAILED if self.failed_count else Status.DONE

    def list_failures(self, total: int) -> None:
        """Print the errors of failed elements, unless JSON lines have them."""
        if not self.failed_count or self._json:
            return
        if total > 1:
            say(f"{self.failed_count} of {total} elements failed:")
        for _, name, text in self._first:
            say(f"{name}{text}")
        more = self.failed_count - len(self._first)
        own = self._client.cluster
        if more:
            which = "--json lists all" if own else f"ciel job info {self._job.label} shows them"
            say(f"and {more} more; {which}")
        if own is not None:
            say(f"logs, and files of failed runs: {own.directory}")
        for word in self._words if self._is_elsewhere else ():
            if self._is_left_behind(word):
                say(
                    f"{cut(visible(word), _TEXT_WIDTH)} is a file here, but the program did not "
                    "run here: name it by its full path, or send it with --in"
                )
                break

    def _is_left_behind(self, word: str) -> bool:
        """Whether an argument names a file that exists here, but not where the program ran."""
        try:
            return word not in self._sent and not word.startswith("/") and Path(word).is_file()
        except (OSError, ValueError):  # not a file name
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
        """Call `use`, which reads a result; return the reference to the result.

        If the worker is lost meanwhile, call `use` again with the recomputed result.
        """
        while not isinstance(ref, Failure):
            try:
                use(ref)
                break
            except ObjectUnreadableError as error:
                ref = self._job.await_copy(error, ref)
        return ref

    def _put(self, element: Element, ref: Reference) -> None:
        if self._files is not None:
            self._files.write(element, self._client.read_chunks(ref))
            return
        chunks = self._client.read_chunks(ref)
        printed_bytes = self.printed_bytes.get(ref.id, 0)
        size_bytes = 0
        try:
            for chunk in chunks:
                write_output(chunk[max(0, printed_bytes - size_bytes) :])
                size_bytes += len(chunk)
        except ObjectUnreadableError as error:
            if size_bytes:  # a recomputed result may have other bytes
                raise TornOutputError(element.number, size_bytes, error) from None
            raise

    def _put_printed(self, element: Element, failure: Failure) -> None:
        """Print the output of a failed run, or write it to its own file."""
        printed = output_of(self._client, failure)
        if not printed.content:
            return
        if self._files is None:
            write_output(printed.content[self.printed_bytes.get(failure.id, 0) :])
        else:
            self._files.write_failed(element, [printed.content])
        if printed.missing:
            say(f"{_name(element)}: {printed.missing}")

    def _print_line(self, element: Element, ref: Reference) -> None:
        """Print one result as a line of JSON, with its output if that is short."""
        read: dict[str, Any] = {}

        def use(ref: Reference) -> None:
            if self._collected is not None:
                paths = self._collected.unpack(element, ref)
                read["collected"] = [visible(str(path)) for path in paths]
            size_bytes = read["size_bytes"] = _size_bytes(ref)
            if self._files is not None:
                path = self._files.write(element, self._client.read_chunks(ref))
                read["file"] = visible(str(path))
            elif size_bytes is not None and size_bytes <= JSON_OUTPUT_MAX_BYTES:
                read.update(json_content("output", self._client.read(ref)))

        ref = self._read(ref, use)
        line: dict[str, Any] = {"number": element.number, "element": None, "object": ref.id}
        if element.text is not None:
            line.update(json_content("element", os.fsencode(element.text)))
        if isinstance(ref, Failure):
            self.failed_count += 1
            printed = output_of(self._client, ref).content[:JSON_OUTPUT_MAX_BYTES]
            failure = {"state": "failed", "reason": ref.reason, "story": ref.text}
            print_json(line | failure | (json_content("output", printed) if printed else {}))
        else:
            print_json(line | {"state": "done"} | read)


def _is_cancelled(ref: Reference) -> bool:
    return isinstance(ref, Failure) and ref.reason == "CANCELLED"


def _name(element: Element) -> str:
    """Return the name of an element for messages."""
    text = element.text or ""
    if text == str(element.number):
        return f"element {text}"
    return f"element {element.number} ({cut(visible(text), _TEXT_WIDTH)})"


def _size_bytes(ref: Reference) -> int | None:
    if isinstance(ref, Value):
        return len(ref.content)
    return ref.size_bytes if isinstance(ref, Concrete | Sweetheart) else None
