"""Implements `ciel submit --collect`: copies files that programs wrote to the client (ADR 81).

The task packs the files into an archive, its second output. The command unpacks it below `--out`.
"""

from __future__ import annotations

import argparse
import glob
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ciel.cli.outcome import UsageError
from ciel.cli.output.files import make_directory
from ciel.cli.submission.elements import Element, has_place, substitute
from ciel.cli.submission.result_files import write_whole
from ciel.client.client import Client
from ciel.client.jobs import Job, archive_of
from ciel.core.refs import Reference

_T = TypeVar("_T")
_PIECE_BYTES = 1 << 20


def patterns_of(given: Sequence[str], element: Element) -> list[str]:
    """Return the names and patterns of an element; raises UsageError.

    Special characters in the element itself have no meaning.
    """
    values = tuple([glob.escape(value) for value in element.values])
    escaped = element._replace(text=glob.escape(element.text or ""), values=values)
    patterns = [
        substitute(pattern, escaped) if element.text is not None else pattern for pattern in given
    ]
    for pattern in patterns:
        if not _is_relative(pattern):
            raise UsageError(
                f"--collect {pattern}: expected a name below the directory in which the program "
                "runs, without '..'"
            )
    return patterns


class CollectedFiles:
    """Unpacks the files of each element into its directory."""

    def __init__(self, client: Client, job: Job, args: argparse.Namespace) -> None:
        self._client = client
        self._job = job
        self._patterns: list[str] = args.collect
        self._out: str = args.out
        self._is_array: bool = args.is_array
        is_private = args.scratch or args.inputs or args.objects
        self._runs_in = None if is_private else os.path.abspath(args.cwd or ".")

    def clearing(self, run: Callable[[Element], _T]) -> Callable[[Element], _T]:
        """Wrap `run`, which submits an element: remove files of an earlier run first."""

        def clear_and_run(element: Element) -> _T:
            self._clear(element)
            return run(element)

        return clear_and_run

    def unpack(self, element: Element, output: Reference) -> list[Path]:
        """Unpack the files of an element that has succeeded; return their paths.

        The cluster then deletes the archive. Raises the errors of `Job.read_by`, and OSError.
        """
        archive = archive_of(output)
        paths = self._job.read_by(
            lambda ref: self._unpack(element, self._client.read_chunks(ref)), archive
        )
        self._job.release([archive], for_good=True)
        return paths

    def _directory(self, element: Element) -> Path:
        if not self._is_array:
            return Path(self._out)
        if has_place(self._out):
            return Path(substitute(self._out, element))
        return Path(self._out, str(element.number))

    def _clear(self, element: Element) -> None:
        """Remove the files of an earlier run that are given by name.

        Files that match a pattern may belong to the user.
        """
        directory = self._directory(element)
        make_directory(directory)
        for pattern in patterns_of(self._patterns, element):
            name = glob.escape(pattern) == pattern
            path = directory / pattern
            if not name or (self._runs_in and os.path.abspath(directory) == self._runs_in):
                continue
            try:
                path.unlink(missing_ok=True)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                raise UsageError(f"--out: cannot remove {path} of an earlier run: {why}") from None

    def _unpack(self, element: Element, chunks: Iterable[bytes]) -> list[Path]:
        import tarfile  # few commands need it

        directory = self._directory(element)
        paths: list[Path] = []
        reader = io.BufferedReader(_Chunks(iter(chunks)), _PIECE_BYTES)
        with tarfile.open(fileobj=reader, mode="r|", encoding="utf-8") as tar:
            for info in tar:
                file = tar.extractfile(info) if info.isreg() else None
                if file is None or not _is_relative(info.name):
                    raise OSError(
                        f"the worker sent {info.name!r:.80}, which is not a relative file name"
                    )
                path = directory / info.name
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, iter(lambda: file.read(_PIECE_BYTES), b""))  # noqa: B023
                if info.mode & 0o100:
                    path.chmod(path.stat().st_mode | (path.stat().st_mode & 0o444) >> 2)
                paths.append(path)
        return paths


class _Chunks(io.RawIOBase):
    """A file whose content comes in chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # a buffer of bytes
        while not self._left:
            piece = next(self._chunks, None)
            if piece is None:
                return 0
            self._left = piece
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


def _is_relative(name: str) -> bool:
    parts = name.split("/")
    return bool(name) and "\0" not in name and not name.startswith("/") and ".." not in parts
