import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from ciel.access.keys import Key
from ciel.access.settings import MasterLocation
from ciel.client import Client
from ciel.client.errors import (
    ConnectionLostError,
    JobEndedError,
    NoMasterError,
    ObjectUnreadableError,
    QueryError,
    RequestRefusedError,
    TaskFailedError,
    WaitTimeoutError,
)
from ciel.client.jobs import Job
from ciel.client.jobs import job as jobs
from ciel.core.events import (
    AddTask,
    Answer,
    Ask,
    CancelJob,
    CloseJob,
    Heartbeat,
    JobChanged,
    Message,
    ObjectSettled,
    ReleaseObjects,
    RequestRefused,
    SubmitJob,
    WantObjects,
    WatchJob,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import JobSummary
from ciel.core.refs import Concrete, Failure, Future, Reference, Value
from ciel.core.tasks import check_task
from ciel.wire.descriptors import read_arguments
from ciel.wire.packages import encode_package


class AcceptorLike(Protocol):
    address: str
    key: Key
    heard: list[Message]
    reply: Callable[[Message], list[Message]]
    peer_ended: threading.Event
    takes_back: bool

    def say(self, *messages: Message) -> None: ...
    def drop(self) -> None: ...


def location(acceptor: AcceptorLike) -> MasterLocation:
    return MasterLocation(
        "http://127.0.0.1:1", acceptor.address, "test-cluster", acceptor.key, "the test"
    )


@pytest.fixture
def client(acceptor: AcceptorLike) -> Iterator[Client]:
    with Client(location(acceptor)) as client:
        yield client


def summary(job: str, state: str, reason: str = "") -> JobSummary:
    ended_at_s = None if state == "active" else 2.0
    return JobSummary(JobId(job), 7, "", state, reason, {}, 1.0, ended_at_s, 1, 0, 0)


def makes_everything(message: Message) -> list[Message]:
    """Answer as a master whose tasks take no time; an object whose id starts with f fails."""
    if isinstance(message, WantObjects):
        return [
            ObjectSettled(message.job, Value.of(object_id, object_id.encode()))
            for object_id in reversed(message.objects)
        ]
    if isinstance(message, CloseJob):
        return [JobChanged(summary(message.job, "completed"))]
    if isinstance(message, CancelJob):
        return [JobChanged(summary(message.job, "cancelled", message.reason))]
    return []


def said(acceptor: AcceptorLike, kind: type) -> list[Any]:
    return [message for message in acceptor.heard if isinstance(message, kind)]


def test_programs_become_tasks_named_by_their_place(acceptor: AcceptorLike, client: Client) -> None:
    acceptor.reply = makes_everything
    with client.job("name") as job:
        first = job.run(["seq", 3], env={"A": "b"})
        second = job.run(["cat", first], inputs=[first], files={"f": first})
        assert job.read(second) == second.id.encode()
    tasks = [message.spec for message in said(acceptor, AddTask)]
    for spec in tasks:
        check_task(spec)
    assert [spec.ordinal for spec in tasks] == [0, 1]
    assert read_arguments(tasks[0].payload)["args"] == {
        "command_line": ["seq", 3],
        "env": {"A": "b"},
    }
    assert tasks[1].inputs == (first.id,)
    assert [type(m) for m in acceptor.heard if not isinstance(m, Heartbeat)] == [
        SubmitJob, AddTask, AddTask, WantObjects, CloseJob,
    ]  # fmt: skip


def test_results_come_in_the_order_asked_for(acceptor: AcceptorLike, client: Client) -> None:
    acceptor.reply = makes_everything
    with client.job() as job:
        refs = [job.run(["echo", n]) for n in range(3000)]
        assert [ref.id for ref in job.results(refs)] == [ref.id for ref in refs]
    assert [len(message.objects) for message in said(acceptor, WantObjects)] == [1000] * 3


def test_objects_are_wanted_once(acceptor: AcceptorLike, client: Client) -> None:
    acceptor.reply = makes_everything
    with client.job() as job:
        ref = job.run(["true"])
        job.want([ref, ref])
        job.result(ref)
        job.result(ref)
    assert len(said(acceptor, WantObjects)) == 1


def test_a_job_wants_and_releases_a_single_object(acceptor: AcceptorLike, client: Client) -> None:
    acceptor.reply = makes_everything
    with client.job() as job:
        ref = job.run(["true"])
        job.want(ref)
        job.result(ref)
        job.release(ref)
    assert said(acceptor, WantObjects)[0].objects == (ref.id,)
    assert said(acceptor, ReleaseObjects)[0].objects == (ref.id,)


def test_released_objects_are_neither_wanted_nor_remembered(
    acceptor: AcceptorLike, client: Client
) -> None:
    acceptor.reply = makes_everything
    job = client.job()
    refs = [job.run(["echo", n]) for n in range(1500)]
    list(job.results(refs))
    job.release(refs[:-1], for_good=True)
    job.release(refs[:5])  # once is enough
    assert job.settled_count == 1500
    assert job.settled(refs[0]) is None
    assert job.settled(refs[-1]) is not None
    client.close()
    released = said(acceptor, ReleaseObjects)
    assert [(len(message.objects), message.for_good) for message in released] == [
        (1000, True), (499, True),
    ]  # fmt: skip


def test_ignored_objects_stay_wanted(acceptor: AcceptorLike, client: Client) -> None:
    job = client.job()
    early, late = job.run(["echo", 1]), job.run(["echo", 2])
    job.want([early, late])
    assert job.forget([early]) == [early.id]
    acceptor.say(
        ObjectSettled(job.id, Value.of(early.id, b"")),
        ObjectSettled(job.id, Value.of(late.id, b"")),
    )
    assert job.result(late, 10) == Value.of(late.id, b"")
    assert job.settled(early) is None
    client.close()
    assert said(acceptor, ReleaseObjects) == []


def test_results_are_appended_as_they_come_and_again_when_recomputed(
    acceptor: AcceptorLike, client: Client
) -> None:
    job = client.job()
    first, second = job.run(["echo", 1]), job.run(["echo", 2])
    told: deque[Reference] = deque()
    job.want([first, second], told)
    copies = [
        Concrete(second.id, 9, frozenset(("a:1",))),
        Concrete(second.id, 9, frozenset(("b:1",))),
    ]
    acceptor.say(*(ObjectSettled(job.id, copy) for copy in copies))
    acceptor.say(ObjectSettled(job.id, Value.of(first.id, b"")))
    job.result(first, 10)
    assert list(told) == [*copies, Value.of(first.id, b"")]
    assert job.settled_count == 2


class Keeper:
    """A master that answers queries about the state of a job."""

    def __init__(self, acceptor: AcceptorLike, job: str) -> None:
        self.unsettled = 0
        self.state = "active"
        self.watched = 0
        self._job = job
        acceptor.reply = self.reply

    def summary(self) -> JobSummary:
        return summary(self._job, self.state)._replace(unsettled=self.unsettled)

    def reply(self, message: Message) -> list[Message]:
        if isinstance(message, Ask) and message.topic == "object":
            return [Answer(message.number, None, "it is not known")]
        if isinstance(message, Ask) and message.topic == "workers":
            return [Answer(message.number, [], "")]
        if isinstance(message, Ask):
            fields = json.loads(json.dumps(self.summary()))
            return [Answer(message.number, [fields], "")]
        self.watched += isinstance(message, WatchJob)
        return []


def lost_copy(acceptor: AcceptorLike, client: Client) -> tuple[Job, Keeper, Concrete]:
    """A result whose only worker cannot be reached."""
    job = client.job()
    keeper = Keeper(acceptor, job.id)
    ref = Concrete(job.run(["echo"]).id, 5000, frozenset(("127.0.0.1:1",)))
    job.want([ref])
    acceptor.say(ObjectSettled(job.id, ref))
    job.result(ref, 10)
    return job, keeper, ref


def test_reading_a_lost_result_waits_until_it_is_recomputed(
    acceptor: AcceptorLike, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LOSS_NOTICE_S", 0.05)
    job, keeper, ref = lost_copy(acceptor, client)
    keeper.unsettled = 1
    again = ref._replace(locations=frozenset(("127.0.0.1:2",)))
    threading.Timer(0.2, acceptor.say, [ObjectSettled(job.id, again)]).start()
    assert job.await_copy(ObjectUnreadableError(ref.id, []), ref) == again
    assert keeper.watched == 0


def test_an_unreadable_result_that_is_not_lost_is_not_awaited_for_ever(
    acceptor: AcceptorLike, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LOSS_NOTICE_S", 0.05)
    job, _, ref = lost_copy(acceptor, client)
    with pytest.raises(ObjectUnreadableError, match="no worker holds it"):
        job.await_copy(ObjectUnreadableError(ref.id, []), ref)


def test_a_result_that_the_same_worker_recomputes_is_read_again(
    acceptor: AcceptorLike, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reference does not change, so no message reports the new copy."""
    monkeypatch.setattr(jobs, "LOSS_NOTICE_S", 0.05)
    job, _, ref = lost_copy(acceptor, client)
    monkeypatch.setattr(client, "read_chunks", lambda ref: iter([b"there again"]))
    assert job.await_copy(ObjectUnreadableError(ref.id, []), ref) == ref


def test_a_job_that_ended_is_watched_again_for_recomputed_objects(
    acceptor: AcceptorLike, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LOSS_NOTICE_S", 0.05)
    job, keeper, ref = lost_copy(acceptor, client)
    keeper.state = "completed"
    acceptor.say(JobChanged(keeper.summary()))
    job.wait(10)
    again = ref._replace(locations=frozenset(("127.0.0.1:2",)))
    acceptor.reply = lambda message: (
        [ObjectSettled(job.id, again)] if isinstance(message, WatchJob) else keeper.reply(message)
    )
    assert job.await_copy(ObjectUnreadableError(ref.id, []), ref) == again


def test_a_failed_task_raises_from_result_and_is_a_value_among_results(
    acceptor: AcceptorLike, client: Client
) -> None:
    job = client.job()
    ref = job.run(["false"])
    failure = Failure(ref.id, "RUNTIME_EXCEPTION", "false ended with exit status 1\nand so on\n")
    job.want([ref])
    acceptor.say(ObjectSettled(job.id, failure))
    with pytest.raises(TaskFailedError, match="false ended with exit status 1\nand so on"):
        job.result(ref)
    assert list(job.results([ref])) == [failure]
    assert (job.failed_count, job.settled_count) == (1, 1)


def test_the_end_of_a_job_ends_the_wait_for_its_objects(
    acceptor: AcceptorLike, client: Client
) -> None:
    job = client.job()
    ref = job.run(["sleep", 100])
    acceptor.say(JobChanged(summary(job.id, "cancelled", "by somebody")))
    with pytest.raises(JobEndedError, match="job 7 is cancelled: by somebody"):
        job.result(ref)


def test_a_waiting_thread_raises_a_refused_request(acceptor: AcceptorLike, client: Client) -> None:
    job = client.job()
    acceptor.reply = lambda message: (
        [RequestRefused(job.id, "no such thing")] if isinstance(message, WantObjects) else []
    )
    with pytest.raises(RequestRefusedError, match="no such thing"):
        job.result(Future(ObjectId("x")))


def test_waiting_has_an_end(client: Client) -> None:
    job = client.job()
    with pytest.raises(WaitTimeoutError, match=r"took longer than 0\.05 s"):
        job.wait(0.05)
    with pytest.raises(TimeoutError):
        job.result(job.run(["true"]), 0.05)


def test_an_exception_inside_cancels_the_job(acceptor: AcceptorLike, client: Client) -> None:
    with pytest.raises(KeyError), client.job():
        raise KeyError
    client.close()
    assert [message.reason for message in said(acceptor, CancelJob)] == [
        "its client raised KeyError"
    ]


def test_a_lost_connection_ends_every_wait(acceptor: AcceptorLike, client: Client) -> None:
    job = client.job()
    acceptor.takes_back = False
    threading.Timer(0.05, acceptor.drop).start()
    with pytest.raises(ConnectionLostError):
        job.wait()
    with pytest.raises(ConnectionLostError):
        job.result(job.run(["true"]))


def test_queries_are_answered_by_number(acceptor: AcceptorLike, client: Client) -> None:
    def answer(message: Message) -> list[Message]:
        if not isinstance(message, Ask):
            return []
        error = "never heard of it" if message.topic == "riddle" else ""
        return [Answer(99, "stray", ""), Answer(message.number, message.argument, error)]

    acceptor.reply = answer
    assert client.ask("status", [1]) == [1]
    with pytest.raises(QueryError, match="never heard of it"):
        client.ask("riddle")


def test_threads_may_share_a_job(acceptor: AcceptorLike, client: Client) -> None:
    acceptor.reply = makes_everything
    with client.job() as job:

        def submit() -> None:
            for _ in range(200):
                job.run(["true"])

        threads = [threading.Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {m.spec.ordinal for m in said(acceptor, AddTask)} == set(range(800))


def test_a_package_starts_with_init(acceptor: AcceptorLike, client: Client) -> None:
    job = client.job()
    script = Value.of(ObjectId("upload:1"), b"x")
    words, piece = (Concrete(ObjectId(f"upload:{n}"), 2000, frozenset({"h:1"})) for n in (2, 3))
    package: dict[str, Reference] = {"script": script, "words": words}
    output = job.start_package("h", {"script": script, "n": 1}, package, [script, piece])
    client.close()
    (added,) = said(acceptor, AddTask)
    check_task(added.spec)
    assert output.id == f"{job.id}:job_output"
    assert added.spec.executor == "init"
    listing = Value.of(ObjectId(f"{job.id}:package"), encode_package(package))
    assert added.known == (words, piece, script, listing)
    assert read_arguments(added.spec.payload) == {
        "package": [words, piece],
        "package_ref": listing,
        "start_handler": "h",
        "start_args": {"script": script, "n": 1},
    }


def test_many_objects_are_named_by_unwanted_tasks(acceptor: AcceptorLike, client: Client) -> None:
    job = client.job()
    refs = [Concrete(ObjectId(f"upload:{n}"), 2000, frozenset({"h:1"})) for n in range(2500)]
    assert job.named(refs[:1000]) == refs[:1000]
    assert job.named([*refs, refs[0]]) == []
    job.close()
    client.close()
    added = said(acceptor, AddTask)
    assert [ref for task in added for ref in task.known] == refs
    assert [len(task.spec.inputs) for task in added] == [1000, 1000, 500]
    assert not said(acceptor, WantObjects)


def test_an_empty_package_has_no_list(acceptor: AcceptorLike, client: Client) -> None:
    client.job().start_package("h", {}, {})
    client.close()
    (added,) = said(acceptor, AddTask)
    assert "package_ref" not in read_arguments(added.spec.payload)


def test_a_missing_master_is_reported_with_the_origin_of_its_address(key: Key) -> None:
    nowhere = MasterLocation("http://127.0.0.1:1", "unix:@ciel-nobody", "c", key, "the test")
    with pytest.raises(NoMasterError) as caught:
        Client(nowhere)
    reason = "nothing listens there; the address is from the test"
    assert str(caught.value) == f"no master at 127.0.0.1:1: {reason}"


def test_importing_the_client_loads_no_seldom_used_modules() -> None:
    rooms = "ciel.client.client, ciel.client.jobs"
    seldom = ("twisted", "http.client", "ssl", "ctypes", "asyncio", "argparse", "subprocess")
    code = f"import sys, {rooms}\nprint([m for m in {seldom} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd="/")
    assert result.stdout == b"[]\n"
