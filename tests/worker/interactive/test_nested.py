"""Tests children that run inline in their parent's program: the report of each child, and what
happens to the outer attempts after a failure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.core.events import RECALLED, SpawnTask, TaskFault
from ciel.core.ids import TaskId
from ciel.core.refs import Concrete, Value
from ciel.core.tasks import DEFAULT_NEEDS, Needs
from ciel.execution.attempt import Attempt
from ciel.executors.nested import NestedConversation
from ciel.executors.proc import ProcExecutor
from ciel.storage.files import FileStore
from ciel.testing.homes import wait_for
from ciel.worker.state.orders import Key
from ciel_tests.scenes.one_worker import SDK, OneWorker


class _Nested(ProcExecutor):
    """An executor whose programs receive only their instructions."""

    name = "nested"

    def converse(self, attempt: Attempt, say: Callable[[str, Any], None]) -> NestedConversation:
        return NestedConversation(attempt, say)


HEAD = f"""
import sys; sys.path.insert(0, {str(SDK)!r})
import ciel_task as c, os, time

def begin(task, number=0):
    what = dict(executor_name="nested", command=["none"], proc_pargs=[number], here=True)
    task._ask("spawn", what)

def end(task, value=None):
    task.tell("exit", keep_process="may_keep", **({{}} if value is None else {{"value": value}}))

def fail(task, text):
    task.tell("error", report=text)
    end(task)

def leave(task, text):
    open(sys.argv[1] + "/" + text, "w").write(str(os.getpid()))

def wait(task, *within):
    task._channel.flush()
    leave(task, "waits")
    while True:
        time.sleep(0.01)
"""


class Lab(OneWorker):
    """A worker that runs these programs; they write files into `notes`."""

    notes: Path

    def program(
        self, script: str, *, needs: Needs = DEFAULT_NEEDS, attempt: int = 1, n_outputs: int = 1
    ) -> Key:
        """Assign a task that runs a script; the script ends the task."""
        text = f"{HEAD}\ndef run(task):\n    {script}\nc.serve(run)"
        command = [sys.executable, "-IS", "-c", text, str(self.notes)]
        spec = self.task("nested", {"command": command}, needs=needs, n_outputs=n_outputs)
        return self.assign(spec, attempt=attempt)

    def spawned(self, parent: TaskId, number: int = 0) -> SpawnTask:
        """Wait for a report that a task spawned a child; return the report."""
        spawned: SpawnTask = self.expect(
            lambda report: (
                isinstance(report, SpawnTask)
                and (report.spec.parent, report.spec.ordinal) == (parent, number)
            )
        )
        return spawned

    def within(self, key: Key, number: int = 0) -> Key:
        """Wait for a child that runs inline in an attempt; return the child's key."""
        spawned = self.spawned(key[0], number)
        assert spawned.started
        assert spawned.wanted
        return (spawned.spec.id, 0)

    def note(self, name: str) -> str:
        """Wait until a program has written a file into `notes`; return its text."""
        path = self.notes / name
        wait_for(lambda: path.exists() and path.read_text() != "", name)
        return path.read_text()

    def value(self, key: Key) -> bytes:
        (ref,) = self.good(key)
        return self.read(ref)


