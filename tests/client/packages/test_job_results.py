"""Results of a job, with a fake session."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ciel.client.errors import (
    JobEndedError,
    ObjectUnreadableError,
    QueryError,
    TaskFailedError,
    WaitTimeoutError,
)
from ciel.client.jobs import Job
from ciel.client.locks import ForkSafeCondition
from ciel.core.events import (
    AddTask,
    JobChanged,
    Message,
    ReleaseObjects,
    ReplicateObjects,
    WantObjects,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import JobSpec, JobSummary
from ciel.core.refs import Concrete, Failure, Future, Reference, Value
from ciel.wire.references import to_json

SUMMARY = JobSummary(JobId("job"), 7, "", "active", "", {}, 0.0, None, 1, 0, 0)


class FakeSession:
    """A client that receives the next message of a test whenever the job waits."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.coming: deque[Callable[[], object]] = deque()
        self.readable: dict[str, bytes] = {}
        self.workers: dict[str, str] = {}  # the suspicion of each, by address
        self.uploads: dict[str, Reference] = {}

    def send(self, *messages: Message) -> None:
        self.sent += messages

    def ask(self, topic: str, argument: Any = None) -> Any:
        if topic == "workers":
            return [{"netloc": at, "suspicion": why} for at, why in self.workers.items()]
        if topic == "object" and argument["object"] in self.uploads:
            return {"reference": to_json(self.uploads[argument["object"]])}
        if topic == "object":
            raise QueryError(topic, "no such object is known")
        return [list(SUMMARY)]

    def wait_until(self, condition: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        while not condition():
            if not self.coming:
                raise WaitTimeoutError(what, timeout_s or 0.0)
            self.coming.popleft()()

    def read(self, ref: Reference) -> bytes:
        return b"".join(self.read_chunks(ref))

    def read_chunks(self, ref: Reference) -> Iterator[bytes]:
        assert isinstance(ref, Concrete)
        for netloc in ref.locations:
            if netloc in self.readable:
                yield self.readable[netloc]
                return
        raise ObjectUnreadableError(ref.id, [("w:1", "it is lost")])

    def upload_content(self, content: bytes, name: str) -> Reference:
        return Value.of(ObjectId(name), content)


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
def job(session: FakeSession) -> Job:
    return Job(session, JobSpec(JobId("job"), "", True, False, False), ForkSafeCondition())


def held_by(ref: Reference, netloc: str) -> Concrete:
    return Concrete(ref.id, 2000, frozenset([netloc]))


def test_results_come_in_the_order_of_the_wants(session: FakeSession, job: Job) -> None:
    refs = [job.run(["echo", str(number)]) for number in range(3)]
    values = [Value.of(ref.id, b"x") for ref in refs]
    for value in reversed(values):
        session.coming.append(lambda value=value: job.take_settled(value))  # type: ignore[misc]  # of a lambda with a default
    assert list(job.results(refs)) == values
    assert [type(message) for message in session.sent] == [AddTask] * 3 + [WantObjects]


def test_a_failure_is_raised_or_yielded(session: FakeSession, job: Job) -> None:
    ref = job.run(["false"])
    failure = Failure(ref.id, "EXIT_STATUS", "it ended with exit status 1")
    session.coming.append(lambda: job.take_settled(failure))
    with pytest.raises(TaskFailedError, match="exit status 1"):
        job.result(ref)
    assert list(job.results([ref])) == [failure]
    assert job.failed_count == 1


def test_a_lost_object_is_read_again_once_it_is_recomputed(session: FakeSession, job: Job) -> None:
    ref = job.run(["seq", "1000"])
    session.coming.append(lambda: job.take_settled(held_by(ref, "w:1")))
    session.coming.append(lambda: job.take_settled(held_by(ref, "w:2")))
    session.readable["w:2"] = b"content"
    assert job.read(ref) == b"content"


def test_an_object_that_its_worker_does_not_have_is_unreadable(
    session: FakeSession, job: Job
) -> None:
    ref = job.run(["seq", "1000"])
    session.coming.append(lambda: job.take_settled(held_by(ref, "w:1")))
    with pytest.raises(ObjectUnreadableError):
        job.read(ref)


@pytest.mark.parametrize("workers", [{"w:1": "it was silent for 4 s"}, {"w:2": ""}])
def test_an_object_is_awaited_whose_worker_may_come_back(
    session: FakeSession, job: Job, workers: dict[str, str]
) -> None:
    """The master suspects the worker, or it has ended and its objects are still listed."""
    session.workers = workers
    known = held_by(job.run(["seq", "1000"]), "w:1")
    job.want((known,))
    job.take_settled(known)
    session.uploads[known.id] = known
    unreadable = ObjectUnreadableError(known.id, [("w:1", "the connection was refused")])
    assert job.await_copy(unreadable, known) == known
    session.workers = {"w:1": ""}
    with pytest.raises(ObjectUnreadableError):
        job.await_copy(unreadable, known)


def test_an_upload_is_read_from_the_worker_that_has_copied_it(
    session: FakeSession, job: Job
) -> None:
    ref = held_by(Future(ObjectId("upload:1")), "w:1")
    job.replicate([ref], 2)
    assert session.sent == [ReplicateObjects(job.id, 2, (ref,))]
    with pytest.raises(ObjectUnreadableError):
        job.read(ref)
    session.uploads[ref.id] = held_by(ref, "w:2")
    session.readable["w:2"] = b"content"
    assert job.read(ref) == b"content"
    del session.readable["w:2"]
    with pytest.raises(ObjectUnreadableError):
        job.read(ref)
    assert job.await_copy(ObjectUnreadableError(ref.id, []), ref) == held_by(ref, "w:2")


def test_the_end_of_the_job_ends_waiting(session: FakeSession, job: Job) -> None:
    ref = job.run(["sleep", "60"])
    ended = SUMMARY._replace(state="cancelled", reason="by its user", ended_at_s=1.0)
    session.coming.append(lambda: job.take(JobChanged(ended)))
    with pytest.raises(JobEndedError, match="job 7 is cancelled: by its user"):
        job.result(ref)


def test_a_released_object_is_forgotten(session: FakeSession, job: Job) -> None:
    ref = job.run(["true"])
    job.want([ref])
    job.take_settled(Value.of(ref.id, b""))
    job.release([ref], for_good=True)
    assert job.settled(ref) is None
    assert session.sent[-1] == ReleaseObjects(job.id, (ref.id,), True, ())
    assert job.settled_count == 1
