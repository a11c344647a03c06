"""Measures how long other clients wait while one user reads every page, list and metric.

The master has 10,000 jobs and a million tasks. Nearly all tasks wait for a task that takes a day.
One process requests all available information in sequence, over HTTP and as commands do. A second
process, the probe, repeatedly sends small requests to the master, and measures how long it waits
for each answer. Its longest wait during a request of the first process is an upper bound of the
delay that this request caused to other clients. Its longest wait while the first process is idle
shows what the host alone causes, since it runs other processes too.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.engine.many import longest_pause_s
from benchmarks.engine.programs import scene
from ciel.access.addresses import parse_url
from ciel.access.settings import MasterLocation
from ciel.client.client import Client
from ciel.client.errors import QueryError
from ciel.core.refs import Reference
from ciel.core.tasks import Mentions
from ciel.net.ticks import PAUSE_NOTED_S

JOBS = 10_000
TASKS_EACH = 90
TASKS_OF_ONE = 100_000
ROUNDS = 5
PROBED_EVERY_S = 0.002
QUIET_S = 1.0  # of each round, without requests
PATHS = (
    "/metrics",
    "/api/v1/status",
    "/api/v1/workers",
    "/api/v1/stores",
    "/api/v1/jobs",
    "/api/v1/jobs?limit=1000",
    "/api/v1/jobs/{job}",
    "/api/v1/jobs/{job}/tasks",
    "/api/v1/jobs/{job}/results",
    "/api/v1/objects",
    "/control/job/",
    "/control/worker/",
    "/control/browse/job/",
    "/control/browse/job/{job}",
)
QUESTIONS: tuple[tuple[str, Any], ...] = (
    ("status", None),
    ("jobs", {}),
    ("jobs", {"job": "{job}"}),
    ("job", {"job": "{job}"}),
    ("tasks", {"job": "{job}"}),
    ("tasks", {"job": "{job}", "state": "failed"}),
    ("tasks", {"job": "{job}", "elements": [1, 1_000_000_000, 7]}),
    ("task", {"job": "{job}", "task": "no such name"}),
    ("task", {"job": "{job}", "task": "77"}),
    ("graph", {"job": "{job}"}),
    ("results", {"job": "{job}"}),
    ("progress", {"job": "{job}"}),
    ("objects", {}),
)


def crowd(client: Client, jobs: int, each: int, of_one: int) -> str:
    """Fill a master; return the id of the job that has the most tasks."""

    def begin(name: str, count: int) -> str:
        job = client.job(name, detached=True)
        gate = job.run(["sleep", "86400"])
        waits: dict[str, Any] = {"args": {"inputs": [gate]}}
        refs: list[Reference] = [gate]
        for number in range(count - 1):
            refs += job.add("sync", waits, mentions=Mentions.INPUTS, name=str(number))
        job.want(refs)
        job.close()
        return job.id

    largest = begin("large", of_one)
    for number in range(jobs - 1):
        begin(f"job {number}", each)
        if number % 100 == 0:
            client.ask("workers")  # the master has received all tasks
    client.ask("workers")
    return largest


class Door:
    """A persistent connection to a master's HTTP side."""

    def __init__(self, location: MasterLocation) -> None:
        _, host, port = parse_url(location.url)
        self._connection = http.client.HTTPConnection(host, port, timeout=60)
        self._headers = {"Authorization": f"Bearer {location.key.text()}"}

    def get(self, path: str) -> tuple[int, int]:
        """Return the status and the size of the response."""
        self._connection.request("GET", path, headers=self._headers)
        reply = self._connection.getresponse()
        return reply.status, len(reply.read())


def everything(client: Client, job: str) -> Iterator[tuple[str, Callable[[], int]]]:
    """List all requests, each with a function that sends it.

    The function returns the size of the response, or 0 if the master does not serve the request.
    """
    door = Door(client.location)

    def page(path: str) -> int:
        status, size_bytes = door.get(path)
        if status >= 500:
            raise RuntimeError(f"the master answered {path} by status {status}")
        return size_bytes if status < 400 else 0

    def answer(topic: str, argument: Any) -> int:
        try:
            return len(json.dumps(client.ask(topic, argument)))
        except QueryError:
            return 1  # the master searched, and reported that there is none

    for path in PATHS:
        yield path, lambda path=path: page(path.format(job=job))  # type: ignore[misc]  # a default keeps this path
    for topic, pattern in QUESTIONS:
        asked = json.loads(json.dumps(pattern).replace("{job}", job))
        yield (
            f"{topic} {json.dumps(pattern)}",
            lambda topic=topic, asked=asked: answer(topic, asked),  # type: ignore[misc]  # as above
        )


