"""The routes of TES: `service-info`, and tasks to create, list, get and cancel."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any, Final

from twisted.internet.defer import Deferred, gatherResults, succeed

from ciel.core.ids import JobId
from ciel.core.jobs import Job, JobState
from ciel.core.refs import Failure, Reference, Value
from ciel.core.tasks import TaskSpec, TaskState
from ciel.master.resources.contents import Contents
from ciel.master.resources.resource import Resource, number_argument, read_in_thread
from ciel.master.resources.submissions import Submission
from ciel.master.service import MasterService
from ciel.net.errors import HttpError
from ciel.net.http import BODY_MAX_BYTES, Answer, Request, Routes
from ciel.tes import documents
from ciel.version import __version__
from ciel.wire import codec

ROOT: Final = "/ga4gh/tes/v1"
PAGE_DEFAULT: Final = 256
PAGE_MAX: Final = 2047
NAME: Final = "ciel"
STORAGE: Final = ("file:///", "http://", "https://")
VIEWS: Final = ("MINIMAL", "BASIC", "FULL")
CANCEL: Final = ":cancel"
_BEFORE: Final = {
    JobState.CANCELLING: "CANCELING",
    JobState.CANCELLED: "CANCELED",
}
_STATES: Final = {
    TaskState.DORMANT: "QUEUED",
    TaskState.WAITING: "QUEUED",
    TaskState.RUNNABLE: "QUEUED",
    TaskState.ASSIGNED: "RUNNING",
    TaskState.FAILED: "SYSTEM_ERROR",
    TaskState.CANCELLED: "CANCELED",
}
STATES: Final = (
    "UNKNOWN", "QUEUED", "INITIALIZING", "RUNNING", "PAUSED", "COMPLETE", "EXECUTOR_ERROR",
    "SYSTEM_ERROR", "CANCELED", "PREEMPTED", "CANCELING",
)  # fmt: skip


class TesResource(Resource):
    """The base class of the resources of TES."""

    def __init__(self, service: MasterService, contents: Contents) -> None:
        super().__init__(service)
        self._contents = contents

    def spec_of(self, job: Job) -> TaskSpec | None:
        """Return the task of a job that was created by TES; None for any other job."""
        node = self.machine.graph.tasks.get(job.tasks[0]) if job.tasks else None
        return node.spec if node is not None and node.spec.executor == documents.EXECUTOR else None

    def state_of(self, job: Job, spec: TaskSpec) -> str:
        if (state := _BEFORE.get(job.state)) is not None:
            return state
        task_state = self.machine.graph.tasks[spec.id].state
        status = self._reference(spec, documents.STATUS)
        if task_state is TaskState.DONE and isinstance(status, Value):
            return str(codec.decode(status.content)["state"])
        return _STATES.get(task_state, "UNKNOWN")

    def describe(self, job: Job, spec: TaskSpec, view: str) -> Deferred[dict[str, Any]]:
        """Return a task in a view; all but `MINIMAL` read its log, which a worker may hold."""
        state = self.state_of(job, spec)
        if view == "MINIMAL":
            return succeed(documents.minimal(job.spec.id, state))
        document = documents.document_of(spec.payload)
        created_at_s = job.created_at_s + self.service.epoch_s
        return self._log(spec).addCallback(
            lambda log: documents.described(
                job.spec.id, state, created_at_s, document, log, is_full=view == "FULL"
            )
        )

    def _reference(self, spec: TaskSpec, number: int) -> Reference:
        return self.machine.graph.objects.reference(spec.outputs[number])

    def _log(self, spec: TaskSpec) -> Deferred[dict[str, Any] | None]:
        state = self.machine.graph.tasks[spec.id].state
        found = self._reference(spec, documents.LOG)
        if isinstance(found, Failure):
            return succeed(documents.system_log(f"{found.reason}: {found.text}"))
        if state is not TaskState.DONE:
            return succeed(None)
        if isinstance(found, Value):
            return succeed(codec.decode(found.content))
        try:
            fetched = self._contents.fetch(found)
        except HttpError as error:
            return succeed(documents.system_log(f"the log of the task is lost: {error}"))
        return fetched.addCallbacks(
            codec.decode,
            lambda failed: documents.system_log(f"the log of the task is lost: {failed.value}"),
        )


class ServiceInfo(TesResource):
    """Describes the service."""

    def render_GET(self, request: Request) -> bytes:
        return request.reply(
            {
                "id": "ciel.tes",
                "name": NAME,
                "type": {"group": "org.ga4gh", "artifact": "tes", "version": "1.1.0"},
                "organization": {"name": NAME, "url": f"http://{request.getHeader('host')}"},
                "version": __version__,
                "storage": STORAGE,
            }
        )


class FirstServiceInfo(TesResource):
    """Describes the service as the first versions of TES did; py-tes still asks for it."""

    def render_GET(self, request: Request) -> bytes:
        return request.reply({"name": NAME, "doc": f"ciel {__version__}", "storage": STORAGE})


class Tasks(TesResource):
    """`GET` lists tasks, the newest first. `POST` creates a task."""

    body_limit_bytes = BODY_MAX_BYTES

    def __init__(self, service: MasterService, contents: Contents, *, without_images: bool) -> None:
        super().__init__(service, contents)
        self._without_images = without_images

    def render_GET(self, request: Request) -> Answer:
        size = number_argument(request, "page_size", PAGE_DEFAULT, PAGE_MAX) or PAGE_DEFAULT
        before = number_argument(request, "page_token", 0)
        view, state = _word(request, "view", VIEWS) or "MINIMAL", _word(request, "state", STATES)
        prefix, tags = _text(request, "name_prefix"), _tags(request)
        rows: list[Deferred[dict[str, Any]]] = []
        last, token = 0, ""
        for job in self.machine.job_table.newest_first():
            if (before and job.number >= before) or (spec := self.spec_of(job)) is None:
                continue
            if not spec.name.startswith(prefix) or state not in (None, self.state_of(job, spec)):
                continue
            if tags and not documents.has_tags(documents.document_of(spec.payload), tags):
                continue
            if len(rows) == size:
                token = str(last)
                break
            rows.append(self.describe(job, spec, view))
            last = job.number
        more = {"next_page_token": token} if token else {}
        return gatherResults(rows).addCallback(lambda tasks: request.reply({"tasks": tasks} | more))

    def render_POST(self, request: Request) -> Answer:
        job = JobId(secrets.token_hex(16))
        return read_in_thread(
            len(request.content.getbuffer()),
            lambda: documents.read_task(request.json(), job, without_images=self._without_images),
            lambda submission: self._begin(request, submission),
        )

    def _begin(self, request: Request, submission: Submission) -> Answer:
        job = self.submit(submission)
        return self.once_durable(request.reply({"id": job.spec.id}))


class OneTask(TesResource):
    """`GET` describes a task. `POST` of its id and `:cancel` cancels it."""

    def render_GET(self, request: Request) -> Answer:
        view = _word(request, "view", VIEWS) or "MINIMAL"
        job, spec = self._find(request.params["task"])
        return self.describe(job, spec, view).addCallback(request.reply)

    def render_POST(self, request: Request) -> Answer:
        named = request.params["task"]
        if not named.endswith(CANCEL):
            raise HttpError(404, f"only {ROOT}/tasks/ID{CANCEL} takes POST")
        job, _ = self._find(named.removesuffix(CANCEL))
        self.service.act(lambda machine, now_s: machine.cancel_job(job, "cancelled by TES", now_s))
        return self.once_durable(request.reply({}))

    def _find(self, task_id: str) -> tuple[Job, TaskSpec]:
        job = self.machine.jobs.get(JobId(task_id))
        spec = None if job is None else self.spec_of(job)
        if job is None or spec is None:
            raise HttpError(404, f"there is no task {task_id!r:.140}")
        return job, spec


def _text(request: Request, name: str) -> str:
    return str(request.args.get(name.encode(), [b""])[0].decode("utf-8", "replace"))


def _word(request: Request, name: str, known: tuple[str, ...]) -> str | None:
    text = _text(request, name)
    if text and text not in known:
        raise HttpError(400, f"{name} must be one of {', '.join(known)}")
    return text or None


def _tags(request: Request) -> dict[str, str]:
    """Return the tags of the query string; a key without a value stands for any value."""
    keys, values = (request.args.get(name, []) for name in (b"tag_key", b"tag_value"))
    texts = [value.decode("utf-8", "replace") for value in values] + [""] * len(keys)
    return dict(zip([key.decode("utf-8", "replace") for key in keys], texts, strict=False))


def add_tes(
    routes: Routes,
    service: MasterService,
    contents: Contents,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Add the routes of TES. `CIEL_TES_IMAGES=ignore` runs commands without their images."""
    without_images = environ.get("CIEL_TES_IMAGES") == "ignore"
    routes.add(f"{ROOT}/service-info", ServiceInfo(service, contents))
    routes.add(f"{ROOT}/tasks/service-info", FirstServiceInfo(service, contents))
    routes.add(f"{ROOT}/tasks", Tasks(service, contents, without_images=without_images))
    routes.add(f"{ROOT}/tasks/{{task}}", OneTask(service, contents))
