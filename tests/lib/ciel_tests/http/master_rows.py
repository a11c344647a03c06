"""The rows of the master's routes, see `routes`. Live names: `job` has ended, its `task` has
produced `id`; `running` runs; `failed` can be retried; `doomed` may be removed; `worker` is
connected; `tes` is a task of TES, and `tes_cancel` the name that cancels it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twisted.internet.task import Clock

from ciel.access.browser_sessions import BrowserSessions
from ciel.access.keys import Key, Role
from ciel.master.journal import NullJournal
from ciel.master.resources.pages import ROOT
from ciel.master.resources.root import master_routes
from ciel.master.service import MasterService
from ciel.master.state.machine import MasterMachine
from ciel.net.http import Routes
from ciel.net.ticks import Ticks
from ciel.original.master_routes import GONE
from ciel_tests.http.debugging import DEBUGGING
from ciel_tests.http.routes import Row

SUBMIT: Final = Role.SUBMIT
RUNNING: Final = {"job": "running"}
_TRUE: Final = (
    b'{"handler": "stdinout", "task_private": {"args": {"command_line": ["true"], "salt": %d}}}'
)


def master_table() -> Routes:
    """Return the routes of a master, without running one."""
    clock = Clock()
    service = MasterService(clock, Ticks(clock), NullJournal(), {}, MasterMachine())
    browsers = BrowserSessions(ROOT)
    return master_routes(clock, Key.new(), service, lambda: None, None, browsers, DEBUGGING)


def _original() -> Iterator[Row]:
    yield Row("GET", "/control")
    yield Row("GET", "/control/worker")
    yield Row("POST", "/control/worker", status=410)
    yield Row("GET", "/control/worker/versioned")
    yield Row("POST", "/control/worker/await_event_count", query="?version=0")
    yield Row("GET", "/control/worker/random")
    yield Row("GET", "/control/worker/{worker}")
    yield Row("GET", "/control/job")
    yield Row("POST", "/control/job", SUBMIT, body=b'{"root_task": %b}' % (_TRUE % 1), takes="json")
    yield Row("GET", "/control/job/{job}")
    yield Row(
        "POST", "/control/job/{job}", SUBMIT, body=b'{"root_task": %b}' % (_TRUE % 2),
        takes="json", names={"job": "a-job-of-this-name"},
    )  # fmt: skip
    yield Row("GET", "/control/job/{job}/completion")
    yield Row(
        "POST", "/control/job/{job}/completion", body=b'{"timeout": 0}', takes="json",
        names=RUNNING,
    )  # fmt: skip
    yield Row("POST", "/control/job/{job}/resume", SUBMIT, names={"job": "failed"})
    yield Row("POST", "/control/job/{job}/poke", SUBMIT)
    yield Row("GET", "/control/task/{job}/{task}")
    yield Row("POST", "/control/task/{job}/{task}/abort", SUBMIT)
    yield Row("GET", "/control/ref/{job}/{id}")
    yield Row("GET", "/control/data")
    yield Row("POST", "/control/data", SUBMIT, 307, b"content", takes="bytes")
    yield Row("GET", "/control/data/{id}")
    yield Row(
        "POST", "/control/data/{id}", SUBMIT, 307, b"content", takes="bytes", names={"id": "mine"}
    )
    yield Row("GET", "/data/{id}")
    yield Row("GET", "/control/stopwatch", status=403)
    yield Row("GET", "/control/stopwatch/{name}", status=403)
    for path, method, _ in GONE:
        yield Row(method, path, status=410)
    yield Row("GET", "/control/browse/enter", status=303)
    yield Row("GET", "/control/browse/job")
    yield Row("GET", "/control/browse/job/{job}")
    yield Row("GET", "/control/browse/task/{job}/{task}")
    yield Row("GET", "/control/browse/ref/{job}/{id}")


def _ours() -> Iterator[Row]:
    yield Row("GET", "/healthz")
    yield Row("GET", "/metrics")
    for name in ("status", "workers", "stores", "objects"):
        yield Row("GET", f"/api/v1/{name}")
    yield Row("GET", "/api/v1/objects/{id}")
    yield Row("GET", "/api/v1/jobs")
    one = b'{"executor": "stdinout", "arguments": {"args": {"command_line": ["true"]}}}'
    yield Row("POST", "/api/v1/jobs", SUBMIT, 201, b'{"tasks": [%b]}' % one, takes="json")
    yield Row("GET", "/api/v1/jobs/{job}")
    yield Row("GET", "/api/v1/jobs/{job}/tasks")
    yield Row("GET", "/api/v1/jobs/{job}/tasks/{task}")
    yield Row("GET", "/api/v1/jobs/{job}/results")
    yield Row("POST", "/api/v1/jobs/{job}/retry", SUBMIT, 409)
    yield Row("POST", "/api/v1/jobs/{job}/cancel", SUBMIT, names=RUNNING)
    yield Row("DELETE", "/api/v1/jobs/{job}", SUBMIT, names={"job": "doomed"})


def _tes() -> Iterator[Row]:
    at = "/ga4gh/tes/v1"
    yield Row("GET", f"{at}/service-info")
    yield Row("GET", f"{at}/tasks/service-info")
    yield Row("GET", f"{at}/tasks")
    one = b'{"executors": [{"image": "none", "command": ["true"]}]}'
    yield Row("POST", f"{at}/tasks", SUBMIT, body=one, takes="json")
    yield Row("GET", f"{at}/tasks/{{task}}", names={"task": "tes"})
    yield Row("POST", f"{at}/tasks/{{task}}", SUBMIT, names={"task": "tes_cancel"})


MASTER_ROWS: Final = (
    *_ours(),
    *_tes(),
    *_original(),
    Row("POST", "/control/worker/reset", Role.ADMIN),
    Row("POST", "/api/v1/debug/dump", Role.ADMIN),
    Row("POST", "/api/v1/debug/log-level", Role.ADMIN, body=b'"info"', takes="json"),
    Row("POST", "/control/restart", Role.ADMIN, status=409),  # it has no journal
    Row("POST", "/control/shutdown", Role.ADMIN, ends=True),
)
