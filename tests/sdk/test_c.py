"""Tests libciel, compiled with sanitizers, against a stand-in for the worker."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from ciel.testing.stand_in import StandIn, opened

LIBRARY = Path(__file__).parents[2] / "executors" / "sdk" / "c"
REF = {"__ref__": ["f2", "a"]}
OUT = {"ref": {"__ref__": ["val", "t:out:0", ""]}}

Start = Callable[..., StandIn]
Compile = Callable[..., str]


def published(program: StandIn) -> bytes:
    return base64.b64decode(program.answer("publish_string", OUT)["str"])


def expect_the_end(program: StandIn, status: int = 0, complaint: str = "") -> None:
    """Expect that the program sends no more calls, and prints only this to standard error."""
    assert program.silence()
    assert (program.status(), program.errors()) == (status, complaint)


# --- tasks of one process -------------------------------------------------------------------------


def test_a_task_publishes_a_text(c: Start) -> None:
    program = c("""
        json_t *args = json_object_get(task, "proc_pargs");
        char text[100];
        snprintf(text, sizeof text, "%s, %s!", json_string_value(json_array_get(args, 0)),
                 json_string_value(json_object_get(json_object_get(task, "proc_kwargs"), "who")));
        ciel_define_output_with_plain_string(0, text);
        ciel_exit();
    """)
    program.start_task("Hello", who="wörld")
    assert published(program) == "Hello, wörld!".encode()
    assert program.hear() == ("exit", {"keep_process": "no"})
    expect_the_end(program)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 1000])
def test_texts_of_any_length_are_published(c: Start, length: int) -> None:
    program = c("""
        json_t *text = json_array_get(json_object_get(task, "proc_pargs"), 0);
        char *copy = malloc(json_string_length(text) + 1);
        ciel_define_output_with_plain_string(7, strcpy(copy, json_string_value(text)));
        free(copy);
        ciel_exit();
    """)
    text = "\x7fa\n~" * (length // 4) + "xyz"[: length % 4]
    program.start_task(text)
    args = program.answer("publish_string", OUT)
    assert (args["index"], base64.b64decode(args["str"])) == (7, text.encode())


WARM = """
    for (; task != NULL; task = ciel_get_next_task()) {
        ciel_define_output_with_plain_string(0, "x");
        ciel_exit_keep("may_keep", json_object_get(task, "keys"));
        json_decref(task);
    }
    return 0;
"""


@pytest.mark.parametrize("is_told", [True, False])
def test_one_process_runs_several_tasks(c: Start, is_told: bool) -> None:
    program = c(WARM)
    for keys in (None, [[["a"], "word"]]):
        program.say("start_task", {} if keys is None else {"keys": keys})
        assert published(program) == b"x"
        method, args = program.hear()
        assert (method, args.get("soft_cache_keys")) == ("exit", keys)
        assert args["keep_process"] == "may_keep"
    if is_told:
        program.say("die", {"reason": "Garbage collected"})
    program.hang_up()
    expect_the_end(program)


def test_output_of_a_task_is_flushed_before_it_ends(c: Start) -> None:
    program = c('puts("done"); ciel_exit_keep("may_keep", NULL); ciel_get_next_task();')
    program.start_task()
    assert program.hear()[0] == "exit"
    assert program.errors() == "done\n"


def test_a_worker_may_end_a_program_instead_of_sending_a_task(c: Start) -> None:
    program = c("ciel_exit();")
    program.say("die", {"reason": "no task"})
    expect_the_end(program)


def test_a_thousand_unread_replies_do_not_block_the_program(c: Start) -> None:
    program = c("""
        for (int i = 0; i < 1000; i++)
            ciel_define_output_with_plain_string(i, "x");
        ciel_exit();
    """)
    program.start_task()
    for index in range(1000):
        reply = {"ref": {"__ref__": ["val", f"t:out:{index}", "A" * 1000]}}
        assert program.answer("publish_string", reply)["index"] == index
    assert program.hear()[0] == "exit"


# --- inputs ---------------------------------------------------------------------------------------

READ = """
    struct ciel_input *input = ciel_open_ref(first);
    char text[100];
    int got = ciel_read_ref(input, text, 3);
    got += ciel_read_ref(input, text + got, 90);
    text[got + ciel_read_ref(input, text, 1)] = '\\0';
    ciel_log(text);
    ciel_exit();
    ciel_close_ref(input);
