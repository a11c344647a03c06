"""The client that a task gets when it opens one: its calls are children of the task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self

from ciel.client.errors import ContextError
from ciel.client.executor import Executor
from ciel.core.errors import CielError
from ciel.python import sessions
from ciel.python.futures import Future, futures_in
from ciel.python.tasks import Options, split_task

_OF_PLACES: Final = ("cwd", "env", "scratch")


class NotInTasksError(CielError, AttributeError):
    """A task used a part of a client that only a program outside of the cluster has."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"a client that a task opens has no {name!r}: it makes children of the task, by "
            "submit, map and put. To have all of a client, name a cluster: ciel.Client(address)"
        )


class TaskClient:
    """What `ciel.Client()` returns in a task: a client of the cluster that runs the task.

    A wait for a result gives the slot away, as with `ciel.spawn`. A module may keep the client:
    each task that uses it makes children of its own. `close` leaves them as they are.
    """

    def __init__(self, options: Iterable[str]) -> None:
        for option in _OF_PLACES:
            if option in options:
                raise ContextError(f"{option}: what a task calls runs where the task runs")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the children as they are."""

    def close(self) -> None:
        """Leave the children as they are."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Make a child of a call, as `ciel.spawn`."""
        called, options = split_task(function)
        return self.call(called, args, kwargs, options)

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
    ) -> Any:
        """Make a child of a call with these options; with `returns`, return a tuple of futures."""
        return _session().call(function, args, kwargs, options)

    def map(
        self, function: Callable[..., Any], /, *iterables: Iterable[Any], **options: Any
    ) -> Iterator[Any]:
        """Yield the results of calls, as `Executor.map` does."""
        return Executor(client=_session()).map(function, *iterables, **options)  # type: ignore[arg-type]  # any session will do

    def put(self, value: Any) -> Future[Any]:
        """Store a value once, to be given to many children."""
        return _session().put(value)

    def get(self, futures: Any, timeout: float | None = None) -> Any:
        """Return the value of a future, or those of a list, a tuple or a dict of futures."""
        if isinstance(futures, dict):
            return dict(zip(futures, self.get(list(futures.values()), timeout), strict=True))
        if isinstance(futures, list | tuple):
            _, missing = self.wait(futures, timeout)
            if missing:
                raise TimeoutError(f"not all values were there after {timeout} s")
            return type(futures)(future.result() for future in futures)
        return futures.result(timeout)

    def gather(self, *futures: Any) -> list[Any]:
        """Return the values of futures, in order; see `ciel.gather`."""
        return sessions.gather(*futures)

    def wait(
        self,
        futures: Iterable[Any],
        timeout: float | None = None,
        return_when: str = sessions.ALL_COMPLETED,
    ) -> tuple[set[Any], set[Any]]:
        """Wait as `concurrent.futures.wait` does."""
        return _session().wait(futures, timeout, return_when)

    def as_completed(self, futures: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        """Yield futures as they are done; raises TimeoutError when all of it takes longer."""
        return _session().as_completed(futures, timeout)

    def cancel(self, futures: Any) -> None:
        """Call off a future, or several."""
        for future in [futures] if isinstance(futures, Future) else futures_in(futures):
            future.cancel()

    def __getattr__(self, name: str) -> Any:
        raise NotInTasksError(name)

    def __repr__(self) -> str:
        return "<ciel.Client of the task in which it is used>"


def _session() -> sessions.Session:
    """Return the task in which we are; raises NoClientError where none runs."""
    found = sessions.of_task()
    if found is None:
        raise sessions.NoClientError
    return found
