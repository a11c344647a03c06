import pytest

from ciel.master.state.placement.credit import PREFETCH_MAX, PREFETCH_MIN, PREFETCH_S, Credit


def after(slots: int, run_s: float, count: int = 200) -> Credit:
    credit = Credit(slots)
    for _ in range(count):
        credit.learn(run_s)
    return credit


@pytest.mark.parametrize("slots", [1, 4, 64])
def test_a_new_worker_gets_its_slots_and_a_small_prefetch(slots: int) -> None:
    assert slots + PREFETCH_MIN <= Credit(slots).limit <= 4 * slots


@pytest.mark.parametrize("slots", [1, 4])
def test_long_tasks_are_prefetched_one_at_a_time(slots: int) -> None:
    assert after(slots, 10.0).limit == slots + PREFETCH_MIN


def test_short_tasks_are_prefetched_so_that_a_round_trip_leaves_no_slot_idle() -> None:
    credit = after(2, 0.001)
    ahead_s = (credit.limit - credit.slots) * 0.001 / credit.slots
    assert ahead_s == pytest.approx(PREFETCH_S, rel=0.1)


@pytest.mark.parametrize("run_s", [0.0, 1e-9, -5.0])
def test_the_prefetch_has_a_limit(run_s: float) -> None:
    assert after(1, run_s).limit == 1 + PREFETCH_MAX


def test_the_credit_adapts_within_a_few_tasks() -> None:
    credit = after(1, 10.0)
    for _ in range(60):
        credit.learn(0.0001)
    assert credit.limit > 100
    credit.learn(10.0)
    assert credit.limit == 1 + PREFETCH_MIN
