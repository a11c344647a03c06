"""The original's routes on the master (ciel-interfaces, sections 5.1 and 5.2), for programs that
drive the engine that way: JSON where it had pickle, and POST for what it changed by GET. What only
its own workers and masters called answers 410.
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
    number_asked,
    read_in_thread,
    seconds_asked,
)
from ciel.master.service import WORKERS, MasterService
from ciel.master.state.queries import views
from ciel.net.errors import HttpError
from ciel.net.http import BODY_MAX_BYTES, Answer, Refusal, Request, Routes

GREETING: Final = b"This is a ciel master.\n"


class Greeting(Resource):
    """Tells a person, or a program that looks whether we live, that this is a master."""

    def render_GET(self, request: Request) -> bytes:
        request.setHeader("Content-Type", "text/plain; charset=utf-8")
        return GREETING


# --- workers --------------------------------------------------------------------------------------


class Workers(Resource):
    """All workers; they join by their control connection, not here."""

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
    """All workers, with a number to wait for the next change with."""

    def methods(self) -> tuple[str, ...]:
        return ("GET", "HEAD")

    def render_GET(self, request: Request) -> bytes:
        version = self.machine.workers_version
        return self.reply(request, {"version": version, "workers": self._listed()})


class WorkersWait(Resource):
    """Waits until workers came or went since a version."""

    needs_role = Role.READ

    def render_POST(self, request: Request) -> Answer:
        known = number_asked(request, "version", 0)
        if self.machine.workers_version > known:
            return self._reply(request)
        return self.service.waiters.wait(WORKERS).addCallback(lambda _: self._reply(request))

    def _reply(self, request: Request) -> bytes:
        return request.reply({"current_version": self.machine.workers_version})


class AnyWorker(Resource):
    """One worker, by chance."""

    def render_GET(self, request: Request) -> bytes:
        netlocs = sorted(self.service.netlocs())
        if not netlocs:
            raise HttpError(503, "there is no worker; start one with ciel-worker")
        return request.reply(f"http://{secrets.choice(netlocs)}/")


class Worker(Resource):
    """One worker."""

    def render_GET(self, request: Request) -> bytes:
        node = self.machine.workers.get(request.params["worker"])
        if node is None:
            raise HttpError(404, f"there is no worker {request.params['worker']!r:.140}")
        return self.reply(request, views.original_worker(node, self.service.epoch_s))


class WorkersReset(Resource):
    """Takes all workers for lost. Those that live join anew, and what they ran runs again."""

    needs_role = Role.ADMIN

    def render_POST(self, request: Request) -> bytes:
        self.service.lose_workers("was forgotten by request")
        return request.reply(True)


# --- jobs -----------------------------------------------------------------------------------------


class JobSubmitter(Resource):
    """Begins jobs in the original's form."""

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
            assert not isinstance(root.private, dict)  # it would be inline
            return self._contents.fetch(root.private).addCallback(with_private, root)

        def with_private(content: bytes, root: submissions.Root) -> Deferred[bytes]:
            return read_in_thread(
                len(content),
                lambda: submissions.root_submission(root, job, submissions.read_content(content)),
                lambda submission: self._submit(request, submission),
            )

        return read_in_thread(len(request.content.getbuffer()), read, with_root)

    def _submit(self, request: Request, submission: submissions.Submission) -> bytes:
        if submission.spec.id in self.machine.jobs:
            raise HttpError(409, f"there is a job {submission.spec.id} already")
        return self.reply(request, views.original_job(self.machine, self.submit(submission)))


class Jobs(JobSubmitter):
    """All jobs, by id; and new ones."""

    def render_GET(self, request: Request) -> bytes:
        return request.reply(list(self.machine.jobs))

    def render_POST(self, request: Request) -> Answer:
        return self.submit_original(request, JobId(secrets.token_hex(16)))


class JobById(JobSubmitter):
    """One job; or a new one of that id."""

    def render_GET(self, request: Request) -> bytes:
        return self.reply(request, views.original_job(self.machine, self.job(request)))

    def render_POST(self, request: Request) -> Answer:
        return self.submit_original(request, JobId(check_id(request.params["job"])))


class JobCompletion(Resource):
    """Waits for a job's end: by GET for as long as it takes, by POST at most so many seconds."""

    needs_role = Role.READ

    def render_GET(self, request: Request) -> Answer:
        found = self.job(request)
        return self._ended(found, None).addCallback(lambda _: self._reply(request, found))

    def render_POST(self, request: Request) -> Answer:
        timeout = body_object(request, "timeout").get("timeout")
        found = self.job(request)
        ended = self._ended(found, seconds_asked(timeout, "timeout"))
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
    """Has what failed of an ended job tried again."""

    def render_POST(self, request: Request) -> bytes:
        found = self.job(request)
        named = {"job": found.spec.id}
        self.service.act(lambda machine, now_s: self.service.change("retry", named))
        return self.reply(request, views.original_job(self.machine, found))


class JobPoke(Resource):
    """Has the scheduler look at once, which it does by itself, too."""

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
    """Ends what runs of a task, wherever that is, as a failure of its own."""

    def render_POST(self, request: Request) -> bytes:
        task = self.task(request)
        aborted = self.service.act(lambda machine, now_s: machine.abort(task))
        return request.reply({"aborted": int(aborted)})


class Ref(Resource):
    """What is known of an object now."""

    def render_GET(self, request: Request) -> bytes:
        self.job(request)
        return self.reply(request, self.reference(request))


# --- all of them ----------------------------------------------------------------------------------

_BY_CONTROL: Final = "workers join by their control connection: start one with ciel-worker"
_NO_TIMINGS: Final = "no timing lists are kept; /metrics has figures"
_REPORTED: Final = "workers report by their control connection"
GONE: Final = (
    ("/control/gethostname", "GET", "a worker knows its address itself: see its --advertise"),
    ("/control/worker/{worker}/ping", "POST", "a worker's control connection says that it lives"),
    ("/control/worker/{worker}/stopping", "POST", _REPORTED),
    ("/control/task/{job}/{task}/report", "POST", _REPORTED),
    ("/control/task/{job}/{task}/failed", "POST", _REPORTED),
    ("/control/task/{job}/{task}/publish", "POST", _REPORTED),
    ("/control/task/{job}/{task}/log", "POST", _REPORTED),
    ("/control/backup", "POST", "no standby registers here"),
)


def add_original(routes: Routes, service: MasterService, contents: Contents) -> None:
    """Add all of these to what is served, but for `/control/shutdown`."""
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
