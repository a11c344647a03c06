"""A job of this client: it takes tasks and returns references to their outputs.

    with client.job("sum") as job:
        parts = [job.run(["grep", "-c", "word", path]) for path in paths]
        total = job.run(["awk", "{s += $1} END {print s}"], inputs=parts)
        print(job.read(total))

A task runs only if `want`, `result`, `results` or `read` wants its output, or if a task that runs
needs it. Thread-safe.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from ciel.client.errors import (
    ClientError,
    InputsTooLargeError,
    JobEndedError,
    ObjectUnreadableError,
    QueryError,
    RequestRefusedError,
    TaskFailedError,
    WaitTimeoutError,
)
from ciel.client.locks import ForkSafeCondition
from ciel.core.events import (
    LOST_AFTER_S,
    AddTask,
    CancelJob,
    CloseJob,
    JobChanged,
    JobPrinted,
    Message,
    ReleaseObjects,
    ReplicateObjects,
    RequestRefused,
    SubmitJob,
    WantObjects,
    WatchJob,
)
from ciel.core.ids import UPLOAD_PREFIX, JobId, ObjectId, is_output, job_output_id, root_task_id
from ciel.core.jobs import ENDED, JobSpec, JobSummary
from ciel.core.naming import all_references
from ciel.core.refs import (
    INLINE_MAX_BYTES,
    Failure,
    Future,
    Reference,
    Stream,
    Value,
    locations_of,
)
from ciel.core.tasks import DEFAULT_NEEDS, Mentions, Needs, TaskSpec, TaskState
from ciel.core.weights import INPUTS_WEIGHED_FROM, why_too_large
from ciel.python.showing import Shown
from ciel.wire import codec
from ciel.wire.descriptors import make_task, read_summary
from ciel.wire.packages import encode_package
from ciel.wire.references import from_json, to_json
from ciel.wire.system_texts import to_value

_T = TypeVar("_T")
_ENDED: Final = frozenset(str(state) for state in ENDED)
_BUSY: Final = frozenset(map(str, (TaskState.RUNNABLE, TaskState.ASSIGNED)))
_ADDED_AT_ONCE = 256  # tasks in one frame; with larger frames the first tasks would start later
_WANTED_AT_ONCE = 1000  # ids in one message
_NAMED_BY_ONE_TASK = 1000  # some 100 KB of references
LOSS_NOTICE_S: Final = 2 * LOST_AFTER_S
"""The master detects and reports within this time that a worker is lost."""


def archive_of(output: Reference) -> Future:
    """Return the tar archive of a program's collected files; `output` is its standard output."""
    return Future(ObjectId(f"{output.id.removesuffix(':out:0')}:out:1"))


def several(refs: Reference | Iterable[Reference]) -> Iterable[Reference]:
    """Return one or more references as an iterable; a reference itself is a tuple of its fields."""
    return (refs,) if isinstance(refs, Reference) else refs


class Session(Protocol):
    """The part of a client that jobs use."""

    def send(self, *messages: Message) -> None: ...

    def ask(self, topic: str, argument: Any = None) -> Any: ...

    def wait_until(
        self, condition: Callable[[], bool], timeout_s: float | None, what: str
    ) -> None: ...

    def read(self, ref: Reference) -> bytes: ...

    def read_chunks(self, ref: Reference) -> Iterator[bytes]: ...

    def upload_content(self, content: bytes, name: str) -> Reference: ...


