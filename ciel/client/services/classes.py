"""Classes as services: `@ciel.service`, and what their methods can ask for within a replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeVar, overload

from ciel.core.errors import CielError
from ciel.python.failures import TaskError
from ciel.python.options import USUAL, OptionError, Options, read_options

C = TypeVar("C", bound=type)
RESTARTS: Final = 3
"""How often a replica is restarted, unless the option `restarts` says otherwise."""
_OPTIONS: Final = "__ciel_service__"
_OF_TASKS: Final = {
    "returns": "a method returns one value",
    "retries": "use 'restarts'",
}


class ServiceError(TaskError):
    """A call of a service has no result: its replica has ended, or cannot be reached.

    `may_have_run`: the replica had received the call, so that it may have run, or not. `is_over`:
    the service or this replica has ended for good, and later calls fail, too.
    """

    def __init__(self, text: str, *, may_have_run: bool = False, is_over: bool = False) -> None:
        super().__init__(text, "SERVICE")
        self.may_have_run = may_have_run
        self.is_over = is_over

    def __reduce__(self) -> Any:
        return _error, (self.args[0], self.may_have_run, self.is_over)


def _error(text: str, may_have_run: bool, is_over: bool) -> ServiceError:
    return ServiceError(text, may_have_run=may_have_run, is_over=is_over)


class NotInServiceError(CielError, RuntimeError):
    """A function that works only within a service was called outside of one."""

    def __init__(self) -> None:
        super().__init__(
            "ciel.current_service() works only within a service that client.start has started"
        )


@overload
def service(cls: C, /) -> C: ...


@overload
def service(*, restarts: int | None = None, **options: Any) -> Callable[[C], C]: ...


def service(cls: Any = None, /, **options: Any) -> Any:
    """Turn a class into a service: `@ciel.service`, or `@ciel.service(slots=2, restarts=5)`.

    The class stays as it is; `client.start` starts replicas of it. `restarts`: how often the
    cluster starts each replica again after its process or its worker has died, 3 by default. It
    also takes the options of `ciel.task`, except `returns` and `retries`. Raises OptionError.
    """
    read = _read(options)
    if cls is None:
        return lambda cls: service_with(cls, read)
    return service_with(cls, read)


def _read(options: dict[str, Any]) -> Options:
    for option, instead in _OF_TASKS.items():
        if option in options:
            raise OptionError(option, f"it is for tasks; {instead}")
    restarts = options.pop("restarts", None)
    usual = USUAL._replace(needs=USUAL.needs._replace(retries=RESTARTS))
    try:
        return read_options(usual, {**options, "retries": restarts})
    except OptionError as error:
        if error.option == "retries":
            raise OptionError("restarts", str(error).removeprefix("retries: ")) from None
        raise


def service_with(cls: Any, options: Options) -> Any:
    """Return the class with the options of a service; raises OptionError."""
    if not isinstance(cls, type):
        raise OptionError("service", f"it needs a class, not {cls!r:.80}")
    setattr(cls, _OPTIONS, options)
    return cls


def options_of(cls: Any) -> Options:
    """Return the options of a class as a service; raises OptionError."""
    if not isinstance(cls, type):
        raise OptionError("start", f"it needs a class, not {cls!r:.80}")
    found: Options | None = getattr(cls, _OPTIONS, None)
    return _read({}) if found is None else found


class Rows(Protocol):
    """The part of the rows of a key-value base that a replica uses."""

    def get(self, key: str, default: Any = None) -> Any: ...

    def put(self, key: str, value: Any) -> None: ...


class ServiceInfo(NamedTuple):
    """The replica of a service that this process runs.

    `name`: of the service. `replica`: its number, from 0. `restarts`: how often it was started
    again.
    """

    name: str
    replica: int
    restarts: int
    rows: Callable[[], Rows]

    def save(self, state: Any) -> None:
        """Save a state of this replica in the key-value base of the cluster.

        It replaces the state that was saved before, and is removed with the service. Raises
        KvError, in a cluster without a base, too.
        """
        self.rows().put(str(self.replica), state)

    def load(self, default: Any = None) -> Any:
        """Return the state that this replica has saved last, or the default. Raises KvError."""
        return self.rows().get(str(self.replica), default)


_current: ServiceInfo | None = None


def enter(info: ServiceInfo) -> None:
    """Note which replica this process runs."""
    global _current
    _current = info


def leave() -> None:
    """Note that this process runs no replica any more."""
    global _current
    _current = None


def current_service() -> ServiceInfo:
    """Return the replica that this code runs in. Raises NotInServiceError outside of a service."""
    if _current is None:
        raise NotInServiceError
    return _current


ServiceError.__module__ = "ciel"  # the module from which users import it
