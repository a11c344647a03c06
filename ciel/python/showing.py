"""Formats any value in few characters, and describes the objects of the API.

Tracebacks with local variables show values in this form.
"""

from __future__ import annotations

import builtins
import reprlib
import traceback
from collections.abc import Iterable
from itertools import islice
from types import TracebackType
from typing import Any, Final

VALUE_MAX_CHARACTERS: Final = 160
LOCALS_MAX: Final = 30
"""How many local variables of a frame are shown; of the others only the number is shown."""
FRAMES_MAX: Final = 20
"""How many of the innermost frames are shown with their local variables."""
_BITS_MAX = 512  # of an integer that is shown in digits


class _Short(reprlib.Repr):
    """Shows the beginning of large values without formatting them as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 6
        self.maxstring = self.maxother = VALUE_MAX_CHARACTERS

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, bytes | bytearray | memoryview):
            return self._buffer(x)
        if isinstance(x, int) and x.bit_length() > _BITS_MAX:
            return f"<{type(x).__name__} of {x.bit_length()} bits>"
        bases: tuple[Any, ...] = (str, list, tuple, set, frozenset, dict)
        for base in bases:
            if isinstance(x, base) and type(x) is not base:  # its own repr could have any length
                shown = getattr(self, f"repr_{base.__name__}")(base(x), level)
                return f"{type(x).__name__}({shown})"
        if hasattr(type(x), "__dataclass_fields__"):
            return self._dataclass(x, level)
        return super().repr1(x, level)

    def _buffer(self, x: bytes | bytearray | memoryview) -> str:
        size_bytes = x.nbytes if isinstance(x, memoryview) else len(x)
        if isinstance(x, memoryview) or size_bytes > self.maxstring // 4:
            return f"<{type(x).__name__} of {size_bytes} bytes>"
        return builtins.repr(x)

    def _dataclass(self, x: Any, level: int) -> str:
        import dataclasses  # takes long, and so do the modules that it imports

        fields = [field.name for field in dataclasses.fields(x) if field.repr][: self.maxdict]
        if level <= 0:
            return f"{type(x).__name__}(...)"
        shown = [f"{name}={self.repr1(getattr(x, name, ...), level - 1)}" for name in fields]
        return f"{type(x).__name__}({', '.join(shown)})"


_short = _Short()


def short(value: Any) -> str:
    """Show a value in one line of at most some 160 characters. Never raises."""
    try:
        text = " ".join(_short.repr(value).split("\n"))
    except Exception as error:  # a class of the user may raise anything
        text = f"<{type(value).__name__}, which cannot be shown: {type(error).__name__}>"
    if len(text) <= VALUE_MAX_CHARACTERS:
        return text
    return f"{text[: VALUE_MAX_CHARACTERS - 3]}..."


def add_locals(report: traceback.TracebackException, error: BaseException) -> None:
    """Add the local variables of the innermost frames to a traceback.

    Do the same for the tracebacks of the exceptions that caused it.
    """
    pairs: list[tuple[Any, BaseException | None]] = [(report, error)]
    seen: set[int] = set()
    while pairs:
        shown, raised = pairs.pop()
        if shown is None or raised is None or id(raised) in seen:
            continue
        seen.add(id(raised))
        _add_to_frames(shown, raised.__traceback__)
        pairs += [(shown.__cause__, raised.__cause__), (shown.__context__, raised.__context__)]


def _add_to_frames(report: traceback.TracebackException, trace: TracebackType | None) -> None:
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    innermost = zip(
        reversed(report.stack), reversed(frames), strict=False
    )  # the outer frames are left out
    for summary, frame in islice(innermost, FRAMES_MAX):
        if frame.f_locals is frame.f_globals:
            continue  # the globals of a module: functions, classes, imports
        names = [name for name in frame.f_locals if not name.startswith("__")]
        shown = {name: short(frame.f_locals[name]) for name in names[:LOCALS_MAX]}
        if len(names) > LOCALS_MAX:
            shown["..."] = f"{len(names) - LOCALS_MAX} more"
        summary.locals = shown


class Shown:
    """Describes an object of the API in a terminal and in a notebook.

    `_facts` yields pairs of a name ("": none is shown) and a value; it must not wait. An exception
    ends the list of facts.
    """

    __slots__ = ()
    _title = ""

    def _facts(self) -> Iterable[tuple[str, Any]]:
        raise NotImplementedError

    def _known_facts(self) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        try:
            for name, value in self._facts():
                if value is not None and value != "":
                    found.append((name, value))
        except Exception:  # the object may be half initialised, or half closed
            found.append(("", "..."))
        return found

    def __repr__(self) -> str:
        facts = [f"{name}={value}" if name else str(value) for name, value in self._known_facts()]
        return f"<{' '.join([self._heading, *facts])}>"

    @property
    def _heading(self) -> str:
        return f"ciel.{self._title or type(self).__name__}"

    def __rich_repr__(self) -> Iterable[Any]:
        for name, value in self._known_facts():
            yield (name, value) if name else value

    def _repr_html_(self) -> str:
        import html  # takes long

        rows = [
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>"
            for name, value in self._known_facts()
        ]
        title = f"<tr><th colspan=2>{html.escape(self._heading)}</th></tr>"
        return f"<table>{title}{''.join(rows)}</table>"
