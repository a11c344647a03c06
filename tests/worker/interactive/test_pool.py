"""Tests which warm process is chosen for a task, and when idle processes end."""

from __future__ import annotations

from ciel.worker.state.pool import IDLE_MAX, IDLE_MAX_S, Pool


def keys(*sets: str) -> list[frozenset[str]]:
    return [frozenset(letters) for letters in sets]


def test_only_a_process_of_the_same_kind_serves() -> None:
    pool = Pool()
    pool.put(1, "a", (), 0.0)
    assert pool.take("b", ()) is None
    assert pool.take("a", ()) == 1
    assert pool.take("a", ()) is None
    assert len(pool) == 0


def test_the_one_that_was_busy_last_serves_first() -> None:
    """The other processes therefore stay idle and expire."""
    pool = Pool()
    for number in (1, 2, 3):
        pool.put(number, "a", (), float(number))
    assert [pool.take("a", inputs) for inputs in ((), ("x",), ())] == [3, 2, 1]


def test_the_one_that_has_most_inputs_at_hand_serves_first() -> None:
    pool = Pool()
    pool.put(1, "a", keys("xy"), 0.0)
    pool.put(2, "a", keys("x", "z"), 0.0)
    pool.put(3, "a", keys("q"), 0.0)
    pool.put(4, "b", keys("xyz"), 0.0)
    assert pool.take("a", ("x", "y", "z")) == 2  # has two, as 1 has, and was added later
    assert pool.take("a", ("x", "y", "z")) == 1
    assert pool.take("a", ("x",)) == 3  # a process without the inputs is better than a new one
    assert pool.take("a", ("x",)) is None


def test_sets_of_keys_count_together_and_each_object_once() -> None:
    pool = Pool()
    pool.put(1, "a", keys("xy", "yx", "y"), 0.0)
    pool.put(2, "a", keys("xyz"), 0.0)
    pool.put(3, "a", (), 0.0)
    assert pool.take("a", ("x", "y", "z")) == 2


def test_a_process_that_is_gone_is_not_taken() -> None:
    pool = Pool()
    pool.put(1, "a", (), 0.0)
    pool.put(2, "a", (), 0.0)
    pool.remove(2)
    pool.remove(2)
    pool.remove(7)
    assert pool.take("a", ()) == 1


def test_idle_processes_expire_each_by_its_own_time() -> None:
    pool = Pool(10.0)
    assert pool.due_s() is None
    pool.put(1, "a", (), 100.0)
    pool.put(2, "b", (), 105.0)
    assert pool.due_s() == 110.0
    assert pool.expired(109.9) == []
    assert pool.expired(110.0) == [1]
    assert pool.due_s() == 115.0
    assert pool.expired(1000.0) == [2]
    assert pool.due_s() is None
    assert pool.take("a", ()) is None


def test_serving_starts_the_time_anew() -> None:
    pool = Pool()
    pool.put(1, "a", (), 0.0)
    pool.put(2, "a", (), 1.0)
    assert pool.take("a", ()) == 2
    assert pool.take("a", ()) == 1
    pool.put(1, "a", (), 20.0)
    assert pool.due_s() == 20.0 + IDLE_MAX_S
    assert pool.expired(IDLE_MAX_S) == []


def test_of_too_many_the_longest_idle_go() -> None:
    pool = Pool()
    for number in range(IDLE_MAX):
        assert pool.put(number, f"kind{number % 3}", (), float(number)) == []
    assert pool.put(1000, "kind0", (), 1000.0) == [0]
    assert len(pool) == IDLE_MAX
    assert pool.put(1001, "other", (), 1001.0) == [1]
    assert pool.due_s() == 2.0 + IDLE_MAX_S
