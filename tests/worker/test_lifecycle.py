"""Tests the life cycle of attempts, with fakes for strategies, programs and the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock

from ciel.core.events import TaskFault
from ciel.core.refs import details_text
from ciel.core.tasks import Isolation
from ciel.execution.executor import Action, Executor, Program, Run, Task
from ciel.execution.kept import KeptAttempts
from ciel.launch.isolation import Surroundings
from ciel.storage.errors import NoSpaceError
from ciel.storage.interface import DISK, MEMORY, StoreLevel
from ciel.testing.builders import a_task, inline
from ciel.worker.attempts import lifecycle as module
from ciel.worker.attempts.attempts import Attempts
from ciel.worker.attempts.lifecycle import Lifecycle
from ciel.worker.attempts.scratch import Scratch, ScratchPool
from ciel.worker.limits.sandboxes import Sandboxes
from ciel.worker.state.orders import Key, StartAttempt

FAULT = TaskFault("RUNTIME_EXCEPTION", "it failed")
NO_SPACE = TaskFault("NO_SPACE", "it has no room")


class Once(Executor):
    """Runs a program for each task."""

    name = "once"

    def begin(self, task: Task) -> Action:
        return Run(Program(("true",)))


class Strategy:
    """Records each start."""

    def __init__(self) -> None:
        self.started: list[tuple[Any, str]] = []
        self.is_closed = False

    def start(self, order: Any, task: Any, executor: Any, action: Any, level: str = "") -> None:
        self.started.append((task.spec, level))

    def make_way(self, given: Any) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


class Attempt:
    """An attempt without a program."""

    argv = ("program",)
    exit_status = 7
    partial_output = None

    def __init__(self, strategy: Strategy, scratch: Scratch | None = None) -> None:
        self.order = StartAttempt(a_task("out"), 1, (), 0)
        self.key: Key = (self.order.spec.id, 1)
        self.executor = Once()
        self.task = Task(self.order.spec, {}, {}, {"once": self.executor})
        self.strategy = strategy
        self.scratch = scratch
        self.level = ""
        self.is_repeatable = True
        self.interrupted: list[Key] = []
        self.calls: list[Any] = []
        self.end: Callable[[], None] = lambda: None

    def kill(self, *, force: bool) -> None:
        self.calls.append(("kill", force))

    def recall(self) -> None:
        self.calls.append("recall")

    def stop(self, fault: TaskFault) -> None:
        self.calls.append(fault.reason)

    def settle(self, event: Any) -> None:
        self.end()

    def clean_up(self, *, files_kept: bool = False) -> None:
        self.calls.append("kept" if files_kept else "clean up")

    def abandon(self) -> None:
        self.calls.append("abandon")


class Scene:
    """A life cycle, and its reports."""

    def __init__(self, path: Path) -> None:
        self.reports: list[Any] = []
        self.levels = [MEMORY, DISK]
        self.pool = ScratchPool(path)
        store = SimpleNamespace(
            levels=lambda: tuple([StoreLevel(name, None, 0, 0, 0) for name in self.levels])
        )
        place: Any = SimpleNamespace(
            sandboxes=Sandboxes(Isolation(), Surroundings()),
            reactor=Clock(), owner=self, worker="w1", netloc="here:1", store=store,
            kept=KeptAttempts(path / "kept"), scratch=self.pool, executors={"once": Once()},
            store_device="", checksums=SimpleNamespace(verify=lambda refs: None),
        )  # fmt: skip
        self.lifecycle = Lifecycle(place)
        self.strategy = Strategy()
        self.attempt = Attempt(self.strategy)
        self.lifecycle.started(self.attempt)

    def attempt_ended(
        self, key: Key, published: Any, fault: Any, run_s: float, exit_status: int | None = None
    ) -> None:
        self.reports.append((key, fault, exit_status))

    def inputs_gone(self, key: Key, losses: Any, details: str) -> None:
        self.reports.append((key, losses))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    def run_now(call: Any, *arguments: Any) -> Deferred[Any]:
        return maybeDeferred(call, *arguments)

    monkeypatch.setattr(module, "deferToThread", run_now)
    return Scene(tmp_path)


def test_an_attempt_is_cleaned_up_before_its_fault_is_reported(scene: Scene) -> None:
    scene.lifecycle.fail(scene.attempt, FAULT, 1.0, keeps_files=True)  # the attempt has no files
    assert scene.attempt.calls == ["clean up"]
    assert scene.reports == [(scene.attempt.key, FAULT, 7)]
    assert not scene.lifecycle.is_running(scene.attempt)


def test_a_fault_names_the_files_that_are_kept(scene: Scene, tmp_path: Path) -> None:
    scratch = scene.attempt.scratch = scene.pool.take()
    Path(scratch.path, "left").write_text("by the program")
    scene.lifecycle.fail(scene.attempt, FAULT, 1.0, keeps_files=True)
    ((_, fault, _),) = scene.reports
    kept = tmp_path / "kept" / f"{scene.attempt.key[0]}.1"
    assert details_text(fault.details) == f"it failed\nits files are kept in {kept}"
    assert (kept / "scratch" / "left").read_text() == "by the program"
    assert scene.attempt.calls == ["kept"]


def test_a_fault_says_why_files_are_not_kept(scene: Scene, tmp_path: Path) -> None:
    scene.attempt.scratch = scene.pool.take()
    (tmp_path / "kept").write_text("no directory")
    scene.lifecycle.fail(scene.attempt, FAULT, 1.0, keeps_files=True)
    ((_, fault, _),) = scene.reports
    assert fault.text.splitlines()[1] == "its files could not be retained: Not a directory"
    assert scene.attempt.calls == ["clean up"]


def test_a_bug_while_settling_is_the_fault_of_one_attempt(scene: Scene) -> None:
    def fails() -> None:
        raise KeyError("a bug")

    scene.attempt.end = fails
    scene.lifecycle.program_ended(scene.attempt, None)
    ((_, fault, _),) = scene.reports
    assert fault.reason == "WORKER_FAULT"
    assert fault.text == (
        "worker w1 could not process the end of its program, because of a bug in ciel: "
        "KeyError('a bug'); the worker's log has the details"
    )
    assert scene.attempt.calls == ["clean up"]


def test_interrupted_attempts_are_reported_after_the_one_that_failed(scene: Scene) -> None:
    outer = (a_task("outer").id, 1)
    scene.attempt.interrupted = [outer]
    scene.lifecycle.lose_inputs(scene.attempt, (), "why")
    assert [report[0] for report in scene.reports] == [scene.attempt.key, outer]
    assert scene.reports[1][1].reason == "RECALLED"


def test_an_attempt_runs_again_once_with_outputs_on_disk(scene: Scene) -> None:
    assert scene.lifecycle.run_again_on_disk(scene.attempt, "it")
    assert scene.strategy.started == [(scene.attempt.order.spec, DISK)]
    assert scene.attempt.calls == ["clean up"]
    scene.attempt.level = DISK
    assert not scene.lifecycle.run_again_on_disk(scene.attempt, "it")
    assert not scene.reports


@pytest.mark.parametrize("levels", [[DISK], [MEMORY]])
def test_no_attempt_runs_again_on_a_store_without_both_levels(
    scene: Scene, levels: list[str]
) -> None:
    scene.levels = levels
    assert not scene.lifecycle.run_again_on_disk(scene.attempt, "it")


def test_no_attempt_runs_again_that_others_know_of(scene: Scene) -> None:
    scene.attempt.is_repeatable = False
    assert not scene.lifecycle.run_again_on_disk(scene.attempt, "it")
    assert scene.strategy.started == []


def test_an_attempt_over_a_limit_is_stopped(scene: Scene) -> None:
    key = scene.attempt.key
    scene.lifecycle._outgrown(key, NoSpaceError(10, 5))
    scene.lifecycle._exceeded(key, 100)
    scene.lifecycle.kill(key, force=True)
    scene.lifecycle.recall(key)
    assert scene.attempt.calls == ["NO_SPACE", "MEMORY_LIMIT", ("kill", True), "recall"]


def test_what_is_not_running_is_neither_killed_nor_stopped(scene: Scene) -> None:
    scene.lifecycle.forget(scene.attempt.key)
    scene.lifecycle.kill(scene.attempt.key, force=False)
    scene.lifecycle._exceeded(scene.attempt.key, 100)
    assert scene.attempt.calls == []


def test_each_action_is_started_by_its_strategy(scene: Scene) -> None:
    interactive = Strategy()
    callers: Any = SimpleNamespace(find=lambda job: None)
    attempts = Attempts(scene.lifecycle, scene.strategy, interactive, callers)
    spec = a_task("other", ordinal=2)._replace(executor="once", payload=b"{}")
    attempts.start(StartAttempt(spec, 1, (), 0))
    assert (scene.strategy.started, interactive.started) == ([(spec, "")], [])
    attempts.close()
    assert interactive.is_closed
    assert scene.attempt.calls == ["abandon"]


def test_a_task_of_an_unknown_executor_fails(scene: Scene) -> None:
    callers: Any = SimpleNamespace(find=lambda job: None)
    attempts = Attempts(scene.lifecycle, scene.strategy, Strategy(), callers)
    attempts.start(StartAttempt(a_task("other", ordinal=2)._replace(executor="none"), 1, (), 0))
    ((_, fault, _),) = scene.reports
    assert fault == TaskFault("WORKER_FAULT", "worker w1 has no executor 'none'")


def test_a_result_is_reported_as_it_is(scene: Scene) -> None:
    scene.lifecycle.report(scene.attempt.key, (inline("out", b"1"),), None, 1.0)
    assert scene.reports == [(scene.attempt.key, None, None)]
