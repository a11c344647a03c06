"""Random batches on a base and on a dictionary, which must agree after each."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ciel.state.batches import (
    Delete,
    Increment,
    Insert,
    Overlay,
    Put,
    Renew,
    Request,
    Same,
    Step,
    Update,
    carry_out,
)
from ciel.state.errors import RefusedError
from ciel.state.interface import Base

KEYS = [b"a", b"ab", b"b", b"b\x00", b"\xc3\xa4", b"\xfe"]
keys = st.sampled_from(KEYS)
values = st.sampled_from([b"", b"0", b"7", b"-1", b"text", b"\x00\xff", b"v" * 300])
steps = st.one_of(
    st.builds(Put, keys, values, st.none()),
    st.builds(Insert, keys, values, st.none()),
    st.builds(Update, keys, values),
    st.builds(Delete, keys),
    st.builds(Increment, keys, st.integers(-3, 3)),
    st.builds(Same, keys, st.none() | values),
    st.builds(Renew, keys, st.sampled_from([None, 3600.0])),
)


class BaseWalk(RuleBasedStateMachine):
    """A walk through the operations of one client, on a base that it empties first."""

    def __init__(self, base: Base) -> None:
        super().__init__()
        self._base = base
        self._model: dict[bytes, bytes] = {}
        self._number = 0
        self._client = secrets.token_bytes(8)
        for key, _ in list(base.scan()):
            base.apply([Delete(key)])

    @rule(batch=st.lists(steps, max_size=5))
    def apply(self, batch: list[Step]) -> None:
        view = Overlay(self._model.get, lambda first, last: sorted(self._model.items()))
        self._number += 1
        request = Request(self._client, self._number)
        try:
            expected = carry_out(batch, view)
        except RefusedError as refused:
            with pytest.raises(type(refused)) as found:
                self._base.apply(batch, request)
            assert (found.value.step, found.value.key) == (refused.step, refused.key)  # noqa: PT017
            return
        assert self._base.apply(batch, request) == expected
        for key, new in view.writes.items():
            if new is None:
                self._model.pop(key, None)
            else:
                self._model[key] = new[0]
        assert self._base.apply(batch, request) == expected  # the answer was lost

    @rule(key=keys)
    def read(self, key: bytes) -> None:
        assert self._base.get(key) == self._model.get(key)

    @rule(first=st.just(b"") | keys, last=st.none() | keys)
    def scan(self, first: bytes, last: bytes | None) -> None:
        found = sorted(self._base.scan(first, last))
        expected = [row for row in sorted(self._model.items()) if row[0] >= first]
        assert found == [row for row in expected if last is None or row[0] < last]

    @invariant()
    def all_keys_agree(self) -> None:
        assert self._base.read(KEYS) == [self._model.get(key) for key in KEYS]
