"""Captures the caller context: the working directory and the environment of a job's client.

The job's programs and Python calls run with them (docs/where-programs-run.md).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from ciel.client.errors import ContextError
from ciel.core.jobs import CallerContext
from ciel.execution.environment import travelling

ENVIRONMENT_MAX_BYTES: Final = 1 << 20
"""Each job contains its environment, also in the journal. The kernel allows 2 MiB, including
arguments.
"""

Moved = tuple[str, dict[str, str | None]]


def caller_context(
    cwd: str | os.PathLike[str] | None = None,
    *,
    scratch: bool = False,
    env: Mapping[str, str] | None = None,
) -> CallerContext:
    """Return the context that a job takes from this process; raises ContextError.

    `cwd`: a directory instead of the current one. `scratch`: a private directory for each program.
    `env`: variables that are added to the workers' environment; None: this process's environment
    replaces the workers'.
    """
    if scratch and cwd is not None:
        raise ContextError(
            "'cwd' and 'scratch' exclude each other: programs run either in one directory, or each "
            "in a private directory"
        )
    directory = "" if scratch else os.path.abspath(_current() if cwd is None else cwd)
    try:
        directory.encode()
    except UnicodeEncodeError:
        raise ContextError(
            f"the name of the working directory {directory!r} is not UTF-8; go to another "
            "directory, or run programs in private directories (--scratch, in Python scratch=True)"
        ) from None
    variables = travelling(os.environ) if env is None else dict(env)
    size_bytes = sum(len(f"{name}={text}".encode()) for name, text in variables.items())
    if size_bytes > ENVIRONMENT_MAX_BYTES:
        raise ContextError(
            f"the environment has {size_bytes} bytes, and a job may have {ENVIRONMENT_MAX_BYTES}; "
            "with --clean-env (in Python env={}) programs have the environment of their workers"
        )
    return CallerContext(directory, variables, env is None)


def _current() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ContextError(
            "the working directory was removed; go to another directory, or name one (--cwd DIR, "
            "in Python cwd=DIR)"
        ) from None


class Caller:
    """The context of one client's calls, and its changes since the job was submitted."""

    def __init__(
        self,
        cwd: str | os.PathLike[str] | None,
        *,
        scratch: bool,
        env: Mapping[str, str] | None,
    ) -> None:
        self.context = caller_context(cwd, scratch=scratch, env=env)
        self._follows_cwd = cwd is None and not scratch
        self._follows_env = env is None
        self._seen = _variables().copy()
        self._changed: dict[str, str | None] = {}

    def moved(self) -> Moved | None:
        """Return the directory ("": unchanged) and the variables that have changed since then.

        Return None if nothing has changed. Raises ContextError.
        """
        directory = ""
        if self._follows_cwd and (now := _current()) != self.context.cwd:
            directory = now
        if self._follows_env and _variables() != self._seen:
            self._seen = _variables().copy()
            now_set, before = travelling(os.environ), self.context.env
            self._changed = {name: None for name in before if name not in now_set}
            for name, text in now_set.items():
                if before.get(name) != text:
                    self._changed[name] = text
        return (directory, self._changed) if directory or self._changed else None


def _variables() -> dict[bytes, bytes]:
    """Return the content of `os.environ`.

    It is compared for each call, and a comparison by the methods of `os.environ` takes 30 us.
    """
    content: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]  # of CPython
    return content


def log_level() -> int:
    """Return the level of this program's root logger; 0 if it has the default."""
    logging = sys.modules.get("logging")
    if logging is None or logging.root.level == logging.WARNING:
        return 0
    return int(logging.root.level)
