"""Values: Python's own integers, floats, texts, truth values, lists and dictionaries, None for the
unnamed none, references, and what is defined here.

Only variables, and arguments of functions that a script defines, hold what is not read yet
(`Lazy`); lists and dictionaries never do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ciel.core.refs import REFERENCE_TYPES, Reference
from ciel.skywriting.errors import ReferenceFailedError, ScriptError
from ciel.skywriting.evaluation.code import Code, Frame

TEXT_MAX_CHARACTERS = 64 << 20
LIST_MAX_ITEMS = 10_000_000
INTEGER_MAX_DIGITS = 100_000
RUN = ""
"""Where a frame, which is a dictionary of variables, keeps the `Run` that it belongs to."""


class Reader(Protocol):
    """The part of a host that reads objects."""

    def read(self, ref: Reference) -> bytes | None:
        """Return the content of an object; None if it is not there yet. Raises
        ReferenceFailedError.
        """

    def decode(self, content: bytes) -> Any:
        """Read JSON, in which `__ref__` objects are references; raises ValueError."""


class Activation:
    """A function, a script or an include that was left in its middle: how far each construct in
    progress had come, outermost last. `called_at` is the offset of the call, in its caller's text.
    """

    __slots__ = ("called_at", "code", "entries", "frame")

    def __init__(
        self, code: Code, frame: Frame, called_at: int, entries: list[tuple[int, tuple[Any, ...]]]
    ) -> None:
        self.code = code
        self.frame = frame
        self.called_at = called_at
        self.entries = entries


class Blocked(Exception):
    """The script cannot go on without references. On its way out it collects what is needed to go
    on from where it was, the innermost first.
    """

    def __init__(self, refs: Sequence[Reference], is_any: bool = False) -> None:
        super().__init__()
        self.refs = list(refs)
        self.is_any = is_any  # one of them will do
        self.activations: list[Activation] = []
        self.entries: list[tuple[int, tuple[Any, ...]]] = []

    def hold(self, point: int, values: tuple[Any, ...]) -> None:
        """Add a construct that was in progress."""
        self.entries.append((point, values))

    def close(self, code: Code, frame: Frame, called_at: int) -> None:
        """Those held since the last time belong to one activation."""
        self.activations.append(Activation(code, frame, called_at, self.entries))
        self.entries = []


class _Unread:
    __slots__ = ()


UNREAD = _Unread()


class Lazy:
    """What a reference will read as, once somebody needs it."""

    __slots__ = ("ref", "value")

    def __init__(self, ref: Reference) -> None:
        self.ref = ref
        self.value: Any = UNREAD


class Closure:
    """A function of a script, with the variables that it captured when it was defined."""

    __slots__ = ("captured", "code")

    def __init__(self, code: Code, captured: Frame) -> None:
        self.code = code
        self.captured = captured


class Builtin(NamedTuple):
    """A function of ours. Its arguments are forced before it is called, unless `is_lazy`; whatever
    may block in it must come before whatever has an effect.
    """

    name: str
    function: Callable[[Any, list[Any]], Any]
    is_lazy: bool = False


class SpawnedCall(NamedTuple):
    """A function, and the arguments of its call in a task of its own. They are as they were at the
    time of the spawn: a host that keeps this for later writes it down first
    (`continuation.encode_call`), or runs it before the spawning script continues.
    """

    function: Closure | Builtin
    arguments: list[Any]


def force(value: Any, host: Reader) -> Any:
    """Return a value that is there. Raises Blocked, or ScriptError if it cannot ever be."""
    if type(value) is not Lazy:
        return value
    if value.value is UNREAD:
        content = read(value.ref, host)
        try:
            value.value = host.decode(content)
        except ValueError as error:
            shown = content[:60].decode(errors="backslashreplace")
            raise ScriptError(
                f"what {value.ref.id} holds is no JSON ({error}), so * cannot read it; "
                f"read(…) gives it as text. It begins: {shown!r}"
            ) from None
    return value.value


def read(ref: Reference, host: Reader) -> bytes:
    """Return the content of an object. Raises Blocked, or ScriptError with the story of a failed
    one.
    """
    try:
        content = host.read(ref)
    except ReferenceFailedError as error:
        story = f" {error.details}"
        if "\n" in story:  # it is told apart from ours
            story = "".join(f"\n  | {line}" for line in error.details.splitlines())
        raise ScriptError(
            f"the task that was to make {ref.id} has failed ({error.reason}):{story}"
        ) from None
    if content is None:
        raise Blocked([ref])
    return content


def is_reference(value: Any) -> bool:
    """Whether a value stands for an object."""
    return isinstance(value, REFERENCE_TYPES)


_KINDS = {
    bool: "truth value", int: "integer", float: "float", str: "text", list: "list",
    dict: "dictionary", type(None): "none", Closure: "function", Builtin: "function",
}  # fmt: skip


def kind(value: Any) -> str:
    """Name the kind of a value for people."""
    return _KINDS.get(type(value), "reference" if is_reference(value) else type(value).__name__)


def brief(value: Any) -> str:
    """Name a value for people: its kind, and itself if it is short."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return f"a {kind(value)}"
    try:
        text = json.dumps(value[:41] if isinstance(value, str) else value, ensure_ascii=False)
    except ValueError:  # an integer of too many digits
        text = "…"
    return f"{kind(value)} {text if len(text) <= 40 else text[:36] + '…'}"


def advice(*values: Any) -> str:
    """Say what to do about values of the wrong kind, if it is likely enough."""
    return "; * reads what it refers to" if any(map(is_reference, values)) else ""
