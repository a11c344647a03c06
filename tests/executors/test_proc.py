"""The conversation of `proc` (§1): beginnings, inputs and outputs."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ciel.core.ids import ObjectId
from ciel.core.refs import (
    Concrete,
    Fixed,
    Stream,
    Sweetheart,
    Value,
)
from ciel.execution.attempt import Growth
from ciel.execution.conversation import Over
from ciel.execution.executor import BadArgumentsError, InputPath, Program, Talk, Task
from ciel.executors.conversation import BACKLOG_MAX
from ciel.executors.proc import ProcExecutor
from ciel.testing.builders import failed, inline, stored
from ciel.wire.calls import Call
from ciel_tests.scenes.dialogues import HERE, MAY_KEEP, NO, TEXT, Begin, future

# --- a task begins --------------------------------------------------------------------------------


def test_a_task_is_told_its_arguments_and_its_command(task: Callable[..., Task]) -> None:
    said = {"proc_pargs": [1, inline("x")], "proc_kwargs": {"a": None}, "command": "prog"}
    action = ProcExecutor().begin(task({**said, "extra_dependencies": [inline("y")], "other": 1}))
    assert action == Talk(Program(("prog",)), said, "proc\0prog")


def test_arguments_that_are_missing_are_empty(task: Callable[..., Task]) -> None:
    action = ProcExecutor().begin(task({"command": ["a", "b"]}))
    assert isinstance(action, Talk)
    assert action.arguments == {"proc_pargs": [], "proc_kwargs": {}, "command": ["a", "b"]}


def test_programs_of_one_kind_have_the_same_command(task: Callable[..., Task]) -> None:
    def kind(command: Any, **more: Any) -> str:
        action = ProcExecutor().begin(task({"command": command, **more}))
        assert isinstance(action, Talk)
        return action.kind

    assert kind("a") == kind(["a"]) == kind("a", proc_pargs=[1])
    assert kind([future("x"), "b"]) == kind([stored("x", HERE), "b"])
    commands = ("a", ["a", "b"], ["ab"], future("a"), ["b", "a"], ["a", future("b")])
    kinds = [kind(command) for command in commands]
    assert len(set(kinds)) == len(kinds)


def test_a_stored_program_is_executed_and_other_references_are_paths(
    task: Callable[..., Task],
) -> None:
    x, y = stored("x", HERE), inline("y")
    action = ProcExecutor().begin(task({"command": [x, "-v", y]}))
    assert isinstance(action, Talk)
    assert action.program.argv == (InputPath(x.id, executable=True), "-v", InputPath(y.id))


def test_a_program_that_waits_is_gone_on_with(task: Callable[..., Task]) -> None:
    fixed = Fixed(ObjectId("t:fixed:0"), HERE)
    action = ProcExecutor().begin(task({"fixed": fixed, "extra_dependencies": [inline("x")]}))
    assert isinstance(action, Talk)
    assert action.fixed == "t:fixed:0"
    assert action.arguments == {"id": "t:fixed:0", "proc_pargs": [], "proc_kwargs": {}}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"command": None},
        {"command": []},
        {"command": ""},
        {"command": "a\0b"},
        {"command": 1},
        {"command": ["a", 1]},
        {"command": ["a", ["b"]]},
        {"command": {"a": 1}},
        {"command": "a", "proc_pargs": {}},
        {"command": "a", "proc_kwargs": []},
        {"command": "a", "proc_pargs": "x"},
    ],
    ids=str,
)
def test_what_cannot_be_begun(task: Callable[..., Task], arguments: dict[str, Any]) -> None:
    with pytest.raises(BadArgumentsError):
        ProcExecutor().begin(task(arguments))


# --- calls with and without an answer -------------------------------------------------------------


@pytest.mark.parametrize(
    "method, args",
    [
        ("tail_spawn", {"executor_name": "proc", "command": "x"}),
        ("tail_spawn", {"executor_name": "proc", "is_fixed": True}),
        ("close_stream", {"id": "x", "chunk_size": 1}),
        ("close_stream", {"id": "never opened", "chunk_size": 1}),
        ("advert", {"index": 0, "size": 5}),
        ("log", {"message": "hello"}),
        ("error", {"report": "no"}),
        ("exit", NO),
        ("exit", MAY_KEEP),
    ],
    ids=str,
)
def test_silences(talk: Begin, method: str, args: dict[str, Any]) -> None:
    """The program would take an answer to one of these calls for that to its next call."""
    one = talk(inline("x"))
    one.call("open_output", may_stream=True)
    one.silent(method, **args)


def test_every_other_method_is_answered_once(talk: Begin) -> None:
    one = talk(stored("x", HERE), Stream(ObjectId("s"), frozenset((HERE,))))
    one.store.put("x", b"x")
    one.attempt.growths["s"] = Growth(5, False)
    methods = [
        ("open_ref", {"ref": future("x")}),
        ("open_ref_async", {"ref": future("s"), "chunk_size": 1}),
        ("wait_stream", {"id": "s", "bytes": 1}),
        ("spawn", {"executor_name": "proc", "command": "x"}),
        ("allocate_output", {}),
        ("publish_string", {"index": 1, "str": TEXT}),
        ("open_output", {}),
        ("rollback_output", {"index": 0}),
        ("open_output", {}),
        ("close_output", {}),
        ("package_lookup", {"key": "k"}),
    ]
    said = one.calls(*methods)
    assert [method for method, _ in said] == [method for method, _ in methods]


def test_unknown_keys_are_taken_no_notice_of(talk: Begin) -> None:
    one = talk()
    assert one.call("allocate_output", prefix="a", colour="green") == {"index": 1}
    one.silent("exit", keep_process="no", reason="done")
    assert one.over == Over(None)


# --- inputs ---------------------------------------------------------------------------------------


def test_a_value_is_a_file_unless_the_program_takes_text(talk: Begin) -> None:
    one = talk(inline("x", b"content"))
    filename = one.call("open_ref", ref=future("x"))["filename"]
    assert Path(filename).read_bytes() == b"content"
    text = one.call("open_ref", ref=future("x"), accept_string=True)
    assert text == {"strdata": b64encode(b"content").decode()}
    assert set(one.call("open_ref", ref=future("x"), accept_string=False)) == {"filename"}


def test_what_is_stored_is_a_file_for_everybody(talk: Begin) -> None:
    one = talk(stored("x", HERE))
    one.store.put("x", b"content")
    for more in ({}, {"accept_string": True}, {"make_sweetheart": True}):
        reply = one.call("open_ref", ref=future("x"), **more)
        assert Path(reply["filename"]).read_bytes() == b"content"


@pytest.mark.parametrize("method", ["open_ref", "open_ref_async"])
def test_an_input_may_be_preferred_where_it_is_opened(talk: Begin, method: str) -> None:
    one = talk(inline("x"))
    one.call(method, ref=future("x"), chunk_size=1, make_sweetheart=False)
    assert one.attempt.preferred == []
    one.call(method, ref=future("x"), chunk_size=1, make_sweetheart=True)
    assert one.attempt.preferred == [inline("x")]


@pytest.mark.parametrize("method", ["open_ref", "open_ref_async"])
def test_what_is_not_there_would_block(talk: Begin, method: str) -> None:
    one = talk()
    assert one.call(method, ref=future("x"), chunk_size=1) == {"error": "EWOULDBLOCK"}
    assert one.over is None


def test_a_future_is_echoed_back_for_what_became_of_it(talk: Begin) -> None:
    """The program still has an object that it received long ago."""
    one = talk(inline("value", b"1"), stored("there", HERE), outputs=("a", "b"))
    one.store.put("there", b"2")
    one.store.put("by-another", b"3")
    one.call("publish_string", index=0, str=b64encode(b"4").decode())
    one.call("publish_string", index=1, str=b64encode(b"5" * 2000).decode())
    contents = [
        Path(one.call("open_ref", ref=future(name))["filename"]).read_bytes()
        for name in ("value", "there", "by-another", "a", "b")
    ]
    assert contents == [b"1", b"2", b"3", b"4", b"5" * 2000]


def test_what_is_complete_is_opened_as_done(talk: Begin) -> None:
    one = talk(stored("x", HERE), inline("y", b"12"))
    one.store.put("x", b"content")
    for name, size in (("x", 7), ("y", 2)):
        for more in ({}, {"must_block": True}, {"sole_consumer": True}):
            reply = one.call("open_ref_async", ref=future(name), chunk_size=10, **more)
            assert Path(reply.pop("filename")).stat().st_size == size
            assert reply == {"sending_fd": False, "blocking": True, "done": True, "size": size}
            assert [type(reply[key]) for key in ("sending_fd", "blocking", "done")] == [bool] * 3


def test_what_grows_is_opened_and_waited_for(talk: Begin) -> None:
    one = talk(Stream(ObjectId("s"), frozenset((HERE,))))
    growths = one.attempt.growths
    growths["s"] = Growth(5, False)
    reply = one.call("open_ref_async", ref=future("s"), chunk_size=10)
    expected = {"sending_fd": False, "blocking": False, "done": False, "size": 5}
    assert reply == {"filename": "growing/s", **expected}
    assert one.call("wait_stream", id="s", bytes=5) == {"size": 5, "done": False, "success": True}
    growths["s"] = Growth(9, True)
    assert one.call("wait_stream", id="s", eof=True) == {"size": 9, "done": True, "success": True}
    assert one.call("wait_stream", id="s", eof=None)["done"] is True
    growths["s"] = Growth(7, False, True)
    assert one.call("wait_stream", id="s", bytes=100) == {"success": False}
    assert [at_least for _, at_least in one.attempt.waits] == [5, float("inf"), float("inf"), 100]
    one.silent("close_stream", id="s", chunk_size=10)
    assert "not open" in one.wrong("wait_stream", id="s", bytes=1)


def test_a_reader_that_blocks_sees_the_real_end(talk: Begin) -> None:
    one = talk(Stream(ObjectId("s"), frozenset((HERE,))))
    one.attempt.growths["s"] = Growth(0, False)
    reply = one.call("open_ref_async", ref=future("s"), chunk_size=10, must_block=True)
    assert (reply["blocking"], reply["done"]) == (True, False)


def test_a_failed_input_ends_who_opens_it(talk: Begin) -> None:
    one = talk(failed("x", "NO_OUTPUT", "why"))
    text = one.wrong("open_ref", ref=future("x"))
    assert "its input x has failed (NO_OUTPUT): why" in text


def test_a_process_has_no_content(talk: Begin) -> None:
    one = talk()
    assert "has no content" in one.wrong("open_ref", ref=Fixed(ObjectId("f"), HERE))


def test_descriptors_are_sent_where_they_are_asked_for(talk: Begin) -> None:
    one = talk(stored("x", HERE))
    one.store.put("x", b"content")
    reply = one.call("open_ref_async", ref=future("x"), chunk_size=1, fd_socket_name="socket")
    assert reply["sending_fd"] is True
    assert one.call("open_output", fd_socket_name="socket") == {"sending_fd": True}
    output = one.attempt.outputs.writers[0].path
    assert one.attempt.sent == [("socket", reply["filename"], False), ("socket", output, True)]


def test_a_socket_that_takes_no_descriptor_ends_the_task(talk: Begin) -> None:
    one = talk()
    one.attempt.socket_error = ConnectionRefusedError(111, "Connection refused")
    one.conversation.called([Call("open_output", {"fd_socket_name": "socket"})])
    assert "'socket': Connection refused" in one.fault()


# --- what takes time ------------------------------------------------------------------------------


def test_replies_keep_the_order_of_calls_if_one_takes_time(talk: Begin) -> None:
    one = talk(inline("x"))
    one.attempt.is_slow = True
    calls = [
        ("allocate_output", {}),
        ("open_ref", {"ref": future("x")}),
        ("allocate_output", {}),
        ("log", {"message": "m"}),
        ("open_ref_async", {"ref": future("x"), "chunk_size": 1}),
        ("allocate_output", {}),
    ]
    assert [method for method, _ in one.calls(*calls)] == ["allocate_output"]
    assert one.calls(("unknown", {})) == []  # queued behind the calls before it
    one.attempt.go_on()
    assert [method for method, _ in one.take()] == ["open_ref", "allocate_output"]
    assert one.attempt.logged == ["m"]
    assert one.over is None
    one.attempt.go_on()
    assert [method for method, _ in one.take()] == ["open_ref_async", "allocate_output"]
    assert "'unknown'" in one.fault()


def test_what_comes_after_the_end_is_not_said(talk: Begin) -> None:
    one = talk(inline("x"))
    one.attempt.is_slow = True
    one.calls(("open_ref", {"ref": future("x")}))
    one.conversation.over = Over(("RUNTIME_ERROR", "the task was cancelled"))
    one.attempt.go_on()
    assert one.take() == []


def test_any_number_of_calls_may_come_together(talk: Begin) -> None:
    """Each would be answered from within the answer to the one before."""
    one = talk(Stream(ObjectId("s"), frozenset((HERE,))))
    one.attempt.growths["s"] = Growth(0, False)
    one.call("open_ref_async", ref=future("s"), chunk_size=1)
    said = one.calls(*[("wait_stream", {"id": "s", "bytes": 1})] * 5000, ("exit", NO))
    assert len(said) == 5000
    assert one.over == Over(None)


def test_calls_do_not_pile_up_without_end(talk: Begin) -> None:
    one = talk(inline("x"))
    one.attempt.is_slow = True
    one.calls(("open_ref", {"ref": future("x")}))
    one.conversation.called([Call("allocate_output", {})] * (BACKLOG_MAX + 1))
    assert "without waiting for a reply" in one.fault()


# --- outputs --------------------------------------------------------------------------------------


def test_outputs_are_published_as_text(talk: Begin) -> None:
    one = talk(outputs=("a", "b"))
    reply = one.call("publish_string", index=1, str=TEXT)
    assert reply == {"ref": Value.of(ObjectId("b"), b"text")}
    large = b64encode(b"x" * 1024).decode()
    reply = one.call("publish_string", index=0, str=large)
    assert reply == {"ref": Concrete(ObjectId("a"), 1024, frozenset((HERE,)))}


def test_outputs_are_written_to_files(talk: Begin) -> None:
    one = talk(outputs=("a", "b"))
    for index, content in enumerate((b"x" * 1023, b"x" * 1024)):
        reply = one.call("open_output", index=index)
        assert reply.keys() == {"sending_fd", "filename"}
        assert reply["sending_fd"] is False
        Path(reply["filename"]).write_bytes(content)
    small = one.call("close_output", index=0, size=1023)
    large = one.call("close_output", index=1)
    assert small == {"ref": Value.of(ObjectId("a"), b"x" * 1023)}
    assert large == {"ref": Concrete(ObjectId("b"), 1024, frozenset((HERE,)))}
    assert one.attempt.streamed == []


def test_an_output_may_say_where_it_begins(talk: Begin) -> None:
    one = talk(outputs=("a", "b", "c"))
    one.call("open_output", index=0, store="disk")
    one.call("publish_string", index=1, str=TEXT, store="memory")
    one.call("open_output", index=2)
    assert one.attempt.outputs.levels == {0: "disk", 1: "memory"}


@pytest.mark.parametrize("store", ["tape", 7, ["disk"]])
def test_an_unknown_place_for_an_output_is_refused(talk: Begin, store: Any) -> None:
    one = talk()
    one.conversation.called([Call("open_output", {"store": store})])
    assert one.over is not None
    assert one.over.fault is not None
    assert "'store' must be 'memory' or 'disk', not " in one.over.fault[1]


def test_an_only_output_needs_no_index(talk: Begin) -> None:
    one = talk()
    Path(one.call("open_output")["filename"]).write_bytes(b"x")
    assert one.call("close_output") == {"ref": Value.of(ObjectId("out"), b"x")}


def test_a_size_may_come_as_a_fraction_that_is_none(talk: Begin) -> None:
    """From encoders that know no integers."""
    one = talk()
    Path(one.call("open_output")["filename"]).write_bytes(b"x" * 5)
    assert one.call("close_output", size=5.0) == {"ref": Value.of(ObjectId("out"), b"x" * 5)}


def test_an_output_that_is_better_read_here_is_known_as_that(talk: Begin) -> None:
    one = talk(outputs=("a", "b"))
    for index, content in enumerate((b"x" * 2000, b"x")):
        opened = one.call("open_output", index=index, make_local_sweetheart=True)
        Path(opened["filename"]).write_bytes(content)
    here = frozenset((HERE,))
    sweetheart = Sweetheart(ObjectId("a"), HERE, 2000, here)
    assert one.call("close_output", index=0) == {"ref": sweetheart}
    assert one.call("close_output", index=1) == {"ref": Value.of(ObjectId("b"), b"x")}
    assert one.attempt.outputs.published[0] == one.attempt.outputs.reference("a") == sweetheart


def test_an_output_is_rolled_back_and_opened_again(talk: Begin) -> None:
    one = talk()
    one.call("open_output")
    assert one.call("rollback_output", index=0) == {"ref": None}
    assert one.call("open_output")["sending_fd"] is False


def test_an_output_may_be_read_while_it_is_written(talk: Begin) -> None:
    one = talk(outputs=("a", "b"))
    one.call("open_output", index=0, may_stream=True)
    one.call("open_output", index=1, may_stream=True, may_pipe=True, can_smart_subscribe=True)
    one.silent("advert", index=1, size=100)
    assert one.attempt.streamed == [0, 1]
    assert one.attempt.hints == [(1, 100)]


def test_outputs_may_be_added(talk: Begin) -> None:
    one = talk()
    assert one.call("allocate_output", prefix="cont") == {"index": 1}
    assert one.call("allocate_output") == {"index": 2}
    assert one.call("allocate_output", prefix=None) == {"index": 3}
    made = one.call("publish_string", index=1, str=TEXT)["ref"]
    assert made.id == f"{one.task_id}:cont:0"
    assert one.call("publish_string", index=2, str=TEXT)["ref"].id == f"{one.task_id}:pub:1"
