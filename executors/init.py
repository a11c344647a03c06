"""`init`: from a package to its first task. Spawns the start handler, and hands its own output to a
`sync`.

So the result of a job that starts from a package is always a JSON list of references, one for each
output of the first task (ciel-interfaces, section 4.2).
"""

from __future__ import annotations

from typing import Any

from ciel.core.refs import Future
from ciel.core.tasks import Mentions
from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    Child,
    Executor,
    Finish,
    Task,
    mentions_of,
)
from ciel.wire.descriptors import make_task


class InitExecutor(Executor):
    """The first task of a job that starts from a package."""

    name = "init"
    mentions = Mentions.ANYTHING

    def begin(self, task: Task) -> Action:
        handler = task.arguments.get("start_handler")
        if not isinstance(handler, str) or not handler:
            raise BadArgumentsError("'start_handler' must be the name of an executor")
        arguments = _start_arguments(task.arguments)
        n_outputs = arguments.get("n_outputs", 1)
        if not isinstance(n_outputs, int) or isinstance(n_outputs, bool) or n_outputs < 1:
            raise BadArgumentsError(f"'n_outputs' must be a number from 1, not {n_outputs!r}")
        spec = task.spec
        first = Child(
            *make_task(
                job=spec.job, parent=spec.id, ordinal=0, executor=handler, arguments=arguments,
                n_outputs=n_outputs, memoise=True, needs=spec.needs,
                mentions=mentions_of(task.executors, handler),
            )
        )  # fmt: skip
        results = [Future(object_id) for object_id in first.spec.outputs]
        last = Child(
            *make_task(
                job=spec.job, parent=spec.id, ordinal=1, executor="sync",
                arguments={"args": {"inputs": results}}, outputs=spec.outputs, sees_errors=True,
                mentions=mentions_of(task.executors, "sync"),
            )
        )  # fmt: skip
        return Finish(children=(first, last))


def _start_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the first task's arguments: `start_args` are the keywords of a spawn.

    Handlers that take an object `args` may be given it directly, as packages commonly do.
    """
    start_args = arguments.get("start_args", {})
    if not isinstance(start_args, dict):
        raise BadArgumentsError("'start_args' must be an object")
    if isinstance(start_args.get("args"), dict):
        return start_args
    own = {key: value for key, value in start_args.items() if key != "n_outputs"}
    rest = {key: value for key, value in start_args.items() if key == "n_outputs"}
    return {"args": own} | rest
