"""Tests which calls the SDK for Java makes and when, against a stand-in for the worker (CIB-5)."""

from __future__ import annotations

import base64
import json
import math
import random
import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from ciel.executors.jvm import JAVA_SDK
from ciel.testing.stand_in import StandIn, opened
from ciel_tests.installed.languages import build_jars

CASES: Final = 4000
FUTURE: Final = {"__ref__": ["f2", "a"]}

Start = Callable[..., StandIn]

pytestmark = pytest.mark.requirement("CIB-5")


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    jars = build_jars(Path(__file__).parent / "java", tmp_path_factory.mktemp("java"))
    return ":".join([str(JAVA_SDK), *map(str, jars.values())])


@pytest.fixture
def java(class_path: str, programs: Start) -> Callable[[], StandIn]:
    """Start a JVM that does the steps of `Steps`."""
    return lambda: programs("java", "-XX:TieredStopAtLevel=1", "-cp", class_path, "steps.Steps")


@pytest.fixture(scope="module")
def lasting(class_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """A JVM for the tests after which it goes on."""
    argv = ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path, "steps.Steps"]
    with StandIn(tmp_path_factory.mktemp("lasting"), argv) as program:
        yield program
        program.say("die", {"reason": "Garbage collected"})
        assert program.silence()
        assert (program.status(), program.errors()) == (0, "")


def published(program: StandIn) -> str:
    """Answer the publication of a task's only output; return its content."""
    reply = {"ref": {"__ref__": ["val", "t:out:0", ""]}}
    return base64.b64decode(program.answer("publish_string", reply)["str"]).decode()


def end(program: StandIn, keys: list[Any] | None = None) -> None:
    assert program.hear() == ("exit", {"keep_process": "may_keep", "soft_cache_keys": keys or []})


# --- tasks of one JVM -----------------------------------------------------------------------------


def test_one_jvm_runs_several_tasks(lasting: StandIn) -> None:
    for _ in range(2):
        args = [1, -(2**70), 0.5, None, True, "ü\n😀", {"a": [FUTURE]}]
        lasting.start_task("arguments", *args, key={})
        count, told = published(lasting).split(" ", 1)
        shown = "1, -1180591620717411303424, 0.5, null, true, ü\n😀, {a=[Ref(f2 a)]}"
        assert told == f"[arguments, {shown}] {{key={{}}}}"
        end(lasting, [[["a", "b"], "decoded"]])
    assert int(count) >= 2


def test_children_have_the_options_of_their_spawn(lasting: StandIn) -> None:
    lasting.start_task("spawn")
    made = {"__ref__": ["f2", "sorted"]}
    assert lasting.answer("spawn", [made]) == {
        "executor_name": "stdinout", "n_outputs": 1, "name": "sorting", "slots": 2,
        "args": {"command_line": ["sort", "-n"], "inputs": [FUTURE]},
        "memory_bytes": 1 << 20, "retries": 3, "priority": 1, "timeout_s": 9.0,
    }  # fmt: skip
    assert lasting.answer("spawn", [made, made]) == {
        "executor_name": "proc", "command": ["count"], "proc_pargs": [made, 2.5],
        "force_n_outputs": 2, "extra_dependencies": [{"__ref__": ["f2", "b"]}],
    }  # fmt: skip
    sync = {"executor_name": "sync", "args": {"inputs": [made]}}
    assert lasting.hear() == ("tail_spawn", sync)
    end(lasting)


