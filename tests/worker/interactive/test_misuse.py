"""Tests interactive programs that violate the protocol: their tasks fail, and the programs end."""

from __future__ import annotations

import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ciel.core.ids import JobId
from ciel.core.refs import Fixed
from ciel.testing.builders import JOB
from ciel.testing.homes import wait_for
from ciel.worker.interactive.attached import AttachedProcess
from ciel.worker.interactive.process import Patience
from ciel_tests.scenes.one_worker import HERE, Talker
from ciel_tests.scenes.puppet_words import (
    EXIT,
    FRAME,
    GOOD,
    KEEP,
    OPEN,
    PUBLISH,
    SAY,
    SETTLED_S,
    START,
    STAY,
    TEXT,
    WELL,
    Start,
    pid_of,
)

# --- opening and closing --------------------------------------------------------------------------


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
CLOSED_WRITING = "the program closed the FIFO that it writes to"
CLOSED_READING = "the program closed the FIFO that it reads from"
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


def test_an_attached_process_that_never_opens_its_pipes_frees_its_slot(start: Start) -> None:
    worker = start(patience=Patience(attached_s=0.3))
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        attached = worker.in_reactor(
            AttachedProcess, worker.in_reactor.reactor, sleeper.pid, JobId(JOB)
        )
        worker.in_reactor(worker.interactive.attach, attached)
        fixed = Fixed(attached.id, HERE)
        key = worker.assign(worker.task("proc", {"fixed": fixed}), fixed)
        fault = worker.fault(key)
        assert "it did not read its first task within 0.3 s" in fault.details
        worker.expect_free()
        assert sleeper.poll() is None  # the worker does not kill a process that it did not start
        sleeper.kill()


def test_the_reactor_never_waits_for_a_program(start: Start) -> None:
    worker = start(patience=Patience(first_call_s=0.3), slots=10)
    keys = [worker.puppet(*actions) for actions in [(STAY,), ("ow", STAY), ("or", STAY)] * 3]
    longest_s = 0.0
    while any(key in worker.machine.attempts for key in keys):
        asked_s = time.monotonic()
        worker.in_reactor(lambda: None)
        longest_s = max(longest_s, time.monotonic() - asked_s)
        time.sleep(0.001)
    assert longest_s < 5  # the programs run for a minute


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
    assert f"it ended with exit status {status} before it called 'exit'" in fault.details
    assert "the end of its output:\n  why" in fault.details
    worker.expect_free()


@pytest.mark.parametrize("before", [(), OPEN, START, (*START, PUBLISH)], ids=str)
def test_a_program_that_dies_has_failed(worker: Talker, before: tuple[str, ...]) -> None:
    fault = worker.fault(worker.puppet(*before, "k11"))
    assert "it was killed by SIGSEGV before it called 'exit'" in fault.details


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
    """This includes a daemon that keeps the program's end of the channel open."""
    begun_s = time.monotonic()
    assert worker.content(worker.puppet(*START, "d", *GOOD)) == WELL
    fault = worker.fault(worker.puppet(*START, "d", "q0"))
    assert "exit status 0 before it called 'exit'" in fault.details
    fault = worker.fault(worker.puppet("d", "k9"))
    assert "killed by SIGKILL before" in fault.details
    assert time.monotonic() - begun_s < 3 * SETTLED_S
    worker.expect_nothing_runs()


def test_somebody_elses_hand_on_its_channel_keeps_no_slot(start: Start, tmp_path: Path) -> None:
    """This holds even if that process writes a long call, and never completes it."""
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
    (("rhello, world, this is text\n",), "does the program print to the FIFO?"),
    (("n10000000",), "does the program print to the FIFO?"),
    (("x00000003616263",), "not JSON"),
    (("x0000000222ff",), "not UTF-8"),
    (("x00000000",), "a call of no bytes"),
    (("xffffffff",), "but the limit is 16777216"),
    (('s["exit"]',), "not a list of a method"),
    (('s{"exit":{}}',), "not a list of a method"),
    (("s[5,{}]",), "not a list of a method"),
    (('s["exit",[]]',), "are not an object"),
    (('s["exit",{"keep_process":"no"}',), "not JSON"),
    (('s["exit",{"keep_process":NaN}]',), "not JSON"),
    (('s["nonsense",{}]',), "not a method of this protocol"),
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
