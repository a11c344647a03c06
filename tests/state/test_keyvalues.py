from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from ciel.state.batches import Put
from ciel.state.errors import (
    BaseNameError,
    ChangedError,
    KeyMissingError,
    KeyPresentError,
    LeaseLostError,
    NotANumberError,
)
from ciel.state.interface import Base
from ciel.state.keyvalues import KeyValues
from ciel.state.transactions import Transaction
from ciel.testing.state.suite import SOON_S, run_together

from .conftest import open_kv


def test_one_key(kv: KeyValues) -> None:
    kv.put("a", 1)
    kv.insert("b", [2])
    kv.update("a", (3,))
    assert (kv["a"], kv.get("b"), kv.get("c"), kv.get("c", 7)) == ((3,), [2], None, 7)
    with pytest.raises(KeyError, match="'scores:c' is not in the base"):
        kv["c"]
    with pytest.raises(KeyPresentError):
        kv.insert("a", 1)
    with pytest.raises(KeyMissingError):
        kv.update("c", 1)
    kv.delete("b")
    with pytest.raises(KeyMissingError):
        kv.delete("b")
    assert ("a" in kv, "b" in kv) == (True, False)
    assert kv.increment("n", 5) == 5
    assert kv["n"] == 5
    with pytest.raises(NotANumberError):
        kv.increment("a")
    kv["x"] = None
    assert kv.get_many(["a", "b", "n", "x"]) == {"a": (3,), "n": 5, "x": None}
    del kv["x"]
    assert list(kv) == ["a", "n"]


def test_compare_and_set(kv: KeyValues) -> None:
    kv.put("a", 1)
    assert kv.compare_and_set("a", 1, 2)
    assert not kv.compare_and_set("a", 1, 3)
    assert not kv.compare_and_set("none", None, 3)
    assert kv["a"] == 2


def test_names_keep_rows_apart(base: Base) -> None:
    one, two = open_kv(base, "one"), open_kv(base, "two")
    one.put("a", 1)
    two.put("a", 2)
    one.lock("l").acquire()
    one.queue("q").put(1)
    assert (one["a"], two["a"]) == (1, 2)
    assert list(one.scan()) == [("a", 1)]
    assert one.clear() == 1
    assert list(two) == ["a"]
    for name in ("a:b", "a/b", "@x", "a!", "x" * 65, "a b"):
        with pytest.raises(BaseNameError, match="cannot name a key-value base"):
            open_kv(base, name)


@pytest.mark.requirement("KVB-2")
def test_scans(kv: KeyValues) -> None:
    kv.bulk_put({f"user/{n}": {"age": n} for n in range(50)} | {"v": 1})
    old = list(kv.scan(prefix="user/", where=lambda key, value: value["age"] > 47))
    assert old == [("user/48", {"age": 48}), ("user/49", {"age": 49})]
    assert kv.atomic_scan("user/1", "user/11") == [("user/1", {"age": 1}), ("user/10", {"age": 10})]
    assert kv.atomic_scan("user/9", where=lambda key, value: value == 1) == [("v", 1)]
    with kv.snapshot() as moment:
        kv.put("v", 2)
        assert moment.get("v") == 1
        assert dict(moment.scan("v")) == {"v": 1}
    with pytest.raises(ValueError, match="either a prefix"):
        kv.scan("a", prefix="b")


def test_keys_may_be_any_text(kv: KeyValues) -> None:
    for key in ("", "ä", "\x00", "a:b", "😀", "\udcff"):
        kv.put(key, key == "")
        assert kv[key] == (key == "")
    assert set(kv) == {"", "ä", "\x00", "a:b", "😀", "\udcff"}


@pytest.mark.requirement("KVB-2")
def test_transaction_swaps(kv: KeyValues) -> None:
    kv.bulk_put({"x": 1, "y": 2})
    with kv.transaction() as t:
        t["x"], t["y"] = t["y"], t["x"]
        assert t["x"] == 2
        assert kv["x"] == 1
        del t["y"]
        t["y"] = 5
        t.insert("z", 1)
        assert "z" in t
        assert dict(t.scan(prefix="")) == {"x": 2, "y": 5, "z": 1}
    assert kv.get_many("xyz") == {"x": 2, "y": 5, "z": 1}


def carry_out(kv: KeyValues, body: Callable[[Transaction], object]) -> None:
    with kv.transaction() as t:
        body(t)


