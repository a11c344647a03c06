"""The conformance suite of key-value bases (KVB-4).

The tests of a base inherit it:

    class TestMyBase(KvSuite):
        capabilities = Capabilities(...)

        def make_base(self, where): ...

`make_base` opens the same base again when it is called with the same directory, if the base is
shared. Tests of guarantees that a base lacks check that it refuses the call.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Generic, Self, TypeVar

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from ciel.state.batches import (
    KEY_MAX_BYTES,
    VALUE_MAX_BYTES,
    Delete,
    Increment,
    Insert,
    Put,
    Renew,
    Request,
    Same,
    SameRange,
    Step,
    Update,
    digest,
    end_of_prefix,
)
from ciel.state.errors import (
    BaseClosedError,
    ChangedError,
    KeyMissingError,
    KeyPresentError,
    LackingError,
    LimitError,
    NotANumberError,
    RefusedError,
    StaleRequestError,
)
from ciel.state.interface import Base, Capabilities
from ciel.testing.state.walk import BaseWalk

T = TypeVar("T")
SOON_S = 10.0
"""How long a test waits for what happens at once on an idle machine."""


class KvSuite(ABC):
    """Tests each clause of the contract in `ciel.state.interface`."""

    capabilities: ClassVar[Capabilities]
    rows_many: ClassVar[int] = 2000
    """How many rows the larger tests use; fewer for a slow base."""

    def fill(self, base: Base, rows: Mapping[bytes, bytes]) -> None:
        """Put rows, in as few batches as the base permits."""
        left = iter(rows.items())
        while part := [Put(*row) for row in islice(left, self.capabilities.steps_max)]:
            base.apply(part)

    @property
    def rows_in_batch(self) -> int:
        return min(self.rows_many, self.capabilities.steps_max)

    @abstractmethod
    def make_base(self, where: Path) -> Base: ...

    @pytest.fixture
    def base(self, tmp_path: Path) -> Iterator[Base]:
        with self.make_base(tmp_path / "base") as base:
            yield base

    # One client

    def test_base_has_the_declared_capabilities(self, base: Base) -> None:
        assert base.capabilities == self.capabilities

    def test_value_is_read_as_it_was_put(self, base: Base) -> None:
        rows = {b"a": b"", b"\0": b"\0", b"\xfe\xfd": bytes(range(256)), b"k" * KEY_MAX_BYTES: b"v"}
        for key, value in rows.items():
            assert base.get(key) is None
            assert base.apply([Put(key, value)]) == [None]
        assert base.read([*rows, b"missing"]) == [*rows.values(), None]
        assert dict(base.scan()) == rows

    def test_large_value(self, base: Base) -> None:
        value = Random(1).randbytes(min(3 << 20, self.capabilities.batch_max_bytes - 100))
        base.apply([Put(b"large", value)])
        assert base.get(b"large") == value

    def test_simple_reads_and_writes(self, base: Base) -> None:
        """KVB-4: rows are inserted, then updated and read at random."""
        random, model = Random(1), {}
        for number in range(self.rows_many // 4):
            model[key := b"%d" % number] = value = random.randbytes(20)
            base.apply([Insert(key, value)])
        for _ in range(self.rows_many // 4):
            key = random.choice(list(model))
            model[key] = value = random.randbytes(random.randrange(40))
            base.apply([Update(key, value)])
            key = random.choice(list(model))
            assert base.get(key) == model[key]

    def test_insert_update_and_delete_say_what_is_wrong(self, base: Base) -> None:
        with pytest.raises(KeyMissingError, match="'a' is not in the base"):
            base.apply([Update(b"a", b"1")])
        with pytest.raises(KeyMissingError):
            base.apply([Delete(b"a")])
        base.apply([Insert(b"a", b"1")])
        with pytest.raises(KeyPresentError, match="'a' is in the base already"):
            base.apply([Insert(b"a", b"2")])
        assert base.get(b"a") == b"1"
        base.apply([Delete(b"a")])
        assert base.get(b"a") is None

    def test_increment(self, base: Base) -> None:
        steps = [Increment(b"n", 5), Increment(b"n", -7), Increment(b"n", 0)]
        assert base.apply(steps) == [5, -2, -2]
        assert base.get(b"n") == b"-2"
        largest = (1 << 63) - 1
        assert base.apply([Put(b"n", b"%d" % largest), Increment(b"n", -1)]) == [None, largest - 1]
        for value in (b"", b"x", b"1.0", b"--1", b" 1", b"%d" % (largest + 1), b"1" * 50):
            base.apply([Put(b"n", value)])
            with pytest.raises(NotANumberError):
                base.apply([Increment(b"n")])
            assert base.get(b"n") == value
        base.apply([Put(b"n", b"%d" % largest)])
        with pytest.raises(NotANumberError):
            base.apply([Increment(b"n")])

    def test_steps_see_the_steps_before(self, base: Base) -> None:
        steps: list[Step] = [
            Insert(b"a", b"1"), Same(b"a", b"1"), Increment(b"a"), Update(b"a", b"9"),
            Delete(b"a"), Same(b"a", None), Insert(b"a", b"3"),
        ]  # fmt: skip
        assert base.apply(steps) == [None, None, 2, None, None, None, None]
        assert base.get(b"a") == b"3"

    @pytest.mark.parametrize(
        "refused",
        [
            Insert(b"b", b"x"),
            Update(b"none", b"x"),
            Delete(b"none"),
            Same(b"b", b"other"),
            Same(b"none", b""),
            Same(b"b", None),
            Increment(b"b"),
            Renew(b"none", 1.0),
        ],
    )
    def test_refused_batch_changes_nothing(self, base: Base, refused: Step) -> None:
        base.apply([Put(b"b", b"text"), Put(b"c", b"1")])
        before = dict(base.scan())
        with pytest.raises(RefusedError) as found:
            base.apply([Put(b"new", b"1"), Delete(b"c"), refused, Put(b"d", b"1")])
        assert found.value.step == 2
        assert found.value.key == refused.key  # type: ignore[union-attr]  # none is a SameRange
        assert dict(base.scan()) == before

    def test_empty_batch_does_nothing(self, base: Base) -> None:
        assert base.apply([]) == []
        assert list(base.scan()) == []

    def test_too_large_or_reserved_keys_and_values_are_refused(self, base: Base) -> None:
        for key in (b"", b"k" * (KEY_MAX_BYTES + 1), b"\xff", b"\xffrequest/x"):
            with pytest.raises(LimitError):
                base.apply([Put(key, b"1")])
        with pytest.raises(LimitError, match="store it as an object"):
            base.apply([Put(b"a", bytes(VALUE_MAX_BYTES + 1))])
        assert list(base.scan()) == []

    def test_closed_base_refuses_everything(self, tmp_path: Path) -> None:
        base = self.make_base(tmp_path / "closed")
        base.apply([Put(b"a", b"1")])
        base.close()
        base.close()
        with pytest.raises(BaseClosedError):
            base.get(b"a")
        with pytest.raises(BaseClosedError):
            base.apply([Put(b"a", b"1")])
        with pytest.raises(BaseClosedError):
            list(base.scan())

    def test_what_was_acknowledged_lasts(self, tmp_path: Path) -> None:
        with self.make_base(tmp_path / "base") as base:
            base.apply([Put(b"a", b"1")])
        if self.capabilities.is_durable:
            with self.make_base(tmp_path / "base") as base:
                assert base.get(b"a") == b"1"

    # Scans

    def test_scan_has_the_rows_of_a_range(self, base: Base) -> None:
        rows = {b"%03d" % number: b"%d" % number for number in range(self.rows_many // 2)}
        self.fill(base, rows)
        found = list(base.scan())
        assert dict(found) == rows
        assert len(found) == len(rows)
        part = list(base.scan(b"100", b"200"))
        assert sorted(part) == [row for row in sorted(rows.items()) if b"100" <= row[0] < b"200"]
        if self.capabilities.is_ordered:
            assert found == sorted(found)
            assert part == sorted(part)
        assert list(base.scan(b"5", b"4")) == []

    def test_scan_of_a_prefix(self, base: Base) -> None:
        keys = [b"a", b"ab", b"ab\xff\xff", b"ac", b"b", b"\xfe\xff", b"\xfe\xff\xff"]
        base.apply([Put(key, b"") for key in keys])
        for prefix in (b"a", b"ab", b"ab\xff", b"\xfe\xff", b"x"):
            found = {key for key, _ in base.scan(prefix, end_of_prefix(prefix))}
            assert found == {key for key in keys if key.startswith(prefix)}

    def test_snapshot_shows_one_moment(self, base: Base) -> None:
        base.apply([Put(b"a", b"1"), Put(b"b", b"1")])
        if not self.capabilities.has_atomic_scan:
            with pytest.raises(LackingError, match="one moment"):
                base.snapshot()
            return
        with base.snapshot() as before:
            base.apply([Put(b"a", b"2"), Delete(b"b"), Put(b"c", b"2")])
            assert list(before.rows()) == [(b"a", b"1"), (b"b", b"1")]
            assert (before.get(b"a"), before.get(b"b"), before.get(b"c")) == (b"1", b"1", None)
            assert list(before.rows(b"b", b"c")) == [(b"b", b"1")]
        with base.snapshot() as after:
            assert dict(after.rows()) == {b"a": b"2", b"c": b"2"}

    def test_batch_may_depend_on_a_range(self, base: Base) -> None:
        base.apply([Put(b"r/%d" % number, b"1") for number in range(5)])
        rows = sorted(base.scan(b"r/", b"r0"))
        same = SameRange(b"r/", b"r0", digest(rows))
        if not self.capabilities.has_atomic_scan:
            with pytest.raises(LackingError):
                base.apply([same])
            return
        base.apply([same, Put(b"other", b"1")])
        for change in (Put(b"r/9", b"1"), Put(b"r/9", b"2"), Delete(b"r/9"), Delete(b"r/0")):
            base.apply([change])
            if dict(base.scan(b"r/", b"r0")) == dict(rows):
                base.apply([same])
            else:
                with pytest.raises(ChangedError):
                    base.apply([same, Put(b"other", b"2")])
        assert base.get(b"other") == b"1"

    # Lifetimes

    def test_key_ends_after_its_lifetime(self, base: Base) -> None:
        base.apply([Put(b"short", b"1", 0.3), Put(b"long", b"1", 3600.0), Insert(b"i", b"1", 0.3)])
        assert base.read([b"short", b"long", b"i"]) in ([b"1", b"1", b"1"], [None, b"1", None])
        wait_until(lambda: base.read([b"short", b"i"]) == [None, None])
        assert [key for key, _ in base.scan()] == [b"long"]
        with pytest.raises(KeyMissingError):
            base.apply([Update(b"short", b"2")])
        base.apply([Insert(b"short", b"2")])
        assert base.get(b"short") == b"2"

    def test_lifetimes_are_renewed_kept_and_taken_away(self, base: Base) -> None:
        base.apply([Put(b"renewed", b"1", 0.4), Put(b"updated", b"1", 0.4), Put(b"put", b"1", 0.4),
                    Put(b"endless", b"1", 0.4), Put(b"counted", b"1", 0.4)])  # fmt: skip
        base.apply([Renew(b"renewed", 3600.0), Update(b"updated", b"2"), Put(b"put", b"2"),
                    Renew(b"endless", None), Increment(b"counted")])  # fmt: skip
        wait_until(lambda: base.read([b"updated", b"counted"]) == [None, None])
        assert base.read([b"renewed", b"put", b"endless"]) == [b"1", b"2", b"1"]

    # Requests

    def test_request_is_carried_out_once(self, base: Base) -> None:
        """KVB-3: a client that has lost the answer asks again."""
        first = Request(b"client", 1)
        assert base.apply([Increment(b"n"), Put(b"a", b"1")], first) == [1, None]
        for _ in range(2):
            assert base.apply([Increment(b"n"), Put(b"a", b"1")], first) == [1, None]
        assert base.apply([Increment(b"n")], Request(b"client", 2)) == [2]
        assert base.apply([Increment(b"n")], Request(b"other", 1)) == [3]
        with pytest.raises(StaleRequestError, match="request 1 comes after request 2"):
            base.apply([Increment(b"n")], first)
        assert base.get(b"n") == b"3"
        assert {key for key, _ in base.scan()} == {b"n", b"a"}

    def test_refused_request_may_be_tried_again(self, base: Base) -> None:
        request = Request(b"client", 1)
        with pytest.raises(KeyMissingError):
            base.apply([Update(b"a", b"2")], request)
        base.apply([Put(b"a", b"1")])
        base.apply([Update(b"a", b"2")], request)
        assert base.get(b"a") == b"2"

    # Many clients

    def test_many_readers(self, base: Base) -> None:
        """KVB-4: threads read at random, and find the inserted rows."""
        rows = {b"%d" % number: b"value %d" % number for number in range(self.rows_many // 4)}
        self.fill(base, rows)

        def read(seed: int) -> None:
            random = Random(seed)
            for key in random.choices(list(rows), k=self.rows_many // 10):
                assert base.get(key) == rows[key]

        run_together([partial(read, seed) for seed in range(8)])

    def test_many_readers_and_writers(self, base: Base) -> None:
        """KVB-4: each thread updates eight rows, and reads all rows."""
        rows = [b"%d" % number for number in range(64)]
        base.apply([Insert(key, b"0") for key in rows])

        def work(own: int) -> None:
            random = Random(own)
            for value in range(1, self.rows_many // 40):
                key = rows[own * 8 + random.randrange(8)]
                base.apply([Update(key, b"%d" % value)])
                assert base.get(key) == b"%d" % value
                for other in random.choices(rows, k=10):
                    assert int(base.get(other) or -1) >= 0

        run_together([partial(work, own) for own in range(8)])

    def test_increments_of_many_clients_add_up(self, base: Base) -> None:
        each = self.rows_many // 20
        run_together([lambda: [base.apply([Increment(b"n")]) for _ in range(each)]] * 8)
        assert base.get(b"n") == b"%d" % (8 * each)

    def test_one_of_many_inserts(self, base: Base) -> None:
        keys = [b"%d" % number for number in range(self.rows_many // 40)]

        def insert(name: int) -> list[bytes]:
            won = []
            for key in keys:
                try:
                    base.apply([Insert(key, b"%d" % name)])
                    won.append(key)
                except KeyPresentError:
                    pass
            return won

        won = run_together([partial(insert, name) for name in range(6)])
        assert sorted(key for part in won for key in part) == sorted(keys)

    def test_update_is_never_seen_in_part(self, base: Base) -> None:
        """KVB-4: reads while a long batch is carried out see all of it or nothing."""
        keys = [b"%06d" % number for number in range(self.rows_in_batch)]
        base.apply([Put(key, b"000") for key in keys])
        with Beside(lambda: base.read([keys[0], keys[len(keys) // 2], keys[-1]])) as reads:
            for value in range(1, 1000):
                base.apply([Update(key, b"%03d" % value) for key in keys])
                if value >= 5 and len(reads.results) >= 2:  # the reader has had its turns
                    break
        seen = [tuple(found) for found in reads.results]
        assert all(len(set(found)) == 1 for found in seen)
        assert seen == sorted(seen)
        assert len(seen) >= 2

    def test_bulk_put_is_never_half_visible(self, base: Base) -> None:
        """KVB-4: once one new value was read, all later reads are new."""
        keys = [b"%06d" % number for number in range(self.rows_in_batch)]
        base.apply([Put(key, b"old") for key in keys])
        random = Random(1)
        with Beside(lambda: base.get(random.choice(keys))) as reads:
            base.apply([Put(key, b"new") for key in keys])
        assert [value == b"new" for value in reads.results] == sorted(
            value == b"new" for value in reads.results
        )

    def test_atomic_scan_beside_updates_and_deletes(self, base: Base) -> None:
        """KVB-4: writers move a unit from row to row, and delete and insert rows in pairs."""
        if not self.capabilities.has_atomic_scan:
            return
        rows = self.rows_many // 4
        self.fill(base, {b"%05d" % number: b"10" for number in range(rows)})
        stop = threading.Event()

        def move(seed: int) -> None:
            random = Random(seed)
            while not stop.is_set():
                one, two = (b"%05d" % number for number in random.sample(range(rows), 2))
                values = base.read([one, two])
                steps: list[Step] = [Same(one, values[0]), Same(two, values[1])]
                total = sum(int(value or 0) for value in values)
                steps += [Delete(one)] if values[0] else []
                steps += [Put(two, b"%d" % total)]
                try:
                    base.apply(steps)
                except ChangedError:
                    pass

        with ThreadPoolExecutor(3) as pool:
            movers = [pool.submit(move, seed) for seed in range(3)]
            try:
                for _ in range(10):
                    with base.snapshot() as moment:
                        assert sum(int(value) for _, value in moment.rows()) == 10 * rows
            finally:
                stop.set()
            for mover in movers:
                mover.result()
        assert sum(int(value) for _, value in base.scan()) == 10 * rows

    # Watches

    def test_watch_reports_changes_of_its_keys(self, base: Base) -> None:
        base.apply([Put(b"w/a", b"1")])
        with base.watch(b"w/") as watch:
            assert not watch.wait(0.05)
            for step in (Put(b"w/b", b"1"), Update(b"w/a", b"2"), Delete(b"w/a")):
                base.apply([step])
                assert watch.wait(SOON_S)
            base.apply([Put(b"x", b"1")])
            assert not watch.wait(0.2)

    def test_watch_wakes_a_waiting_thread(self, base: Base) -> None:
        with base.watch(b"w/") as watch, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(watch.wait, SOON_S)
            base.apply([Put(b"w/a", b"1")])
            assert waiting.result()

    def test_two_openings_share_one_base(self, tmp_path: Path) -> None:
        if not self.capabilities.is_shared:
            return
        with self.make_base(tmp_path / "base") as one, self.make_base(tmp_path / "base") as two:
            with two.watch(b"") as watch:
                one.apply([Put(b"a", b"1")])
                assert watch.wait(SOON_S)
            assert two.get(b"a") == b"1"

    # At random

    def test_random_operations_agree_with_a_dictionary(self, base: Base) -> None:
        machine: Any = lambda: BaseWalk(base)  # noqa: E731
        run_state_machine_as_test(machine, settings=settings(stateful_step_count=30))


class Beside(Generic[T]):
    """Calls a function again and again in a thread during a `with`; `results` in order."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.results: list[T] = []
        self._call = call
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._running = self._pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        with self._pool:
            self._running.result()

    def _run(self) -> None:
        while True:
            is_last = self._stop.is_set()
            self.results.append(self._call())
            if is_last:
                return


def run_together(calls: list[Callable[[], T]]) -> list[T]:
    """Call functions in threads at the same time; return their results, or raise."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [running.result() for running in [pool.submit(call) for call in calls]]


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait until a condition holds, at most for `SOON_S`."""
    deadline_s = time.monotonic() + SOON_S
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
