"""The HTTP server of the master, with all of its routes.

It serves health, metrics, `/api/v1`, HTML pages, and the routes of plugins, such as those of the
original CIEL (`ciel.original`). Workers serve the content of stored objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ciel import plugins
from ciel.access.browser_sessions import BrowserSessions
from ciel.access.keys import Key, Role
from ciel.master.resources.api import add_api
from ciel.master.resources.contents import Contents
from ciel.master.resources.pages import ROOT as PAGES
from ciel.master.resources.pages import add_pages
from ciel.master.resources.shutdown import Restart, Shutdown
from ciel.master.service import MasterService
from ciel.master.state.queries.metrics import collect_metrics
from ciel.net.authorisation import Authorisation
from ciel.net.debugging import Debugging, add_debugging
from ciel.net.exposition import Family, gauge
from ciel.net.http import Request, Route, Routes, SecureSite
from ciel.net.metrics import Metrics


class Health(Route):
    """Reports that the daemon is running."""

    needs_role = Role.READ

    def render_GET(self, request: Request) -> bytes:
        return request.reply({"status": "ok"})


def master_families(service: MasterService) -> list[Family]:
    """Return all metrics of the master."""
    found = [
        Family(name, kind, text, [({label: at} if label else {}, value) for at, value in values])
        for name, kind, text, label, values in collect_metrics(service.machine)
    ]
    text = "Requests that wait for the end of a job, or for a worker to join."
    of_memory = service.memory.families() if service.memory is not None else []
    return [*found, gauge("ciel_http_waiting", text, len(service.waiters)), *of_memory]


def master_routes(
    reactor: Any,
    key: Key,
    service: MasterService,
    stop: Callable[[], object],
    restart: Callable[[], object] | None,
    browsers: BrowserSessions,
    debugging: Debugging,
) -> Routes:
    """Return all routes of a master. `stop` stops the master; `restart` restarts it from its
    journal, if it has one.
    """
    routes = Routes()
    routes.add("/healthz", Health())
    routes.add("/metrics", Metrics(lambda: master_families(service)))
    add_api(routes, service)
    for name in plugins.names("ciel.routes"):
        plugins.load("ciel.routes", name)(routes, service, Contents(reactor, key, service))
    add_pages(routes, service, browsers)
    add_debugging(routes, debugging)
    routes.add("/control/shutdown", Shutdown(reactor, key, service, stop))
    routes.add("/control/restart", Restart(reactor, service, restart))
    return routes


def master_site(
    reactor: Any,
    key: Key,
    service: MasterService,
    stop: Callable[[], object],
    restart: Callable[[], object] | None,
    debugging: Debugging,
    *,
    open_healthz: bool = False,
) -> tuple[Any, Authorisation]:
    """Create the site. The caller sets the master's address on the authorisation later."""
    authorisation = Authorisation(key.derive)
    authorisation.browsers = BrowserSessions(PAGES)
    routes = master_routes(reactor, key, service, stop, restart, authorisation.browsers, debugging)
    return SecureSite(reactor, routes, authorisation, open_healthz=open_healthz), authorisation