"""


@pytest.mark.parametrize("unbuffered", ["", "ciel_set_input_unbuffered(input);"])
def test_an_object_is_read(c: Start, tmp_path: Path, unbuffered: str) -> None:
    (tmp_path / "object").write_bytes(b"content")
    program = c(READ.replace("char", unbuffered + "char", 1))
    program.start_task(REF)
    assert program.answer("open_ref", {"filename": str(tmp_path / "object")}) == {"ref": REF}
    assert program.hear() == ("log", {"message": "content"})
    assert program.hear()[0] == "exit"
    expect_the_end(program)


def test_a_process_is_suspended_until_a_missing_object_is_available(
    c: Start, tmp_path: Path
) -> None:
    (tmp_path / "object").write_bytes(b"late")
    program = c("""
        json_t *other = json_array_get(json_object_get(task, "proc_pargs"), 1);
        struct ciel_input *input;
        while ((input = ciel_open_ref(first)) == NULL)
            ciel_block_on_refs(2, first, other);
        ciel_exit();
        ciel_close_ref(input);
    """)
    other = {"__ref__": ["s2", "b", ["host:1"]]}
    program.start_task(REF, other)
    program.answer("open_ref", {"error": "EWOULDBLOCK"})
    assert program.answer("tail_spawn") == {
        "executor_name": "proc", "extra_dependencies": [REF, other], "is_fixed": True,
    }  # fmt: skip
    assert program.hear() == ("exit", {"keep_process": "must_keep"})
    program.say("start_task", {"id": "7"})
    program.answer("open_ref", {"filename": str(tmp_path / "object")})
    assert program.hear()[0] == "exit"
    expect_the_end(program)


def test_a_suspended_program_ends_with_its_worker(c: Start) -> None:
    program = c("ciel_block_on_refs(0);")
    program.start_task()
    assert program.hear()[0] == "tail_spawn"
    assert program.hear()[0] == "exit"
    program.hang_up()
    expect_the_end(program)


def test_a_program_cannot_wait_while_an_output_is_open(c: Start, tmp_path: Path) -> None:
    program = c("""
        struct ciel_output *output = ciel_open_output(0, 0, 0, 0);
        ciel_block_on_refs(1, first);
        json_decref(ciel_close_output(output));
    """)
    program.start_task(REF)
    program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    expect_the_end(program, 1, "ciel: ciel_block_on_refs: 1 outputs are still open\n")


# --- streams --------------------------------------------------------------------------------------

READ_ALONG = """
    struct ciel_input *input = ciel_open_ref_async(first, 2, 0, 1);
    char text[100];
    int got;
    while ((got = ciel_read_ref(input, text, 99)) > 0) {
        text[got] = '\\0';
        ciel_log(text);
    }
    ciel_log(got == 0 ? "end" : "broken");
    ciel_close_ref(input);
    ciel_exit();
