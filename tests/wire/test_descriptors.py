from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.errors import InvalidIdError
from ciel.core.ids import JobId, ObjectId, child_id
from ciel.core.jobs import CallerContext, JobSpec, summarise
from ciel.core.refs import Concrete, Future, Reference, Value
from ciel.core.tasks import DEFAULT_NEEDS, Mentions, Needs, TaskSpec, check_task
from ciel.testing.builders import a_job, a_root_task, a_task
from ciel.testing.strategies import json_values, references
from ciel.wire import codec
from ciel.wire.descriptors import (
    TASK_FIELD_COUNT,
    job_fields,
    make_task,
    read_arguments,
    read_ids,
    read_job,
    read_summary,
    read_task,
    task_fields,
)
from ciel.wire.errors import DecodeError, EncodeError

JOB = JobId("job")
A, B = ObjectId("a"), ObjectId("b")


def a_made_task(arguments: dict[str, Any], **options: Any) -> TaskSpec:
    spec, _ = make_task(
        job=JOB, parent=JOB, ordinal=0, executor="stdinout", arguments=arguments, **options
    )
    return spec


def named(
    arguments: dict[str, Any], any_of: Sequence[Reference] = (), apart: Sequence[Reference] = ()
) -> tuple[TaskSpec, tuple[Reference, ...]]:
    return make_task(
        job=JOB, parent=JOB, ordinal=0, executor="x", arguments=arguments, any_of=any_of,
        apart=apart,
    )  # fmt: skip


def through_the_wire(fields: list[Any]) -> Any:
    return codec.decode(codec.encode(fields))


# --- making tasks ---------------------------------------------------------------------------------


def test_the_references_in_its_arguments_are_a_tasks_inputs() -> None:
    stored = Concrete(B, 5, frozenset(("w1:8001",)))
    spec, known = make_task(
        job=JOB, parent=JOB, ordinal=3, executor="stdinout",
        arguments={"args": {"command_line": ["cat", Future(A), stored], "inputs": [Future(A)]}},
    )  # fmt: skip
    assert spec.inputs == (A, B)
    assert known == (stored,)
    assert spec.id == child_id(JOB, 3, spec.digest)
    assert spec.outputs == (f"{spec.id}:out:0",)
    check_task(spec)


@given(st.dictionaries(st.text(max_size=4), json_values() | references()).filter(
    lambda arguments: "__ref__" not in repr(arguments)
))  # fmt: skip
def test_arguments_survive_the_payload(arguments: dict[str, Any]) -> None:
    assert read_arguments(a_made_task(arguments).payload) == arguments


def test_the_kind_of_an_inputs_reference_does_not_change_the_id() -> None:
    future = a_made_task({"args": [Future(A)]})
    value = a_made_task({"args": [Value.of(A, b"x")]})
    assert future.id == value.id
    assert future.payload != value.payload


def test_another_argument_or_ordinal_is_another_task() -> None:
    first, _ = make_task(job=JOB, parent=JOB, ordinal=0, executor="x", arguments={"args": [1]})
    other, _ = make_task(job=JOB, parent=JOB, ordinal=0, executor="x", arguments={"args": ["1"]})
    again, _ = make_task(job=JOB, parent=JOB, ordinal=1, executor="x", arguments={"args": [1]})
    assert len({first.id, other.id, again.id}) == 3


def test_memoised_outputs_depend_on_arguments_and_job_alone() -> None:
    def outputs(job: str, ordinal: int, value: int) -> tuple[ObjectId, ...]:
        spec, _ = make_task(
            job=JobId(job), parent=job, ordinal=ordinal, executor="stdinout",
            arguments={"args": [value]}, n_outputs=2, memoise=True,
        )  # fmt: skip
        check_task(spec)
        return spec.outputs

    assert outputs("job", 0, 1) == outputs("job", 7, 1)
    assert outputs("job", 0, 1) != outputs("other", 0, 1)
    assert outputs("job", 0, 1) != outputs("job", 0, 2)


def test_a_task_may_take_over_outputs() -> None:
    assert a_made_task({}, outputs=(A,)).outputs == (A,)


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize("value", [b"bytes", {1: 2}, float("nan"), {"__ref__": "a"}, CIRCLE])
def test_arguments_without_a_canonical_form_are_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError, EncodeError)):
        a_made_task({"args": value})


