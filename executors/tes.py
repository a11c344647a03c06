"""Translates a task of GA4GH TES into a program that runs its commands in order.

The routes of TES (`ciel.tes`) create its tasks. Argument (`args`): `document`, the JSON of the
task. The program `programs/tes.py` places inputs, runs the commands, and stores outputs. Output 0
is a short status, output 1 the log.
"""

from __future__ import annotations

import os
import sys

from ciel.core.tasks import Mentions
from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    Executor,
    OutputPath,
    Program,
    Run,
    Task,
)
from ciel.executors.arguments import args_of, require_output_count

_RUNNER = os.path.join(os.path.dirname(__file__), "programs", "tes.py")


class TesExecutor(Executor):
    """Runs the program that carries out a task of TES."""

    name = "tes"
    mentions = Mentions.NOTHING

    def begin(self, task: Task) -> Action:
        require_output_count(task, 2)
        document = args_of(task).get("document")
        if not isinstance(document, str):
            raise BadArgumentsError("tes needs 'document', the JSON of a task")
        argv = (sys.executable, "-I", "-S", "-X", "utf8", _RUNNER)
        return Run(Program(argv, names=(document, OutputPath(0), OutputPath(1))))
