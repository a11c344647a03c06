"""The front door of the Python API: a client of one cluster, found, named or started for it."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

from ciel.access.settings import MasterLocation, find_master
from ciel.client import data
from ciel.client.changes import Changes
from ciel.client.connection import Connection, open_connection
from ciel.client.errors import (
    CallbackWaitError,
    ClientClosedError,
    ClientError,
    NoMasterError,
    NotAMasterError,
    QueryError,
    WaitTimeoutError,
)
from ciel.client.forks import forbid, tell_of_forks
from ciel.client.jobs import Job
from ciel.core.events import (
    Answer,
    Ask,
    CancelJob,
    Change,
    JobChanged,
    JobPrinted,
    Message,
    ObjectSettled,
    RequestRefused,
    SubmitJob,
    WatchJob,
)
from ciel.core.ids import JobId
from ciel.core.jobs import JOB_NAME_MAX_LENGTH, CallerContext, JobSpec, JobSummary
from ciel.core.refs import INLINE_MAX_BYTES, Failure, Reference, Value, with_text
from ciel.core.scheduling import DEFAULT_SCHEDULING, Scheduling
from ciel.wire.descriptors import read_summary

if TYPE_CHECKING:
    from collections import deque

    from ciel.client.attached import AttachedJob
    from ciel.client.cluster import LocalCluster
    from ciel.client.prints import Prints, Sink

ANSWER_TIMEOUT_S = 30.0


class Client:
    """A connection to a cluster, and the jobs submitted over it.

    `address` is `http://HOST:PORT`, a `LocalCluster`, a location that was found before, or None:
    then the master is sought as every command seeks it (CIEL_MASTER, configuration file, access
    file of `ciel up`), and when there is none a cluster of its own is started, and ends with the
    client; `cluster_options` are those of `LocalCluster`. Raises what `find_master` does,
    NoMasterError, AccessRefusedError and ClusterError. Not for use in a forked child.
    """

    def __init__(
        self,
        address: str | LocalCluster | MasterLocation | None = None,
        *,
        access: str | None = None,
        name: str = "python",
        environ: Mapping[str, str] = os.environ,
        cluster_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._changed = Changes()
        self._jobs: WeakValueDictionary[str, Job] = WeakValueDictionary()
        self.job_ids: list[JobId] = []
        """Of all jobs that it has begun."""
        self._watched: dict[str, JobSummary | None] = {}
        self._answers: dict[int, Answer | None] = {}
        self._ask_count = 0
        self._lost: ClientError | None = None
        self._workers = data.Connections()
        self._prints: Prints | None = None
        self.name = name
        self.is_delivered: Callable[[], None] | None = None
        """Called by the connection's thread after each delivery, or once a second;
        no lock is held."""
        self._delivering: set[int] = set()  # the threads that do so, while they do
        self.cluster: LocalCluster | None = None
        """The cluster that this client started for itself, or was given."""
        self._owns_cluster = False
        try:
            self.location = self._locate(address, access, environ, cluster_options or {})
            self._connection = self._connect(name)
        except BaseException:
            self._close_cluster()
            raise
        tell_of_forks(self)

    def forked(self) -> None:
        """Be a copy in a forked child."""
        forbid(self, silent=("close", "__exit__"), kept=("cluster", "location", "name"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up, and end the cluster if it was started for us. Jobs that are not detached are
        cancelled by the master.
        """
        try:
            if self._prints is not None:
                self._prints.close()
            self._connection.close()
        finally:
            self._workers.close()
            self._close_cluster()

    # --- jobs -------------------------------------------------------------------------------------

    def job(
        self, name: str = "", *, detached: bool = False, keep: bool = False, store: str = "",
        scheduling: Scheduling = DEFAULT_SCHEDULING, context: CallerContext | None = None,
    ) -> Job:  # fmt: skip
        """Begin a job, which takes tasks until it is closed. `store`: see `Job.store`;
        `scheduling`: see `core.scheduling`; `context`: where its programs run, see
        `client.caller.caller_context`.
        """
        name = name[:JOB_NAME_MAX_LENGTH]
        job_id = JobId(secrets.token_hex(16))
        spec = JobSpec(job_id, name, True, detached, keep, scheduling, context)
        job = Job(self, spec, self._changed)
        job.store = store
        with self._changed:
            self._jobs[job.id] = job
            self.job_ids.append(job.id)
        self.send(SubmitJob(spec))
        return job

    def attach(self, job: str | int, tell: deque[Reference] | None = None) -> AttachedJob:
        """Return a job that another client began, to read its results: by its id, its number, or
        "last". As `Job.want` does, it appends to `tell` what its wanted objects become, and also a
        `Stream` for a growing object; the first call for a job sets `tell`. Raises QueryError if
        there is none, or it is this client's own.
        """
        from ciel.client.attached import AttachedJob

        summary = read_summary(self.ask("jobs", {"job": str(job)})[0])
        with self._changed:
            known = self._jobs.get(summary.id)
            if known is not None and not isinstance(known, AttachedJob):
                raise QueryError("jobs", f"job {summary.number} is this client's own")
            attached = known or AttachedJob(self, summary, self._changed, tell)
            self._jobs[attached.id] = attached
        self.send(WatchJob(attached.id))
        what = f"job {summary.number}"
        attached.wait_until(lambda: attached.summary is not None, ANSWER_TIMEOUT_S, what)
        return attached

    @property
    def jobs(self) -> list[Job]:
        """The jobs that this client has begun, as far as somebody still holds them."""
        with self._changed:
            return list(self._jobs.values())

    def wait_for_job(
        self, job_id: str, timeout_s: float | None = None, *, with_results: bool = False
    ) -> JobSummary:
        """Wait for a job that anybody submitted to end; raises WaitTimeoutError, QueryError.

        `with_results`: also until results that were lost since are there again.
        """

        def is_over(summary: JobSummary) -> bool:
            return summary.ended_at_s is not None and not (with_results and summary.unsettled)

        with self._changed:
            self._watched[job_id] = None
        self.send(WatchJob(JobId(job_id)))
        # What ended before it was watched may not be announced again.
        summary = read_summary(self.ask("jobs", {"job": job_id})[0])
        if is_over(summary):
            return summary

        def was_told() -> bool:
            last = self._watched[job_id]
            return last is not None and is_over(last)

        self.wait_until(was_told, timeout_s, f"job {summary.number}")
        return self._watched[job_id] or summary

    def last_news(self, job_id: str) -> JobSummary | None:
        """Return what was told last of a job that is waited for, if anything was."""
        return self._watched.get(job_id)

    def cancel_job(self, job_id: str, reason: str = "cancelled by its user") -> None:
        """Have a job cancelled that anybody submitted; see `wait_for_job` for when it is over."""
        self.send(CancelJob(JobId(job_id), reason))

    def remove_job(self, job_id: str) -> None:
        """Have an ended job forgotten, with its results; raises QueryError."""
        self._request(Change, "remove", {"job": job_id})

    def retry_job(self, job_id: str) -> JobSummary:
        """Have the failed tasks of an ended job run again, and the job go on; raises QueryError."""
        return read_summary(self._request(Change, "retry", {"job": job_id})["summary"])

    def ask(self, topic: str, argument: Any = None) -> Any:
        """Return the master's answer to a question (`master.state.answers` lists them); raises
        QueryError.
        """
        return self._request(Ask, topic, argument)

    def change(self, topic: str, argument: Any) -> Any:
        """Have the master change something that is not this client's own; raises QueryError."""
        return self._request(Change, topic, argument)

    def _request(self, kind: type[Ask | Change], topic: str, argument: Any) -> Any:
        with self._changed:
            self._ask_count += 1
            number = self._ask_count
            self._answers[number] = None
        try:
            self.send(kind(number, topic, argument))
            self.wait_until(
                lambda: self._answers[number] is not None, ANSWER_TIMEOUT_S, "the master's answer"
            )
        finally:
            with self._changed:
                answer = self._answers.pop(number)
        assert answer is not None  # it was waited for
        if answer.error:
            raise QueryError(topic, answer.error)
        return answer.value

    # --- data -------------------------------------------------------------------------------------

    def read(self, ref: Reference) -> bytes:
        """Return an object's whole content; raises TaskFailedError, ObjectUnreadableError."""
        return b"".join(self.read_chunks(ref))

    def read_chunks(self, ref: Reference) -> Iterator[bytes]:
        """Yield an object's content in chunks; raises as `read`."""
        return data.read_object(ref, self.location.key, self._workers)

    def read_growing(self, ref: Reference) -> data.GrowingReader:
        """Read an object while it grows; raises ObjectUnreadableError."""
        return data.GrowingReader(ref, self.location.key)

    def map_object(self, ref: Reference) -> mmap.mmap | None:
        """Return an object in memory, without a copy, if a worker of this host holds it in a file;
        what is written there nobody else sees.
        """
        return data.map_object(ref, self.location.key, self._workers)

    def upload(self, path: Path | str) -> Reference:
        """Bring a file to the workers, to be given to tasks; raises OSError, UploadError."""
        with open(path, "rb") as file:
            return self.upload_opened(file, str(path))

    def upload_content(self, content: bytes, name: str) -> Reference:
        """Bring content to the workers as `upload` does a file; errors call it by `name`. What is
        short goes nowhere, it rides in the reference.
        """
        if len(content) <= INLINE_MAX_BYTES:
            return Value.of(data.upload_id(), content)
        return self.upload_opened(io.BytesIO(content), name)

    def upload_pieces(self, pieces: Sequence[Any], name: str) -> Reference:
        """Bring buffers, one after the other as one object; raises UploadError."""
        return self.upload_opened(io.BufferedReader(data.Pieces(pieces), data.CHUNK_BYTES), name)

    def slot_count(self) -> int:
        """Return how many slots the workers have, all together; raises QueryError."""
        return sum(worker["slots"] for worker in self.ask("workers"))

    @property
    def is_delivering(self) -> bool:
        """Whether the calling thread is the connection's, which cannot wait for what it brings."""
        return threading.get_ident() in self._delivering

    def upload_opened(self, file: IO[bytes], name: str) -> Reference:
        """Bring what a file that is open holds, from where it stands, as `upload`; it must be
        possible to read it twice.
        """
        workers = self.ask("workers")
        netlocs = [worker["netloc"] for worker in sorted(workers, key=lambda w: w["queued"])]
        return data.upload_file(file, name, netlocs, self.location.key, self._workers)

    def log_readers(self, job_id: str) -> list[data.LogReader]:
        """Return a reader of what a job's programs complained for every worker there is."""
        key = self.location.key
        return [
            data.LogReader(worker["netloc"], worker["worker"], job_id, key)
            for worker in self.ask("workers")
        ]

    # --- for jobs ---------------------------------------------------------------------------------

    def send(self, *messages: Message) -> None:
        """Send messages; raises ConnectionLostError, ClientClosedError, ForkedError."""
        self._connection.send(*messages)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        """Wait until `condition`, called with the lock held after each delivery, is true.

        Raises WaitTimeoutError, ConnectionLostError, CallbackWaitError, and what `condition`
        raises.
        """

        def is_over() -> bool:
            if condition():
                return True
            if self._lost is not None:
                raise self._lost
            return False

        if self.is_delivering and (timeout_s is None or timeout_s > 0):
            with self._changed:
                if not is_over():
                    raise CallbackWaitError(what)
        elif not self._changed.wait_for(is_over, timeout_s):
            raise WaitTimeoutError(what, timeout_s or 0.0)

    def take_time(self, interval_s: float) -> None:
        """Let news pile up for so long before they are delivered: it is cheaper for who expects
        much.
        """
        self._connection.read_interval_s = interval_s

    def wake(self) -> None:
        """Have those who wait look at their conditions again: something else has changed."""
        with self._changed:
            self._changed.notify_all()

    def show_prints(
        self,
        job: Job,
        sink: Sink | None = None,
        label: Callable[[JobPrinted], str] | None = None,
    ) -> None:
        """Have what the tasks of a job print appear line by line, see `client.prints`; `sink` and
        `label` are those of the first call.
        """
        if self._prints is None:
            from ciel.client.prints import Prints

            self._prints = Prints(self.location.key, self._deliver_now, sink, label)
        self.send(WatchJob(job.id, prints=True))

    def _deliver(self, messages: list[Message]) -> None:
        self._deliver_now(messages if self._prints is None else self._prints.sift(messages))

    def _deliver_now(self, messages: list[Message]) -> None:
        if messages:
            self._take(messages)
        if self.is_delivered is not None:
            self._delivering.add(threading.get_ident())
            try:
                self.is_delivered()
            except SystemExit:
                pass  # of somebody's callback, which ends no thread but its own
            finally:
                self._delivering.discard(threading.get_ident())

    def _take(self, messages: list[Message]) -> None:
        with self._changed:
            job: Job | None = None
            for message in messages:
                if isinstance(message, ObjectSettled):  # most of them, many of one job
                    if self.cluster is not None and isinstance(message.ref, Failure):
                        message = self._relocated(self.cluster, message, message.ref)
                    if job is None or job.id != message.job:
                        job = self._jobs.get(message.job)
                    if job is not None:
                        job.take_settled(message.ref)
                elif isinstance(message, JobPrinted):
                    if message.is_notice and (noticed := self._jobs.get(message.job)) is not None:
                        noticed.notices.append(message)
                elif isinstance(message, Answer):
                    if message.number in self._answers:
                        self._answers[message.number] = message
                elif isinstance(message, JobChanged):
                    summary = message.summary
                    if self.cluster is not None:
                        summary = summary._replace(reason=self.cluster.relocated(summary.reason))
                    if summary.id in self._watched:
                        self._watched[summary.id] = summary
                    self._pass_on(summary.id, JobChanged(summary))
                elif isinstance(message, RequestRefused):
                    self._pass_on(message.job, message)
            self._changed.notify_all()

    def _pass_on(self, job_id: str, message: Message) -> None:
        if job := self._jobs.get(job_id):
            job.take(message)

    def _relocated(
        self, cluster: LocalCluster, message: ObjectSettled, failure: Failure
    ) -> ObjectSettled:
        """Say of a failed task's scratch directory where it will be found afterwards."""
        details = with_text(failure.details, cluster.relocated(failure.text))
        return message._replace(ref=failure._replace(details=details))

    def _is_hopeless(self) -> bool:
        return self.cluster is not None and self.cluster.ended.is_set()

    def _on_lost(self, error: ClientError) -> None:
        if self._prints is not None:
            self._prints.drain()
        cause = self.cluster.cause_of_death() if self.cluster else None
        with self._changed:
            self._lost = cause or error
            self._changed.notify_all()

    # --- beginning and end ------------------------------------------------------------------------

    def _locate(
        self,
        address: str | LocalCluster | MasterLocation | None,
        access: str | None,
        environ: Mapping[str, str],
        cluster_options: Mapping[str, Any],
    ) -> MasterLocation:
        if isinstance(address, MasterLocation):
            return address
        if address is None or isinstance(address, str):
            found = find_master(address, access, environ)
            if found is not None:
                return found
            from ciel.client.cluster import LocalCluster

            self.cluster = LocalCluster(environ=environ, **cluster_options)
            self._owns_cluster = True
            own = self.cluster.describe()
            with contextlib.suppress(OSError):  # nobody can be told
                print(
                    f"ciel: no cluster is named or up, so this is one of our own: {own}",
                    file=sys.stderr,
                )
            return self.cluster.location
        if not hasattr(address, "cause_of_death"):
            raise TypeError(
                "a client takes the address of a master ('HOST:PORT'), a LocalCluster, or nothing, "
                f"not {address!r:.80}; a number of slots is for a cluster: "
                "ciel.LocalCluster(workers=1, slots=4)"
            )
        self.cluster = address
        if address.ended.is_set() and (cause := address.cause_of_death()):
            raise cause
        return address.location

    def _connect(self, name: str) -> Connection:
        """Connect by the control address; by the URL's if there is nothing (another network
        namespace does not see the former).
        """
        netloc = self.location.url.partition("://")[2]
        addresses = list(dict.fromkeys((self.location.control, netloc)))
        for address in addresses:
            try:
                return open_connection(
                    address, self.location.key, self._deliver, self._on_lost,
                    cluster_id=self.location.cluster_id, about={"kind": "client", "name": name},
                    is_hopeless=self._is_hopeless,
                )  # fmt: skip
            except NoMasterError as error:
                if isinstance(error, NotAMasterError) or address == addresses[-1]:
                    reason = f"{error.reason}; the address is from {self.location.origin}"
                    raise type(error)(address, reason) from None
        raise ClientClosedError  # there is always a last address

    def _close_cluster(self) -> None:
        if self._owns_cluster and self.cluster is not None:
            with contextlib.suppress(ClientClosedError):
                self.cluster.close()
