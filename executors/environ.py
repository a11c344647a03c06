"""`env`, which is also called `environ`: a program that finds its inputs and outputs by the
environment (ciel-interfaces, 6.3).

The variables `INPUT_FILES` and `OUTPUT_FILES` each name a text file with one path a line; the
output files are there, empty, and the program writes them itself. Arguments (`args`):
`command_line`, `inputs`, `files` and `env` as for `stdinout`, and the options in `arguments`.
Standard input is empty, and standard output goes where standard error goes.
"""

from __future__ import annotations

from ciel.core.tasks import Mentions
from ciel.execution.executor import Action, Executor, InputPath, OutputPath, Run, Task
from ciel.executors.arguments import args_of, program_of, reference_list, require_output_count


class EnvExecutor(Executor):
    """Runs one program that makes any number of outputs."""

    name = "env"
    mentions = Mentions.NOTHING

    def begin(self, task: Task) -> Action:
        count = len(task.spec.outputs)
        require_output_count(task, count)
        args = args_of(task)
        inputs = reference_list(args, "inputs")
        lists: dict[str, tuple[InputPath | OutputPath, ...]] = {
            "INPUT_FILES": tuple([InputPath(ref.id) for ref in inputs]),
            "OUTPUT_FILES": tuple([OutputPath(number) for number in range(count)]),
        }
        return Run(program_of(args, lists=lists, caller=task.caller))
