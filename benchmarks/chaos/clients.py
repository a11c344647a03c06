"""Rows about clients: answers that get lost, and thousands of slow connections."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import statistics
import time
from contextlib import ExitStack, suppress
from typing import Any, Final

from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.proxy import Proxy
from benchmarks.chaos.rows import Figure, Findings, Setting, row
from ciel.access.keys import Key, Role
from ciel.testing.homes import private_bytes

SLOW: Final = 2000
CALLS: Final = 300
JOBS: Final = 1000


class Api:
    """Sends requests to the HTTP interface of a master, one on each connection."""

    def __init__(self, cluster: Cluster) -> None:
        access = cluster.access()
        host, _, port = access["url"].removeprefix("http://").partition(":")
        self.address = (host, int(port))
        self._key = Key.from_text(access["key"])

    def bearer(self, role: Role) -> str:
        key = self._key.derive(role)
        assert key is not None
        return f"Bearer {key.text()}"

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        role: Role | None = Role.SUBMIT,
        address: tuple[str, int] | None = None,
        timeout_s: float = 60.0,
        **headers: str,
    ) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer."""
        host, port = address or self.address
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if role is not None:
            sent["Authorization"] = self.bearer(role)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        """Return the JSON value at a path."""
        return json.loads(self.call("GET", path, role=Role.READ)[1])


@row(
    "M9",
    "the answer to each of 1,000 submitted jobs gets lost, and the client repeats the request",
    "the repeated request has the same key, and gets the job of the first",
    "1,000 jobs, each of which ran once",
)
def _lost_answers(setting: Setting) -> Findings:
    jobs = setting.count(JOBS, 20)
    with Cluster.running(setting) as cluster:
        api = Api(cluster)
        runs = cluster.home.path / "runs"
        before = api.json("/api/v1/jobs")["total"]
        found, same = set(), 0
        with Proxy(api.address) as proxy:
            for number in range(jobs):
                script = f"echo {number} >>{runs}"
                args = {"args": {"command_line": ["sh", "-c", script], "inputs": []}}
                task = {"name": "a", "executor": "stdinout", "arguments": args}
                body = json.dumps({"tasks": [task]}).encode()
                answers = []
                for loses_reply in (True, False, False):
                    proxy.loses_replies = loses_reply
                    with suppress(OSError, http.client.HTTPException):
                        answers.append(
                            api.call(
                                "POST", "/api/v1/jobs", body, address=proxy.address,
                                Content_Type="application/json", Idempotency_Key=f"key{number}",
                            )
                        )  # fmt: skip
                ids = {json.loads(answer)["job"]["id"] for _, answer in answers}
                same += len(ids) == 1
                found |= ids
            lost = proxy.lost_count
        for job in found:
            api.call("GET", f"/api/v1/jobs/{job}?wait_s=100", role=Role.READ)
        total = api.json("/api/v1/jobs")["total"] - before
        ran = runs.read_text().split()
    yield Figure("answers lost", lost, "", jobs, at_most=False)
    yield Figure("jobs beyond one for each key", total - jobs, "", 0)
    yield Figure("keys with one job", same, "", jobs, at_most=False)
    yield Figure("programs that ran twice", len(ran) - len(set(ran)), "", 0)
    yield Figure("programs that ran", len(set(ran)), "", jobs, at_most=False)


@row(
    "M12",
    "2,000 connections send one byte of a request header now and then",
    "others are served; old silent connections are closed when there are too many",
    "99 % of calls within 3 x; ≤ 30 KB of memory for each",
)
def _slow_connections(setting: Setting) -> Findings:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    count = min(setting.count(SLOW, 100), limit // 2)
    with Cluster.running(setting, 1) as cluster:
        api, pid = Api(cluster), cluster.daemons["master"].pid
        calls = setting.count(CALLS, 50)
        call_times(api, calls)
        before = call_times(api, calls)
        memory = private_bytes(pid)
        with ExitStack() as stack:
            slow = [
                stack.enter_context(socket.create_connection(api.address, 60)) for _ in range(count)
            ]
            drip(slow, b"GET /healthz HTTP/1.1\r\nX-")
            drip(slow, b"A")
            beside = call_times(api, calls)
            drip(slow, b"B")
            grown = private_bytes(pid) - memory
        after = call_times(api, calls)
    worst = statistics.quantiles(beside, n=100)[98] / statistics.quantiles(before, n=100)[98]
    yield Figure("connections", count, "", setting.count(SLOW, 100), at_most=False)
    yield Figure("99 % of calls, to before", worst, "x", 3, digits=2)
    yield Figure("memory for each", grown / count / 1024, "KiB", 30, digits=1)
    later = statistics.median(after) / statistics.median(before)
    yield Figure("median later, to before", later, "x", 1.5, digits=2)


def call_times(api: Api, count: int) -> list[float]:
    """Return the times of calls, each on a new connection."""
    times = []
    for _ in range(count):
        started_s = time.perf_counter()
        status, _ = api.call("GET", "/api/v1/jobs", role=Role.READ)
        assert status == 200, status
        times.append(time.perf_counter() - started_s)
    return times


def drip(connections: list[socket.socket], data: bytes) -> None:
    """Send some bytes on each connection that the daemon has not closed."""
    for connection in connections:
        with suppress(OSError):
            connection.sendall(data)