def send_requests(access: str, job: str, rounds: int) -> None:
    """Send all requests, and print their times; runs as a separate process."""
    with Client(access=access) as client:
        things = list(everything(client, job))
        nothing = threading.Event()
        for _ in range(rounds):
            nothing.wait(QUIET_S)
            for name, ask in things:
                begun_s = time.monotonic()
                size_bytes = ask()
                print(json.dumps([name, begun_s, time.monotonic(), size_bytes]), flush=True)


def probe(location: MasterLocation, is_over: Callable[[], bool]) -> list[tuple[float, float]]:
    """Send requests until `is_over` returns true; return when each was sent and answered."""
    door = Door(location)
    nothing = threading.Event()
    times_s = []
    while not is_over():
        begun_s = time.monotonic()
        if door.get("/healthz")[0] != 200:
            raise RuntimeError("the master does not serve")
        times_s.append((begun_s, time.monotonic()))
        nothing.wait(PROBED_EVERY_S)
    return times_s


def waits(
    probed: list[tuple[float, float]], requests: list[tuple[str, float, float, int]]
) -> tuple[dict[str, float], float]:
    """Return the probe's longest wait during each kind of request, and without requests."""
    worst = dict.fromkeys((name for name, *_ in requests), 0.0)
    idle = 0.0
    place = 0
    for begun_s, ended_s in probed:
        while place < len(requests) and requests[place][2] < begun_s:
            place += 1
        met = place
        while met < len(requests) and requests[met][1] < ended_s:
            name = requests[met][0]
            worst[name] = max(worst[name], ended_s - begun_s)
            met += 1
        if met == place:
            idle = max(idle, ended_s - begun_s)
    return worst, idle


def measure(
    jobs: int = JOBS, each: int = TASKS_EACH, of_one: int = TASKS_OF_ONE, rounds: int = ROUNDS
) -> dict[str, float]:
    """Fill a master, send the requests, and return the longest waits; print one line per kind."""
    with scene() as made:
        access = str(made.access_file)
        with Client(access=access, environ=made.environ) as client:
            begun_s = time.monotonic()
            job = crowd(client, jobs, each, of_one)
            fill_s = time.monotonic() - begun_s
            location = client.location
        filled_pause_s = longest_pause_s(made.directory)
        command = [sys.executable, "-m", "benchmarks.engine.looking", access, job, str(rounds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=made.environ) as sender:
            assert sender.stdout is not None
            reading = ThreadPoolExecutor(1).submit(sender.stdout.read)
            probed = probe(location, reading.done)
        requests = [tuple(json.loads(line)) for line in reading.result().splitlines()]
        if sender.returncode:
            raise RuntimeError("the process that sent the requests has failed")
        made.down()
        pause_s = longest_pause_s(made.directory)
    worst, idle_s = waits(probed, requests)
    _print_waits(worst, requests)
    longest_s = max(worst.values())
    took = {
        name: statistics.median(end - begin for what, begin, end, _ in requests if what == name)
        for name in worst
    }
    return {
        "longest_wait_s": longest_s,
        "idle_wait_s": idle_s,
        "own_wait_s": max(0.0, longest_s - idle_s),
        "metrics_s": took["/metrics"],
        "pause_s": pause_s if pause_s > max(filled_pause_s, PAUSE_NOTED_S) else 0.0,
        "filled_pause_s": filled_pause_s,
        "filled_per_s": ((jobs - 1) * each + of_one) / fill_s,
    }


def _print_waits(worst: dict[str, float], requests: list[Any]) -> None:
    sizes = {name: size for name, _, _, size in requests}
    took = {name: max(end - begin for what, begin, end, _ in requests if what == name)
            for name in worst}  # fmt: skip
    for name in sorted(worst, key=lambda name: -worst[name]):
        served = f"{sizes[name]:>10,} bytes" if sizes[name] else "not served"
        text = (
            f"{name:58} probe waited {worst[name] * 1e3:7.1f} ms, request took {took[name]:6.3f} s"
        )
        print(text, served, file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:] and not sys.argv[1].isdecimal():
        send_requests(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        for key, value in measure(*map(int, sys.argv[1:])).items():
            print(f"{key:16} {value:12.4f}")
