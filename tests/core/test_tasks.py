from typing import Any

import pytest

from ciel.core.errors import InvalidTaskError
from ciel.core.ids import JobId, TaskId, child_id
from ciel.core.tasks import (
    FINISHED,
    PRIORITY_MAX,
    RETRIES_MAX,
    SLOTS_MAX,
    TRANSITIONS,
    Needs,
    TaskSpec,
    TaskState,
    check_task,
)
from ciel.testing.builders import a_root_task, a_task

PARENT = a_task("p")


@pytest.mark.parametrize(
    "spec",
    [
        a_task("a"),
        a_task("a", "b", inputs=["c", "d"]),
        a_task("a", parent=PARENT, ordinal=7),
        a_task("a", slots=SLOTS_MAX, priority=PRIORITY_MAX, retries=RETRIES_MAX),
        a_root_task(),
    ],
)
def test_a_well_formed_task_is_accepted(spec: TaskSpec) -> None:
    check_task(spec)


FORGED = {
    "id of its own making": a_task("a")._replace(id=TaskId("b")),
    "another ordinal": a_task("a")._replace(ordinal=1),
    "another digest": a_task("a")._replace(digest="0" * 32),
    "another parent": a_task("a")._replace(parent=PARENT.id),
    "another job's root task": a_root_task("job1")._replace(job=JobId("job2"), parent="job2"),
    "root task with a usual ordinal": a_root_task()._replace(ordinal=0),
    "root task below another task": a_root_task()._replace(parent=PARENT.id),
}


@pytest.mark.parametrize("spec", FORGED.values(), ids=FORGED)
def test_an_id_that_is_not_derived_from_the_parent_is_refused(spec: TaskSpec) -> None:
    with pytest.raises(InvalidTaskError, match="require the id"):
        check_task(spec)


CONTRADICTIONS = {
    "no outputs": (a_task(), "no outputs"),
    "an output twice": (a_task("a", "b", "a"), "names an output twice"),
    "its own input": (a_task("a", inputs=["b", "a"]), "also its input"),
    "its own choice": (a_task("a", any_of=["b", "a"]), "also its input"),
    "too much choice": (a_task("a", inputs=["b"])._replace(any_count=2), "only 1 inputs, but 2"),
    "less than none": (a_task("a", inputs=["b"])._replace(any_count=-1), "-1 alternatives"),
}


@pytest.mark.parametrize("spec, reason", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_task_that_contradicts_itself_is_refused(spec: TaskSpec, reason: str) -> None:
    with pytest.raises(InvalidTaskError, match=reason) as caught:
        check_task(spec)
    assert caught.value.task_id == spec.id


@pytest.mark.parametrize(
    "field, value",
    [
        ("slots", 0),
        ("slots", -1),
        ("slots", SLOTS_MAX + 1),
        ("priority", PRIORITY_MAX + 1),
        ("priority", -PRIORITY_MAX - 1),
        ("retries", -1),
        ("retries", RETRIES_MAX + 1),
        ("timeout_s", -0.1),
        pytest.param("timeout_s", 10**400, id="timeout_s-huge"),
        ("memory_bytes", -1),
        ("memory_bytes", 2**63),
    ],
)
def test_resource_needs_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    spec = a_task("a")._replace(needs=Needs()._replace(**{field: value}))
    with pytest.raises(InvalidTaskError, match=field):
        check_task(spec)


def test_a_childs_id_is_derived_from_its_place_in_its_parent() -> None:
    child = a_task("a", parent=PARENT, ordinal=3)
    assert child.id == child_id(PARENT.id, 3, child.digest)


def test_a_finished_task_changes_state_only_to_run_again() -> None:
    for state in FINISHED:
        assert TRANSITIONS[state] == {TaskState.DORMANT}
    assert TRANSITIONS[TaskState.DONE] == {TaskState.DORMANT}
    assert set(TRANSITIONS) == set(TaskState)


def test_a_state_is_shown_as_a_word() -> None:
    assert f"{TaskState.RUNNABLE}" == "runnable"