@pytest.fixture
def start(in_reactor: Any, store: FileStore, tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    started: list[Lab] = []

    def start(begins: str = "nested") -> Lab:
        names = frozenset(begins.split())
        lab = Lab(in_reactor, store, tmp_path, {"nested": _Nested()}, slots=1, starts_locally=names)
        lab.notes = tmp_path / "notes"
        lab.notes.mkdir()
        started.append(lab)
        return lab

    yield start
    for lab in started:
        try:
            wait_for(lambda: lab.slots_free() == 1, "a free slot")  # noqa: B023
            assert not lab.in_reactor(lambda: [*lab.machine.problems()])  # noqa: B023
        finally:
            lab.stop()


@pytest.fixture
def lab(start: Callable[..., Lab]) -> Lab:
    return start()


# --- well -----------------------------------------------------------------------------------------


def test_a_child_that_runs_within_its_parent_is_reported_as_any_other(lab: Lab) -> None:
    key = lab.program('begin(task); end(task, "of the child"); task.publish(0, b"parent")')
    assert lab.value(key) == b"parent"
    child = lab.within(key)
    assert lab.value(child) == b"of the child"
    ends = [report.task for report in lab.reports if hasattr(report, "run_s")]
    assert ends == [child[0], key[0]]


def test_children_within_children_have_their_own_outputs_and_children(lab: Lab) -> None:
    key = lab.program("""begin(task, 0)
    begin(task, 1)
    task.publish(task.allocate("more"), b"x" * 3000)
    end(task, "1")
    begin(task, 2); end(task, "2")
    end(task, "0")
    task.publish(0, b"parent")""")
    assert lab.value(key) == b"parent"
    child = lab.within(key)
    first, second = lab.within(child, 0), lab.within(child, 1)
    assert lab.value(child) == b"0"
    made = {type(ref): lab.read(ref) for ref in lab.good(first)}
    assert made == {Value: b"1", Concrete: b"x" * 3000}
    assert lab.value(second) == b"2"


def test_what_a_child_leaves_open_is_published_at_its_end(lab: Lab) -> None:
    key = lab.program("""begin(task)
    open(task.call("open_output", index=0)["filename"], "wb").write(b"y" * 5000)
    end(task)
    task.publish(0, b"parent")""")
    lab.good(key)
    assert lab.value(lab.within(key)) == b"y" * 5000


def test_a_child_may_have_others_go_on(lab: Lab) -> None:
    key = lab.program("""begin(task)
    task.tail_spawn("nested", command=["none"])
    end(task)
    task.tail_spawn("nested", command=["none"])""")
    assert lab.good(key) == ()
    child = lab.within(key)
    assert lab.good(child) == ()
    outputs = lab.spawned(key[0], 0).spec.outputs
    assert lab.spawned(child[0]).spec.outputs == outputs
    assert lab.spawned(key[0], 1).spec.outputs[0].startswith(key[0])


def test_whoever_runs_around_a_child_may_give_work_away_meanwhile(lab: Lab) -> None:
    key = lab.program("""begin(task)
    task._ask("spawn", dict(executor_name="nested", command=["none"], wanted=True, level=0))
    end(task, "child")
    task.publish(0, b"parent")""")
    lab.good(key)
    given = lab.spawned(key[0], 1)
    assert given.wanted
    assert not given.started


def test_a_short_text_rides_in_the_task_and_a_long_one_in_an_object(lab: Lab) -> None:
    key = lab.program("""
    for text in ("short", "long" * 300):
        task._ask("spawn", dict(executor_name="nested", command=["none"], cont_text=text))
    task.publish(0, b"")""")
    assert {type(ref): lab.read(ref) for ref in lab.good(key)} == {
        Value: b"",
        Concrete: b"long" * 300,
    }


# --- badly ----------------------------------------------------------------------------------------


def test_a_child_that_fails_says_why_and_its_parent_goes_on(lab: Lab) -> None:
    key = lab.program('begin(task); fail(task, "so it is"); task.publish(0, b"parent")')
    assert lab.value(key) == b"parent"
    assert lab.fault(lab.within(key)) == TaskFault("RUNTIME_ERROR", "so it is")


def test_a_program_whose_task_has_failed_stays_warm(lab: Lab) -> None:
    script = """
    leave(task, task.args and "second" or "first")
    fail(task, "pid %d" % os.getpid())
    task.is_over = True"""
    faults = {lab.fault(lab.program(script)) for _ in range(3)}
    (fault,) = faults
    assert fault.reason == "RUNTIME_ERROR"
    assert len(lab.programs()) == 1


def test_who_dies_within_a_child_fails_that_and_gives_the_others_back(lab: Lab) -> None:
    """The innermost attempt fails; the outer ones run again, with their children elsewhere."""
    key = lab.program(
        "begin(task, 0); begin(task, 1); task._channel.flush(); os.kill(os.getpid(), 9)"
    )
    assert lab.fault(key).reason == RECALLED
    child = lab.within(key)
    assert lab.fault(child).reason == RECALLED
    fault = lab.fault(lab.within(child))
    assert fault.reason == "RUNTIME_ERROR"
    assert "SIGKILL" in fault.details


def test_what_a_child_gets_wrong_is_its_own_fault(lab: Lab) -> None:
    key = lab.program('begin(task); task.call("no_method")')
    assert "no_method" in lab.fault(lab.within(key)).details
    assert lab.fault(key).reason == RECALLED


def test_what_has_ended_before_is_not_touched_by_the_end_of_its_program(lab: Lab) -> None:
    key = lab.program("""begin(task); end(task, "done")
    task._channel.flush(); os.kill(os.getpid(), 9)""")
    assert lab.value(lab.within(key)) == b"done"
    assert "SIGKILL" in lab.fault(key).details


@pytest.mark.parametrize("who", ["parent", "child"])
def test_calling_one_off_ends_the_program_of_both(lab: Lab, who: str) -> None:
    key = lab.program("begin(task); wait(task)")
    child = lab.within(key)
    pid = int(lab.note("waits"))
    doomed, other = (key, child) if who == "parent" else (child, key)
    lab.cancel(doomed)
    assert lab.fault(doomed).reason == "CANCELLED"
    assert lab.fault(other).reason == RECALLED
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of the program")


def test_an_input_that_is_gone_costs_the_child_that_reads_it(lab: Lab) -> None:
    key = lab.program("""begin(task)
    task.call("open_ref", ref=c.Ref(["c2", "gone", 5, ["127.0.0.1:1"]]))""")
    lost = lab.end(lab.within(key))
    assert type(lost).__name__ == "InputsLost"
    assert lab.fault(key).reason == RECALLED


@pytest.mark.parametrize(
    "how",
    [
        {"attempt": 2},
        {"needs": Needs(memory_bytes=1 << 40)},
        {"needs": Needs(timeout_s=60.0)},
    ],
)
def test_no_child_runs_within_what_is_limited_or_runs_again(lab: Lab, how: Any) -> None:
    key = lab.program("begin(task); wait(task)", **how)
    assert "this task cannot run a child inline" in lab.fault(key).details


def test_no_child_runs_within_others_where_nothing_begins_by_itself(
    start: Callable[..., Lab],
) -> None:
    lab = start(begins="")
    key = lab.program("begin(task); wait(task)")
    assert "this task cannot run a child inline" in lab.fault(key).details


@pytest.mark.parametrize("level", [-1, 1, "0", None])
def test_a_level_is_that_of_a_task_that_runs(lab: Lab, level: Any) -> None:
    call = f'dict(executor_name="nested", command=["none"], level={level!r})'
    key = lab.program(f'task._ask("spawn", {call}); task.publish(0, b"well")')
    if level is None:
        assert lab.value(key) == b"well"
    else:
        assert "'level' must be" in lab.fault(key).details
