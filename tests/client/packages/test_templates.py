import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.client.errors import TaskFailedError, TemplateError
from ciel.client.packages.templates import decode_result, faults
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Failure, Future, Reference, Value


def value(name: str, content: str) -> Value:
    return Value.of(ObjectId(name), content.encode())


def fetch(ref: Reference) -> bytes:
    if isinstance(ref, Failure):
        raise TaskFailedError(ref)
    assert isinstance(ref, Value)
    return ref.content


# --- what a template may say ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "template, steps, said",
    [
        (1, (), "a template must be null, a list or an object, not a number"),
        ([None, "json"], (1,), "a template must be null, a list or an object, not a text"),
        ({"a": {"b": 2}}, ("a", "b"), "a template must be null"),
        (
            [{"__decode_ref__": "pickle"}],
            (0, "__decode_ref__"),
            "reading a pickle runs code in it, so pickles are not read; let the task write"
            ' JSON, or use "noop" or "handle" to get the bytes',
        ),
        (
            {"__decode_ref__": "yaml"},
            ("__decode_ref__",),
            'unknown encoding "yaml"; there are "json", "noop", "handle"',
        ),
        ({"__decode_ref__": ["json"]}, ("__decode_ref__",), 'unknown encoding ["json"]; there'),
        (
            {"__decode_ref__": "handle"},
            ("__decode_ref__",),
            '"handle" saves the object as a file: choose its directory with --out DIR',
        ),
        (
            {"__decode_ref__": "json", "valeu": None},
            ("valeu",),
            'unknown; this template has only "__decode_ref__" and "value"',
        ),
        (
            {"__decode_ref__": "noop", "value": []},
            ("value",),
            'only a value that is decoded as "json" has',
        ),
        ({"__decode_ref__": "json", "value": [1]}, ("value", 0), "a template must be null"),
        ({"__concat__": []}, ("__concat__",), "must be a list of one template"),
        ({"__concat__": [2]}, ("__concat__", 0), "a template must be null"),
        ({"__concat__": [None], "encoding": "pickle"}, ("encoding",), "reading a pickle runs"),
        ({"__concat__": [None], "encoding": "handle"}, ("encoding",), '"handle" saves files'),
        ({"__concat__": [None], "value": 1}, ("value",), "unknown; this template has only"),
    ],
)
def test_faults_of_templates_are_reported(
    template: Any, steps: tuple[str | int, ...], said: str
) -> None:
    where, why = next(faults(template, (), can_save=False))
    assert (where, why[: len(said)]) == (steps, said)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["json", "noop", "handle"]),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["__decode_ref__", "__concat__", "encoding", "value", "a"]), inner
    ),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.slow
@given(JSON, JSON)
def test_a_template_without_faults_decodes_or_raises_template_error(
    template: Any, result: Any
) -> None:
    if not list(faults(template, (), can_save=True)):
        with contextlib.suppress(TemplateError):  # and no other error
            decode_result(template, result, fetch, str)


# --- what comes back ------------------------------------------------------------------------------


def test_without_a_template_the_references_stay() -> None:
    refs = [value("a", "x"), Future(ObjectId("b"))]
    assert decode_result(None, refs, fetch) == refs
    assert decode_result([None, None], refs, fetch) == refs


def test_noop_is_text_and_json_is_a_value() -> None:
    refs = [value("a", "Hello, world!\n"), value("b", '{"n": [1, 2]}')]
    template = [{"__decode_ref__": "noop"}, {"__decode_ref__": "json"}]
    assert decode_result(template, refs, fetch) == ["Hello, world!\n", {"n": [1, 2]}]


def test_bytes_that_are_no_text_are_shown() -> None:
    ref = Value.of(ObjectId("a"), b"\xff\n")
    assert decode_result({"__decode_ref__": "noop"}, ref, fetch) == "\\xff\n"


def test_references_inside_decoded_values_are_decoded_by_the_inner_template() -> None:
    inner = value("in", "7")
    outer = value("out", json.dumps({"n": {"__ref__": ["val", "in", inner.encoded]}, "m": 1}))
    template = {"__decode_ref__": "json", "value": {"n": {"__decode_ref__": "json"}}}
    assert decode_result(template, outer, fetch) == {"n": 7, "m": 1}


def test_concat_joins_what_the_references_hold() -> None:
    parts = [value("a", '"one "'), value("b", '"two"'), value("c", "3")]
    assert decode_result({"__concat__": [None]}, parts, fetch) == "one two3"
    plain = [value("a", "one "), value("b", "two")]
    template = {"__concat__": [None], "encoding": "noop"}
    assert decode_result(template, plain, fetch) == "one two"


def test_a_handle_is_the_path_of_a_saved_object() -> None:
    saved: list[Reference] = []

    def save(ref: Reference) -> str:
        saved.append(ref)
        return f"out/{len(saved) - 1}"

    refs = [Concrete(ObjectId(name), 1 << 40, frozenset()) for name in "ab"]
    template = [{"__decode_ref__": "handle"}, {"__decode_ref__": "handle"}]
    assert decode_result(template, refs, fetch, save) == ["out/0", "out/1"]
    assert saved == refs


def test_keys_that_a_template_does_not_name_stay() -> None:
    result = {"a": value("x", "7"), "b": 2}
    assert decode_result({"a": {"__decode_ref__": "json"}}, result, fetch) == {"a": 7, "b": 2}


def test_reading_a_failed_reference_raises_the_history_of_its_task() -> None:
    failure = Failure(ObjectId("a"), "RUNTIME_EXCEPTION", "it ended with exit status 3\n")
    with pytest.raises(TaskFailedError, match=r"^it ended with exit status 3$"):
        decode_result([{"__decode_ref__": "noop"}], [failure], fetch)


@pytest.mark.parametrize(
    "template, result, said",
    [
        ([None], [], "result: a list of 1 was expected, not a list of 0"),
        ([None], {}, "result: a list of 1 was expected, not an object"),
        ([{"__decode_ref__": "json"}], [5], "result[0]: a reference was expected, not a number"),
        ({"a": None}, [], "result: an object was expected, not a list of 0"),
        ({"a": None}, {}, "result: the key 'a' is missing"),
        ({"__concat__": [None]}, "x", "result: a list of references was expected, not a text"),
        ({"__decode_ref__": "json"}, value("a", "{"), "result: object a is not JSON: "),
        ({"__decode_ref__": "handle"}, "x", "result: a reference was expected, not a text"),
    ],
)
def test_an_error_names_the_place_of_a_result_of_another_shape(
    template: Any, result: Any, said: str
) -> None:
    with pytest.raises(TemplateError) as caught:
        decode_result(template, result, fetch, str)
    assert str(caught.value).startswith(said)
