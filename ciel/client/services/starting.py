"""Starts, finds and stops services. A service is a job whose tasks are its replicas."""

from __future__ import annotations

from typing import Any, Final, Protocol

from ciel.access.settings import MasterLocation
from ciel.client.calls.calls import Calls
from ciel.client.errors import QueryError
from ciel.client.jobs.caller_context import Caller
from ciel.client.jobs.job import Job
from ciel.client.services.classes import ServiceError, options_of
from ciel.client.services.handles import Handle, Named, forget, links_here
from ciel.client.services.lookup import ClientLookup
from ciel.client.services.replica import serve
from ciel.core.jobs import JOB_NAME_MAX_LENGTH, CallerContext
from ciel.python.options import OptionError

REPLICAS_MAX: Final = 1000
_PREFIX: Final = "service "
_ACTIVE: Final = "active"


class Owner(Protocol):
    """The part of a client that services use."""

    @property
    def location(self) -> MasterLocation: ...

    @property
    def calls(self) -> Calls: ...

    def caller(self) -> Caller: ...

    def job(
        self, name: str = "", *, detached: bool = False, context: CallerContext | None = None
    ) -> Job: ...

    def follow_prints(self, job: Job) -> None: ...

    def ask(self, topic: str, argument: Any = None) -> Any: ...

    def cancel_job(self, job_id: str, reason: str = ...) -> None: ...

    def wait_for_job(self, job_id: str) -> Any: ...


class Services:
    """The services that one client has started, and how it finds others."""

    def __init__(self, client: Owner) -> None:
        self._client = client
        self._jobs: dict[str, Job] = {}
        self.lookup = ClientLookup(client)

    def start(
        self,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        replicas: int,
        name: str,
        *,
        detached: bool,
    ) -> Handle:
        """See `Client.start`."""
        if type(replicas) is not int or not 1 <= replicas <= REPLICAS_MAX:
            raise OptionError("replicas", f"it must be 1 to {REPLICAS_MAX}, not {replicas!r:.40}")
        if detached and not name:
            raise OptionError("name", "a detached service needs one, by which others find it")
        options = options_of(cls)
        shown = name or cls.__qualname__.replace("<locals>.", "")
        if detached and self._active(shown) is not None:
            raise ServiceError(f"a service {shown!r} runs already; stop it first, or use that one")
        client = self._client
        job_name = (_PREFIX + shown)[:JOB_NAME_MAX_LENGTH]
        job = client.job(job_name, detached=detached, context=client.caller().context)
        client.follow_prints(job)
        try:
            for number in range(replicas):
                own = options._replace(name=f"{shown}[{number}]")
                client.calls.add_alone(job, serve, (cls, args, kwargs, shown, number), own)
            job.close()
        except BaseException:
            job.cancel("its service could not be started")
            raise
        if not detached:
            self._jobs[job.id] = job
        public = [known for known in dir(cls) if not known.startswith("_")]
        methods = frozenset(known for known in public if callable(getattr(cls, known)))
        return Handle(Named(job.id, shown, replicas, self.lookup.cluster_id, methods))

    def find(self, name: str) -> Handle:
        """See `Client.service`."""
        found = self._active(name)
        if found is None:
            raise ServiceError(f"no service {name!r} runs in this cluster", is_over=True)
        return Handle(Named(found["job"], name, len(found["replicas"]), self.lookup.cluster_id))

    def _active(self, name: str) -> dict[str, Any] | None:
        try:
            found = self.lookup.find((_PREFIX + name)[:JOB_NAME_MAX_LENGTH])
        except QueryError:
            return None
        return found if found["state"] == _ACTIVE else None

    def stop(self, handle: Handle) -> None:
        """See `Client.stop`."""
        service = handle._service
        self._jobs.pop(service.job, None)
        self._client.cancel_job(service.job, "its service was stopped")
        error = ServiceError(f"{service.name} is gone: it was stopped", is_over=True)
        links_here().close(service.job, error)
        self._client.wait_for_job(service.job)

    def close(self) -> None:
        """Stop the services that are not detached, as the client ends."""
        forget(self.lookup)
        for job in self._jobs.values():
            if not job.has_ended:
                job.cancel("the client that started the service has ended")
