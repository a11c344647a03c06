"""`stdinout`: an ordinary program that reads standard input and writes standard output (CIB-2).

Arguments (`args`): `command_line`, a list in which references stand for the paths of objects;
`inputs`, a list of references that are concatenated on standard input; and the options in
`arguments`. Beyond the original: `files`, references by relative name that lie in the scratch
directory, in which the program then runs; `env`, additional environment. There is no shell.
"""

from __future__ import annotations

from typing import Any

from ciel.core.tasks import Mentions
from ciel.execution.executor import Action, ChildForm, Executor, Run, Task
from ciel.executors.arguments import (
    args_of,
    program_of,
    reference_list,
    require_form_count,
    require_output_count,
)


class StdinoutExecutor(Executor):
    """Runs one program; its standard output is the task's only output."""

    name = "stdinout"
    mentions = Mentions.NOTHING

    def begin(self, task: Task) -> Action:
        require_output_count(task, 1)
        args = args_of(task)
        stdin = tuple([ref.id for ref in reference_list(args, "inputs")])
        return Run(program_of(args, stdin=stdin, stdout=0, caller=task.caller))

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        return require_form_count(self.name, super().child_form(keywords), 1)