"""


def logged(program: StandIn) -> str:
    return str(program.answer("log")["message"])


def test_a_stream_is_read_as_it_grows(c: Start, tmp_path: Path) -> None:
    growing = tmp_path / "growing"
    growing.write_bytes(b"one")
    program = c(READ_ALONG)
    program.start_task(REF)
    args = program.answer("open_ref_async", opened(growing))
    assert args == {"ref": REF, "chunk_size": 2, "sole_consumer": False, "must_block": True}
    assert logged(program) == "one"
    assert program.hear() == ("wait_stream", {"id": "a", "bytes": 5})
    growing.write_bytes(b"one, two")
    program.say("wait_stream", {"size": 8, "done": False, "success": True})
    assert logged(program) == ", two"
    assert program.hear() == ("wait_stream", {"id": "a", "bytes": 10})
    growing.write_bytes(b"one, two, 3")
    program.say("wait_stream", {"size": 11, "done": True, "success": True})
    assert logged(program) == ", 3"
    assert logged(program) == "end"
    assert program.hear() == ("close_stream", {"id": "a", "chunk_size": 2})
    assert program.hear()[0] == "exit"
    expect_the_end(program)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_complete_or_blocking_stream_is_read_to_its_end(
    c: Start, tmp_path: Path, is_done: bool
) -> None:
    (tmp_path / "whole").write_bytes(b"whole")
    program = c(READ_ALONG)
    program.start_task(REF)
    program.answer("open_ref_async", opened(tmp_path / "whole", blocking=True, done=is_done))
    assert logged(program) == "whole"
    assert logged(program) == "end"
    assert program.hear()[0] == ("exit" if is_done else "close_stream")


@pytest.mark.parametrize(
    "end, complaint",
    [
        ({"success": False}, "a broke off after 3 bytes: its producer has failed"),
        (
            {"size": 1 << 40, "done": True, "success": True},
            "a ended after 3 of 1099511627776 bytes",
        ),
    ],
)
def test_a_broken_stream_is_not_taken_for_a_short_one(
    c: Start, tmp_path: Path, end: dict[str, object], complaint: str
) -> None:
    (tmp_path / "growing").write_bytes(b"one")
    program = c(READ_ALONG)
    program.start_task(REF)
    program.answer("open_ref_async", opened(tmp_path / "growing"))
    assert logged(program) == "one"
    program.answer("wait_stream", end)
    assert logged(program) == "broken"
    assert program.hear()[0] == "close_stream"
    assert program.hear()[0] == "exit"
    expect_the_end(program, 0, f"ciel: {complaint}\n")


def test_a_stream_without_a_running_writer_is_not_opened(c: Start) -> None:
    program = c(
        'ciel_log(ciel_open_ref_async(first, 2, 0, 0) == NULL ? "none" : "?"); ciel_exit();'
    )
    program.start_task(REF)
    program.answer("open_ref_async", {"error": "EWOULDBLOCK"})
    assert logged(program) == "none"


# --- outputs --------------------------------------------------------------------------------------

WRITE = """
    struct ciel_output *output = ciel_open_output(1, 1, 0, 1);
    char text[100000];
    memset(text, 'x', sizeof text);
    for (int i = 0; i < 3; i++)
        ciel_write_output(output, text, (int)sizeof text);
    json_t *ref = ciel_close_output(output);
    char *id = ciel_get_ref_id(ref);
    ciel_log(id);
    free(id);
    json_decref(ref);
    ciel_exit();
