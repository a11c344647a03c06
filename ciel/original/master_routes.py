"""The HTTP routes of the original CIEL on the master, for its clients.

These routes use JSON instead of pickle, and POST instead of GET for changes (docs/http.md). Routes
that only the original's workers and masters called answer with status 410.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from twisted.internet.defer import Deferred

from ciel.access.keys import Role
from ciel.core.ids import JobId, check_id
from ciel.core.jobs import ENDED, Job
from ciel.master.resources import submissions
from ciel.master.resources.contents import BlockList, Contents, Data, DataByRoute
from ciel.master.resources.resource import (
    Resource,
    body_object,
    number_argument,
    read_in_thread,
    seconds_argument,
)
from ciel.master.service import WORKERS, MasterService
from ciel.master.state.queries import views
from ciel.net.errors import HttpError
from ciel.net.http import BODY_MAX_BYTES, Answer, Refusal, Request, Routes

GREETING: Final = b"This is a ciel master.\n"


class Greeting(Resource):
    """A greeting for users, and for programs that check whether the master runs."""

    def render_GET(self, request: Request) -> bytes:
        request.setHeader("Content-Type", "text/plain; charset=utf-8")
        return GREETING


# --- workers --------------------------------------------------------------------------------------


class Workers(Resource):
    """All workers. Workers join over their control connection, not over HTTP."""

    def render_GET(self, request: Request) -> bytes:
        return self.reply(request, self._listed())

    def render_POST(self, request: Request) -> bytes:
        raise HttpError(410, _BY_CONTROL)

    def role_for(self, method: str) -> Role:
        return Role.READ

    def _listed(self) -> list[dict[str, Any]]:
        nodes = self.machine.workers.values()
        return [views.original_worker(node, self.service.epoch_s) for node in nodes]


class WorkersVersioned(Workers):
    """All workers, with a version number, which a request to `WorkersWait` contains."""

    def methods(self) -> tuple[str, ...]:
        return ("GET", "HEAD")

    def render_GET(self, request: Request) -> bytes:
        version = self.machine.workers_version
        return self.reply(request, {"version": version, "workers": self._listed()})


class WorkersWait(Resource):
    """Waits until the workers differ from a version: one has joined or was lost."""

    needs_role = Role.READ

    def render_POST(self, request: Request) -> Answer:
        known = number_argument(request, "version", 0)
        if self.machine.workers_version > known:
            return self._reply(request)
        return self.service.waiters.wait(WORKERS).addCallback(lambda _: self._reply(request))

    def _reply(self, request: Request) -> bytes:
        return request.reply({"current_version": self.machine.workers_version})


class AnyWorker(Resource):
    """A random worker."""

    def render_GET(self, request: Request) -> bytes:
        netlocs = sorted(self.service.netlocs())
        if not netlocs:
            raise HttpError(503, "the cluster has no worker; start one with ciel-worker")
        return request.reply(f"http://{secrets.choice(netlocs)}/")


class Worker(Resource):
    """One worker."""

    def render_GET(self, request: Request) -> bytes:
        node = self.machine.workers.get(request.params["worker"])
        if node is None:
            raise HttpError(404, f"there is no worker {request.params['worker']!r:.140}")
        return self.reply(request, views.original_worker(node, self.service.epoch_s))


class WorkersReset(Resource):
    """Declares all workers dead. Running workers join again, and their tasks run again."""

    needs_role = Role.ADMIN

    def render_POST(self, request: Request) -> bytes:
        self.service.lose_workers("all workers were reset by request")
        return request.reply(True)


# --- jobs -----------------------------------------------------------------------------------------


class JobSubmitter(Resource):
    """The base class of resources that submit jobs in the original's form."""

    body_limit_bytes = BODY_MAX_BYTES

    def __init__(self, service: MasterService, contents: Contents) -> None:
        super().__init__(service)
        self._contents = contents

    def submit_original(self, request: Request, job: JobId) -> Answer:
        def read() -> tuple[submissions.Root, Any]:
            root = submissions.read_root(body_object(request, "root_task", "job_options"))
            return root, submissions.inline_private(root)

        def with_root(found: tuple[submissions.Root, Any]) -> Answer:
            root, private = found
            if private is not None:
                return self._submit(request, submissions.root_submission(root, job, private))
            assert not isinstance(root.private, dict)  # a dict is inline
            return self._contents.fetch(root.private).addCallback(with_private, root)

        def with_private(content: bytes, root: submissions.Root) -> Deferred[bytes]:
            return read_in_thread(
                len(content),
                lambda: submissions.root_submission(root, job, submissions.read_content(content)),
                lambda submission: self._submit(request, submission),
            )

        return read_in_thread(len(request.content.getbuffer()), read, with_root)

    def _submit(self, request: Request, submission: submissions.Submission) -> Answer:
        if submission.spec.id in self.machine.jobs:
            raise HttpError(409, f"there is a job {submission.spec.id} already")
        reply = self.reply(request, views.original_job(self.machine, self.submit(submission)))
        return self.once_durable(reply)


class Jobs(JobSubmitter):
    """`GET` lists the ids of all jobs. `POST` submits a job."""

    def render_GET(self, request: Request) -> bytes:
        return request.reply(list(self.machine.jobs))

    def render_POST(self, request: Request) -> Answer:
        return self.submit_original(request, JobId(secrets.token_hex(16)))


