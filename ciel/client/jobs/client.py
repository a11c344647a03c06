"""The job client: methods for jobs, tasks and objects over one connection to a master.

`Client`, the public class, adds Python calls and futures.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

from ciel.access.access_file import wait_for_end
from ciel.access.errors import SettingsError
from ciel.access.settings import MasterLocation, find_master
from ciel.client.connection.connection import (
    ABSENCE_MAX_S,
    ABSENCE_REPORTED_S,
    RECONNECT_S,
    Connection,
    absence_text,
    open_connection,
)
from ciel.client.data.logs import LogReader
from ciel.client.data.objects import GrowingReader, map_object, read_object
from ciel.client.data.pieces import CHUNK_BYTES, Pieces
from ciel.client.data.uploads import REPLICAS, upload_file, upload_id, upload_order
from ciel.client.data.worker_http import Connections
from ciel.client.errors import (
    CallbackWaitError,
    ClientClosedError,
    ClientError,
    ConnectionLostError,
    NoMasterError,
    NotAMasterError,
    QueryError,
    WaitTimeoutError,
)
from ciel.client.forks import forbid, register_fork
from ciel.client.jobs.attached import AttachedJob
from ciel.client.jobs.job import Job
from ciel.client.locks import ForkSafeCondition
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
from ciel.core.jobs import JOB_NAME_MAX_LENGTH, CallerContext, JobSpec, JobSummary, Predecessor
from ciel.core.refs import INLINE_MAX_BYTES, Failure, Reference, Value, with_text
from ciel.core.scheduling import DEFAULT_SCHEDULING, Scheduling
from ciel.wire.descriptors import read_summary

if TYPE_CHECKING:
    from collections import deque

    from ciel.client.cluster.local import LocalCluster
    from ciel.client.jobs.output_forwarding import OutputForwarder, Sink

ANSWER_TIMEOUT_S = 30.0
_PAUSE_S = 0.05  # between attempts to connect to a master that is being restarted


class JobClient:
    """A connection to a cluster, and the jobs that were submitted over it.

    `address` is `http://HOST:PORT`, a `LocalCluster`, a `MasterLocation`, or None. With None the
    client finds a master as every command does (CIEL_MASTER, the configuration file, the access
    file of `ciel up`). If none of them names a master, the client starts a cluster, which ends with
    the client; `cluster_options` are the options of `LocalCluster`. Raises the errors of
    `find_master`, NoMasterError, AccessRefusedError and ClusterError. A forked child cannot use it.

    While the master is being restarted, all methods wait for it: as long as the cluster lives if
    the client has a `LocalCluster`, else for `CIEL_RECONNECT_S` seconds (default 60).
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
        self._changed = ForkSafeCondition()
        self._jobs: WeakValueDictionary[str, Job] = WeakValueDictionary()
        self.job_ids: list[JobId] = []
        """The jobs that this client has submitted."""
        self._watched: dict[str, JobSummary | None] = {}
        self._questions: dict[int, Ask | Change] = {}  # unanswered ones
        self._answers: dict[int, Answer] = {}
        self._ask_count = 0
        self._lost: ClientError | None = None
        self._workers = Connections()
        self._prints: OutputForwarder | None = None
        self.name = name
        self.on_delivery: Callable[[], None] | None = None
        """The connection's thread calls it after each delivery, and at least once a second. It
        holds no lock then."""
        self.on_lost: Callable[[ClientError], None] | None = None
        """The connection's thread calls it when the connection is lost for good."""
        self._listeners: list[Callable[[], None]] = []
        self._delivering: set[int] = set()  # the threads that are in `on_delivery`
        self.cluster: LocalCluster | None = None
        """The cluster that this client started, or that the caller passed."""
        self._owns_cluster = False
        self._absence_max_s = _absence_max_s(environ)
        try:
            self.location = self._locate(address, access, environ, cluster_options or {})
            self._connection = self._connect(name)
        except BaseException:
            self._close_cluster()
            raise
        register_fork(self)

    def _start_again(self) -> tuple[list[Message], list[Message]]:
        """Return what a master has to know that has restarted: the jobs of this client, and then
        the objects that they still want, and its unanswered queries.
        """
        with self._changed:
            jobs = [job for job in self._jobs.values() if not job.is_over]
            others = set(self.job_ids).difference(self._jobs)
            watched = [
                i for i, last in self._watched.items() if last is None or not last.ended_at_s
            ]
            last: list[Message] = [want for job in jobs for want in job.unsettled_wants()]
            last += self._questions.values()
        first: list[Message] = [job.submission() for job in jobs]
        first += [WatchJob(JobId(job_id)) for job_id in (*others, *watched)]
        first += [WatchJob(job.id, prints=True) for job in jobs if job.is_printed]
        return first, last

    def forked(self) -> None:
        """Make every use raise ForkedError; called in a forked child."""
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
        """Close the connection, and the cluster if the client has started it.

        The master cancels the client's jobs that are not detached.
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
        after: Iterable[Predecessor] = (), max_fails: int = -1,
    ) -> Job:  # fmt: skip
        """Submit an empty job, which accepts tasks until it is closed.

        `store`: see `Job.store`. `scheduling`: see `core.scheduling`. `context`: where its programs
        run, see `jobs.caller_context`. `after`: jobs that end before its first task starts.
        `max_fails`: the job is cancelled when more of its tasks have failed; negative: never.
        """
        name = name[:JOB_NAME_MAX_LENGTH]
        job_id = JobId(secrets.token_hex(16))
        spec = JobSpec(
            job_id, name, True, detached, keep, scheduling, context, tuple(after), max_fails
        )
        job = Job(self, spec, self._changed)
        job.store = store
        with self._changed:
            self._jobs[job.id] = job
            self.job_ids.append(job.id)
        self.send(SubmitJob(spec))
        return job

    def attach(self, job: str | int, tell: deque[Reference] | None = None) -> AttachedJob:
        """Return a job of another client, to read its results.

        `job` is its id, its number, or "last". As with `Job.want`, the references of its wanted
        objects are appended to `tell` when the objects are settled; so is a `Stream` while an
        object grows. The first call for a job sets `tell`. Raises QueryError if there is no such
        job, or if it is this client's own.
        """
        summary = read_summary(self.ask("jobs", {"job": str(job)})[0])
        with self._changed:
            known = self._jobs.get(summary.id)
            if known is not None and not isinstance(known, AttachedJob):
                raise QueryError("jobs", f"job {summary.number} is this client's own")
            attached = known or AttachedJob(self, summary, self._changed, tell)
            self._jobs[attached.id] = attached
        self.send(WatchJob(attached.id))
        self._await_answer(lambda: attached.summary is not None, f"job {summary.number}")
        return attached

    @property
    def jobs(self) -> list[Job]:
        """The jobs that this client submitted or attached to, and that the program still holds."""
        with self._changed:
            return list(self._jobs.values())

    def wait_for_job(
        self, job_id: str, timeout_s: float | None = None, *, with_results: bool = False
    ) -> JobSummary:
        """Wait until a job of any client ends; raises WaitTimeoutError, QueryError.

        `with_results`: also wait until results that were lost after the end are recomputed.
        """

        def is_over(summary: JobSummary) -> bool:
            return summary.ended_at_s is not None and not (with_results and summary.unsettled)

        with self._changed:
            self._watched[job_id] = None
        self.send(WatchJob(JobId(job_id)))
        # If the job ended before it was watched, the master does not announce its end again.
        summary = read_summary(self.ask("jobs", {"job": job_id})[0])
        if is_over(summary):
            return summary

        def has_ended() -> bool:
            last = self._watched[job_id]
            return last is not None and is_over(last)

        self.wait_until(has_ended, timeout_s, f"job {summary.number}")
        return self._watched[job_id] or summary

    def last_news(self, job_id: str) -> JobSummary | None:
        """Return the last summary of a job that `wait_for_job` waits for; None before the first."""
        return self._watched.get(job_id)

    def cancel_job(self, job_id: str, reason: str = "cancelled by its user") -> None:
        """Cancel a job of any client; `wait_for_job` waits until its programs have ended."""
        self.send(CancelJob(JobId(job_id), reason))

    def remove_job(self, job_id: str) -> None:
        """Remove an ended job and its results; raises QueryError."""
        self._request(Change, "remove", {"job": job_id})

    def retry_job(self, job_id: str) -> JobSummary:
        """Resume an ended job: its failed tasks run again. Raises QueryError."""
        return read_summary(self._request(Change, "retry", {"job": job_id})["summary"])

    def ask(self, topic: str, argument: Any = None) -> Any:
        """Query the master, and return its answer; raises QueryError.

        `master.state` lists the topics.
        """
        return self._request(Ask, topic, argument)

    def change(self, topic: str, argument: Any) -> Any:
        """Request a change of something that does not belong to this client; raises QueryError."""
        return self._request(Change, topic, argument)

    def _request(self, kind: type[Ask | Change], topic: str, argument: Any) -> Any:
        with self._changed:
            self._ask_count += 1
            number = self._ask_count
            question = self._questions[number] = kind(number, topic, argument)
        try:
            self.send(question)
            self._await_answer(lambda: number in self._answers, "the master's answer")
        finally:
            with self._changed:
                self._questions.pop(number, None)
                answer = self._answers.pop(number, None)
        assert answer is not None  # it was waited for
        if answer.error:
            raise QueryError(topic, answer.error)
        return answer.value

    def _await_answer(self, has_come: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; the time while the master is away does not count."""
        while True:
            try:
                return self.wait_until(has_come, ANSWER_TIMEOUT_S, what)
            except WaitTimeoutError:
                if not self._connection.is_away:
                    raise

    # --- data -------------------------------------------------------------------------------------

    def read(self, ref: Reference) -> bytes:
        """Return an object's whole content; raises TaskFailedError, ObjectUnreadableError."""
        return b"".join(self.read_chunks(ref))

    def read_chunks(
        self, ref: Reference, start: int = 0, end: int | None = None
    ) -> Iterator[bytes]:
        """Yield an object's content from an offset on, to an end, in chunks; raises as `read`."""
        return read_object(ref, self.location.key, self._workers, start, end)

    def read_growing(self, ref: Reference) -> GrowingReader:
        """Read an object while a task writes it; raises ObjectUnreadableError."""
        return GrowingReader(ref, self.location.key)

    def map_object(self, ref: Reference) -> memoryview | None:
        """Map an object into memory, without a copy, if a worker on this host holds it in a file
        or in place.

        The mapping is private: writes to it change nothing else. Return None if no worker here
        holds it.
        """
        return map_object(ref, self.location.key, self._workers)

    def upload(self, path: Path | str, copies: int = REPLICAS) -> Reference:
        """Upload a file to so many workers, as an input of tasks; raises OSError, UploadError."""
        with open(path, "rb") as file:
            return self.upload_opened(file, str(path), copies)

    def upload_content(self, content: bytes, name: str) -> Reference:
        """Upload bytes to workers; `name` appears in errors.

        Fewer than 1,024 bytes are not uploaded: the reference contains them.
        """
        if len(content) <= INLINE_MAX_BYTES:
            return Value.of(upload_id(), content)
        return self.upload_opened(io.BytesIO(content), name)

    def upload_pieces(self, pieces: Sequence[Any], name: str, copies: int = REPLICAS) -> Reference:
        """Upload several buffers as one object; raises UploadError."""
        return self.upload_opened(io.BufferedReader(Pieces(pieces), CHUNK_BYTES), name, copies)

    def slot_count(self) -> int:
        """Return how many slots all workers have together; raises QueryError."""
        return sum(worker["slots"] for worker in self.ask("workers"))

    @property
    def is_delivering(self) -> bool:
        """Whether the calling thread delivers messages, so that it cannot wait for a message."""
        return threading.get_ident() in self._delivering

    def upload_opened(self, file: IO[bytes], name: str, copies: int = REPLICAS) -> Reference:
        """Upload the rest of an open file, which must be seekable; raises as `upload`."""
        netlocs = upload_order(self.ask("workers"))
        return upload_file(file, name, netlocs, self.location.key, self._workers, copies)

    def log_readers(self, job_id: str) -> list[LogReader]:
        """Return, for each worker, a reader of the standard error of a job's programs there."""
        key = self.location.key
        return [
            LogReader(worker["netloc"], worker["worker"], job_id, key)
            for worker in self.ask("workers")
        ]

    # --- messages ---------------------------------------------------------------------------------

    def send(self, *messages: Message) -> None:
        """Send messages; raises ConnectionLostError, ClientClosedError, ForkedError.

        If the client's own cluster has ended, raise ClusterError with the reason.
        """
        try:
            self._connection.send(*messages)
        except ConnectionLostError as error:
            raise self._lost or error from None

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

    @property
    def is_lost(self) -> bool:
        """Whether it has lost its master for good."""
        return self._lost is not None

    def take_time(self, interval_s: float) -> None:
        """Deliver messages at most once in an interval: cheaper for a caller that expects many."""
        self._connection.read_interval_s = interval_s

    def wake(self) -> None:
        """Wake the waiting threads, so that they check their conditions again.

        A caller uses it after a change that no message reports.
        """
        with self._changed:
            self._changed.notify_all()

    def show_prints(
        self,
        job: Job,
        sink: Sink | None = None,
        label: Callable[[JobPrinted], str] | None = None,
        each: Callable[[JobPrinted, str], object] | None = None,
    ) -> None:
        """Forward the output of a job's tasks, line by line (see `jobs.output_forwarding`).

        The first call for a client sets `sink`, `label` and `each`.
        """
        if self._prints is None:
            from ciel.client.jobs.output_forwarding import OutputForwarder

            self._prints = OutputForwarder(self.location.key, self._deliver_now, sink, label, each)
        job.is_printed = True
        self.send(WatchJob(job.id, prints=True))

    def listen(self, listener: Callable[[], None], *, listens: bool = True) -> None:
        """Call a function after each delivery, or with `listens=False` no longer call it.

        The function must not wait.
        """
        if listens:
            self._listeners.append(listener)
        else:
            self._listeners.remove(listener)

    def _deliver(self, messages: list[Message]) -> None:
        self._deliver_now(messages if self._prints is None else self._prints.sift(messages))

    def _deliver_now(self, messages: list[Message]) -> None:
        if messages:
            self._take(messages)
        if self.on_delivery is not None:
            self._delivering.add(threading.get_ident())
            try:
                self.on_delivery()
            except SystemExit:
                pass  # a user's callback must not end this thread
            finally:
                self._delivering.discard(threading.get_ident())
        for listener in self._listeners:
            listener()

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
                    if self._questions.pop(message.number, None) is not None:
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
        """Replace the path of a failed task's scratch directory by its path after the cluster."""
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
        if self.on_lost is not None:
            self.on_lost(cause or error)

    # --- opening and closing ----------------------------------------------------------------------

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
            from ciel.client.cluster.local import LocalCluster

            self.cluster = LocalCluster(environ=environ, **cluster_options)
            self._owns_cluster = True
            own = self.cluster.describe()
            _say(f"no cluster is configured or running, so this command starts one: {own}")
            return self.cluster.location
        if not hasattr(address, "cause_of_death"):
            raise TypeError(
                "a client takes the address of a master ('HOST:PORT'), a LocalCluster, or nothing, "
                f"not {address!r:.80}; for a number of slots, start a cluster: "
                "ciel.LocalCluster(workers=1, slots=4)"
            )
        self.cluster = address
        if address.ended.is_set() and (cause := address.cause_of_death()):
            raise cause
        return address.location

    def _connect(self, name: str) -> Connection:
        """Connect to the master; wait for it if it is being restarted, or a standby takes over."""
        started_s = time.monotonic()
        is_reported = False
        while True:
            lives = self._master_returns()
            try:
                return self._connect_once(name)
            except NoMasterError as error:
                waited_s = time.monotonic() - started_s
                answers = isinstance(error, NotAMasterError)
                patience_s = self._absence_max_s if lives and not answers else RECONNECT_S
                if not (lives or self.location.standbys) or waited_s > patience_s:
                    raise
                if waited_s > ABSENCE_REPORTED_S and not is_reported:
                    is_reported = True
                    _say(absence_text(self.location.url, error.reason, self._absence_max_s))
            if self.cluster is not None:
                self.cluster.ended.wait(_PAUSE_S)
            else:
                wait_for_end(self.location.pid, _PAUSE_S)

    def _master_returns(self) -> bool:
        """Whether the process that restarts the master is alive."""
        if self.cluster is not None:
            return not self.cluster.ended.is_set()
        return self.location.is_alive()

    def _connect_once(self, name: str) -> Connection:
        """Connect to the control address, or else to the address in the URL, or to a standby.

        The control address may be a Unix socket, which is not visible in another network namespace.
        """
        urls = (self.location.url, *self.location.standbys)
        netlocs = [url.partition("://")[2] for url in urls]
        addresses = list(dict.fromkeys((self.location.control, *netlocs)))
        for address in addresses:
            try:
                return open_connection(
                    address, self.location.key, self._deliver, self._on_lost,
                    cluster_id=self.location.cluster_id, about={"kind": "client", "name": name},
                    is_hopeless=self._is_hopeless, start_again=self._start_again,
                    absence_max_s=math.inf if self.cluster else self._absence_max_s, on_away=_say,
                )  # fmt: skip
            except NoMasterError as error:
                is_other = isinstance(error, NotAMasterError) and not error.is_silent
                if is_other or address == addresses[-1]:
                    reason = f"{error.reason}; the address is from {self.location.origin}"
                    raise type(error)(address, reason) from None
        raise ClientClosedError  # there is always a last address

    def _close_cluster(self) -> None:
        if self._owns_cluster and self.cluster is not None:
            with contextlib.suppress(ClientClosedError):
                self.cluster.close()


def _absence_max_s(environ: Mapping[str, str]) -> float:
    """Return how long a client waits for a master that is away; raises SettingsError."""
    text = environ.get("CIEL_RECONNECT_S")
    if not text:
        return ABSENCE_MAX_S
    with contextlib.suppress(ValueError):
        if (found := float(text)) >= 0:
            return found
    reason = f"{text[:80]!a} is not a number of seconds; write 60, or inf to wait without end"
    raise SettingsError("CIEL_RECONNECT_S", reason)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # standard error is closed
        print(f"ciel: {text}", file=sys.stderr, flush=True)
