"""The conversation with a program: what is said to what, in which order, and when nothing is."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.core.ids import JobId, ObjectId
from ciel.core.refs import (
    Concrete,
    Fixed,
    Future,
    Reference,
    Stream,
    Sweetheart,
    Tombstone,
    Value,
)
from ciel.core.tasks import Needs
from ciel.execution.attempt import Growth
from ciel.execution.executor import BadArgumentsError, InputPath, Program, Talk, Task
from ciel.executors.conversation import BACKLOG_MAX, Conversation, Over
from ciel.executors.proc import ProcExecutor
from ciel.storage.files import FileStore, open_disk
from ciel.testing.builders import JOB, failed, inline, stored
from ciel.testing.fake_attempt import FakeAttempt
from ciel.testing.transcript import Transcript
from ciel.wire.calls import Call, encode_call
from ciel.wire.descriptors import make_task, read_arguments

HERE = "here:1"
NO, MAY_KEEP = {"keep_process": "no"}, {"keep_process": "may_keep"}
TEXT = b64encode(b"text").decode()
BAD_KEYS: list[Any] = [None, 1, True, [], {}]


def future(object_id: str) -> Future:
    return Future(ObjectId(object_id))


class Dialogue(Transcript):
    """A conversation about a task, and what was said by us."""

    def __init__(self, task: Task, store: FileStore, path: Path) -> None:
        super().__init__()
        self.store, self.path = store, path
        self.attempt = FakeAttempt(task, store, path, HERE)
        self.task_id = task.spec.id
        self.conversation = Conversation(self.attempt, self.say)

    @property
    def over(self) -> Over | None:
        return self.conversation.over

    def calls(self, *calls: tuple[str, Any]) -> list[Any]:
        """Call together; return what was said, all of which is of the same methods."""
        self.conversation.called([Call(*call) for call in calls])
        return self.take()

    def call(self, method: str, **args: Any) -> Any:
        """Call something that is answered at once and by one reply of the same name."""
        ((name, reply),) = self.calls((method, args))
        assert name == method
        encode_call(name, reply)  # a program can be told it
        return reply

    def silent(self, method: str, **args: Any) -> None:
        assert self.calls((method, args)) == []

    def fault(self) -> str:
        assert self.over is not None
        assert self.over.fault is not None
        reason, text = self.over.fault
        assert reason == "RUNTIME_ERROR"
        return str(text)

    def wrong(self, method: str, **args: Any) -> str:
        """Call what ends the task without a reply; return what is said of it."""
        assert self.calls((method, args)) == []
        return self.fault()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with open_disk({}, tmp_path / "store") as store:
        yield store


@pytest.fixture
def talk(
    task: Callable[..., Task], store: FileStore, tmp_path: Path
) -> Iterator[Callable[..., Dialogue]]:
    """Begin a conversation: inputs, then the names of outputs."""
    begun: list[Dialogue] = []

    def talk(*inputs: Reference, outputs: tuple[str, ...] = ("out",), **arguments: Any) -> Dialogue:
        made = task(arguments, *inputs, executor="proc", outputs=outputs)
        begun.append(Dialogue(made, store, tmp_path))
        return begun[-1]

    yield talk
    for one in begun:
        one.attempt.outputs.roll_back_all()


Begin = Callable[..., Dialogue]


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


# --- what is answered, and what is not ------------------------------------------------------------


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
    """Whoever answers one of these has its program take it for the answer to the next."""
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
    """The program holds what it was told long ago."""
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
    output = one.attempt.outputs.open_ones[0].path
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
    assert one.calls(("unknown", {})) == []  # behind the others
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
    one.conversation.over = Over(("RUNTIME_ERROR", "it was called off"))
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


# --- what programs get wrong ----------------------------------------------------------------------

WRONG: list[tuple[str, Any, str]] = [
    ("open_ref", {}, "its call of 'open_ref' lacks 'ref'"),
    ("open_ref_async", {"chunk_size": 1}, "lacks 'ref'"),
    ("open_ref_async", {"ref": future("x")}, "lacks 'chunk_size'"),
    ("wait_stream", {"bytes": 1}, "lacks 'id'"),
    ("wait_stream", {"id": "x"}, "lacks 'bytes'"),
    ("close_stream", {"chunk_size": 1}, "lacks 'id'"),
    ("spawn", {"command": "x"}, "lacks 'executor_name'"),
    ("tail_spawn", {"command": "x"}, "lacks 'executor_name'"),
    ("publish_string", {"str": TEXT}, "lacks 'index'"),
    ("publish_string", {"index": 0}, "lacks 'str'"),
    ("advert", {"index": 0}, "lacks 'size'"),
    ("advert", {"size": 0}, "lacks 'index'"),
    ("package_lookup", {}, "lacks 'key'"),
    ("log", {}, "lacks 'message'"),
    ("error", {}, "lacks 'report'"),
    ("exit", {}, "lacks 'keep_process'"),
    ("no_such_method", {}, "'no_such_method', which is no method of this protocol"),
    ("subscribe", {"index": 0}, "no method"),
    ("start_task", {}, "no method"),
    ("block", {}, "no method"),
    ("exit", "no", "the arguments of its 'exit' are no object"),
    ("exit", None, "no object"),
    ("exit", [], "no object"),
    ("open_ref", {"ref": "x"}, "'ref' is no reference"),
    ("open_ref", {"ref": ["f2", "x"]}, "'ref' is no reference"),
    ("open_ref", {"ref": None}, "'ref' is no reference"),
    ("open_ref_async", {"ref": future("x"), "chunk_size": "1"}, "'chunk_size' must be a number"),
    ("open_ref_async", {"ref": future("x"), "chunk_size": -1}, "'chunk_size' must be a number"),
    ("open_ref_async", {"ref": future("x"), "chunk_size": True}, "'chunk_size' must be a number"),
    ("open_ref_async", {"ref": inline("x"), "chunk_size": 1, "fd_socket_name": 5}, "be a text"),
    ("wait_stream", {"id": "x", "bytes": 1}, "not open as a stream"),
    *[("wait_stream", {"id": key, "bytes": 1}, "'id' must be a text") for key in BAD_KEYS],
    *[("close_stream", {"id": key}, "'id' must be a text") for key in BAD_KEYS],
    *[("package_lookup", {"key": key}, "'key' must be a text") for key in BAD_KEYS],
    *[("spawn", {"executor_name": key}, "'executor_name' must be a text") for key in BAD_KEYS],
    ("wait_stream", {"id": "x", "bytes": 1.5}, "'bytes' must be a number"),
    ("allocate_output", {"prefix": 1}, "'prefix' must be a text"),
    ("allocate_output", {"prefix": "a b"}, "'prefix' makes no name"),
    ("publish_string", {"index": 1, "str": TEXT}, "no output 1; the task has 1"),
    ("publish_string", {"index": -1, "str": TEXT}, "no output -1"),
    ("publish_string", {"index": "0", "str": TEXT}, "'index' must be the number of an output"),
    ("publish_string", {"index": 0.0, "str": TEXT}, "'index' must be the number of an output"),
    ("publish_string", {"index": 0, "str": "a$b="}, "'str' is not base64"),
    ("publish_string", {"index": 0, "str": "abc"}, "'str' is not base64"),
    ("publish_string", {"index": 0, "str": "dé=="}, "'str' is not base64"),
    ("publish_string", {"index": 0, "str": 5}, "'str' is not base64"),
    ("open_output", {"index": 1}, "no output 1"),
    ("open_output", {"may_pipe": True}, "'may_pipe' needs 'may_stream'"),
    ("close_output", {}, "output 0 is not open"),
    ("close_output", {"size": "5"}, "'size' must be a number of bytes"),
    ("rollback_output", {"index": 0}, "output 0 is not open"),
    ("advert", {"index": 0, "size": -1}, "'size' must be a number of bytes"),
    ("spawn", {"executor_name": "cobol"}, "there is no executor 'cobol' (there are: env, "),
    ("tail_spawn", {"executor_name": "cobol", "is_fixed": True}, "there is no executor 'cobol'"),
    ("tail_spawn", {"executor_name": "sync", "is_fixed": True}, "'sync' has no processes"),
    ("tail_spawn", {"executor_name": "proc", "is_fixed": True, "extra_dependencies": ["x"]},
     "'extra_dependencies' must be a list of references"),
    ("spawn", {"executor_name": "proc"}, "'command' must name a program"),
    ("spawn", {"executor_name": "proc", "command": "x", "n_extra_outputs": -1}, "0 to 10000"),
    ("spawn", {"executor_name": "proc", "command": "x", "force_n_outputs": 0}, "1 to 10000"),
    ("spawn", {"executor_name": "proc", "command": "x", "force_n_outputs": 10_001}, "1 to 10000"),
    ("spawn", {"executor_name": "proc", "command": "x", "extra_dependencies": 5}, "references"),
    ("spawn", {"executor_name": "proc", "command": "x", "any_dependencies": [1]},
     "'any_dependencies' must be a list of references"),
    ("tail_spawn",
     {"executor_name": "proc", "is_fixed": True, "extra_dependencies": [Future(ObjectId("x"))],
      "any_dependencies": [Future(ObjectId("x"))]},
     "x stands in 'extra_dependencies' and in 'any_dependencies'"),
    ("spawn", {"executor_name": "stdinout", "args": []}, "an object 'args'"),
    ("spawn", {"executor_name": "proc", "command": "x", "slots": "1"}, "'slots' must be a number"),
    ("spawn", {"executor_name": "proc", "command": "x", "slots": 0}, "slots must be 1 to 1024"),
    ("spawn", {"executor_name": "proc", "command": "x", "slots": -5}, "slots must be 1 to 1024"),
    ("spawn", {"executor_name": "proc", "command": "x", "timeout_s": -1}, "timeout_s must be"),
    ("spawn", {"executor_name": "proc", "command": "x", "retries": True}, "'retries' must be"),
    ("spawn", {"executor_name": "proc", "command": "x", "retry_on": "A"}, "must be a list of text"),
    ("spawn", {"executor_name": "proc", "command": "x", "retry_on": ["CANCELLED"]}, "cannot mend"),
    ("spawn", {"executor_name": "proc", "command": "x", "retry_delay_s": -1}, "retry_delay_s must"),
    ("tail_spawn", {"executor_name": "proc", "command": "x", "proc_pargs": [future("out")]},
     "one of its outputs is also its input"),
    ("exit", {"keep_process": "maybe"}, "no, may_keep or must_keep, not 'maybe'"),
    ("exit", {"keep_process": None}, "no, may_keep or must_keep"),
    ("exit", {"keep_process": []}, "no, may_keep or must_keep"),
    ("exit", {"keep_process": "must_keep"}, "'must_keep' needs a 'tail_spawn' with 'is_fixed'"),
    ("exit", {**MAY_KEEP, "soft_cache_keys": 5}, "'soft_cache_keys' must be a list"),
    ("exit", {**MAY_KEEP, "soft_cache_keys": [["x"]]}, "'soft_cache_keys' must be a list"),
    ("exit", {**MAY_KEEP, "soft_cache_keys": [[5, "tag"]]}, "'soft_cache_keys' must be a list"),
]  # fmt: skip


@pytest.mark.parametrize(
    "method, args, text", WRONG, ids=[f"{n}-{method}" for n, (method, _, _) in enumerate(WRONG)]
)
def test_what_a_program_gets_wrong_ends_its_task_with_a_reason(
    talk: Begin, method: str, args: Any, text: str
) -> None:
    one = talk()
    assert one.calls((method, args)) == []
    assert text in one.fault()
    assert method in one.fault()


def test_each_output_is_made_once(talk: Begin) -> None:
    twice: list[list[tuple[str, dict[str, Any]]]] = [
        [("publish_string", {"index": 0, "str": TEXT})] * 2,
        [("open_output", {"index": 0})] * 2,
        [("open_output", {}), ("publish_string", {"index": 0, "str": TEXT})],
        [("publish_string", {"index": 0, "str": TEXT}), ("open_output", {})],
        [("open_output", {}), ("close_output", {}), ("close_output", {})],
        [("open_output", {}), ("rollback_output", {}), ("close_output", {})],
    ]
    for calls in twice:
        one = talk()
        assert len(one.calls(*calls)) == len(calls) - 1
        assert "output 0" in one.fault()
        one.attempt.outputs.roll_back_all()


def test_what_was_said_to_be_written_must_be_there(talk: Begin) -> None:
    one = talk()
    Path(one.call("open_output")["filename"]).write_bytes(b"12")
    assert "said to have 3 bytes, 2 were written" in one.wrong("close_output", size=3)


def test_nothing_is_answered_after_a_fault(talk: Begin) -> None:
    one = talk()
    assert one.calls(("nonsense", {}), ("allocate_output", {}), ("exit", NO)) == []
    assert "'nonsense'" in one.fault()


def test_a_name_that_is_long_is_not_repeated_at_length(talk: Begin) -> None:
    one = talk()
    assert one.calls(("x" * 10_000, {})) == []
    assert len(one.fault()) < 200


# --- children -------------------------------------------------------------------------------------


def test_a_child_of_proc_is_a_bare_reference_and_others_are_a_list(talk: Begin) -> None:
    one = talk()

    def outputs(count: int, **keywords: Any) -> list[Future]:
        child = one.attempt.children[-1].spec
        assert len(child.outputs) == count
        return [Future(object_id) for object_id in child.outputs]

    spawn = {"executor_name": "proc", "command": "x"}
    assert [one.call("spawn", **spawn)] == outputs(1)
    assert [one.call("spawn", **spawn, force_n_outputs=1)] == outputs(1)
    assert one.call("spawn", **spawn, n_extra_outputs=1) == outputs(2)
    assert one.call("spawn", **spawn, force_n_outputs=3, n_extra_outputs=7) == outputs(3)
    for executor in ("stdinout", "env", "sync"):
        args = {"command_line": ["x"], "inputs": []}
        assert one.call("spawn", executor_name=executor, args=args) == outputs(1)
        assert one.call("spawn", executor_name=executor, args=args, n_outputs=1) == outputs(1)


@pytest.mark.parametrize("key", ["small_task", "scheduling_class", "scheduling_type"])
def test_hints_of_a_spawn_change_nothing(talk: Begin, key: str) -> None:
    with_hint, without = talk(), talk()
    spawn = {"executor_name": "proc", "command": "x"}
    assert with_hint.call("spawn", **spawn, **{key: True}) == without.call("spawn", **spawn)
    assert with_hint.attempt.children == without.attempt.children


def test_what_a_child_needs_is_asked_for_beside_its_arguments(talk: Begin) -> None:
    one = talk()
    needs = {
        "slots": 2, "memory_bytes": 1 << 20, "priority": -1, "timeout_s": 1.5, "retries": 3,
        "retry_on": ["TIMED_OUT"], "retry_delay_s": 2.5,
    }  # fmt: skip
    one.call("spawn", executor_name="proc", command="x", **needs)
    spec = one.attempt.children[0].spec
    assert spec.needs == Needs(**needs)._replace(retry_on=("TIMED_OUT",))  # type: ignore[arg-type]  # the values are of these types
    assert read_arguments(spec.payload) == {"command": "x"}


def test_a_childs_arguments_arrive_as_they_were_given(talk: Begin) -> None:
    one = talk(inline("x", b"content"))
    pargs = [1, {"a": [None, future("y")]}, inline("x", b"content")]
    one.call(
        "spawn", executor_name="proc", command=["c", "-v"], proc_pargs=pargs, proc_kwargs={"k": 1},
        extra_dependencies=[future("z")], other="left out",
    )  # fmt: skip
    child = one.attempt.children[0]
    assert read_arguments(child.spec.payload) == {
        "command": ["c", "-v"], "proc_pargs": pargs, "proc_kwargs": {"k": 1},
        "extra_dependencies": [future("z")],
    }  # fmt: skip
    assert sorted(child.spec.inputs) == ["x", "y", "z"]
    assert child.known == (inline("x", b"content"),)


def test_what_was_published_since_is_known_of_a_childs_arguments(talk: Begin) -> None:
    one = talk()
    index = one.call("allocate_output", prefix="part")["index"]
    made = one.call("publish_string", index=index, str=b64encode(b"x" * 5000).decode())["ref"]
    one.call("spawn", executor_name="proc", command="x", proc_pargs=[[future(made.id)]])
    assert one.attempt.children[0].known == (made,)


def test_children_are_named_by_their_order_and_arguments_alone(talk: Begin) -> None:
    def spawn(*commands: str) -> list[Any]:
        one = talk()
        return [one.call("spawn", executor_name="proc", command=c) for c in commands]

    first, second, third = spawn("a", "a", "b")
    assert spawn("a", "a", "b") == [first, second, third]
    assert len({first, second, third}) == 3
    assert spawn("b", "a")[1] == second
    assert spawn("b")[0] != third


def test_simple_tasks_with_the_same_arguments_are_done_once(talk: Begin) -> None:
    one = talk()
    args = {"command_line": ["date"], "inputs": []}
    first = one.call("spawn", executor_name="stdinout", args=args)
    assert one.call("spawn", executor_name="stdinout", args=args) == first


def test_a_tail_spawned_task_makes_the_outputs_of_its_parent(talk: Begin) -> None:
    one = talk(outputs=("a", "b"))
    one.call("allocate_output")
    one.silent("tail_spawn", executor_name="proc", command="x", force_n_outputs=1)
    assert one.attempt.children[0].spec.outputs == ("a", "b")
    one.silent("exit", keep_process="no")
    assert one.over == Over(None)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_outputs_are_handed_over_once(talk: Begin, first: bool, second: bool) -> None:
    one = talk()
    one.silent("tail_spawn", executor_name="proc", command="x", is_fixed=first)
    assert "already" in one.wrong("tail_spawn", executor_name="proc", command="y", is_fixed=second)


def test_a_child_looks_things_up_in_the_same_package(talk: Begin) -> None:
    package = inline("package", b"{}")
    one = talk(package, package_ref=package)
    one.call("spawn", executor_name="proc", command="x")
    one.call("spawn", executor_name="sync", args={"inputs": []})
    arguments = [read_arguments(child.spec.payload) for child in one.attempt.children]
    assert arguments == [{"command": "x", "package_ref": package}, {"args": {"inputs": []}}]


# --- packages -------------------------------------------------------------------------------------


def test_a_package_is_looked_up(talk: Begin) -> None:
    entries = {"a": {"__ref__": ["val", "entry", TEXT]}, "b": {"__ref__": ["c2", "e2", 5, [HERE]]}}
    package = inline("package", json.dumps(entries).encode())
    one = talk(package, package_ref=future("package"))
    found = one.call("package_lookup", key="a")
    assert found == {"value": Value(ObjectId("entry"), TEXT)}
    found = one.call("package_lookup", key="b")
    assert found == {"value": Concrete(ObjectId("e2"), 5, frozenset((HERE,)))}
    assert one.call("package_lookup", key="absent") == {"value": None}


def test_without_a_package_nothing_is_found(talk: Begin) -> None:
    one = talk()
    assert one.call("package_lookup", key="a") == {"value": None}


@pytest.mark.parametrize("content", [b"garbage", b'{"a": {"__ref__": ["f2", ""]}}'])
def test_a_package_that_cannot_be_read_ends_who_asks(talk: Begin, content: bytes) -> None:
    package = inline("package", content)
    one = talk(package, package_ref=package)
    assert "package of its job cannot be read" in one.wrong("package_lookup", key="a")


# --- the end --------------------------------------------------------------------------------------


def test_an_exit_says_what_the_program_is_ready_for(talk: Begin) -> None:
    one = talk()
    one.silent(
        "exit", keep_process="may_keep", soft_cache_keys=[[["a", "b"], "parsed"], [["c"], 1]]
    )
    assert one.over == Over(None, "may_keep", (frozenset(("a", "b")), frozenset("c")))


def test_a_program_that_waits_in_place_is_kept(talk: Begin) -> None:
    one = talk(outputs=("a", "b"))
    dependencies = [future("x"), future("y")]
    one.silent("tail_spawn", executor_name="proc", is_fixed=True, extra_dependencies=dependencies)
    one.silent("exit", keep_process="must_keep")
    assert one.over == Over(None, "must_keep")
    fixed = Fixed(ObjectId(f"{one.task_id}:fixed:0"), HERE)
    assert one.attempt.fixed == fixed.id
    assert list(one.attempt.outputs.published.values()) == [fixed]
    (child,) = one.attempt.children
    assert child.spec.outputs == ("a", "b")
    assert child.spec.inputs == (fixed.id, "x", "y")
    assert child.known == (fixed,)
    made = Task(child.spec, read_arguments(child.spec.payload), {}, one.attempt.task.executors)
    action = ProcExecutor().begin(made)
    assert isinstance(action, Talk)
    assert action.fixed == fixed.id


def test_a_child_may_wait_for_any_of_its_inputs(talk: Begin) -> None:
    one = talk()
    choice = [future("x"), future("y")]
    one.call(
        "spawn", executor_name="proc", command="c", proc_pargs=[future("x"), future("z")],
        any_dependencies=choice,
    )  # fmt: skip
    spec = one.attempt.children[0].spec
    assert (spec.needed, spec.alternatives) == (("z",), ("x", "y"))
    assert read_arguments(spec.payload)["any_dependencies"] == choice
    one.silent("tail_spawn", executor_name="proc", is_fixed=True, any_dependencies=choice)
    spec = one.attempt.children[1].spec
    assert (spec.needed, spec.alternatives) == ((one.attempt.fixed,), ("x", "y"))


def test_a_program_goes_on_with_the_needs_it_had(
    store: FileStore, tmp_path: Path, task: Callable[..., Task]
) -> None:
    needs = Needs(slots=2, memory_bytes=1 << 30)
    spec, _ = make_task(
        job=JobId(JOB), parent=JOB, ordinal=0, executor="proc", arguments={}, needs=needs
    )
    one = Dialogue(task({})._replace(spec=spec), store, tmp_path)
    one.silent("tail_spawn", executor_name="proc", is_fixed=True)
    assert one.attempt.children[0].spec.needs == needs


@pytest.mark.parametrize(
    "report, text",
    [
        ("a text\nof two lines", "a text\nof two lines"),
        ({"why": [1, None]}, '{"why":[1,null]}'),
        (None, "null"),
        ({"of": future("x")}, '{"of":{"__ref__":["f2","x"]}}'),
    ],
    ids=["text", "object", "null", "reference"],
)
def test_a_program_reports_its_own_failure(talk: Begin, report: Any, text: str) -> None:
    one = talk()
    assert one.wrong("error", report=report) == text


def test_a_program_that_goes_on_talking_after_its_exit_is_not_kept(talk: Begin) -> None:
    """Its task is done all the same: had it spoken later, nobody would have listened."""
    for end in (NO, MAY_KEEP):
        one = talk()
        assert one.calls(("exit", end), ("log", {"message": "late"})) == []
        assert one.over == Over(None, "no")
        assert one.attempt.logged == []


def test_what_comes_after_an_error_does_not_hide_it(talk: Begin) -> None:
    one = talk()
    assert one.calls(("error", {"report": "the reason"}), ("exit", NO)) == []
    assert one.fault() == "the reason"


def test_a_line_of_the_log_is_text_whatever_it_was(talk: Begin) -> None:
    one = talk()
    for message in ("text", 5, None):
        one.silent("log", message=message)
    assert one.attempt.logged == ["text", "5", "None"]


@pytest.mark.parametrize("ref", [Tombstone(ObjectId("x"), frozenset((HERE,)))], ids=type)
def test_a_reference_that_stands_for_nothing_would_block(talk: Begin, ref: Reference) -> None:
    one = talk()
    assert one.call("open_ref", ref=ref) == {"error": "EWOULDBLOCK"}