class Job(Shown):
    """An open job of `client`, created by `Client.job`.

    As a context manager it closes the job and waits for it, or cancels the job if the block raises.
    """

    def __init__(self, client: Session, spec: JobSpec, changed: ForkSafeCondition) -> None:
        self.id: JobId = spec.id
        self.store = ""
        """The store to which workers with two stores first write outputs of programs that `run`
        adds: `memory` or `disk`; empty: the worker's default."""
        self.name = spec.name
        self._client = client
        self._changed = changed  # the client's lock, for all that its connection delivers
        self._ordinals = itertools.count()
        self._adding: list[Message] = []  # tasks to send with the next want
        self._adding_lock = threading.Lock()
        self._wanted: dict[ObjectId, deque[Reference] | None] = {}  # with the deque to append to
        self._settled: dict[ObjectId, Reference | str] = {}
        """References to wanted objects that were produced or have failed. For a `Value` only its
        text is stored: there may be many, and the garbage collector does not visit texts."""
        self.failed_count = 0
        """How many wanted objects have failed."""
        self.released_count = 0
        self.notices: list[JobPrinted] = []
        """Notices of workers about attempts that have ended, in addition to results; a few at
        most."""
        self.on_growing: Callable[[Reference], object] | None = None
        """Called when a wanted object can be read while a task writes it; it must not wait."""
        self._summary: JobSummary | None = None
        self._refusal = ""
        self._closed = False
        self._spec = spec
        self.is_printed = False
        """Whether the client forwards the output of the tasks."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            self.wait()
        else:
            try:
                self.cancel(f"its client raised {type(error).__name__}")
            except ClientError:
                pass  # the caller needs the error of the block, not this one

    # --- adding tasks -----------------------------------------------------------------------------

    def run(
        self,
        command_line: Sequence[str | int | Reference],
        *,
        inputs: Sequence[Reference] = (),
        files: Mapping[str, Reference] | None = None,
        env: Mapping[str, str | None] | None = None,
        cwd: str | None = None,
        executables: Sequence[str] = (),
        needs: Needs = DEFAULT_NEEDS,
        name: str = "",
        store: str = "",
        streams: bool = False,
        collects: Sequence[str] = (),
        after: Sequence[Reference] = (),
    ) -> Future:
        """Add an ordinary program, and return its standard output, which the caller must want.

        References in the command line become paths; standard input is the concatenation of the
        `inputs`. With `files` the program runs in a private directory that contains them under
        these relative names; `executables` lists those that are executable. `cwd`: its directory,
        instead of the job's; "": a private directory. `store`: where the output is stored first,
        `memory` or `disk`, instead of the job's `store`. The program receives texts with surrogate
        escapes (see `os.fsdecode`) as the original bytes. `streams`: the output can be read while
        the program writes it, see `on_growing`. `collects`: names or patterns of files that the
        program creates; `archive_of` returns their archive. `after`: objects that have to exist
        before the program starts, although it does not read them.
        """
        words = [to_value(word) if isinstance(word, str) else word for word in command_line]
        args: dict[str, Any] = {"command_line": words}
        if inputs:
            args["inputs"] = list(inputs)
        if files:
            named = [(to_value(path), ref) for path, ref in files.items()]
            has_bytes = any(type(path) is not str for path, _ in named)
            args["files"] = [[*pair] for pair in named] if has_bytes else dict(files)
        if env:
            args["env"] = {
                variable: None if value is None else to_value(value)
                for variable, value in env.items()
            }
        if cwd is not None:
            args["cwd"] = cwd
        if executables:
            args["executables"] = [to_value(path) for path in executables]
        if store := store or self.store:
            args["store"] = store
        if streams:
            args["stream_output"] = True
        arguments: dict[str, Any] = {"args": args}
        read = {ref.id for ref in all_references(arguments)} if after else set()
        unread = [ref for ref in after if ref.id not in read]
        if unread:
            arguments["after"] = unread
        if collects:
            args["collects"] = [to_value(pattern) for pattern in collects]
            arguments["n_outputs"] = 2
        return self.add(
            "stdinout", arguments, n_outputs=2 if collects else 1, needs=needs,
            mentions=Mentions.NOTHING, name=name, apart=unread,
        )[0]  # fmt: skip

    def add(
        self,
        executor: str,
        arguments: dict[str, Any],
        *,
        n_outputs: int = 1,
        needs: Needs = DEFAULT_NEEDS,
        mentions: Mentions = Mentions.ANYTHING,
        name: str = "",
        sees_errors: bool = False,
        apart: Iterable[Reference] = (),
    ) -> list[Future]:
        """Add a task for any executor; references in `arguments` become its inputs.

        `sees_errors`: the task runs even if an input has failed. `apart`: inputs that a worker need
        not copy as a whole. The task is sent with the next
        want or after some more tasks, since it cannot run before a want. Raises TypeError,
        ValueError or EncodeError for arguments that have no JSON form, and InputsTooLargeError.
        """
        spec, known = make_task(
            job=self.id, parent=self.id, ordinal=next(self._ordinals), executor=executor,
            arguments=arguments, n_outputs=n_outputs, needs=needs, mentions=mentions, name=name,
            sees_errors=sees_errors, apart=apart,
        )  # fmt: skip
        if len(known) > INPUTS_WEIGHED_FROM and (too_large := why_too_large(known)):
            raise InputsTooLargeError(name or executor, too_large)
        with self._adding_lock:
            self._adding.append(AddTask(spec, known))
        if len(self._adding) >= _ADDED_AT_ONCE:
            self._send()
        return [Future(output) for output in spec.outputs]

    def _send(self, *messages: Message) -> None:
        """Send the tasks that were added since the last call, then these messages."""
        added: list[Message] = []
        try:
            with self._adding_lock:
                added, self._adding = self._adding, []
            if added or messages:
                self._client.send(*added, *messages)
        except (KeyboardInterrupt, SystemExit):
            with self._adding_lock:  # they may have been sent; adding them twice does no harm
                self._adding[:0] = added
            raise

    def start_package(
        self,
        handler: str,
        start_args: Mapping[str, Any],
        package: Mapping[str, Reference],
        pieces: Iterable[Reference] = (),
    ) -> Future:
        """Add the first task of a package; raises UploadError.

        The returned object will be a JSON list of references to the outputs of that task. The
        objects of the package, and the `pieces` to which they refer, exist as long as the job.
        """
        arguments: dict[str, Any] = {
            "package": self.named([*package.values(), *pieces]),
            "start_handler": handler,
            "start_args": dict(start_args),
        }
        if package:
            arguments["package_ref"] = self.package_object(package)
        references = all_references(arguments)
        output = job_output_id(self.id)
        spec = TaskSpec(
            root_task_id(self.id), self.id, self.id, -1, "", "init",
            tuple([ref.id for ref in references]), (output,), DEFAULT_NEEDS, False,
            Mentions.ANYTHING, self.name, codec.encode(to_json(arguments)),
        )  # fmt: skip
        known = tuple([ref for ref in references if not isinstance(ref, Future)])
        self._send(AddTask(spec, known))
        return Future(output)

    def named(self, refs: Iterable[Reference]) -> list[Reference]:
        """Return the references that keep objects alive while a task has them in its arguments.

        An inline object cannot be lost, so it is left out. If there are too many references for one
        task, add other tasks with them, which never run, and return none.
        """
        kept: dict[ObjectId, Reference] = {r.id: r for r in refs if not isinstance(r, Value)}
        found = list(kept.values())
        if len(found) <= _NAMED_BY_ONE_TASK:
            return found
        for start in range(0, len(found), _NAMED_BY_ONE_TASK):
            some = found[start : start + _NAMED_BY_ONE_TASK]
            self.add("sync", {"args": {"inputs": some}}, name="package")
        return []

    def package_object(self, package: Mapping[str, Reference]) -> Reference:
        """Return an object that lists the content of a package; raises UploadError.

        Programs look up entries in it.
        """
        content = encode_package(package)
        if len(content) <= INLINE_MAX_BYTES:
            return Value.of(ObjectId(f"{self.id}:package"), content)
        return self._client.upload_content(content, "the list of the package")

    def want(
        self, refs: Reference | Iterable[Reference], tell: deque[Reference] | None = None
    ) -> None:
        """Request that objects be produced; one call for many objects is faster.

        When an object is settled, and each time that it is recomputed, its reference is also
        appended to `tell`.
        """
        objects: list[ObjectId] = []
        try:
            with self._changed:
                objects = [ref.id for ref in several(refs) if ref.id not in self._wanted]
                objects = list(dict.fromkeys(objects))
                self._wanted.update(dict.fromkeys(objects, tell))
            for start in range(0, len(objects), _WANTED_AT_ONCE):
                batch = tuple(objects[start : start + _WANTED_AT_ONCE])
                self._send(WantObjects(self.id, batch))
        except BaseException:  # an interrupted caller may want them again
            with self._changed:
                for object_id in objects:
                    self._wanted.pop(object_id, None)
                    self._settled.pop(object_id, None)
            raise

    def release(self, refs: Reference | Iterable[Reference], *, for_good: bool = False) -> None:
        """Release one or more objects.

        `for_good`: no task will refer to them again, so the client and the master can forget them.
        """
        refs = list(several(refs))
        objects = self.forget(refs)
        uploads: dict[ObjectId, Reference] = {}
        if for_good:  # an upload is never wanted
            uploads = {ref.id: ref for ref in refs if ref.id.startswith(UPLOAD_PREFIX)}
            objects += uploads
        for start in range(0, len(objects), _WANTED_AT_ONCE):
            batch = tuple(objects[start : start + _WANTED_AT_ONCE])
            stored = [uploads[i] for i in batch if i in uploads and locations_of(uploads[i])]
            self._send(ReleaseObjects(self.id, batch, for_good, tuple(stored)))

    def replicate(self, refs: Iterable[Reference], copies: int) -> None:
        """Have so many workers hold each of these uploads, until they are released or the job ends.

        Whenever one of these workers is lost, another one copies the object.
        """
        stored = tuple([ref for ref in refs if locations_of(ref)])
        for start in range(0, len(stored), _WANTED_AT_ONCE):
            batch = stored[start : start + _WANTED_AT_ONCE]
            self._send(ReplicateObjects(self.id, copies, batch))

    @property
    def is_over(self) -> bool:
        """Whether the client knows that the job has ended, and waits for no object of it."""
        is_ended = self._summary is not None and self._summary.state in _ENDED
        return is_ended and len(self._settled) >= len(self._wanted)

    def submission(self) -> Message:
        """Return the message that makes the job known to a master that has restarted."""
        return SubmitJob(self._spec)

    def unsettled_wants(self) -> list[Message]:
        """Return the messages that repeat the wants of objects that do not exist yet."""
        missing = [object_id for object_id in self._wanted if object_id not in self._settled]
        return [
            WantObjects(self.id, tuple(missing[start : start + _WANTED_AT_ONCE]))
            for start in range(0, len(missing), _WANTED_AT_ONCE)
        ]

    def forget(self, refs: Iterable[Reference]) -> list[ObjectId]:
        """Ignore messages about these objects, although they stay wanted.

        Return the objects that were not ignored before.
        """
        with self._changed:
            objects = list(dict.fromkeys(ref.id for ref in refs if ref.id in self._wanted))
            for object_id in objects:
                del self._wanted[object_id]
                self._settled.pop(object_id, None)
            self.released_count += len(objects)
        return objects

    def close(self) -> None:
        """End the job when its wanted objects exist: no more tasks or wants follow."""
        if not self._closed:
            self._send(CloseJob(self.id))
            self._closed = True

    def cancel(self, reason: str = "cancelled by its client") -> None:
        """End the job now; `wait` returns when its programs have ended."""
        self._send(CancelJob(self.id, reason))

    # --- results ----------------------------------------------------------------------------------

    def results(
        self, refs: Sequence[Reference], timeout_s: float | None = None
    ) -> Iterator[Reference]:
        """Want these objects; yield the settled reference of each, in this order, when it is known.

        An object that could not be produced is yielded as a `Failure`. Raises JobEndedError,
        RequestRefusedError, ConnectionLostError, and WaitTimeoutError if all objects together take
        longer.
        """
        self.want(refs)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        for ref in refs:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            yield self._await_settled(ref.id, left_s)

    def result(self, ref: Reference, timeout_s: float | None = None) -> Reference:
        """Want one object, wait for it, and return it; raises TaskFailedError and as `results`."""
        self.want((ref,))
        found = self._await_settled(ref.id, timeout_s)
        if isinstance(found, Failure):
            raise TaskFailedError(found)
        return found

    def read(self, ref: Reference, timeout_s: float | None = None) -> bytes:
        """Return an object's content; raises as `result`, and ObjectUnreadableError.

        If the object is lost meanwhile, wait until it is recomputed.
        """
        return self.read_by(self._client.read, ref, timeout_s)

    def read_by(
        self, read: Callable[[Reference], _T], ref: Reference, timeout_s: float | None = None
    ) -> _T:
        """Return the result of the function `read` for an object; otherwise as the method `read`.

        If the copies of the object are lost, call the function again after it is recomputed.
        """
        exists = not isinstance(ref, Future) and ref.id not in self._wanted
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        found = ref if exists else self.result(ref, timeout_s)
        while True:
            try:
                return read(found)
            except ObjectUnreadableError as error:
                left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
                if ref.id in self._wanted:
                    found = self.await_copy(error, found, left_s)
                elif is_output(ref.id):
                    found = self.result(ref, left_s)
                elif (other := self._copied_elsewhere(found)) is not None:
                    found = other
                else:
                    raise  # an upload, which no task can recompute

    def await_copy(
        self, unreadable: ObjectUnreadableError, ref: Reference, timeout_s: float | None = None
    ) -> Reference:
        """Wait until an object that could not be read is recomputed, and return its new reference.

        The object was settled as `ref`. Return `ref` itself, to be read once more, if its worker
        may have come back, or if the same worker has recomputed the object. Raises `unreadable` if
        the master has contact with that worker and the object is not there, and WaitTimeoutError.
        """
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        if ref.id not in self._wanted and (other := self._copied_elsewhere(ref)) is not None:
            return other

        def is_changed() -> bool:
            return (self.settled(ref) or ref) != ref

        waited = False
        while True:
            if self.has_ended:
                self._client.send(WatchJob(self.id))  # the master reports it only on request
            summary = read_summary(self._client.ask("jobs", {"job": self.id})[0])
            if not is_changed():
                if waited and not summary.unsettled:
                    if self._may_be_back(ref) or self._is_readable(ref):
                        return ref
                    raise unreadable
                left_s = until_s - time.monotonic()
                try:
                    self._client.wait_until(is_changed, min(LOSS_NOTICE_S, left_s), str(ref.id))
                except WaitTimeoutError:
                    if left_s <= LOSS_NOTICE_S:
                        raise WaitTimeoutError(f"object {ref.id}", timeout_s or 0.0) from None
                    waited = True
                    continue
            return self.settled(ref) or ref

    def _copied_elsewhere(self, ref: Reference) -> Reference | None:
        """Return the current reference of an upload; None if the master knows no further copy."""
        if is_output(ref.id):
            return None
        try:
            answer: dict[str, Any] = from_json(self._client.ask("object", {"object": ref.id}))
        except QueryError:
            return None
        current: Reference = answer["reference"]
        return current if locations_of(current) - locations_of(ref) else None

    def _may_be_back(self, ref: Reference) -> bool:
        """Whether a worker that holds an object may reconnect, or be started again.

        The master suspects such a worker, or still lists its objects after it has ended.
        """
        try:
            answer: dict[str, Any] = from_json(self._client.ask("object", {"object": ref.id}))
        except QueryError:
            return False
        workers = self._client.ask("workers")
        reachable = {each["netloc"] for each in workers if not each["suspicion"]}
        return bool(locations_of(answer["reference"]) - reachable)

    def _is_readable(self, ref: Reference) -> bool:
        """Whether an object can be read now: its worker may have recomputed it."""
        try:
            next(self._client.read_chunks(ref), None)
        except ObjectUnreadableError:
            return False
        return True

    def expect(self, ref: Reference) -> None:
        """Want an object and wait for it; the caller adds no task meanwhile.

        If no task of the job runs or can run, close the job, so that the master ends it and reports
        the missing objects. Raises as `result`, except for failures.
        """
        self.want((ref,))

        def is_due() -> bool:
            return self._known(ref.id) is not None or self._is_stuck()

        self.wait_until(is_due, None, f"object {ref.id}")
        if self._known(ref.id) is None:
            self.close()

    def _is_stuck(self) -> bool:
        counts = self._summary.counts if self._summary else {}
        return str(TaskState.WAITING) in counts and not counts.keys() & _BUSY

    def wait(self, timeout_s: float | None = None) -> JobSummary:
        """Wait until the job ends, and return how it ended; raises WaitTimeoutError."""
        self.wait_until(lambda: self.has_ended, timeout_s, f"job {self.label}")
        assert self._summary is not None  # it says that the job has ended
        return self._summary

    def wait_until(self, condition: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        """Wait until `condition`, called with the lock held after each delivery, is true.

        Raises JobEndedError if the job ends before, RequestRefusedError, ConnectionLostError and
        WaitTimeoutError.
        """

        def is_over() -> bool:
            if condition():
                return True
            if self._summary is not None and self.has_ended:
                raise JobEndedError(self._summary.number, self._summary.state, self._summary.reason)
            if self._refusal:
                raise RequestRefusedError(self.id, self._refusal)
            return False

        self._client.wait_until(is_over, timeout_s, what)

    def settled(self, ref: Reference) -> Reference | None:
        """Return the settled reference of an object; None if it is not known yet. Does not wait."""
        return self._known(ref.id)

    def _known(self, object_id: ObjectId) -> Reference | None:
        known = self._settled.get(object_id)
        return Value(object_id, known) if isinstance(known, str) else known

    @property
    def settled_count(self) -> int:
        """How many wanted objects were produced or have failed.

        Objects that were released or ignored are included.
        """
        return len(self._settled) + self.released_count

    @property
    def summary(self) -> JobSummary | None:
        """The last summary from the master; None before the first."""
        return self._summary

    @property
    def refusal(self) -> str:
        """Why the master refused a request for this job; empty if it refused none."""
        return self._refusal

    @property
    def has_ended(self) -> bool:
        return self._summary is not None and self._summary.state in _ENDED

    @property
    def label(self) -> str:
        """The name of the job in messages: its number, or its id until the number is known."""
        return str(self._summary.number) if self._summary else self.id

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield "", self.label
        yield "name", self.name
        if self._summary is not None:
            yield "state", self._summary.state
            yield "tasks", ", ".join(f"{n} {state}" for state, n in self._summary.counts.items())

    # --- messages from the client, which holds the lock -------------------------------------------

    def take_settled(self, ref: Reference) -> None:
        """Process a message about an object."""
        object_id = ref.id
        try:
            tell = self._wanted[object_id]
        except KeyError:
            return  # it was released or ignored meanwhile
        if type(ref) is Stream:  # a task writes it; another message follows
            if self.on_growing is not None:
                self.on_growing(ref)
            elif tell is not None:
                tell.append(ref)
            return
        known = self._settled.get(object_id)
        if type(ref) is Failure or type(known) is Failure:
            self.failed_count += (type(ref) is Failure) - (type(known) is Failure)
        self._settled[object_id] = ref.encoded if type(ref) is Value else ref
        if tell is not None:
            tell.append(ref)

    def take(self, message: Message) -> None:
        """Process a message about this job, other than those about its objects."""
        if isinstance(message, JobChanged):
            self._summary = message.summary
        elif isinstance(message, RequestRefused):
            self._refusal = self._refusal or message.reason

    def _await_settled(self, object_id: ObjectId, timeout_s: float | None) -> Reference:
        self.wait_until(lambda: object_id in self._settled, timeout_s, f"object {object_id}")
        found = self._known(object_id)
        assert found is not None  # it was waited for
        return found
