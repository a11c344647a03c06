"""Runs the initializer of an executor in each process before the first call there."""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Callable
from concurrent import futures
from typing import Any

from ciel.python.importable import is_importable


class InitializerError(futures.BrokenExecutor):
    """The initializer of an executor failed in a process of the cluster; the executor is broken."""


class Initializer:
    """The initializer of an executor. It is sent with each call, and runs once in each process."""

    def __init__(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
        self.token = uuid.uuid4().hex
        self._initializer = initializer
        self._initargs = initargs

    def run_once(self) -> None:
        """Run the initializer if it has not run in this process.

        If its code is sent with the function, it runs once for each copy of the variables that both
        refer to.
        """
        key = (os.getpid(), self.token)
        known: Any = _prepared_here
        if not is_importable(self._initializer):
            known, key = _prepared_copies.setdefault(self, {}), (os.getpid(), "")
        if key not in known:
            before = os.environ.copy()
            try:
                self._initializer(*self._initargs)
                now = os.environ.copy()
                names = [name for name in before | now if before.get(name) != now.get(name)]
                known[key] = {name: now.get(name) for name in names}
            except Exception as error:
                known[key] = error
        failed = known[key]
        if isinstance(failed, dict):  # the process restores its environment after each call
            for name, text in failed.items():
                if text is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = text
        else:
            raise InitializerError(
                f"the initializer of the executor raised {type(failed).__name__}: {failed}"
            ) from failed


class InitializedFunction:
    """A function that is called after an initializer has run.

    The state that the initializer and the calls leave in a process stays for all later calls.
    """

    keeps_state = True

    def __init__(self, function: Callable[..., Any], initializer: Initializer) -> None:
        self._function = function
        self._initializer = initializer
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._initializer.run_once()
        return self._function(*args, **kwargs)


_Outcomes = dict[tuple[int, str], BaseException | dict[str, str | None]]
"""By process and executor: the variables that the initializer has set, or its error."""

_prepared_here: _Outcomes = {}
_prepared_copies: weakref.WeakKeyDictionary[Any, _Outcomes] = weakref.WeakKeyDictionary()
