"""The working directory and the environment of a program that runs calls: what a call changes of
them is put right before the next one.
"""

from __future__ import annotations

import functools
import os
import posix
from collections.abc import Callable
from typing import Any


class WrongDirectoryError(Exception):
    """The directory in which calls are to run cannot be entered here."""


class _Variables(dict[bytes, bytes]):
    """The content of `os.environ`; it notes that something was changed."""

    owner: Surroundings

    def __setitem__(self, name: bytes, value: bytes) -> None:
        self.owner.is_changed = True
        super().__setitem__(name, value)

    def __delitem__(self, name: bytes) -> None:
        self.owner.is_changed = True
        super().__delitem__(name)


class Surroundings:
    """The directory and the variables with which each call begins.

    Changes are noted where they are made (`os.environ`, `os.chdir`), since looking for them after
    each call costs more than a small call does. Those that pass these by (`os.putenv`, a library in
    C) are not noticed; the directory is put right after each task in any case.
    """

    def __init__(self) -> None:
        self.is_changed = False
        self._home = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._content = content = _Variables(os.environ._data)  # type: ignore[attr-defined]  # of CPython
        content.owner = self
        self._usual: dict[bytes, bytes] = dict(content)
        self._wanted = self._usual
        self._asked: dict[str, str | None] = {}  # what makes `_wanted` of `_usual`
        self._moved_to = ""
        self._scratch = ""
        self._usual_level: int | None = None  # of the root logger, if it has another one now
        self._fchdir = os.fchdir
        os.environ._data = os.environb._data = content  # type: ignore[attr-defined]  # as above
        for name in ("chdir", "fchdir"):
            noted = self._noting(getattr(os, name))
            setattr(os, name, noted)
            setattr(posix, name, noted)

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.is_changed = True
            return function(*args, **kwargs)

        return noted

    def move(self, directory: str, variables: dict[str, str | None]) -> None:
        """Have the calls of this task begin where their client is by now; "" and {}: where this
        program began.

        Raises WrongDirectoryError.
        """
        if variables != self._asked:
            self._asked, self._wanted = variables, self._usual.copy()
            for name, text in variables.items():
                if text is None:
                    self._wanted.pop(os.fsencode(name), None)
                else:
                    self._wanted[os.fsencode(name)] = os.fsencode(text)
        self._moved_to = directory
        self.put_right()

    def put_right(self) -> None:
        """Undo what a call has changed."""
        content, wanted = self._content, self._wanted
        if content != wanted:
            for name in [name for name in content if name not in wanted]:
                del os.environb[name]
            for name, text in wanted.items():
                if content.get(name) != text:
                    os.environb[name] = text
        try:
            if self._moved_to:
                os.chdir(self._moved_to)
            elif self.is_changed:  # else we are there, see `close`
                self._fchdir(self._home)
        except OSError as error:
            import socket

            raise WrongDirectoryError(
                f"the working directory {self._moved_to!r} cannot be entered on host "
                f"{socket.gethostname()}: {error.strerror}; name one that all workers have "
                "(ciel.Client(cwd=DIR)), or have calls run in private directories "
                "(ciel.Client(scratch=True))"
            ) from None
        self.is_changed = False

    def log_from(self, level: int) -> None:
        """Have the calls of this task log from a level on, as their client does. What has no
        handler goes to standard error, as warnings do.
        """
        import logging

        self._usual_level = logging.root.level
        _log_from(level)

    def scratch(self) -> str:
        """Return the private directory of the task that runs now, made when first asked for."""
        if not self._scratch:
            self._scratch = os.path.join(os.fsdecode(self._usual[b"CIEL_SCRATCH"]), "task")
            os.mkdir(self._scratch, 0o700)
        return self._scratch

    def close(self) -> None:
        """The task is over; the next one says where it begins."""
        if self._usual_level is not None:
            _log_from(self._usual_level)
            self._usual_level = None
        self._fchdir(self._home)
        if self._scratch:
            import shutil

            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = ""


def _log_from(level: int) -> None:
    import logging

    logging.root.setLevel(level)
    if logging.lastResort is not None:
        logging.lastResort.setLevel(level)
