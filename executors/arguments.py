"""Parses the arguments of tasks; errors name the key and the expected value.

The arguments that are common to all executors of ordinary programs are parsed into a `Program`:
`command_line`, `files`, `env` and these options, which have the names of the original CIEL:

- `stream_output`, `pipe_output`: other tasks may read the outputs while the program writes them.
  With `pipe_output` the original CIEL kept no copy; this implementation always keeps one, so that
  further readers, and readers that reconnect, get all data (docs/adr/0038).
- `eager_fetch`: the program starts when its inputs are complete. Otherwise inputs that are still
  being produced are pipes, which are fed as the inputs grow.
- `stream_chunk_size`: such pipes are fed in pieces of this size, instead of as data arrives.
- `make_sweetheart`: inputs (one or a list) whose later readers should run where the program ran.
- `debug_options`: `go_slow` waits three seconds before the start; `trace_io` reports in the job's
  log when the program had to wait for a growing input.
- `single_consumer` has no effect, as in the original.

Options that the original does not have:

- `cwd`: the working directory, an absolute path; "": the scratch directory. The default is the
  caller's directory if the job has a caller's context and the program has no `files`
  (docs/where-programs-run.md).
- `executables`: the names in `files` that may be executed.
- `store`: whether outputs start in `memory` or on `disk`, on a worker that has both.

As a further extension, words of `command_line`, values of `env`, and names in `files` (then a list
of pairs) may be `{"base64": "…"}`, for bytes that are not UTF-8.

Unknown keys are ignored, because scripts use them to distinguish otherwise equal tasks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeGuard

from ciel.core.ids import ObjectId
from ciel.core.refs import REFERENCE_TYPES, Reference
from ciel.execution.environment import Caller
from ciel.execution.executor import (
    BadArgumentsError,
    ChildForm,
    InputPath,
    OutputPath,
    Program,
    Task,
    store_level,
)
from ciel.wire.system_texts import SystemTextError, from_value, is_bytes

SLOW_S = 3.0
"""How long `go_slow` waits."""

_NAME_MAX_BYTES = 255
_PATH_MAX_BYTES = 2048  # of the kernel's 4096, which include the path of the scratch directory


def args_of(task: Task) -> dict[str, Any]:
    """Return the executor's own arguments: the object under `args`."""
    args = task.arguments.get("args")
    if not isinstance(args, dict):
        raise BadArgumentsError(f"{task.spec.executor} needs an object 'args'")
    return args


def reference_list(args: dict[str, Any], key: str) -> list[Reference]:
    """Return a list of references under `key`; empty if there is none."""
    return require_references(key, args.get(key, []))


def require_references(key: str, value: Any) -> list[Reference]:
    """Return `value`, the argument `key`, if it is a list of references."""
    if _are_references(value):
        return value
    if isinstance(value, REFERENCE_TYPES):
        instead = "not one alone: put brackets around it, [reference]"
    elif isinstance(value, list):
        number = next(i for i, item in enumerate(value) if not isinstance(item, REFERENCE_TYPES))
        instead = f"and its element {number} is {_describe(value[number])}"
    else:
        instead = f"not {_describe(value)}"
    raise BadArgumentsError(f"{key!r} must be a list of references, {instead}")


def extra_dependencies(keywords: Mapping[str, Any]) -> list[Reference]:
    """Read the references for which a child waits in addition to those in its arguments."""
    return require_references("extra_dependencies", keywords.get("extra_dependencies") or [])


def any_dependencies(keywords: Mapping[str, Any]) -> list[Reference]:
    """Read the references of which at least one must be available before a child starts.

    The caller puts them into the child's arguments, under the same key, and into `any_of` of its
    form. Then the child wants all of them until it has ended. Its inputs are the references that
    are available when it starts, and futures for the rest. Failed objects count as available if the
    child sees errors.
    """
    choice = require_references("any_dependencies", keywords.get("any_dependencies") or [])
    if choice:
        needed = {ref.id for ref in extra_dependencies(keywords)}
        both = next((ref.id for ref in choice if ref.id in needed), None)
        if both is not None:
            raise BadArgumentsError(
                f"{both} is in 'extra_dependencies' and in 'any_dependencies': the task waits for "
                "all of the former and any of the latter; put it into one of them"
            )
    return choice


def _describe(value: Any) -> str:
    """Describe an argument's value in an error message."""
    if isinstance(value, REFERENCE_TYPES):
        return "a reference"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "an object"
    return f"the text {value!r:.60}" if isinstance(value, str) else json.dumps(value)[:60]


