"""Tests bundles of calls: results, failures, and calls that become separate tasks."""

from __future__ import annotations

import threading
from typing import Any

import numpy
import pytest

import ciel
from ciel.python import calls, contents
from ciel.python.packing import pack, unpack


def add(one: int, other: int) -> int:
    return one + other


def divide(one: int, other: int) -> float:
    return one / other


def test_each_batch_is_an_output_with_the_results_in_order(cluster: Any) -> None:
    task = cluster.run([(add, 1, 2), (add, 3, 4)], [(add, 5, 6)])
    assert (task.values(0), task.values(1)) == ([3, 7], [11])
    assert task.leak == ""


def test_a_call_that_raises_fails_alone(cluster: Any) -> None:
    first, error, last = cluster.run([(divide, 1, 2), (divide, 1, 0), (divide, 3, 2)]).values()
    assert (first, last) == (0.5, 1.5)
    assert isinstance(error, ZeroDivisionError)


def test_the_only_call_of_a_task_fails_the_task(cluster: Any) -> None:
    reason, details = cluster.call(divide, 1, 0).failure
    assert reason == "RAISED"
    assert details["text"].endswith("ZeroDivisionError: division by zero\n")


def test_a_traceback_has_the_frames_of_the_user_and_none_of_the_program(cluster: Any) -> None:
    def outer() -> float:
        return divide(1, 0)

    (error, _) = cluster.run([(outer,), (add, 1, 2)]).values()
    text = str(error.__cause__)
    assert "in outer" in text
    assert "return one / other" in text
    assert "executors/programs" not in text


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_exception_that_would_end_a_program_is_a_result(
    cluster: Any, raised: BaseException
) -> None:
    def leave() -> None:
        raise raised

    error, value = cluster.run([(leave,), (add, 1, 2)]).values()
    assert isinstance(error, ciel.RemoteError)
    assert value == 3


def test_a_call_takes_the_result_of_an_earlier_one(cluster: Any) -> None:
    packed, _ = packed_with_future()
    use = calls.Use(-1, 0, 0, False, calls.AS_VALUE)
    later = calls.Call(0, packed, (use,), name="later")
    assert cluster.run([(add, 1, 2), later]).values() == [3, 13]


def test_a_call_with_a_failed_argument_has_the_same_error(cluster: Any) -> None:
    packed, _ = packed_with_future()
    use = calls.Use(-1, 0, 0, False, calls.AS_VALUE)
    later = calls.Call(1, packed, (use,), name="later")
    first, second, third = cluster.run([(divide, 1, 0), later, (add, 1, 2)]).values()
    assert type(first) is type(second) is ZeroDivisionError
    assert third == 3


def packed_with_future() -> Any:
    """Pack the arguments (a future, 10)."""
    from ciel.python.futures import Future
    from ciel.python.packing import pack_with_futures

    return pack_with_futures(((Future(), 10), {}))


def test_several_values_are_outcomes_of_their_own(cluster: Any) -> None:
    def two() -> tuple[int, str]:
        return 1, "x"

    call = calls.Call(0, pack(((), {})), name="two", returns=2)
    assert cluster.run([(two,), call]).values() == [(1, "x"), 1, "x"]
    wrong = calls.Call(0, pack(((1, 2), {})), name="add", returns=2)
    *_, one, other = cluster.run([(add, 1, 2), wrong]).values()
    assert "declared to return 2 values" in str(one)
    assert str(one) == str(other)


def test_a_result_that_cannot_be_pickled_is_an_error_with_its_name(cluster: Any) -> None:
    def lock() -> Any:
        return {"held": threading.Lock()}

    error, value = cluster.run([(lock,), (add, 1, 2)]).values()
    assert isinstance(error, ciel.PackingError)
    assert "the result of lock: ['held'] _thread.lock cannot be pickled" in str(error)
    assert value == 3


def test_arguments_that_cannot_be_unpickled_fail_one_call(cluster: Any) -> None:
    class Closed:
        def __reduce__(self) -> Any:
            return refuse, ()

    error, value = cluster.run([(len, Closed()), (add, 1, 2)]).values()
    assert isinstance(error, ValueError)
    assert value == 3


def refuse() -> None:
    raise ValueError("no")


def test_a_large_result_is_written_to_a_file(cluster: Any) -> None:
    def zeros() -> Any:
        return numpy.zeros(100_000)

    task = cluster.call(zeros)
    assert task.value.sum() == 0
    (opened,) = task.channel.named("open_output")
    (closed,) = task.channel.named("close_output")
    assert opened["size"] == closed["size"] == task.channel.files[0].stat().st_size


def test_an_array_of_the_store_is_not_copied(cluster: Any) -> None:
    def ones() -> Any:
        array = ciel.empty(100_000)
        array[:] = 1
        return array

    task = cluster.call(ones)
    assert task.value.sum() == 100_000
    assert len(task.channel.named("open_output")) == 1


