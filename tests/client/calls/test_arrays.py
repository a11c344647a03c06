"""Arrays of programs, with the fake master."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from ciel.access.keys import Key
from ciel.access.settings import MasterLocation
from ciel.client import Client
from ciel.client.errors import JobEndedError, RequestRefusedError
from ciel.client.jobs import Job, arrays
from ciel.client.jobs.arrays import Array
from ciel.core.events import (
    AddTask,
    CloseJob,
    JobChanged,
    Message,
    ObjectSettled,
    ReleaseObjects,
    RequestRefused,
    SubmitJob,
    WantObjects,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import JobSummary
from ciel.core.refs import Failure, Future, Reference, Value


class AcceptorLike(Protocol):
    address: str
    key: Key
    reply: Callable[[Message], list[Message]]

    def say(self, *messages: Message) -> None: ...


class Master:
    """Settles wanted objects, in random order, as soon as there are more than `lag`."""

    def __init__(self, seed: int = 1, lag: int = 100) -> None:
        self.job = JobId("")
        self.added = 0
        self.peak = 0  # the largest number of unsettled objects
        self.unsettled: list[ObjectId] = []
        self.wanted: dict[ObjectId, None] = {}
        self.released: list[tuple[ObjectId, bool]] = []
        self.fails: set[int] = set()  # the places of wanted objects that fail
        self.lag = lag
        self._random = random.Random(seed)

    def summary(self, state: str) -> JobSummary:
        ended_at_s = None if state == "active" else 2.0
        return JobSummary(self.job, 7, "", state, "so it is", {}, 1.0, ended_at_s, 1, 0, 0)

    def reply(self, message: Message) -> list[Message]:
        match message:
            case SubmitJob(spec):
                self.job = spec.id
            case AddTask():
                self.added += 1
            case WantObjects(_, objects):
                self.wanted.update(dict.fromkeys(objects))
                self.unsettled += objects
                self.peak = max(self.peak, len(self.unsettled))
                return self.settle(self.lag)
            case ReleaseObjects(_, objects, for_good):
                self.released += [(object_id, for_good) for object_id in objects]
            case CloseJob():
                return [*self.settle(0), JobChanged(self.summary("completed"))]
        return []

    def settle(self, left: int) -> list[Message]:
        """Settle all but the `left` newest objects, in random order."""
        places = {object_id: place for place, object_id in enumerate(self.wanted)}
        count = max(0, len(self.unsettled) - left)
        made, self.unsettled = self.unsettled[:count], self.unsettled[count:]
        self._random.shuffle(made)
        messages: list[Message] = []
        for object_id in made:
            ref: Reference = Value.of(object_id, b"%d" % places[object_id])
            if places[object_id] in self.fails:
                ref = Failure(object_id, "RUNTIME_EXCEPTION", "it failed")
            messages.append(ObjectSettled(self.job, ref))
        return messages


class Numbers:
    """A source of numbers that can hold some back."""

    def __init__(self, count: int) -> None:
        self.there = count
        self.more = 0
        self.taken = 0

    def take(self, count: int) -> list[int]:
        first, self.taken = self.taken, min(self.taken + count, self.there)
        return list(range(first, self.taken))

    def is_ready(self) -> bool:
        return self.taken < self.there or not self.more

    @property
    def ended(self) -> bool:
        return self.taken == self.there and not self.more


@pytest.fixture
def master(acceptor: AcceptorLike) -> Master:
    master = Master()
    acceptor.reply = master.reply
    return master


@pytest.fixture
def client(acceptor: AcceptorLike, master: Master) -> Iterator[Client]:
    location = MasterLocation(
        "http://127.0.0.1:1", acceptor.address, "test-cluster", acceptor.key, "the test"
    )
    with Client(location) as client:
        yield client


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "UNSETTLED_MAX", 600)
    monkeypatch.setattr(arrays, "AHEAD_MAX", 900)
    monkeypatch.setattr(arrays, "KEPT_MAX", 700)


def make(client: Client, source: Numbers, *, in_order: bool = True) -> tuple[Job, Array[int]]:
    job = client.job()

    def run(number: int) -> Future:
        return job.run(["echo", number])

    return job, Array(client, job, source, run, in_order=in_order)


def pairs(array: Array[int]) -> list[tuple[int, Reference]]:
    return [pair for batch in array.results() for pair in batch]


def numbers_of(found: list[tuple[int, Reference]]) -> list[int]:
    """Return the elements; check that each came with its own result."""
    for number, ref in found:
        assert isinstance(ref, Failure) or (
            isinstance(ref, Value) and ref.content == b"%d" % number
        )
    return [number for number, _ in found]


def wait_for(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_results_come_in_the_order_of_the_elements(client: Client) -> None:
    _, array = make(client, Numbers(3000))
    assert numbers_of(pairs(array)) == list(range(3000))
    assert array.submitted == 3000


def test_results_come_as_they_are_made_where_order_does_not_matter(client: Client) -> None:
    _, array = make(client, Numbers(3000), in_order=False)
    found = numbers_of(pairs(array))
    assert found != list(range(3000))
    assert sorted(found) == list(range(3000))


def test_a_slow_element_delays_no_unordered_result(client: Client, master: Master) -> None:
    master.lag = 1
    source = Numbers(500)
    source.more = 1
    _, array = make(client, source, in_order=False)
    results = array.results()
    found: list[tuple[int, Reference]] = []
    while len(found) < 499:
        found += next(results)
    source.there, source.more = 501, 0
    client.wake()
    found += [pair for batch in results for pair in batch]
    assert sorted(numbers_of(found)) == list(range(501))


@pytest.mark.slow
@pytest.mark.parametrize("in_order", [True, False])
def test_the_number_of_unsettled_elements_is_limited(
    client: Client, master: Master, in_order: bool
) -> None:
    _, array = make(client, Numbers(5000), in_order=in_order)
    assert len(pairs(array)) == 5000
    assert 256 <= master.peak <= 600


def test_the_number_of_results_that_wait_is_limited(
    client: Client, master: Master, acceptor: AcceptorLike
) -> None:
    """The first element is slow: some of the next ones run, but not all."""
    first: list[ObjectId] = []

    def reply(message: Message) -> list[Message]:
        answers = master.reply(message)
        if isinstance(message, WantObjects):
            first[:] = first or [message.objects[0]]
        held = [m for m in answers if isinstance(m, ObjectSettled) and m.ref.id == first[0]]
        return [m for m in answers if m not in held]

    acceptor.reply = reply
    master.lag = 0
    _, array = make(client, Numbers(5000))
    found: list[tuple[int, Reference]] = []
    thread = threading.Thread(target=lambda: found.extend(pairs(array)))
    thread.start()
    wait_for(lambda: array.submitted > 900 - 256)
    time.sleep(0.05)  # time to submit more
    assert array.submitted <= 900
    assert not found
    acceptor.say(ObjectSettled(master.job, Value.of(first[0], b"0")))
    thread.join(10)
    assert numbers_of(found) == list(range(5000))


def test_a_short_job_keeps_its_results(client: Client, master: Master) -> None:
    job, array = make(client, Numbers(700))
    assert len(pairs(array)) == 700
    job.wait()
    client.close()
    assert master.released == []
    assert array.handed_over == 0


@pytest.mark.parametrize("in_order", [True, False])
def test_a_long_job_releases_all_results_but_failures(
    client: Client, master: Master, in_order: bool
) -> None:
    master.fails = {0, 5, 699, 700, 1499}
    job, array = make(client, Numbers(1500), in_order=in_order)
    assert len(pairs(array)) == 1500
    client.close()
    wait_for(lambda: len(master.released) == 1495)
    kept = set(master.wanted) - {object_id for object_id, _ in master.released}
    assert kept == {o for place, o in enumerate(master.wanted) if place in master.fails}
    assert all(for_good for _, for_good in master.released)
    assert array.handed_over == 1495
    assert (job.settled_count, job.failed_count) == (1500, 5)


@pytest.mark.slow
def test_a_result_is_released_only_after_its_use(client: Client, master: Master) -> None:
    job, array = make(client, Numbers(3000))
    used = 0
    for batch in array.results():
        assert len(master.released) <= used
        used += len(batch)
    assert job.settled_count == 3000


def test_client_and_master_forget_released_results(client: Client) -> None:
    job, array = make(client, Numbers(3000))
    peak = 0
    for _ in array.results():
        peak = max(peak, len(job._wanted), len(job._settled))
    assert peak <= 900 + 700 + 256
    assert not job._wanted
    assert not job._settled


def test_an_element_is_submitted_as_soon_as_it_is_there(client: Client, master: Master) -> None:
    master.lag = 0
    source = Numbers(1)
    source.more = 2
    _, array = make(client, source)
    results = array.results()
    assert numbers_of(next(results)) == [0]

    def tell() -> None:
        source.there += 1
        source.more -= 1
        client.wake()

    for expected in (1, 2):
        threading.Timer(0.02, tell).start()
        assert numbers_of(next(results)) == [expected]
    assert list(results) == []


def test_an_empty_array_ends(client: Client) -> None:
    job, array = make(client, Numbers(0))
    assert pairs(array) == []
    assert job.wait().state == "completed"


def test_submitting_alone_keeps_results_only_in_the_cluster(client: Client, master: Master) -> None:
    job, array = make(client, Numbers(2000))
    array.submit()
    job.wait()
    assert master.added == 2000
    assert not job._wanted
    assert not job._settled
    client.close()
    assert master.released == []


def test_the_end_of_the_job_ends_the_wait(
    client: Client, master: Master, acceptor: AcceptorLike
) -> None:
    source = Numbers(10)
    source.more = 1
    _, array = make(client, source)

    def cancel() -> None:
        acceptor.say(JobChanged(master.summary("cancelled")))

    threading.Timer(0.05, cancel).start()
    with pytest.raises(JobEndedError, match="job 7 is cancelled: so it is"):
        pairs(array)


def test_a_refused_task_ends_the_wait(
    client: Client, master: Master, acceptor: AcceptorLike
) -> None:
    acceptor.reply = lambda message: (
        [RequestRefused(master.job, "no such thing")]
        if isinstance(message, WantObjects)
        else []
        if isinstance(message, CloseJob)
        else master.reply(message)
    )
    _, array = make(client, Numbers(10))
    with pytest.raises(RequestRefusedError, match="no such thing"):
        pairs(array)


def test_an_error_of_the_source_is_raised(client: Client) -> None:
    class Broken(Numbers):
        def take(self, count: int) -> list[int]:
            if self.taken:
                raise ValueError("a bad line")
            return super().take(count)

    _, array = make(client, Broken(2000))
    with pytest.raises(ValueError, match="a bad line"):
        pairs(array)