def require_form_count(executor: str, form: ChildForm, count: int) -> ChildForm:
    """Return the form of a child if it has this number of outputs."""
    if form.n_outputs != count:
        raise BadArgumentsError(_wrong_count(executor, count, form.n_outputs))
    return form


def require_output_count(task: Task, count: int) -> None:
    """Reject a task that has, or names in its arguments, another number of outputs."""
    for number in (len(task.spec.outputs), task.arguments.get("n_outputs", count)):
        if number != count:
            raise BadArgumentsError(_wrong_count(task.spec.executor, count, number))


def _wrong_count(executor: str, count: int, number: Any) -> str:
    what = "output" if count == 1 else "outputs"
    return f"{executor} produces exactly {count} {what}, not {number!r:.40}"


def program_of(
    args: dict[str, Any],
    argv: Sequence[str | InputPath] | None = None,
    *,
    stdin: tuple[ObjectId, ...] = (),
    stdout: int | None = None,
    lists: Mapping[str, tuple[InputPath | OutputPath, ...]] | None = None,
    names: Sequence[str | InputPath | OutputPath] = (),
    files: Mapping[str, ObjectId] | None = None,
    caller: Caller | None = None,
) -> Program:
    """Parse the arguments that are common to all executors of programs.

    `argv`: the command, if the executor does not use `command_line`. `files`: files that the
    executor adds. `caller`: the source of the default working directory and environment.
    """
    _check_options(args)
    debugging = args.get("debug_options", ())
    placed = {**_files(args), **(files or {})}
    _require_compatible_names(placed)
    env = _env(args)
    return Program(
        argv=tuple(argv) if argv is not None else _command_line(args),
        stdin=stdin,
        stdout=stdout,
        files=placed,
        env=env if caller is None else {**caller.env, **env},
        lists=lists or {},
        streams=args.get("stream_output") is True or args.get("pipe_output") is True,
        whole=args.get("eager_fetch") is True,
        store=store_level(args.get("store")),
        names=tuple(names),
        preferred=_sweethearts(args),
        delay_s=SLOW_S if "go_slow" in debugging else 0.0,
        chunk_bytes=args.get("stream_chunk_size", 1),
        traces="trace_io" in debugging,
        cwd=_cwd(args, caller, has_files=bool(placed)),
        executables=_executables(args, placed),
    )


def words_of(args: dict[str, Any], key: str) -> list[str | InputPath]:
    """Return the words of the command line under `key`; references become paths of inputs."""
    line = args.get(key, [])
    if not isinstance(line, list):
        raise BadArgumentsError(f"{key!r} must be a list of strings, numbers and references")
    words: list[str | InputPath] = []
    for number, given in enumerate(line):
        item = _system_text(given)
        if isinstance(item, str):
            if "\0" in item:
                raise BadArgumentsError(f"element {number} of {key!r} contains a NUL character")
            words.append(item)
        elif isinstance(item, int | float):
            words.append(str(item))
        elif isinstance(item, REFERENCE_TYPES):
            words.append(InputPath(item.id))
        else:
            raise BadArgumentsError(
                f"element {number} of {key!r} must be a string, a number or a reference"
            )
    return words


def _system_text(value: Any) -> Any:
    """Return a value; if it is text encoded in base64, decode it."""
    try:
        return from_value(value) if is_bytes(value) else value
    except SystemTextError as error:
        raise BadArgumentsError(str(error)) from None


def required_text(args: dict[str, Any], key: str) -> str:
    """Return the text under `key`, for a word of a command line."""
    text = args.get(key)
    if not isinstance(text, str) or not text or "\0" in text:
        raise BadArgumentsError(
            f"{key!r} must be a non-empty string without NUL characters, not {text!r:.40}"
        )
    return text


def _command_line(args: dict[str, Any]) -> tuple[str | InputPath, ...]:
    line = args.get("command_line")
    if not isinstance(line, list) or not line:
        instead = "but is missing" if line is None else f"not {_describe(line)}"
        if isinstance(line, str):
            instead += ', since no shell splits it: write ["program", "argument"]'
        raise BadArgumentsError(
            f"'command_line' must be a list of a program and its arguments, {instead}"
        )
    first, *others = words_of(args, "command_line")
    if first == "":
        raise BadArgumentsError("the program's name in 'command_line' is empty")
    if isinstance(first, InputPath):
        first = first._replace(executable=True)
    return (first, *others)


