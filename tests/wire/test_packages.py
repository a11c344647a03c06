import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Failure, Value
from ciel.wire import codec
from ciel.wire.errors import WireError
from ciel.wire.packages import encode_package, find_entry
from ciel.wire.references import from_json

REFS = st.one_of(
    st.binary(max_size=8).map(lambda content: Value.of(ObjectId("v"), content)),
    st.just(Concrete(ObjectId("c"), 5, frozenset({"h:1"}))),
    st.text().map(lambda key: Failure(ObjectId("e"), "BAD", {key: '\n"a":', "a": [key]})),
)
KEYS = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda key: key != "__ref__")


@given(st.dictionaries(KEYS, REFS), KEYS)
def test_each_entry_is_found_and_nothing_else(
    package: dict[str, Value | Concrete | Failure], other: str
) -> None:
    content = encode_package(package)
    assert from_json(codec.decode(content)) == package
    for key in [*package, other, "a", '\n"a":']:
        assert find_entry(content, key) == package.get(key)


@pytest.mark.parametrize("indent", [None, 0, 1])
def test_a_package_written_by_another_encoder_is_read(indent: int | None) -> None:
    entries = {"a": {"__ref__": ["f2", "x"]}, "b": {"__ref__": ["f2", "y"]}}
    content = json.dumps(entries, indent=indent).encode()
    for key, array in entries.items():
        assert find_entry(content, key) == from_json(array)
    assert find_entry(content, "c") is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": 1}', b"{\n", b'{\n"a":1\n}', b'{\n"a":1'])
def test_an_invalid_package_is_refused(content: bytes) -> None:
    with pytest.raises(WireError):
        find_entry(content, "a")
