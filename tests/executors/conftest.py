"""Tasks as executors see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.core.refs import Reference
from ciel.execution.executor import Task
from ciel.executors.environ import EnvExecutor
from ciel.executors.init import InitExecutor
from ciel.executors.proc import ProcExecutor
from ciel.executors.stdinout import StdinoutExecutor
from ciel.executors.sync import SyncExecutor
from ciel.storage.files import FileStore, open_disk
from ciel.testing.builders import EXECUTOR, a_task
from ciel_tests.scenes.dialogues import Dialogue

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


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with open_disk({}, tmp_path / "store") as store:
        yield store


@pytest.fixture
def talk(
    task: Callable[..., Task], store: FileStore, tmp_path: Path
) -> Iterator[Callable[..., Dialogue]]:
    """Begin a conversation: inputs, then the names of outputs."""
    begun: list[Dialogue] = []

    def talk(*inputs: Reference, outputs: tuple[str, ...] = ("out",), **arguments: Any) -> Dialogue:
        made = task(arguments, *inputs, executor="proc", outputs=outputs)
        begun.append(Dialogue(made, store, tmp_path))
        return begun[-1]

    yield talk
    for one in begun:
        one.attempt.outputs.roll_back_all()
