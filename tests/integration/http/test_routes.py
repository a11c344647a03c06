"""Tests every route of both daemons, from tables: without a key, with keys of other roles, with the
right key, and with hostile names and bodies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import pytest

from ciel.access.keys import Key, Role
from ciel.testing.homes import HandCluster, Home, descriptors_of, wait_for
from ciel_tests.http.master_rows import MASTER_ROWS, master_table
from ciel_tests.http.routes import BAD_JSON, TOO_LONG, Door, Row, Told, lesser, missing, unserved
from ciel_tests.http.worker_rows import WORKER_ROWS, worker_names, worker_table

WRONG: Final = Key.new().text()


class Live(NamedTuple):
    """A daemon, and the values of the names in its rows."""

    door: Door
    names: Mapping[str, str]
    pid: int


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandCluster]:
    home = Home(tmp_path_factory.mktemp("routes"))
    home.environ["CIEL_TES_IMAGES"] = "ignore"
    cluster = HandCluster.start(home, workers=2)
    yield cluster
    try:
        for name in ("master", "worker1", "worker2"):
            assert "Traceback" not in cluster.log(name)
    finally:
        cluster.stop()


def submitted(door: Door, *command: str, **task: object) -> dict[str, str]:
    """Start a job of one program; return the ids of the job, its task and its output."""
    args = {"command_line": list(command)}
    one = {"name": "it", "executor": "stdinout", "arguments": {"args": args}, **task}
    told = door.ask_as(Role.SUBMIT, "POST", "/api/v1/jobs", {"tasks": [one]})
    assert told.status == 201, told
    job = str(told.json()["job"]["id"])
    output = str(told.json()["outputs"]["it"][0])
    return {"job": job, "id": output, "task": output.partition(":")[0]}


def ended(door: Door, job: str) -> Told:
    return door.ask_as(Role.READ, "GET", f"/control/job/{job}/completion")


@pytest.fixture(scope="module")
def master(cluster: HandCluster) -> Live:
    door = Door(cluster.url.removeprefix("http://"), cluster.key)
    of_one = submitted(door, "echo", "<b>&amp;")
    failed, doomed = (submitted(door, program)["job"] for program in ("false", "true"))
    for job in (of_one["job"], failed, doomed):
        ended(door, job)
    worker = door.ask_as(Role.READ, "GET", "/api/v1/workers").json()[0]["worker"]
    running = submitted(door, "sleep", "1000")["job"]
    one = {"executors": [{"image": "none", "command": ["true"]}]}
    tes = str(door.ask_as(Role.SUBMIT, "POST", "/ga4gh/tes/v1/tasks", one).json()["id"])
    names = {**of_one, "failed": failed, "doomed": doomed, "running": running, "worker": worker}
    names |= {"tes": tes, "tes_cancel": f"{tes}:cancel"}
    return Live(door, names, cluster.master.pid)


def refused(told: Told, *statuses: int) -> None:
    """Check that a refusal is one line of JSON without internal details."""
    assert told.status in statuses, told
    assert "Traceback" not in told.error
    assert "internal error" not in told.error
    assert "\n" not in told.error


def check(live: Live, row: Row) -> None:
    """Send one row in all the ways that must be refused, and in the right one."""
    door = live.door
    target = row.target(live.names)
    for key in (None, WRONG):
        told = door.ask(row.method, target, key, row.body)
        refused(told, 401)
        assert "www-authenticate" in told.headers
    for role in lesser(row.role):
        refused(door.ask(row.method, target, door.key_of(role), row.body), 403)
    key = door.key_of(row.role)
    for bad in row.bad_targets(live.names):
        told = door.ask(row.method, bad, key, row.body)
        refused(told, 400, 404, *([row.status] if row.status in (403, 410) else []))
    too_long = {"Content-Length": str(TOO_LONG), "Connection": "close"}
    if row.takes != "bytes":
        refused(door.ask(row.method, target, key, headers=too_long), 413)
    if row.takes == "json":
        for name, body in BAD_JSON.items():
            told = door.ask(row.method, target, key, body)
            assert told.status == 400, (name, told)
            refused(told, 400)
    told = door.ask(row.method, target, key, row.body, row.headers)
    assert told.status == row.status, told
    if told.headers.get("content-type") == "application/json":
        json.loads(told.body)
    elif row.status >= 400:
        raise AssertionError(f"a refusal that is not JSON: {told}")


@pytest.mark.parametrize("row", [row for row in MASTER_ROWS if not row.ends], ids=str)
def test_a_route_of_the_master_needs_the_role_of_its_row(master: Live, row: Row) -> None:
    check(master, row)


def test_every_route_of_the_master_has_a_row() -> None:
    assert missing(master_table(), MASTER_ROWS) == []


def test_a_route_without_a_row_is_found_and_a_row_without_a_route() -> None:
    rows = [row for row in MASTER_ROWS if row.path != "/healthz"]
    assert missing(master_table(), rows) == ["GET /healthz has no row"]
    rows = [*MASTER_ROWS, Row("PUT", "/healthz")]
    assert missing(master_table(), rows) == ["PUT /healthz is not served"]


def test_other_methods_and_paths_of_the_master_are_refused(master: Live) -> None:
    rows = {row.path: row for row in MASTER_ROWS}
    for method, path in unserved(master_table()):
        target = rows[path].target(master.names)
        told = master.door.ask(method, target, master.door.key_of(Role.ADMIN))
        assert told.status == 405, (method, path, told)
        assert told.headers["allow"]
    for path in ("/", "/nothing/here", "/data/../x", "/api/v2/jobs"):
        assert master.door.ask("GET", path, None).status == 401
        assert master.door.ask("GET", path, master.door.key_of(Role.READ)).status == 404


@pytest.fixture(scope="module")
def worker(cluster: HandCluster) -> Live:
    door = Door(cluster.netlocs()[1], cluster.key)
    return Live(door, worker_names(door), cluster.workers[1].pid)


@pytest.mark.parametrize("row", [row for row in WORKER_ROWS if not row.ends], ids=str)
def test_a_route_of_a_worker_needs_the_role_of_its_row(worker: Live, row: Row) -> None:
    check(worker, row)


def test_every_route_of_a_worker_has_a_row() -> None:
    assert missing(worker_table(), WORKER_ROWS) == []


def test_other_methods_of_a_worker_are_refused(worker: Live) -> None:
    rows = {row.path: row for row in WORKER_ROWS}
    for method, path in unserved(worker_table()):
        target = rows[path].target(worker.names)
        told = worker.door.ask(method, target, worker.door.key_of(Role.ADMIN))
        assert told.status == 405, (method, path, told)


def test_last_a_worker_can_be_shut_down(cluster: HandCluster, worker: Live) -> None:
    assert descriptors_of(worker.pid) < 100
    check(worker, next(row for row in WORKER_ROWS if row.ends))
    assert cluster.workers[1].wait(20) == 0


def test_last_the_master_can_be_shut_down_with_its_workers(
    cluster: HandCluster, master: Live
) -> None:
    row = next(row for row in MASTER_ROWS if row.ends)
    open_files = descriptors_of(master.pid)
    assert open_files < 100
    check(master, row)
    wait_for(lambda: cluster.master.poll() is not None, "the master's end")
    wait_for(lambda: cluster.workers[0].poll() is not None, "the worker's end")
    assert cluster.master.returncode == 0
