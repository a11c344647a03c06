"""`stdinout`: an ordinary program that reads standard input and writes standard output (CIB-2).

Arguments (`args`): `command_line`, a list in which references stand for the paths of objects;
`inputs`, a list of references that are concatenated on standard input. Beyond the original:
`files`, references by relative name that lie in the scratch directory in which the program runs;
`env`, additional environment. Unknown keys are ignored, as scripts use them to tell equal tasks
apart. There is no shell.
"""

from __future__ import annotations

from typing import Any

from ciel.core.refs import REFERENCE_TYPES
from ciel.core.tasks import Mentions
from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    Executor,
    InputPath,
    Program,
    Run,
    Task,
)
from ciel.executors.arguments import args_of, reference_list, require_output_count, text_map


class StdinoutExecutor(Executor):
    """Runs one program; its standard output is the task's only output."""

    name = "stdinout"
    mentions = Mentions.NOTHING

    def begin(self, task: Task) -> Action:
        require_output_count(task, 1)
        args = args_of(task)
        return Run(
            Program(
                argv=_command_line(args),
                stdin=tuple([ref.id for ref in reference_list(args, "inputs")]),
                stdout=0,
                files=_files(args),
                env=_env(args),
            )
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
    env = text_map(args, "env")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise BadArgumentsError(f"{name!r} in 'env' cannot be set in an environment")
    return env
