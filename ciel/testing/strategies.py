"""Values for property tests: ids, JSON and references of every kind."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import strategies as st

from ciel.core.ids import ID_MAX_LENGTH, ObjectId
from ciel.core.refs import (
    Concrete,
    Failure,
    Fetch,
    Fixed,
    Future,
    Piped,
    Reference,
    SocketStream,
    Stream,
    Sweetheart,
    Tombstone,
    Value,
)

_FIRST = string.ascii_letters + string.digits + "_"


def ids() -> st.SearchStrategy[ObjectId]:
    """All ids that the grammar allows."""
    rest = st.text(_FIRST + ":.-", max_size=ID_MAX_LENGTH - 1)
    return st.builds(lambda first, more: ObjectId(first + more), st.sampled_from(_FIRST), rest)


def places() -> st.SearchStrategy[str]:
    """A few `host:port` texts, so that equal ones occur."""
    return st.sampled_from([f"w{number}:8001" for number in range(4)])


def json_values() -> st.SearchStrategy[Any]:
    """All kinds of JSON values, slightly nested."""
    texts = st.text(st.characters(codec="utf-8"), max_size=5)
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    leaves = st.none() | st.booleans() | numbers | texts
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    )


def references(
    object_ids: st.SearchStrategy[ObjectId] | None = None,
) -> st.SearchStrategy[Reference]:
    """References of all eleven kinds."""
    name = ids() if object_ids is None else object_ids
    size_bytes = st.none() | st.integers(0, 2**40)
    somewhere = st.frozensets(places(), max_size=3)
    return st.one_of(
        st.builds(Future, name),
        st.builds(Concrete, name, size_bytes, somewhere),
        st.builds(Sweetheart, name, places(), size_bytes, somewhere),
        st.builds(Stream, name, somewhere),
        st.builds(SocketStream, name, places(), st.integers(1, 65535)),
        st.builds(Value.of, name, st.binary(max_size=20)),
        st.builds(Fixed, name, places()),
        st.builds(Failure, name, st.text("ABC_", max_size=9), json_values()),
        st.builds(Tombstone, name, somewhere),
        st.builds(Piped, name),
        st.builds(Fetch, name, st.just("https://example.com/data")),
    )
