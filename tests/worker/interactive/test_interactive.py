"""Tests interactive programs on a real worker: tasks that succeed, and processes that are kept."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ciel.core.events import AssignTask, DropObjects, InputsLost
from ciel.core.ids import ObjectId
from ciel.core.refs import Future, Value
from ciel.core.tasks import Needs
from ciel.testing.homes import wait_for
from ciel.wire.errors import RefusedError
from ciel.worker.interactive.process import Patience
from ciel.worker.state.orders import Key
from ciel_tests.scenes.one_worker import SDK, Talker
from ciel_tests.scenes.puppet_words import (
    EXIT,
    GOOD,
    KEEP,
    OPEN,
    PID,
    PUBLISH,
    SAY,
    START,
    STAY,
    WELL,
    Start,
    pid_of,
    waiting,
)

# --- tasks that succeed ---------------------------------------------------------------------------


def test_a_program_does_its_task_and_goes(worker: Talker) -> None:
    key = worker.puppet(*START, *GOOD)
    assert worker.content(key) == WELL
    worker.expect_nothing_runs()
    wait_for(lambda: worker.left() == [], "the removal of files")


def test_calls_and_their_replies_go_both_ways(worker: Talker) -> None:
    x = worker.put("x", b"content" * 1000)
    key = worker.python(
        """def run(task):
            with task.open_output(1) as output:
                output.write(task.read(task.args[0]))
            index = task.allocate("part")
            extra = task.publish(index, b"e" * 3000)
            task.publish(0, f"{output.ref.array} {extra.array} {task.kwargs}".encode())""",
        Future(x.id), n_outputs=2, inputs=(x,),
    )  # fmt: skip
    first, second, third = sorted(worker.good(key), key=lambda ref: ref.id)
    outputs = {ref.id: worker.read(ref) for ref in (first, second, third)}
    assert outputs[ObjectId(f"{key[0]}:out:1")] == b"content" * 1000
    assert outputs[ObjectId(f"{key[0]}:part:0")] == b"e" * 3000
    assert b"c2" in outputs[ObjectId(f"{key[0]}:out:0")]


def test_an_alternative_that_a_task_was_not_given_is_not_there_for_it(worker: Talker) -> None:
    """This holds even if it appeared later: its producer may still fail."""
    x, y = worker.put("x", b"first"), worker.put("y", b"second")
    script = f"""import sys; sys.path.insert(0, {str(SDK)!r}); import ciel_task as c
def run(task):
    replies = [task.call("open_ref", ref=ref) for ref in task.args]
    task.publish(0, str(["filename" in reply for reply in replies]).encode())
