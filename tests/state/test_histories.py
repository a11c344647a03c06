from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path

import pytest

from ciel.state.bases.embedded import OFF, EmbeddedBase
from ciel.state.bases.memory import MemoryBase
from ciel.state.batches import Increment, Put, Request, Result, Step
from ciel.testing.state.histories import Operation, is_linearizable, record
from ciel_tests.kv_daemons import KvDaemon

KEYS = [b"1", b"2"]
put, add = (Put(b"k", b"1"),), (Increment(b"k"),)


def read(called_s: float, returned_s: float, value: bytes | None) -> Operation:
    return Operation(b"k", (), called_s, returned_s, (value,))


def test_reads_beside_a_write_may_see_either_value() -> None:
    write = Operation(b"k", put, 0, 10, (None,))
    assert is_linearizable([write, read(1, 2, None), read(3, 4, b"1")])
    assert is_linearizable([write, read(1, 2, b"1"), read(11, 12, b"1")])


def test_value_does_not_go_back() -> None:
    write = Operation(b"k", put, 0, 10, (None,))
    assert not is_linearizable([write, read(1, 2, b"1"), read(3, 4, None)])
    assert not is_linearizable([write, read(11, 12, None)])
    assert not is_linearizable([read(1, 2, b"1")])


def test_increment_takes_effect_once() -> None:
    first = Operation(b"k", add, 0, 1, (1,))
    assert is_linearizable([first, Operation(b"k", add, 2, 3, (2,))])
    assert not is_linearizable([first, Operation(b"k", add, 2, 3, (3,))])
    assert not is_linearizable([first, Operation(b"k", add, 0, 1, (1,))])


def test_unknown_outcome_may_take_effect_late_or_never() -> None:
    lost = Operation(b"k", add, 0, inf, None)
    assert is_linearizable([lost, read(1, 2, None), read(3, 4, b"1")])
    assert is_linearizable([lost, read(1, 2, None)])
    assert not is_linearizable([lost, read(1, 2, b"2")])
    assert not is_linearizable([Operation(b"k", add, 3, inf, None), read(1, 2, b"1")])


def test_memory_base_is_linearizable() -> None:
    for seed in range(20):
        base = MemoryBase()
        assert is_linearizable(record([base] * 4, KEYS, 40, seed))


@pytest.mark.requirement("KVB-4")
def test_embedded_base_is_linearizable(tmp_path: Path) -> None:
    for seed in range(20):
        where = tmp_path / f"{seed}"
        bases = [EmbeddedBase(where, OFF) for _ in range(4)]
        assert is_linearizable(record(list(bases), KEYS, 40, seed))
        for base in bases:
            base.close()


class StaleBase(MemoryBase):
    """Answers some reads with the value of an earlier read."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[bytes, bytes | None] = {}
        self._reads = 0

    def get(self, key: bytes) -> bytes | None:
        self._reads += 1
        if self._reads % 5 or key not in self._seen:
            self._seen[key] = super().get(key)
        return self._seen[key]


class RepeatingBase(MemoryBase):
    """Carries out a batch twice now and then, as a client does that asks again without a number."""

    def __init__(self) -> None:
        super().__init__()
        self._batches = 0

    def apply(self, steps: Sequence[Step], request: Request | None = None) -> list[Result]:
        self._batches += 1
        if self._batches % 5 == 0:
            super().apply(steps)
        return super().apply(steps)


@pytest.mark.parametrize("faulty", [StaleBase, RepeatingBase])
def test_faulty_base_is_found(faulty: type[MemoryBase]) -> None:
    found = [is_linearizable(record([faulty()] * 4, KEYS, 40, seed)) for seed in range(5)]
    assert False in found


@pytest.mark.requirement("KVB-4")
def test_daemon_that_is_killed_is_linearizable(tmp_path: Path) -> None:
    with KvDaemon(tmp_path / "base", "--sync", "off") as daemon, ExitStack() as stack:
        bases = [stack.enter_context(daemon.base()) for _ in range(4)]
        kills, is_killing = iter(range(2)), threading.Lock()

        def pause(random: object) -> None:
            with is_killing:
                if next(kills, None) is not None:
                    daemon.kill()
                    daemon.start()

        assert is_linearizable(record(list(bases), KEYS, 40, 1, pause))
