"""Tests objects that one program reads while another writes them, both on one worker."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ciel.core.events import InputsLost, StreamsOpened
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Future, Reference, Value
from ciel.storage.errors import NoSpaceError
from ciel.storage.files import FileWriter
from ciel.testing.homes import wait_for
from ciel.worker.state.orders import Key
from ciel.worker.streams.growing import Streams
from ciel.worker.streams.stdin_feeder import pipe
from ciel_tests.scenes.one_worker import Talker

Start = Callable[..., Talker]

# Writes ten parts of `size` bytes each. After the first part it waits until the file `go` exists.
WRITE = """def run(task):
    size, go = task.args[:2]
    with task.open_output(0, may_stream=True, **task.kwargs) as output:
        for number in range(10):
            output.write(bytes([97 + number]) * size)
            output.flush()
            while number == 0 and not os.path.exists(go):
                time.sleep(0.002)
        {end}
"""
WELL = WRITE.format(end="")
# Reads the whole stream, and creates the file `mark` after the first read.
READ = """import hashlib
def run(task):
    ref, mark, options = task.args
    digest = hashlib.sha1()
    with task.open_stream(ref, 1, **options) as file:
        while True:
            part = file.read1(1 << 16)
            digest.update(part)
            open(mark, "w").close()
            if not part:
                break
    task.publish(0, digest.hexdigest().encode())
