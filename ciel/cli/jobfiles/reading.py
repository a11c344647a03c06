"""Reads a job file: its keys, their types and values. Every error is noted with its line."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from ciel.cli.jobfiles.key_lines import Path, key_lines
from ciel.cli.jobfiles.model import SAME_NUMBER, Fault, JobFile, Source, Task
from ciel.cli.outcome import UsageError
from ciel.cli.parsing.parser import suggestion
from ciel.cli.submission.elements import Element, Known, Lines, batches
from ciel.cli.submission.numbers import number_ranges
from ciel.cli.submission.options import add_limits, needs_of, pattern
from ciel.core.jobs import JOB_NAME_MAX_LENGTH
from ciel.core.tasks import DEFAULT_NEEDS, LIMITS, Needs

RUNS_MAX: Final = 1_000_000
"""The number of runs of one job file: the command has all of them in memory."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_SYNTAX: Final = re.compile(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", re.DOTALL)
_KINDS: Final = {
    str: "a string", int: "a whole number", bool: "true or false", list: "a list", dict: "a table",
}  # fmt: skip
JOB_KEYS: Final = ("name", "max_fails", "keep", "cwd", "env", "task")
ARRAYS: Final = ("array", "items", "each_line")
TASK_KEYS: Final = (
    "name", "command", *ARRAYS, "null", "colsep", "after", "stdin", "files", "out", "needs",
    "env", "cwd", "scratch",
)  # fmt: skip


def read(content: bytes) -> tuple[JobFile | None, list[Fault]]:
    """Return a job file, whose tasks are in the order of the file, or None and its errors.

    Tasks that others name may be missing. Reads the files of `each_line`.
    """
    try:
        text = content.decode().replace("\r\n", "\n")
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        return None, [Fault(content.count(b"\n", 0, error.start) + 1, "it is not UTF-8")]
    except tomllib.TOMLDecodeError as error:
        match = _SYNTAX.fullmatch(str(error))
        line = int(match[2]) if match and match[2] else content.count(b"\n") + 1
        return None, [Fault(line, match[1] if match else str(error))]
    reader = _Reader(key_lines(text))
    job = reader.job(document)
    return (None if reader.faults else job), sorted(reader.faults)


