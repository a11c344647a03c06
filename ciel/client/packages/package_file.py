"""Parses package files: jobs described in JSON, as the original CIEL did (docs/packages.md). Pure.

`parse` refuses a faulty package before anything is submitted, and names the file, line and key of
the fault. The module `entries` checks and uploads the files that the entries name, and `templates`
decodes the result.

    {"package": {"script": {"filename": "job.sw"}},
     "start": {"handler": "swi", "args": {"sw_file_ref": {"__package__": "script"},
                                          "start_env": {"N": {"__args__": 0, "default": "10"}}}},
     "options": {"scheduler": "tworandom"},
     "result": [{"__decode_ref__": "json"}]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from ciel.client.errors import PackageError
from ciel.client.packages.json_lines import JsonFault, Steps, line_of, read_json, where_of
from ciel.client.packages.specs import Entry, SpecFault, read_entry
from ciel.client.packages.templates import faults, kind_of
from ciel.core.errors import CielError, InvalidSchedulingError
from ciel.core.refs import Fetch, Piped, Reference, Tombstone
from ciel.core.scheduling import DEFAULT_SCHEDULING, Scheduling, read_scheduling
from ciel.wire.errors import WireError
from ciel.wire.references import from_array

_SUBSTITUTES: Final = ("__env__", "__args__")
_KEYS: Final = ("package", "start", "options", "result")
_OPTIONS: Final = ("scheduler", "sched_opts", "journal", "journal_sync_buffer")
_BY_EXECUTOR: Final = "execfeatures"  # a policy of the ms705 fork; the scheduler always does this


@dataclass(frozen=True, slots=True)
class PackageFile:
    """The text of a package, and its path, to which file names are relative."""

    path: Path
    text: str

    def error(self, steps: Sequence[str | int], reason: str) -> PackageError:
        """Return the error of the value at `steps`."""
        line = line_of(self.text, steps)
        return PackageError(str(self.path), line, where_of(steps), reason)

    def read(self) -> dict[str, Any]:
        """Return the JSON object; raises PackageError."""
        try:
            package = read_json(self.text)
        except JsonFault as fault:
            raise PackageError(str(self.path), fault.line, fault.where, fault.reason) from None
        if not isinstance(package, dict):
            raise self.error((), f"a package is a JSON object, not {kind_of(package)}")
        return package


class Options(NamedTuple):
    """The options of a package. `idle`: names of options that have no effect."""

    scheduling: Scheduling = DEFAULT_SCHEDULING
    idle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Package:
    """A checked package file. Everything is substituted except the references of its entries."""

    file: PackageFile
    entries: Mapping[str, Entry]
    handler: str
    args: Mapping[str, Any]
    options: Options
    result: Any
    """The decode template; None without one."""

    def start_args(self, references: Mapping[str, Reference]) -> dict[str, Any]:
        """Return the arguments of the first task, with the references of the entries."""
        return {key: _fill_entries(value, references) for key, value in self.args.items()}


def parse(
    file: PackageFile,
    environ: Mapping[str, str],
    words: Sequence[str],
    *,
    can_save: bool = False,
) -> Package:
    """Read a package; raises PackageError.

    `words` are the arguments that `__args__` numbers from 0. `can_save`: the result may save
    objects as files.
    """
    reader = _Reader(file, environ, words)
    package = file.read()
    reader.require_known((), package, _KEYS, "a package file has")
    if "start" not in package:
        reader.fail((), '"start", the task to run, is missing')
    start = reader.object(package, "start")
    reader.require_known(("start",), start, ("handler", "args"), '"start" has')
    if "handler" not in start:
        reader.fail(("start",), '"handler", the name of the executor, is missing')
    handler = start["handler"]
    if not isinstance(handler, str) or not handler:
        reader.fail(("start", "handler"), f"must name an executor, not be {kind_of(handler)}")
    entries = reader.entries(package)
    args = reader.filled(("start", "args"), reader.object(start, "args", ("start",)))
    reader.check_entries(("start", "args"), args, entries)
    options = reader.options(package)
    for steps, reason in faults(package.get("result"), ("result",), can_save=can_save):
        reader.fail(steps, reason)
    return Package(file, entries, handler, args, options, package.get("result"))


def parse_entries(file: PackageFile, environ: Mapping[str, str]) -> dict[str, Entry]:
    """Read only the entries of a package, for a caller that starts another task with them."""
    return _Reader(file, environ, ()).entries(file.read())


def _fill_entries(value: Any, references: Mapping[str, Reference]) -> Any:
    if isinstance(value, dict):
        if "__package__" in value:
            return references[value["__package__"]]
        return {key: _fill_entries(item, references) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_entries(item, references) for item in value]
    return value


class _Reader:
    """Reads one package; each error names the file, the line and the key."""

    def __init__(self, file: PackageFile, environ: Mapping[str, str], words: Sequence[str]) -> None:
        self._file = file
        self._environ = environ
        self._words = words

    def fail(self, steps: Steps, reason: str) -> NoReturn:
        raise self._file.error(steps, reason)

    def object(self, parent: Mapping[str, Any], key: str, steps: Steps = ()) -> dict[str, Any]:
        """Return the object under a key; an empty object if the key is missing."""
        value = parent.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fail((*steps, key), f"must be an object, not {kind_of(value)}")
        return value

    def require_known(
        self, steps: Steps, value: Mapping[str, Any], known: Sequence[str], whose: str
    ) -> None:
        for key in value:
            if key not in known:
                self.fail((*steps, key), f"unknown; {whose} {', '.join(known)}")

    def entries(self, package: Mapping[str, Any]) -> dict[str, Entry]:
        """Read all entries."""
        return {
            key: self._entry(("package", key), spec)
            for key, spec in self.object(package, "package").items()
        }

    def _entry(self, steps: Steps, spec: Any) -> Entry:
        filled = self.filled(steps, spec)
        try:
            return read_entry(filled, self._file.path.parent)
        except SpecFault as fault:
            self.fail((*steps, *fault.steps), fault.reason)

    def options(self, package: Mapping[str, Any]) -> Options:
        """Read the job's options."""
        options = self.object(package, "options")
        self.require_known(("options",), options, _OPTIONS, "the options of a job are")
        policy = options.get("scheduler", DEFAULT_SCHEDULING.policy)
        if not isinstance(policy, str):
            self.fail(("options", "scheduler"), f"must name a policy, not be {kind_of(policy)}")
        policy = DEFAULT_SCHEDULING.policy if policy == _BY_EXECUTOR else policy
        sched_opts = self.object(options, "sched_opts", ("options",))
        key = "scheduler"
        try:
            read_scheduling(policy)
            key = "sched_opts"
            scheduling = read_scheduling(policy, sched_opts)
        except InvalidSchedulingError as error:
            self.fail(("options", key), str(error))
        if not isinstance(options.get("journal", False), bool):
            self.fail(("options", "journal"), "must be true or false")
        every = options.get("journal_sync_buffer", 1)
        if type(every) is not int or every < 1:
            self.fail(("options", "journal_sync_buffer"), "must be a number of records, from 1")
        return Options(scheduling, tuple(key for key in _OPTIONS[2:] if key in options))

    # --- substitution -----------------------------------------------------------------------------

    def filled(self, steps: Steps, value: Any) -> Any:
        """Substitute the `__env__`, `__args__` and `__ref__` objects at any depth of a value."""
        if isinstance(value, list):
            return [self.filled((*steps, i), item) for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if "__ref__" in value:
            return self._reference(steps, value["__ref__"])
        for mark in _SUBSTITUTES:
            if mark in value:
                return self._substitute(steps, value, mark)
        return {key: self.filled((*steps, key), item) for key, item in value.items()}

    def _reference(self, steps: Steps, array: Any) -> Reference:
        try:
            ref = from_array(array)
        except (WireError, CielError) as error:
            self.fail((*steps, "__ref__"), str(error))
        if isinstance(ref, Fetch):
            self.fail((*steps, "__ref__"), f'write {{"urls": ["{ref.url}"]}} to have a URL fetched')
        if isinstance(ref, Piped | Tombstone):
            self.fail(
                (*steps, "__ref__"), "it is the reference of a deleted object, which cannot be read"
            )
        return ref

    def _substitute(self, steps: Steps, spec: Mapping[str, Any], mark: str) -> Any:
        self.require_known(steps, spec, (mark, "default"), f'an object with "{mark}" has')
        found, missing = (self._variable if mark == "__env__" else self._word)(steps, spec[mark])
        if found is None:
            if "default" not in spec:
                self.fail(steps, f"{missing}, and it has no default")
            return self.filled((*steps, "default"), spec["default"])
        is_sent = steps[0] != "package"  # names of files are not sent
        if is_sent and any("\ud800" <= letter <= "\udfff" for letter in found):
            self.fail(steps, "its value is not UTF-8")
        return found

    def _variable(self, steps: Steps, name: Any) -> tuple[str | None, str]:
        if not isinstance(name, str):
            self.fail((*steps, "__env__"), f"must name a variable, not be {kind_of(name)}")
        return self._environ.get(name), f"{name} is not in the environment"

    def _word(self, steps: Steps, number: Any) -> tuple[str | None, str]:
        if type(number) is not int or number < 0:
            self.fail((*steps, "__args__"), "must be the number of an argument, from 0")
        given = len(self._words)
        word = self._words[number] if number < given else None
        return word, f"argument {number} is missing ({given} given)"

    def check_entries(self, steps: Steps, value: Any, entries: Mapping[str, Entry]) -> None:
        """Refuse a `__package__` that names no entry."""
        if isinstance(value, list):
            for i, item in enumerate(value):
                self.check_entries((*steps, i), item, entries)
        elif isinstance(value, dict) and "__package__" in value:
            self.require_known(steps, value, ("__package__",), 'an object with "__package__" has')
            key = value["__package__"]
            if not isinstance(key, str):
                self.fail((*steps, "__package__"), f"must be a key, not {kind_of(key)}")
            if key not in entries:
                self.fail((*steps, "__package__"), f"the package has no entry {key!r}")
        elif isinstance(value, dict):
            for key, item in value.items():
                self.check_entries((*steps, key), item, entries)