def in_turn(*calls: Callable[[], object]) -> None:
    for call in calls:
        call()


def test_transaction_writes_nothing_if_the_block_raises(kv: KeyValues) -> None:
    kv.put("x", 1)
    with pytest.raises(ZeroDivisionError):
        carry_out(kv, lambda t: in_turn(lambda: t.put("x", 2), lambda: 1 // 0))
    with pytest.raises(KeyMissingError):
        carry_out(kv, lambda t: in_turn(lambda: t.put("x", 2), lambda: t["none"]))
    assert kv["x"] == 1


def test_transaction_is_refused_if_what_it_has_read_changes(kv: KeyValues) -> None:
    kv.put("x", 1)
    with pytest.raises(ChangedError, match="'scores:x' has changed"):
        carry_out(kv, lambda t: in_turn(lambda: t.put("y", t["x"]), lambda: kv.put("x", 2)))
    with pytest.raises(ChangedError):
        carry_out(kv, lambda t: in_turn(lambda: t.put("y", "new" in t), lambda: kv.put("new", 2)))
    with pytest.raises(ChangedError):
        carry_out(
            kv,
            lambda t: in_turn(
                lambda: t.put("y", len(t.scan(prefix="r/"))), lambda: kv.put("r/1", 2)
            ),
        )
    assert "y" not in kv


def test_block_that_saw_two_moments_is_refused_not_failed(kv: KeyValues) -> None:
    kv.bulk_put({"x": 1, "y": 1})

    def body(t: Transaction) -> None:
        x = t["x"]
        kv.bulk_put({"x": 2, "y": 2})
        assert x == t["y"]

    with pytest.raises(ChangedError):
        carry_out(kv, body)


def test_transact_tries_again(kv: KeyValues) -> None:
    kv.put("n", 0)

    def add(t: Any) -> int:
        t["n"] = t["n"] + 1
        return int(t["n"])

    results = run_together([lambda: [kv.transact(add) for _ in range(20)]] * 4)
    assert sorted(number for part in results for number in part) == list(range(1, 81))
    assert kv["n"] == 80


@pytest.mark.requirement("KVB-3")
def test_transaction_of_a_task_is_carried_out_once(base: Base) -> None:
    """KVB-3: a second attempt sees that the first has done it."""
    for attempt in range(3):
        kv = open_kv(base, task_id="task:1")
        with kv.transaction(once="add") as t:
            assert t.was_done == (attempt > 0)
            t["n"] = t.get("n", 0) + 1
        kv.transact(lambda t: t.put("m", t.get("m", 0) + 1), once="other")
    other = open_kv(base, task_id="task:2")
    with other.transaction(once="add") as t:
        t["n"] = t["n"] + 1
    assert (other["n"], other["m"]) == (2, 1)
    with pytest.raises(ValueError, match="is for tasks"):
        open_kv(base).transaction(once="add")


@pytest.mark.requirement("KVB-2")
def test_lock_excludes(kv: KeyValues) -> None:
    inside = []

    def work() -> None:
        for _ in range(10):
            with kv.lock("table") as lock:
                assert lock.is_held
                inside.append(lock.fence)
                count = kv.get("count", 0)
                kv.put("count", count + 1)

    run_together([work] * 4)
    assert kv["count"] == 40
    assert inside == list(range(1, 41))


def test_lock_times_out_and_is_released(kv: KeyValues) -> None:
    one, two = kv.lock("l"), kv.lock("l")
    assert one.acquire()
    assert not two.acquire(timeout_s=0.05)
    with pytest.raises(RuntimeError, match="acquired already"):
        one.acquire()
    with pytest.raises(RuntimeError, match="is not acquired"):
        two.release()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(two.acquire, SOON_S)
        one.release()
        assert waiting.result()
    two.release()


def test_lock_is_renewed_while_its_holder_lives(kv: KeyValues) -> None:
    with kv.lock("l", lease_s=0.3) as lock:
        assert not kv.lock("l").acquire(timeout_s=0.8)
        assert lock.is_held


def test_lock_of_a_dead_holder_is_free_after_its_lease(kv: KeyValues) -> None:
    dead = kv.lock("l", lease_s=0.3)
    dead.acquire()
    dead._lease.stop()  # type: ignore[union-attr]  # as if its process had died
    with kv.lock("l") as lock:
        assert lock.fence == dead.fence + 1
        assert not dead.is_held
        with pytest.raises(LeaseLostError, match="the lock 'l' was held longer"):
            dead.release()


def test_queue_is_in_order(kv: KeyValues) -> None:
    work = kv.queue("work")
    work.put("a")
    work.put_many([(1,), None, {"x": 1}])
    assert len(work) == 4
    assert [work.get(timeout_s=0) for _ in range(4)] == ["a", (1,), None, {"x": 1}]
    with pytest.raises(queue.Empty):
        work.get(timeout_s=0.02)


def test_queue_gives_each_entry_to_one_client(kv: KeyValues) -> None:
    work = kv.queue("work")
    work.put_many(range(100))
    lists = run_together([lambda: list(_drain(kv))] * 4)
    assert sorted(entry for part in lists for entry in part) == list(range(100))


def _drain(kv: KeyValues) -> Any:
    while True:
        try:
            yield kv.queue("work").get(timeout_s=0)
        except queue.Empty:
            return


def test_waiting_client_gets_an_entry(kv: KeyValues) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(kv.queue("work").get, SOON_S)
        kv.queue("work").put(7)
        assert waiting.result() == 7


def test_transaction_appends_to_a_queue(kv: KeyValues) -> None:
    work = kv.queue("work")
    work.put(0)
    with kv.transaction() as t:
        t["seen"] = True
        t.put_many(work, [1, 2])
        t.put_many(work, [])
        t.put_many(work, [3])
        assert len(work) == 1
    work.put(4)
    with pytest.raises(ChangedError):
        carry_out(kv, lambda t: in_turn(lambda: t.put_many(work, [9]), lambda: work.put(5)))
    assert [work.get(timeout_s=0) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    assert len(work) == 0


def test_claimed_entry_is_confirmed_or_comes_back(kv: KeyValues) -> None:
    work = kv.queue("work")
    work.put_many([1, 2])
    one = work.claim(timeout_s=0)
    two = work.claim(timeout_s=0)
    assert (one.value, two.value, len(work)) == (1, 2, 2)
    with pytest.raises(queue.Empty):
        work.get(timeout_s=0)
    two.done()
    one.give_back()
    with pytest.raises(ZeroDivisionError), work.claim(timeout_s=0) as again:
        1 // (again.value - 1)
    with work.claim(timeout_s=0) as again:
        assert again.value == 1
    assert len(work) == 0


def test_entry_of_a_dead_client_comes_back(kv: KeyValues) -> None:
    work = kv.queue("work")
    work.put(1)
    dead = work.claim(timeout_s=0, lease_s=0.3)
    dead._lease.stop()
    with work.claim(timeout_s=SOON_S) as again:
        assert again.value == 1
    with pytest.raises(LeaseLostError):
        dead.done()


def test_watched_values(kv: KeyValues) -> None:
    with kv.watch("done") as changes:
        assert changes.next(0) is None
        with pytest.raises(TimeoutError, match="has not changed within"):
            changes.next(0.02)
        kv.put("done", 1)
        assert changes.next(SOON_S) == 1
        threading.Timer(0.05, lambda: kv.put("done", 2)).start()
        assert next(iter(changes)) == 2
        kv.delete("done")
        assert changes.next(SOON_S) is None


def test_event(kv: KeyValues) -> None:
    event = kv.event("ready")
    assert not event.wait(0.02)
    event.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(event.wait, SOON_S)
        kv.event("ready").set()
        assert waiting.result()
    assert event.is_set()
    event.clear()
    assert not event.is_set()


def test_barrier_opens_again_and_again(kv: KeyValues) -> None:
    rounds: list[int] = []

    def meet(party: int) -> None:
        for number in range(5):
            threading.Event().wait(random.random() * 0.01)
            kv.barrier("b", 3).wait(SOON_S)
            rounds.append(number)

    run_together([partial(meet, party) for party in range(3)])
    assert all(number - place // 3 in (-1, 0, 1) for place, number in enumerate(rounds))
    with pytest.raises(TimeoutError, match="2 of 3 have not arrived"):
        kv.barrier("b", 3).wait(0.02)


def test_base_stays_as_it_is_for_other_programs(base: Base, kv: KeyValues) -> None:
    base.apply([Put(b"scores:raw", b"hello"), Put(b"scores:n", b"41")])
    assert kv["raw"] == b"hello"
    assert kv.increment("n") == 42
    kv.put("list", [1, 2])
    assert base.get(b"scores:list") == b"[1,2]"
