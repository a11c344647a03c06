"""The JSON resources of `/api/v1`, to monitor a cluster and to submit jobs.

See docs/http.md, and docs/schemas for the schemas. Lists are paginated.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import Any, Final

from ciel.core.ids import JobId
from ciel.core.jobs import ENDED, Job, JobState
from ciel.core.tasks import TaskState
from ciel.execution.commands import with_command
from ciel.master.resources import submissions
from ciel.master.resources.resource import (
    Resource,
    body_object,
    number_argument,
    read_in_thread,
    seconds_argument,
    word_argument,
)
from ciel.master.resources.submissions import Submission
from ciel.master.service import MasterService
from ciel.master.state.queries import views
from ciel.net.errors import HttpError
from ciel.net.http import BODY_MAX_BYTES, Answer, Request, Routes

JOBS_DEFAULT: Final = 100
PAGE_MAX: Final = 1000
KEY_HEADER: Final = "Idempotency-Key"
KEY_MAX_LENGTH: Final = 255
_JOB_STATES: Final = {str(state): state for state in JobState}
_TASK_STATES: Final = {str(state): state for state in TaskState}


class Listing(Resource):
    """Answers one topic of `ciel.master.state.queries`; parts of the path are its arguments."""

    def __init__(self, service: MasterService, topic: str, **names: str) -> None:
        super().__init__(service)
        self._topic = topic
        self._names = names

    def render_GET(self, request: Request) -> Answer:
        arguments: dict[str, Any] = {
            self._names.get(name, name): value for name, value in request.params.items()
        }
        arguments |= self.arguments(request)
        return request.reply(self.shape(self.service.answer(self._topic, arguments)))

    def shape(self, answer: Any) -> Any:
        """Convert an answer for the response."""
        return answer

    def arguments(self, request: Request) -> dict[str, Any]:
        """Return the arguments in the query string."""
        return {}


class Page(Listing):
    """A topic with pages, selected by `?first=`.

    `next` in an answer is the `first` of the next page.
    """

    def arguments(self, request: Request) -> dict[str, Any]:
        return {"first": number_argument(request, "first", 0)}


class Tasks(Page):
    """A job's tasks; `?state=` selects those in a state."""

    def arguments(self, request: Request) -> dict[str, Any]:
        return super().arguments(request) | {"state": word_argument(request, "state", _TASK_STATES)}

    def shape(self, answer: Any) -> Any:
        return answer | {"tasks": [with_command(row) for row in answer["tasks"]]}


class OneTask(Listing):
    """One task in detail."""

    def shape(self, answer: Any) -> Any:
        return with_command(answer)


class Results(Resource):
    """The objects that a job wants, with their references, in the order of the wants."""

    def render_GET(self, request: Request) -> Answer:
        first = number_argument(request, "first", 0)
        answer = self.service.answer("results", {"job": request.params["job"], "first": first})
        rows = [{"name": name, "reference": ref} for name, ref in answer["results"]]
        return request.reply({**answer, "results": rows})


class Jobs(Resource):
    """`GET` lists all jobs, the newest first. `POST` submits a job."""

    body_limit_bytes = BODY_MAX_BYTES

    def render_GET(self, request: Request) -> Answer:
        before = number_argument(request, "before", 0)
        limit = number_argument(request, "limit", JOBS_DEFAULT, PAGE_MAX) or JOBS_DEFAULT
        state = word_argument(request, "state", _JOB_STATES)
        page = views.jobs(
            self.machine, self.service.epoch_s, before=before or None, limit=limit, state=state
        )
        return request.reply(page)

    def render_POST(self, request: Request) -> Answer:
        size_bytes = len(request.content.getbuffer())
        return read_in_thread(
            size_bytes, lambda: _read(request), lambda job: self._submit(request, job)
        )

    def _submit(self, request: Request, submission: Submission) -> Answer:
        found, status = self.machine.jobs.get(submission.spec.id), 200
        if found is None:
            found, status = self.submit(submission), 201
        elif not _is_same(found, submission):
            raise HttpError(409, f"another job was submitted with this {KEY_HEADER}")
        request.setHeader("Location", f"/api/v1/jobs/{found.spec.id}")
        answer = {"job": views.job(found, self.service.epoch_s), "outputs": submission.outputs}
        return self.once_durable(request.reply(answer, status))


