"""The output of tasks reaches the client in order, in complete lines, before their results."""

import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ciel
from ciel.access.keys import Key
from ciel.client.jobs.output_forwarding import OutputForwarder, label_of
from ciel.core.events import JobPrinted, Message, ObjectSettled
from ciel.core.ids import JobId, ObjectId, TaskId
from ciel.core.refs import Value

WAIT_S = 10.0
JOB = JobId("a" * 32)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.LocalCluster]:
    environ = {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    with ciel.LocalCluster(workers=1, slots=2, environ=environ) as cluster:
        yield cluster


class Screen(io.StringIO):
    """A file for whose content a test can wait."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str, /) -> int:
        count = super().write(text)
        self.written.set()
        return count


# --- tasks ----------------------------------------------------------------------------------------


def tell(*lines: str) -> int:
    for line in lines:
        print(line)
    return len(lines)


def tell_both() -> None:
    for number in range(3):
        print("out", number)
        print("err", number, file=sys.stderr)


def tell_much(who: str, count: int) -> None:
    for number in range(count):
        print(who, number, "x" * (number % 97))


def tell_and_raise() -> None:
    print("before the end")
    raise LookupError("it is over")


def tell_and_die() -> None:
    import os

    print("last words", flush=True)
    os._exit(3)


def tell_and_wait(release: str) -> None:
    from pathlib import Path

    print("it has begun")
    until_s = time.monotonic() + WAIT_S
    while not Path(release).exists() and time.monotonic() < until_s:
        time.sleep(0.01)


def tell_in_pieces() -> None:
    print("a", end="")
    sys.stdout.flush()
    time.sleep(0.25)
    print("b", end="")  # and no end of the line


def label_in(lines: list[str]) -> str:
    """Return the label before the first line."""
    return lines[0].partition("[")[2].partition("] ")[0]


# --- with a cluster -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task, lines",
    [
        (lambda: tell("one", "", "two\x1b[31m!\x1b[0m", "\x07"), ["one", "", "two!", "\ufffd"]),
        (tell_both, [f"{name} {number}" for number in range(3) for name in ("out", "err")]),
        (tell_in_pieces, ["ab"]),
    ],
    ids=["lines", "both", "pieces"],
)
def test_the_output_of_a_task_is_there_before_its_result(
    cluster: ciel.LocalCluster, task: Callable[[], Any], lines: list[str]
) -> None:
    screen = io.StringIO()
    with ciel.Client(cluster, prints=screen) as client:
        client.submit(task).result(WAIT_S)
        found = screen.getvalue().splitlines()
        assert sorted(found) == sorted(f"[{label_in(found)}] {line}" for line in lines)
        assert [line for line in found if " err " not in line] == [
            f"[{label_in(found)}] {line}" for line in lines if not line.startswith("err")
        ]


@pytest.mark.parametrize(
    "task, error, line",
    [(tell_and_raise, LookupError, "before the end"), (tell_and_die, ciel.TaskError, "last words")],
    ids=["raised", "died"],
)
def test_the_output_of_a_failed_task_is_there_before_its_failure(
    cluster: ciel.LocalCluster,
    task: Callable[[], None],
    error: type[Exception],
    line: str,
) -> None:
    screen = io.StringIO()
    with ciel.Client(cluster, prints=screen) as client:
        with pytest.raises(error):
            client.submit(task).result(WAIT_S)
        assert screen.getvalue().rpartition("] ")[2] == f"{line}\n"


def test_the_standard_error_of_a_program_is_forwarded(cluster: ciel.LocalCluster) -> None:
    screen = io.StringIO()
    with ciel.Client(cluster, prints=screen) as client:
        assert client.run(["sh", "-c", "echo result; echo oh >&2"]).result(WAIT_S) == b"result\n"
        assert screen.getvalue() == "[sh 1] oh\n"


def test_lines_come_while_a_task_runs(cluster: ciel.LocalCluster, tmp_path: Any) -> None:
    screen = Screen()
    with ciel.Client(cluster, prints=screen) as client:
        future = client.submit(tell_and_wait, str(tmp_path / "release"))
        assert screen.written.wait(WAIT_S)
        assert not future.done()
        assert screen.getvalue() == "[tell_and_wait 1] it has begun\n"
        (tmp_path / "release").touch()
        future.result(WAIT_S)


def test_lines_of_several_tasks_stay_whole_and_in_order_and_say_whose_they_are(
    cluster: ciel.LocalCluster,
) -> None:
    screen = io.StringIO()
    with ciel.Client(cluster, prints=screen) as client:
        tell_much_alone = ciel.task(retries=1, name="much")(tell_much)  # one task for each call
        futures = [client.submit(tell_much_alone, who, 2000) for who in "abc"]  # over 64 KiB each
        for future in futures:
            future.result(WAIT_S)
        found: dict[str, list[str]] = {}
        for line in screen.getvalue().splitlines():
            label, _, text = line.rpartition("] ")
            who = text.split()[0]
            found.setdefault(who, []).append(text)
            assert label == f"[much {'abc'.index(who) + 1}"
    assert found.keys() == set("abc")
    for who, texts in found.items():
        assert texts == [f"{who} {n} {'x' * (n % 97)}" for n in range(2000)]


def test_prints_go_to_standard_output_and_can_be_turned_off(
    cluster: ciel.LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with ciel.Client(cluster) as client:
        client.submit(tell, "heard").result(WAIT_S)
    with ciel.Client(cluster, prints=False) as client:
        client.submit(tell, "not heard").result(WAIT_S)
    assert capsys.readouterr().out == "[tell 1] heard\n"


def test_standard_error_goes_to_standard_error_and_every_line_has_its_label(
    cluster: ciel.LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def log() -> None:
        import logging
        import warnings

        print("a result")
        logging.warning("logged")
        warnings.warn("careful", stacklevel=1)

    log.__name__ = "log"
    with ciel.Client(cluster) as client:
        for _ in range(2):  # the second in a warm process
            client.submit(ciel.task(name="log", retries=1)(log)).result(WAIT_S)
    out, err = capsys.readouterr()
    assert out.splitlines() == ["[log 1] a result", "[log 2] a result"]
    lines = [line for line in err.splitlines() if not line.startswith("ciel: ")]
    assert all(line.startswith(("[log 1] ", "[log 2] ")) for line in lines)
    assert sum("WARNING:root:logged" in line for line in lines) == 2
    assert any("UserWarning: careful" in line for line in lines)


# --- without one ----------------------------------------------------------------------------------


def printed(text: str, task: str = "t1", name: str = "f", number: int = 1) -> JobPrinted:
    return JobPrinted(JOB, TaskId(task), name, number, "127.0.0.1:1", 0, len(text) + 4, text)


def settled(name: str) -> ObjectSettled:
    return ObjectSettled(JOB, Value.of(ObjectId(name), b""))


class Delivered:
    """A forwarder, and the messages that it delivered, each with the output written before."""

    def __init__(self, screen: Any = None) -> None:
        self.screen = screen or io.StringIO()
        self.messages: list[tuple[Message, str]] = []
        self.prints = OutputForwarder(Key.new(), self._take, self.screen)

    def _take(self, messages: list[Message]) -> None:
        self.messages += [(message, self.screen.getvalue()) for message in messages]


def test_only_messages_after_output_wait_for_it() -> None:
    delivered = Delivered()
    first, second, third = settled("a"), settled("b"), settled("c")
    messages: list[Message] = [first, printed("1\n"), second, printed("2\n"), third]
    assert delivered.prints.sift(messages) == [first]
    delivered.prints.close()
    assert delivered.messages == [(second, "[f 1] 1\n"), (third, "[f 1] 1\n[f 1] 2\n")]
    assert delivered.prints.sift([first]) == [first]


def test_an_unreachable_worker_does_not_delay_messages(capsys: pytest.CaptureFixture[str]) -> None:
    delivered = Delivered()
    delivered.prints.sift([printed(""), settled("a")])
    delivered.prints.close()
    assert [message for message, _ in delivered.messages] == [settled("a")]
    assert "the output of f 1 is lost: " in capsys.readouterr().err


def test_a_closed_stream_does_not_delay_messages() -> None:
    class Closed(io.StringIO):
        def write(self, text: str, /) -> int:
            raise ValueError("I/O operation on closed file")

    delivered = Delivered(Closed())
    delivered.prints.sift([printed("text\n"), settled("a")])
    delivered.prints.close()
    assert [message for message, _ in delivered.messages] == [settled("a")]


def test_characters_that_a_stream_cannot_encode_are_escaped() -> None:
    binary = io.BytesIO()
    screen = io.TextIOWrapper(binary, "ascii", newline="")
    prints = OutputForwarder(Key.new(), lambda messages: None, screen)
    prints.sift([printed("Zürich\n")])
    prints.close()
    assert binary.getvalue() == b"[f 1] Z\\xfcrich\n"


@pytest.mark.parametrize(
    "name, number, label",
    [
        ("f", 3, "f 3"),
        ("", 3, "3"),
        ("3", 3, "3"),
        ("f", 0, "f t12345"),
        ("a\nb", 1, "a\\nb 1"),
        ("12 calls of f", 7, "f 7"),
    ],
)
def test_a_task_is_called(name: str, number: int, label: str) -> None:
    assert label_of(printed("x\n", task="t123456789", name=name, number=number)) == label
