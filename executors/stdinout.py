"""The executor `stdinout`: runs a program that reads standard input and writes standard output.

Arguments (`args`, CIB-2): `command_line`, a list in which references are replaced by the paths of
objects; `inputs`, a list of references to concatenate on standard input; and the options in
`arguments`. Extensions of the original: `files`, references by relative name, which the worker
places in the scratch directory, where the program then runs; `env`, additional environment
variables; `collects`, names or patterns of files that the program writes: they become a second
output, a tar archive. No shell is involved.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

from ciel.core.tasks import Mentions
from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    ChildForm,
    Executor,
    OutputPath,
    Program,
    Run,
    Task,
)
from ciel.executors.arguments import (
    args_of,
    program_of,
    reference_list,
    require_form_count,
    require_output_count,
    words_of,
)

_PACKER = os.path.join(os.path.dirname(__file__), "programs", "collecting.py")


class StdinoutExecutor(Executor):
    """Runs one program; its standard output is the task's first output."""

    name = "stdinout"
    mentions = Mentions.NOTHING

    def begin(self, task: Task) -> Action:
        args = args_of(task)
        require_output_count(task, 2 if args.get("collects") else 1)
        stdin = tuple([ref.id for ref in reference_list(args, "inputs")])
        program = program_of(args, stdin=stdin, stdout=0, caller=task.caller)
        return Run(_collecting(program, args) if args.get("collects") else program)

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        return require_form_count(self.name, super().child_form(keywords), 1)


def _collecting(program: Program, args: dict[str, Any]) -> Program:
    """Wrap a program so that the files to collect are packed after it has ended."""
    patterns = words_of(args, "collects")
    for pattern in patterns:
        if not isinstance(pattern, str) or pattern.startswith("/") or ".." in pattern.split("/"):
            raise BadArgumentsError(f"{pattern!r:.80} in 'collects' is not a relative name")
    packer = (sys.executable, "-I", "-S", "-X", "utf8", _PACKER)
    moves = () if program.cwd else ("--move",)
    return replace(
        program,
        argv=(*packer, *moves, str(len(patterns)), *patterns, *program.argv),
        lists={"CIEL_COLLECTS": (OutputPath(1),)},
    )
