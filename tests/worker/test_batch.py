"""Tests attempts at batch programs, with a real store and a real launcher."""

from __future__ import annotations

import base64
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from ciel.core.events import TaskFault, TaskPrinted
from ciel.core.ids import JobId, ObjectId
from ciel.core.refs import Concrete, Reference, Sweetheart, Value
from ciel.core.tasks import Mentions
from ciel.execution.environment import Callers
from ciel.execution.executor import (
    Action,
    Child,
    Executor,
    Program,
    ProgramExit,
    Run,
    Task,
    mentions_of,
)
from ciel.execution.kept import KeptAttempts
from ciel.executors.init import InitExecutor
from ciel.executors.stdinout import StdinoutExecutor
from ciel.executors.sync import SyncExecutor
from ciel.net.ticks import Ticks
from ciel.storage.files import FileStore, open_disk
from ciel.storage.interface import Verify
from ciel.testing.builders import JOB, inline, stored
from ciel.testing.homes import wait_for
from ciel.wire import codec
from ciel.wire.descriptors import make_task
from ciel.worker.attempts.attempts import Attempts
from ciel.worker.attempts.batch import BatchPrograms
from ciel.worker.attempts.launching import Launching
from ciel.worker.attempts.lifecycle import Lifecycle
from ciel.worker.attempts.scratch import ScratchPool
from ciel.worker.attempts.workplace import Losses, Workplace
from ciel.worker.checksums import Checksums
from ciel.worker.interactive.programs import InteractivePrograms
from ciel.worker.logs import JobLogs
from ciel.worker.state.orders import Key, StartAttempt
from ciel.worker.state_boards import StateBoards
from ciel.worker.streams.growing import Streams
from ciel.worker.transfer.parts import Part

HERE = "127.0.0.1:8001"
LARGE = b"a line of text\n" * 100_000


class Broken(Executor):
    """A third-party executor that raises an exception."""

    name = "broken"

    def begin(self, task: Task) -> Action:
        if task.arguments.get("early"):
            raise LookupError("early")
        return Run(Program(("true",)))

    def ended(self, task: Task, program_exit: ProgramExit) -> Action:
        raise LookupError("late")


class Slow(Executor):
    """Delays the start of its program."""

    name = "slow"

    def begin(self, task: Task) -> Action:
        return Run(Program(("date", "+%s.%N"), stdout=0, delay_s=task.arguments["delay_s"]))


class Thoughtful(Executor):
    """Blocks in `begin` until the test allows it to continue."""

    name = "thoughtful"

    def __init__(self) -> None:
        self.asked, self.may_begin = threading.Event(), threading.Event()

    def begin(self, task: Task) -> Action:
        self.asked.set()
        assert self.may_begin.wait(20)
        return Run(Program(("true",)))


class Outcome:
    """The reports of one attempt."""

    def __init__(self) -> None:
        self.published: tuple[Reference, ...] = ()
        self.fault: TaskFault | None = None
        self.gone: tuple[str, ...] = ()
        self.children: list[Child] = []

    @property
    def content(self) -> bytes:
        (ref,) = self.published
        assert isinstance(ref, Value)
        return ref.content


