"""The values of scripts.

They are Python's integers, floats, strings, booleans, lists, dictionaries and None, references, and
instances of the classes that this module defines. Only variables, and arguments of a script's
functions, can be `Lazy`; items of lists and dictionaries cannot.
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
"""The key of the `Run` in a frame, beside the names of variables."""


class Reader(Protocol):
    """The part of a host that reads objects."""

    def read(self, ref: Reference) -> bytes | None:
        """Return the content of an object, None if the object does not exist yet. Raises
        ReferenceFailedError.
        """

    def decode(self, content: bytes) -> Any:
        """Read JSON, in which `__ref__` objects are references; raises ValueError."""


class Activation:
    """A function, a script or an included script that has started and then stopped. `entries`: the
    point and the saved values of each construct in progress, outermost last. `called_at`: the
    offset of the call, in the text of the caller.
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
    """The script must wait for the objects of references. As this exception propagates, it collects
    the state that is needed to resume the script, innermost first.
    """

    def __init__(self, refs: Sequence[Reference], is_any: bool = False) -> None:
        super().__init__()
        self.refs = list(refs)
        self.is_any = is_any  # one of them is enough
        self.activations: list[Activation] = []
        self.entries: list[tuple[int, tuple[Any, ...]]] = []

    def hold(self, point: int, values: tuple[Any, ...]) -> None:
        """Add the point and the values of a construct in progress."""
        self.entries.append((point, values))

    def close(self, code: Code, frame: Frame, called_at: int) -> None:
        """Combine the constructs that were added since the last call into an activation."""
        self.activations.append(Activation(code, frame, called_at, self.entries))
        self.entries = []


class _Unread:
    __slots__ = ()


UNREAD = _Unread()


class Lazy:
    """A starred reference, whose object is read when its value is needed."""

    __slots__ = ("ref", "value")

    def __init__(self, ref: Reference) -> None:
        self.ref = ref
        self.value: Any = UNREAD


class Closure:
    """A function of a script, with the variables that its definition has captured."""

    __slots__ = ("captured", "code")

    def __init__(self, code: Code, captured: Frame) -> None:
        self.code = code
        self.captured = captured


class Builtin(NamedTuple):
    """A built-in function. Unless `is_lazy`, the caller forces its arguments before the call. It
    may raise `Blocked` only before it has any effect.
    """

    name: str
    function: Callable[[Any, list[Any]], Any]
    is_lazy: bool = False


class SpawnedCall(NamedTuple):
    """A function that runs as a task, and its arguments at the time of the spawn. A host must write
    both (`continuation.encode_call`), or run the task, before the spawning script continues.
    """

    function: Closure | Builtin
    arguments: list[Any]


def force(value: Any, host: Reader) -> Any:
    """Return a value; read it first if it is lazy. Raises Blocked, or ScriptError if that fails."""
    if type(value) is not Lazy:
        return value
    if value.value is UNREAD:
        content = read(value.ref, host)
        try:
            value.value = host.decode(content)
        except ValueError as error:
            shown = content[:60].decode(errors="backslashreplace")
            raise ScriptError(
                f"the content of {value.ref.id} is not JSON ({error}), so * cannot read it; "
                f"read(…) returns it as text. It begins: {shown!r}"
            ) from None
    return value.value


def read(ref: Reference, host: Reader) -> bytes:
    """Return the content of an object. Raises Blocked, or ScriptError with the report of a failed
    task.
    """
    try:
        content = host.read(ref)
    except ReferenceFailedError as error:
        details = f" {error.details}"
        if "\n" in details:  # mark the lines of the task's report
            details = "".join(f"\n  | {line}" for line in error.details.splitlines())
        raise ScriptError(
            f"the task that should produce {ref.id} has failed ({error.reason}):{details}"
        ) from None
    if content is None:
        raise Blocked([ref])
    return content


def is_reference(value: Any) -> bool:
    """Return whether a value is a reference."""
    return isinstance(value, REFERENCE_TYPES)


_KINDS = {
    bool: "boolean", int: "integer", float: "float", str: "string", list: "list",
    dict: "dictionary", type(None): "none", Closure: "function", Builtin: "function",
}  # fmt: skip


def kind(value: Any) -> str:
    """Return the kind of a value, for error messages."""
    return _KINDS.get(type(value), "reference" if is_reference(value) else type(value).__name__)


def brief(value: Any) -> str:
    """Describe a value for error messages: its kind, and itself if it is short."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return f"a {kind(value)}"
    try:
        text = json.dumps(value[:41] if isinstance(value, str) else value, ensure_ascii=False)
    except ValueError:  # an integer with too many digits
        text = "…"
    return f"{kind(value)} {text if len(text) <= 40 else text[:36] + '…'}"


def advice(*values: Any) -> str:
    """Return advice for an error message on values of the wrong kind; empty if there is none."""
    return "; * reads its object" if any(map(is_reference, values)) else ""
