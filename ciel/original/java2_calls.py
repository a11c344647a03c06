"""The conversation with programs of `java2`.

The Java bindings support few kinds of references. The worker sends any other reference, which they
could not read or would misread, as a future. No information is lost, since the worker knows each
reference that it receives by its id.
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
PORT_MAX = 32767  # the bindings read ports as signed 16-bit numbers


class Java2Conversation(Conversation):
    """The calls of one task.

    The bindings open every jar as a sweetheart, which would place all tasks on the worker of the
    first task. This class ignores that, so that the scheduler places tasks by their inputs.
    """

    def __init__(self, attempt: Attempt, say: Callable[[str, Any], None], *, has_sdk: bool) -> None:
        super().__init__(attempt, say)
        self._has_bindings = has_sdk

    def called(self, calls: Iterable[Call]) -> None:
        self._has_bindings = True
        super().called(calls)

    def died(self, fault: TaskFault, how: str, *, was_ended: bool = False) -> TaskFault:
        if self._has_bindings or not how:
            return fault
        hint = (
            "ciel was installed there without javac, and has no SDK for Java: are bindings, with "
            f"{MAIN_CLASS}, among the jars, or in CIEL_JARS_DIR there?"
        )
        return TaskFault(fault.reason, f"{fault.details}; {hint}")

    def _input(self, args: dict[str, Any]) -> Reference | None:
        return super()._input({key: args[key] for key in args if key != "make_sweetheart"})


def readable(value: Any) -> Any:
    """Return a copy of a message whose references the Java bindings can read."""
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
