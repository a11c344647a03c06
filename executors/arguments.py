"""Reading the arguments of a task, with errors that name the key and what was expected.

What all executors share that run an ordinary program is read here, into a `Program`:
`command_line`, `files`, `env` and the options of ciel-interfaces, 6.1. Of those, `stream_output`
lets the outputs be read while they grow, and `eager_fetch` has inputs be whole before the program
begins; `store`, beyond the original, says whether they begin in `memory` or on `disk`, on a worker
that has both. The others are checked, and have no effect, since what they ask for is so anyway or
is never so: `pipe_output` and `single_consumer` (every reader reads the file that grows, no two
programs are joined by a pipe), `stream_chunk_size` (readers are told of growth as it happens),
`make_sweetheart` (it had none in the original either) and `debug_options` (`go_slow` waited three
seconds before the start, `trace_io` noted the times of reading). Unknown keys are ignored, as
scripts use them to tell equal tasks apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from ciel.core.ids import ObjectId
from ciel.core.refs import REFERENCE_TYPES, Reference
from ciel.execution.executor import (
    BadArgumentsError,
    ChildForm,
    InputPath,
    OutputPath,
    Program,
    Task,
    store_level,
)


def args_of(task: Task) -> dict[str, Any]:
    """Return the executor's own arguments: the object under `args`."""
    args = task.arguments.get("args")
    if not isinstance(args, dict):
        raise BadArgumentsError(f"{task.spec.executor} needs an object 'args'")
    return args


def reference_list(args: dict[str, Any], key: str) -> list[Reference]:
    """Return a list of references under `key`; empty if there is none."""
    value = args.get(key, [])
    if not _are_references(value):
        raise BadArgumentsError(f"{key!r} must be a list of references")
    return value


def require_form_count(executor: str, form: ChildForm, count: int) -> ChildForm:
    """Return the form of a child unless it has another number of outputs."""
    if form.n_outputs != count:
        raise BadArgumentsError(_wrong_count(executor, count, form.n_outputs))
    return form


def require_output_count(task: Task, count: int) -> None:
    """Refuse a task that expects, or names in its arguments, another number of outputs."""
    for number in (len(task.spec.outputs), task.arguments.get("n_outputs", count)):
        if number != count:
            raise BadArgumentsError(_wrong_count(task.spec.executor, count, number))


def _wrong_count(executor: str, count: int, number: Any) -> str:
    what = "output" if count == 1 else "outputs"
    return f"{executor} makes exactly {count} {what}, not {number!r:.40}"


def program_of(
    args: dict[str, Any],
    *,
    stdin: tuple[ObjectId, ...] = (),
    stdout: int | None = None,
    lists: Mapping[str, tuple[InputPath | OutputPath, ...]] | None = None,
) -> Program:
    """Read what programs are asked for with, whichever executor runs them."""
    _check_options(args)
    return Program(
        argv=_command_line(args),
        stdin=stdin,
        stdout=stdout,
        files=_files(args),
        env=_env(args),
        lists=lists or {},
        streams=args.get("stream_output") is True,
        whole=args.get("eager_fetch") is True,
        store=store_level(args.get("store")),
    )


def _command_line(args: dict[str, Any]) -> tuple[str | InputPath, ...]:
    line = args.get("command_line")
    if not isinstance(line, list) or not line:
        raise BadArgumentsError("'command_line' must be a list of a program and its arguments")
    argv: list[str | InputPath] = []
    for number, item in enumerate(line):
        if isinstance(item, str):
            if "\0" in item:
                what = f"element {number} of 'command_line'"
                raise BadArgumentsError(f"{what} contains a NUL character")
            argv.append(item)
        elif isinstance(item, int | float):
            argv.append(str(item))
        elif isinstance(item, REFERENCE_TYPES):
            argv.append(InputPath(item.id, executable=number == 0))
        else:
            raise BadArgumentsError(
                f"element {number} of 'command_line' must be text, a number or a reference"
            )
    if argv[0] == "":
        raise BadArgumentsError("the program's name in 'command_line' is empty")
    return tuple(argv)


def _files(args: dict[str, Any]) -> dict[str, Any]:
    files = args.get("files", {})
    if not isinstance(files, dict):
        raise BadArgumentsError("'files' must be an object of names and references")
    for name, ref in files.items():
        parts = name.split("/")
        if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise BadArgumentsError(f"{name!r} in 'files' is not a relative name without '..'")
        if not isinstance(ref, REFERENCE_TYPES):
            raise BadArgumentsError(f"{name!r} in 'files' must be a reference")
    return {name: ref.id for name, ref in files.items()}


def _env(args: dict[str, Any]) -> dict[str, str]:
    env = args.get("env", {})
    if not isinstance(env, dict) or not all(isinstance(item, str) for item in env.values()):
        raise BadArgumentsError("'env' must be an object whose values are texts")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise BadArgumentsError(f"{name!r} in 'env' cannot be set in an environment")
    return env


# --- options --------------------------------------------------------------------------------------


def _are_references(value: Any) -> TypeGuard[list[Reference]]:
    return isinstance(value, list) and all(isinstance(item, REFERENCE_TYPES) for item in value)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_sweetheart(value: Any) -> bool:
    return isinstance(value, REFERENCE_TYPES) or _are_references(value)


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_TRUTH = (_is_truth, "true or false")
_OPTIONS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "stream_output": _TRUTH,
    "pipe_output": _TRUTH,
    "eager_fetch": _TRUTH,
    "single_consumer": _TRUTH,
    "stream_chunk_size": (_is_size, "a number of bytes, from 1"),
    "make_sweetheart": (_is_sweetheart, "a reference or a list of references"),
    "debug_options": (_are_words, "a list of texts"),
}


def _check_options(args: dict[str, Any]) -> None:
    for key in _OPTIONS.keys() & args.keys():
        is_right, expected = _OPTIONS[key]
        if not is_right(args[key]):
            raise BadArgumentsError(f"{key!r} must be {expected}")
