"""Tests that interactive programs that are killed or fail leave nothing on a real worker."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ciel.core.events import InputsLost, TaskFault
from ciel.core.ids import ObjectId
from ciel.core.refs import Value
from ciel.core.tasks import Needs
from ciel.storage.files import FileStore
from ciel.testing.builders import stored
from ciel.testing.homes import descriptors_of, private_bytes, wait_for
from ciel.worker.interactive.process import _LAST_WORDS_S, Patience, is_ending
from ciel_tests.scenes.one_worker import SDK, Talker
from ciel_tests.scenes.puppet_words import (
    EXECUTORS,
    EXIT,
    FRAME,
    GOOD,
    IS_LONG,
    KEEP,
    OPEN,
    PID,
    PUBLISH,
    SETTLED_S,
    START,
    STAY,
    WELL,
    Start,
    pid_of,
    waiting,
)

# --- cancelled and failed tasks -------------------------------------------------------------------


@pytest.mark.parametrize("actions", [(STAY,), (*START, STAY), (*START, "i15", STAY)], ids=str)
def test_a_task_that_is_cancelled_ends(worker: Talker, actions: tuple[str, ...]) -> None:
    key = worker.puppet(*actions)
    wait_for(lambda: worker.programs(), "the program")
    begun_s = time.monotonic()
    worker.cancel(key)
    assert worker.fault(key).reason == "CANCELLED"
    assert time.monotonic() - begun_s < SETTLED_S
    worker.expect_free()
    worker.expect_nothing_runs()


@pytest.mark.slow
def test_a_task_that_takes_too_long_is_ended(worker: Talker) -> None:
    begun_s = time.monotonic()
    fault = worker.fault(worker.puppet(*START, "i15", "d", STAY, needs=Needs(timeout_s=0.2)))
    assert time.monotonic() - begun_s < 0.2 + SETTLED_S
    assert fault.reason == "TIMED_OUT"
    assert "longer than its limit of 0.2 s" in fault.details
    worker.expect_nothing_runs()


def test_a_warm_program_that_is_killed_for_its_silence_is_not_replaced(
    start: Start, tmp_path: Path
) -> None:
    """If the worker assumed that the killed program had ended before it read its task, it would
    give the task to one warm program after another.
    """
    worker = start(slots=3)
    actions = (*OPEN, "h", f"w{tmp_path}/go", PUBLISH, KEEP, STAY)
    keys = [worker.puppet(*actions) for _ in range(3)]
    wait_for(lambda: len(worker.programs()) == 3, "three programs")
    (tmp_path / "go").touch()
    for key in keys:
        worker.good(key)
    fault = worker.fault(worker.puppet(*actions, needs=Needs(timeout_s=0.2)))
    assert fault.reason == "TIMED_OUT"
    worker.expect_free()
    wait_for(lambda: len(worker.programs()) == 2, "two programs")


def test_a_program_that_was_cancelled_serves_nobody_again(worker: Talker, tmp_path: Path) -> None:
    """The signal of the cancellation may reach the program in the middle of another task."""
    key = worker.puppet(*START, "i15", f"t{tmp_path}/runs", f"w{tmp_path}/go", PUBLISH, KEEP, "l")
    pid_of(tmp_path / "runs")
    worker.cancel(key)
    (tmp_path / "go").touch()
    assert worker.fault(key).reason == "CANCELLED"
    worker.expect_nothing_runs()


def test_what_a_failed_task_had_stored_is_deleted(worker: Talker) -> None:
    script = """def run(task):
        task.publish(task.allocate(), b"x" * 5000)
        with task.open_output(0) as output:
            output.write(b"y" * 5000)
        task.log(str(output.ref.array))
        raise ValueError"""
    worker.fault(worker.python(script))
    wait_for(lambda: list(worker.store) == [], "deleted objects")
    wait_for(lambda: "/store/" not in str(worker.left()), "no temporaries")


def test_what_was_there_before_outlives_a_failed_task(worker: Talker) -> None:
    """An output exists, because other tasks read it, and the failed task wrote it again with other
    content.
    """
    script = """def run(task):
        task.publish(0, b"x" * 5000)
        raise ValueError"""
    spec_key = worker.python(script)
    worker.fault(spec_key)
    wait_for(lambda: list(worker.store) == [], "deleted objects")
    spec = worker.task("proc", {"command": ["x"]})
    worker.put(f"{spec.id}:out:0", b"x" * 5000)
    head = f"import sys; sys.path.insert(0, {str(SDK)!r}); import ciel_task as c\n"
    arguments = {"command": [sys.executable, "-IS", "-c", f"{head}{script}\nc.serve(run)"]}
    worker._number -= 1  # the same task, with a program
    again = worker.task("proc", arguments)
    worker.put(again.outputs[0], b"x" * 5000)
    worker.fault(worker.assign(again))
    assert worker.store.get(again.outputs[0]) == b"x" * 5000


# --- kept files, and programs that cannot be started ----------------------------------------------


def test_files_of_a_failed_task_are_kept(worker: Talker) -> None:
    script = """def run(task):
        open("left.txt", "w").write("rest")
        print("no luck", flush=True)
        os._exit(4)"""
    fault = worker.fault(worker.python(script))
    (kept,) = (worker.path / "kept").iterdir()
    assert f"its files are kept in {kept}" in fault.details
    assert (kept / "stdout").read_text() == "no luck\n"
    assert (kept / "stderr").read_text() == ""
    assert (kept / "scratch" / "left.txt").read_text() == "rest"
    wait_for(lambda: worker.left() == [], "the removal of the rest")


def test_a_program_that_cannot_be_started(worker: Talker) -> None:
    fault = worker.fault(worker.assign(worker.task("proc", {"command": "no-such-program"})))
    assert fault.reason == "PROGRAM_NOT_STARTED"
    assert "its PATH contains no program of that name" in fault.details
    worker.expect_free()


def test_a_command_that_no_launcher_takes_leaves_nothing(worker: Talker) -> None:
    before = descriptors_of(os.getpid())
    for _ in range(5):
        arguments = {"command": ["true", *["x" * 1000] * 10_000]}
        fault = worker.fault(worker.assign(worker.task("proc", arguments)))
        assert "could not start it" in fault.details
    wait_for(lambda: descriptors_of(os.getpid()) <= before, "closed descriptors")
    wait_for(lambda: worker.left() == [], "the removal of files")


def test_what_a_program_cannot_be_told_fails_its_task(worker: Talker) -> None:
    fault = worker.fault(worker.puppet(*START, *GOOD, proc_pargs=["a\0b"]))
    assert fault.reason == "BAD_ARGUMENTS"
    assert "NUL" in fault.details
    worker.expect_nothing_runs()


def test_a_stored_program_serves(worker: Talker) -> None:
    script = f"#!/bin/sh\nexec {worker.puppet_path} {' '.join(START)} '{PUBLISH}' '{EXIT}' $@\n"
    program = worker.put("program", script.encode())
    spec = worker.task("proc", {"command": program})
    assert worker.content(worker.assign(spec, program)) == WELL


def test_inputs_that_are_gone_are_told_of(worker: Talker) -> None:
    gone = stored("gone", "127.0.0.1:8001")
    worker.in_reactor(worker.operations.uploaded, gone.id)
    lost = worker.end(worker.python("def run(task): task.read(task.args[0])", gone, inputs=(gone,)))
    assert isinstance(lost, InputsLost)
    assert lost.losses == ((gone.id, "127.0.0.1:8001"),)
    worker.expect_free()
    program = stored("program", "127.0.0.1:8001")
    worker.in_reactor(worker.operations.uploaded, program.id)
    lost = worker.end(worker.assign(worker.task("proc", {"command": program}), program))
    assert isinstance(lost, InputsLost)
    worker.expect_free()


def test_what_nobody_has_is_told_of(worker: Talker) -> None:
    """A program may invent a reference, or find it in an object."""
    elsewhere = '{"__ref__":["c2","elsewhere",5,["127.0.0.1:9"]]}'
    for method, more in (("open_ref", ""), ("open_ref_async", ',"chunk_size":1')):
        call = f's["{method}",{{"ref":{elsewhere}{more}}}]'
        lost = worker.end(worker.puppet(*START, call, "h", STAY))
        assert isinstance(lost, InputsLost)
        assert "nobody has it" in lost.details
        worker.expect_free()


@pytest.mark.parametrize("end", ["pass", "raise ValueError", "os._exit(3)"])
def test_a_program_may_remove_all_that_it_was_given(worker: Talker, end: str) -> None:
    script = f"""def run(task):
        import shutil
        inputs = os.path.dirname(sys.argv[-1])
        task.publish(0, task.read(task.args[0]))
        task.call("allocate_output")
        for path in (inputs, os.environ["CIEL_SCRATCH"]):
            shutil.rmtree(path)
        os.unlink(inputs[:-len("in")] + "stderr")
        {end}"""
    key = worker.python(script, Value.of(ObjectId("x"), b"content"))
    if end == "pass":
        assert worker.content(key) == b"content"
        (pid,) = worker.programs()
        os.kill(pid, signal.SIGKILL)
    else:
        assert worker.fault(key).reason == "RUNTIME_ERROR"
    worker.expect_nothing_runs()
    wait_for(lambda: worker.left() == [], "the removal of what is left")


def test_the_end_of_the_launcher_is_that_of_all_programs(worker: Talker) -> None:
    spec, fixed = waiting(worker)
    worker.content(worker.python(PID))
    busy = worker.puppet(*START, STAY)
    wait_for(lambda: len(worker.programs()) == 3, "three programs")
    os.kill(worker.launching._launcher.pid, signal.SIGKILL)
    assert "it was killed by SIGKILL" in worker.fault(busy).details
    assert isinstance(
        worker.end(worker.assign(spec, fixed, Value.of(ObjectId("x"), b""))), InputsLost
    )
    assert worker.content(worker.puppet(*START, *GOOD)) == WELL


def test_a_worker_that_ends_lets_go_of_everything(
    in_reactor: Any, store: FileStore, tmp_path: Path, puppet_path: str
) -> None:
    before = descriptors_of(os.getpid())
    worker = Talker(in_reactor, store, tmp_path, EXECUTORS, slots=4)
    worker.puppet_path = puppet_path
    waiting(worker)
    worker.content(worker.python(PID))
    writing = worker.python("""def run(task):
        task.open_output(0, may_stream=True)
        task.call("allocate_output")
        time.sleep(60)""")
    (ref,) = worker.stream(writing).refs
    worker.python("def run(task): task.open(task.args[0])", ref, inputs=(ref,))
    worker.python(
        "def run(task): task.open_stream(task.args[0], must_block=True).read()", ref, inputs=(ref,)
    )
    worker.puppet(STAY)
    wait_for(lambda: len(worker.programs()) == 6, "six programs")
    worker.stop()
    wait_for(lambda: descriptors_of(os.getpid()) <= before, "closed descriptors")


def test_an_end_that_the_launcher_reports_late_is_the_reason(start: Start, tmp_path: Path) -> None:
    worker, gate = start(), tmp_path / "gate"
    key = worker.puppet(*START, f"w{gate}", "q3")
    wait_for(lambda: len(worker.programs()) == 1, "the program")
    (pid,), launcher = worker.programs(), int(worker.launching._launcher.pid)
    assert not is_ending(pid)
    os.kill(launcher, signal.SIGSTOP)
    gate.touch()
    wait_for(lambda: is_ending(pid), "the end of the program")
    time.sleep(2 * _LAST_WORDS_S)
    os.kill(launcher, signal.SIGCONT)
    assert "exit status 3 before" in worker.fault(key).details
    assert is_ending(pid)  # the launcher has reaped it


# --- many programs --------------------------------------------------------------------------------


def bad_ends() -> dict[str, tuple[tuple[str, ...], str]]:
    """Actions of programs, by name, and the text of the fault; empty if they are correct."""
    return {
        "good": ((*START, *GOOD), ""),
        "warm": ((*START, PUBLISH, KEEP, "l"), ""),
        "segfault": ((*START, "k11"), "killed by SIGSEGV before"),
        "exit 3": ((*START, "q3"), "exit status 3 before"),
        "exit 0 without a word": ((*START, "q0"), "exit status 0 before"),
        "never opened": (("q0",), "exit status 0 before"),
        "non-JSON": ((*START, "x0000000368657921", STAY), "not JSON"),
        "truncated": ((*START, f"x{FRAME[:20].hex()}", "q0"), "in the middle of a call"),
        "wrong shape": ((*START, 's{"exit":1}', STAY), "not a list of a method"),
        "a long line": ((*START, "n10000000", STAY), "does the program print to the FIFO?"),
        "non-UTF8": ((*START, "x0000000322ff22", STAY), "not UTF-8"),
        "error report": ((*START, 's["error",{"report":"my reason"}]', STAY), "my reason"),
        "no length": ((*START, "r\n", "q0"), "in the middle of a call"),
    }


@pytest.mark.slow
def test_a_thousand_programs_of_every_kind_are_told_apart_and_leave_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciel.worker.state.recent.RECENT_MAX", 50)  # entries
    worker = start(slots=4, patience=Patience(idle_s=0.2))
    ends = bad_ends()
    chance = random.Random(5)
    count = 20_000 if IS_LONG else 1_000

    def run(number: int) -> None:
        names = chance.choices(list(ends), k=number)
        keys = [worker.puppet(*ends[name][0]) for name in names]
        for name, key in zip(names, keys, strict=True):
            ended: Any = worker.end(key, 120)
            fault: TaskFault | None = ended.fault
            words = ends[name][1]
            assert (fault is None) == (not words), (name, ended)
            if fault is not None:
                assert fault.reason == "RUNTIME_ERROR"
                assert words in fault.details, name
        worker.reports.clear()
        worker.wait_until_free()
        wait_for(lambda: not worker.programs(), "the end of those that were kept")

    for _ in range(max(count // 1000, 1)):
        run(200)
    descriptors, memory_bytes = descriptors_of(os.getpid()), private_bytes(os.getpid())
    for _ in range(count // 250):
        run(250)
    wait_for(lambda: descriptors_of(os.getpid()) <= descriptors + 2, "closed descriptors")
    assert private_bytes(os.getpid()) < 1.05 * memory_bytes + (4 << 20)
    assert not [*worker.machine.problems()]