"""


@pytest.mark.parametrize("unbuffered", ["", "ciel_set_output_unbuffered(output);"])
def test_an_output_is_written(c: Start, tmp_path: Path, unbuffered: str) -> None:
    program = c(WRITE.replace("char", unbuffered + "char", 1))
    program.start_task()
    args = program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    flags = {"may_stream": True, "may_pipe": False, "make_local_sweetheart": True}
    assert args == {"index": 1} | flags
    reply = {"ref": {"__ref__": ["c2", "t:out:1", 300000, ["host:1"]]}}
    assert program.answer("close_output", reply) == {"index": 1, "size": 300000}
    assert (tmp_path / "out").read_bytes() == b"x" * 300000
    assert logged(program) == "t:out:1"
    assert program.hear()[0] == "exit"
    expect_the_end(program)


@pytest.mark.parametrize("unbuffered", ["", "ciel_set_output_unbuffered(output);"])
def test_an_output_that_cannot_be_written_completely_is_not_published(
    c: Start, unbuffered: str
) -> None:
    program = c(WRITE.replace("char", unbuffered + "char", 1))
    program.start_task()
    program.answer("open_output", {"sending_fd": False, "filename": "/dev/full"})
    complaint = "ciel: output 1 cannot be written completely: No space left on device\n"
    expect_the_end(program, 1, complaint)


def test_a_long_text_is_published_through_a_file(c: Start, tmp_path: Path) -> None:
    program = c("""
        char *text = malloc(100001);
        memset(text, 'x', 100000);
        text[100000] = '\\0';
        ciel_define_output_with_plain_string(0, text);
        free(text);
        ciel_exit();
    """)
    program.start_task()
    program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    assert program.answer("close_output", OUT) == {"index": 0, "size": 100000}
    assert (tmp_path / "out").read_bytes() == b"x" * 100000


def test_an_output_is_allocated(c: Start) -> None:
    program = c(
        'ciel_define_output_with_plain_string(ciel_allocate_output("part"), "");ciel_exit();'
    )
    program.start_task()
    assert program.answer("allocate_output", {"index": 3}) == {"prefix": "part"}
    assert program.hear() == ("publish_string", {"index": 3, "str": ""})


# --- children and the rest ------------------------------------------------------------------------


def test_a_task_spawns_and_delegates_its_outputs(c: Start) -> None:
    program = c("""
        json_t *keywords = json_pack("{s: {s: [s, s]}}", "args", "command_line", "echo", "hi");
        json_t *refs = ciel_spawn("stdinout", keywords);
        json_t *rest = json_pack("{s: {s: O}}", "args", "inputs", refs);
        ciel_tail_spawn("sync", rest);
        ciel_tail_spawn("nothing", NULL);
        ciel_exit();
        json_decref(keywords);
        json_decref(refs);
        json_decref(rest);
    """)
    program.start_task()
    args = {"args": {"command_line": ["echo", "hi"]}, "executor_name": "stdinout"}
    assert program.answer("spawn", [REF]) == args
    assert program.answer("tail_spawn") == {"args": {"inputs": [REF]}, "executor_name": "sync"}
    assert program.answer("tail_spawn") == {"executor_name": "nothing"}
    assert program.hear()[0] == "exit"
    expect_the_end(program)


def test_a_package_is_looked_up(c: Start) -> None:
    program = c("""
        json_t *there = ciel_package_lookup("there"), *gone = ciel_package_lookup("gone");
        ciel_log(there != NULL && gone == NULL ? "good" : "bad");
        json_decref(there);
        ciel_exit();
    """)
    program.start_task()
    assert program.answer("package_lookup", {"value": REF}) == {"key": "there"}
    assert program.answer("package_lookup", {"value": None}) == {"key": "gone"}
    assert logged(program) == "good"
    assert program.hear()[0] == "exit"
    expect_the_end(program)


def test_any_text_can_be_reported(c: Start) -> None:
    program = c('ciel_log("\\xc3\\xa9"); ciel_error("no \\xff file");')
    program.start_task()
    assert logged(program) == "é"
    assert program.hear() == ("error", {"report": "no ? file"})
    expect_the_end(program)


# --- errors ---------------------------------------------------------------------------------------

ALLOCATE = 'ciel_allocate_output(NULL == first ? "" : "x"); ciel_exit();'


@pytest.mark.parametrize(
    "method, reply, complaint",
    [
        ("spawn", {"index": 1}, "the worker sent spawn instead of a reply to allocate_output"),
        ("allocate_output", {}, "the reply to allocate_output has no index"),
        (
            "allocate_output",
            {"index": "1"},
            "index in the reply to allocate_output is not a number",
        ),
        ("allocate_output", [], "the reply to allocate_output has no index"),
    ],
)
def test_a_wrong_reply_ends_the_program(
    c: Start, method: str, reply: object, complaint: str
) -> None:
    program = c(ALLOCATE)
    program.start_task()
    assert program.hear()[0] == "allocate_output"
    program.say(method, reply)
    expect_the_end(program, 1, f"ciel: {complaint}\n")


@pytest.mark.parametrize(
    "data, complaint",
    [
        (b"", "the worker ended before it replied to allocate_output"),
        (b"\0\0", "cannot read from the worker: it has closed the FIFO"),
        (b"\0\0\0\x09[1", "cannot read from the worker: it has closed the FIFO"),
        (b"\x7f\0\0\0", "the worker sent a frame of 2130706432 bytes"),
        (b"\0\0\0\2[1", "a frame of the worker: invalid JSON at character 2: "),
        (b"\0\0\0\2{}", "the worker sent a frame that is not a list of a method and arguments"),
        (b"\0\0\0\4\"\\u0", "a frame of the worker: invalid JSON at character "),
    ],
)  # fmt: skip
def test_an_invalid_frame_ends_the_program(c: Start, data: bytes, complaint: str) -> None:
    program = c(ALLOCATE)
    program.start_task()
    assert program.hear()[0] == "allocate_output"
    with program.heard.open("wb") as fifo:
        fifo.write(data)
    program.hang_up()
    assert program.silence()
    assert program.status() == 1
    assert program.errors().startswith(f"ciel: {complaint}")


@pytest.mark.parametrize(
    "body, complaint",
    [
        ("ciel_exit(); ciel_exit();", "exit is called after the end of the task"),
        ("ciel_open_ref(NULL);", "a call cannot be encoded: an argument is NULL, or a string"),
        (
            'ciel_package_lookup("\\xff");',
            "a call cannot be encoded: an argument is NULL, or a string",
        ),
    ],
)
def test_a_wrong_call_ends_the_program(c: Start, body: str, complaint: str) -> None:
    program = c(body)
    program.start_task()
    assert program.status() == 1
    assert f"ciel: {complaint}" in program.errors()


# --- descriptors ----------------------------------------------------------------------------------


def send(place: str, path: Path, flags: int) -> None:
    descriptor = os.open(path, flags, 0o600)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        rights = array("i", [descriptor])
        connection.sendmsg([b"FD"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    os.close(descriptor)


def test_files_come_as_descriptors(c: Start, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"content")
    write = WRITE.replace("text[100000]", "large[100000]").replace("text", "large")
    program = c(READ_ALONG.replace("ciel_exit();", "") + write, "-DCIEL_SOCKET")
    program.start_task(REF)
    told = opened(Path("/nowhere"), sending_fd=True, blocking=True, done=True)
    send(program.answer("open_ref_async", told)["fd_socket_name"], tmp_path / "in", os.O_RDONLY)
    assert (logged(program), logged(program)) == ("content", "end")
    place = program.answer("open_output", {"sending_fd": True})["fd_socket_name"]
    send(place, tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    assert program.answer("close_output", OUT)["size"] == 300000
    assert (tmp_path / "out").stat().st_size == 300000
    assert not Path(place).parent.exists()


def test_a_worker_that_sends_file_names_instead_of_descriptors_works_too(
    c: Start, tmp_path: Path
) -> None:
    (tmp_path / "object").write_bytes(b"content")
    program = c(READ, "-DCIEL_SOCKET")
    program.start_task(REF)
    program.answer("open_ref", {"filename": str(tmp_path / "object")})
    assert logged(program) == "content"


# --- the source files -----------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [[], ["-DCIEL_SOCKET"], ["-std=c11", "-O2"]])
def test_the_library_compiles_without_a_warning(compiled: Compile, flags: list[str]) -> None:
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"]
    done = subprocess.run(
        ["cc", *flags, *warnings, "-c", "-o", "/dev/null", str(LIBRARY / "ciel.c")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_may_declare_what_the_original_forgot(compiled: Compile) -> None:
    compiled("""
        #include <ciel.h>
        json_t *ciel_package_lookup(char *key);
        int main(void) { return 0; }
    """)
