"""The operations of a worker that people and programs request over HTTP."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ciel.core.ids import ObjectId
from ciel.worker.events import Events
from ciel.worker.interactive.attached import AttachedProcess
from ciel.worker.interactive.channel import ProgramChannel
from ciel.worker.interactive.programs import InteractivePrograms
from ciel.worker.master_session import MasterSession
from ciel.worker.service import WorkerService


class Operations:
    """Carries out requests. Each is an event for the worker's state machine."""

    def __init__(
        self,
        service: WorkerService,
        master: MasterSession,
        interactive: InteractivePrograms,
        events: Events,
    ) -> None:
        self.events = events
        self._service = service
        self._machine = service.machine
        self._master = master
        self._interactive = interactive

    @property
    def has_master(self) -> bool:
        """Whether a master receives this worker's messages now."""
        return self._master.is_connected

    def abort(self, job: str, task: str | None) -> int:
        """End this worker's attempts at one task of a job, or at all; return how many."""
        count = self._machine.abort(job, task, self._service.now_s())
        self._service.act()
        return count

    def uploaded(self, object_id: ObjectId) -> None:
        """Note that a client has uploaded an object to the store."""
        self.events.note("brought", object_id)
        self._machine.uploaded(object_id, self._service.now_s())
        self._service.act()

    def old_uploads(self, older_than_s: float) -> list[ObjectId]:
        """List old uploads that are not pinned; a job may have named them meanwhile."""
        return self._machine.uploads.old(self._service.now_s(), older_than_s)

    def offer_uploads(self, older_than_s: float) -> list[ObjectId]:
        """Report old uploads to the master, which orders the deletion of those it does not know."""
        offered = self._machine.offer_uploads(older_than_s, self._service.now_s())
        self._service.act()
        return offered

    # --- attached processes -----------------------------------------------------------------------

    def attach(self, attached: AttachedProcess) -> Deferred[Any]:
        """Make a process of this host the root task of a new job.

        Fires once the job exists; fails with a CielError. Raises OSError.
        """
        self._interactive.attach(attached)
        self._machine.process_attached(attached.id)

        def refused(failure: Failure) -> Failure:  # or the request was cancelled
            self._machine.process_left(attached.id)
            self._interactive.end_waiting((attached.id,))
            return failure

        argument = {"job": attached.job, "name": attached.name}
        return self._master.request("attach", argument).addErrback(refused)

    def attached(self) -> list[tuple[AttachedProcess, ProgramChannel]]:
        """List the attached processes, each with its channel."""
        return self._interactive.attached()
