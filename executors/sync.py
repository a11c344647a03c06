"""The executor `sync`: its output is the JSON list of the references of its inputs, with errors."""

from __future__ import annotations

from typing import Any

from ciel.core.tasks import Mentions
from ciel.execution.executor import Action, ChildForm, Executor, Finish, Task
from ciel.executors.arguments import (
    args_of,
    reference_list,
    require_form_count,
    require_output_count,
)
from ciel.wire import codec
from ciel.wire.references import to_json


class SyncExecutor(Executor):
    """Runs no program. It sees errors, so that readers of the list know which input failed."""

    name = "sync"
    mentions = Mentions.INPUTS

    def begin(self, task: Task) -> Action:
        require_output_count(task, 1)
        inputs = reference_list(args_of(task), "inputs")
        resolved = [task.inputs.get(ref.id, ref) for ref in inputs]
        return Finish({0: codec.encode(to_json(resolved))})

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        form = require_form_count(self.name, super().child_form(keywords), 1)
        return form._replace(sees_errors=True)
