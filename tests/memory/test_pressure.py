"""How much memory a server offers while its host is short of memory (pure decisions)."""

from __future__ import annotations

from ciel.memory.host import HostMemory
from ciel.memory.pressure import CALM_S, MOVE_S, SETTLE_S, Offer

GIB = 1 << 30
CALM = HostMemory(16 * GIB, 8 * GIB, 0, 0.0, 0.0)
WAITING = CALM._replace(some_percent=30.0)
STALLED = WAITING._replace(full_percent=20.0)


def scarce(available_bytes: int) -> HostMemory:
    return CALM._replace(available_bytes=available_bytes)


def test_a_calm_host_offers_everything() -> None:
    offer = Offer(64, 10.0)
    assert not offer.observe(CALM, 64, 64, 0.0)
    assert not offer.observe(CALM._replace(some_percent=10.0), 64, 64, 1.0)
    assert offer.extents == 64


def test_a_host_that_tells_nothing_offers_everything() -> None:
    offer = Offer(64, 10.0)
    assert not offer.observe(HostMemory(0, 0, 0, 0.0, 0.0), 64, 64, 0.0)


def test_a_host_that_waits_offers_an_eighth_less_than_it_holds() -> None:
    offer = Offer(64, 10.0)
    assert offer.observe(WAITING, 32, 32, 0.0)
    assert (offer.extents, offer.is_urgent) == (28, False)


def test_the_next_step_waits_until_the_average_can_have_fallen() -> None:
    offer = Offer(64, 10.0)
    offer.observe(WAITING, 32, 32, 0.0)
    assert not offer.observe(WAITING, 28, 28, SETTLE_S - 1)
    assert offer.observe(WAITING, 28, 28, SETTLE_S)
    assert offer.extents == 24


def test_the_next_step_waits_until_other_servers_have_the_pages() -> None:
    offer = Offer(64, 10.0)
    offer.observe(WAITING, 32, 32, 0.0)
    assert not offer.observe(WAITING, 30, 30, MOVE_S - 1)
    assert offer.observe(WAITING, 30, 30, MOVE_S)
    assert offer.extents == 24


def test_a_host_without_available_memory_offers_less_by_what_it_lacks() -> None:
    offer = Offer(1000, 10.0)
    lacking = 100 << 20
    reserve = 16 * GIB // 20
    assert offer.observe(scarce(reserve - lacking), 500, 500, 0.0)
    assert (offer.extents, offer.is_urgent) == (400, False)
    assert not offer.observe(scarce(reserve - lacking), 450, 450, 1.0)
    assert offer.observe(scarce(reserve - lacking), 400, 400, 2.0)
    assert offer.extents == 300


def test_a_host_on_which_all_tasks_wait_is_urgent() -> None:
    offer = Offer(64, 10.0)
    offer.observe(WAITING, 32, 32, 0.0)
    assert offer.observe(STALLED, 30, 30, 1.0)  # the pages still move
    assert (offer.extents, offer.is_urgent) == (28, True)
    offer = Offer(64, 10.0)
    assert offer.observe(scarce(100 << 20), 8, 8, 0.0)
    assert (offer.extents, offer.is_urgent) == (0, True)


def test_the_offer_does_not_become_negative() -> None:
    offer = Offer(8, 10.0)
    assert offer.observe(WAITING, 0, 0, 0.0)
    assert offer.extents == 0
    assert not offer.observe(WAITING, 0, 0, 100.0)


def test_the_offer_grows_again_in_steps_of_a_minute() -> None:
    offer = Offer(64, 10.0)
    offer.observe(STALLED, 8, 8, 0.0)
    assert (offer.extents, offer.is_urgent) == (7, True)
    offer.observe(CALM, 7, 7, 1.0)
    assert not offer.observe(CALM, 7, 7, CALM_S)
    assert offer.observe(CALM, 7, 7, CALM_S + 1)
    assert (offer.extents, offer.is_urgent) == (15, False)
    assert not offer.observe(CALM, 15, 15, CALM_S + 2)
    for minute in range(2, 9):
        offer.observe(CALM, 15, 15, minute * CALM_S + 1)
    assert offer.extents == 64


def test_some_waiting_lets_the_minute_begin_again() -> None:
    offer = Offer(64, 10.0)
    offer.observe(WAITING, 8, 8, 0.0)
    offer.observe(CALM, 7, 7, 1.0)
    offer.observe(CALM._replace(some_percent=6.0), 7, 7, CALM_S)
    offer.observe(CALM, 7, 7, CALM_S + 1)
    assert not offer.observe(CALM, 7, 7, 2 * CALM_S)
    assert offer.observe(CALM, 7, 7, 2 * CALM_S + 1)


def test_the_offer_does_not_grow_into_the_memory_that_the_host_needs() -> None:
    offer = Offer(64, 10.0)
    offer.observe(WAITING, 8, 8, 0.0)
    needed = 2 * (16 * GIB // 20) + (7 << 20)
    for second in range(300):
        assert not offer.observe(scarce(needed), 7, 7, 1.0 + second)


def test_without_a_limit_the_offer_never_changes() -> None:
    offer = Offer(64, None)
    assert not offer.observe(STALLED._replace(available_bytes=0), 64, 64, 0.0)
    assert offer.extents == 64


def test_pages_without_content_stay_since_they_need_no_memory() -> None:
    offer = Offer(64, 10.0)
    assert offer.observe(STALLED, 32, 0, 0.0)
    assert offer.extents == 32
    assert not offer.observe(STALLED, 32, 0, SETTLE_S)
    assert offer.observe(STALLED, 32, 1, 2 * SETTLE_S)
    assert offer.extents == 31
