"""Turns the entries of a package into references: uploads files, and adds tasks that fetch URLs.

`check_entries` checks all entries before anything is submitted. Then `upload` uploads the files,
before the job is submitted, and `fetch` adds tasks to the job that fetch the URLs. An entry of
several files or URLs becomes an index: an object that lists references to its pieces. All objects
of a package exist as long as the job.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ciel.client.data.pieces import sections
from ciel.client.data.uploads import Uploads
from ciel.client.errors import PackageError, QueryError, TaskFailedError
from ciel.client.packages.json_lines import Steps
from ciel.client.packages.package_file import Package, PackageFile
from ciel.client.packages.specs import (
    PARTS_MAX,
    Entry,
    FileBlocks,
    ListedFiles,
    ListedUrls,
    Urls,
    WholeFile,
)
from ciel.core.errors import CielError
from ciel.core.naming import all_references
from ciel.core.refs import REFERENCE_TYPES, Future, Reference
from ciel.wire import codec
from ciel.wire.errors import WireError
from ciel.wire.references import from_json, to_json
from ciel.wire.sources import read_source

if TYPE_CHECKING:
    from ciel.client.jobs.client import JobClient
    from ciel.client.jobs.job import Job

TEXT_MAX_BYTES: Final = 256 << 20
"""The size limit of a package and of its lists. It is enough for two million entries, and stops the
reading of endless files."""


class FileParts(NamedTuple):
    """The files whose contents are the pieces of an index."""

    paths: tuple[Path, ...]
    copies: int


Ready = WholeFile | FileBlocks | FileParts | Urls | Reference
"""An entry that was checked."""


class Uploaded(NamedTuple):
    """The objects of a package by key, and the pieces to which only its indices refer."""

    package: dict[str, Reference]
    pieces: list[Reference]


# --- checking -------------------------------------------------------------------------------------


def open_package(path: Path) -> PackageFile:
    """Return the text of a package file; raises PackageError."""
    return PackageFile(path, _decoded(path, _content(path)))


def check_entries(file: PackageFile, entries: Mapping[str, Entry]) -> dict[str, Ready]:
    """Read the lists that entries name, and check that all files are readable.

    Raises PackageError.
    """
    return {key: _checked(file, key, entry) for key, entry in entries.items()}


def _checked(file: PackageFile, key: str, entry: Entry) -> Ready:
    steps = ("package", key)
    if isinstance(entry, WholeFile | FileBlocks | ListedFiles | ListedUrls):
        if reason := _unreadable(entry.path):
            raise file.error(steps, reason)
    if isinstance(entry, FileBlocks) and not entry.block_count:
        count = -(-entry.path.stat().st_size // entry.block_bytes)
        if count > PARTS_MAX:
            reason = f"{entry.path} would have {count} blocks; at most {PARTS_MAX} are allowed"
            raise file.error((*steps, "block_size"), reason)
    if isinstance(entry, ListedFiles):
        return _listed_files(file, key, entry)
    if isinstance(entry, ListedUrls):
        return _listed_urls(file, key, entry)
    return entry


def _listed_files(file: PackageFile, key: str, entry: ListedFiles) -> FileParts:
    content = _content(entry.path)
    paths = []
    for number, line in _lines(entry.path, content):
        path = entry.directory / os.fsdecode(line)
        if reason := _unreadable(path):
            raise PackageError(str(entry.path), number, "", f"{reason} ({_named_by(file, key)})")
        paths.append(path)
    return FileParts(tuple(paths), entry.copies)


def _listed_urls(file: PackageFile, key: str, entry: ListedUrls) -> Urls:
    content = _content(entry.path)
    _decoded(entry.path, content)
    sources = []
    for number, line in _lines(entry.path, content):
        url = line.decode()
        try:
            sources.append(read_source(url))
        except ValueError as error:
            reason = f"{url!r:.200} {error} ({_named_by(file, key)})"
            raise PackageError(str(entry.path), number, "", reason) from None
    return Urls(tuple(sources), entry.repeat)


def _lines(path: Path, content: bytes) -> Iterable[tuple[int, bytes]]:
    """Return the lines that are not blank, with their numbers."""
    lines = [(n, line.strip()) for n, line in enumerate(content.split(b"\n"), 1)]
    found = [(n, line) for n, line in lines if line]
    if len(found) > PARTS_MAX:
        raise PackageError(str(path), len(lines), "", f"more than {PARTS_MAX} lines")
    return found


def _named_by(file: PackageFile, key: str) -> str:
    return f"listed for {key!r} in {file.path}"


def _unreadable(path: Path) -> str:
    """Return why a file cannot be uploaded; empty if it can."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, ValueError):
        return f"there is no file {path}"
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not stat.S_ISREG(mode):
        return f"{path} is {'a directory' if stat.S_ISDIR(mode) else 'not a regular file'}"
    return "" if os.access(path, os.R_OK) else f"this user may not read {path}"


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(TEXT_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise PackageError(str(path), 0, "", reason or "there is no such file") from None
    if len(content) > TEXT_MAX_BYTES:
        raise PackageError(str(path), 0, "", f"longer than {TEXT_MAX_BYTES >> 20} MiB")
    return content


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PackageError(str(path), line, "", "not UTF-8") from None


def require_makers(client: JobClient, package: Package) -> None:
    """Refuse references to objects that do not exist and that no task produces.

    The job would wait for them for ever. Raises PackageError.
    """
    given = {"package": dict(package.entries), "start": {"args": dict(package.args)}}
    for steps, object_id in _futures(given, ()):
        try:
            found = client.ask("object", {"object": object_id})
        except QueryError:
            found = None
        if found is None or (found["made_by"] is None and found["state"] == "expected"):
            raise package.file.error(steps, f"no known task produces object {object_id}")


def _futures(value: Any, steps: Steps) -> Iterator[tuple[Steps, str]]:
    if isinstance(value, Future):
        yield steps, value.id
    elif type(value) in (dict, list):
        for step, item in value.items() if isinstance(value, dict) else enumerate(value):
            if type(item) in (dict, list, Future):
                yield from _futures(item, (*steps, step))


# --- uploading ------------------------------------------------------------------------------------


def upload(client: JobClient, entries: Mapping[str, Ready]) -> Uploaded:
    """Upload all files, but fetch no URLs. Raises OSError, UploadError."""
    uploaded = Uploaded({}, [])
    with Uploads(client) as uploads:
        for key, entry in entries.items():
            if isinstance(entry, WholeFile):
                uploaded.package[key] = uploads.add_path(entry.path, entry.copies)
            elif isinstance(entry, FileBlocks):
                _add_index(client, uploaded, key, _blocks(uploads, entry))
            elif isinstance(entry, FileParts):
                pieces = [uploads.add_path(path, entry.copies) for path in entry.paths]
                _add_index(client, uploaded, key, pieces)
            elif not isinstance(entry, Urls):
                uploaded.package[key] = entry
    return uploaded


def fetch(
    client: JobClient, job: Job, entries: Mapping[str, Ready], uploaded: Uploaded
) -> Uploaded:
    """Add tasks to a job that fetch each URL once, wait, and add the objects to `uploaded`.

    Raises TaskFailedError, UploadError and as `Job.read`.
    """
    listed = {key: entry for key, entry in entries.items() if isinstance(entry, Urls)}
    urls = [url for entry in listed.values() for url in entry.sources if isinstance(url, str)]
    outputs = {
        url: job.add("grab", {"args": {"urls": [url]}}, name="grab")[0]
        for url in dict.fromkeys(urls)
    }
    job.want(outputs.values())
    try:
        fetched = {url: _fetched_object(url, job.read(output)) for url, output in outputs.items()}
    except TaskFailedError as error:
        job.release([output for output in outputs.values() if output.id != error.failure.id])
        job.close()  # it ends as failed, since it still wants the failed output
        job.wait()
        raise
    # Not for good: the job keeps these tasks, and each of them the object that it has fetched.
    job.release(outputs.values())
    for key, entry in listed.items():
        pieces = [fetched[s] if isinstance(s, str) else s for s in entry.sources]
        _add_index(client, uploaded, key, pieces * entry.repeat)
    return uploaded


def _fetched_object(url: str, content: bytes) -> Reference:
    """Return the reference to a fetched object; `content` is the result of the task."""
    fault = f"the task that fetched {url} (executor grab) has written no reference to the object"
    try:
        ref = from_json(codec.decode(content))
    except (WireError, CielError) as error:
        raise WireError(f"{fault}: {error}") from None
    if not isinstance(ref, REFERENCE_TYPES):
        raise WireError(fault)
    return ref


def _blocks(uploads: Uploads, entry: FileBlocks) -> list[Reference]:
    with entry.path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        block_bytes = entry.block_bytes
        if entry.block_count:
            block_bytes = max(1, -(-size_bytes // entry.block_count))
        return [
            uploads.add(block, f"block {number} of {entry.path}", entry.copies)
            for number, block in enumerate(sections(file, size_bytes, block_bytes, entry.delimiter))
        ]


def _add_index(client: JobClient, uploaded: Uploaded, key: str, pieces: list[Reference]) -> None:
    index = codec.encode(to_json(pieces))
    uploaded.package[key] = client.upload_content(index, f"the index of {key!r}")
    uploaded.pieces.extend(all_references(pieces))
