import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.client.packages.json_lines import JsonFault, line_of, read_json, where_of
from ciel.wire import codec
from ciel.wire.errors import WireError


def fault(text: str) -> str:
    with pytest.raises(JsonFault) as caught:
        read_json(text)
    return str(caught.value)


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "line 1: not JSON: Expecting value (column 1)"),
        ('{\n "start": {\n', "line 2: not JSON: the text ends, but the { of line 2 is not closed"),
        ('{"a":\n [1, 2\n\n', "line 2: not JSON: the text ends, but the [ of line 2 is not closed"),
        ('{"a": 1,\n}', "line 1: not JSON: a comma before }"),
        ("[1,\n 2,\n]", "line 2: not JSON: a comma before ]"),
        ('{"a" 1}', "line 1: not JSON: Expecting ':' delimiter (column 6)"),
        ("// words\n{}", "line 1: not JSON: Expecting value (column 1)"),
        ('{"a": "x\ny"}', "line 1: not JSON: Invalid control character at (column 9)"),
        ('{"a": "', "line 1: not JSON: Unterminated string starting at (column 7)"),
        ("}{", "line 1: not JSON: Expecting value (column 1)"),
        ('{"a": {"b": 1,\n "b": 2}}', "line 2: a.b: the key occurs twice"),
        ('{"a": 1, "\\u0061": 2}', "line 1: a: the key occurs twice"),
        ('{"a":\n[NaN]}', "line 2: a[0]: NaN is not a number that JSON has"),
        ('[1,\n-1e999]', "line 2: [1]: -1e999 is not a number that JSON has"),
        ('{"a":\n ' + "9" * 5000 + "}", "line 1: a: a number has too many digits"),
        ('["x",\n"\\ud800"]', "line 2: [1]: contains half of a surrogate pair"),
        ('{"\\udc00": 1}', 'line 1: ["\\udc00"]: contains half of a surrogate pair'),
        ("\n".join("[" * 300 + "]" * 300), f"line 201: {'[0]' * 53}[…: nested more than 200"),
        ("[" * 100_000, "line 1: [0]"),
    ],
)  # fmt: skip
def test_errors_of_json_name_the_line(text: str, said: str) -> None:
    assert fault(text).startswith(said)


def test_a_byte_order_mark_is_accepted() -> None:
    assert read_json('\ufeff{"a": 1}') == {"a": 1}


def test_a_path_is_written_with_dots_and_brackets() -> None:
    assert where_of(("start", "args", "in-puts", 0, 12)) == "start.args.in-puts[0][12]"
    assert where_of(("package", "a.b", "", 'q"')) == 'package["a.b"][""]["q\\""]'
    assert where_of(()) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('a"\\[]{},:'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('ab"\\[]{},:'), inner),
    max_leaves=20,
)


def ways(value: Any, way: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Yield the paths to all values, in the order of the text."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [way, *(deeper for key, item in items for deeper in ways(item, (*way, key)))]
    return [way]


@pytest.mark.slow
@given(JSON)
def test_every_member_is_found_on_its_line(value: Any) -> None:
    text = json.dumps(
        value, indent=0
    )  # each member begins a line; all other lines have only brackets
    bare = [n for n, line in enumerate(text.splitlines(), 1) if line.strip("]},")]
    found = [line_of(text, way) for way in ways(value)]
    assert found == sorted(found)
    assert [line for line in found if line in bare] == found
    assert len(set(found)) == len(found)


def test_a_path_that_leads_nowhere_ends_at_its_innermost_value() -> None:
    text = '\n{\n"a": {"x": 1},\n"b": {\n"c": 2}}'
    assert line_of(text, ("b", "d", "e")) == 4
    assert line_of(text, ("none",)) == 2
    assert line_of(text, ("a", "c")) == 3


@given(st.text('{}[]",:\\u0123456789dD tfnaNI-.e\n', max_size=30))
def test_any_text_is_read_or_has_one_fault_as_with_the_codec(text: str) -> None:
    try:
        expected = codec.decode(text.encode())
    except WireError:
        with pytest.raises(JsonFault):
            read_json(text)
    else:
        assert read_json(text) == expected
