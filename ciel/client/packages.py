"""Package files: a job written down as JSON (the original's format), and its decode templates.

Pure: text in, values out. `parse` refuses whatever is wrong with the key it found it under, before
anything is submitted; `decode_result` says how to read what came back, and is given a function that
fetches an object's content.

    {"package": {"script": {"filename": "job.sw"}},
     "start": {"handler": "swi", "args": {"sw_file_ref": {"__package__": "script"},
                                          "start_env": {"N": {"__args__": 0, "default": "10"}}}},
     "result": [{"__decode_ref__": "json"}]}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ciel.client.errors import PackageError, TemplateError
from ciel.core.errors import CielError
from ciel.core.refs import REFERENCE_TYPES, Reference
from ciel.wire import codec
from ciel.wire.errors import WireError
from ciel.wire.references import from_array, from_json

_KEYS = frozenset(("package", "start", "options", "result"))
_LATER = frozenset(("index", "filenamelist", "urlindex", "urls"))
_DECODERS: Final = ("json", "noop")

Fetch = Callable[[Reference], bytes]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file to be sent along, at an absolute path or one relative to our current directory."""

    path: Path


Entry = FileEntry | Reference


@dataclass(frozen=True, slots=True)
class Package:
    """A package file, checked and with everything filled in but its own entries' references."""

    entries: Mapping[str, Entry]
    handler: str
    args: Mapping[str, Any]
    options: Mapping[str, Any]
    result: Any
    """The decode template; None without one."""

    def start_args(self, references: Mapping[str, Reference]) -> dict[str, Any]:
        """Return the arguments of the first task, now that the entries have references."""
        return {key: _fill_entries(value, references) for key, value in self.args.items()}


def parse(text: str, path: Path, environ: Mapping[str, str], words: Sequence[str]) -> Package:
    """Read a package file found at `path`; `words` are what `__args__` counts from 0.

    Raises PackageError, which names the key, or the line.
    """
    reader = _Reader(path, environ, words)
    package = reader.load(text)
    for key in package:
        if key not in _KEYS:
            reader.fail(key, f"unknown; a package has {', '.join(sorted(_KEYS))}")
    start = reader.object(package, "start")
    if start is None:
        reader.fail("start", "is missing: it says what to run")
    handler = start.get("handler")
    if not isinstance(handler, str) or not handler:
        reader.fail("start.handler", "must name an executor" if handler else "is missing")
    named = reader.object(package, "package") or {}
    entries = {key: reader.entry(f"package.{key}", value) for key, value in named.items()}
    args = reader.filled("start.args", reader.object(start, "args", "start.") or {})
    reader.check_entries("start.args", args, entries)
    reader.check_template("result", template := package.get("result"))
    options = reader.object(package, "options") or {}
    return Package(entries, handler, args, options, template)


def parse_entries(text: str, path: Path, environ: Mapping[str, str]) -> dict[str, Entry]:
    """Read only what a package file brings along, for somebody who starts something himself."""
    reader = _Reader(path, environ, ())
    named = reader.object(reader.load(text), "package") or {}
    return {key: reader.entry(f"package.{key}", value) for key, value in named.items()}


def decode_result(template: Any, value: Any, fetch: Fetch, where: str = "result") -> Any:
    """Apply a template to a value; what it does not mention stays as it is.

    Raises TemplateError when they do not fit, and whatever `fetch` does.
    """
    if template is None:
        return value
    if isinstance(template, list):
        if not isinstance(value, list) or len(value) != len(template):
            raise TemplateError(
                where, f"a list of {len(template)} was expected, not {_kind(value)}"
            )
        pairs = zip(template, value, strict=True)
        return [decode_result(t, v, fetch, f"{where}[{i}]") for i, (t, v) in enumerate(pairs)]
    if "__decode_ref__" in template:
        decoded = _decode(template["__decode_ref__"], value, fetch, where)
        return decode_result(template.get("value"), decoded, fetch, where)
    if "__concat__" in template:
        return _concatenate(template, value, fetch, where)
    if not isinstance(value, dict):
        raise TemplateError(where, f"an object was expected, not {_kind(value)}")
    missing = [key for key in template if key not in value]
    if missing:
        raise TemplateError(where, f"there is no {missing[0]!r}")
    return value | {
        key: decode_result(t, value[key], fetch, f"{where}.{key}") for key, t in template.items()
    }


def _decode(encoding: str, value: Any, fetch: Fetch, where: str) -> Any:
    if not isinstance(value, REFERENCE_TYPES):
        raise TemplateError(where, f"a reference was expected, not {_kind(value)}")
    content = fetch(value)
    if encoding == "noop":
        return content.decode(errors="backslashreplace")
    try:
        return from_json(codec.decode(content))
    except (WireError, CielError) as error:
        raise TemplateError(where, f"object {value.id} is {error}") from None


def _concatenate(template: Mapping[str, Any], value: Any, fetch: Fetch, where: str) -> str:
    if not isinstance(value, list):
        raise TemplateError(where, f"a list of references was expected, not {_kind(value)}")
    inner = template["__concat__"][0]
    encoding = template.get("encoding", "json")
    parts = []
    for i, item in enumerate(value):
        here = f"{where}[{i}]"
        part = decode_result(inner, _decode(encoding, item, fetch, here), fetch, here)
        parts.append(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False))
    return "".join(parts)


