"""Keeps the events of the life of a task or job in a bounded list.

Of a task, these are the unusual ones: a task that ran once and succeeded has no history. `ciel task
explain`, `ciel job info` and errors show them.
"""

from __future__ import annotations

from typing import NamedTuple

EVENTS_MAX = 20
TEXT_MAX_LENGTH = 2000


class HistoryEvent(NamedTuple):
    """One event, with its time on the master's clock."""

    at_s: float
    text: str


class History:
    """The first and the latest events; events in between are omitted."""

    __slots__ = ("_events", "_omitted")

    def __init__(self) -> None:
        self._events: list[HistoryEvent] = []
        self._omitted = 0

    def record(self, at_s: float, text: str) -> None:
        if len(text) > TEXT_MAX_LENGTH:
            text = f"{text[: TEXT_MAX_LENGTH - 4]} ..."
        self._events.append(HistoryEvent(at_s, text))
        if len(self._events) > EVENTS_MAX:
            del self._events[EVENTS_MAX // 2]
            self._omitted += 1

    @property
    def events(self) -> tuple[HistoryEvent, ...]:
        """The recorded events, oldest first."""
        return tuple(self._events)

    def lines(self, now_s: float) -> list[str]:
        """Return one line for each event, oldest first, with its age."""
        lines = [f"{now_s - at_s:.1f} s ago: {text}" for at_s, text in self._events]
        if self._omitted:
            lines.insert(EVENTS_MAX // 2, f"({self._omitted} more)")
        return lines

    @property
    def omitted(self) -> int:
        """How many events in between were omitted."""
        return self._omitted


def with_reason(what: str, reason: str) -> str:
    """Return an event with the first line of its reason, if it has one."""
    first = reason.partition("\n")[0]
    return f"{what}: {first}" if first else what