class Worker:
    """Runs attempts, and receives their reports."""

    def __init__(self, in_reactor: Any, store: FileStore, path: Path) -> None:
        self.in_reactor, self.store, self.path = in_reactor, store, path
        reactor = in_reactor.reactor
        environ = {"PATH": os.environ["PATH"], "INHERITED": "yes"}
        self.launching = in_reactor(Launching, reactor, Ticks(reactor), environ)
        self.thoughtful = Thoughtful()
        executors = (
            StdinoutExecutor(), SyncExecutor(), InitExecutor(), Broken(), Slow(), self.thoughtful,
        )  # fmt: skip
        place = Workplace(
            reactor=reactor, ticks=Ticks(reactor), owner=self, launching=self.launching,
            store=store, streams=in_reactor(Streams, reactor),
            executors={executor.name: executor for executor in executors},
            worker="w1", cluster_id="test", netloc=HERE, scratch=ScratchPool(path / "spool"),
            kept=KeptAttempts(path / "kept"), logs=JobLogs(reactor, path), channels=None,
            checksums=Checksums(reactor, store, Verify.FIRST),
            boards=StateBoards("0" * 16, lambda message: None),
        )  # fmt: skip
        lifecycle = Lifecycle(place)
        interactive = InteractivePrograms(lifecycle)
        batch = BatchPrograms(lifecycle, interactive.idle_count)
        self.attempts = Attempts(lifecycle, batch, interactive, Callers(environ))
        self._outcomes: dict[Key, Outcome] = {}
        self._ended: list[Key] = []
        self._changed = threading.Condition()
        self._number = 0

    def attached_process_left(self, guest: object, details: str) -> None:
        """Do nothing, because no process is attached."""

    def attempt_ended(
        self,
        key: Key,
        published: tuple[Reference, ...],
        fault: TaskFault | None,
        run_s: float,
        exit_status: int | None = None,
    ) -> None:
        assert run_s >= 0
        outcome = self._outcomes[key]
        outcome.published, outcome.fault = published, fault
        self._end(key)

    def attempt_spawned(self, key: Key, child: Child, *, wanted: bool | None = None) -> None:
        assert key not in self._ended
        self._outcomes[key].children.append(child)

    def child_started_inline(self, key: Key, child: Child) -> None:
        raise NotImplementedError

    def inline_child_ended(
        self, key: Key, published: tuple[Reference, ...], fault: TaskFault | None, run_s: float
    ) -> None:
        raise NotImplementedError

    def inputs_gone(self, key: Key, losses: Losses, details: str) -> None:
        self._outcomes[key].gone = tuple([object_id for object_id, _ in losses])
        self._end(key)

    def streams_opened(self, key: Key, objects: tuple[ObjectId, ...]) -> None:
        raise NotImplementedError

    def recent(self, object_id: ObjectId) -> Reference | None:
        raise NotImplementedError

    def room(self) -> int | None:
        raise NotImplementedError

    def preferred(self, ref: Sweetheart) -> None:
        raise NotImplementedError

    def printed(self, printed: TaskPrinted) -> None:
        assert printed.size_bytes

    def outputs_discarded(self, objects: tuple[ObjectId, ...]) -> None:
        raise NotImplementedError

    def stream_broken(self, object_id: ObjectId, details: str) -> None:
        raise NotImplementedError

    def waits(self, key: Key) -> None:
        raise NotImplementedError

    def fetch(self, ref: Reference, then: Callable[[Losses | None, str], None]) -> None:
        raise NotImplementedError

    def copy_parts(self, ref: Reference, parts: Sequence[Part], fd: int) -> Deferred[bool]:
        raise NotImplementedError

    def _end(self, key: Key) -> None:
        with self._changed:
            assert key not in self._ended, "it is told once"
            self._ended.append(key)
            self._changed.notify_all()

    def begin(
        self, executor: str, arguments: dict[str, Any], *inputs: Reference, name: str = ""
    ) -> Key:
        self._number += 1
        spec, _ = make_task(
            job=JobId(JOB), parent=JOB, ordinal=self._number, executor=executor,
            arguments=arguments, name=name, mentions=Mentions.NOTHING,
        )  # fmt: skip
        key = (spec.id, 1)
        self._outcomes[key] = Outcome()
        self.in_reactor(self.attempts.start, StartAttempt(spec, 1, inputs, 0))
        return key

    def end(self, key: Key) -> Outcome:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._ended, 20)
        return self._outcomes[key]

    def do(self, executor: str, arguments: dict[str, Any], *inputs: Reference) -> Outcome:
        return self.end(self.begin(executor, arguments, *inputs))

    def run(self, *line: Any, inputs: tuple[Reference, ...] = (), **args: Any) -> Outcome:
        """Run a program with `inputs` on its standard input; references in `line` are inputs as
        well.
        """
        listed = [*inputs, *(item for item in line if not isinstance(item, str | int))]
        listed += args.get("files", {}).values()
        arguments = {"args": {"command_line": list(line), "inputs": list(inputs), **args}}
        return self.do("stdinout", arguments, *listed)

    def shell(self, script: str, **args: Any) -> Outcome:
        return self.run("sh", "-c", script, **args)

    def put(self, object_id: str, content: bytes) -> Concrete:
        self.store.put(object_id, content)
        return stored(object_id, HERE, size_bytes=len(content))

    def left(self) -> list[str]:
        """Return the files of attempts, without objects and kept files."""
        scratch = self.path.glob("spool/scratch/*/*")
        temporaries = self.path.glob("store/incoming/*/*")
        used = [path for path in (*scratch, *temporaries) if _is_used(path)]
        return [str(path) for path in used if path.name != "lock"]


