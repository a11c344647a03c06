"""The `swi` executor: messages to its program, arguments of a spawn, and the calls about children
that run within the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.core.ids import ObjectId
from ciel.core.refs import INLINE_MAX_BYTES, Future, Value
from ciel.core.tasks import Needs
from ciel.execution.conversation import Over
from ciel.execution.executor import BadArgumentsError, Talk, Task
from ciel.executors.nested import NestedConversation
from ciel.executors.skywriting import SwiExecutor
from ciel.executors.stdinout import StdinoutExecutor
from ciel.storage.files import open_disk
from ciel.testing.builders import inline
from ciel.testing.fake_attempt import FakeAttempt
from ciel.wire.calls import Call
from ciel.wire.descriptors import read_arguments
from ciel_tests.scenes.transcript import Transcript

MakeTask = Callable[..., Task]
SWI = SwiExecutor()
SCRIPT = Future(ObjectId("script"))
WARM = {"keep_process": "may_keep"}


def told(task: Task) -> dict[str, Any]:
    action = SWI.begin(task)
    assert isinstance(action, Talk)
    assert action.program.argv[-1] == "ciel.executors.programs.skywriting"
    assert action.kind == "swi"
    return dict(action.arguments)


# --- messages to the program ----------------------------------------------------------------------


def test_a_script_is_told_with_what_it_finds_around_it(task: MakeTask) -> None:
    arguments = {
        "swfile_ref": SCRIPT, "start_env": {"N": "5"}, "start_args": ["a"], "package_ref": SCRIPT,
        "sw_file_name": "job.sw",
    }  # fmt: skip
    script = inline("script")
    assert told(task(arguments, script)) == arguments | {
        "ret_output": 0, "proc_pargs": [], "proc_kwargs": {}, "inputs": [script],
        "may_run_children": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "arguments, key",
    [
        ({"sw_file_ref": SCRIPT}, "swfile_ref"),
        ({"cont_ref": SCRIPT}, "cont"),
        ({"cont_text": "{}"}, "cont_text"),
    ],
)
def test_what_is_run_is_told_as_the_original_did(
    task: MakeTask, arguments: dict[str, Any], key: str
) -> None:
    (value,) = arguments.values()
    assert told(task(arguments))[key] == value


def test_a_program_is_told_whether_children_may_run_within_it(task: MakeTask) -> None:
    chosen = task({"swfile_ref": SCRIPT})._replace(may_run_children=True)
    assert told(chosen)["may_run_children"] is True


@pytest.mark.parametrize("session", [None, SCRIPT])
def test_an_entry_of_a_prompt_is_told_what_the_one_before_it_left(
    task: MakeTask, session: Future | None
) -> None:
    arguments = {"sw_file_ref": SCRIPT, "session_ref": session}
    assert told(task(arguments, outputs=("value", "left")))["session"] == {"ref": session}


@pytest.mark.parametrize(
    "arguments",
    [{}, {"swfile_ref": "script"}, {"cont_ref": 5}, {"cont_text": "x" * 1024}, {"cont_text": 5}],
)
def test_a_task_without_a_script_is_refused(task: MakeTask, arguments: dict[str, Any]) -> None:
    with pytest.raises(BadArgumentsError, match=r"cont|reference"):
        SWI.begin(task(arguments))


# --- what a spawn may say -------------------------------------------------------------------------


def test_a_spawn_keeps_what_belongs_to_the_script(task: MakeTask) -> None:
    keywords = {
        "sw_file_ref": SCRIPT, "start_env": {"N": "5"}, "start_args": [1], "small_task": True,
        "sw_file_name": "job.sw", "extra_dependencies": [Future(ObjectId("d"))],
    }  # fmt: skip
    form = SWI.child_form(keywords)
    assert form.arguments == {
        "swfile_ref": SCRIPT, "start_env": {"N": "5"}, "start_args": [1], "sw_file_name": "job.sw",
        "extra_dependencies": [Future(ObjectId("d"))],
    }  # fmt: skip
    assert (form.n_outputs, form.as_list, form.memoise, form.sees_errors) == (1, False, False, True)


def test_a_continuation_may_wait_for_one_of_several(task: MakeTask) -> None:
    choice = [Future(ObjectId("a")), Future(ObjectId("b"))]
    form = SWI.child_form({"cont_ref": SCRIPT, "any_dependencies": choice})
    assert form.any_of == tuple(choice)
    assert form.arguments["any_dependencies"] == choice


def test_an_entry_of_a_prompt_has_two_outputs() -> None:
    assert SWI.child_form({"cont_text": "{}", "session_ref": None}).n_outputs == 2


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"sw_file_ref": None},
        {"sw_file_ref": SCRIPT, "start_env": {"N": 5}},
        {"sw_file_ref": SCRIPT, "start_env": []},
        {"sw_file_ref": SCRIPT, "start_args": {}},
        {"sw_file_ref": SCRIPT, "session_ref": "x"},
        {"sw_file_ref": SCRIPT, "n_outputs": 2},
        {"sw_file_ref": SCRIPT, "extra_dependencies": ["x"]},
    ],
)
def test_a_spawn_that_makes_no_sense_is_refused(keywords: dict[str, Any]) -> None:
    with pytest.raises(BadArgumentsError):
        SWI.child_form(keywords)


# --- the conversation -----------------------------------------------------------------------------


class Dialogue(Transcript):
    """A conversation about a task in whose program children may run."""

    def __init__(self, task: Task, store: Any, path: Path) -> None:
        super().__init__()
        self.attempt = FakeAttempt(task, store, path)
        self.conversation = NestedConversation(self.attempt, self.say)

    def calls(self, *calls: tuple[str, Any]) -> list[Any]:
        self.conversation.called([Call(*call) for call in calls])
        return self.take()

    @property
    def over(self) -> Over | None:
        return self.conversation.over


@pytest.fixture
def dialogue(task: MakeTask, tmp_path: Path) -> Iterator[Dialogue]:
    chosen = task({"swfile_ref": SCRIPT, "package_ref": SCRIPT}, executor="swi")
    needs = Needs(priority=7, retries=2)
    chosen = chosen._replace(
        spec=chosen.spec._replace(needs=needs, name="mine"),
        executors={"swi": SWI, "stdinout": StdinoutExecutor()},
        may_run_children=True,
    )
    with open_disk({}, tmp_path / "store") as store:
        yield Dialogue(chosen, store, tmp_path)


SPAWN = {"executor_name": "swi", "cont_text": "{}"}
HERE = SPAWN | {"here": True}


def test_calls_are_a_childs_until_it_ends(dialogue: Dialogue) -> None:
    dialogue.calls(
        ("spawn", HERE), ("log", {"message": "child"}), ("exit", WARM | {"value": "5"}),
        ("log", {"message": "parent"}),
    )  # fmt: skip
    (child,) = dialogue.attempt.within
    assert child.logged == ["child"]
    assert child.outputs.published[0] == Value.of(child.task.spec.outputs[0], b"5")
    assert child.ended == [None]
    assert dialogue.attempt.logged == ["parent"]
    assert dialogue.over is None
    dialogue.calls(("exit", WARM | {"value": "6"}))
    assert dialogue.over == Over(None, "may_keep")
    assert dialogue.attempt.outputs.published[0].id == "out"


def test_a_child_knows_the_package_and_has_no_needs_of_its_parents(dialogue: Dialogue) -> None:
    ((method, reply),) = dialogue.calls(("spawn", HERE | {"name": "f"}))
    (child,) = dialogue.attempt.within
    spec = child.task.spec
    assert (method, reply) == ("spawn", Future(spec.outputs[0]))
    assert (spec.name, spec.needs) == ("f", Needs())
    assert child.task.arguments == read_arguments(spec.payload)
    assert child.task.arguments["package_ref"] == SCRIPT


def test_what_goes_on_has_the_name_and_the_needs_of_what_it_was(dialogue: Dialogue) -> None:
    dialogue.calls(("tail_spawn", SPAWN))
    (child,) = dialogue.attempt.children
    assert child.spec.name == "mine"
    assert child.spec.needs == Needs(priority=7, retries=2)
    assert child.spec.outputs == dialogue.attempt.task.spec.outputs


def test_an_error_ends_the_child_alone(dialogue: Dialogue) -> None:
    dialogue.calls(("spawn", HERE), ("error", {"report": "so"}), ("exit", WARM))
    (child,) = dialogue.attempt.within
    assert child.ended == [("RUNTIME_ERROR", "so")]
    assert dialogue.over is None


def test_a_program_that_keeps_itself_stays_after_an_error(dialogue: Dialogue) -> None:
    dialogue.calls(("error", {"report": "so", "reason": "NO_RETURN_VALUE"}), ("exit", WARM))
    assert dialogue.over == Over(("NO_RETURN_VALUE", "so"), "may_keep")


def test_work_is_given_away_for_whoever_is_meant(dialogue: Dialogue) -> None:
    dialogue.calls(
        ("spawn", HERE), ("spawn", HERE), ("spawn", SPAWN | {"wanted": True, "level": 1})
    )
    (outer,) = dialogue.attempt.within
    (given,) = outer.wanted
    assert given.spec.parent == outer.task.spec.id


def test_a_long_text_becomes_an_object_of_who_spawns(dialogue: Dialogue) -> None:
    long = "x" * (INLINE_MAX_BYTES + 1)
    dialogue.calls(("spawn", SPAWN), ("spawn", SPAWN | {"cont_text": long}))
    short, long_one = [read_arguments(child.spec.payload) for child in dialogue.attempt.children]
    assert short["cont_text"] == "{}"
    assert "cont_text" not in long_one
    assert long_one["cont_ref"].id.startswith(f"{dialogue.attempt.task.spec.id}:cont:")


@pytest.mark.parametrize(
    "method, arguments, text",
    [
        ("spawn", HERE | {"executor_name": "stdinout"}, "cannot run a child inline"),
        ("spawn", SPAWN | {"level": 3}, "'level'"),
        ("spawn", SPAWN | {"cont_text": 5}, "'cont_text'"),
        ("exit", WARM | {"value": 5}, "'value'"),
        ("exit", {}, "lacks 'keep_process'"),
    ],
)
def test_what_a_program_gets_wrong_ends_its_task(
    dialogue: Dialogue, method: str, arguments: dict[str, Any], text: str
) -> None:
    dialogue.calls((method, arguments))
    assert dialogue.over is not None
    assert dialogue.over.fault is not None
    assert text in dialogue.over.fault[1]
