"""The executor `env`, also named `environ`: passes paths of inputs and outputs in the environment.

The variables `INPUT_FILES` and `OUTPUT_FILES` each name a text file with one path a line. The
output files exist and are empty; the program writes them. Arguments (`args`): `command_line`,
`inputs`, `files` and `env` as for `stdinout`, and the options in `arguments`. Standard input is
empty; standard output goes to the same place as standard error.
"""

from __future__ import annotations

from ciel.core.tasks import Mentions
from ciel.execution.executor import Action, Executor, InputPath, OutputPath, Run, Task
from ciel.executors.arguments import args_of, program_of, reference_list, require_output_count


class EnvExecutor(Executor):
    """Runs one program, which writes any number of outputs."""

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
