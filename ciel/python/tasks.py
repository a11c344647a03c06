"""Functions as tasks: `@ciel.task`, and what may be said of how one is to run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from ciel.core.errors import CielError
from ciel.core.tasks import (
    KILL_GRACE_MAX_S,
    MEMORY_MAX_BYTES,
    PRIORITY_MAX,
    PRIORITY_MIN,
    RETRIES_MAX,
    RETRY_DELAY_MAX_S,
    SLOTS_MAX,
    TIMEOUT_MAX_S,
    USUAL_NEEDS,
    Needs,
    wrong_kinds,
)
from ciel.python.futures import Future
from ciel.python.sessions import current
from ciel.python.showing import Shown

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")
F_co = TypeVar("F_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

RETURNS_MAX: Final = 10_000
NAME_MAX_LENGTH: Final = 200


class OptionError(CielError, ValueError):
    """What was said of a task cannot be; `option` is its name."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option


class Options(NamedTuple):
    """How calls of a function run. `needs`: see `core.tasks`. `returns`: how many values it
    returns, each a future of its own. `python`: the interpreter, by default the workers'.
    """

    needs: Needs = USUAL_NEEDS
    name: str = ""
    returns: int = 1
    python: str = ""


USUAL: Final = Options()


def read_options(options: Options, given: dict[str, Any]) -> Options:
    """Return options with some changed, as `ciel.task` takes them; raises OptionError."""
    for option in given.keys() - _READERS.keys():
        known = ", ".join(_READERS)
        raise OptionError(option, f"there is no such option (there are: {known})")
    needs: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for option, value in given.items():
        if value is not None:
            (needs if option in Needs._fields else others)[option] = _READERS[option](option, value)
    return options._replace(needs=options.needs._replace(**needs), **others)


def _whole(least: int, most: int) -> Callable[[str, Any], int]:
    def read(option: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise OptionError(
                option, f"it must be a whole number, {least} to {most}, not {value!r:.40}"
            )
        return value

    return read


def _seconds(most: float) -> Callable[[str, Any], float]:
    def read(option: str, value: Any) -> float:
        if type(value) not in (int, float) or not 0 <= value <= most:
            raise OptionError(option, f"it must be seconds, 0 to {most:g}, not {value!r:.40}")
        return float(value)

    return read


def _kinds(option: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, tuple | list) or not all(isinstance(kind, str) for kind in value):
        raise OptionError(option, f"it must be kinds of failure, as RAISED, not {value!r:.40}")
    if wrong := wrong_kinds(value):
        raise OptionError(option, wrong)
    return tuple(value)


def _text(option: str, value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise OptionError(option, f"it must be a text, not {value!r:.40}")
    return value[:NAME_MAX_LENGTH] if option == "name" else value


_READERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "returns": _whole(1, RETURNS_MAX),
    "retries": _whole(0, RETRIES_MAX),
    "retry_on": _kinds,
    "retry_delay_s": _seconds(RETRY_DELAY_MAX_S),
    "timeout_s": _seconds(TIMEOUT_MAX_S),
    "kill_grace_s": _seconds(KILL_GRACE_MAX_S),
    "memory_bytes": _whole(0, MEMORY_MAX_BYTES),
    "slots": _whole(1, SLOTS_MAX),
    "priority": _whole(PRIORITY_MIN, PRIORITY_MAX),
    "name": _text,
    "python": _text,
}


class Task(Shown, Generic[P, R]):
    """A function whose calls can be tasks. To call it is to call the function, here and now."""

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
        """Make a task of a call, and return what stands for its result: any argument may be, or
        hold, a future. With `returns`, a tuple of futures.

        In a task it becomes a child of that; elsewhere the innermost active client submits it
        (NoClientError when there is none). Raises PackingError for arguments that have no bytes.
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
        """A method that is a task is bound as any function is; its object travels with the call."""
        return self if instance is None else _Bound(self, instance)

    def __reduce_ex__(self, protocol: Any) -> Any:
        name = getattr(self, "__qualname__", "")
        return name if goes_by_name(self) else object.__reduce_ex__(self, protocol)

    def _facts(self) -> Iterator[tuple[str, Any]]:
        options = self.task_options
        yield "", options.name or getattr(self, "__qualname__", self.function)
        for name, value, usual in zip(Needs._fields, options.needs, USUAL_NEEDS, strict=True):
            yield name, value if value != usual else None
        yield "returns", options.returns if options.returns != 1 else None
        yield "python", options.python


if TYPE_CHECKING:
    _Later = Coroutine[Any, Any, V]

    class Several(Task[P, R], Generic[P, R, F_co]):
        """A task with `returns`, for checkers of types: `F_co` is the tuple of its futures."""

        def spawn(self, *args: Any, **kwargs: Any) -> F_co: ...  # type: ignore[override]  # a tuple

        def options(self, **options: Any) -> Several[P, R, F_co]: ...  # type: ignore[override]  # as above

    class _MakesSeveral(Protocol):
        """What `ciel.task(returns=2)` returns."""

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
    """A task that is a method, of one object."""

    def __init__(self, task: Task[Any, Any], instance: object) -> None:
        self._task = task
        self._instance = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._task.function(self._instance, *args, **kwargs)

    def spawn(self, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._task.spawn(self._instance, *args, **kwargs)

    def options(self, **options: Any) -> _Bound:
        return _Bound(self._task.options(**options), self._instance)


def goes_by_name(thing: Any) -> bool:
    """Whether others find a function, a task or a class by its name, in its module."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    return (
        module is not None
        and is_elsewhere(module.__name__)
        and _found(module, getattr(thing, "__qualname__", "")) is thing
    )


