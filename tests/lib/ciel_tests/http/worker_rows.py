"""The rows of a worker's routes, see `routes`. Live names, made by `worker_names`: `object` and
`pinned` are in its store, the latter pinned; `begun` and `left` are unfinished uploads in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from twisted.internet.task import Clock

from ciel.access.keys import Key, Role
from ciel.net.http import Routes
from ciel.worker.metrics import WorkerMetrics
from ciel.worker.resources.control import Controls
from ciel.worker.resources.root import WorkerSite
from ciel_tests.http.debugging import DEBUGGING
from ciel_tests.http.routes import Door, Row

SUBMIT: Final = Role.SUBMIT
_CONTENT: Final = bytes(2000)
_OBJECT: Final = {"id": "object"}
NOBODY: Final = (1 << 22) + 1
"""A process id above the kernel's maximum."""


def worker_table() -> Routes:
    """Return the routes of a worker, without running one."""
    nothing: Any = None
    site = WorkerSite(Clock(), Key.new())
    site.serve_objects(nothing, nothing, nothing, nothing)
    site.serve_logs(nothing, nothing)
    controls = Controls(*[nothing for _ in Controls._fields])
    metrics = WorkerMetrics(nothing, nothing, nothing, nothing, nothing, nothing, nothing)
    site.serve_succession(nothing)
    site.serve_controls(controls, metrics, DEBUGGING)
    return site.routes


def worker_names(door: Door) -> dict[str, str]:
    """Upload the objects that the rows use to a worker."""
    for name in ("object", "pinned"):
        answer = door.ask("POST", f"/control/data/{name}", door.key_of(SUBMIT), _CONTENT)
        assert answer.status == 201, answer
    assert door.ask_as(SUBMIT, "POST", "/control/admin/pin/pinned").status == 200
    for name in ("begun", "left"):
        assert door.ask_as(SUBMIT, "POST", f"/control/upload/{name}").status == 201
    return {}


def _data() -> Iterator[Row]:
    yield Row("GET", "/data/{id}", names=_OBJECT)
    yield Row("GET", "/control/data")
    yield Row("POST", "/control/data", SUBMIT, 201, b"content", takes="bytes")
    yield Row("GET", "/control/data/{id}", names=_OBJECT)
    yield Row(
        "POST", "/control/data/{id}", SUBMIT, 201, b"content", takes="bytes", names={"id": "mine"}
    )
    yield Row("GET", "/control/upload")
    yield Row("POST", "/control/upload/{id}", SUBMIT, 201, names={"id": "another"})
    yield Row("GET", "/control/upload/{id}", names={"id": "begun"})
    yield Row(
        "POST", "/control/upload/{id}/{offset}", SUBMIT, 200, _CONTENT, takes="bytes",
        names={"id": "begun", "offset": "0"},
    )  # fmt: skip
    yield Row(
        "POST", "/control/upload/{id}/commit", SUBMIT, 201, b"2000", takes="json",
        names={"id": "begun"},
    )  # fmt: skip
    yield Row("DELETE", "/control/upload/{id}", SUBMIT, names={"id": "left"})


def _control() -> Iterator[Row]:
    yield Row("GET", "/control")
    yield Row("GET", "/control/master")
    yield Row(
        "POST", "/control/master", Role.ADMIN, 400, b'{"master": "somewhere else"}', takes="json"
    )
    yield Row("GET", "/control/features")
    yield Row("POST", "/control/abort/{job}", SUBMIT)
    yield Row("POST", "/control/abort/{job}/{task}", SUBMIT)
    yield Row("GET", "/control/admin/pin")
    yield Row("POST", "/control/admin/pin/{id}", SUBMIT, names=_OBJECT)
    yield Row("DELETE", "/control/admin/pin/{id}", SUBMIT, names={"id": "pinned"})
    yield Row("POST", "/control/admin/flush", SUBMIT)
    yield Row("POST", "/control/admin/flush/really", SUBMIT)
    yield Row("GET", "/control/fetch")
    yield Row("POST", "/control/fetch/{session}", SUBMIT, 403, b"[]", takes="json")
    yield Row("GET", "/control/fetch/{session}", status=404)
    yield Row("GET", "/control/log", query="?first_event=0&last_event=9")
    yield Row("POST", "/control/log/wait_after", query="?event_count=0")
    yield Row("POST", "/control/task", status=410)
    for step in ("subscribe", "unsubscribe", "advert"):
        yield Row("POST", f"/control/streamstat/{{id}}/{step}", status=410)
    yield Row("GET", "/control/stopwatch", status=403)
    yield Row("GET", "/control/stopwatch/{name}", status=403)
    yield Row("GET", "/control/process")
    yield Row("POST", "/control/process", SUBMIT, 404, b'[%d, "json"]' % NOBODY, takes="json")
    yield Row("GET", "/control/process/{id}", status=404)


_ASKS: Final = (
    b'{"do": "ask", "ballot": {"epoch": 2, "url": "http://h:1"}, '
    b'"succession": {"epoch": 1, "number": 1, "urls": ["http://h:1"], "voters": {}}}'
)
WORKER_ROWS: Final = (
    Row("GET", "/healthz"),
    Row("GET", "/metrics"),
    Row("GET", "/log/{job}"),
    Row("GET", "/kept/{name}", status=404),
    Row("GET", "/api/v1/counters"),
    *_data(),
    *_control(),
    Row("POST", "/api/v1/debug/dump", Role.ADMIN),
    Row("POST", "/api/v1/debug/log-level", Role.ADMIN, body=b'"info"', takes="json"),
    Row("POST", "/control/succession", Role.ADMIN, body=_ASKS, takes="json"),
    Row("POST", "/control/kill", Role.ADMIN, 202, ends=True),
)
