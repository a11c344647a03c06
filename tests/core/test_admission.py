from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.admission import (
    AT_A_TIME_MAX,
    DEFAULT_BYTES_PER_S,
    FIRST_AT_A_TIME,
    OVERTAKEN_MAX_S,
    REPORTED_FROM_S,
    Admission,
    Policy,
    level_of,
)

MIB = 1 << 20
Curve = Callable[[int], float]  # the throughput in bytes a second, by the number of jobs at a time


class Disk:
    """Models a device that the running jobs share evenly, and its clock."""

    def __init__(self, curve: Curve, policy: Policy, *, is_rotating: bool = True) -> None:
        self.curve = curve
        self.admission: Admission[int] = Admission(policy, is_rotating=is_rotating)
        self.now_s = 0.0
        self.most = 0
        self._left: dict[int, float] = {}
        self._names = count()
        self._sizes: dict[int, int] = {}

    def add(self, size_bytes: int) -> int:
        name = next(self._names)
        self._sizes[name] = size_bytes
        self._start(self.admission.request(name, size_bytes, self.now_s))
        return name

    @property
    def settled(self) -> int:
        assert self.admission.search is not None
        return self.admission.search.settled

    def _start(self, names: list[int]) -> None:
        for name in names:
            self._left[name] = float(self._sizes[name])
            self.admission.started(name, self.now_s)
        self.most = max(self.most, len(self._left))

    def step(self) -> int:
        """Advance until a job ends; return that job."""
        rate = self.curve(len(self._left)) / len(self._left)
        name = min(self._left, key=lambda each: self._left[each])
        passed = self._left.pop(name)
        self.now_s += passed / rate
        for other in self._left:
            self._left[other] -= passed
        self._start(self.admission.end(name, self.now_s))
        return name

    def run(self, jobs: int, size_bytes: int = MIB) -> float:
        """Run so many jobs at once; return the throughput in bytes a second."""
        begun_s = self.now_s
        for _ in range(jobs):
            self.add(size_bytes)
        while self._left:
            self.step()
        return jobs * size_bytes / (self.now_s - begun_s)


def spinning(running: int) -> float:
    """Transfer 105 MB/s, with 8 ms of seeking between mebibytes of different files."""
    return 105e6 if running == 1 else MIB / (MIB / 105e6 + 0.008)


def best_at(number: int) -> Curve:
    return lambda running: 100e6 * min(running, number) / max(1.0, running / number)


# --- policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["off", "adaptive", "1", "48"])
def test_a_policy_is_printed_as_it_was_parsed(text: str) -> None:
    assert str(Policy.from_text(text)) == text


@pytest.mark.parametrize("text", ["", "0", "-1", "on", "1.5", "\u0661", "1001"])
def test_an_invalid_policy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not off, adaptive or a number"):
        Policy.from_text(text)


def test_without_a_limit_every_job_starts_at_once() -> None:
    admission: Admission[int] = Admission(Policy(), is_rotating=True)
    assert [admission.request(n, MIB, 0.0) for n in range(100)] == [[n] for n in range(100)]


@pytest.mark.requirement("CIB-40")
@given(st.integers(1, 8), st.lists(st.integers(0, 50 * MIB), max_size=30))
def test_as_many_jobs_run_as_the_limit_allows(limit: int, sizes: list[int]) -> None:
    admission: Admission[int] = Admission(Policy(limit), is_rotating=False)
    running: list[int] = []
    for number, size in enumerate(sizes):
        running += admission.request(number, size, 0.0)
    ended: list[int] = []
    while running:
        assert len(running) == min(limit, len(sizes) - len(ended))
        ended.append(running.pop(0))
        running += admission.end(ended[-1], 1.0)
    assert sorted(ended) == list(range(len(sizes)))
    assert (admission.pending_bytes, admission.waiting_count) == (0, 0)


def test_a_cancelled_job_never_starts() -> None:
    admission: Admission[str] = Admission(Policy(1), is_rotating=True)
    assert admission.request("first", 1, 0.0) == ["first"]
    assert admission.request("second", 1, 0.0) == []
    assert admission.request("third", 1, 0.0) == []
    assert admission.end("second", 0.1) == []
    assert admission.end("first", 0.2) == ["third"]


def test_a_job_that_is_requested_again_loses_its_place_in_the_queue() -> None:
    admission: Admission[str] = Admission(Policy(1), is_rotating=True)
    for name in "abc":
        admission.request(name, MIB, 0.0)
    admission.end("b", 0.1)
    admission.request("b", MIB, 0.1)
    assert admission.end("a", 0.2) == ["c"]
    assert admission.end("c", 0.2) == ["b"]


