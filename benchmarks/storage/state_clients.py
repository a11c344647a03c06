"""Measures key-value bases by the number of clients (KVB-4): latency and throughput.

Each client is a process that reads or updates rows by `ciel.state`, and waits for each reply. Keys
follow Zipf's law with theta = 0.8. All bases hand writes to the operating system before they
acknowledge them. The benchmark rewrites the plot and the tables of docs/measured/state.md.

A base in the memory of one process is left out, since other processes cannot use it.

    python -m benchmarks.storage.state_clients
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import platform
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import log10
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from benchmarks.engine.control import cpu_s
from benchmarks.plots import HEIGHT, WIDTH, line_chart, table, write_down
from ciel.access.keys import Key
from ciel.state.keyvalues import KeyValues
from ciel.state.opening import open_kv

sys.path.append(str(Path(__file__).parents[2] / "tests" / "lib"))  # as for pytest

from ciel_tests.etcd_server import ETCD, etcd_server
from ciel_tests.kv_daemons import KvDaemon
from ciel_tests.redis_server import REDIS, redis_server

CLIENTS: Final = (1, 2, 4, 8, 16, 32)
KINDS: Final = ("reads", "updates")
THETA: Final = 0.8
KEYS: Final = 20_000
VALUE: Final = "x" * 100
ROUNDS: Final = 3
SECONDS: Final = 2.0
WARM_UP: Final = 50
"""Each client connects and carries out so many operations before all begin."""
LOADED_TOGETHER: Final = 100
"""etcd accepts at most 120 writes together."""
START_S: Final = 60.0
POWERS: Final = ("1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s")
"""The lines of the plot, by the logarithm of a latency in us."""
_MARK: Final = re.compile(r"(text-anchor='end'[^>]*>)(\d)<")
_SCATTER: Final = 7919
"""Keys that are next to each other in their order differ in how often they are used."""


class Served(NamedTuple):
    """A base: its URL, the key of its clients, and its process; 0 if it runs in the client."""

    url: str
    key: Key | None = None
    pid: int = 0


class Point(NamedTuple):
    """One measurement. The CPU times are of one operation, in a client and in the server."""

    per_s: float
    mean_us: float
    p99_us: float
    client_cpu_us: float
    server_cpu_us: float


class _Party(Protocol):
    """A barrier of processes."""

    def wait(self, timeout: float | None = None) -> int: ...


Where = tuple[str, str, int]
"""A base, a kind of operation, and a number of clients."""
Points = Mapping[Where, Point]


# --- servers --------------------------------------------------------------------------------------


@contextmanager
def redis(where: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Run a redis-server that logs its writes; yield its port and its process."""
    where.mkdir()
    before = _children()
    with redis_server(where, "--appendonly", "yes", *options) as port:
        yield port, (_children() - before).pop()


@contextmanager
def etcd(where: Path) -> Iterator[tuple[int, int]]:
    """Run an etcd that does not wait for the disk; yield its port and its process."""
    where.mkdir()
    before = _children()
    with etcd_server(where) as port:
        yield port, (_children() - before).pop()


def _children() -> set[int]:
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(pid) for pid in found.split()}


def machine() -> str:
    """Describe the machine, for a page."""
    load = os.getloadavg()[0]
    return (
        f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, "
        f"load average before: {load:.1f}"
    )


@contextmanager
def bases(where: Path) -> Iterator[dict[str, Served]]:
    """Run all bases that are installed here, with the same durability."""
    with ExitStack() as stack:
        found = {"LMDB": Served(f"lmdb:{where}/lmdb?sync=off")}
        daemon = stack.enter_context(KvDaemon(where / "ciel-kv", "--sync", "interval"))
        url = f"ciel-kv://127.0.0.1:{daemon.port}"
        found["ciel-kv"] = Served(url, daemon.key, daemon.pid)
        if REDIS is not None:
            port, pid = stack.enter_context(redis(where / "redis"))
            found["Redis"] = Served(f"redis://127.0.0.1:{port}", None, pid)
        if ETCD is not None:
            port, pid = stack.enter_context(etcd(where / "etcd"))
            found["etcd"] = Served(f"etcd://127.0.0.1:{port}", None, pid)
        yield found


# --- clients --------------------------------------------------------------------------------------


def _load(served: Served) -> None:
    with _open(served) as kv:
        for first in range(0, KEYS, LOADED_TOGETHER):
            kv.bulk_put((_key(place), VALUE) for place in range(first, first + LOADED_TOGETHER))


def _open(served: Served) -> KeyValues:
    return open_kv(served.url, "bench", served.key)


def _key(place: int) -> str:
    """Return the key of a place in the order of how often keys are used."""
    return f"user{place * _SCATTER % KEYS:08d}"


def zipf_keys(seed: int) -> Iterator[str]:
    """Yield keys; the n-th most frequent one has a probability proportional to n ** -THETA."""
    weights = list(itertools.accumulate((place + 1) ** -THETA for place in range(KEYS)))
    chosen = random.Random(seed)
    while True:
        for place in chosen.choices(range(KEYS), cum_weights=weights, k=1000):
            yield _key(place)


class _Given(NamedTuple):
    """The processes of a pool inherit this, since a key cannot be sent to them."""

    served: Served
    party: _Party


_given: _Given | None = None


def _inherit(given: _Given) -> None:
    global _given
    _given = given


