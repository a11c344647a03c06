"""The base class and helpers of the master's HTTP resources.

Reading needs a read-only key, and everything else a key that may submit. Errors of the engine
become HTTP errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, execute
from twisted.internet.threads import deferToThread

from ciel.access.keys import Role
from ciel.core.errors import CannotRetryError, CielError, JobNotEndedError, UnknownJobError
from ciel.core.graph.nodes import TaskNode
from ciel.core.ids import ObjectId, check_id
from ciel.core.jobs import Job
from ciel.core.refs import Reference
from ciel.master.resources.submissions import Submission
from ciel.master.service import MasterService
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import topics
from ciel.master.state.queries.object_locations import UnknownObjectError
from ciel.master.state.queries.topics import UnknownQueryError
from ciel.net.errors import HttpError
from ciel.net.http import LITTLE_MAX_BYTES, Answer, Request, Route
from ciel.wire.errors import WireError
from ciel.wire.references import from_json, to_json

T = TypeVar("T")

READ_AT_ONCE_MAX_BYTES: Final = 16 * 1024
"""Larger bodies are read in a thread: reading the tasks in 1 MiB of JSON takes half a second."""
_UNKNOWN = (UnknownQueryError, UnknownJobError, UnknownObjectError)
_NOT_NOW = (CannotRetryError, JobNotEndedError)
_NUMBER_MAX = 10**12


class Resource(Route):
    """The base class of the master's resources."""

    body_limit_bytes = LITTLE_MAX_BYTES
    """Resources that submit jobs accept larger bodies, and read them in a thread."""

    def __init__(self, service: MasterService) -> None:
        self.service = service

    @property
    def machine(self) -> MasterMachine:
        return self.service.machine

    def role_for(self, method: str) -> Role:
        return Role.READ if method in ("GET", "HEAD") else self.needs_role

    def render(self, request: Request) -> Answer:
        return with_http_errors(lambda: super(Resource, self).render(request))

    def job(self, request: Request) -> Job:
        """Find the job that the path names, or answer 404."""
        return topics.find(self.machine, request.params["job"])

    def task(self, request: Request) -> TaskNode:
        """Find the task that the path names, or answer 404."""
        return topics.find_task(self.machine, self.job(request), request.params["task"])

    def reference(self, request: Request) -> Reference:
        """Return the reference of the object that the path names, or answer 404."""
        object_id = ObjectId(check_id(request.params["id"]))
        node = self.machine.graph.objects.get(object_id)
        if node is None:
            raise HttpError(404, f"no object {object_id} is known")
        return self.machine.graph.objects.reference(object_id)

    def submit(self, job: Submission) -> Job:
        """Submit a job; raises CielError."""
        return self.service.act(
            lambda machine, now_s: machine.submit_job(
                job.spec, job.tasks, job.wanted, now_s, job.copies
            )
        )

    def once_durable(self, reply: bytes) -> Deferred[bytes]:
        """Return a reply that leaves when the change that it reports is durable."""
        return self.service.when_durable().addCallback(lambda _: reply)

    def reply(self, request: Request, value: object, status: int = 200) -> bytes:
        """Respond with a value that may contain references."""
        return request.reply(to_json(value), status)


def with_http_errors(do: Callable[[], T]) -> T:
    """Call a function; turn errors of the engine into HTTP errors."""
    try:
        return do()
    except _UNKNOWN as error:
        raise HttpError(404, str(error)) from None
    except _NOT_NOW as error:
        raise HttpError(409, str(error)) from None
    except (CielError, WireError) as error:
        raise HttpError(400, str(error)) from None


def read_in_thread(
    size_bytes: int, read: Callable[[], T], then: Callable[[T], Answer]
) -> Deferred[bytes]:
    """Call `read`, in a thread if `size_bytes` is large, and then `then` with its result.

    Errors of the engine in either of them become HTTP errors.
    """
    begin = deferToThread if size_bytes > READ_AT_ONCE_MAX_BYTES else execute
    done: Deferred[Any] = begin(with_http_errors, read)
    return done.addCallback(lambda value: with_http_errors(lambda: then(value)))


def body_object(request: Request, *known: str) -> dict[str, Any]:
    """Return the body, a JSON object that may only have these keys, with decoded references."""
    body = from_json(request.json())
    if not isinstance(body, dict):
        raise HttpError(400, "the body must be a JSON object")
    for key in body:
        if key not in known:
            raise HttpError(400, f"{key!r:.40} is unknown; the keys are {', '.join(known)}")
    return body


def number_argument(request: Request, name: str, default: int, most: int = _NUMBER_MAX) -> int:
    """Return a whole number from the query string."""
    text = request.args.get(name.encode(), [b""])[0]
    if not text:
        return default
    if not text.isdigit() or len(text) > 12 or int(text) > most:
        raise HttpError(400, f"{name} must be a whole number, at most {most}")
    return int(text)


def seconds_argument(value: Any, name: str) -> float:
    """Return a number of seconds from a body or a query string."""
    try:
        seconds = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not 0 <= seconds < math.inf:
        raise HttpError(400, f"{name} must be a number of seconds")
    return seconds


def word_argument(request: Request, name: str, known: Mapping[str, object]) -> str | None:
    """Return a value of the query string that must be one of `known`; None if it is missing."""
    if name.encode() not in request.args:
        return None
    text = str(request.args[name.encode()][0].decode("utf-8", "replace"))
    if text not in known:
        raise HttpError(400, f"{name} must be one of {', '.join(known)}")
    return text