# --- order ----------------------------------------------------------------------------------------


def test_a_small_job_passes_a_large_one() -> None:
    disk = Disk(spinning, Policy(1))
    first, large, small = disk.add(MIB), disk.add(1000 * MIB), disk.add(MIB)
    assert [disk.step() for _ in range(3)] == [first, small, large]


arrivals = st.lists(
    st.tuples(st.floats(0, 30), st.integers(0, 5 * 10**9)), min_size=1, max_size=40
).map(sorted)


@given(arrivals, st.integers(1, 3))
def test_no_job_is_overtaken_for_longer_than_its_own_duration(
    jobs: list[tuple[float, int]], limit: int
) -> None:
    admission: Admission[int] = Admission(Policy(limit), is_rotating=True)
    order: list[int] = []
    for number, (now_s, size) in enumerate(jobs):
        order += admission.request(number, size, now_s)
    for number in order:  # the list grows during the loop
        order += admission.end(number, 100.0)
    assert sorted(order) == list(range(len(jobs)))
    place = {number: index for index, number in enumerate(order)}
    for number, (came_s, size) in enumerate(jobs):
        until_s = came_s + min(size / DEFAULT_BYTES_PER_S, OVERTAKEN_MAX_S)
        for other in range(number + 1, len(jobs)):
            assert jobs[other][0] <= until_s or place[other] > place[number]


# --- adapting -------------------------------------------------------------------------------------


@pytest.mark.requirement("CIB-41")
def test_a_spinning_disk_is_measured_to_be_best_with_one_job_at_a_time() -> None:
    disk = Disk(spinning, Policy(adapts=True))
    assert disk.run(400) > 0.95 * 105e6
    assert disk.admission.limit == 1
    assert disk.most == 2


@pytest.mark.parametrize("best", [1, 2, 4, 8, 16, AT_A_TIME_MAX])
@pytest.mark.parametrize("is_rotating", [True, False])
def test_the_best_number_is_found_from_any_start_of_the_search(
    best: int, is_rotating: bool
) -> None:
    disk = Disk(best_at(best), Policy(adapts=True), is_rotating=is_rotating)
    assert disk.admission.limit == (1 if is_rotating else FIRST_AT_A_TIME)
    disk.run(1000)
    assert disk.settled == best
    assert disk.most <= AT_A_TIME_MAX


def test_of_equally_good_numbers_the_lowest_is_chosen() -> None:
    disk = Disk(lambda running: 100e6, Policy(adapts=True), is_rotating=False)
    disk.run(1000)
    assert disk.settled == 1


def test_a_fixed_limit_never_adapts() -> None:
    disk = Disk(best_at(8), Policy(3))
    disk.run(1000)
    assert (disk.admission.limit, disk.most) == (3, 3)


def test_a_device_that_changes_is_measured_again() -> None:
    disk = Disk(best_at(8), Policy(adapts=True))
    disk.run(1000)
    disk.curve = spinning
    disk.run(4000)
    assert disk.settled == 1


@given(st.integers(0, 1 << 32))
def test_different_sizes_do_not_mislead_the_search_on_a_spinning_disk(seed: int) -> None:
    disk = Disk(spinning, Policy(adapts=True))
    sizes = random.Random(seed).choices([MIB // 100, MIB, 20 * MIB], k=300)
    for size in sizes:
        disk.add(size)
    while disk.admission.running_count:
        disk.step()
    assert sum(sizes) / disk.now_s > 0.8 * 105e6


def test_the_limit_does_not_adapt_when_there_are_too_few_jobs() -> None:
    disk = Disk(best_at(8), Policy(adapts=True), is_rotating=False)
    for _ in range(100):
        disk.run(1)
    assert disk.admission.limit == FIRST_AT_A_TIME


@pytest.mark.requirement("CIB-42")
@pytest.mark.parametrize("policy", [Policy(adapts=True), Policy(1), Policy(3)])
def test_the_estimate_for_pending_jobs_uses_the_measured_rate(policy: Policy) -> None:
    disk = Disk(lambda running: 20e6, policy)
    assert disk.admission.bytes_per_s == DEFAULT_BYTES_PER_S
    disk.run(20)
    disk.add(200 * 10**6)
    assert disk.admission.busy_s == pytest.approx(10.0, rel=0.01)


# --- reports to the master ------------------------------------------------------------------------


def test_a_queue_is_reported_again_when_it_has_doubled() -> None:
    levels = [level_of(REPORTED_FROM_S * factor) for factor in (0, 0.9, 1, 1.9, 2, 3.9, 4, 8)]
    assert levels == [0, 0, 1, 1, 2, 2, 3, 4]