def _is_used(path: Path) -> bool:
    """Return whether a path has content; an empty directory waits for another attempt."""
    try:
        return any(path.iterdir()) if path.is_dir() else path.stat().st_size > 0
    except FileNotFoundError:  # just removed
        return False


@pytest.fixture
def worker(in_reactor: Any, store: FileStore, tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(in_reactor, store, tmp_path)
    descriptors = len(os.listdir("/proc/self/fd"))
    before = worker.left()
    yield worker
    wait_for(lambda: worker.left() == before, "the end of files of attempts")
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 2, "closed descriptors")
    in_reactor(worker.attempts.close)
    in_reactor(worker.launching.close)


# --- outputs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [0, 1, 1023])
def test_a_small_output_travels_in_its_reference(worker: Worker, size_bytes: int) -> None:
    outcome = worker.run("head", "-c", size_bytes, "/dev/zero")
    assert outcome.fault is None
    assert outcome.content == bytes(size_bytes)
    assert list(worker.store) == []


@pytest.mark.parametrize("size_bytes", [1024, 1_000_000])
def test_a_larger_output_is_stored(worker: Worker, size_bytes: int) -> None:
    (ref,) = worker.run("head", "-c", size_bytes, "/dev/zero").published
    assert isinstance(ref, Concrete)
    assert ref == stored(ref.id, HERE, size_bytes=size_bytes)
    assert worker.store.get(ref.id) == bytes(size_bytes)


def test_the_first_of_two_different_outputs_is_kept(worker: Worker) -> None:
    spec, _ = make_task(
        job=JobId(JOB), parent=JOB, ordinal=1, executor="stdinout",
        arguments={"args": {"command_line": ["head", "-c", 5000, "/dev/zero"], "inputs": []}},
    )  # fmt: skip
    worker.store.put(spec.outputs[0], b"x" * 2000)
    outcome = worker.run("head", "-c", 5000, "/dev/zero")
    assert outcome.published == (stored(spec.outputs[0], HERE, size_bytes=2000),)
    assert worker.store.get(spec.outputs[0]) == b"x" * 2000


def test_a_list_that_came_out_otherwise_before_is_kept_as_it_was(worker: Worker) -> None:
    inputs = [stored(f"o{number}", HERE) for number in range(50)]
    arguments = {"args": {"inputs": inputs}}
    spec, _ = make_task(job=JobId(JOB), parent=JOB, ordinal=1, executor="sync", arguments=arguments)
    worker.store.put(spec.outputs[0], b"x" * 2000)
    outcome = worker.do("sync", arguments, *inputs)
    assert outcome.fault is None
    assert outcome.published == (stored(spec.outputs[0], HERE, size_bytes=2000),)


# --- inputs ---------------------------------------------------------------------------------------


def test_without_inputs_standard_input_is_empty(worker: Worker) -> None:
    assert worker.run("cat").content == b""


@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_one_stored_input(worker: Worker, content: bytes) -> None:
    ref = worker.put("x", content)
    assert int(worker.run("wc", "-c", inputs=(ref,)).content) == len(content)


def test_inline_inputs_are_concatenated_in_order(worker: Worker) -> None:
    refs = tuple([inline(name, name.encode()) for name in ("b", "a", "c")])
    assert worker.run("cat", inputs=refs).content == b"bac"
    assert worker.run("cat", inputs=refs[:1]).content == b"b"


def test_large_and_inline_inputs_are_concatenated_in_order(worker: Worker) -> None:
    refs = (inline("first", b"1\n"), worker.put("x", LARGE), inline("last", b"2\n"),
            worker.put("y", LARGE[::-1]))  # fmt: skip
    outcome = worker.run("cat", inputs=refs)
    assert worker.store.get(outcome.published[0].id) == b"1\n" + LARGE + b"2\n" + LARGE[::-1]


def test_a_program_that_reads_only_the_beginning_has_not_failed(worker: Worker) -> None:
    refs = (worker.put("x", LARGE), worker.put("y", LARGE))
    outcome = worker.run("head", "-n", "1", inputs=refs)
    assert outcome.content == b"a line of text\n"