def test_a_task_waits_in_place_for_an_object(lasting: StandIn, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("späte Worte")
    lasting.start_task("wait", FUTURE)
    assert lasting.answer("open_ref", {"error": "EWOULDBLOCK"}) == {"ref": FUTURE}
    waiting = {"executor_name": "proc", "extra_dependencies": [FUTURE], "is_fixed": True}
    assert lasting.hear() == ("tail_spawn", waiting)
    assert lasting.hear() == ("exit", {"keep_process": "must_keep"})
    lasting.start_task()
    assert lasting.answer("open_ref", {"filename": str(tmp_path / "text")}) == {"ref": FUTURE}
    assert published(lasting) == "späte Worte"
    end(lasting)


def test_a_short_object_is_read_from_its_reference(lasting: StandIn) -> None:
    lasting.start_task("wait", {"__ref__": ["val", "a", "aGk="]})
    assert published(lasting) == "hi"
    end(lasting)


# --- streams --------------------------------------------------------------------------------------


def grow(program: StandIn, file: Path, *pieces: tuple[bytes, dict[str, Any]]) -> str:
    """Let a task read a growing file to its end; return the text that the task published."""
    file.write_bytes(b"one")
    program.start_task("stream", FUTURE)
    asked = {"ref": FUTURE, "chunk_size": 4, "sole_consumer": True}
    assert program.answer("open_ref_async", opened(file, size=3)) == asked
    size = 3
    for piece, reply in pieces:
        assert program.answer("wait_stream") == {"id": "a", "bytes": size + 4}
        with file.open("ab") as out:
            size += out.write(piece)
        program.say("wait_stream", reply)
    assert program.hear() == ("close_stream", {"id": "a", "chunk_size": 4})
    found = published(program)
    end(program)
    return found


def test_a_growing_object_is_read_to_its_end(lasting: StandIn, tmp_path: Path) -> None:
    more = (b"two", {"size": 6, "done": False, "success": True})
    last = (b"three", {"size": 11, "done": True, "success": True})
    assert grow(lasting, tmp_path / "growing", more, last) == "onetwothree"


def test_a_reader_learns_that_its_producer_failed(lasting: StandIn, tmp_path: Path) -> None:
    broken = (b"", {"success": False})
    assert grow(lasting, tmp_path / "growing", broken) == "a broke off after 3 bytes"


def test_a_file_that_ends_early_is_an_error(lasting: StandIn, tmp_path: Path) -> None:
    early = (b"", {"size": 7, "done": True, "success": True})
    assert grow(lasting, tmp_path / "growing", early) == "a ended after 3 of 7 bytes"


# --- outputs --------------------------------------------------------------------------------------


def test_outputs_are_published_by_the_next_call(lasting: StandIn, tmp_path: Path) -> None:
    lasting.start_task("outputs")
    assert lasting.answer("allocate_output", {"index": 3}) == {"prefix": "more"}
    files = [tmp_path / name for name in ("taken", "out", "large")]
    replies = [{"sending_fd": False, "filename": str(file)} for file in files]
    assert lasting.answer("open_output", replies[0]) == {"index": 3}
    assert lasting.answer("rollback_output", {"ref": None}) == {"index": 3}
    assert lasting.answer("open_output", replies[1]) == {"index": 3, "may_stream": True}
    ref = {"ref": {"__ref__": ["c2", "out", 100_001, []]}}
    assert lasting.answer("close_output", ref) == {"index": 3, "size": 100_001}
    assert files[1].read_bytes() == bytes(100_000) + b"a"
    assert lasting.answer("open_output", replies[2]) == {"index": 0}
    ref = {"ref": {"__ref__": ["c2", "large", 70_000, []]}}
    assert lasting.answer("close_output", ref) == {"index": 0, "size": 70_000}
    assert lasting.answer("package_lookup", {"value": None}) == {"key": "key"}
    assert lasting.hear() == ("log", {"message": "Ref(c2 out) Ref(c2 large) false"})
    end(lasting)


def report(program: StandIn) -> list[str]:
    """Return the lines of the error with which a task and its JVM end."""
    method, args = program.hear()
    assert method == "error", args
    assert program.status() == 1
    assert program.silence()
    return list(args["report"].splitlines())


def test_an_exception_publishes_no_part_of_an_output(
    java: Callable[[], StandIn], tmp_path: Path
) -> None:
    program = java()
    program.start_task("interrupted")
    program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    assert report(program)[0] == "java.io.IOException: no space"


def test_a_task_with_an_open_output_cannot_wait(
    java: Callable[[], StandIn], tmp_path: Path
) -> None:
    program = java()
    program.start_task("open")
    program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    told = "ciel.sdk.TaskException: close output 0 before you wait for an object"
    assert report(program)[0] == told


# --- errors ---------------------------------------------------------------------------------------


def test_an_exception_is_an_error_with_its_own_frames(java: Callable[[], StandIn]) -> None:
    program = java()
    program.start_task("fail", "ring")
    lines = [re.sub(r":\d+\)", ")", line) for line in report(program)]
    assert lines[:4] == [
        "java.lang.IllegalArgumentException: outer",
        "\tat steps.Steps.fail(Steps.java)",
        "\tat steps.Steps.run(Steps.java)",
        "Caused by: java.lang.IllegalStateException: inner",
    ]
    assert not [line for line in lines if "ciel.sdk" in line]


@pytest.mark.parametrize(
    "args, said",
    [
        (["fail", "Error"], "java.lang.StackOverflowError"),
        (["wait", "x"], "argument 1 must be a reference, but is x"),
        (["other"], "argument 1 must be a whole number, but is missing"),
    ],
    ids=["an error of the JVM", "a wrong argument", "no argument"],
)  # fmt: skip
def test_any_error_is_reported(java: Callable[[], StandIn], args: list[str], said: str) -> None:
    program = java()
    program.start_task(*args)
    assert report(program)[0].endswith(said)


def test_any_text_can_be_reported(java: Callable[[], StandIn]) -> None:
    program = java()
    program.start_task("say")
    assert program.hear() == ("log", {"message": "half \\ud800 a pair"})
    first, omitted, last = report(program)
    assert (len(first), omitted, len(last)) == (32 << 10, "[...]", 32 << 10)
    assert program.errors() == "printed"


def test_a_jvm_ends_with_its_worker(java: Callable[[], StandIn]) -> None:
    program = java()
    program.start_task("arguments")
    assert program.hear()[0] == "publish_string"
    program.hang_up()
    assert program.status() == 1
    assert "the worker ended before it replied to publish_string" in program.errors()


def test_a_worker_that_opens_one_fifo_after_the_other_is_answered(
    class_path: str, programs: Start
) -> None:
    argv = ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path, "steps.Steps"]
    program = programs(*argv, as_the_original=True)
    program.start_task("arguments")
    assert published(program) == "1 [arguments] {}"


