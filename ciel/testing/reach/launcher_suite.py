"""The conformance suite of launchers of workers: what the engine expects of every launcher.

A test class inherits from `LauncherSuite`, and says how to open its launcher. The suite needs the
real resource manager, and a real master for the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from ciel.launchers.interface import Allocation, Launcher, Phase
from ciel.testing.homes import wait_for

WITHIN_S = 60.0

JoinedAllocations = Callable[[], set[str]]


class LauncherSuite:
    """Inherit, and override the fixtures."""

    keeps_allocations = True
    """Whether allocations outlive the process that has asked for them."""

    @pytest.fixture
    def launcher(self) -> Launcher:
        """Return a launcher for a running master, with places for two workers at least."""
        raise NotImplementedError

    @pytest.fixture
    def reopen(self) -> Callable[[], Launcher]:
        """Return a function that opens another launcher for the same cluster."""
        raise NotImplementedError

    @pytest.fixture
    def joined(self) -> JoinedAllocations:
        """Return a function that asks the master for the allocations of its workers."""
        raise NotImplementedError

    @pytest.fixture
    def end_worker(self) -> Callable[[str], None]:
        """Return a function that ends the worker of an allocation, as an administrator could."""
        raise NotImplementedError

    def test_without_requests_there_are_no_allocations(self, launcher: Launcher) -> None:
        assert launcher.allocations() == []

    def test_each_requested_allocation_is_listed_at_once(self, launcher: Launcher) -> None:
        ids = launcher.request(2)
        assert len(set(ids)) == 2
        assert _phases(launcher).keys() == set(ids)

    def test_a_worker_joins_with_the_id_of_its_allocation(
        self, launcher: Launcher, joined: JoinedAllocations
    ) -> None:
        ids = launcher.request(1)
        wait_for(lambda: _poll(launcher) and joined() == set(ids), "a worker to join", WITHIN_S)
        assert _phases(launcher)[ids[0]] is Phase.RUNNING

    def test_a_cancelled_allocation_ends_with_its_worker(
        self, launcher: Launcher, joined: JoinedAllocations
    ) -> None:
        first, second = launcher.request(2)
        wait_for(lambda: _poll(launcher) and len(joined()) == 2, "two workers to join", WITHIN_S)
        launcher.cancel([first])
        _ends(launcher, [first])
        wait_for(lambda: joined() == {second}, "the worker to leave", WITHIN_S)
        assert _phases(launcher)[second] is Phase.RUNNING

    def test_an_allocation_can_be_cancelled_before_it_runs_and_twice(
        self, launcher: Launcher
    ) -> None:
        ids = launcher.request(1)
        launcher.cancel(ids)
        _ends(launcher, ids)
        launcher.cancel(ids)
        launcher.cancel([])

    def test_an_allocation_whose_worker_ends_has_ended_and_says_why(
        self, launcher: Launcher, joined: JoinedAllocations, end_worker: Callable[[str], None]
    ) -> None:
        (name,) = launcher.request(1)
        wait_for(lambda: _poll(launcher) and joined() == {name}, "a worker to join", WITHIN_S)
        end_worker(name)
        assert _ends(launcher, [name])[name].reason

    def test_another_instance_finds_the_allocations(
        self, launcher: Launcher, reopen: Callable[[], Launcher]
    ) -> None:
        ids = launcher.request(2)
        launcher.close()
        other = reopen()
        left = set(ids) if self.keeps_allocations else set()
        assert _phases(other).keys() == left
        other.cancel(ids)
        _ends(other, left)

    def test_closing_ends_allocations_only_if_they_cannot_outlive_the_process(
        self, launcher: Launcher, joined: JoinedAllocations
    ) -> None:
        (name,) = launcher.request(1)
        wait_for(lambda: _poll(launcher) and joined() == {name}, "a worker to join", WITHIN_S)
        launcher.close()
        if not self.keeps_allocations:
            wait_for(lambda: not joined(), "the worker to leave", WITHIN_S)
        assert joined() == ({name} if self.keeps_allocations else set())


def _phases(launcher: Launcher) -> dict[str, Phase]:
    return {allocation.id: allocation.phase for allocation in launcher.allocations()}


def _poll(launcher: Launcher) -> bool:
    """Let the launcher look after its allocations, as the autoscaler does."""
    launcher.allocations()
    return True


def _ends(launcher: Launcher, names: Iterable[str]) -> dict[str, Allocation]:
    """Wait until allocations have been listed as ended, each at least once."""
    found: dict[str, Allocation] = {}
    wanted = set(names)

    def have_ended() -> bool:
        listed = launcher.allocations()
        found.update((a.id, a) for a in listed if a.phase is Phase.ENDED)
        return wanted <= found.keys()

    wait_for(have_ended, f"allocations {sorted(wanted)} to end", WITHIN_S)
    return found