def is_elsewhere(module_name: str) -> bool:
    """Whether others have a module by its name, as far as cloudpickle was told."""
    if module_name == "__main__":
        return False
    pickling = sys.modules.get("cloudpickle")
    travelling = () if pickling is None else pickling.list_registry_pickle_by_value()
    return not any(f"{module_name}.".startswith(f"{name}.") for name in travelling)


def _found(module: Any, qualified_name: str) -> Any:
    for part in qualified_name.split("."):
        module = getattr(module, part, None)
    return module


@overload
def task(function: Callable[P, R], /, **options: Any) -> Task[P, R]: ...


@overload
def task(  # type: ignore[overload-overlap]  # 1 is a number as others are
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
    name: str | None = None,
    python: str | None = None,
) -> _MakesSeveral: ...


def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a task of a function: `@ciel.task`, or `@ciel.task(retries=2, timeout_s=60)`.

    `returns`: the number of values it returns, each a future of its own. `retries`: how often it is
    tried again; `retry_on`: only after these kinds of failure; `retry_delay_s`: how soon for the
    first time. `timeout_s`: when it is sent SIGTERM; `kill_grace_s`: how much later SIGKILL.
    `memory_bytes`: of its own, not in stores; so much is kept free for it, and above that it is
    killed. `slots`: how many it takes. `priority`: higher runs first. `name`: for people. `python`:
    the interpreter. Raises OptionError.
    """
    read = read_options(USUAL, options)
    if function is None:
        return lambda function: Task(function, read)
    if not callable(function):
        raise OptionError("task", f"it takes a function, not {function!r:.80}")
    return Task(function, read)


def split_task(function: Any) -> tuple[Callable[..., Any], Options]:
    """Return what is to be called, and how it is to run."""
    if isinstance(function, Task):
        return function, function.task_options
    if not callable(function):
        raise OptionError("function", f"{function!r:.80} cannot be called")
    return function, USUAL


def name_of(function: Any, options: Options = USUAL) -> str:
    """Return what people call the calls of a function."""
    name = options.name or getattr(function, "__qualname__", "") or type(function).__qualname__
    return name.replace("<locals>.", "")[:NAME_MAX_LENGTH]