c.serve(run)"""
    command = [sys.executable, "-IS", "-c", script]
    spec = worker.task("proc", {"command": command, "proc_pargs": [Future(x.id), Future(y.id)]})
    key = worker.assign(spec._replace(any_count=2), x, Future(y.id))
    assert worker.content(key) == b"[True, False]"


def test_a_small_input_may_vanish_from_the_store_before_it_is_read(
    worker: Talker, tmp_path: Path
) -> None:
    """A worker deletes its copy of a stream once the master has the content in the reference."""
    opened, go, x = tmp_path / "opened", tmp_path / "go", worker.put("x", b"small")
    key = worker.python(
        """def run(task):
            path = task.path(task.args[0])
            open(task.args[1], "w").close()
            while not os.path.exists(task.args[2]):
                time.sleep(0.002)
            with open(path, "rb") as file:
                task.publish(0, file.read())""",
        Future(x.id), str(opened), str(go), inputs=(x,),
    )  # fmt: skip
    wait_for(opened.exists, "the program")
    worker.store.delete(x.id)
    go.touch()
    assert worker.content(key) == b"small"


def test_a_program_may_print_what_it_likes(worker: Talker) -> None:
    actions = (*OPEN, "p[out]", "eerr", "h", 'p\\0\\0\\0\\5["exit"]', *GOOD)
    assert worker.content(worker.puppet(*actions)) == WELL
    log = (worker.path / "job-job.log").read_text()
    assert "[out]" in log
    assert "err" in log


def test_outputs_that_are_left_open_are_published_at_a_good_end(worker: Talker) -> None:
    script = """def run(task):
        with open(task.call("open_output", index=0)["filename"], "wb") as file:
            file.write(b"left open")"""
    assert worker.content(worker.python(script)) == b"left open"


def test_what_a_program_needs_not_wait_for_is_answered_in_order(worker: Talker) -> None:
    many = ['s["allocate_output",{}]'] * 1000
    assert worker.content(worker.puppet(*START, *many, *GOOD)) == WELL


# --- warm programs --------------------------------------------------------------------------------


def test_a_warm_program_serves_the_next_task_of_its_kind(worker: Talker) -> None:
    pids = {worker.content(worker.python(PID)) for _ in range(5)}
    assert len(pids) == 1
    assert worker.content(worker.python(PID + "#")) not in pids
    assert len(worker.programs()) == 2
    worker.expect_free()


def test_a_warm_program_that_has_the_inputs_at_hand_is_preferred(
    worker: Talker, tmp_path: Path
) -> None:
    x, y = worker.put("x", b"1"), worker.put("y", b"2")
    go = str(tmp_path / "go")
    keys = [worker.python(PID, go, "x"), worker.python(PID, go, "y")]
    wait_for(lambda: len(worker.programs()) == 2, "two programs")
    Path(go).touch()
    has_x, has_y = [worker.content(key) for key in keys]
    assert has_x != has_y
    for ref, pid in ((x, has_x), (y, has_y), (x, has_x)):
        assert worker.content(worker.python(PID, go, ref.id, inputs=(ref,))) == pid


def test_a_program_without_a_limit_serves_no_task_that_has_one(worker: Talker) -> None:
    def pid(memory_bytes: int) -> bytes:
        return worker.content(worker.python(PID, needs=Needs(memory_bytes=memory_bytes)))

    unlimited, small, large = (pid(limit) for limit in (0, 1 << 30, 1 << 31))
    assert len({unlimited, small, large}) == 3
    assert pid(1 << 30) == small


def test_an_idle_program_is_told_to_go(start: Start, tmp_path: Path) -> None:
    worker = start(patience=Patience(idle_s=0.1))
    key = worker.puppet(*START, PUBLISH, KEEP, "h", f"t{tmp_path}/never")
    assert worker.content(key) == WELL
    worker.expect_nothing_runs()
    assert not (tmp_path / "never").exists()


def test_what_came_with_its_last_word_is_answered_though_nothing_follows(
    worker: Talker, tmp_path: Path
) -> None:
    """The worker sends the replies with the next task, or by themselves after a moment."""
    calls = [call[1:].encode() for call in (SAY, KEEP)]
    said = b"".join([len(call).to_bytes(4, "big") + call for call in calls])
    actions = (*START, f"x{said.hex()}", "h", f"t{tmp_path}/heard", STAY)
    assert worker.content(worker.puppet(*actions)) == WELL
    wait_for((tmp_path / "heard").exists, "a reply")


def test_an_idle_program_that_does_not_listen_is_killed(start: Start) -> None:
    worker = start(patience=Patience(idle_s=0.05, leave_s=0.1))
    key = worker.puppet(*START, "i15", PUBLISH, KEEP, STAY)
    assert worker.content(key) == WELL
    worker.expect_nothing_runs()


def test_an_idle_program_that_was_killed_is_replaced(worker: Talker, tmp_path: Path) -> None:
    """This holds even if the worker has not noticed its end yet."""
    actions = (*START, f"t{tmp_path}/pid", PUBLISH, KEEP, "l")
    assert worker.content(worker.puppet(*actions)) == WELL
    for _ in range(3):
        pid = pid_of(tmp_path / "pid")
        (tmp_path / "pid").unlink()
        key = worker.in_reactor(kill_and(worker, pid, actions))
        assert worker.content(key) == WELL
        assert pid_of(tmp_path / "pid") != pid
    assert len(worker.programs()) == 1


def kill_and(worker: Talker, pid: int, actions: tuple[str, ...]) -> Callable[[], Key]:
    """Return a function that kills a program and assigns it a task in one tick."""

    def act() -> Key:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: is_dead(pid), "a dead program")
        spec = worker.task("proc", {"command": [worker.puppet_path, *actions]})
        worker.service.peer_said(worker, [AssignTask(spec, 1, ())])  # type: ignore[arg-type]  # as a peer
        return (spec.id, 1)

    return act


def is_dead(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_warm_program_that_dies_of_its_task_is_not_tried_again(worker: Talker) -> None:
    """The program has read the task, although it has made no call."""
    script = f"""def run(task):
        if task.args:
            with open({str(worker.path / "tries")!r}, "a") as file:
                file.write("x")
            os.kill(os.getpid(), 11)
        task.publish(0, b"")"""
    worker.good(worker.python(script))
    fault = worker.fault(worker.python(script, 1))
    assert "killed by SIGSEGV before it called 'exit'" in fault.details
    assert (worker.path / "tries").read_text() == "x"


def test_a_warm_program_that_ends_while_idle_is_forgotten(worker: Talker) -> None:
    key = worker.puppet(*START, PUBLISH, KEEP, "q0")
    assert worker.content(key) == WELL
    worker.expect_nothing_runs()
    assert worker.content(key) == WELL


def test_a_warm_program_that_speaks_unasked_is_ended(worker: Talker) -> None:
    key = worker.puppet(*START, PUBLISH, KEEP, "z50", 's["log",{"message":"psst"}]', STAY)
    assert worker.content(key) == WELL
    worker.expect_nothing_runs()


def test_a_warm_program_that_fails_is_not_used_again(worker: Talker, tmp_path: Path) -> None:
    script = """def run(task):
        task.publish(0, str(os.getpid()).encode())
        if task.args:
            raise ValueError("no luck")"""
    first = worker.content(worker.python(script))
    fault = worker.fault(worker.python(script, 1))
    assert "no luck" in fault.details
    assert worker.content(worker.python(script)) != first


def test_only_what_was_complained_for_a_task_is_told_of_it(worker: Talker) -> None:
    script = """def run(task):
        print(*task.args, flush=True)
        task.call("allocate_output")
        task.publish(0, b"")
        if task.args[0] == "two":
            os._exit(5)"""
    worker.good(worker.python(script, "one"))
    fault = worker.fault(worker.python(script, "two"))
    assert "the end of its output:\n  two\n" in fault.details
    assert "one" not in fault.details.partition("its output ends")[2].partition("its files")[0]
    worker.good(worker.python(script, "three"))
    log = (worker.path / "job-job.log").read_text()
    assert [line.rpartition(" ")[2] for line in log.splitlines()] == ["one", "two", "three"]


def test_a_program_that_prints_without_end_does_not_fill_the_device(
    worker: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciel.worker.limits.growth.STDERR_MAX_BYTES", 1 << 20)
    monkeypatch.setattr("ciel.worker.limits.growth.STDERR_LEFT_BYTES", 1 << 16)
    script = """def run(task):
        task.publish(0, b"")
        sys.stdout.write("x" * 5_000_000)
        sys.stdout.flush()"""
    worker.good(worker.python(script))
    (stderr,) = worker.path.glob("spool/scratch/*/*.stderr")
    wait_for(lambda: stderr.stat().st_blocks * 512 <= 1 << 20, "the file to be cut")


# --- programs that wait in the middle of a task ---------------------------------------------------


def test_a_program_waits_in_place_and_goes_on(start: Start) -> None:
    worker = start(slots=1)
    spec, fixed = waiting(worker)
    assert set(spec.inputs) == {fixed.id, "x"}
    assert worker.content(worker.puppet(*START, *GOOD)) == WELL  # it holds no slot
    value = Value.of(ObjectId("x"), b"content")
    before, after, content = worker.content(worker.assign(spec, fixed, value)).split(b" ", 2)
    assert before == after
    assert content == b"b'content'"


def test_a_program_may_wait_several_times(worker: Talker) -> None:
    script = """def run(task):
        found = []
        for ref in task.args:
            task.block_on(ref)
            found.append(task.read(ref))
        task.publish(0, b" ".join(found))"""
    names = ("x", "y", "z")
    key = worker.python(script, *[Future(ObjectId(name)) for name in names])
    for name in names:
        (fixed,) = worker.good(key)
        value = Value.of(ObjectId(name), name.encode())
        key = worker.assign(worker.child(key).spec, fixed, value)
    assert worker.content(key) == b"x y z"


def test_what_a_program_opened_before_it_waits_is_still_there_after(worker: Talker) -> None:
    """The program may have only the path, and open the file after the wait."""
    x = Value.of(ObjectId("x"), b"content")
    script = """def run(task):
        path = task.path(task.args[0])
        task.block_on(task.args[1])
        task.publish(0, open(path, "rb").read())"""
    key = worker.python(script, Future(x.id), Future(ObjectId("y")), inputs=(x,))
    (fixed,) = worker.good(key)
    y = Value.of(ObjectId("y"), b"")
    assert worker.content(worker.assign(worker.child(key).spec, fixed, y)) == b"content"


def test_a_program_that_dies_while_it_waits_is_told_as_a_lost_input(worker: Talker) -> None:
    spec, fixed = waiting(worker)
    (pid,) = worker.programs()
    os.kill(pid, signal.SIGKILL)
    worker.expect_nothing_runs()
    lost = worker.end(worker.assign(spec, fixed, Value.of(ObjectId("x"), b"")))
    assert isinstance(lost, InputsLost)
    assert lost.losses == ((fixed.id, fixed.location),)
    assert "is gone" in lost.details


def test_a_program_that_is_not_to_go_on_is_ended(worker: Talker) -> None:
    _, fixed = waiting(worker)
    worker.say(DropObjects((fixed.id,)))
    worker.expect_nothing_runs()


def test_programs_that_wait_end_with_their_session_and_not_with_its_connection(
    worker: Talker,
) -> None:
    waiting(worker)
    worker.in_reactor(worker.service.peer_closed, worker, "a test")
    assert worker.programs()
    worker.in_reactor(worker.service.peer_opened, worker)
    worker.failure = RefusedError("it does not know this session", by_peer=True)
    worker.in_reactor(worker.service.peer_closed, worker, "a test")
    worker.expect_nothing_runs()
    worker.failure = None
    worker.in_reactor(worker.service.peer_opened, worker)


TAIL = 's["tail_spawn",{"executor_name":"proc","is_fixed":true,"extra_dependencies":[]}]'


def test_a_program_that_would_go_on_and_then_goes_has_failed(worker: Talker) -> None:
    for end in (EXIT, KEEP):
        fault = worker.fault(worker.puppet(*START, TAIL, end, STAY))
        assert fault.reason == "RUNTIME_ERROR"
        assert "without 'must_keep'" in fault.details


@pytest.mark.parametrize(
    "tail", [TAIL, 's["tail_spawn",{"executor_name":"proc","command":"x"}]'], ids=["fixed", "other"]
)
def test_an_output_that_is_handed_over_must_not_be_half_written(worker: Talker, tail: str) -> None:
    """The child produces the output, so bytes that the parent has written would precede it."""
    keep = EXIT.replace('"no"', '"must_keep"') if tail == TAIL else EXIT
    fault = worker.fault(worker.puppet(*START, 'a["open_output",{"index":0}]', tail, keep, STAY))
    assert "with output 0 still open" in fault.details
