"""The attributes that client futures share with the standard library's."""

from __future__ import annotations

import concurrent.futures
from unittest.mock import Mock

from ciel.client.calls.futures import ClientFuture


def test_a_future_has_all_that_the_standard_librarys_futures_have() -> None:
    """`ClientFuture` does not call the constructor of the standard library."""
    usual = vars(concurrent.futures.Future())
    own = vars(ClientFuture(Mock(), "f"))
    assert own.keys() >= usual.keys()
    for name, value in usual.items():
        assert name == "_condition" or own[name] == value
