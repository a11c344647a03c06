"""Reports the outcome of fetches to the state machine, and to attempts that wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ciel.core.ids import ObjectId
from ciel.core.plans import Plan
from ciel.core.refs import Reference
from ciel.worker.attempts.workplace import Losses
from ciel.worker.events import Events
from ciel.worker.master_session import MasterSession
from ciel.worker.retention import Retention
from ciel.worker.service import WorkerService

UNANSWERED_MAX_S: Final = 10.0
"""The worker retries a host that does not answer for this time.

After it, the master knows whether the worker on that host is alive.
"""

Then = Callable[[Losses | None, str], None]


class FetchReports:
    """The owner of fetches (`FetcherOwner`)."""

    def __init__(
        self,
        service: WorkerService,
        master: MasterSession,
        retention: Retention,
        events: Events,
    ) -> None:
        self._service = service
        self._machine = service.machine
        self._master = master
        self._retention = retention
        self._events = events
        self._waiting: dict[ObjectId, list[Then]] = {}  # requests of running attempts

    def request(self, ref: Reference, then: Then) -> None:
        """Fetch an object for a running attempt; see `AttemptsOwner.fetch`."""
        self._waiting.setdefault(ref.id, []).append(then)
        self._machine.fetch(ref)
        self._service.act_soon()

    def _answer(self, object_id: ObjectId, losses: Losses | None, details: str) -> None:
        for then in self._waiting.pop(object_id, ()):
            then(losses, details)

    def fetched(self, object_id: ObjectId, size_bytes: int) -> None:
        self._retention.copied(object_id)
        self._events.note("fetched", object_id, size_bytes)
        self._machine.fetched(object_id, self._service.now_s(), size_bytes)
        self._answer(object_id, None, "")
        self._service.act()

    def copied(self, netloc: str, size_bytes: int, run_s: float) -> None:
        self._machine.copied(netloc, size_bytes, run_s)

    def content_differs(self, object_id: ObjectId) -> None:
        self._events.note("differs", object_id)
        self._machine.content_differs(object_id)
        self._service.act_soon()

    def stream_opened(self, object_id: ObjectId) -> None:
        self._machine.stream_opened(object_id, self._service.now_s())
        self._answer(object_id, None, "")
        self._service.act()

    def fetch_failed(
        self,
        object_id: ObjectId,
        losses: tuple[str, ...],
        details: str,
        *,
        unreached: tuple[str, ...] = (),
        lacks_room: bool = False,
    ) -> None:
        now_s = self._service.now_s()
        self._machine.fetch_failed(
            object_id, losses, details, now_s, unreached=unreached, lacks_room=lacks_room
        )
        lost = tuple([(object_id, place) for place in losses])
        self._events.note("fetch_failed", object_id, details)
        self._answer(object_id, lost, details)
        self._service.act()

    def plans_again(self, ref: Reference, since_s: float) -> tuple[Plan, ...]:
        """As `FetcherOwner` says; none once the holders have not answered for too long.

        The worker keeps trying while it is itself disconnected from the master, and for some time
        after that, since the master then runs its tasks elsewhere, or recomputes the object.
        """
        if not self._master.is_open:
            return ()
        if self._master.is_connected:
            waited_s = self._service.now_s() - max(since_s, self._master.connected_at_s)
            if waited_s > UNANSWERED_MAX_S:
                return ()
        return self._machine.plans_for(ref)
