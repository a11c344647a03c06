"""What the programs of `java2` say, and can be told.

The Java side takes few kinds of references: what it could not read, or would misread, it is told as
a future. That is no loss: whatever comes back from it is known here by its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ciel.core.events import TaskFault
from ciel.core.refs import (
    REFERENCE_TYPES,
    Concrete,
    Future,
    Reference,
    Stream,
    Sweetheart,
    Value,
    locations_of,
)
from ciel.execution.attempt import Attempt
from ciel.executors.conversation import Conversation
from ciel.wire.calls import Call

MAIN_CLASS = "com.asgow.ciel.executor.Java2Executor"
PORT_MAX = 32767  # it reads ports as signed 16-bit numbers


class Java2Conversation(Conversation):
    """One task's calls. Every jar is opened as a sweetheart, which would draw all tasks to where
    the first of them ran; they go where their inputs are instead.
    """

    def __init__(self, attempt: Attempt, say: Callable[[str, Any], None]) -> None:
        super().__init__(attempt, say)
        self._has_called = False

    def called(self, calls: Iterable[Call]) -> None:
        self._has_called = True
        super().called(calls)

    def died(self, fault: TaskFault, how: str, *, was_ended: bool = False) -> TaskFault:
        if self._has_called or not how:
            return fault
        hint = f"are the bindings, with {MAIN_CLASS}, among its jars, or in CIEL_JARS_DIR there?"
        return TaskFault(fault.reason, f"{fault.details}; {hint}")

    def _input(self, args: dict[str, Any]) -> Reference | None:
        return super()._input({key: args[key] for key in args if key != "make_sweetheart"})


def readable(value: Any) -> Any:
    """Return what is to be said with every reference in it as the Java side can read it."""
    if isinstance(value, REFERENCE_TYPES):
        return value if _is_readable(value) else Future(value.id)
    if isinstance(value, dict):
        return {key: readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [readable(item) for item in value]
    return value


def _is_readable(ref: Reference) -> bool:
    if isinstance(ref, Concrete | Sweetheart):
        if ref.size_bytes is None:
            return False
    elif isinstance(ref, Stream):
        if not ref.locations:
            return False
    elif not isinstance(ref, Value | Future):
        return False
    places = set(locations_of(ref))
    if isinstance(ref, Sweetheart):
        places.add(ref.preferred)
    return all(_is_short(place) for place in places)


def _is_short(netloc: str) -> bool:
    host, _, port = netloc.rpartition(":")
    return ":" not in host and port.isdecimal() and int(port) <= PORT_MAX