def _client(kind: str, seed: int) -> tuple[array[int], float]:
    """Return the latency of each operation, in ns, and the CPU time of all."""
    assert _given is not None
    keys, latencies = zipf_keys(seed), array("Q")
    clock = time.perf_counter_ns
    with _open(_given.served) as kv:
        operate: Callable[[str], object] = (
            kv.get if kind == "reads" else lambda key: kv.update(key, VALUE)
        )
        for key in itertools.islice(keys, WARM_UP):
            operate(key)
        _given.party.wait(START_S)
        cpu_before_s = time.process_time()
        before = clock()
        until = before + int(SECONDS * 1e9)
        while before < until:
            key = next(keys)
            before = clock()
            operate(key)
            latencies.append(clock() - before)
        return latencies, time.process_time() - cpu_before_s


def _measure(served: Served, kind: str, clients: int, number: int) -> Point:
    processes = multiprocessing.get_context("fork")
    given = _Given(served, processes.Barrier(clients))
    with processes.Pool(clients, _inherit, (given,)) as pool:
        before_s = _cpu_s(served)
        work = [(kind, number * max(CLIENTS) + client) for client in range(clients)]
        found = pool.starmap(_client, work, chunksize=1)
        server_s = _cpu_s(served) - before_s
    latencies = sorted(itertools.chain.from_iterable(each for each, _ in found))
    count = len(latencies)
    return Point(
        count / SECONDS,
        sum(latencies) / count / 1e3,
        latencies[int(count * 0.99)] / 1e3,
        sum(cpu for _, cpu in found) / count * 1e6,
        server_s / (count + clients * WARM_UP) * 1e6,
    )


def _cpu_s(served: Served) -> float:
    return cpu_s(served.pid) if served.pid else 0.0


def measured() -> dict[Where, Point]:
    """Measure all bases in turns; return the medians of the rounds."""
    runs: dict[Where, list[Point]] = {}
    place = Path(tempfile.mkdtemp(prefix="ciel-bench-state-"))
    try:
        with bases(place) as found:
            for served in found.values():
                _load(served)
            for number, clients, kind in itertools.product(range(ROUNDS), CLIENTS, KINDS):
                for name, served in found.items():
                    point = _measure(served, kind, clients, number)
                    runs.setdefault((name, kind, clients), []).append(point)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {
        where: Point(*map(statistics.median, zip(*points, strict=True)))
        for where, points in runs.items()
    }


# --- the page -------------------------------------------------------------------------------------


def _names(points: Points) -> list[str]:
    return list(dict.fromkeys(name for name, _, _ in points))


def _rates(points: Points, kind: str) -> str:
    names = _names(points)
    rows = [
        [str(clients), *(_cell(points[name, kind, clients]) for name in names)]
        for clients in CLIENTS
    ]
    return table(["clients", *names], rows)


def _cell(point: Point) -> str:
    return f"{_short(point.per_s)} /s; {_short(point.mean_us)}, {_short(point.p99_us)} us"


def _short(value: float) -> str:
    """Return a number with two or three digits that count."""
    digits = max(0, len(str(int(value))) - 3)
    return f"{value:.1f}" if value < 10 else f"{round(value, -digits):,.0f}"


def _cpu(points: Points) -> str:
    """Return the CPU time of an operation with 16 clients, in the client and in the server."""
    names = _names(points)
    rows = [
        [f"{kind}, {side}",
         *(_short(getattr(points[name, kind, 16], f"{side}_cpu_us")) for name in names)]
        for kind in KINDS
        for side in ("client", "server")
    ]  # fmt: skip
    return table(["us", *names], rows)


def _chart(points: Points) -> str:
    """Draw the mean latencies of each kind in a chart, one below the other, by powers of ten."""
    drawn = []
    for place, kind in enumerate(KINDS):
        series = {
            name: [(clients, log10(points[name, kind, clients].mean_us)) for clients in CLIENTS]
            for name in _names(points)
        }
        chart = line_chart(f"Mean latency of {kind}", "clients", "", series, by_doubling=True)
        spot = f"<svg y='{place * HEIGHT}' width='{WIDTH}' height='{HEIGHT}' "
        marked = _MARK.sub(lambda mark: f"{mark[1]}{POWERS[int(mark[2])]}<", chart)
        drawn.append(marked.replace("<svg ", spot, 1))
    size = f"viewBox='0 0 {WIDTH} {HEIGHT * len(KINDS)}'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size}>\n{''.join(drawn)}</svg>\n"


def show(points: Points, about: str) -> None:
    """Write the tables and the plot of the page."""
    text = [f"{about}. Rate; mean latency, 99th percentile:"]
    for kind in KINDS:
        text += [f"**{kind.capitalize()}**", _rates(points, kind)]
    text += ["![Mean latency by number of clients](state-clients.svg)"]
    text += ["CPU time of an operation with 16 clients:", _cpu(points)]
    write_down("state", "clients", "\n\n".join(text), {"state-clients": _chart(points)})


def measure() -> dict[str, float]:
    """Measure, write the page, and return the figures."""
    about = machine()
    points = measured()
    show(points, about)
    found: dict[str, Any] = {}
    for (name, kind, clients), point in points.items():
        word = name.lower().replace("-", "")
        for field, value in point._asdict().items():
            found[f"{word}_{kind}_{clients}_{field}"] = value
    return found


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
