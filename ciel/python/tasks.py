"""Functions as tasks: `@ciel.task`, `ciel.spawn` and `ciel.call`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from ciel.core.offers.resources import amounts_json
from ciel.core.tasks import DEFAULT_NEEDS, Needs
from ciel.python.futures import Future
from ciel.python.importable import is_importable
from ciel.python.options import NAME_MAX_LENGTH, USUAL, OptionError, Options, read_options
from ciel.python.sessions import current
from ciel.python.showing import Shown

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")
F = TypeVar("F")
F_co = TypeVar("F_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class Task(Shown, Generic[P, R]):
    """A function whose calls can be tasks. A plain call runs the function as usual."""

    def __init__(self, function: Callable[P, R], options: Options = USUAL) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.task_options = options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @overload
    def spawn(self: Task[P, Coroutine[Any, Any, V]], *args: Any, **kwargs: Any) -> Future[V]: ...

    @overload
    def spawn(self, *args: Any, **kwargs: Any) -> Future[R]: ...

    def spawn(self, *args: Any, **kwargs: Any) -> Any:
        """Submit a call as a task; return its future, or a tuple of futures with `returns`.

        Any argument may be, or contain, a future. Within a task, the call becomes a child of that
        task; elsewhere the innermost active client submits it (NoClientError if none is open).
        Raises PackingError if an argument cannot be pickled.
        """
        return current().call(self, args, kwargs, self.task_options)

    @overload
    def options(self, *, returns: Literal[1] | None = None, **options: Any) -> Task[P, R]: ...

    @overload
    def options(
        self, *, returns: int, **options: Any
    ) -> Several[P, R, tuple[Future[Any], ...]]: ...

    def options(self, **options: Any) -> Any:
        """Return the same function with some options changed; raises OptionError."""
        return Task(self.function, read_options(self.task_options, options))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method that is a task to its object, which is sent with the call."""
        return self if instance is None else _Bound(self, instance)

    def __reduce_ex__(self, protocol: Any) -> Any:
        name = getattr(self, "__qualname__", "")
        return name if is_importable(self) else object.__reduce_ex__(self, protocol)

    def _facts(self) -> Iterator[tuple[str, Any]]:
        options = self.task_options
        yield "", options.name or getattr(self, "__qualname__", self.function)
        for name, value, usual in zip(Needs._fields, options.needs, DEFAULT_NEEDS, strict=True):
            shown = amounts_json(options.needs.resources) if name == "resources" else value
            yield name, shown if value != usual else None
        yield "returns", options.returns if options.returns != 1 else None
        yield "python", options.python


if TYPE_CHECKING:
    _Later = Coroutine[Any, Any, V]

    class Several(Task[P, R], Generic[P, R, F_co]):
        """A task with `returns`, for type checkers: `F_co` is the tuple of its futures."""

        def spawn(self, *args: Any, **kwargs: Any) -> F_co: ...  # type: ignore[override]  # a tuple

        def options(self, **options: Any) -> Several[P, R, F_co]: ...  # type: ignore[override]  # as above

    class _MakesSeveral(Protocol):
        """The type of `ciel.task(returns=2)`."""

        @overload
        def __call__(
            self, function: Callable[P, tuple[A, B]], /
        ) -> Several[P, tuple[A, B], tuple[Future[A], Future[B]]]: ...

        @overload
        def __call__(
            self, function: Callable[P, tuple[A, B, C]], /
        ) -> Several[P, tuple[A, B, C], tuple[Future[A], Future[B], Future[C]]]: ...

        @overload
        def __call__(
            self, function: Callable[P, _Later[tuple[A, B]]], /
        ) -> Several[P, _Later[tuple[A, B]], tuple[Future[A], Future[B]]]: ...

        @overload
        def __call__(
            self, function: Callable[P, _Later[tuple[A, B, C]]], /
        ) -> Several[P, _Later[tuple[A, B, C]], tuple[Future[A], Future[B], Future[C]]]: ...

        @overload
        def __call__(
            self, function: Callable[P, R], /
        ) -> Several[P, R, tuple[Future[Any], ...]]: ...


