"""Reads the options of a task, such as `retries` and `timeout_s`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ciel.core.errors import CielError
from ciel.core.offers.labels import wrong_where
from ciel.core.offers.resources import Amounts, read_amounts
from ciel.core.tasks import (
    DEFAULT_NEEDS,
    LIMITS,
    WORK_DISK,
    Limit,
    Needs,
    wrong_disk,
    wrong_image,
    wrong_isolation,
    wrong_kinds,
)

RETURNS_MAX: Final = 10_000
NAME_MAX_LENGTH: Final = 200


class OptionError(CielError, ValueError):
    """An option of a task has a wrong value, or does not exist; `option` is its name."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option


class Options(NamedTuple):
    """The options of a function's calls.

    `needs`: see `core.tasks`. `returns`: the number of values that the function returns; each has a
    future. `python`: the interpreter; by default the worker's.
    """

    needs: Needs = DEFAULT_NEEDS
    name: str = ""
    returns: int = 1
    python: str = ""


USUAL: Final = Options()
"""The default options."""


def read_options(options: Options, given: dict[str, Any]) -> Options:
    """Return options with some changed, as `ciel.task` takes them; raises OptionError."""
    for option in given.keys() - _READERS.keys():
        known = ", ".join(_READERS)
        raise OptionError(option, f"unknown option (the options are: {known})")
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
            raise OptionError(
                option, f"it must be a number of seconds, 0 to {most:g}, not {value!r:.40}"
            )
        return float(value)

    return read


def _kinds(option: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, tuple | list) or not all(isinstance(kind, str) for kind in value):
        raise OptionError(
            option, f"it must be kinds of failure, such as ('RAISED',), not {value!r:.40}"
        )
    if wrong := wrong_kinds(value):
        raise OptionError(option, wrong)
    return tuple(value)


def _disk(option: str, value: Any) -> str:
    if isinstance(value, bool):
        return WORK_DISK if value else ""
    if not isinstance(value, str):
        raise OptionError(option, f"it must be True or a path, not {value!r:.40}")
    if wrong := wrong_disk(value):
        raise OptionError(option, wrong)
    return value


def _resources(option: str, value: Any) -> Amounts:
    if not isinstance(value, Mapping):
        raise OptionError(option, f"it must be a dictionary, as {{'gpu': 1}}, not {value!r:.40}")
    try:
        return read_amounts(value)
    except ValueError as error:
        raise OptionError(option, str(error)) from None


def _where(option: str, value: Any) -> str:
    if not isinstance(value, str):
        raise OptionError(option, f"it must be a text, as 'zone=b', not {value!r:.40}")
    if wrong := wrong_where(value):
        raise OptionError(option, wrong)
    return value


def _checked(check: Callable[[str], str]) -> Callable[[str, Any], str]:
    def read(option: str, value: Any) -> str:
        if not isinstance(value, str):
            raise OptionError(option, f"it must be a text, not {value!r:.40}")
        if wrong := check(value):
            raise OptionError(option, wrong)
        return value

    return read


def _text(option: str, value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise OptionError(option, f"it must be a text, not {value!r:.40}")
    return value[:NAME_MAX_LENGTH] if option == "name" else value


_NO_NUMBERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "kinds": _kinds,
    "disk": _disk,
    "resources": _resources,
    "labels": _where,
    "isolation": _checked(wrong_isolation),
    "image": _checked(wrong_image),
}


def _reader(limit: Limit) -> Callable[[str, Any], Any]:
    if (reader := _NO_NUMBERS.get(limit.kind)) is not None:
        return reader
    return _whole(int(limit.least), int(limit.most)) if limit.is_whole else _seconds(limit.most)


_READERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "returns": _whole(1, RETURNS_MAX),
    **{limit.name: _reader(limit) for limit in LIMITS if limit.in_python},
    "name": _text,
    "python": _text,
}