def test_an_input_that_vanishes_while_it_is_fed_fails_the_attempt(
    worker: Worker, tmp_path: Path
) -> None:
    """The program takes a part of the input for all of it, and exits with status 0."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    refs = [worker.put("x", LARGE), worker.put("y", LARGE)]
    line = ["sh", "-c", f"touch {begun}; while [ ! -e {go} ]; do sleep 0.01; done; wc -c"]
    key = worker.begin("stdinout", {"args": {"command_line": line, "inputs": refs}}, *refs)
    wait_for(begun.exists, "the program")
    worker.store.delete("y")
    go.touch()
    fault = worker.end(key).fault
    assert fault is not None
    assert fault.reason == "WORKER_FAULT"
    assert "one of its inputs could not be read to the end" in fault.text


def test_a_small_input_may_vanish_from_the_store_before_it_is_read(
    worker: Worker, tmp_path: Path
) -> None:
    """A worker deletes its copy of a stream once the master has the content in the reference."""
    go, ref = tmp_path / "go", worker.put("x", b"small")
    line = ["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.01; done; cat $0", ref]
    key = worker.begin("stdinout", {"args": {"command_line": line}}, ref)
    worker.store.delete("x")
    go.touch()
    assert worker.end(key).content == b"small"


def test_references_in_the_command_line_become_paths(worker: Worker) -> None:
    outcome = worker.run("cat", worker.put("x", b"one"), inline("y", b"two"))
    assert outcome.content == b"onetwo"


def test_a_stored_program_is_run(worker: Worker) -> None:
    outcome = worker.run(worker.put("x", b"#!/bin/sh\necho ran $1\n"), "well")
    assert outcome.content == b"ran well\n"


def test_files_lie_in_the_programs_directory(worker: Worker) -> None:
    files = {"a.txt": inline("y", b"two"), "sub/b.txt": worker.put("x", b"one")}
    outcome = worker.shell("pwd; cat a.txt sub/b.txt", files=files)
    directory, content = outcome.content.decode().splitlines()
    assert content == "twoone"
    assert directory.startswith(str(worker.path / "spool" / "scratch"))


@pytest.mark.parametrize("place", ["inputs", "line", "files", "second"])
def test_an_input_that_is_gone_is_told_and_nothing_runs(
    worker: Worker, tmp_path: Path, place: str
) -> None:
    gone, there = stored("gone", HERE), worker.put("there", LARGE)
    script = ("sh", "-c", f"touch {tmp_path}/ran")
    outcome = {
        "inputs": lambda: worker.run(*script, inputs=(gone,)),
        "line": lambda: worker.run(*script, there, gone),
        "files": lambda: worker.run(*script, files={"there": there, "gone": gone}),
        "second": lambda: worker.run(*script, inputs=(there, gone)),
    }[place]()
    assert outcome.gone == ("gone",)
    assert not (tmp_path / "ran").exists()


# --- what a program sees --------------------------------------------------------------------------


def test_a_program_knows_its_task_and_no_key(worker: Worker) -> None:
    outcome = worker.shell("echo $CIEL_JOB $CIEL_WORKER $CIEL_SLOTS $INHERITED $X", env={"X": "x"})
    assert outcome.content == b"job w1 1 yes x\n"


# --- failures -------------------------------------------------------------------------------------


def test_a_failed_attempt_leaves_partial_output_and_complaint(worker: Worker) -> None:
    outcome = worker.shell("echo half; echo 'no luck' >&2; echo rest >left.txt; exit 3")
    assert outcome.fault is not None
    (kept,) = (worker.path / "kept").iterdir()
    assert outcome.fault.details["exit_status"] == "3"
    assert base64.b64decode(outcome.fault.details["stdout"]) == b"half\n"
    assert outcome.fault._replace(details=outcome.fault.text) == TaskFault(
        "RUNTIME_EXCEPTION",
        "sh -c 'echo half; echo '\"'\"'no luck'\"'\"' >&2; echo rest >left.txt; exit 3'"
        " ended with exit status 3 on worker w1\n"
        "the end of its standard error:\n  no luck\n"
        f"its files are kept in {kept}",
    )
    assert (kept / "stdout").read_text() == "half\n"
    assert (kept / "stderr").read_text() == "no luck\n"
    assert (kept / "scratch" / "left.txt").read_text() == "rest\n"
    assert outcome.published == ()


def test_files_that_cannot_be_kept_are_removed(worker: Worker) -> None:
    (worker.path / "kept").write_text("in the way")
    outcome = worker.shell("echo why >&2; exit 1")
    assert outcome.fault is not None
    assert "exit status 1" in outcome.fault.text


def test_a_success_leaves_no_file_whatever_it_made(worker: Worker) -> None:
    script = "mkdir -p a/b; echo x >a/b/c; ln -s / root; echo complaint >&2"
    assert worker.shell(script).fault is None
    assert worker.run("cat", inline("x"), inputs=(inline("y"), inline("z"))).fault is None
    wait_for(lambda: worker.left() == [], "the removal of files")
    assert not (worker.path / "kept").exists()


@pytest.mark.parametrize(
    "line, words",
    [
        (
            ["no-such-program"],
            ["'no-such-program'", "worker w1", "its PATH contains no program of that name"],
        ),
        (["./absent"], ["'./absent'", "worker w1", "there is no such file"]),
        (["/"], ["worker w1", "it is a directory"]),
    ],
)
def test_a_program_that_cannot_be_started(
    worker: Worker, line: list[str], words: list[str]
) -> None:
    fault = worker.run(*line, inputs=(worker.put("x", LARGE), worker.put("y", LARGE))).fault
    assert fault is not None
    assert fault.reason == "PROGRAM_NOT_STARTED"
    for word in words:
        assert word in fault.text


def test_bad_arguments_are_told(worker: Worker) -> None:
    fault = worker.do("stdinout", {"args": {"command_line": "echo"}}).fault
    assert fault is not None
    assert fault.reason == "BAD_ARGUMENTS"


@pytest.mark.parametrize("early", [True, False])
def test_an_executor_that_raises_fails_its_task_only(worker: Worker, early: bool) -> None:
    fault = worker.do("broken", {"early": early}).fault
    assert fault is not None
    assert fault.reason == "EXECUTOR_FAULT"
    assert "LookupError" in fault.text


def test_a_store_that_is_full_is_told_as_such(in_reactor: Any, tmp_path: Path) -> None:
    with open_disk({"capacity": "64KiB"}, tmp_path / "store") as store:
        worker = Worker(in_reactor, store, tmp_path)
        fault = worker.run("head", "-c", 1_000_000, "/dev/zero").fault
        assert fault is not None
        assert fault.reason == "NO_SPACE"
        assert worker.run("echo", "on").content == b"on\n"
        in_reactor(worker.attempts.close)
        in_reactor(worker.launching.close)


def test_a_bug_of_ours_costs_one_attempt_and_no_other(
    running_reactor: Any, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(running_reactor, store, tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr("ciel.worker.attempts.batch.ProgramExit", None)
        fault = worker.run("echo").fault
    assert fault == TaskFault(
        "WORKER_FAULT",
        "worker w1 could not process the end of its program, because of a bug in ciel: "
        "TypeError(\"'NoneType' object is not callable\"); the worker's log has the details",
    )
    assert worker.run("echo", "on").content == b"on\n"
    running_reactor(worker.attempts.close)
    running_reactor(worker.launching.close)


def test_complaints_go_to_the_jobs_log_with_the_tasks_name(worker: Worker) -> None:
    line = ["sh", "-c", "echo one >&2; echo two >&2"]
    worker.end(worker.begin("stdinout", {"args": {"command_line": line}}, name="n1"))
    key = worker.begin(
        "stdinout", {"args": {"command_line": ["sh", "-c", "echo three >&2; false"]}}
    )
    worker.end(key)
    log = (worker.path / f"job-{JOB}.log").read_text()
    assert log == f"[n1] one\n[n1] two\n[{key[0][:12]}] three\n"


# --- killing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("force, signal_name", [(False, "SIGTERM"), (True, "SIGKILL")])
def test_a_killed_attempt_ends_by_its_signal(worker: Worker, force: bool, signal_name: str) -> None:
    key = worker.begin("stdinout", {"args": {"command_line": ["sleep", "60"]}})
    worker.in_reactor(worker.attempts.kill, key, force=force)
    fault = worker.end(key).fault
    assert fault is not None
    assert f"was killed by {signal_name}" in fault.text
    worker.in_reactor(worker.attempts.kill, key, force=force)


def test_a_program_whose_streams_cannot_be_opened_is_ended(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(streams: Streams, object_id: str, fd: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Streams, "open", refuse)
    args = {"command_line": ["sleep", "60"], "stream_output": True}
    outcome = worker.end(worker.begin("stdinout", {"args": args}))
    assert outcome.fault is not None
    assert "Too many open files" in outcome.fault.text
    launcher = worker.launching._launcher.pid
    assert Path(f"/proc/{launcher}/task/{launcher}/children").read_text() == ""


def test_a_program_may_wait_before_its_start(worker: Worker) -> None:
    begun_s = time.time()
    outcome = worker.do("slow", {"delay_s": 0.2})
    assert float(outcome.content) >= begun_s + 0.2


def test_what_is_cancelled_before_its_start_ends_at_once(worker: Worker) -> None:
    key = worker.begin("slow", {"delay_s": 1000.0})
    worker.in_reactor(worker.attempts.kill, key, force=False)
    fault = worker.end(key).fault
    assert fault is not None
    assert fault.reason == "CANCELLED"


def test_arguments_of_any_size_are_read(worker: Worker) -> None:
    assert worker.run("echo", "hi", ignored="x" * 1_000_000).content == b"hi\n"
    fault = worker.do(
        "stdinout", {"args": {"command_line": ["\0"], "ignored": "x" * 100_000}}
    ).fault
    assert fault is not None
    assert fault.reason == "BAD_ARGUMENTS"


def test_others_are_served_while_large_arguments_are_read(worker: Worker) -> None:
    key = worker.begin("thoughtful", {"ignored": "x" * 100_000})
    assert worker.thoughtful.asked.wait(20)
    assert worker.run("echo", "meanwhile").content == b"meanwhile\n"
    worker.thoughtful.may_begin.set()
    assert worker.end(key).published == ()


def test_what_is_cancelled_while_its_arguments_are_read_ends_at_once(worker: Worker) -> None:
    key = worker.begin("thoughtful", {"ignored": "x" * 100_000})
    assert worker.thoughtful.asked.wait(20)
    worker.in_reactor(worker.attempts.kill, key, force=False)
    fault = worker.end(key).fault
    assert fault is not None
    assert fault.reason == "CANCELLED"
    worker.thoughtful.may_begin.set()
    assert worker.run("echo", "after").content == b"after\n"


def test_closing_lets_go_of_what_runs(worker: Worker, tmp_path: Path) -> None:
    refs = [worker.put("x", LARGE), worker.put("y", LARGE)]
    line = ["sh", "-c", f"touch {tmp_path}/runs; sleep 60"]
    worker.begin("stdinout", {"args": {"command_line": line, "inputs": refs}}, *refs)
    wait_for((tmp_path / "runs").exists, "the program")
    worker.in_reactor(worker.attempts.close)
    worker.in_reactor(worker.launching.close)
    assert not in_use(worker)
    shutil.rmtree(worker.path / "spool" / "scratch")  # as a worker does with its work directory


def in_use(worker: Worker) -> list[str]:
    return [path for path in worker.left() if "/store/" in path]


# --- tasks without a program ----------------------------------------------------------------------


def test_sync_publishes_its_list(worker: Worker) -> None:
    inputs: list[Reference] = [inline("x"), stored("y", HERE)]
    outcome = worker.do("sync", {"args": {"inputs": inputs}}, *inputs)
    listed = codec.decode(outcome.content)
    assert [next(iter(item)) for item in listed] == ["__ref__", "__ref__"]


def test_init_spawns_its_children_before_it_ends(worker: Worker) -> None:
    outcome = worker.do("init", {"start_handler": "stdinout", "start_args": {}})
    assert [child.spec.executor for child in outcome.children] == ["stdinout", "sync"]
    assert outcome.children[0].spec.mentions is Mentions.NOTHING
    assert (outcome.published, outcome.fault) == ((), None)


def test_an_unknown_executors_outputs_may_mention_anything() -> None:
    executors = {"sync": SyncExecutor()}
    assert mentions_of(executors, "cobol") is Mentions.ANYTHING
    assert mentions_of(executors, "sync") is Mentions.INPUTS
