"""The `java2` executor: starting a JVM, keeping it for later tasks, and answering its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.core.events import TaskFault
from ciel.core.ids import ObjectId
from ciel.core.refs import (
    Concrete,
    Failure,
    Fixed,
    Future,
    Piped,
    Reference,
    SocketStream,
    Stream,
    Sweetheart,
    Tombstone,
)
from ciel.core.tasks import Needs
from ciel.execution.executor import BadArgumentsError, Talk, Task
from ciel.executors.jvm import JAVA_SDK
from ciel.executors.loaders import JAVA_SOURCE
from ciel.original import java2 as module
from ciel.original.java2 import Java2Executor
from ciel.original.java2_calls import MAIN_CLASS, readable
from ciel.storage.files import open_disk
from ciel.testing.builders import inline, stored
from ciel.testing.fake_attempt import FakeAttempt
from ciel.wire.calls import Call
from ciel_tests.scenes.transcript import Transcript

X = ObjectId("x")
MakeTask = Callable[..., Task]
JARS = [stored("bindings", "w1:8001"), stored("app", "w1:8001")]


@pytest.fixture
def java2(tmp_path: Path) -> Java2Executor:
    (tmp_path / "java").touch(0o755)
    executor = Java2Executor()
    assert executor.missing({"PATH": str(tmp_path)}) == ""
    return executor


def begun(executor: Java2Executor, task: Task) -> Talk:
    action = executor.begin(task)
    assert isinstance(action, Talk)
    return action


def test_a_jvm_is_started_with_copies_of_its_jars(
    java2: Java2Executor, task: MakeTask, tmp_path: Path
) -> None:
    arguments = {"jar_lib": JARS, "class_name": "B", "args": ["1"], "n_outputs": 2, "junk": 1}
    talk = begun(java2, task(arguments, *JARS))
    jars = f"jars/0.jar:jars/1.jar:{JAVA_SDK}"  # bindings among the jars come before the SDK
    assert talk.program.argv == (f"{tmp_path}/java", "-Xmx2048M", "-cp", jars, MAIN_CLASS)
    assert talk.program.files == {"jars/0.jar": "bindings", "jars/1.jar": "app"}
    assert talk.arguments == {
        "jar_lib": JARS, "class_name": "B", "args": ["1"], "proc_pargs": [], "proc_kwargs": {},
    }  # fmt: skip


def test_a_jvm_is_kept_for_the_same_jars_only(java2: Java2Executor, task: MakeTask) -> None:
    def kind(*jars: Reference) -> str:
        return begun(java2, task({"jar_lib": [*jars], "class_name": "B"}, *jars)).kind

    assert kind(*JARS) == kind(*JARS)
    assert len({kind(*JARS), kind(*JARS[1:]), kind(*JARS, stored("more", "w1:8001"))}) == 3


def test_a_limit_of_memory_bounds_the_heap(java2: Java2Executor, task: MakeTask) -> None:
    made = task({"jar_lib": JARS, "class_name": "B"}, *JARS)
    made = made._replace(spec=made.spec._replace(needs=Needs(memory_bytes=100 << 20)))
    argv = begun(java2, made).program.argv
    assert argv[1:3] == ("-Xmx2048M", "-Xmx75M"), "the last one counts"


def test_a_task_that_waits_in_place_needs_no_jars(java2: Java2Executor, task: MakeTask) -> None:
    fixed = Fixed(ObjectId("fixed"), "w1:8001")
    talk = begun(java2, task({"fixed": fixed, "extra_dependencies": [inline("y")]}))
    assert (talk.fixed, talk.arguments["id"]) == ("fixed", "fixed")


def test_without_any_jar_there_is_no_class(java2: Java2Executor, task: MakeTask) -> None:
    with pytest.raises(BadArgumentsError, match="send the jar with the class"):
        java2.begin(task({"class_name": "B"}))


READABLE = [
    Future(X),
    inline("x"),
    Concrete(X, 0, frozenset()),
    Concrete(X, 5, frozenset(("host:32767", "10.0.0.1:80"))),
    Sweetheart(X, "host:8001", 5, frozenset(("host:8001",))),
    Stream(X, frozenset(("host:8001",))),
]
UNREADABLE = [
    Concrete(X, None, frozenset(("host:8001",))),
    Concrete(X, 5, frozenset(("host:8001", "host:32768"))),
    Concrete(X, 5, frozenset(("[::1]:8001",))),
    Sweetheart(X, "host:40000", 5, frozenset(("host:8001",))),
    Sweetheart(X, "host:8001", None, frozenset(("host:8001",))),
    Stream(X, frozenset()),
    SocketStream(X, "host:8001", 9001),
    Fixed(X, "host:8001"),
    Failure(X, "RUNTIME_ERROR", "no"),
    Tombstone(X, frozenset(("host:8001",))),
    Piped(X),
]


@pytest.mark.parametrize("ref", READABLE, ids=lambda ref: type(ref).__name__)
def test_what_the_java_side_can_read_it_is_told(ref: Reference) -> None:
    assert readable({"refs": [ref]}) == {"refs": [ref]}


@pytest.mark.parametrize("ref", UNREADABLE, ids=lambda ref: type(ref).__name__)
def test_what_it_would_throw_at_is_told_as_a_future(ref: Reference) -> None:
    assert readable({"a": [{"b": ref}], "c": "text"}) == {"a": [{"b": Future(X)}], "c": "text"}


@pytest.fixture
def attempt(task: MakeTask, tmp_path: Path) -> Iterator[FakeAttempt]:
    with open_disk({}, tmp_path / "store") as store:
        made = task({"jar_lib": JARS, "class_name": "B"}, *JARS, executor="java2")
        attempt = FakeAttempt(made, store, tmp_path, "here:40000")
        yield attempt
        attempt.outputs.roll_back_all()


def test_what_it_published_at_a_high_port_it_is_told_as_a_future(
    java2: Java2Executor, attempt: FakeAttempt
) -> None:
    said = Transcript()
    conversation = java2.converse(attempt, said.say)
    conversation.called([Call("open_output", {"index": 0})])
    ((_, opened),) = said.take()
    Path(opened["filename"]).write_bytes(b"x" * 2000)
    conversation.called([Call("close_output", {"index": 0, "size": 2000})])
    assert said.take() == [("close_output", {"ref": Future(attempt.outputs.ids[0])})]
    assert isinstance(attempt.outputs.published[0], Concrete)


def test_jars_draw_no_tasks_to_where_the_first_one_ran(
    java2: Java2Executor, attempt: FakeAttempt
) -> None:
    attempt.path_of_all = "a path"
    said = Transcript()
    call = [Call("open_ref", {"ref": JARS[0], "make_sweetheart": True})]
    java2.converse(attempt, said.say).called(call)
    assert said.take() == [("open_ref", {"filename": "a path"})]
    assert attempt.preferred == []


def test_a_jvm_that_ends_at_once_names_the_missing_sdk(
    java2: Java2Executor, attempt: FakeAttempt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fault = TaskFault("PROGRAM_FAILED", "java ended with exit status 1")
    for sdk, is_missing in ((JAVA_SOURCE, False), (tmp_path / "absent.jar", True)):
        monkeypatch.setattr(module, "JAVA_SDK", sdk)
        assert java2.missing({"PATH": str(tmp_path)}) == ""
        ended = java2.converse(attempt, Transcript().say).died(fault, "ended")
        assert (f"are bindings, with {MAIN_CLASS}, among the jars" in ended.details) == is_missing


def test_a_spawn_names_a_class_or_an_object(java2: Java2Executor) -> None:
    keywords = {"jar_lib": JARS, "object_ref": Future(X), "extra_dependencies": [Future(X)]}
    form = java2.child_form({**keywords, "n_outputs": 3, "args": None, "foo": 1})
    assert form.arguments == keywords | {"n_outputs": 3}
    assert (form.n_outputs, form.memoise, form.as_list) == (3, True, True)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "java2 needs either 'class_name' or a reference 'object_ref'"),
    ({"class_name": "B", "object_ref": Future(X)}, "either 'class_name' or"),
    ({"class_name": ""}, "either 'class_name' or"),
    ({"object_ref": "x"}, "either 'class_name' or"),
    ({"class_name": "B", "args": "x"}, "'args' must be a list"),
    ({"class_name": "B", "jar_lib": ["x"]}, "'jar_lib' must be a list of references to jars"),
    ({"class_name": "B", "n_outputs": 0}, "the number of outputs must be 1 to"),
]


@pytest.mark.parametrize("keywords, words", BAD, ids=str)
def test_bad_keywords_are_named(java2: Java2Executor, keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArgumentsError) as caught:
        java2.child_form(keywords)
    assert words in str(caught.value)
