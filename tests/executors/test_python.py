"""Calls of functions, as the executor and its conversation see them."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest

from ciel.core.events import RECALLED, TaskFault
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Fixed, Future, Value
from ciel.core.tasks import Needs
from ciel.execution.executor import BadArgumentsError, Fail, Finish, Talk, Task
from ciel.executors.programs.python import start
from ciel.executors.python import PythonExecutor
from ciel.executors.python_calls import PythonConversation
from ciel.python.contents import MOVED, decode
from ciel.python.packing import unpack
from ciel.shm.credentials import socket_of_worker
from ciel.storage.files import FileStore, open_disk
from ciel.testing.builders import a_task, failed, inline, stored
from ciel.testing.fake_attempt import FakeAttempt
from ciel.wire.calls import Call
from ciel.wire.descriptors import read_arguments
from ciel_tests.scenes.transcript import Transcript

PYTHON = PythonExecutor()
HERE = "here:1"
TEXT = b64encode(b"text").decode()


def task_of(
    arguments: dict[str, Any], *inputs: Any, outputs: tuple[str, ...] = ("a", "b"), attempt: int = 1
) -> Task:
    spec = a_task(*outputs, inputs=[ref.id for ref in inputs], executor="python")
    known = {ref.id: ref for ref in inputs}
    return Task(spec, arguments, known, {"python": PYTHON}, attempt=attempt)


def talk_of(task: Task) -> Talk:
    action = PYTHON.begin(task)
    assert isinstance(action, Talk)
    return action


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with open_disk({}, tmp_path / "store") as store:
        yield store


class Dialogue(Transcript):
    """A conversation about a task, and the calls that the executor sent."""

    def __init__(self, task: Task, store: FileStore, path: Path) -> None:
        super().__init__()
        self.attempt = FakeAttempt(task, store, path, HERE)
        self.conversation = PythonConversation(self.attempt, self.say)

    def call(self, method: str, **args: Any) -> list[tuple[str, Any]]:
        self.conversation.called([Call(method, args)])
        return self.take()

    def fault(self) -> tuple[str, Any]:
        over = self.conversation.over
        assert over is not None
        assert over.fault is not None
        return over.fault


@pytest.fixture
def dialogue(store: FileStore, tmp_path: Path) -> Dialogue:
    return Dialogue(task_of({"calls": TEXT, "inputs": []}), store, tmp_path)


# --- beginning ------------------------------------------------------------------------------------


def test_a_task_without_inputs_is_told_what_its_maker_wrote() -> None:
    task = task_of({"calls": TEXT, "inputs": []})
    assert talk_of(task).encoded == task.spec.payload


def test_a_task_is_told_its_inputs_as_they_are_known_now() -> None:
    value = inline("x")
    talk = talk_of(task_of({"calls": TEXT, "inputs": [Future(value.id)]}, value))
    assert talk.arguments == {"calls": TEXT, "inputs": [value], "attempt": 1}


def test_another_attempt_is_told_that_it_is_one() -> None:
    talk = talk_of(task_of({"calls": TEXT, "inputs": []}, attempt=2))
    assert (talk.arguments["attempt"], talk.encoded) == (2, None)


def test_programs_of_each_interpreter_are_of_a_kind() -> None:
    ours = talk_of(task_of({"calls": TEXT}))
    other = talk_of(task_of({"calls": TEXT, "python": "/usr/bin/python3"}))
    assert ours.program.argv[0] == sys.executable
    assert other.program.argv[0] == "/usr/bin/python3"
    assert ours.kind != other.kind
    assert ours.program.env == {"PYTHONHASHSEED": "0"}


def test_what_interpreters_are_told_is_what_the_package_requires() -> None:
    required = ".".join(map(str, start._OLDEST))
    assert metadata("ciel")["Requires-Python"] == f">={required}"


def test_a_process_that_waits_goes_on_with_what_it_waited_for_in_its_order() -> None:
    fixed, one, other = Fixed(ObjectId("f"), HERE), inline("x"), inline("y")
    arguments = {
        "fixed": fixed,
        "extra_dependencies": [Future(other.id)],
        "any_dependencies": [Future(one.id), Future(ObjectId("z"))],
    }
    talk = talk_of(task_of(arguments, fixed, one, other))
    assert talk.fixed == "f"
    assert talk.arguments == {"inputs": [other, one, Future(ObjectId("z"))]}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"calls": 7},
        {"calls": TEXT, "inputs": "x"},
        {"calls": TEXT, "inputs": ["x"]},
        {"calls": TEXT, "python": 7},
        {"calls": TEXT, "python": "bin/python"},
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadArgumentsError):
        PYTHON.begin(task_of(arguments))


def test_what_is_forwarded_is_the_same_content_if_that_is_small() -> None:
    value = inline("x", b"content")
    assert PYTHON.begin(task_of({"forward": Future(value.id)}, value)) == Finish({0: b"content"})


@pytest.mark.parametrize("place", [None, 3])
def test_what_is_forwarded_and_large_or_one_of_many_is_said_to_be_elsewhere(place: Any) -> None:
    ref: Any = inline("x") if place else stored("x", HERE)
    action = PYTHON.begin(task_of({"forward": Future(ref.id), "place": place}, ref))
    assert isinstance(action, Finish)
    (outcome,) = decode(action.contents[0]).outcomes
    array, found_place, is_raw = unpack(outcome.packed.head)
    assert (outcome.kind, array[1], found_place, is_raw) == (MOVED, "x", place or 0, False)


def test_a_failure_is_forwarded_with_what_was_raised() -> None:
    details = {"text": "it broke", "error": "packed"}
    ref = failed("x", "RAISED")._replace(details=details)
    action = PYTHON.begin(task_of({"forward": Future(ref.id)}, ref))
    assert isinstance(action, Fail)
    assert action.reason == "DEPENDENCY_FAILED"
    assert action.details["error"] == "packed"
    assert action.details["text"].endswith("failed (RAISED): it broke")


# --- talking --------------------------------------------------------------------------------------


def test_inputs_in_the_store_are_told_before_the_task(store: FileStore, tmp_path: Path) -> None:
    store.put("x", b"content")
    ref = stored("x", HERE)
    told = Dialogue(task_of({"calls": TEXT, "inputs": [ref]}, ref, inline("y")), store, tmp_path)
    ((method, args),) = told.take()
    assert (method, args["id"]) == ("input", "x")
    assert Path(args["filename"]).read_bytes() == b"content"


def test_an_input_that_comes_late_is_told_when_the_program_asks(
    store: FileStore, tmp_path: Path
) -> None:
    """Its path must not come between a call and its reply: the program would end."""
    store.put("x", b"content")
    ref = stored("x", HERE)
    said = Transcript()
    attempt = FakeAttempt(task_of({"calls": TEXT, "inputs": [ref]}, ref), store, tmp_path, HERE)
    attempt.is_slow = True
    told = PythonConversation(attempt, said.say)
    attempt.go_on()
    assert not said.take()
    told.called([Call("open_ref", {"ref": ref})])
    attempt.go_on()
    ((method, args),) = said.take()
    assert method == "open_ref"
    assert Path(args["filename"]).read_bytes() == b"content"


def test_what_the_program_has_at_hand_is_not_opened(store: FileStore, tmp_path: Path) -> None:
    ref = stored("x", HERE)
    said = Transcript()
    attempt = FakeAttempt(task_of({"calls": TEXT, "inputs": [ref]}, ref), store, tmp_path, HERE)
    attempt.at_hand = frozenset(("x",))
    PythonConversation(attempt, said.say)
    assert said.take() == []


def test_exit_publishes_what_outputs_hold(dialogue: Dialogue) -> None:
    values = [[1, b64encode(b"one").decode()], [0, b64encode(b"zero").decode()]]
    assert dialogue.call("exit", keep_process="may_keep", values=values) == []
    assert dialogue.attempt.outputs.published == {1: inline("b", b"one"), 0: inline("a", b"zero")}


def test_exit_with_no_base64_is_a_fault(dialogue: Dialogue) -> None:
    dialogue.call("exit", keep_process="may_keep", values=[[0, "!"]])
    assert "not base64" in dialogue.fault()[1]


def test_an_error_says_where_it_was_and_publishes_nothing(dialogue: Dialogue) -> None:
    dialogue.call("error", reason="RAISED", report={"text": "no", "error": "packed"})
    dialogue.call("exit", keep_process="may_keep", values=[[0, TEXT]])
    reason, details = dialogue.fault()
    assert (reason, details["text"], details["error"]) == ("RAISED", "no", "packed")
    assert details["where"].startswith("in task ")
    assert dialogue.attempt.outputs.published == {}
    assert dialogue.conversation.over is not None
    assert dialogue.conversation.over.keep == "may_keep"


def test_an_output_can_be_written_at_another_worker(dialogue: Dialogue) -> None:
    ((_, reply),) = dialogue.call("open_output", index=0, at="other:1")
    assert reply == {"filename": None, "id": "a", "socket": socket_of_worker("test", "other:1")}
    dialogue.call("close_output", index=0, size=5000)
    ref = dialogue.attempt.outputs.published[0]
    assert ref == Concrete(ObjectId("a"), 5000, frozenset({"other:1"}))


def test_an_output_that_is_wanted_here_is_written_here(dialogue: Dialogue) -> None:
    ((_, reply),) = dialogue.call("open_output", index=0, at=dialogue.attempt.netloc)
    assert reply["filename"]


def test_the_address_of_a_worker_is_a_text(dialogue: Dialogue) -> None:
    dialogue.call("open_output", index=0, at=5)
    assert "'at' must be the address of a worker, not 5" in dialogue.fault()[1]


def test_children_are_known_by_number_together_with_what_was_put(dialogue: Dialogue) -> None:
    dialogue.call("spawn", calls=TEXT, wanted=True, name="first", retries=2)
    dialogue.call("put", value=b64encode(b"put").decode())
    dialogue.call("spawn", calls=TEXT, inputs=[1, 0, {"output": 1}])
    first, second = dialogue.attempt.children
    assert dialogue.attempt.wanted == [first]
    assert (first.spec.name, first.spec.needs) == ("first", Needs(retries=2))
    by_id, made, own = read_arguments(second.spec.payload)["inputs"]
    assert (made.id, own.id) == (first.spec.outputs[0], "b")
    ((_, reply),) = dialogue.call("made", items=[0, 1])
    assert reply["refs"][0] == made
    put = reply["refs"][1]
    assert (put.content, put.id) == (b"put", by_id.id)


@pytest.mark.parametrize("item", [7, -1, "x", None, {"output": 9}, True])
def test_what_was_never_made_is_no_input(dialogue: Dialogue, item: Any) -> None:
    dialogue.call("spawn", calls=TEXT, inputs=[item])
    assert dialogue.fault()[0] == "RUNTIME_ERROR"
    assert dialogue.attempt.children == []


def test_children_run_in_the_interpreter_of_their_parent(store: FileStore, tmp_path: Path) -> None:
    parent = task_of({"calls": TEXT, "inputs": [], "python": "/opt/python"})
    dialogue = Dialogue(parent, store, tmp_path)
    dialogue.call("spawn", calls=TEXT)
    dialogue.call("spawn", calls=TEXT, python="/usr/bin/python3")
    said = [read_arguments(child.spec.payload)["python"] for child in dialogue.attempt.children]
    assert said == ["/opt/python", "/usr/bin/python3"]


def test_a_lot_is_handed_over_with_its_output(dialogue: Dialogue) -> None:
    dialogue.call("spawn", calls=TEXT, takes=[1])
    (child,) = dialogue.attempt.children
    assert child.spec.outputs == ("b",)
    dialogue.call("spawn", calls=TEXT, takes=[1])
    assert "cannot take over" in dialogue.fault()[1]


def test_a_large_object_is_written_by_name(dialogue: Dialogue, store: FileStore) -> None:
    ((_, reply),) = dialogue.call("create", size=5000, digest="d" * 32)
    Path(reply["filename"]).write_bytes(bytes(5000))
    dialogue.call("close_output", index=reply["index"], size=5000)
    ((_, made),) = dialogue.call("made", items=[0])
    assert store.get(made["refs"][0].id) == bytes(5000)


@pytest.mark.parametrize("size", [-1, "x", 1.5, True])
def test_a_size_is_a_number(dialogue: Dialogue, size: Any) -> None:
    dialogue.call("create", size=size, digest="d" * 32)
    assert "'size'" in dialogue.fault()[1]


def test_who_waits_wants_the_others_as_long(dialogue: Dialogue) -> None:
    for _ in range(3):
        dialogue.call("spawn", calls=TEXT)
    dialogue.call("tail_spawn", is_fixed=True, needed=[1], others=[0, 2])
    *others, going_on = [child.spec for child in dialogue.attempt.children]
    assert going_on.sees_errors
    *choice, there = going_on.alternatives
    assert choice == [others[0].outputs[0], others[2].outputs[0]]
    assert there not in choice  # this object exists, so the task need not wait for the alternatives
    assert others[1].outputs[0] in going_on.needed


def test_who_waits_for_the_first_of_several_chooses_among_them(dialogue: Dialogue) -> None:
    for _ in range(2):
        dialogue.call("spawn", calls=TEXT)
    dialogue.call("tail_spawn", is_fixed=True, needed=[], others=[0, 1])
    *others, going_on = [child.spec for child in dialogue.attempt.children]
    assert list(going_on.alternatives) == [other.outputs[0] for other in others]


def test_a_result_is_handed_on_by_a_task_without_a_program(dialogue: Dialogue) -> None:
    dialogue.call("spawn", calls=TEXT)
    dialogue.call("tail_spawn", forward=0, place=2)
    child, heir = dialogue.attempt.children
    arguments = read_arguments(heir.spec.payload)
    assert (arguments["forward"].id, arguments["place"]) == (child.spec.outputs[0], 2)
    assert heir.spec.outputs == ("a", "b")


def test_room_and_what_is_known_are_told(dialogue: Dialogue, store: FileStore) -> None:
    assert dialogue.call("room") == [("room", {"slots": 1})]
    dialogue.attempt.slots_free = None
    assert dialogue.call("room") == [("room", {"slots": None})]
    dialogue.call("spawn", calls=TEXT)
    child = dialogue.attempt.children[0].spec.outputs[0]
    assert dialogue.call("look", items=[0]) == [("look", {"refs": [Future(child)]})]
    store.put(child, bytes(2000))
    ((_, reply),) = dialogue.call("look", items=[0])
    assert not isinstance(reply["refs"][0], Future | Value)


# --- parts of inputs ------------------------------------------------------------------------------

PARTS = [[0, 10], [3000, 2000]]


def conversation_about(
    *inputs: Concrete, store: FileStore, path: Path, apart_count: int
) -> Dialogue:
    task = task_of({"calls": TEXT, "inputs": list(inputs)}, *inputs)
    spec = task.spec._replace(apart_count=apart_count)
    return Dialogue(task._replace(spec=spec), store, path)


def test_inputs_of_other_hosts_are_opened_in_parts(store: FileStore, tmp_path: Path) -> None:
    x, y = stored("x", "there:1"), stored("y", HERE)
    store.put("x", bytes(5000))
    store.put("y", bytes(5000))
    dialogue = conversation_about(x, y, store=store, path=tmp_path, apart_count=2)
    assert [args["id"] for method, args in dialogue.take() if method == "input"] == ["y"]
    dialogue.attempt.is_slow = True
    assert dialogue.call("parts", items=[[x, PARTS], [y, []]]) == []
    dialogue.attempt.go_on()
    reply = [str(tmp_path / "x"), str(tmp_path / "y")]
    assert dialogue.take() == [("parts", {"filenames": reply})]
    assert dialogue.attempt.parts == [("x", [(0, 10), (3000, 2000)]), ("y", [])]


@pytest.mark.parametrize("items", [
    [], 5, [5], [[5, []]], [[stored("x"), 5]], [[stored("x"), [5]]], [[stored("x"), [[0, 5001]]]],
    [[stored("x"), [[-1, 5]]]], [[stored("x"), [[0, 0]]]], [[stored("x"), [[0.5, 1]]]],
])  # fmt: skip
def test_wrong_parts_end_the_task(items: Any, store: FileStore, tmp_path: Path) -> None:
    x = stored("x", "there:1")
    dialogue = conversation_about(x, store=store, path=tmp_path, apart_count=1)
    dialogue.call("parts", items=items)
    assert "its call of 'parts' is wrong" in dialogue.fault()[1]
    assert dialogue.attempt.parts == []


def test_a_child_may_read_inputs_in_parts(dialogue: Dialogue) -> None:
    x, y = Future(ObjectId("x")), Future(ObjectId("y"))
    dialogue.call("spawn", inputs=[x, y], calls=TEXT, apart=[1])
    (child,) = dialogue.attempt.children
    assert (child.spec.apart, child.spec.needed) == (("y",), ("y", "x"))


@pytest.mark.parametrize("apart", [5, [1], [-1], ["x"], [0.0]])
def test_wrong_numbers_of_inputs_end_the_task(apart: Any, dialogue: Dialogue) -> None:
    x = Future(ObjectId("x"))
    dialogue.call("spawn", inputs=[x], calls=TEXT, apart=apart)
    assert "'apart' must be a list of numbers of inputs" in dialogue.fault()[1]


DIED = TaskFault("RUNTIME_ERROR", "it ended with exit status 3 before it called 'exit'")


def test_a_death_is_told_of_the_task_and_not_of_its_program(dialogue: Dialogue) -> None:
    assert dialogue.conversation.subject.startswith("in task ")
    fault = dialogue.conversation.died(DIED, "ended with exit status 3")
    assert fault == TaskFault("RUNTIME_ERROR", "its process ended with exit status 3")


@pytest.mark.parametrize("attempt, reason", [(1, RECALLED), (2, "RUNTIME_ERROR")])
def test_who_dies_of_what_others_could_have_run_runs_again_once(
    store: FileStore, tmp_path: Path, attempt: int, reason: str
) -> None:
    dialogue = Dialogue(task_of({"calls": TEXT, "inputs": []}, attempt=attempt), store, tmp_path)
    dialogue.call("within")
    assert dialogue.conversation.died(DIED, "was killed by SIGKILL").reason == reason


def test_a_child_form_has_what_is_meant_for_children(task: Callable[..., Task]) -> None:
    form = PYTHON.child_form({"calls": TEXT, "n_outputs": 3, "sees_errors": True, "other": 1})
    assert (form.arguments, form.n_outputs, form.memoise) == ({"calls": TEXT}, 3, False)
    assert form.sees_errors
