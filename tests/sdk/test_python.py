"""Tests which calls `ciel_task.py` makes and when, against a stand-in for the worker."""

from __future__ import annotations

import ast
import base64
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ciel.testing.stand_in import StandIn, opened

SOURCE = Path(__file__).parents[2] / "executors" / "sdk" / "ciel_task.py"
REF = {"__ref__": ["f2", "a"]}
WARM = ("exit", {"keep_process": "may_keep"})

Start = Callable[..., StandIn]


def published(program: StandIn) -> bytes:
    """Answer the publication of a task's only output; return its content."""
    reply = {"ref": {"__ref__": ["val", "t:out:0", ""]}}
    return base64.b64decode(program.answer("publish_string", reply)["str"])


# --- tasks of one process -------------------------------------------------------------------------


def test_one_process_runs_several_tasks_until_the_worker_ends_it(python: Start) -> None:
    body = """
        task.publish(0, repr((task.args, task.kwargs, seen)).encode())
        seen.append(1)
    """
    program = python(body, before="seen = []")
    program.start_task(1, "two", x={"y": None})
    assert published(program) == b"([1, 'two'], {'x': {'y': None}}, [])"
    assert program.hear() == WARM
    program.start_task()
    assert published(program) == b"([], {}, [1])"
    assert program.hear() == WARM
    program.say("die", {"reason": "Garbage collected"})
    assert program.silence()
    assert program.status() == 0
    assert program.errors() == ""


def test_an_idle_program_ends_when_the_worker_closes_the_connection(python: Start) -> None:
    program = python("task.publish(0, b'')")
    program.start_task()
    assert program.hear()[0] == "publish_string"
    assert program.hear() == WARM
    program.hang_up()  # with a reply outstanding
    assert program.status() == 0


def test_a_program_without_keep_ends_after_its_task(python: Start) -> None:
    program = python("pass", keep=False)
    program.start_task()
    assert program.hear()[1]["keep_process"] == "no"
    assert program.status() == 0


@pytest.mark.parametrize("end, method", [("pass", "exit"), ("1 // 0", "error")])
def test_output_of_a_task_is_flushed_before_it_ends(python: Start, end: str, method: str) -> None:
    program = python(f"print('done')\n{end}")
    program.start_task()
    assert program.hear()[0] == method
    assert program.errors() == "done\n"


def test_calls_without_a_reply_are_sent_in_one_write(python: Start) -> None:
    counting = """
        import os
        write, count = os.write, 0
        def counted(fd, data):
            global count
            count += 1
            return write(fd, data)
        os.write = counted
    """
    program = python("task.publish(0, b'%d' % count)", before=counting)
    for writes_before in (b"0", b"1"):
        program.start_task()
        assert published(program) == writes_before
        assert program.hear() == WARM


def test_soft_cache_keys_of_a_program_are_sent(python: Start) -> None:
    program = python("task.soft_cache_keys.append((['a', 'b'], 'decoded'))")
    program.start_task()
    keys = {"keep_process": "may_keep", "soft_cache_keys": [[["a", "b"], "decoded"]]}
    assert program.hear() == ("exit", keys)


# --- errors ---------------------------------------------------------------------------------------