def test_an_array_of_the_store_that_survives_its_task_is_a_leak(cluster: Any) -> None:
    kept: list[Any] = []

    def ones() -> Any:
        kept.append(ciel.empty(10))
        return kept[0]

    ones.keeps_state = True  # type: ignore[attr-defined]  # see `functions.Loaded`
    assert "array" in cluster.call(ones).leak


@pytest.mark.parametrize("value, content", [(b"bytes", b"bytes"), ("text", b"text")])
def test_a_program_reads_the_raw_value(cluster: Any, value: Any, content: bytes) -> None:
    def give() -> Any:
        return value

    assert cluster.call(give, raw=True).raw() == content


def test_a_raw_value_has_a_type_that_programs_can_read(cluster: Any) -> None:
    _, details = cluster.call(add, 1, 2, raw=True).failure
    assert "must be bytes or a string, not int" in details["text"]


# --- maps -----------------------------------------------------------------------------------------


def map_of(rows: list[tuple[Any, ...]], limit_s: float = 0.0) -> calls.Call:
    return calls.Call(0, pack(((rows, False), {})), is_map=True, name="map", limit_s=limit_s)


def test_a_map_returns_the_results_of_its_rows(cluster: Any) -> None:
    _, mapped = cluster.run([(add, 0, 0), map_of([(1, 2), (3, 4)])]).values()
    assert mapped == calls.Mapped([3, 7], None)


def test_a_map_ends_at_the_first_row_that_raises(cluster: Any) -> None:
    _, mapped = cluster.run([(divide, 0, 1), map_of([(1, 2), (1, 0), (3, 2)])]).values()
    assert mapped.values == [0.5]
    assert b"ZeroDivisionError" in mapped.error


def test_a_map_ends_before_the_first_result_that_cannot_be_pickled(cluster: Any) -> None:
    def lock_at(place: int) -> Any:
        return threading.Lock() if place == 2 else place

    _, mapped = cluster.run([(lock_at, 0), map_of([(0,), (1,), (2,), (3,)])]).values()
    assert mapped.values == [0, 1]
    assert b"lock" in mapped.error


def test_a_map_over_its_time_limit_says_how_far_it_came(cluster: Any) -> None:
    outcomes = cluster.run([(add, 0, 0), map_of([(1, 1)] * 50, limit_s=1e-9)]).outcomes()
    assert [outcome.kind for outcome in outcomes] == [contents.VALUE, contents.VALUE, contents.CUT]
    assert outcomes[2].packed.head == b"1"
    assert unpack(*outcomes[1].packed).values == [2]


# --- other tasks ----------------------------------------------------------------------------------


def test_a_bundle_that_its_program_died_of_runs_call_by_call(cluster: Any) -> None:
    task = cluster.run([(add, 1, 2), (divide, 1, 0)], [(add, 3, 4)], attempt=2)
    first, error = task.values(0)
    assert (first, task.values(1)) == (3, [7])
    assert isinstance(error, ZeroDivisionError)
    assert cluster.ran == ["add", "divide", "add"]


def test_a_call_that_runs_again_alone_runs_here(cluster: Any) -> None:
    assert cluster.run([(add, 1, 2)], attempt=2).value == 3
    assert cluster.ran == []


def test_batches_that_have_not_started_go_to_free_slots(cluster: Any) -> None:
    cluster.slots = 1
    task = cluster.run([(cluster_shares, 0)], [(add, 1, 2)], [(add, 3, 4)])
    assert (task.values(0), task.values(1)) == ([True], [3])
    (spawned,) = task.channel.named("spawn")
    assert spawned["takes"] == [2]
    assert cluster.run_spawned(spawned)["__ref__"][0] == "val"


def cluster_shares(_: int) -> bool:
    """Share once, as the timer would, and return whether there is more to share."""
    from ciel.python import sessions

    session: Any = sessions.of_task()
    return bool(session._host._sharing.share())


# --- the state of functions -----------------------------------------------------------------------


def test_each_call_starts_from_the_state_that_was_sent(cluster: Any) -> None:
    seen: list[int] = []

    def count(step: int) -> int:
        seen.append(step)
        return len(seen)

    assert cluster.run([(count, 1), (count, 1)], [(count, 1)]).values(0) == [1, 1]
    assert seen == []
    _, mapped = cluster.run([(count, 1), map_of([(1,), (2,)])]).values()
    assert mapped.values == [1, 1]


def test_a_function_may_keep_its_state_from_call_to_call(cluster: Any) -> None:
    seen: list[int] = []

    def count(step: int) -> int:
        seen.append(step)
        return len(seen)

    count.keeps_state = True  # type: ignore[attr-defined]  # see `functions.Loaded`
    again = calls.Call(0, pack(((1,), {})), name="count")
    assert cluster.run([(count, 1), again, again]).values() == [1, 2, 3]