@pytest.mark.parametrize("payload", [b"", b"[]", b"7", b"null", b"{", b'{"a":NaN}', b"\xff", b'""'])
def test_a_payload_without_arguments_raises_one_error(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        read_arguments(payload)


def test_any_of_inputs_come_last_and_are_part_of_the_id() -> None:
    a, b, c = Future(A), Value.of(ObjectId("b"), b"x"), Future(ObjectId("c"))
    arguments = {"args": [b, a, c], "any_dependencies": [a, b]}
    spec, known = named(arguments, any_of=[a, b])
    assert (spec.needed, spec.alternatives) == (("c",), (A, "b"))
    assert known == (b,)
    plain, _ = named(arguments)
    less, _ = named(arguments, any_of=[a])
    turned, _ = named(arguments, any_of=[b, a])
    assert len({spec.digest, plain.digest, less.digest}) == 3
    assert turned.digest == spec.digest


def test_any_of_inputs_must_be_in_the_arguments() -> None:
    with pytest.raises(ValueError, match="is not among its arguments"):
        named({"args": [Future(A)]}, any_of=[Future(ObjectId("b"))])


def test_inputs_that_are_read_in_parts_come_first() -> None:
    a, b, c, d = [Future(ObjectId(name)) for name in "abcd"]
    spec, _ = named({"args": [a, b, c, d]}, apart=[d, b], any_of=[a])
    assert (spec.apart, spec.needed, spec.alternatives) == (("b", "d"), ("b", "d", "c"), ("a",))
    plain, _ = named({"args": [a, b, c, d]}, any_of=[a])
    assert spec.id == plain.id
    alternative, _ = named({"args": [a, b]}, apart=[a], any_of=[a])
    assert (alternative.apart, alternative.alternatives) == ((), ("a",))


# --- tasks in records -----------------------------------------------------------------------------

SPECS = {
    "plain": a_task("a"),
    "several outputs": a_task("a", "b", inputs=["c", "d"], sees_errors=True),
    "needs": a_task("a")._replace(needs=Needs(2, 1 << 30, -7, 1.5, 3)),
    "retries": a_task("a")._replace(needs=Needs(retries=3, retry_on=("NO_SPACE",))),
    "a delay": a_task("a")._replace(needs=Needs(retries=3, retry_delay_s=5.5)),
    "held back": a_task("a")._replace(needs=Needs(delay_s=0.25)),
    "parts": a_task("a", inputs=["c", "d", "e"])._replace(apart_count=2),
    "parts and alternatives": a_task("a", inputs=["c", "d"])._replace(apart_count=1, any_count=1),
    "mentions": a_task("a", mentions=Mentions.INPUTS, name="two of them"),
    "root": a_root_task(),
    "choice": a_task("a", inputs=["c"], any_of=["d", "e", "f"]),
    "any error": a_task("a", any_of=["d", "e"], sees_errors=True, mentions=Mentions.INPUTS),
    "usual outputs": a_made_task({}, n_outputs=3),
    "child": a_task("a", parent=a_task("p"), ordinal=7),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_task_survives_a_round_trip(spec: TaskSpec) -> None:
    fields = through_the_wire(task_fields(spec))
    assert len(fields) == TASK_FIELD_COUNT
    assert read_task(fields, spec.payload) == spec


def test_records_written_before_tasks_had_delays_are_read() -> None:
    fields = task_fields(SPECS["a delay"])
    needs = Needs(retries=3, retry_delay_s=5.5)
    for usual in reversed(DEFAULT_NEEDS[Needs._fields.index("delay_s") :]):
        assert fields[8].pop() == usual
        assert read_task(through_the_wire(fields), b"").needs == needs


@given(
    st.builds(
        Needs,
        *[st.integers()] * 3,
        st.floats(0, 1e9),
        st.integers(),
        st.just(()),
        st.just(0.0),
        st.sampled_from((0.0, 1.5)),
        st.sampled_from((-1.0, 0.0, 30.0)),
    ),
    st.booleans(),
    st.sampled_from(Mentions),
    st.binary(max_size=9),
)
def test_needs_and_flags_survive_a_round_trip(
    needs: Needs, sees_errors: bool, mentions: Mentions, payload: bytes
) -> None:
    spec = a_task("a", sees_errors=sees_errors, mentions=mentions)
    spec = spec._replace(needs=needs, payload=payload)
    assert read_task(through_the_wire(task_fields(spec)), payload) == spec


def test_default_values_take_no_space() -> None:
    fields = task_fields(SPECS["usual outputs"])
    assert fields[7:9] == [3, 0]
    assert read_task(through_the_wire(fields), b"").needs is DEFAULT_NEEDS


ID, _JOB, PARENT, ORDINAL, DIGEST, EXECUTOR, INPUTS, OUTPUTS, NEEDS, FLAGS, NAME = range(11)
NO_IDS: list[Any] = ["", "../x", "a\0b", "x" * 129, "x" * 300, ".x", None, 7, True, 1.5, [], {}]
HOSTILE: dict[int, list[Any]] = {
    **dict.fromkeys([ID, _JOB, PARENT], NO_IDS),
    ORDINAL: [-2, 2**63, 10**1000, 1.0, True, "0", None, [0]],
    DIGEST: [None, 7, ["d"], "d" * 65],
    EXECUTOR: ["", None, 7, ["stdinout"], "x" * 65],
    INPUTS: [None, 0, False, "", "a", {}, ["../x"], ["a", "a"], [7], [["a"]], [True], [None]],
    OUTPUTS: [None, 0, [], 10_001, -1, True, 1.0, 10**1000, "a", {}, ["../x"], ["a", "a"], [7]],
    NEEDS: [
        None, False, 0.0, 1, "", [], [1], [1, 0, 0, 0.0], [1, 0, 0, 0.0, 0, 0],
        [True, 0, 0, 0.0, 0], [1.0, 0, 0, 0.0, 0], [1, 0, 0, "1", 0], [1, 0, 0, None, 0],
        [[1], 0, 0, 0.0, 0], {"slots": 1},
    ],
    # 8: one alternative, but no inputs
    FLAGS: [None, -1, 3, 7, 8, 12, 10**1000, True, 1.0, "1", [1]],
    NAME: [None, 7, ["n"], "n" * 301],
}  # fmt: skip


@pytest.mark.parametrize(
    "field, value", [(field, value) for field, values in HOSTILE.items() for value in values]
)
def test_a_task_with_a_malformed_field_is_refused(field: int, value: Any) -> None:
    fields = task_fields(a_task("a"))
    fields[field] = value
    with pytest.raises((DecodeError, InvalidIdError)):
        read_task(fields, b"")


def test_outputs_derived_from_a_task_id_must_be_valid_ids() -> None:
    fields = task_fields(a_task("a"))
    fields[ID], fields[OUTPUTS] = "x" * 128, 1
    with pytest.raises(DecodeError, match="too long"):
        read_task(fields, b"")


# --- jobs -----------------------------------------------------------------------------------------

ARE_NO_FLAGS: list[Any] = [0, 1, None, "true", []]


@pytest.mark.parametrize(
    "flags", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_a_job_survives_a_round_trip(flags: tuple[bool, bool, bool]) -> None:
    spec = JobSpec(JOB, "fünf", *flags)
    assert read_job(through_the_wire(job_fields(spec))) == spec


@pytest.mark.parametrize(
    "field, value",
    [
        *[(0, value) for value in NO_IDS],
        (1, None),
        (1, 7),
        (1, "n" * 201),
        *[(field, flag) for field in (2, 3, 4) for flag in ARE_NO_FLAGS],
    ],
)
def test_a_job_with_a_malformed_field_is_refused(field: int, value: Any) -> None:
    fields = job_fields(JobSpec(JOB, "", True, False, False))
    fields[field] = value
    with pytest.raises((DecodeError, InvalidIdError)):
        read_job(fields)


def test_a_context_survives_a_round_trip_and_equal_ones_are_shared() -> None:
    context = CallerContext("/fünf", {"LANG": "C", "EMPTY": ""}, replaces_env=False)
    spec = JobSpec(JOB, "", True, False, False, context=context)
    first, second = [read_job(through_the_wire(job_fields(spec))).context for _ in range(2)]
    assert first == context
    assert second is first  # many jobs of a user share the memory of one


@pytest.mark.parametrize(
    "context",
    [
        1, True, "", [], ["/", {}], ["/", {}, True, 1], ["home", {}, True], ["/a\0b", {}, True],
        [None, {}, True], ["/", None, True], ["/", {"A": 1}, True], ["/", {"": "x"}, True],
        ["/", {"A=B": "x"}, True], ["/", {"A": "x\0"}, True], ["/", {}, 1],
    ],
)  # fmt: skip
def test_a_malformed_context_is_refused(context: Any) -> None:
    with pytest.raises(DecodeError):
        read_job([*job_fields(JobSpec(JOB, "", True, False, False)), context])


def test_a_summary_survives_a_round_trip() -> None:
    summary = summarise(a_job())
    assert read_summary(through_the_wire(list(summary))) == summary


@pytest.mark.parametrize(
    "field, value",
    [
        (0, "../x"),
        (1, -1),
        (1, True),
        (1, 1.0),
        (2, None),
        (3, "flying"),
        (3, ["active"]),
        (4, 7),
        (5, None),
        (5, []),
        (5, {"done": "1"}),
        (5, {"done": -1}),
        (6, None),
        (6, "now"),
        (7, True),
        (8, None),
        (9, 0.5),
    ],
)
def test_a_summary_with_a_malformed_field_is_refused(field: int, value: Any) -> None:
    fields = list(summarise(a_job()))
    fields[field] = value
    with pytest.raises((DecodeError, InvalidIdError)):
        read_summary(fields)


@pytest.mark.parametrize("fields", [None, {}, [], ["job"], "active", 7])
def test_a_summary_that_is_not_a_list_of_fields_is_refused(fields: Any) -> None:
    with pytest.raises(DecodeError):
        read_summary(fields)


@pytest.mark.parametrize("value", [[], ["a"], ["a", "b"], ["b", "a", "c"]])
def test_a_list_of_ids_keeps_its_order(value: list[str]) -> None:
    assert read_ids(value) == tuple(value)


@pytest.mark.parametrize("value", [None, "a", {"a": 1}, 7, ["a", "a"], ["a", None], [["a"]]])
def test_an_invalid_list_of_ids_is_refused(value: Any) -> None:
    with pytest.raises((DecodeError, InvalidIdError)):
        read_ids(value)
