"""Derives deterministic names: equal executors, arguments and inputs have equal digests.

The canonical form is compact JSON with sorted keys, in which a reference is `{"__ref__": id}`. JSON
distinguishes values that the original CIEL's form confused (`1`, `"1"` and `true`), and a mapping
may not have a key `__ref__`, so the form is injective. Only the id of a reference counts: its type,
size and locations do not matter, nor does the encoding of the arguments.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

from ciel.core.ids import ObjectId
from ciel.core.json_text import make_encoder
from ciel.core.refs import REFERENCE_TYPES, Reference

DIGEST_BYTES = 16
NESTING_MAX = 900
"""The maximum nesting of lists and mappings in arguments, about an interpreter's own limit."""


def _refuse(value: Any) -> Any:
    """Refuse a value that has no JSON form; called by the encoder."""
    raise TypeError(f"{type(value).__name__} cannot be an argument of a task: {value!r:.80}")


def _check_key(key: Any) -> None:
    if type(key) is not str:
        raise TypeError(f"a mapping key in arguments must be text, not {key!r:.40}")
    if key == "__ref__":
        raise ValueError("a mapping in arguments may not have the key '__ref__'")


def _gather(value: Any, found: dict[str, Reference], depth: int = 0) -> Any:
    """Replace references by their ids, and collect them; refuse keys that become ambiguous."""
    if depth > NESTING_MAX:  # compiled code has no recursion limit except the stack
        raise RecursionError
    kind = type(value)
    if kind is dict or isinstance(value, dict):
        for key in value:
            _check_key(key)
        below = depth + 1
        return {k: v if type(v) in _PLAIN else _gather(v, found, below) for k, v in value.items()}
    if isinstance(value, REFERENCE_TYPES):
        found.setdefault(value.id, value)
        return {"__ref__": value.id}
    if isinstance(value, list | tuple):
        return [v if type(v) in _PLAIN else _gather(v, found, depth + 1) for v in value]
    return value


_PLAIN = frozenset((str, int, float, bool, type(None)))
_encode = make_encoder(_refuse, ascii_only=True, sort_keys=True)


def canonical(value: Any) -> bytes:
    """Encode a JSON-like value with references in it, injectively.

    Raises TypeError or ValueError for values without a JSON form (NaN, bytes, a key that is not
    text, a value that contains itself).
    """
    return _canonical(value)[0].encode()


def _canonical(value: Any) -> tuple[str, list[Reference]]:
    found: dict[str, Reference] = {}
    try:
        return _encode(_gather(value, found)), list(found.values())
    except RecursionError:
        raise ValueError("the arguments are nested too deeply, or contain themselves") from None


def arguments_digest(executor: str, arguments: Any, inputs: tuple[str, ...] = ()) -> str:
    """Return the digest of an executor, its arguments and inputs, as 32 hexadecimal digits.

    It is part of the ids of children and of memoised names.
    """
    return _digest(executor, canonical(arguments).decode(), inputs)


class NamedArguments(NamedTuple):
    """Arguments with their digest and references; `text` is their canonical form."""

    digest: str
    references: list[Reference]
    text: bytes


def name_arguments(
    executor: str, arguments: Any, any_of: tuple[str, ...] = (), takes: tuple[str, ...] = ()
) -> NamedArguments:
    """Return the digest of an executor and its arguments, with the references in the arguments.

    Raises as `canonical` does. `any_of`: the alternatives among the references. `takes`: the
    outputs that the parent delegates to the task, if they are part of its name.
    """
    text, references = _canonical(arguments)
    more = ("any of", *sorted(any_of)) if any_of else ()  # no id can be equal to "any of"
    if takes:
        more = (*more, "takes", *takes)
    return NamedArguments(_digest(executor, text, more), references, text.encode())


def _digest(executor: str, arguments: str, inputs: tuple[str, ...]) -> str:
    text = f"[{_encode(executor)},{arguments},{_encode(inputs) if inputs else '[]'}]"
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def memo_output_ids(executor: str, digest: str, scope: str, count: int) -> tuple[ObjectId, ...]:
    """Name the outputs that all tasks with equal executors and arguments share within `scope`.

    The scope is a job's id.
    """
    name = blake2b(f"{digest}\n{scope}".encode(), digest_size=DIGEST_BYTES).hexdigest()
    return tuple([ObjectId(f"{executor}:{name}:{i}") for i in range(count)])


def all_references(value: Any) -> list[Reference]:
    """List the references inside a value, in order of appearance, each id once."""
    found: dict[str, Reference] = {}
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, REFERENCE_TYPES):
            found.setdefault(item.id, item)
        elif isinstance(item, dict):
            pending.extend(reversed(list(item.values())))
        elif isinstance(item, list | tuple):
            pending.extend(reversed(item))
    return list(found.values())
