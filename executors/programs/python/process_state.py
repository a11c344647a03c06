"""Restores the working directory, the environment and the log level of a program between calls."""

from __future__ import annotations

import functools
import os
import posix
from collections.abc import Callable
from typing import Any


class WrongDirectoryError(Exception):
    """The working directory of the calls cannot be entered on this host."""


class _Environment(dict[bytes, bytes]):
    """The content of `os.environ`; it sets a flag when it is changed."""

    owner: ProcessState

    def __setitem__(self, name: bytes, value: bytes) -> None:
        self.owner.is_changed = True
        super().__setitem__(name, value)

    def __delitem__(self, name: bytes) -> None:
        self.owner.is_changed = True
        super().__delitem__(name)


class ProcessState:
    """The directory and the environment with which each call starts.

    `os.environ` and `os.chdir` set a flag when a call changes something, since a comparison after
    each call takes longer than a small call. Changes in other ways (`os.putenv`, a library in C)
    are not detected. The directory is restored after each task in any case.
    """

    def __init__(self) -> None:
        self.is_changed = False
        self._home = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._content = content = _Environment(os.environ._data)  # type: ignore[attr-defined]  # of CPython
        content.owner = self
        self._usual: dict[bytes, bytes] = dict(content)
        self._wanted = self._usual
        self._asked: dict[str, str | None] = {}  # the difference of `_wanted` and `_usual`
        self._directory = ""
        self._scratch = ""
        self._usual_level: int | None = None  # of the root logger, while it has another one
        self._fchdir = os.fchdir
        os.environ._data = os.environb._data = content  # type: ignore[attr-defined]  # as above
        for name in ("chdir", "fchdir"):
            flagging = self._flagging(getattr(os, name))
            setattr(os, name, flagging)
            setattr(posix, name, flagging)

    def _flagging(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def flagging(*args: Any, **kwargs: Any) -> Any:
            self.is_changed = True
            return function(*args, **kwargs)

        return flagging

    def move(self, directory: str, variables: dict[str, str | None]) -> None:
        """Set the directory and the changes of the environment with which this task's calls start.

        The directory "" is the one in which this program started. Raises WrongDirectoryError.
        """
        if variables != self._asked:
            self._asked, self._wanted = variables, self._usual.copy()
            for name, text in variables.items():
                if text is None:
                    self._wanted.pop(os.fsencode(name), None)
                else:
                    self._wanted[os.fsencode(name)] = os.fsencode(text)
        self._directory = directory
        self.restore()

    def restore(self) -> None:
        """Undo the changes of a call."""
        content, wanted = self._content, self._wanted
        if content != wanted:
            for name in [name for name in content if name not in wanted]:
                del os.environb[name]
            for name, text in wanted.items():
                if content.get(name) != text:
                    os.environb[name] = text
        try:
            if self._directory:
                os.chdir(self._directory)
            elif self.is_changed:  # otherwise `close` has restored it
                self._fchdir(self._home)
        except OSError as error:
            import socket

            raise WrongDirectoryError(
                f"the working directory {self._directory!r} cannot be entered on host "
                f"{socket.gethostname()}: {error.strerror}; name a directory that all workers have "
                "(ciel.Client(cwd=DIR)), or let calls run in private directories "
                "(ciel.Client(scratch=True))"
            ) from None
        self.is_changed = False

    def set_log_level(self, level: int) -> None:
        """Set the log level of the root logger, for this task, to the client's level.

        Records without a handler go to standard error, as warnings do.
        """
        import logging

        self._usual_level = logging.root.level
        _set_log_level(level)

    def scratch(self) -> str:
        """Return the private directory of the current task; the first call creates it."""
        if not self._scratch:
            self._scratch = os.path.join(os.fsdecode(self._usual[b"CIEL_SCRATCH"]), "task")
            os.mkdir(self._scratch, 0o700)
        return self._scratch

    def close(self) -> None:
        """End a task: restore the log level and the directory, remove the private directory."""
        if self._usual_level is not None:
            _set_log_level(self._usual_level)
            self._usual_level = None
        self._fchdir(self._home)
        if self._scratch:
            import shutil

            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = ""


def _set_log_level(level: int) -> None:
    import logging

    logging.root.setLevel(level)
    if logging.lastResort is not None:
        logging.lastResort.setLevel(level)
