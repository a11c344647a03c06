"""Tasks as executors see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ciel.core.refs import Reference
from ciel.execution.executor import Task
from ciel.executors.environ import EnvExecutor
from ciel.executors.init import InitExecutor
from ciel.executors.proc import ProcExecutor
from ciel.executors.stdinout import StdinoutExecutor
from ciel.executors.sync import SyncExecutor
from ciel.testing.builders import EXECUTOR, a_task

EXECUTORS = {
    executor.name: executor
    for executor in (
        EnvExecutor(), InitExecutor(), ProcExecutor(), StdinoutExecutor(), SyncExecutor(),
    )
}  # fmt: skip


@pytest.fixture
def task() -> Callable[..., Task]:
    """Make a task: its arguments, what its inputs became, and its outputs."""

    def task(
        arguments: dict[str, Any],
        *inputs: Reference,
        executor: str = EXECUTOR,
        outputs: tuple[str, ...] = ("out",),
    ) -> Task:
        spec = a_task(*outputs, inputs=[ref.id for ref in inputs], executor=executor)
        known = {ref.id: ref for ref in inputs}
        return Task(spec, arguments, known, EXECUTORS)

    return task