class _Bound:
    """A method that is a task, bound to its object."""

    def __init__(self, task: Task[Any, Any], instance: object) -> None:
        self._task = task
        self._instance = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._task.function(self._instance, *args, **kwargs)

    def spawn(self, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._task.spawn(self._instance, *args, **kwargs)

    def options(self, **options: Any) -> _Bound:
        return _Bound(self._task.options(**options), self._instance)


@overload
def task(function: Callable[P, R], /, **options: Any) -> Task[P, R]: ...


@overload
def task(  # type: ignore[overload-overlap]  # 1 is an int, too
    *,
    returns: Literal[1] | None = None,
    retries: int | None = None,
    retry_on: tuple[str, ...] | None = None,
    retry_delay_s: float | None = None,
    timeout_s: float | None = None,
    kill_grace_s: float | None = None,
    memory_bytes: int | None = None,
    slots: int | None = None,
    priority: int | None = None,
    io: bool | str | None = None,
    resources: Mapping[str, float | str] | None = None,
    where: str | None = None,
    isolate: str | None = None,
    name: str | None = None,
    python: str | None = None,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


@overload
def task(
    *,
    returns: int,
    retries: int | None = None,
    retry_on: tuple[str, ...] | None = None,
    retry_delay_s: float | None = None,
    timeout_s: float | None = None,
    kill_grace_s: float | None = None,
    memory_bytes: int | None = None,
    slots: int | None = None,
    priority: int | None = None,
    io: bool | str | None = None,
    resources: Mapping[str, float | str] | None = None,
    where: str | None = None,
    isolate: str | None = None,
    name: str | None = None,
    python: str | None = None,
) -> _MakesSeveral: ...


def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Turn a function into a task: `@ciel.task`, or `@ciel.task(retries=2, timeout_s=60)`.

    `returns`: the number of values that the function returns; each has a future. `retries`: how
    often the task is retried; `retry_on`: only after these kinds of failure; `retry_delay_s`: the
    delay of the first retry. `timeout_s`: when the task has run for this time, the worker sends it
    SIGTERM, and SIGKILL after another `kill_grace_s`. `memory_bytes`: the private memory that it
    may use; the worker reserves this memory, and kills a task that exceeds it. `slots`: how many
    slots it occupies. `priority`: tasks with a higher one run first. `io`: the disk that bounds
    its speed, as a path on it; True for the disk of the worker's work directory. `resources`: what
    it has for itself, such as `{"gpu": 1}`. `where`: labels that its worker has, as `zone=b`.
    `isolate`: the level of isolation, which can be "none" or "limits". `name`: for people.
    `python`: the interpreter. Raises OptionError.
    """
    read = read_options(USUAL, options)
    if function is None:
        return lambda function: Task(function, read)
    if not callable(function):
        raise OptionError("task", f"it needs a function, not {function!r:.80}")
    return Task(function, read)


def split_task(function: Any) -> tuple[Callable[..., Any], Options]:
    """Return the function, and the options of its calls."""
    if isinstance(function, Task):
        return function, function.task_options
    if not callable(function):
        raise OptionError("function", f"{function!r:.80} cannot be called")
    return function, USUAL


def name_of(function: Any, options: Options = USUAL) -> str:
    """Return the name of a function's calls, for people."""
    name = options.name or getattr(function, "__qualname__", "") or type(function).__qualname__
    return name.replace("<locals>.", "")[:NAME_MAX_LENGTH]


@overload
def spawn(function: Several[..., Any, F], /, *args: Any, **kwargs: Any) -> F: ...


@overload
def spawn(
    function: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, **kwargs: Any
) -> Future[R]: ...


@overload
def spawn(function: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]: ...


def spawn(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Submit a call of any function as a task, as `Task.spawn` does."""
    called, options = split_task(function)
    return current().call(called, args, kwargs, options)


def call(function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Spawn a call whose result becomes the result of the current task: `return ciel.call(f, x)`.

    The current task ends and releases its slot, without waiting for the call. This function returns
    a future; only its type is that of the result, for type checkers.
    """
    return spawn(function, *args, **kwargs)  # type: ignore[return-value]  # see above
