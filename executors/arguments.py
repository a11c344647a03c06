"""Reading the arguments of a task, with errors that name the key and what was expected."""

from __future__ import annotations

from typing import Any

from ciel.core.refs import REFERENCE_TYPES, Reference
from ciel.execution.executor import BadArgumentsError, Task


def args_of(task: Task) -> dict[str, Any]:
    """Return the executor's own arguments: the object under `args`."""
    args = task.arguments.get("args")
    if not isinstance(args, dict):
        raise BadArgumentsError(f"{task.spec.executor} needs an object 'args'")
    return args


def reference_list(args: dict[str, Any], key: str) -> list[Reference]:
    """Return a list of references under `key`; empty if there is none."""
    value = args.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, REFERENCE_TYPES) for item in value):
        raise BadArgumentsError(f"{key!r} must be a list of references")
    return value


def text_map(args: dict[str, Any], key: str) -> dict[str, str]:
    """Return an object of texts under `key`; empty if there is none."""
    value = args.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise BadArgumentsError(f"{key!r} must be an object whose values are texts")
    return value


def require_output_count(task: Task, count: int) -> None:
    """Refuse a task that expects, or names in its arguments, another number of outputs."""
    for number in (len(task.spec.outputs), task.arguments.get("n_outputs", count)):
        if number != count:
            raise BadArgumentsError(
                f"{task.spec.executor} makes exactly {count} output, not {number!r}"
            )
