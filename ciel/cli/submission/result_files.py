"""The files that `ciel submit --out` writes: one for each element.

A file gets its name only when it is complete. The command removes the file of an earlier run before
the element runs, so that all files that it leaves are from this run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from ciel.cli.outcome import UsageError
from ciel.cli.output.files import make_directory
from ciel.cli.submission.elements import Element, has_place, substitute
from ciel.client.data.files import whole_file

_T = TypeVar("_T")
ERROR: Final = ".err"
"""The suffix of a file with the standard error of a run; there is none if it is empty."""
FAILED: Final = ".failed"
"""The suffix of a file with the output of a failed run."""


class ResultFiles:
    """Names and writes the files.

    `out` is a directory, in which the numbers of elements name the files; or, in an array, a file
    name with `{}` or `{#}` in it.
    """

    def __init__(self, out: str, is_array: bool, *, with_errors: bool = False) -> None:
        """`with_errors`: a second file, with the suffix `ERROR`, gets standard error."""
        self._out = out
        self._errors: dict[str, Path] | None = {} if with_errors else None  # by number
        self._is_template = is_array and has_place(out)
        self._may_repeat = self._is_template and "{#}" not in out
        self._owners: dict[int, int] = {}  # by the hash of a file name: its element
        self._directories: set[Path] = set()  # directories that exist
        if not self._is_template:
            make_directory(Path(out))

    def path(self, element: Element) -> Path:
        """Return the path of the file of an element."""
        if self._is_template:
            return Path(substitute(self._out, element))
        return Path(self._out, str(element.number))

    def clearing(self, run: Callable[[Element], _T]) -> Callable[[Element], _T]:
        """Wrap `run`, which submits an element, so that `clear` is called first."""

        def clear_and_run(element: Element) -> _T:
            self.clear(element)
            return run(element)

        return clear_and_run

    def clear(self, element: Element) -> None:
        """Remove the file of an earlier run.

        Raises UsageError if that fails, or if two elements of this run have the same file.
        """
        path = self.path(element)
        if self._may_repeat:
            owner = self._owners.setdefault(hash(str(path)), element.number)
            if owner != element.number:
                raise UsageError(
                    f"--out {self._out}: elements {owner} and {element.number} would both be "
                    f"written to {path}; use {{#}}, which is different for each"
                )
        if self._is_template and path.parent not in self._directories:
            make_directory(path.parent)
            self._directories.add(path.parent)
        old_files = [path, _failed(path)]
        if self._errors is not None:
            self._errors[str(element.number)] = path.with_name(f"{path.name}{ERROR}")
            old_files.append(self._errors[str(element.number)])
        for old in old_files:
            try:
                old.unlink(missing_ok=True)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                raise UsageError(f"--out: cannot remove {old} of an earlier run: {why}") from None

    def write(self, element: Element, chunks: Iterable[bytes]) -> Path:
        """Write the output of a run; return the path."""
        return write_whole(self.path(element), chunks)

    def write_error(self, number: str, text: str) -> None:
        """Add lines to the file with the standard error of an element."""
        if self._errors is not None and number in self._errors:
            with open(self._errors[number], "a", encoding="utf-8") as file:
                file.write(text)

    def write_failed(self, element: Element, chunks: Iterable[bytes]) -> Path:
        """Write the output of a failed run, with the suffix `FAILED`."""
        return write_whole(_failed(self.path(element)), chunks)


def _failed(path: Path) -> Path:
    return path.with_name(f"{path.name}{FAILED}")


def write_whole(path: Path, chunks: Iterable[bytes]) -> Path:
    """Write a file that gets its name only when it is complete; return its path."""
    with whole_file(path) as file:
        file.writelines(chunks)
    return path
