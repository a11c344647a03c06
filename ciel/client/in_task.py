"""The client within a task: its calls are children of that task, on the task's own cluster."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self

from ciel.client.api import Client
from ciel.client.executor import call_each, chunks_of, results_of_map
from ciel.core.errors import CielError
from ciel.python import sessions
from ciel.python.options import Options
from ciel.python.tasks import split_task

_OFFERED: Final = frozenset(
    (
        "aclose", "as_completed", "call", "cancel", "close", "gather", "get", "map", "name", "put",
        "submit", "wait",
    )
)  # fmt: skip


class InTaskError(CielError, AttributeError):
    """A client within a task was asked for what only a client outside has."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"client.{name} does not exist within a task, where a client makes children of the "
            f"task and no jobs; it has {', '.join(sorted(_OFFERED))}. Use client.{name} in the "
            "program that opened the client, or return from the task what it needs there"
        )


class NoTaskError(CielError, RuntimeError):
    """A client that was made within a task was used when no task ran."""

    def __init__(self) -> None:
        super().__init__(
            "this client was made within a task, and no task runs now, as in a thread that a task "
            "left behind: use it before the task ends"
        )


class TaskClient(Client):
    """What `ciel.Client()` is within a task. It belongs to whatever task runs when it is used, so a
    module that opens one can be imported by any number of tasks. Where calls run, and with which
    variables, follows from the task; so the arguments are taken, and change nothing.
    """

    def __init__(self, address: None = None, *, name: str = "", **options: Any) -> None:
        self.name = name

    def __getattribute__(self, name: str) -> Any:
        if name[0] != "_" and name not in _OFFERED:
            raise InTaskError(name)
        return super().__getattribute__(name)

    def __enter__(self) -> Self:
        _session()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do as `close`."""

    def close(self) -> None:
        """Do nothing: there is no connection, and children end with their task at the latest."""

    async def aclose(self) -> None:
        """Do as `close`."""

    def call(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> Any:
        return _session().call(function, args, kwargs, options)

    def map(
        self,
        function: Any,
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Iterator[Any]:
        called, options = split_task(function)
        if options.returns != 1:
            raise ValueError("the functions of a map return one value each")

        def begin(rows: list[tuple[Any, ...]], size: int | None) -> list[Any]:
            chunks = chunks_of(rows, size or 1)
            return [self.call(call_each, (called, chunk), {}, options) for chunk in chunks]

        return results_of_map(begin, iterables, timeout, chunksize, buffersize)

    def put(self, value: Any) -> Any:
        return _session().put(value)

    def wait(
        self,
        futures: Iterable[Any],
        timeout: float | None = None,
        return_when: str = sessions.ALL_COMPLETED,
    ) -> tuple[set[Any], set[Any]]:
        return _session().wait(futures, timeout, return_when)

    def as_completed(self, futures: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        return _session().as_completed(futures, timeout)

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield "", f"of a task, in process {os.getpid()}"


def _session() -> sessions.Session:
    found = sessions.of_task()
    if found is None:
        raise NoTaskError
    return found
