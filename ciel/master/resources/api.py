"""`/api/v1`: what people's programs need to look at a cluster and to give it work, as JSON; see
docs/http.md, and docs/schemas for the shapes. Lists come in pages.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from ciel.core.ids import JobId
from ciel.core.jobs import ENDED, Job, JobState
from ciel.core.tasks import TaskState
from ciel.execution.commands import with_command
from ciel.master.resources import submissions
from ciel.master.resources.resource import (
    Resource,
    body_object,
    number_asked,
    read_in_thread,
    seconds_asked,
    text_asked,
)
from ciel.master.resources.submissions import Submission
from ciel.master.service import MasterService
from ciel.master.state.queries import views
from ciel.net.http import BODY_MAX_BYTES, Answer, Request, Routes

JOBS_DEFAULT: Final = 100
PAGE_MAX: Final = 1000
_JOB_STATES: Final = {str(state): state for state in JobState}
_TASK_STATES: Final = {str(state): state for state in TaskState}


class Listing(Resource):
    """One topic of `ciel.master.state.queries`, with what the path names as its arguments."""

    def __init__(self, service: MasterService, topic: str, **names: str) -> None:
        super().__init__(service)
        self._topic = topic
        self._names = names

    def render_GET(self, request: Request) -> Answer:
        arguments: dict[str, Any] = {
            self._names.get(name, name): value for name, value in request.params.items()
        }
        arguments |= self.asked(request)
        return request.reply(self.shape(self.service.answer(self._topic, arguments)))

    def shape(self, answer: Any) -> Any:
        """Return an answer as it is shown."""
        return answer

    def asked(self, request: Request) -> dict[str, Any]:
        """Return what the query says."""
        return {}


class Page(Listing):
    """A topic that comes in pages, `?first=`; its `next` is where the next begins."""

    def asked(self, request: Request) -> dict[str, Any]:
        return {"first": number_asked(request, "first", 0)}


class Tasks(Page):
    """A job's tasks; `?state=` for some of them."""

    def asked(self, request: Request) -> dict[str, Any]:
        return super().asked(request) | {"state": text_asked(request, "state", _TASK_STATES)}

    def shape(self, answer: Any) -> Any:
        return answer | {"tasks": [with_command(row) for row in answer["tasks"]]}


class OneTask(Listing):
    """All that is known of one task."""

    def shape(self, answer: Any) -> Any:
        return with_command(answer)


class Results(Resource):
    """What a job wants, in that order, and what became of it."""

    def render_GET(self, request: Request) -> Answer:
        first = number_asked(request, "first", 0)
        answer = self.service.answer("results", {"job": request.params["job"], "first": first})
        rows = [{"name": name, "reference": ref} for name, ref in answer["results"]]
        return request.reply({**answer, "results": rows})


class Jobs(Resource):
    """All jobs, the newest first; and new ones."""

    body_limit_bytes = BODY_MAX_BYTES

    def render_GET(self, request: Request) -> Answer:
        before = number_asked(request, "before", 0)
        limit = number_asked(request, "limit", JOBS_DEFAULT, PAGE_MAX) or JOBS_DEFAULT
        state = text_asked(request, "state", _JOB_STATES)
        page = views.jobs(
            self.machine, self.service.epoch_s, before=before or None, limit=limit, state=state
        )
        return request.reply(page)

    def render_POST(self, request: Request) -> Answer:
        size_bytes = len(request.content.getbuffer())
        return read_in_thread(
            size_bytes, lambda: _read(request), lambda job: self._submit(request, job)
        )

    def _submit(self, request: Request, submission: Submission) -> bytes:
        found = self.submit(submission)
        request.setHeader("Location", f"/api/v1/jobs/{found.spec.id}")
        answer = {"job": views.job(found, self.service.epoch_s), "outputs": submission.outputs}
        return request.reply(answer, 201)


def _read(request: Request) -> Submission:
    body = body_object(request, *submissions.JOB_KEYS)
    return submissions.read_job(body, JobId(secrets.token_hex(16)))


class JobResource(Resource):
    """What is about one job."""

    def reply_job(self, request: Request, found: Job) -> bytes:
        return request.reply(views.job(found, self.service.epoch_s))


class OneJob(JobResource):
    """How a job stands; `?wait_s=` waits so long for its end. `DELETE` removes it."""

    def render_GET(self, request: Request) -> Answer:
        found = self.job(request)
        asked = request.args.get(b"wait_s", [b""])[0].decode("latin-1")
        if not asked or found.state in ENDED:
            return self.reply_job(request, found)
        waiting = self.service.waiters.wait(found.spec.id, seconds_asked(asked, "wait_s"))
        return waiting.addCallback(lambda _: self.reply_job(request, found))

    def render_DELETE(self, request: Request) -> Answer:
        found = self.job(request)
        self.service.act(lambda machine, now_s: self.service.change("remove", _named(found)))
        return self.reply_job(request, found)


class JobCancel(JobResource):
    """Ends a job; its state is `cancelling` until its programs are gone."""

    def render_POST(self, request: Request) -> Answer:
        found = self.job(request)
        reason = "cancelled by HTTP"
        self.service.act(lambda machine, now_s: machine.cancel_job(found, reason, now_s))
        return self.reply_job(request, found)


class JobRetry(JobResource):
    """Has what failed of a job tried again."""

    def render_POST(self, request: Request) -> Answer:
        found = self.job(request)
        self.service.act(lambda machine, now_s: self.service.change("retry", _named(found)))
        return self.reply_job(request, found)


def _named(found: Job) -> dict[str, str]:
    return {"job": found.spec.id}


def add_api(routes: Routes, service: MasterService) -> None:
    """Add all of these to what is served."""
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
