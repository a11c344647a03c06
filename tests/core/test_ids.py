import string
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.errors import InvalidIdError
from ciel.core.ids import (
    ID_MAX_LENGTH,
    JobId,
    check_id,
    child_id,
    job_output_id,
    output_ids,
    root_task_id,
)
from ciel.testing.strategies import ids

HOSTILE = {
    "empty": "",
    "dot": ".",
    "parent directory": "..",
    "climbing": "../x",
    "absolute": "/etc/passwd",
    "slash inside": "a/b",
    "backslash": "a\\b",
    "temporary of a producer": ".producer:a",
    "temporary of a fetch": ".fetch:a",
    "option": "-rf",
    "colon first": ":a",
    "percent": "a%2e",
    "NUL": "a\0b",
    "newline at the end": "a\n",
    "newline inside": "a\nb",
    "space": "a b",
    "letter beyond ASCII": "\u00e9",
    "digit beyond ASCII": "\u0661",
    "full width dots": "a\uff0e\uff0e",
    "overlong UTF-8 of a slash": b"\xc0\xaf".decode("latin-1"),
    "lone surrogate": "a\ud800",
    "129 characters": "a" * 129,
    "300 characters": "a" * 300,
    "a million characters": "a" * 1_000_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_not_an_id(text: str) -> None:
    with pytest.raises(InvalidIdError) as caught:
        check_id(text)
    assert caught.value.text == text
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("value", [None, 7, 7.5, True, b"a", ["a"], {"a": 1}])
def test_a_value_that_is_not_text_is_not_an_id(value: object) -> None:
    with pytest.raises(InvalidIdError, match="not text"):
        check_id(value)


@pytest.mark.parametrize("text", ["a", "_", "7", "root:J", "a.b-c_d:0", "a..b", "x" * 128])
def test_text_that_the_grammar_allows_is_an_id(text: str) -> None:
    assert check_id(text) == text


@given(ids())
def test_every_id_of_the_grammar_is_accepted(text: str) -> None:
    assert check_id(text) == text


@given(st.text(min_size=1, max_size=10))
def test_accepted_text_is_safe_to_show(text: str) -> None:
    try:
        check_id(text)
    except InvalidIdError:
        return
    assert set(text) <= set(string.ascii_letters + string.digits + "_:.-")
    assert text[0] not in ":.-"


def test_a_childs_name_is_the_documented_digest() -> None:
    expected = blake2b(b"root:J\n7\nabc", digest_size=16).hexdigest()
    assert child_id("root:J", 7, "abc") == expected
    assert check_id(expected) == expected


@pytest.mark.requirement("CIB-1")
@given(st.tuples(ids(), st.integers(0, 99), st.text("0123456789abcdef", max_size=4)))
def test_children_share_a_name_only_if_they_are_the_same(first: tuple[str, int, str]) -> None:
    parent, ordinal, digest = first
    assert child_id(*first) == child_id(*first)
    assert child_id(*first) != child_id(parent, ordinal + 1, digest)
    assert child_id(*first) != child_id(parent, ordinal, digest + "0")
    assert child_id(*first) != child_id(parent + "1", ordinal, digest)


def test_ordinal_and_parent_are_separated_in_the_digest() -> None:
    assert child_id("a1", 1, "") != child_id("a", 11, "")


def test_the_names_in_a_packages_job_are_derived_from_its_id() -> None:
    job = JobId("J")
    assert root_task_id(job) == "root:J"
    assert job_output_id(job) == "J:job_output"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_outputs_are_numbered_from_zero(count: int) -> None:
    assert output_ids("T", count) == tuple(f"T:out:{i}" for i in range(count))


def test_the_longest_id_is_still_a_file_name() -> None:
    assert ID_MAX_LENGTH < 255
