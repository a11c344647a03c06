"""Programs that talk, well or badly, on a real worker: what becomes of their tasks and of them."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ciel.core.events import AssignTask, DropObjects, InputsLost, TaskFault
from ciel.core.ids import ObjectId
from ciel.core.refs import Fixed, Future, Value
from ciel.core.tasks import Needs
from ciel.executors.proc import ProcExecutor
from ciel.storage.files import FileStore
from ciel.testing.builders import stored
from ciel.testing.homes import descriptors_of, private_bytes, wait_for
from ciel.testing.one_worker import SDK, Talker
from ciel.worker.process import Patience
from ciel.worker.state.orders import Key

EXECUTORS = {"proc": ProcExecutor()}
IS_LONG = os.environ.get("CIEL_LONG") == "1"

OPEN = ("ow", "or")
START = (*OPEN, "h")
TEXT = b64encode(b"text").decode()
SAY = f's["publish_string",{{"index":0,"str":"{TEXT}"}}]'
PUBLISH = f"a{SAY[1:]}"
EXIT = 's["exit",{"keep_process":"no"}]'
KEEP = 's["exit",{"keep_process":"may_keep"}]'
GOOD = (PUBLISH, EXIT)
WELL = b"text"
STAY = "z60000"


Start = Callable[..., Talker]


def pid_of(path: Path) -> int:
    """Wait for the process id that a puppet leaves."""
    wait_for(path.exists, f"{path.name}")
    return int(path.read_text())


# --- well -----------------------------------------------------------------------------------------


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
    """Not even if it came since: nobody knows yet whether its maker will have ended well."""
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
    """So does the copy of what grew elsewhere, once the master has it in the reference."""
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


# --- warm -----------------------------------------------------------------------------------------

PID = """def run(task):
    task.soft_cache_keys = [(task.args[1:], "kept")]
    task.publish(0, str(os.getpid()).encode())
    while task.args and not os.path.exists(task.args[0]):
        time.sleep(0.002)
"""


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
    """With its next task, if there is one before long."""
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
    """Also if nobody has noticed yet that it is gone."""
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
    """Return what kills a program and assigns it a task in one turn."""

    def act() -> Key:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: is_dead(pid), "a dead program")
        spec = worker.task("proc", {"command": [worker.puppet_path, *actions]})
        worker.service.peer_said(worker, [AssignTask(spec, 1, ())])  # type: ignore[arg-type]  # as a peer
        return (spec.id, 1)

    return act


def is_dead(pid: int) -> bool:
    """Whether a process has ended, be it still to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_warm_program_that_dies_of_its_task_is_not_tried_again(worker: Talker) -> None:
    """Though it has not said a word: it has taken the task."""
    script = f"""def run(task):
        if task.args:
            with open({str(worker.path / "tries")!r}, "a") as file:
                file.write("x")
            os.kill(os.getpid(), 11)
        task.publish(0, b"")"""
    worker.good(worker.python(script))
    fault = worker.fault(worker.python(script, 1))
    assert "killed by SIGSEGV before it had said 'exit'" in fault.details
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
    assert "its output ends:\n  two\n" in fault.details
    assert "one" not in fault.details.partition("its output ends")[2].partition("its files")[0]
    worker.good(worker.python(script, "three"))
    log = (worker.path / "job-job.log").read_text()
    assert [line.rpartition(" ")[2] for line in log.splitlines()] == ["one", "two", "three"]


