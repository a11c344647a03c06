"""Bases in memory and in LMDB, for tests of locks, queues and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.access.keys import Key
from ciel.state.bases.embedded import OFF, EmbeddedBase
from ciel.state.bases.memory import MemoryBase
from ciel.state.interface import Base
from ciel.state.keyvalues import KeyValues, no_task
from ciel.state.names import Names
from ciel.state.values import Values

BASES: dict[str, Callable[[Path], Base]] = {
    "memory": lambda where: MemoryBase(),
    "lmdb": lambda where: EmbeddedBase(where, OFF),
}


@pytest.fixture(params=BASES)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Base]:
    with BASES[request.param](tmp_path / "base") as base:
        yield base


@pytest.fixture
def kv(base: Base) -> KeyValues:
    return open_kv(base)


def open_kv(base: Base, name: str = "scores", task_id: str = "") -> KeyValues:
    task_of = (lambda _: task_id) if task_id else no_task
    return KeyValues(base, Names(name), Values(Key(b"k" * 32)), task_of)