def test_a_program_without_a_worker_says_what_it_is(class_path: str) -> None:
    argv = ["java", "-cp", class_path, "steps.Steps"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 1
    assert "this program is a task: only a worker of ciel can start it" in done.stderr


# --- JSON -----------------------------------------------------------------------------------------


def random_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(6 if depth > 3 else 8)
    if kind == 6:
        return [random_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 7:
        return {random_text(chance): random_value(chance, depth + 1) for _ in range(3)}
    numbers = [chance.getrandbits(70) - (1 << 69), chance.randrange(-9, 9), chance.gauss(0, 1e9)]
    return [None, True, *numbers, random_text(chance)][kind]


def random_text(chance: random.Random) -> str:
    return "".join(chance.choices('ab"\\/\x00\n\x1f é߿😀\u2028', k=chance.randrange(6)))


def mutated(chance: random.Random, text: str) -> str:
    """Remove, repeat or replace characters of a text."""
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(text) + 1)
        piece = chance.choice(
            ["", ",", "]", "{", '"', "\\", "\\u12", "-", "0", "e", ":", "\t", "\x01"]
        )
        text = text[:at] + piece + text[at + chance.randrange(2) :]
    return text


def refuse(constant: str) -> None:
    raise ValueError(constant)


def finite(word: str) -> float:
    if math.isinf(number := float(word)):
        raise ValueError(word)
    return number


def expected(text: str) -> Any:
    """Return the value of a text; the encoded text if it is not JSON."""
    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite)
    except ValueError:
        return text.encode()


def test_json_is_read_and_written_as_by_python(class_path: str) -> None:
    chance = random.Random(5)
    texts = ["[" * 600 + "]" * 600, "", " ", "1 2", "[1,]", '{"a":1,}', '"\\ud83d\\ude00"', "01"]
    for number in range(CASES):
        text = json.dumps(random_value(chance), ensure_ascii=number % 3 == 0)
        texts.append(text if number % 2 else mutated(chance, text))
    frames = [text.encode() for text in texts]
    sent = b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)
    argv = ["java", "-cp", class_path, "ciel.sdk.JsonEcho"]
    done = subprocess.run(argv, input=sent, capture_output=True, timeout=60, check=True)
    rest = done.stdout
    refused = 0
    for text in texts:
        (size,) = struct.unpack(">I", rest[:4])
        echo, rest = rest[4 : 4 + size], rest[4 + size :]
        wanted = expected(text) if len(text) != 1200 else b"too deep"
        refused += isinstance(wanted, bytes)
        found = json.loads(echo) if echo else b""
        assert (found == wanted) or (isinstance(wanted, bytes) and not echo), (text, echo)
    assert 0 < refused < CASES / 2 + 10, refused
    assert not rest