def test_a_program_that_prints_without_end_does_not_fill_the_device(
    worker: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciel.worker.growth.STDERR_MAX_BYTES", 1 << 20)
    monkeypatch.setattr("ciel.worker.growth.STDERR_LEFT_BYTES", 1 << 16)
    script = """def run(task):
        task.publish(0, b"")
        sys.stdout.write("x" * 5_000_000)
        sys.stdout.flush()"""
    worker.good(worker.python(script))
    (stderr,) = worker.path.glob("spool/scratch/*/*.stderr")
    wait_for(lambda: stderr.stat().st_blocks * 512 <= 1 << 20, "the file to be cut")


# --- going on in place ----------------------------------------------------------------------------

WAITS = """def run(task):
    pid = os.getpid()
    task.block_on(task.args[0])
    task.publish(0, f"{pid} {os.getpid()} {task.read(task.args[0])!r}".encode())
"""


def waiting(worker: Talker) -> tuple[Any, Fixed]:
    """Have a program wait in place for `x`; return the task that goes on, and what for."""
    key = worker.python(WAITS, Future(ObjectId("x")))
    (fixed,) = worker.good(key)
    assert isinstance(fixed, Fixed)
    return worker.child(key).spec, fixed


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
    """It may have the name only, and open it later."""
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


def test_programs_that_wait_end_with_their_master(worker: Talker) -> None:
    waiting(worker)
    worker.in_reactor(worker.service.peer_closed, worker, "a test")
    worker.expect_nothing_runs()
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
    """Whoever it was handed to makes it; what is there of it would come first."""
    keep = EXIT.replace('"no"', '"must_keep"') if tail == TAIL else EXIT
    fault = worker.fault(worker.puppet(*START, 'a["open_output",{"index":0}]', tail, keep, STAY))
    assert "with output 0 still open" in fault.details


# --- opening and closing --------------------------------------------------------------------------

SETTLED_S = 10.0
"""How long any end may take to be noticed where much else runs; else it takes at most 2 s
(failures.md, W6)."""


@pytest.mark.parametrize(
    "actions",
    [
        ("z300", *START, *GOOD),
        ("ow", "z300", "or", "h", *GOOD),
        ("or", "z300", "ow", "h", *GOOD),
        ("ow", SAY, EXIT, "z300", "or", "h"),
        ("or", "h", "ow", *GOOD),
    ],
    ids=["both late", "reads late", "writes late", "speaks before it listens", "reads first"],
)
def test_a_program_may_open_late_and_in_any_order(worker: Talker, actions: tuple[str, ...]) -> None:
    assert worker.content(worker.puppet(*actions)) == WELL


TOOK_NOTHING = "it did not read its first task within 0.3 s"
CLOSED_WRITING = "the program closed its writing end of the channel"
CLOSED_READING = "the program closed its reading end of the channel"
SPEAK = 's["log",{"message":"m"}]'


@pytest.mark.parametrize(
    "actions, words",
    [
        ((STAY,), TOOK_NOTHING),
        (("i15", STAY), TOOK_NOTHING),
        (("ow", STAY), TOOK_NOTHING),
        (("or", STAY), TOOK_NOTHING),
        ((*OPEN, STAY), TOOK_NOTHING),
        ((*OPEN, "cw", STAY), CLOSED_WRITING),
        ((*START, "cw", STAY), CLOSED_WRITING),
        ((*START, SPEAK, "cw", "i15", STAY), CLOSED_WRITING),
        ((*OPEN, "cr", "cw", STAY), CLOSED_WRITING),
        ((*START, SPEAK, "cr", STAY), CLOSED_READING),
    ],
    ids=str,
)
def test_a_program_that_does_not_take_part_fails_in_time(
    start: Start, actions: tuple[str, ...], words: str
) -> None:
    worker = start(patience=Patience(first_call_s=0.3 if words == TOOK_NOTHING else 30.0))
    key = worker.puppet(*actions)
    begun_s = time.monotonic()
    fault = worker.fault(key)
    assert time.monotonic() - begun_s < 0.3 + SETTLED_S
    assert fault.reason == "RUNTIME_ERROR"
    assert words in fault.details
    worker.expect_free()
    worker.expect_nothing_runs()


def test_the_reactor_never_waits_for_a_program(start: Start) -> None:
    worker = start(patience=Patience(first_call_s=0.3), slots=10)
    keys = [worker.puppet(*actions) for actions in [(STAY,), ("ow", STAY), ("or", STAY)] * 3]
    longest_s = 0.0
    while any(key in worker.machine.attempts for key in keys):
        asked_s = time.monotonic()
        worker.in_reactor(lambda: None)
        longest_s = max(longest_s, time.monotonic() - asked_s)
        time.sleep(0.001)
    assert longest_s < 5  # while the programs would stay for a minute


def test_replies_that_wait_to_be_read_are_no_sign_of_deafness(start: Start) -> None:
    worker = start(patience=Patience(first_call_s=0.5))
    key = worker.puppet(*START, 's["allocate_output",{}]', "z700", "h", *GOOD)
    assert worker.content(key) == WELL


def test_a_warm_program_is_not_judged_by_the_time_of_its_first_task(start: Start) -> None:
    worker = start(patience=Patience(first_call_s=0.5))
    key = worker.puppet(*START, PUBLISH, KEEP, "l")
    until_s = time.monotonic() + 0.7
    while time.monotonic() < until_s:
        assert worker.content(key) == WELL
        key = worker.puppet(*START, PUBLISH, KEEP, "l")
    worker.good(key)


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("before", [(), ("ow",), ("or",), OPEN, START, (*START, PUBLISH)], ids=str)
def test_a_program_that_goes_without_a_word_has_failed(
    worker: Talker, before: tuple[str, ...], status: int
) -> None:
    begun_s = time.monotonic()
    fault = worker.fault(worker.puppet(*before, "ewhy", f"q{status}"))
    assert time.monotonic() - begun_s < SETTLED_S
    assert fault.reason == "RUNTIME_ERROR"
    assert f"it ended with exit status {status} before it had said 'exit'" in fault.details
    assert "its output ends:\n  why" in fault.details
    worker.expect_free()


@pytest.mark.parametrize("before", [(), OPEN, START, (*START, PUBLISH)], ids=str)
def test_a_program_that_dies_has_failed(worker: Talker, before: tuple[str, ...]) -> None:
    fault = worker.fault(worker.puppet(*before, "k11"))
    assert "it was killed by SIGSEGV before it had said 'exit'" in fault.details


FRAME = b"\0\0\0\x20" + b'["exit", {"keep_process": "no"}]'


@pytest.mark.parametrize("length", [1, 3, 4, 5, 17, len(FRAME) - 1])
def test_a_program_that_dies_in_mid_call_has_failed(worker: Talker, length: int) -> None:
    fault = worker.fault(worker.puppet(*START, f"x{FRAME[:length].hex()}", "k9"))
    assert "it was killed by SIGKILL in the middle of a call" in fault.details
    worker.expect_free()


def test_a_program_that_dies_after_its_last_word_has_done_its_task(worker: Talker) -> None:
    for end in ("k9", "q3", "q0"):
        assert worker.content(worker.puppet(*START, *GOOD, end)) == WELL
    assert worker.content(worker.puppet(*START, PUBLISH, KEEP, "k9")) == WELL


def test_a_program_that_stays_after_its_last_word_is_killed(start: Start) -> None:
    worker = start(patience=Patience(leave_s=0.2))
    for more in ((), ("i15",)):
        assert worker.content(worker.puppet(*START, *more, *GOOD, STAY)) == WELL
        worker.expect_nothing_runs()


def test_nothing_of_a_program_outlives_it(worker: Talker) -> None:
    """Not even what keeps its end of the channel open."""
    begun_s = time.monotonic()
    assert worker.content(worker.puppet(*START, "d", *GOOD)) == WELL
    fault = worker.fault(worker.puppet(*START, "d", "q0"))
    assert "exit status 0 before it had said 'exit'" in fault.details
    fault = worker.fault(worker.puppet("d", "k9"))
    assert "killed by SIGKILL before" in fault.details
    assert time.monotonic() - begun_s < 3 * SETTLED_S
    worker.expect_nothing_runs()


def test_somebody_elses_hand_on_its_channel_keeps_no_slot(start: Start, tmp_path: Path) -> None:
    """Even if that one writes a long call, and never ends it."""
    worker = start(patience=Patience(leave_s=0.2))
    key = worker.puppet("ow", f"t{tmp_path}/runs", f"w{tmp_path}/go", "q0")
    pid_of(tmp_path / "runs")
    (path,) = worker.path.glob("spool/scratch/*/*.in/from_process")

    def write() -> None:
        with open(path, "wb", buffering=0) as fifo, suppress(BrokenPipeError):
            fifo.write(b"\0\xff\xff\xff")
            (tmp_path / "go").touch()
            for _ in range(250):
                fifo.write(bytes(60_000))
            wait_for(lambda: key not in worker.machine.attempts, "the end of the attempt")

    somebody = threading.Thread(target=write)
    somebody.start()
    try:
        assert "exit status 0" in worker.fault(key).details
    finally:
        somebody.join()


GARBAGE = [
    (("rhello, world, this is text\n",), "does something print to the FIFO?"),
    (("n10000000",), "does something print to the FIFO?"),
    (("x00000003616263",), "not JSON"),
    (("x0000000222ff",), "not UTF-8"),
    (("x00000000",), "a call of no bytes"),
    (("xffffffff",), "where 16777216 are the most"),
    (('s["exit"]',), "not a list of a method"),
    (('s{"exit":{}}',), "not a list of a method"),
    (("s[5,{}]",), "not a list of a method"),
    (('s["exit",[]]',), "are no object"),
    (('s["exit",{"keep_process":"no"}',), "not JSON"),
    (('s["exit",{"keep_process":NaN}]',), "not JSON"),
    (('s["nonsense",{}]',), "no method of this protocol"),
    (('s["open_ref",{"ref":{"__ref__":["zz","x"]}}]',), "unknown tag"),
    (('s["open_ref",{"ref":{"__ref__":["c2","a b",1,[]]}}]',), "is not an id"),
    (('s["open_ref",{"ref":{"__ref__":["val","x","a$="]}}]',), "is not base64"),
    ((f's["publish_string",{{"index":7,"str":"{TEXT}"}}]',), "no output 7"),
]


@pytest.mark.parametrize("actions, words", GARBAGE, ids=[str(n) for n in range(len(GARBAGE))])
def test_garbage_fails_its_task_with_what_came(
    worker: Talker, actions: tuple[str, ...], words: str
) -> None:
    fault = worker.fault(worker.puppet(*START, *actions, STAY))
    assert fault.reason == "RUNTIME_ERROR"
    assert words in fault.details
    worker.expect_free()


def test_a_program_that_talks_on_after_its_exit_has_done_its_task(start: Start) -> None:
    worker = start(patience=Patience(leave_s=0.1))
    for end in (EXIT, KEEP):
        assert worker.content(worker.puppet(*START, PUBLISH, end, SPEAK, SPEAK, STAY)) == WELL
    worker.expect_nothing_runs()


def test_a_program_says_itself_why_it_failed(worker: Talker) -> None:
    fault = worker.fault(worker.puppet(*START, 's["error",{"report":"my reason"}]'))
    assert fault.reason == "RUNTIME_ERROR"
    assert fault.details.partition("\n")[0].endswith(" on worker w1: my reason")


# --- called off -----------------------------------------------------------------------------------


@pytest.mark.parametrize("actions", [(STAY,), (*START, STAY), (*START, "i15", STAY)], ids=str)
def test_a_task_that_is_called_off_ends(worker: Talker, actions: tuple[str, ...]) -> None:
    key = worker.puppet(*actions)
    wait_for(lambda: worker.programs(), "the program")
    begun_s = time.monotonic()
    worker.cancel(key)
    assert worker.fault(key).reason == "CANCELLED"
    assert time.monotonic() - begun_s < SETTLED_S
    worker.expect_free()
    worker.expect_nothing_runs()


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
    """As if it had been gone before it was told its task, again and again."""
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


def test_a_program_that_was_called_off_serves_nobody_again(worker: Talker, tmp_path: Path) -> None:
    """The signal that was sent to it may reach it in the middle of another task."""
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
    """An output that was made before, as an input of others, and is made again with another."""
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


# --- what is kept, and what cannot be started -----------------------------------------------------


def test_files_of_a_failed_task_are_kept(worker: Talker) -> None:
    script = """def run(task):
        open("left.txt", "w").write("rest")
        print("no luck", flush=True)
        os._exit(4)"""
    fault = worker.fault(worker.python(script))
    (kept,) = (worker.path / "kept").iterdir()
    assert f"its files are kept in {kept}" in fault.details
    assert (kept / "stderr").read_text() == "no luck\n"
    assert (kept / "scratch" / "left.txt").read_text() == "rest"
    wait_for(lambda: worker.left() == [], "the removal of the rest")


def test_a_program_that_cannot_be_started(worker: Talker) -> None:
    fault = worker.fault(worker.assign(worker.task("proc", {"command": "no-such-program"})))
    assert fault.reason == "PROGRAM_NOT_STARTED"
    assert "of that name is in its PATH" in fault.details
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
    worker.in_reactor(worker.service.uploaded, gone.id)
    lost = worker.end(worker.python("def run(task): task.read(task.args[0])", gone, inputs=(gone,)))
    assert isinstance(lost, InputsLost)
    assert lost.losses == ((gone.id, "127.0.0.1:8001"),)
    worker.expect_free()
    program = stored("program", "127.0.0.1:8001")
    worker.in_reactor(worker.service.uploaded, program.id)
    lost = worker.end(worker.assign(worker.task("proc", {"command": program}), program))
    assert isinstance(lost, InputsLost)
    worker.expect_free()


def test_what_nobody_has_is_told_of(worker: Talker) -> None:
    """A reference that a program made up, or found in an object."""
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


# --- many -----------------------------------------------------------------------------------------


def bad_ends() -> dict[str, tuple[tuple[str, ...], str]]:
    """What programs do, by name, and the words of the fault; no words if it is no fault."""
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
        "a long line": ((*START, "n10000000", STAY), "does something print to the FIFO?"),
        "non-UTF8": ((*START, "x0000000322ff22", STAY), "not UTF-8"),
        "error report": ((*START, 's["error",{"report":"my reason"}]', STAY), "my reason"),
        "no length": ((*START, "r\n", "q0"), "in the middle of a call"),
    }


def test_a_thousand_programs_of_every_kind_are_told_apart_and_leave_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciel.worker.state.recent.RECENT_MAX", 50)  # what it may remember
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
    assert worker.machine.problems() == []
