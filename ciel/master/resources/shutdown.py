"""Shuts down the whole cluster, the workers first, or restarts the master."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import DeferredList

from ciel.access.keys import Key, Role
from ciel.access.tickets import make_ticket
from ciel.master.resources.resource import Resource
from ciel.master.service import MasterService
from ciel.net.errors import HttpError
from ciel.net.http import Request

KILL_TARGET: Final = "/control/kill"
WORKER_TIMEOUT_S: Final = 2.0
"""The longest wait for the answer of a worker."""

STOP_DELAY_S: Final = 0.2
"""The delay before the master stops, so that it can send its own answer."""


class Shutdown(Resource):
    """Stops all workers, and then the master; answers at once."""

    needs_role = Role.ADMIN

    def __init__(
        self, reactor: Any, key: Key, service: MasterService, stop: Callable[[], object]
    ) -> None:
        super().__init__(service)
        self._reactor = reactor
        self._key = key
        self._stop = stop
        self._is_under_way = False

    def render_POST(self, request: Request) -> bytes:
        if not self._is_under_way:
            from twisted.web.client import Agent  # the import takes 15 ms

            self._is_under_way = True
            agent: Any = Agent(self._reactor, connectTimeout=WORKER_TIMEOUT_S)
            requests = [self._end(agent, netloc) for netloc in self.service.netlocs()]
            stopped = DeferredList(requests, consumeErrors=True)
            stopped.addTimeout(WORKER_TIMEOUT_S, self._reactor)
            stopped.addBoth(lambda _: self._reactor.callLater(STOP_DELAY_S, self._stop))
        return request.reply(True)

    def _end(self, agent: Any, netloc: str) -> Any:
        ticket = make_ticket(self._key, "POST", netloc, KILL_TARGET, time.time())
        from twisted.web.http_headers import Headers

        headers: Any = Headers({"Authorization": [ticket]})
        return agent.request(b"POST", f"http://{netloc}{KILL_TARGET}".encode(), headers)


class Restart(Resource):
    """Lets another master continue from the journal, with the same options; answers at once."""

    needs_role = Role.ADMIN

    def __init__(
        self, reactor: Any, service: MasterService, restart: Callable[[], object] | None
    ) -> None:
        """`restart`: ends this master and starts another one; None without a journal."""
        super().__init__(service)
        self._reactor = reactor
        self._restart = restart

    def render_POST(self, request: Request) -> bytes:
        if self._restart is None:
            raise HttpError(
                409,
                "it has no journal, so it would lose all jobs: start it with --journal DIR, or end "
                "it and start another one",
            )
        restart, self._restart = self._restart, lambda: None
        self._reactor.callLater(STOP_DELAY_S, restart)
        return request.reply(True)
