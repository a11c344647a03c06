"""Tests `Waiters`: HTTP requests that wait for an event in the master."""

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from ciel.master.waiters import Waiters


def ends_of(*waits: Deferred[bool]) -> list[object]:
    """Collect the result of each wait, None while it has none."""
    ends: list[object] = [None] * len(waits)
    for place, wait in enumerate(waits):

        def note(end: object, place: int = place) -> None:
            ends[place] = end

        wait.addBoth(note)
    return ends


def test_all_waiters_for_an_event_are_notified_once() -> None:
    waiters = Waiters(Clock())
    ends = ends_of(waiters.wait("a"), waiters.wait("a", 5.0), waiters.wait("b"))
    waiters.notify("a")
    waiters.notify("a")
    waiters.notify("nobody waits for this")
    assert ends == [True, True, None]
    assert len(waiters) == 1


def test_a_waiter_learns_when_its_time_is_up() -> None:
    clock = Clock()
    waiters = Waiters(clock)
    ends = ends_of(waiters.wait("a", 5.0), waiters.wait("a", 1e300), waiters.wait("a", 0.0))
    clock.advance(0)
    assert ends == [None, None, False]
    clock.advance(5)
    assert ends == [False, None, False]
    waiters.notify("a")
    assert ends == [False, True, False]
    assert not clock.getDelayedCalls()
    assert len(waiters) == 0


def test_a_cancelled_waiter_is_forgotten() -> None:
    clock = Clock()
    waiters = Waiters(clock)
    gone = waiters.wait("a", 5.0)
    ends = ends_of(gone, waiters.wait("a"))
    gone.cancel()
    assert ends[0].check(CancelledError)  # type: ignore[attr-defined]  # it is a failure
    assert not clock.getDelayedCalls()
    waiters.notify("a")
    assert ends[1] is True


def test_a_notified_waiter_may_wait_again() -> None:
    waiters = Waiters(Clock())
    again: list[Deferred[bool]] = []
    waiters.wait("a").addCallback(lambda _: again.append(waiters.wait("a")))
    waiters.notify("a")
    assert len(waiters) == 1
    waiters.notify("a")
    assert again[0].called