"""
ASKING: dict[str, bool] = {}
HOW: dict[str, dict[str, bool]] = {
    "asking": ASKING,
    "alone": {"sole_consumer": True},
    "blocking": {"must_block": True},
}


def content(size: int) -> bytes:
    return b"".join([bytes([97 + number]) * size for number in range(10)])


def digest(size: int) -> bytes:
    return hashlib.sha1(content(size)).hexdigest().encode()


class Writing:
    """A program that writes a part of its output, and pauses until `go_on`."""

    def __init__(self, worker: Talker, script: str, path: Path, size: int = 100_000) -> None:
        self.worker = worker
        self._go = path / "go"
        self.key = worker.python(script, size, str(self._go))
        (self.ref,) = worker.stream(self.key).refs

    def go_on(self) -> None:
        self._go.touch()

    def read(self, mark: Path, options: Mapping[str, bool] = ASKING, script: str = READ) -> Key:
        """Start a program that reads the output; wait until it has read a part."""
        inputs = (self.ref,)
        pargs = (Future(self.ref.id), str(mark), dict(options))
        key = self.worker.python(script, *pargs, inputs=inputs)
        attempts = self.worker.machine.attempts
        wait_for(lambda: mark.exists() or key not in attempts, "a part that was read")
        return key


def expect_lost(worker: Talker, key: Key, object_id: str, *words: str) -> None:
    """Expect an attempt to end because the stream that it read is broken."""
    lost = worker.end(key)
    assert isinstance(lost, InputsLost), lost
    assert lost.losses == ((object_id, "127.0.0.1:8001"),)
    for word in words:
        assert word in lost.details


# --- complete streams -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_stream_is_begun_anew_before_the_attempt_has_ended_that_was_cancelled(
    start: Start, tmp_path: Path, is_cancelled: bool
) -> None:
    worker = start(slots=3)
    former = Writing(worker, WELL, tmp_path)
    again = worker.assign(worker.machine.attempts[former.key].spec, attempt=2)
    wait_for(lambda: sum(isinstance(each, StreamsOpened) for each in worker.reports) == 2, "both")
    if is_cancelled:
        worker.cancel(former.key)
        worker.end(former.key)
        former.go_on()
    else:
        reader = former.read(tmp_path / "mark")
        former.go_on()
        assert worker.content(reader) == digest(100_000)
        worker.end(former.key)
    assert worker.content(again) == content(100_000)


@pytest.mark.parametrize("options", HOW.values(), ids=HOW)
@pytest.mark.parametrize("size", [10, 100_000, 1_000_000])
def test_a_reader_has_the_beginning_before_there_is_an_end(
    worker: Talker, tmp_path: Path, options: dict[str, bool], size: int
) -> None:
    writing = Writing(worker, WELL, tmp_path, size)
    reader = writing.read(tmp_path / "mark", options)
    writing.go_on()
    assert worker.content(reader) == digest(size)
    assert worker.content(writing.key) == content(size)


def test_all_readers_have_all_of_it(start: Start, tmp_path: Path) -> None:
    worker = start(slots=5)
    writing = Writing(worker, WELL, tmp_path)
    readers = [
        writing.read(tmp_path / f"mark{number}", options)
        for number, options in enumerate((*HOW.values(), HOW["blocking"]))
    ]
    writing.go_on()
    assert {worker.content(reader) for reader in readers} == {digest(100_000)}


def test_a_reader_that_comes_late_finds_it_whole(worker: Talker, tmp_path: Path) -> None:
    for size in (10, 100_000):
        writing = Writing(worker, WELL, tmp_path, size)
        writing.go_on()
        worker.good(writing.key)
        for options in HOW.values():
            mark = tmp_path / f"mark{size}"
            assert worker.content(writing.read(mark, options)) == digest(size)


def test_a_program_that_wants_all_of_it_waits_for_the_end(worker: Talker, tmp_path: Path) -> None:
    script = """def run(task):
        open(task.args[1], "w").close()
        task.publish(0, task.open(task.args[0]).read())"""
    writing = Writing(worker, WELL, tmp_path, 10)
    reader = writing.read(tmp_path / "mark", script=script)
    writing.go_on()
    assert worker.content(reader) == content(10)


@pytest.mark.parametrize("names", [1, 2])
def test_an_ordinary_program_reads_along_on_its_standard_input(
    worker: Talker, tmp_path: Path, names: int
) -> None:
    writing = Writing(worker, WELL, tmp_path)
    mark = tmp_path / "mark"
    refs: list[Reference] = [writing.ref, Value.of(ObjectId("more"), b"!")][:names]
    line = ["sh", "-c", f"head -c 100000 | sha1sum; touch {mark}; wc -c"]
    args = {"args": {"command_line": line, "inputs": refs}}
    key = worker.assign(worker.task("stdinout", args), *refs)
    wait_for(mark.exists, "a part that was read")
    writing.go_on()
    expected = hashlib.sha1(b"a" * 100_000).hexdigest()
    assert worker.content(key) == f"{expected}  -\n{900_000 + names - 1}\n".encode()


def test_a_stream_on_one_slot_is_read_afterwards(start: Start, tmp_path: Path) -> None:
    worker = start(slots=1)
    writing = Writing(worker, WELL, tmp_path)
    ref = writing.ref
    reader = worker.python(READ, Future(ref.id), str(tmp_path / "mark"), {}, inputs=(ref,))
    writing.go_on()
    assert worker.content(reader) == digest(100_000)


def test_a_program_that_was_sent_for_what_is_to_come_reads_along(
    worker: Talker, tmp_path: Path
) -> None:
    """The reader was assigned before its input existed."""
    go, begin = tmp_path / "go", tmp_path / "begin"
    wait = f"while not os.path.exists({str(begin)!r}): time.sleep(0.002)\n    size"
    producer = worker.python(WELL.replace("size", wait, 1), 100_000, str(go))
    future = Future(ObjectId(f"{producer[0]}:out:0"))
    mark = tmp_path / "mark"
    reader = worker.python(READ, future, str(mark), {}, inputs=(future,))
    begin.touch()
    wait_for(mark.exists, "a part that was read")
    go.touch()
    assert worker.content(reader) == digest(100_000)
    worker.good(producer)


def test_two_pipes_of_one_object_are_both_read_to_the_end(worker: Talker, tmp_path: Path) -> None:
    """When one pipe is opened or closed, the reader of the second pipe must not see an end."""
    script = """def run(task):
        first = task.open_stream(task.args[0], 1, must_block=True)
        second = task.open_stream(task.args[0], 1, must_block=True)
        start = first.read(10)
        open(task.args[1], "w").close()
        second.read(5)
        second.close()
        task.call("allocate_output")
        time.sleep(0.05)
        task.publish(0, str(len(start + first.read())).encode())"""
    writing = Writing(worker, WELL, tmp_path)
    reader = writing.read(tmp_path / "mark", script=script)
    writing.go_on()
    assert worker.content(reader) == b"1000000"


def test_a_reader_that_leaves_is_nobodys_concern(worker: Talker, tmp_path: Path) -> None:
    script = """def run(task):
        file = task.open_stream(task.args[0], 1, must_block=True)
        file.read(10)
        open(task.args[1], "w").close()
        task.publish(0, b"enough")"""
    writing = Writing(worker, WELL, tmp_path)
    assert worker.content(writing.read(tmp_path / "mark", script=script)) == b"enough"
    writing.go_on()
    worker.good(writing.key)


# --- broken streams -------------------------------------------------------------------------------

BREAKS = {
    "killed": "os.kill(os.getpid(), 9)",
    "fails": "raise ValueError('no luck')",
    "exits": "os._exit(0)",
    "gives up": "task.fail('I give up')",
    "says too much": "task.call('close_output', index=0, size=10**9)",
    "garbage": "os.write(task._channel._writes, b'garbage')",
    "takes it back": "output.roll_back(); task.publish(0, b'other')",
    "cuts it": "output.truncate(5); output.seek(5)",
    "puts another file there": "os.unlink(output.name); open(output.name, 'w').write('y' * 10**7)",
}


@pytest.mark.parametrize("options", HOW.values(), ids=HOW)
@pytest.mark.parametrize("end", BREAKS.values(), ids=BREAKS)
def test_what_breaks_off_is_never_taken_for_whole(
    worker: Talker, tmp_path: Path, end: str, options: dict[str, bool]
) -> None:
    writing = Writing(worker, WRITE.format(end=end), tmp_path)
    reader = writing.read(tmp_path / "mark", options)
    writing.go_on()
    expect_lost(worker, reader, writing.ref.id)
    worker.end(writing.key)


@pytest.mark.parametrize("end", [BREAKS["killed"], BREAKS["cuts it"]], ids=["killed", "cut"])
def test_an_ordinary_program_never_takes_what_breaks_off_for_whole(
    worker: Talker, tmp_path: Path, end: str
) -> None:
    writing = Writing(worker, WRITE.format(end=end), tmp_path)
    line = ["sh", "-c", f"head -c 5 >/dev/null; touch {tmp_path}/mark; cat >/dev/null; echo done"]
    args = {"args": {"command_line": line, "inputs": [writing.ref]}}
    key = worker.assign(worker.task("stdinout", args), writing.ref)
    wait_for((tmp_path / "mark").exists, "a part that was read")
    writing.go_on()
    expect_lost(worker, key, writing.ref.id)
    worker.end(writing.key)


def test_what_is_cut_after_it_was_read_is_not_whole(in_reactor: Any, tmp_path: Path) -> None:
    """Only the pipe of its reader has recorded how large the file was."""
    streams = in_reactor(Streams, in_reactor.reactor)
    with open(tmp_path / "object", "wb+") as file:
        growing = in_reactor(streams.open, "x", file.fileno())
        file.write(bytes(50_000))
        file.flush()
        piping = in_reactor(pipe, in_reactor.reactor, growing, streams)
        with open(piping.name, "rb") as reader:
            assert len(reader.read(50_000)) == 50_000
        file.truncate(5)
        in_reactor(streams.finish, growing)
    assert "cut it from 50000 bytes to 5" in growing.broken
    in_reactor(piping.close)
    in_reactor(streams.close)


def test_who_waits_for_all_of_it_ends_when_it_breaks_off(worker: Talker, tmp_path: Path) -> None:
    script = """def run(task):
        open(task.args[1], "w").close()
        task.publish(0, task.open(task.args[0]).read())"""
    writing = Writing(worker, WRITE.format(end=BREAKS["killed"]), tmp_path)
    reader = writing.read(tmp_path / "mark", script=script)
    writing.go_on()
    expect_lost(worker, reader, writing.ref.id, "its producer")


@pytest.mark.parametrize("offset", [0, 1, 1023, 1024, 65_536, 100_001])
def test_a_producer_that_is_killed_anywhere_leaves_nothing(
    worker: Talker, tmp_path: Path, offset: int
) -> None:
    script = f"""def run(task):
        output = task.open_output(0, may_stream=True)
        output.write(b"x" * {offset})
        output.flush()
        time.sleep(60)"""
    producer = worker.python(script)
    (ref,) = worker.stream(producer).refs
    reader = worker.python(READ, ref, str(tmp_path / "mark"), HOW["blocking"], inputs=(ref,))
    wait_for(lambda: len(worker.programs()) == 2, "both programs")
    if offset:
        wait_for((tmp_path / "mark").exists, "a part that was read")
    worker.in_reactor(worker.attempts.kill, producer, force=True)
    assert "killed by SIGKILL" in worker.fault(producer).details
    if offset:
        expect_lost(worker, reader, ref.id)
    else:  # the producer may not have opened the stream before the kill
        assert isinstance(worker.end(reader), InputsLost)
    assert worker.store.stat(ref.id) is None
    wait_for(lambda: "/incoming/" not in str(worker.left()), "no temporaries")


@pytest.mark.parametrize("name", ["killed", "says too much", "takes it back"])
def test_what_broke_off_is_made_and_read_again(worker: Talker, tmp_path: Path, name: str) -> None:
    go = str(tmp_path / "go")
    end = f"if os.environ['CIEL_ATTEMPT'] == '1':\n            {BREAKS[name]}; os._exit(1)"
    script = WRITE.format(end=end)
    producer = worker.python(script, 100_000, go)
    (ref,) = worker.stream(producer).refs
    spec = worker.machine.attempts[producer].spec
    reader = worker.python(READ, ref, str(tmp_path / "mark"), {}, inputs=(ref,))
    wait_for((tmp_path / "mark").exists, "a part that was read")
    Path(go).touch()
    expect_lost(worker, reader, ref.id)
    worker.fault(producer)
    worker.reports.clear()
    again = worker.assign(spec, attempt=2)
    (ref,) = worker.stream(again).refs
    reader = worker.python(READ, ref, str(tmp_path / "mark"), {}, inputs=(ref,))
    assert worker.content(reader) == digest(100_000)
    (made,) = worker.good(again)
    assert isinstance(made, Concrete)


def test_a_wrong_call_behind_one_that_waits_ends_its_task(worker: Talker, tmp_path: Path) -> None:
    """The worker finds the error when the wait ends, in a callback instead of in a call of the
    program.
    """
    wrong = {
        "no output": "task.tell('publish_string', index=7, str='')",
        "no method": "task.tell('nonsense')",
        "too much": "task.tell('close_output', index=0, size=10**9)",
    }
    for number, (name, call) in enumerate(wrong.items()):
        script = f"""def run(task):
            output, stream = task.open_output(0), task.open_stream(task.args[0], 1)
            task.tell("wait_stream", id=task.args[0].id, bytes=10**9)
            {call}
            task._channel.flush()
            open(task.args[1], "w").close()
            time.sleep(60)"""
        path = tmp_path / str(number)
        path.mkdir()
        writing = Writing(worker, WELL, path)
        reader = writing.read(path / "mark", script=script)
        writing.go_on()
        assert "its call of" in worker.fault(reader).details or name == "no method"
        worker.good(writing.key)


def test_a_store_that_is_full_while_something_waits_is_told(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    writing = Writing(worker, WELL, tmp_path)
    script = """def run(task):
        output = task.open_output(0)
        output.write(b"x" * 5000)
        output.flush()
        stream = task.open_stream(task.args[0], 1)
        task.tell("wait_stream", id=task.args[0].id, bytes=150_000)
        task.tell("close_output", index=0)
        task._channel.flush()
        open(task.args[1], "w").close()
        time.sleep(60)"""
    reader = writing.read(tmp_path / "mark", script=script)

    real_commit = FileWriter.commit

    def commit(self: FileWriter, **options: Any) -> Any:
        if self.object_id.startswith(reader[0]):
            raise NoSpaceError(5000, 0)
        return real_commit(self, **options)

    with monkeypatch.context() as full:
        full.setattr(FileWriter, "commit", commit)
        writing.go_on()
        assert worker.fault(reader).reason == "NO_SPACE"
        worker.good(writing.key)


def test_a_reader_reads_along_with_a_producer_that_never_pauses(
    worker: Talker, tmp_path: Path
) -> None:
    script = """def run(task):
        with task.open_output(0, may_stream=True) as output:
            while not os.path.exists(task.args[0]):
                output.write(b"x" * 1000)
                output.flush()
                time.sleep(0.001)"""
    reads = """def run(task):
        with task.open_stream(task.args[0], 1) as file:
            assert file.read(5000) == b"x" * 5000
            open(task.args[1], "w").close()
            file.read()
            task.publish(0, b"all of it")"""
    mark = str(tmp_path / "mark")
    producer = worker.python(script, mark)
    (ref,) = worker.stream(producer).refs
    assert worker.content(worker.python(reads, ref, mark, inputs=(ref,))) == b"all of it"
    worker.good(producer)


def test_a_producer_that_is_stopped_by_a_signal_is_no_end(worker: Talker, tmp_path: Path) -> None:
    """A reader waits while the producer is stopped, and continues with it."""
    writing = Writing(worker, WELL, tmp_path)
    (pid,) = worker.programs()
    reader = writing.read(tmp_path / "mark")
    os.kill(pid, signal.SIGSTOP)
    writing.go_on()
    time.sleep(0.2)
    assert reader in worker.machine.attempts
    os.kill(pid, signal.SIGCONT)
    assert worker.content(reader) == digest(100_000)