def _fill_entries(value: Any, references: Mapping[str, Reference]) -> Any:
    if isinstance(value, dict):
        if "__package__" in value:
            return references[value["__package__"]]
        return {key: _fill_entries(item, references) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_entries(item, references) for item in value]
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean"}
    if value is None:
        return "null"
    if isinstance(value, REFERENCE_TYPES):
        return "a reference"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return names.get(type(value), "a number")


class _Reader:
    """Reads one package file; every complaint names the file and the place in it."""

    def __init__(self, path: Path, environ: Mapping[str, str], words: Sequence[str]) -> None:
        self._path = path
        self._environ = environ
        self._words = words

    def fail(self, where: str, reason: str) -> Any:
        raise PackageError(str(self._path), where, reason)

    def load(self, text: str) -> dict[str, Any]:
        try:
            package = json.loads(text, object_pairs_hook=self._unique)
        except json.JSONDecodeError as error:
            self.fail(f"line {error.lineno}", f"not JSON: {error.msg}")
        except RecursionError:
            self.fail("", "nested too deeply")
        if not isinstance(package, dict):
            self.fail("", "a package is a JSON object")
        return package  # type: ignore[no-any-return]  # checked a line above

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            self.fail(next(key for key in keys if keys.count(key) > 1), "is there twice")
        return found

    def object(self, parent: Mapping[str, Any], key: str, prefix: str = "") -> Any:
        """Return the object under a key; None if there is none."""
        value = parent.get(key)
        if value is not None and not isinstance(value, dict):
            self.fail(prefix + key, f"must be an object, not {_kind(value)}")
        return value

    def entry(self, where: str, spec: Any) -> Entry:
        """Read what stands under one key of `package`."""
        spec = self.filled(where, spec)
        if isinstance(spec, REFERENCE_TYPES):
            return spec
        if not isinstance(spec, dict):
            self.fail(where, f"must be an object, not {_kind(spec)}")
        for key in spec:
            if key in _LATER:
                self.fail(where, f'"{key}" (data split into blocks) cannot be read yet')
            if key not in ("filename", "cwd"):
                self.fail(where, f'"{key}" is unknown; a file is {{"filename": PATH}}')
        name, cwd = spec.get("filename"), spec.get("cwd", False)
        if not isinstance(name, str) or not name:
            self.fail(where, '"filename" must be a path' if "filename" in spec else "names no file")
        if not isinstance(cwd, bool):
            self.fail(where, '"cwd" must be true or false')
        return FileEntry(Path(name) if cwd else self._path.parent / name)

    def filled(self, where: str, value: Any) -> Any:
        """Replace `__env__`, `__args__` and `__ref__` objects wherever they stand in a value."""
        if isinstance(value, list):
            return [self.filled(f"{where}[{i}]", item) for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if "__ref__" in value:
            try:
                return from_array(value["__ref__"])
            except (WireError, CielError) as error:
                self.fail(where, str(error))
        if "__env__" in value:
            return self._from_environment(where, value)
        if "__args__" in value:
            return self._from_words(where, value)
        return {key: self.filled(f"{where}.{key}", item) for key, item in value.items()}

    def _from_environment(self, where: str, spec: Mapping[str, Any]) -> Any:
        name = spec["__env__"]
        if not isinstance(name, str):
            self.fail(where, '"__env__" must name a variable')
        if name in self._environ:
            return self._environ[name]
        if "default" not in spec:
            self.fail(where, f"{name} is not in the environment, and there is no default")
        return spec["default"]

    def _from_words(self, where: str, spec: Mapping[str, Any]) -> Any:
        number = spec["__args__"]
        if type(number) is not int or number < 0:
            self.fail(where, '"__args__" must be a number, from 0')
        if number < len(self._words):
            return self._words[number]
        if "default" not in spec:
            given = f"{len(self._words)} given"
            self.fail(where, f"argument {number} is missing ({given}), and there is no default")
        return spec["default"]

    def check_entries(self, where: str, value: Any, entries: Mapping[str, Entry]) -> None:
        """Refuse a `__package__` that names no entry."""
        if isinstance(value, list):
            for i, item in enumerate(value):
                self.check_entries(f"{where}[{i}]", item, entries)
        elif isinstance(value, dict):
            if "__package__" in value and value["__package__"] not in list(entries):
                self.fail(where, f"the package has no {value['__package__']!r}")
            for key, item in value.items():
                self.check_entries(f"{where}.{key}", item, entries)

    def check_template(self, where: str, template: Any) -> None:
        """Refuse what `decode_result` could not apply to anything."""
        if template is None:
            return
        if isinstance(template, list):
            for i, item in enumerate(template):
                self.check_template(f"{where}[{i}]", item)
        elif not isinstance(template, dict):
            self.fail(where, f"a template is null, a list or an object, not {_kind(template)}")
        elif "__decode_ref__" in template:
            self._check_encoding(where, template["__decode_ref__"])
            self.check_template(f"{where}.value", template.get("value"))
        elif "__concat__" in template:
            inner = template["__concat__"]
            if not isinstance(inner, list) or len(inner) != 1:
                self.fail(where, '"__concat__" must be a list of one template')
            self._check_encoding(where, template.get("encoding", "json"))
            self.check_template(f"{where}.__concat__", inner[0])
        else:
            for key, item in template.items():
                self.check_template(f"{where}.{key}", item)

    def _check_encoding(self, where: str, encoding: Any) -> None:
        if encoding not in _DECODERS:
            known = " and ".join(_DECODERS)
            self.fail(where, f"cannot decode {encoding!r}, only {known}")
