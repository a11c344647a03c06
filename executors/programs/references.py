"""Encodes values of scripts as JSON, with references to objects that may have no id yet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ciel.core.errors import CielError
from ciel.core.refs import REFERENCE_TYPES, Future
from ciel.wire.errors import WireError
from ciel.wire.references import from_array, to_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from ciel.executors.sdk.ciel_task import _Answer
    from ciel.skywriting.continuation import Written

_PLAIN = frozenset((str, int, float, bool, type(None)))


class Promise(Future):
    """A reference to the output of a child whose id this program does not know yet.

    The program may not have spawned the child yet. It finds the id when it is needed.

    `call`: the call that produces it, until the child is spawned; `level`: the index of the parent
    among the tasks that run here. `is_wanted`: the master knows that the object is needed.
    `content` or `failure`: the result, if the child has run inline.
    """

    label: str
    level: int
    is_wanted: bool
    call: Written | None
    content: bytes | None
    failure: str | None
    answer: _Answer | None
    _find: Callable[[Promise], str]
    _name: str

    def __new__(cls, find: Callable[[Promise], str], label: str = "", level: int = 0) -> Promise:
        self = tuple.__new__(cls, ("",))
        self._find = find
        self._name = ""
        self.label = label
        self.level = level
        self.is_wanted = False
        self.call = self.content = self.failure = self.answer = None
        return self

    @property
    def id(self) -> str:  # type: ignore[override]  # found when it is needed
        if not self._name:
            self._name = self._find(self)
        return self._name

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, REFERENCE_TYPES) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Promise({self._name or self.label!r})"


def encode(value: Any) -> str:
    """Return a value with references as JSON; raises ValueError."""
    try:
        return _encode(value if type(value) in _PLAIN else _plain(value))
    except RecursionError:
        raise ValueError("it is nested too deeply, or contains itself") from None
    except TypeError as error:
        raise ValueError(str(error)) from None


def decode(content: bytes | str) -> Any:
    """Return the value that JSON with references encodes; raises ValueError."""
    try:
        return _decode(content if isinstance(content, str) else content.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (CielError, WireError) as error:
        raise ValueError(str(error)) from None


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return [item if type(item) in _PLAIN else _plain(item) for item in value]
    if kind is dict:
        if "__ref__" in value:
            raise ValueError(
                'a dictionary with the key "__ref__" cannot be encoded: readers would take it for '
                "a reference"
            )
        return {k: item if type(item) in _PLAIN else _plain(item) for k, item in value.items()}
    if kind is Promise or kind is Future:
        return {"__ref__": ["f2", value.id]}
    if isinstance(value, REFERENCE_TYPES):
        return {"__ref__": to_array(value)}
    return value


def _reference(found: dict[str, Any]) -> Any:
    return from_array(found["__ref__"]) if "__ref__" in found else found


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number in JSON")


_encode = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False
).encode
_decode = json.JSONDecoder(object_hook=_reference, parse_constant=_reject_constant).decode