def _sweethearts(args: dict[str, Any]) -> tuple[ObjectId, ...]:
    refs = args.get("make_sweetheart", [])
    return tuple([ref.id for ref in (refs if isinstance(refs, list) else [refs])])


def _files(args: dict[str, Any]) -> dict[str, Any]:
    files = args.get("files", {})
    if isinstance(files, list) and all(type(pair) is list and len(pair) == 2 for pair in files):
        files = {_system_text(name): ref for name, ref in files}
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files):
        raise BadArgumentsError("'files' must be an object of names and references")
    for name, ref in files.items():
        parts = name.split("/")
        if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise BadArgumentsError(f"{name!r} in 'files' is not a relative name without '..'")
        if not isinstance(ref, REFERENCE_TYPES):
            raise BadArgumentsError(f"{name!r} in 'files' must be a reference")
    return {name: ref.id for name, ref in files.items()}


def _require_compatible_names(files: Mapping[str, ObjectId]) -> None:
    """Reject names that a directory cannot contain together."""
    for name in files:
        longest = max(len(os.fsencode(part)) for part in name.split("/"))
        if longest > _NAME_MAX_BYTES or len(os.fsencode(name)) > _PATH_MAX_BYTES:
            raise BadArgumentsError(f"{name!r:.80} in 'files' is too long for the name of a file")
    # In this order, names in a directory follow directly after the directory's name.
    for name, next_name in pairwise(sorted(files, key=lambda name: name.replace("/", "\0"))):
        if next_name.startswith(f"{name}/"):
            raise BadArgumentsError(f"{name!r:.80} in 'files' would be both a file and a directory")


def _cwd(args: dict[str, Any], caller: Caller | None, *, has_files: bool) -> str:
    """Return the working directory of a program; "": its scratch directory, which has `files`."""
    cwd = args.get("cwd")
    if cwd is None:
        return "" if caller is None or has_files else caller.cwd
    if not isinstance(cwd, str) or "\0" in cwd or not (cwd == "" or cwd.startswith("/")):
        raise BadArgumentsError(f"'cwd' must be an absolute path, not {cwd!r:.80}")
    if cwd and has_files:
        raise BadArgumentsError(
            "a program with 'files' runs in the directory of these files: remove 'cwd' or 'files'"
        )
    return cwd


def _executables(args: dict[str, Any], files: Mapping[str, ObjectId]) -> frozenset[str]:
    names = args.get("executables", [])
    if isinstance(names, list):
        names = [_system_text(name) for name in names]
    if not _are_words(names) or not files.keys() >= set(names):
        raise BadArgumentsError("'executables' must be a list of names in 'files'")
    return frozenset(names)


def _env(args: dict[str, Any]) -> dict[str, str | None]:
    env = args.get("env", {})
    if isinstance(env, dict):
        env = {name: None if value is None else _system_text(value) for name, value in env.items()}
    if not isinstance(env, dict) or not all(
        item is None or isinstance(item, str) for item in env.values()
    ):
        raise BadArgumentsError("'env' must be an object whose values are strings, or null")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + (value or ""):
            raise BadArgumentsError(
                f"{name!r} in 'env' cannot be set: a name must not be empty or contain '=', and "
                "neither name nor value may contain a NUL character"
            )
    return env


# --- options --------------------------------------------------------------------------------------


def _are_references(value: Any) -> TypeGuard[list[Reference]]:
    return isinstance(value, list) and all(isinstance(item, REFERENCE_TYPES) for item in value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_sweetheart(value: Any) -> bool:
    return isinstance(value, REFERENCE_TYPES) or _are_references(value)


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_BOOL = (_is_bool, "true or false")
_OPTIONS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "stream_output": _BOOL,
    "pipe_output": _BOOL,
    "eager_fetch": _BOOL,
    "single_consumer": _BOOL,
    "stream_chunk_size": (_is_size, "a number of bytes, from 1"),
    "make_sweetheart": (_is_sweetheart, "a reference or a list of references"),
    "debug_options": (_are_words, "a list of strings"),
}


def _check_options(args: dict[str, Any]) -> None:
    for key in _OPTIONS.keys() & args.keys():
        is_right, expected = _OPTIONS[key]
        if not is_right(args[key]):
            raise BadArgumentsError(f"{key!r} must be {expected}")