def test_an_exception_is_an_error_with_its_traceback(python: Start) -> None:
    program = python("return 1 // 0")
    program.start_task()
    method, args = program.hear()
    assert method == "error"
    lines = args["report"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert 'program.py", line 4, in run' in lines[1]
    assert lines[-1] == "ZeroDivisionError: integer division or modulo by zero"
    assert program.status() == 1
    assert program.silence()


@pytest.mark.parametrize(
    "text, start, end",
    [
        ("'\\udc80'", "\\udc80", "\\udc80"),
        ("'a' * 20_000_000 + 'z'", "aaa", "aaz"),
    ],
)
def test_any_text_can_be_reported(python: Start, text: str, start: str, end: str) -> None:
    program = python(f"task.log({text})\ntask.fail({text})")
    program.start_task()
    for method, key in (("log", "message"), ("error", "report")):
        heard, args = program.hear()
        assert heard == method
        assert args[key].startswith(start)
        assert args[key].endswith(end)
        assert len(args[key]) < 100_000


def test_a_program_fails_when_the_worker_closes_the_connection_in_a_task(python: Start) -> None:
    program = python("task.allocate()")
    program.start_task()
    assert program.hear()[0] == "allocate_output"
    program.hang_up()
    assert program.status() == 1
    assert "the worker ended before it replied to allocate_output" in program.errors()
    assert program.silence()


def test_a_reply_to_another_call_is_an_error(python: Start) -> None:
    program = python("task.publish(0, b'')\ntask.allocate()")
    program.start_task()
    assert program.hear()[0] == "publish_string"
    assert program.hear()[0] == "allocate_output"
    program.say("allocate_output", {"index": 1})
    method, args = program.hear()
    assert method == "error"
    assert "'allocate_output' was received instead of a reply to 'publish_string'" in args["report"]


def test_a_program_started_by_hand_explains_itself(tmp_path: Path) -> None:
    script = "import ciel_task; ciel_task.serve(print)"
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(SOURCE.parent)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "is a task: only a worker of ciel can start it" in done.stderr


# --- inputs ---------------------------------------------------------------------------------------


def test_an_object_is_opened_by_its_file_name(python: Start, tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(b"content")
    program = python("task.publish(0, task.open(task.args[0]).read())")
    program.start_task(REF)
    assert program.answer("open_ref", {"filename": str(tmp_path / "object")}) == {"ref": REF}
    assert published(program) == b"content"


def test_a_short_object_is_read_from_the_reply(python: Start) -> None:
    program = python("task.publish(0, task.read(task.args[0]))")
    program.start_task(REF)
    args = program.answer("open_ref", {"strdata": base64.b64encode(b"short").decode()})
    assert args == {"ref": REF, "accept_string": True}
    assert published(program) == b"short"


def test_a_value_is_read_without_a_call(python: Start) -> None:
    program = python("task.publish(0, task.read(task.args[0]))")
    program.start_task({"__ref__": ["val", "a", "AAEC"]})
    assert published(program) == b"\0\1\2"


def test_a_reference_of_an_unknown_kind_passes_through(python: Start) -> None:
    program = python("task.tail_spawn('proc', proc_pargs=task.args)")
    new = {"__ref__": ["new", "a", {"of": [1, None]}]}
    program.start_task([new])
    assert program.answer("tail_spawn") == {"proc_pargs": [[new]], "executor_name": "proc"}


def test_a_process_is_suspended_until_a_missing_object_is_available(
    python: Start, tmp_path: Path
) -> None:
    (tmp_path / "object").write_bytes(b"late")
    program = python("task.publish(0, task.open(task.args[0]).read())")
    program.start_task(REF)
    program.answer("open_ref", {"error": "EWOULDBLOCK"})
    assert program.hear() == (
        "tail_spawn",
        {"executor_name": "proc", "extra_dependencies": [REF], "is_fixed": True},
    )
    assert program.hear() == ("exit", {"keep_process": "must_keep"})
    program.say("start_task", {"id": "7", "proc_pargs": [], "proc_kwargs": {}})
    assert program.answer("open_ref", {"filename": str(tmp_path / "object")}) == {"ref": REF}
    assert published(program) == b"late"
    assert program.hear() == WARM


def test_a_program_cannot_wait_while_an_output_is_open(python: Start, tmp_path: Path) -> None:
    program = python("task.open_output(0)\ntask.block_on(task.args[0])")
    program.start_task(REF)
    program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    method, args = program.hear()
    assert method == "error"
    assert "close outputs [0] before you wait" in args["report"]


# --- streams --------------------------------------------------------------------------------------

READ_ALONG = """
    with task.open_stream(task.args[0], chunk_size=2) as stream:
        task.log(repr(stream.read1(100)))
        task.log(repr(stream.read()))
"""


def test_a_stream_is_read_as_it_grows(python: Start, tmp_path: Path) -> None:
    growing = tmp_path / "growing"
    growing.write_bytes(b"one")
    program = python(READ_ALONG)
    program.start_task(REF)
    args = program.answer("open_ref_async", opened(growing))
    assert args == {"ref": REF, "chunk_size": 2}
    assert program.hear() == ("log", {"message": "b'one'"})
    assert program.hear() == ("wait_stream", {"id": "a", "bytes": 5})
    growing.write_bytes(b"one, two")
    program.say("wait_stream", {"size": 8, "done": False, "success": True})
    assert program.hear() == ("wait_stream", {"id": "a", "bytes": 10})
    growing.write_bytes(b"one, two, three")
    program.say("wait_stream", {"size": 15, "done": True, "success": True})
    assert program.hear() == ("log", {"message": "b', two, three'"})
    assert program.hear() == ("close_stream", {"id": "a", "chunk_size": 2})
    assert program.hear() == WARM


def test_a_complete_stream_is_read_as_a_file(python: Start, tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(b"whole")
    program = python(READ_ALONG)
    program.start_task(REF)
    program.answer("open_ref_async", opened(tmp_path / "whole", blocking=True, done=True))
    assert program.hear() == ("log", {"message": "b'whole'"})
    assert program.hear() == ("log", {"message": "b''"})
    assert program.hear() == WARM


def test_a_stream_that_blocks_is_read_to_its_end(python: Start, tmp_path: Path) -> None:
    (tmp_path / "pipe").write_bytes(b"piped")
    program = python(READ_ALONG)
    program.start_task(REF)
    program.answer("open_ref_async", opened(tmp_path / "pipe", blocking=True))
    assert program.hear() == ("log", {"message": "b'piped'"})
    assert program.hear() == ("log", {"message": "b''"})
    assert program.hear() == ("close_stream", {"id": "a", "chunk_size": 2})


@pytest.mark.parametrize(
    "end, complaint",
    [
        ({"success": False}, "a broke off after 3 bytes"),
        ({"size": 9, "done": True, "success": True}, "a ended after 3 of 9 bytes"),
    ],
)
def test_a_broken_stream_is_not_taken_for_a_short_one(
    python: Start, tmp_path: Path, end: dict[str, object], complaint: str
) -> None:
    (tmp_path / "growing").write_bytes(b"one")
    program = python(READ_ALONG)
    program.start_task(REF)
    program.answer("open_ref_async", opened(tmp_path / "growing"))
    assert program.hear()[0] == "log"
    program.answer("wait_stream", end)
    assert program.hear()[0] == "close_stream"
    method, args = program.hear()
    assert method == "error"
    assert args["report"].rstrip().endswith(f"StreamBrokenError: {complaint}")


# --- outputs --------------------------------------------------------------------------------------


def test_an_output_is_a_file(python: Start, tmp_path: Path) -> None:
    program = python("""
        with task.open_output(1, may_stream=True) as out:
            out.write(b"some text")
        task.log(out.ref.id)
    """)
    program.start_task()
    args = program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    assert args == {"index": 1, "may_stream": True}
    assert program.answer("close_output") == {"index": 1, "size": 9}
    assert (tmp_path / "out").read_bytes() == b"some text"
    program.say("close_output", {"ref": {"__ref__": ["c2", "t:out:1", 9, ["host:1"]]}})
    assert program.hear() == ("log", {"message": "t:out:1"})


def test_an_output_left_open_is_closed_at_the_end(python: Start, tmp_path: Path) -> None:
    program = python("task.open_output().write(b'text')")
    program.start_task()
    program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    assert program.answer("close_output") == {"index": 0, "size": 4}
    assert (tmp_path / "out").read_bytes() == b"text"
    assert program.hear() == WARM


@pytest.mark.parametrize(
    "use", ["with task.open_output() as f: 1 // 0", "f = task.open_output(); 1 // 0"]
)
def test_an_incomplete_output_is_not_closed(python: Start, tmp_path: Path, use: str) -> None:
    program = python(use)
    program.start_task()
    program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    if use.startswith("with"):
        assert program.hear() == ("rollback_output", {"index": 0})
    assert program.hear()[0] == "error"
    assert program.silence()


def test_a_full_disk_is_reported(python: Start) -> None:
    program = python("with task.open_output() as f: f.write(bytes(100))")
    program.start_task()
    program.answer("open_output", {"sending_fd": False, "filename": "/dev/full"})
    method, args = program.hear()
    assert method == "error"
    assert "No space left on device" in args["report"]


def test_large_content_is_published_through_a_file(python: Start, tmp_path: Path) -> None:
    program = python("task.publish(0, bytes(100_000))")
    program.start_task()
    program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    assert program.answer("close_output") == {"index": 0, "size": 100_000}
    assert (tmp_path / "out").read_bytes() == bytes(100_000)


def test_a_thousand_unread_replies_do_not_block_the_program(python: Start) -> None:
    program = python("for index in range(1000): task.publish(index, b'')")
    program.start_task()
    for index in range(1000):
        reply = {"ref": {"__ref__": ["val", f"t:out:{index}", "A" * 1000]}}
        assert program.answer("publish_string", reply)["index"] == index
    assert program.hear() == WARM
    program.start_task()
    assert program.hear()[0] == "publish_string"


def test_an_output_is_allocated(python: Start) -> None:
    program = python("task.publish(task.allocate('part'), b'')")
    program.start_task()
    assert program.answer("allocate_output", {"index": 3}) == {"prefix": "part"}
    assert program.hear() == ("publish_string", {"index": 3, "str": ""})


# --- children and the rest ------------------------------------------------------------------------


def test_spawns_are_sent_before_their_replies_are_needed(python: Start) -> None:
    program = python("""
        one = task.spawn("proc", command="a")
        [two] = task.spawn("stdinout", args={"command_line": ["b"]})
        task.tail_spawn("sync", args={"inputs": [one, two]})
    """)
    program.start_task()
    assert program.hear() == ("spawn", {"command": "a", "executor_name": "proc"})
    assert program.hear()[1]["executor_name"] == "stdinout"
    one, two = {"__ref__": ["f2", "one"]}, {"__ref__": ["f2", "two"]}
    program.say("spawn", one)
    program.say("spawn", [two])
    assert program.answer("tail_spawn") == {"args": {"inputs": [one, two]}, "executor_name": "sync"}
    assert program.hear() == WARM


@pytest.mark.parametrize(
    "executor, keywords, count",
    [
        ("proc", "force_n_outputs=0", 0),
        ("proc", "n_extra_outputs=2", 3),
        ("java2", "n_outputs=2", 2),
        ("grab", "args={}", 4),  # only the executor knows the number
    ],
)
def test_a_spawn_returns_as_many_references_as_it_has_outputs(
    python: Start, executor: str, keywords: str, count: int
) -> None:
    program = python(f"refs = task.spawn({executor!r}, {keywords})\n"
                     "task.log(' '.join(ref.id for ref in refs))")  # fmt: skip
    program.start_task()
    program.answer("spawn", [{"__ref__": ["f2", f"x{i}"]} for i in range(count)])
    assert program.hear() == ("log", {"message": " ".join(f"x{i}" for i in range(count))})


def test_a_package_is_looked_up(python: Start) -> None:
    program = python("task.log(repr([task.package('there').id, task.package('gone')]))")
    program.start_task()
    assert program.answer("package_lookup", {"value": REF}) == {"key": "there"}
    assert program.answer("package_lookup", {"value": None}) == {"key": "gone"}
    assert program.hear() == ("log", {"message": "['a', None]"})


def test_a_long_task_and_a_long_argument_are_transferred(python: Start) -> None:
    program = python("task.tail_spawn('proc', proc_pargs=[task.args[0][::-1]])")
    program.start_task("a" * 3_000_000 + "é")
    assert program.answer("tail_spawn")["proc_pargs"] == ["é" + "a" * 3_000_000]


# --- the source file ------------------------------------------------------------------------------


def test_the_sdk_is_one_file_for_any_python_from_3_8() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {str(name).split(".")[0] for name in imported} <= sys.stdlib_module_names
