"""The executor `init`: starts a package.

It spawns the package's first task, and delegates its own output to a `sync` task. So the result of
a job that starts from a package is always a JSON list of references, one for each output of the
first task, as in the original CIEL. Arguments: `start_handler`, the first task's executor;
`start_args`, its keywords as for a spawn; `package_ref`, a reference to the JSON object of the
package's entries, if there are any.
"""

from __future__ import annotations

from typing import Any

from ciel.core.refs import Future
from ciel.core.tasks import Mentions
from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    Child,
    ChildForm,
    Executor,
    Finish,
    Task,
    mentions_of,
    output_count,
    simple_form,
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
        form = _start_form(task, handler)
        spec = task.spec
        first = Child(
            *make_task(
                job=spec.job, parent=spec.id, ordinal=0, executor=handler,
                arguments=form.arguments, n_outputs=form.n_outputs, memoise=form.memoise,
                needs=spec.needs, sees_errors=form.sees_errors,
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

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        raise BadArgumentsError("init is the first task of a job; a task cannot spawn it")


def _start_form(task: Task, handler: str) -> ChildForm:
    """Return the form of the first task.

    If this worker does not have the executor, it assumes the simple form. If no worker has it, the
    master rejects the task.
    """
    start_args = task.arguments.get("start_args", {})
    if not isinstance(start_args, dict):
        raise BadArgumentsError("'start_args' must be an object")
    executor = task.executors.get(handler)
    if executor is None:
        if isinstance(start_args.get("args", {}), dict):
            return simple_form(handler, start_args)
        n_outputs = output_count(start_args.get("n_outputs", 1))
        return ChildForm(start_args, n_outputs, memoise=False, as_list=True)
    try:
        form = executor.child_form(start_args)
    except BadArgumentsError as error:
        raise BadArgumentsError(str(error), handler) from None
    output_count(form.n_outputs)
    package = task.arguments.get("package_ref")
    if package is None or not executor.wants_package:
        return form
    return form._replace(arguments=form.arguments | {"package_ref": package})