class JobById(JobSubmitter):
    """`GET` describes one job. `POST` submits a job with that id."""

    def render_GET(self, request: Request) -> bytes:
        return self.reply(request, views.original_job(self.machine, self.job(request)))

    def render_POST(self, request: Request) -> Answer:
        return self.submit_original(request, JobId(check_id(request.params["job"])))


class JobCompletion(Resource):
    """Waits for a job's end: `GET` waits without a limit, `POST` for at most `timeout` seconds."""

    needs_role = Role.READ

    def render_GET(self, request: Request) -> Answer:
        found = self.job(request)
        return self._ended(found, None).addCallback(lambda _: self._reply(request, found))

    def render_POST(self, request: Request) -> Answer:
        timeout = body_object(request, "timeout").get("timeout")
        found = self.job(request)
        ended = self._ended(found, seconds_argument(timeout, "timeout"))
        return ended.addCallback(lambda is_over: request.reply(is_over))

    def _reply(self, request: Request, found: Job) -> bytes:
        return self.reply(request, views.original_job(self.machine, found))

    def _ended(self, found: Job, timeout_s: float | None) -> Deferred[bool]:
        if found.state in ENDED:
            done: Deferred[bool] = Deferred()
            done.callback(True)
            return done
        return self.service.waiters.wait(found.spec.id, timeout_s)


class JobResume(Resource):
    """Retries the failed tasks of an ended job."""

    def render_POST(self, request: Request) -> bytes:
        found = self.job(request)
        named = {"job": found.spec.id}
        self.service.act(lambda machine, now_s: self.service.change("retry", named))
        return self.reply(request, views.original_job(self.machine, found))


class JobPoke(Resource):
    """Runs the scheduler at once. It also runs by itself, so this is not needed."""

    def render_POST(self, request: Request) -> bytes:
        found = self.job(request)
        self.service.act(lambda machine, now_s: None)
        return self.reply(request, views.original_job(self.machine, found))


class Task(Resource):
    """One task of a job."""

    def render_GET(self, request: Request) -> bytes:
        task = self.task(request)
        return self.reply(request, views.original_task(self.machine, task, self.service.epoch_s))


class TaskAbort(Resource):
    """Aborts the current attempt of a task, which then counts as failed."""

    def render_POST(self, request: Request) -> bytes:
        task = self.task(request)
        aborted = self.service.act(lambda machine, now_s: machine.abort(task))
        return request.reply({"aborted": int(aborted)})


class Ref(Resource):
    """The current reference of an object."""

    def render_GET(self, request: Request) -> bytes:
        self.job(request)
        return self.reply(request, self.reference(request))


# --- all of them ----------------------------------------------------------------------------------

_BY_CONTROL: Final = "workers join over their control connection: start one with ciel-worker"
_NO_TIMINGS: Final = "timing lists are not recorded; see /metrics"
_REPORTED: Final = "workers report over their control connection"
GONE: Final = (
    ("/control/gethostname", "GET", "a worker knows its own address: see ciel-worker --advertise"),
    ("/control/worker/{worker}/ping", "POST", "workers send heartbeats over their connection"),
    ("/control/worker/{worker}/stopping", "POST", _REPORTED),
    ("/control/task/{job}/{task}/report", "POST", _REPORTED),
    ("/control/task/{job}/{task}/failed", "POST", _REPORTED),
    ("/control/task/{job}/{task}/publish", "POST", _REPORTED),
    ("/control/task/{job}/{task}/log", "POST", _REPORTED),
    ("/control/backup", "POST", "this master supports no standby masters"),
)


def add_original(routes: Routes, service: MasterService, contents: Contents) -> None:
    """Add all these resources to the routes. `/control/shutdown` is in `shutdown`."""
    routes.add("/control", Greeting(service))
    routes.add("/control/worker", Workers(service))
    routes.add("/control/worker/versioned", WorkersVersioned(service))
    routes.add("/control/worker/await_event_count", WorkersWait(service))
    routes.add("/control/worker/random", AnyWorker(service))
    routes.add("/control/worker/reset", WorkersReset(service))
    routes.add("/control/worker/{worker}", Worker(service))
    routes.add("/control/job", Jobs(service, contents))
    routes.add("/control/job/{job}", JobById(service, contents))
    routes.add("/control/job/{job}/completion", JobCompletion(service))
    routes.add("/control/job/{job}/resume", JobResume(service))
    routes.add("/control/job/{job}/poke", JobPoke(service))
    routes.add("/control/task/{job}/{task}", Task(service))
    routes.add("/control/task/{job}/{task}/abort", TaskAbort(service))
    routes.add("/control/ref/{job}/{id}", Ref(service))
    routes.add("/control/data", BlockList(service))
    routes.add("/control/data/{id}", DataByRoute(service))
    routes.add("/data/{id}", Data(service))
    for path in ("/control/stopwatch", "/control/stopwatch/{name}"):
        routes.add(path, Refusal(403, _NO_TIMINGS, "GET"))
    for path, method, instead in GONE:
        routes.add(path, Refusal(410, instead, method))