class _Reader:
    def __init__(self, lines: Mapping[Path, int]) -> None:
        self.faults: list[Fault] = []
        self._lines = lines

    def job(self, document: dict[str, Any]) -> JobFile:
        self._reject_unknown(document, (), JOB_KEYS)
        entries = self._take(document, (), "task", list, [])
        if not entries:
            self._fault((), "it has no tasks; write [[task]] before the keys of each")
        tasks = []
        for number, entry in enumerate(entries):
            if isinstance(entry, dict):
                tasks.append(self._task(entry, ("task", number)))
            else:
                self._fault(("task", number), "a task must be a table: write [[task]]")
        runs = sum(len(task.elements) for task in tasks)
        if runs > RUNS_MAX:
            self._fault((), f"it has {runs:,} runs; {RUNS_MAX:,} are allowed")
        max_fails = self._take(document, (), "max_fails", int, -1)
        if "max_fails" in document and max_fails < 0:
            self._fault(("max_fails",), "max_fails must be at least 0")
        name = self._take(document, (), "name", str, "")
        if len(name) > JOB_NAME_MAX_LENGTH:
            self._fault(("name",), f"the name has more than {JOB_NAME_MAX_LENGTH} characters")
        return JobFile(
            name, tasks, max_fails, self._take(document, (), "keep", bool, False),
            self._take(document, (), "cwd", str, None), self._env(document, ()),
        )  # fmt: skip

    # --- tasks ------------------------------------------------------------------------------------

    def _task(self, entry: dict[str, Any], path: Path) -> Task:
        self._reject_unknown(entry, path, TASK_KEYS)
        command = self._texts(entry, path, "command")
        if not command or not command[0]:
            self._fault((*path, "command"), 'a task needs a command: command = ["sort", "words"]')
        elements, is_array = self._elements(entry, path)
        after, stdin = self._sources(entry, path, "after"), self._sources(entry, path, "stdin")
        inputs, files = self._files(entry, path)
        cwd = self._take(entry, path, "cwd", str, None)
        if self._take(entry, path, "scratch", bool, False):
            if cwd is not None:
                self._fault((*path, "cwd"), "a task with scratch = true has its own directory")
            cwd = ""
        if cwd and (inputs or files):
            self._fault((*path, "cwd"), "a task with files runs in its own directory: remove cwd")
        return Task(
            self._task_name(entry, path), command, elements, is_array, after, stdin, inputs, files,
            self._take(entry, path, "out", str, ""), self._needs(entry, path),
            self._env(entry, path), cwd, self._line(path),
        )  # fmt: skip

    def _task_name(self, entry: dict[str, Any], path: Path) -> str:
        name: str = self._take(entry, path, "name", str, "")
        if not _NAME.fullmatch(name):
            self._fault(
                (*path, "name"),
                "a task needs a name of letters, digits, '_', '-', '.' and '+', up to 100",
            )
        return name

    def _elements(self, entry: dict[str, Any], path: Path) -> tuple[list[Element], bool]:
        given = [key for key in ARRAYS if key in entry]
        if len(given) > 1:
            self._fault((*path, given[1]), f"a task has either {given[0]} or {given[1]}")
        for key in ("null", "colsep"):
            if key in entry and "each_line" not in entry:
                self._fault((*path, key), f"{key} is only valid with each_line")
        if not given:
            return [Element(1, None)], False
        found: list[Element] = []
        if given[0] == "array":
            numbers = self._parse((*path, "array"), number_ranges, self._text(entry, path, "array"))
            if numbers is not None and numbers.at_once:
                self._fault((*path, "array"), "array has no % here: slots limit what runs at once")
            if numbers is not None and len(numbers) <= RUNS_MAX:
                found = Known.numbers(numbers).take(len(numbers))
            elif numbers is not None:
                self._fault((*path, "array"), f"{len(numbers):,} runs; {RUNS_MAX:,} are allowed")
        elif given[0] == "items":
            texts = self._texts(entry, path, "items")
            found = [Element(number, text) for number, text in enumerate(texts, 1)]
        else:
            found = self._lines_of(entry, path)
        return found, True

    def _lines_of(self, entry: dict[str, Any], path: Path) -> list[Element]:
        name = self._take(entry, path, "each_line", str, "")
        end = b"\0" if self._take(entry, path, "null", bool, False) else b"\n"
        separator = None
        if "colsep" in entry:
            text = self._take(entry, path, "colsep", str, ",")
            separator = self._parse((*path, "colsep"), pattern, text)
        try:
            return [each for batch in batches(Lines(name, end, separator)) for each in batch]
        except (UsageError, OSError) as error:
            self._fault((*path, "each_line"), str(error).replace("--each-line", "each_line"))
            return []

    def _sources(self, entry: dict[str, Any], path: Path, key: str) -> list[Source]:
        """Read names of tasks, one or a list."""
        place = (*path, key)
        texts = self._texts(entry, path, key)
        is_list = isinstance(entry.get(key), list)
        return [
            self._source(text, (*place, number) if is_list else place)
            for number, text in enumerate(texts)
        ]

    def _source(self, text: str, place: Path) -> Source:
        name, colon, element = text.partition(":")
        if not _NAME.fullmatch(name) or (
            colon and element != SAME_NUMBER and not (element.isascii() and element.isdecimal())
        ):
            self._fault(
                place,
                f"{text!r:.60} names no task: write its name for all its runs, name:{SAME_NUMBER} "
                "for the run with the same number, or name:7",
            )
        return Source(name, str(int(element)) if element.isdecimal() else element)

    def _files(self, entry: dict[str, Any], path: Path) -> tuple[dict[str, Source], dict[str, str]]:
        inputs, files = {}, {}
        for name, value in self._take(entry, path, "files", dict, {}).items():
            place = (*path, "files", name)
            if not name or name.startswith("/") or ".." in name.split("/"):
                self._fault(place, f"{name!r:.60} is not a name below the task's directory")
            if isinstance(value, str):
                inputs[name] = self._source(value, place)
            elif isinstance(value, dict) and value.keys() == {"path"}:
                files[name] = self._take(value, place, "path", str, "")
            else:
                self._fault(place, 'a file is the name of a task, or {path = "FILE"}')
        return inputs, files

    def _needs(self, entry: dict[str, Any], path: Path) -> Needs:
        """Read the limits of a task by the options of `ciel submit`."""
        given = self._take(entry, path, "needs", dict, {})
        options = {limit.option.removeprefix("--"): limit for limit in LIMITS if limit.option}
        needs = DEFAULT_NEEDS
        for key, value in given.items():
            place = (*path, "needs", key)
            limit = options.get(key.replace("_", "-"))
            if limit is None:
                self._fault(place, f"unknown limit {key!r:.40}{suggestion(key, options)}")
                continue
            texts = _texts_of(value)
            if texts is None:
                self._fault(place, f"{key} must be a number, a string, a list or a table of them")
                continue
            texts = [",".join(texts)] if limit.kind == "kinds" else texts
            words = [word for text in texts for word in (limit.option, text)]
            found = self._parse(place, _needs_from, words)
            if found is not None:
                needs = needs._replace(**{limit.name: getattr(found, limit.name)})
        return needs

    def _env(self, table: dict[str, Any], path: Path) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in self._take(table, path, "env", dict, {}).items():
            if not name or "=" in name or not isinstance(value, str):
                self._fault((*path, "env", name), f"the variable {name!r:.40} must be a string")
            else:
                found[name] = value
        return found

    # --- values -----------------------------------------------------------------------------------

    def _take(
        self, table: Mapping[str, Any], path: Path, key: str, kind: type, default: Any
    ) -> Any:
        if key not in table:
            return default
        value = table[key]
        if type(value) is not kind:
            self._fault((*path, key), f"{key} must be {_KINDS[kind]}")
            return default
        if isinstance(value, str) and "\0" in value:
            self._fault((*path, key), f"{key} contains a NUL")
        return value

    def _text(self, table: Mapping[str, Any], path: Path, key: str) -> str:
        value = table[key]
        if type(value) is int:
            return str(value)
        return str(self._take(table, path, key, str, "1"))

    def _texts(self, table: Mapping[str, Any], path: Path, key: str) -> list[str]:
        """Read a string, or a list of strings and whole numbers."""
        value = table.get(key, [])
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            self._fault((*path, key), f"{key} must be a list of strings")
            return []
        found = []
        for number, item in enumerate(value):
            if type(item) not in (str, int) or "\0" in str(item):
                self._fault((*path, key, number), f"{key} must contain strings without NUL only")
            found.append(str(item))
        return found

    def _parse(self, place: Path, parse: Callable[[Any], Any], value: Any) -> Any:
        try:
            return parse(value)
        except argparse.ArgumentTypeError as error:
            self._fault(place, str(error))
            return None

    def _reject_unknown(self, table: Mapping[str, Any], path: Path, known: Sequence[str]) -> None:
        for key in table.keys() - set(known):
            self._fault((*path, key), f"unknown key {key!r:.40}{suggestion(key, known)}")

    def _fault(self, place: Path, text: str) -> None:
        self.faults.append(Fault(self._line(place), text))

    def _line(self, place: Path) -> int:
        """Return the line of a key, or, if the key is missing, the line of its table."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place, 1)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentTypeError(message.removeprefix("argument "))


def _needs_from(words: Sequence[str]) -> Needs:
    """Return the needs that options of `ciel submit` describe; raises ArgumentTypeError."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_limits(parser, LIMITS)
    return needs_of(parser.parse_args(words))


def _texts_of(value: Any) -> list[str] | None:
    """Return the words for an option: one, or one for each item of a list or table."""
    if type(value) in (str, int, float):
        return [str(value)]
    if isinstance(value, list):
        return _all_texts(value)
    if isinstance(value, dict):
        texts = _all_texts(value.values())
        return None if texts is None else [f"{k}={t}" for k, t in zip(value, texts, strict=True)]
    return None


def _all_texts(values: Iterable[Any]) -> list[str] | None:
    found = list(values)
    return (
        [str(each) for each in found] if all(type(v) in (str, int, float) for v in found) else None
    )
