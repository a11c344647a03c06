"""The routes below `/control/`, by which people and programs inspect and control a worker.

The original CIEL had the same routes. Here they use JSON instead of pickle, and POST for requests
that change something, for some of which the original used GET.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.internet.threads import deferToThread

from ciel.access.keys import Role
from ciel.core.errors import CielError, InvalidIdError
from ciel.core.ids import ObjectId, check_id
from ciel.core.refs import Concrete, Fetch
from ciel.net.errors import HttpError
from ciel.net.http import Answer, Refusal, Request, Route, Routes
from ciel.storage.interface import ObjectStore
from ciel.wire.errors import WireError
from ciel.wire.references import from_json, to_json
from ciel.worker.operations import Operations
from ciel.worker.pins import Pins
from ciel.worker.resources.data import answering
from ciel.worker.state.uploads import NEW_FOR_S
from ciel.worker.transfer.url_fetching import FetchRefusedError, UrlFetching

LISTED_MAX = 1000
_STOP_DELAY_S = 0.1  # the response has been sent by then

NO_TASKS_BY_HTTP = (
    "a worker gets its tasks from its master over another connection; submit a job: "
    "POST /api/v1/jobs at the master, or `ciel submit`"
)
NO_SUBSCRIPTIONS = (
    "this worker has no subscriptions to growing objects: GET /data/ID follows an object until it "
    "is complete, and GET /data/.producer:ID with a Range returns what is written by now"
)
NO_STOPWATCH = "this worker measures no intervals; see /metrics and `ciel job info`"


class Controls(NamedTuple):
    """The parts of a worker that the routes act on.

    `rejoin` raises CielError or ValueError for an invalid URL of a master.
    """

    reactor: Any
    worker: str
    netloc: str
    features: list[str]
    operations: Operations
    store: ObjectStore
    pins: Pins
    urls: UrlFetching
    master: Callable[[], str]
    rejoin: Callable[[str], None]
    stop: Callable[[], None]


class _Control(Route):
    """A route of the worker. GET needs the role for reading, other methods `needs_role`."""

    def __init__(self, controls: Controls) -> None:
        self.controls = controls

    def role_for(self, method: str) -> Role:
        return Role.READ if method in ("GET", "HEAD") else self.needs_role


def _id(request: Request, name: str) -> str:
    try:
        return check_id(request.params[name])
    except InvalidIdError as error:
        raise HttpError(400, str(error)) from None


def _number(request: Request, name: bytes, usual: int) -> int:
    text = request.args.get(name, [b""])[0]
    if not text:
        return usual
    if not text.isdigit() or len(text) > 18:
        raise HttpError(400, f"{name.decode()} must be a whole number")
    return int(text)


class Greeting(_Control):
    """Returns the id of the worker."""

    def render_GET(self, request: Request) -> Answer:
        return request.reply(self.controls.worker)


class Master(_Control):
    """Returns the address of the master, and changes it for administrators."""

    needs_role = Role.ADMIN

    def render_GET(self, request: Request) -> Answer:
        return request.reply({"netloc": self.controls.master(), "id": self.controls.worker})

    def render_POST(self, request: Request) -> Answer:
        said = request.json()
        url = said.get("master") if isinstance(said, dict) and len(said) == 1 else None
        if not isinstance(url, str):
            raise HttpError(400, 'the body: expected {"master": URL}')
        try:
            self.controls.rejoin(url)
        except (ValueError, CielError) as error:
            raise HttpError(400, f"{url[:200]!a} cannot be the master: {error}") from None
        return request.reply({"netloc": self.controls.master(), "id": self.controls.worker})


class Features(_Control):
    """Lists the executors whose tasks run here."""

    def render_GET(self, request: Request) -> Answer:
        return request.reply(self.controls.features)


class Abort(_Control):
    """Ends the attempts of a job, or of one task, which fail as aborted."""

    def render_POST(self, request: Request) -> Answer:
        task = _id(request, "task") if "task" in request.params else None
        return request.reply({"aborted": self.controls.operations.abort(_id(request, "job"), task)})


class Kill(_Control):
    """Ends the worker properly, after the response."""

    needs_role = Role.ADMIN

    def render_POST(self, request: Request) -> Answer:
        self.controls.reactor.callLater(_STOP_DELAY_S, self.controls.stop)
        return request.reply({"worker": self.controls.worker}, 202)


class EventLog(_Control):
    """Lists recent events by number, from 0."""

    def render_GET(self, request: Request) -> Answer:
        events = self.controls.operations.events
        first = _number(request, b"first_event", 0)
        last = _number(request, b"last_event", events.count)
        return request.reply(events.between(first, min(last, first + LISTED_MAX)))


class EventWait(_Control):
    """Responds once there are more events than the caller knows, or after some 20 s."""

    needs_role = Role.READ

    def render_POST(self, request: Request) -> Answer:
        events = self.controls.operations.events
        waiting = events.more_than(_number(request, b"event_count", 0))
        return waiting.addCallback(lambda _: request.reply({"event_count": events.count}))


# --- pins and deletion ----------------------------------------------------------------------------


class PinList(_Control):
    """Lists references to the pinned objects."""

    def render_GET(self, request: Request) -> Any:
        return deferToThread(self._references).addCallback(request.reply)

    def _references(self) -> list[Any]:
        controls = self.controls
        here = frozenset((controls.netloc,))
        with answering():
            found = [(each, controls.store.stat(each)) for each in controls.pins.ids]
        return [to_json(Concrete(each, info.size_bytes, here)) for each, info in found if info]


class Pin(_Control):
    """Pins and unpins an object; a pinned object stays when its jobs are removed."""

    def render_POST(self, request: Request) -> Answer:
        object_id, controls = ObjectId(_id(request, "id")), self.controls
        with answering():
            info = controls.store.stat(object_id)
        if info is None:
            raise HttpError(404, f"this worker does not have object {object_id}")
        self._change(controls.pins.add, object_id)
        here = frozenset((controls.netloc,))
        return request.reply(to_json(Concrete(object_id, info.size_bytes, here)))

    def render_DELETE(self, request: Request) -> Answer:
        object_id = ObjectId(_id(request, "id"))
        if not self._change(self.controls.pins.remove, object_id):
            raise HttpError(404, f"{object_id} is not pinned here")
        return request.reply({"id": object_id})

    def _change(self, change: Callable[[ObjectId], Any], object_id: ObjectId) -> Any:
        try:
            return change(object_id)
        except OSError as error:
            raise HttpError(500, f"pins cannot be written: {error.strerror}") from None


class Flush(_Control):
    """Lists old uploads; with `really`, the master deletes the unnamed ones."""

    def __init__(self, controls: Controls, *, really: bool) -> None:
        super().__init__(controls)
        self._really = really

    def render_POST(self, request: Request) -> Answer:
        operations = self.controls.operations
        if self._really and not operations.has_master:
            raise HttpError(
                503,
                "this worker is not connected to the master, which knows the objects that jobs "
                "need; try again later",
            )
        older_than_s = _number(request, b"older_than_s", int(NEW_FOR_S))
        choose = operations.offer_uploads if self._really else operations.old_uploads
        lines = self._report(choose(older_than_s), older_than_s)
        request.setHeader("Content-Type", "text/plain; charset=utf-8")
        return "".join(f"{line}\n" for line in lines).encode()

    def _report(self, old: list[ObjectId], older_than_s: int) -> list[str]:
        usage, pinned = self.controls.store.usage(), self.controls.pins.ids
        deletes = "deletes" if self._really else "would delete"
        lines = [
            f"{usage.object_count} objects, {usage.used_bytes} bytes",
            f"{len(pinned)} are pinned, and stay",
            f"{len(old)} uploads, listed below, are older than {older_than_s} s; the master "
            f"{deletes} those that no job names",
        ]
        lines += [f"  {object_id}" for object_id in old[:LISTED_MAX]]
        if len(old) > LISTED_MAX:
            lines.append(f"  and {len(old) - LISTED_MAX} more")
        return [
            *lines,
            "all others are recent uploads or results of tasks; `ciel job rm` deletes the results "
            "of a job",
        ]


# --- URLs -----------------------------------------------------------------------------------------


class FetchTable(_Control):
    """Lists the fetch sessions: those that run, and recent ones that have ended."""

    def render_GET(self, request: Request) -> Answer:
        return request.reply(self.controls.urls.rows())


class FetchSessionById(_Control):
    """Starts a fetch session, which fetches URLs into pinned objects, and shows its progress.

    The status is 200 if it is complete, 408 while it runs, and 500 if some fetches have failed.
    """

    def render_POST(self, request: Request) -> Answer:
        name = _id(request, "session")
        try:
            refs = from_json(request.json())
        except (CielError, WireError) as error:
            raise HttpError(400, f"the body: {error}") from None
        if not isinstance(refs, list) or not all(isinstance(ref, Fetch) for ref in refs):
            raise HttpError(400, "the body: expected a list of fetch2 references")
        try:
            self.controls.urls.start(name, refs)
        except FetchRefusedError as error:
            raise HttpError(error.status, str(error)) from None
        return request.reply({"session": name, "urls": len(refs)}, 202)

    def render_GET(self, request: Request) -> Answer:
        facts = self.controls.urls.facts(_id(request, "session"))
        if facts is None:
            raise HttpError(404, "there is no such fetch session")
        status = {"done": 200, "running": 408, "failed": 500}[facts["state"]]
        return request.reply(facts, status)


def add_controls(routes: Routes, controls: Controls) -> None:
    """Add the routes of this module."""
    for path, kind in (
        ("/control", Greeting),
        ("/control/master", Master),
        ("/control/features", Features),
        ("/control/abort/{job}", Abort),
        ("/control/abort/{job}/{task}", Abort),
        ("/control/kill", Kill),
        ("/control/log", EventLog),
        ("/control/log/wait_after", EventWait),
        ("/control/admin/pin", PinList),
        ("/control/admin/pin/{id}", Pin),
        ("/control/fetch", FetchTable),
        ("/control/fetch/{session}", FetchSessionById),
    ):
        routes.add(path, kind(controls))
    routes.add("/control/admin/flush", Flush(controls, really=False))
    routes.add("/control/admin/flush/really", Flush(controls, really=True))
    routes.add("/control/task", Refusal(410, NO_TASKS_BY_HTTP, "POST"))
    for step in ("subscribe", "unsubscribe", "advert"):
        routes.add(f"/control/streamstat/{{id}}/{step}", Refusal(410, NO_SUBSCRIPTIONS, "POST"))
    for path in ("/control/stopwatch", "/control/stopwatch/{name}"):
        routes.add(path, Refusal(403, NO_STOPWATCH, "GET"))