def _read(request: Request) -> Submission:
    body = body_object(request, *submissions.JOB_KEYS)
    return submissions.read_job(body, _job_id(request.getHeader(KEY_HEADER)))


def _job_id(key: str | None) -> JobId:
    """Name a new job: a repeated request with the same key names the same job."""
    if key is None:
        return JobId(secrets.token_hex(16))
    if not 1 <= len(key) <= KEY_MAX_LENGTH or not key.isprintable():
        raise HttpError(400, f"{KEY_HEADER} must be 1 to {KEY_MAX_LENGTH} printable characters")
    return JobId(blake2b(key.encode(), digest_size=16, person=b"ciel http job").hexdigest())


def _is_same(job: Job, submission: Submission) -> bool:
    """Whether a submission has the tasks and wants with which a job began. Ids of tasks are derived
    from their contents.
    """
    tasks = [task.spec.id for task in submission.tasks]
    return job.tasks[: len(tasks)] == tasks and [*job.wanted] == [*submission.wanted]


class JobResource(Resource):
    """The base class of resources about one job."""

    def reply_job(self, request: Request, found: Job) -> bytes:
        return request.reply(views.job(found, self.service.epoch_s))


class OneJob(JobResource):
    """The state of a job; `?wait_s=` waits for its end, at most this time.

    `DELETE` removes the job.
    """

    def render_GET(self, request: Request) -> Answer:
        found = self.job(request)
        text = request.args.get(b"wait_s", [b""])[0].decode("latin-1")
        if not text or found.state in ENDED:
            return self.reply_job(request, found)
        waiting = self.service.waiters.wait(found.spec.id, seconds_argument(text, "wait_s"))
        return waiting.addCallback(lambda _: self.reply_job(request, found))

    def render_DELETE(self, request: Request) -> Answer:
        found = self.job(request)
        self.service.act(lambda machine, now_s: self.service.change("remove", _named(found)))
        return self.once_durable(self.reply_job(request, found))


class JobCancel(JobResource):
    """Cancels a job; its state is `cancelling` until its programs have ended."""

    def render_POST(self, request: Request) -> Answer:
        found = self.job(request)
        reason = "cancelled by HTTP"
        self.service.act(lambda machine, now_s: machine.cancel_job(found, reason, now_s))
        return self.once_durable(self.reply_job(request, found))


class JobRetry(JobResource):
    """Retries the failed tasks of a job."""

    def render_POST(self, request: Request) -> Answer:
        found = self.job(request)
        self.service.act(lambda machine, now_s: self.service.change("retry", _named(found)))
        return self.once_durable(self.reply_job(request, found))


def _named(found: Job) -> dict[str, str]:
    return {"job": found.spec.id}


def add_api(routes: Routes, service: MasterService) -> None:
    """Add all resources of `/api/v1` to the routes."""
    for name in ("status", "workers", "stores"):
        routes.add(f"/api/v1/{name}", Listing(service, name))
    routes.add("/api/v1/jobs", Jobs(service))
    routes.add("/api/v1/jobs/{job}", OneJob(service))
    routes.add("/api/v1/jobs/{job}/cancel", JobCancel(service))
    routes.add("/api/v1/jobs/{job}/retry", JobRetry(service))
    routes.add("/api/v1/jobs/{job}/tasks", Tasks(service, "tasks"))
    routes.add("/api/v1/jobs/{job}/tasks/{task}", OneTask(service, "task"))
    routes.add("/api/v1/jobs/{job}/results", Results(service))
    routes.add("/api/v1/objects", Page(service, "objects"))
    routes.add("/api/v1/objects/{id}", Listing(service, "object", id="object"))
