"""Tests HTTP requests to a real worker: pins, flushes, URLs, aborts, its log and metrics; and that
thousands of slow connections do not block others.
"""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from ciel.access.keys import Role
from ciel.testing.homes import HandCluster, Home, descriptors_of, private_bytes, wait_for
from ciel_tests.http.routes import Door

ADMIN, SUBMIT, READ = Role.ADMIN, Role.SUBMIT, Role.READ
CONTENT = bytes(range(256)) * 100


class Site(NamedTuple):
    """A cluster of one worker, and the HTTP sides of both daemons."""

    cluster: HandCluster
    master: Door
    worker: Door

    def put(self, name: str) -> None:
        told = self.worker.ask("POST", f"/control/data/{name}", self.worker.key_of(SUBMIT), CONTENT)
        assert told.status == 201

    def has(self, name: str) -> bool:
        return self.worker.ask_as(READ, "HEAD", f"/data/{name}").status == 200

    def submit(self, *inputs: str, command: str) -> str:
        """Start a job of one program that reads objects; return its id."""
        refs: list[Any] = [["c2", each, len(CONTENT), [self.worker.netloc]] for each in inputs]
        args = {"command_line": ["sh", "-c", command], "inputs": [{"__ref__": r} for r in refs]}
        task = {"name": "it", "executor": "stdinout", "arguments": {"args": args}}
        told = self.master.ask_as(SUBMIT, "POST", "/api/v1/jobs", {"tasks": [task]})
        assert told.status == 201, told
        return str(told.json()["job"]["id"])

    def job(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.master.ask_as(READ, "GET", f"/api/v1/jobs/{job}").json()
        return found

    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.worker.ask_as(READ, "GET", "/control/log").json()
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    cluster = HandCluster.start(Home(tmp_path_factory.mktemp("worker-routes")), workers=0)
    cluster.start_worker("--fetch-urls", "any", "--open-healthz")
    try:
        master = Door(cluster.url.removeprefix("http://"), cluster.key)
        yield Site(cluster, master, Door(cluster.netlocs()[0], cluster.key))
        for name in ("master", "worker1"):
            assert "Traceback" not in cluster.log(name)
    finally:
        cluster.stop()


def test_a_worker_returns_its_id_executors_and_master(site: Site) -> None:
    (row,) = site.master.ask_as(READ, "GET", "/api/v1/workers").json()
    worker = site.worker.ask_as(READ, "GET", "/control/").json()
    assert row["worker"] == worker
    assert site.worker.ask_as(READ, "GET", "/control/features/").json() == row["executors"]
    told = site.worker.ask_as(READ, "GET", "/control/master/").json()
    assert told == {"netloc": site.cluster.url, "id": worker}


def test_only_healthz_is_open_without_a_key_and_only_if_enabled(site: Site) -> None:
    assert site.worker.ask("GET", "/healthz", None).status == 200
    assert site.worker.ask("GET", "/metrics", None).status == 401
    assert site.master.ask("GET", "/healthz", None).status == 401


def test_a_flush_spares_new_pinned_and_needed_objects(site: Site) -> None:
    for name in ("new", "pinned", "needed", "unneeded"):
        site.put(name)
    assert site.worker.ask_as(SUBMIT, "POST", "/control/admin/pin/pinned").status == 200
    told = site.worker.ask_as(READ, "GET", "/control/admin/pin/").json()
    assert told == [{"__ref__": ["c2", "pinned", len(CONTENT), [site.worker.netloc]]}]
    job = site.submit("needed", command="sleep 1000")
    site.worker.ask_as(SUBMIT, "POST", "/control/admin/flush/really")
    dry = site.worker.ask_as(SUBMIT, "POST", "/control/admin/flush?older_than_s=0").body.decode()
    assert "  unneeded\n" in dry
    assert "  pinned\n" not in dry
    assert all(map(site.has, ("new", "pinned", "needed", "unneeded")))
    really = "/control/admin/flush/really?older_than_s=0"
    assert "  unneeded\n" in site.worker.ask_as(SUBMIT, "POST", really).body.decode()
    wait_for(lambda: not site.has("unneeded"), "the end of what nobody needs")
    assert site.has("pinned")
    assert site.has("needed")
    assert site.master.ask_as(SUBMIT, "POST", f"/api/v1/jobs/{job}/cancel").status == 200
    assert site.worker.ask_as(SUBMIT, "DELETE", "/control/admin/pin/pinned").status == 200


def test_a_job_aborted_on_a_worker_fails_with_the_reason(site: Site) -> None:
    job = site.submit(command="echo begun >&2; sleep 1000")
    wait_for(lambda: any(e.get("job") == job for e in site.events()), "its begin")
    told = site.worker.ask_as(SUBMIT, "POST", f"/control/abort/{job}")
    assert told.json() == {"aborted": 1}
    told = site.master.ask_as(READ, "GET", f"/control/job/{job}/completion")
    assert "a user aborted the task on its worker" in told.body.decode()
    assert (
        site.worker.ask_as(SUBMIT, "POST", f"/control/abort/{job}/no-task").json()["aborted"] == 0
    )


def test_a_task_aborted_through_the_master_uses_its_retries(site: Site) -> None:
    args = {"command_line": ["sleep", "1000"]}
    needs = {"retries": 1, "retry_delay_s": 0.01}
    task = {"name": "it", "executor": "stdinout", "arguments": {"args": args}, "needs": needs}
    told = site.master.ask_as(SUBMIT, "POST", "/api/v1/jobs", {"tasks": [task]})
    job = told.json()["job"]["id"]
    for attempt in (1, 2):

        def begun(attempt: int = attempt) -> bool:
            began = [e for e in site.events() if e["event"] == "began" and e["job"] == job]
            return len(began) == attempt

        wait_for(begun, f"attempt {attempt}")
        told = site.master.ask_as(SUBMIT, "POST", f"/control/task/{job}/it/abort")
        assert told.json() == {"aborted": 1}
    told = site.master.ask_as(READ, "GET", f"/control/job/{job}/completion")
    assert "a user aborted the task" in told.body.decode()
    assert site.job(job)["state"] == "failed"
    told = site.master.ask_as(SUBMIT, "POST", f"/control/task/{job}/it/abort")
    assert told.json() == {"aborted": 0}


def test_the_log_contains_events_and_can_be_awaited(site: Site) -> None:
    count = len(site.events())
    job = site.submit(command="true")
    target = f"/control/log/wait_after?event_count={count}"
    assert site.worker.ask_as(READ, "POST", target).json()["event_count"] > count
    wait_for(lambda: "ended" in [e["event"] for e in site.events()[count:]], "the end of a task")
    began, ended = site.events()[count : count + 2]
    assert (began["event"], began["job"]) == ("began", job)
    assert (ended["event"], ended["task"], ended["how"]) == ("ended", began["task"], "done")
    one = site.worker.ask_as(READ, "GET", f"/control/log?first_event={count}&last_event={count}")
    assert one.json() == [began]


def test_metrics_are_in_the_format_of_prometheus(site: Site) -> None:
    def figures() -> dict[str, float]:
        told = site.worker.ask_as(READ, "GET", "/metrics")
        assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = [line for line in told.body.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    done = 'ciel_worker_attempts_ended_total{how="done"}'
    before = figures().get(done, 0)
    site.submit(command="true")
    wait_for(lambda: figures().get(done, 0) == before + 1, "a figure that grows")
    assert figures()["ciel_worker_slots"] == 1
    assert figures()["ciel_worker_connected"] == 1


class Answer(BaseHTTPRequestHandler):
    """Serves `/good` and no other path."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/good" else 404)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


def test_urls_are_fetched_and_can_be_read_by_tasks(site: Site) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        for session, path, expected in (("good", "good", 200), ("bad", "none", 500)):
            refs = [{"__ref__": ["fetch2", f"from-{session}", f"{url}/{path}"]}]
            told = site.worker.ask_as(SUBMIT, "POST", f"/control/fetch/{session}", refs)
            assert told.status == 202
            ask = ("GET", f"/control/fetch/{session}")
            wait_for(lambda a=ask: site.worker.ask_as(READ, *a).status != 408, "a session")  # type: ignore[misc]  # the default binds now
            assert site.worker.ask_as(READ, *ask).status == expected
    finally:
        server.shutdown()
        server.server_close()
    assert site.worker.ask_as(READ, "GET", "/data/from-good").body == CONTENT
    assert site.worker.ask_as(SUBMIT, "DELETE", "/control/admin/pin/from-good").status == 200
    job = site.submit("from-good", command="wc -c")
    wait_for(lambda: site.job(job)["state"] == "completed", "the end of a job")


def test_a_worker_sent_to_its_master_again_keeps_working(site: Site) -> None:
    told = site.worker.ask_as(ADMIN, "POST", "/control/master/", {"master": site.cluster.url})
    assert told.status == 200
    done = site.cluster.home.run("ciel", "submit", "--", "echo", "hello")
    assert (done.returncode, done.stdout) == (0, "hello\n")


# --- slow connections -----------------------------------------------------------------------------

SLOW = 2000
GROWTH_MAX_BYTES = 200 << 20  # some 100 KiB for each


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < SLOW + 500:
        pytest.fail(f"this needs {SLOW + 500} open files, and {hard} are allowed (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, SLOW + 500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def begun(door: Door, words: str) -> str:
    return f"{words} HTTP/1.1\r\nHost: {door.netloc}\r\nAuthorization: Bearer {door.key_of(ADMIN)}"


def slow_ways(site: Site) -> list[tuple[Door, str]]:
    """List ways to be slow: unauthenticated connections that send nothing, or only a part; and
    authenticated ones that send no body, do not read the answer, or wait.
    """
    master, worker = site.master, site.worker
    ways = []
    for door in (master, worker):
        ways += [(door, ""), (door, "GET /healthz HTTP/1.1\r\nX-A: "), (door, begun(door, "GET /"))]
    return [
        *ways,
        (worker, begun(worker, "POST /control/data") + "\r\nContent-Length: 5000\r\n\r\nabc"),
        (worker, begun(worker, "GET /data/large") + "\r\n\r\n"),
        (worker, begun(worker, "GET /log/none?wait=1") + "\r\n\r\n"),
    ]


@pytest.mark.slow
def test_two_thousand_slow_connections_do_not_block_clients(site: Site, many_files: None) -> None:
    large = bytes(20 << 20)
    key = site.worker.key_of(SUBMIT)
    assert site.worker.ask("POST", "/control/data/large", key, large).status == 201
    pids = (site.cluster.master.pid, site.cluster.workers[0].pid)
    before = [descriptors_of(pid) for pid in pids]
    memory = [private_bytes(pid) for pid in pids]
    ways = slow_ways(site)
    slow = []
    try:
        for number in range(SLOW):
            door, words = ways[number % len(ways)]
            host, _, port = door.netloc.partition(":")
            slow.append(socket.create_connection((host, int(port)), 20))
            with suppress(OSError):  # disconnected already for newer connections
                slow[-1].sendall(words.encode())
        for door in (site.master, site.worker):
            assert door.ask_as(READ, "GET", "/healthz").status == 200
        done = site.cluster.home.run("ciel", "submit", "--", "echo", "hello")
        assert (done.returncode, done.stdout) == (0, "hello\n")
        growth = [private_bytes(pid) - size for pid, size in zip(pids, memory, strict=True)]
        assert max(growth) < GROWTH_MAX_BYTES
    finally:
        for connection in slow:
            connection.close()
    for pid, count in zip(pids, before, strict=True):
        wait_for(lambda p=pid, c=count: descriptors_of(p) <= c, "few descriptors")  # type: ignore[misc]  # the defaults bind now
