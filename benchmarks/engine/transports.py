"""Measures the boundaries of the tables in `ciel.core.transports`, and whether the tables agree.

- Sockets against rings: a chain of no-ops through the master, with idle cores and with a process
  that computes on each core. Rings poll as long as they do by default on this machine. Clusters
  with both transports run at once, and alternate.
- Links, copies and HTTP, by the size of the object: a worker fetches an object from another one.
  Its store is on the same file system (link), on another one (copy), or cannot be reached (HTTP).

Expected cost of fetches: a link takes one request and one system call, whatever the size. A copy
adds the time to copy the bytes once. HTTP copies them three times, and computes a checksum. So the
order is always link, copy, HTTP, and the differences grow with the size.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.plots import line_chart, table, write_down, write_figures
from benchmarks.storage.ring import chain
from ciel.client.client import Client
from ciel.client.cluster import LocalCluster
from ciel.core.ids import ObjectId
from ciel.core.plans import HttpPlan, LinkPlan
from ciel.core.refs import Concrete
from ciel.core.transports import (
    AUTO,
    COPY,
    HTTP,
    LINK,
    RING,
    SOCKET,
    ControlSituation,
    End,
    ObjectSituation,
    Store,
    control_choice,
    object_choice,
)
from ciel.net.loop import install
from ciel.net.ticks import use_monotonic_clock
from ciel.storage.files import open_disk

ROUNDS = 15
FETCHES = 41
SIZES_BYTES = tuple(1 << n for n in range(10, 28, 2))
NOISE = 1.1
"""Ways whose times differ by less count as equal: no choice between them is wrong."""
COMPUTE = "while True: pass"


# --- sockets against rings ------------------------------------------------------------------------


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep so many cores busy."""
    processes = [subprocess.Popen([sys.executable, "-c", COMPUTE]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def hop_us() -> dict[str, dict[str, float]]:
    """Return the time of a hop, in microseconds, over both transports: with idle and busy cores."""
    found: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        clients = {}
        for way in (SOCKET, RING):
            options = ("--channel", way)
            cluster = stack.enter_context(
                LocalCluster(workers=1, slots=1, delegates=False, switches=options)
            )
            clients[way] = stack.enter_context(Client(cluster))
        for name, busy in (("idle", 0), ("busy", len(os.sched_getaffinity(0)))):
            times: dict[str, list[float]] = {SOCKET: [], RING: []}
            with busy_cores(busy):
                for number in range(ROUNDS + 1):
                    for way in sorted(clients, reverse=bool(number % 2)):
                        spent_s = chain(clients[way])
                        times[way] += [spent_s] if number else []  # the first is a warm-up
            found[name] = {way: statistics.median(each) * 1e6 for way, each in times.items()}
    return found


def chosen_channel() -> str:
    """Return what the table chooses for two daemons on this machine."""
    end = End(AUTO, (RING,), len(os.sched_getaffinity(0)))
    return control_choice(ControlSituation(end, end, is_local=True)).way


# --- links, copies and HTTP -----------------------------------------------------------------------


class Fetches:
    """A worker's data plane that has objects, and workers that fetch them, each in its way."""

    def __init__(self, run: Any, path: Path, memory: Path) -> None:
        from ciel.testing.data_worker import DataWorker

        stores = {
            "holder": path / "holder", LINK: path / "link", COPY: memory / "copy",
            HTTP: memory / "http",
        }  # fmt: skip
        self.workers = {
            name: DataWorker(run, open_disk({}, place / "store"), None if name == HTTP else place)
            for name, place in stores.items()
        }
        self.holder = self.workers.pop("holder")

    def put(self, object_id: ObjectId, size_bytes: int) -> Concrete:
        with self.holder.store.begin(object_id) as writer:
            for left in range(size_bytes, 0, -(1 << 20)):
                writer.write(os.urandom(min(left, 1 << 20)))
            writer.commit()
        return Concrete(object_id, size_bytes, frozenset((self.holder.netloc,)))

    def fetch_s(self, way: str, ref: Concrete) -> float:
        """Fetch an object; return the seconds that it took."""
        worker, netloc = self.workers[way], self.holder.netloc
        plan = HttpPlan(netloc) if way == HTTP else LinkPlan(netloc)
        begun_s = time.perf_counter()
        found = worker.fetch(ref, plan)
        spent_s = time.perf_counter() - begun_s
        if found != (ref.id, ref.size_bytes):
            raise RuntimeError(f"{way}: {found}")
        worker.store.delete(ref.id)
        return spent_s

    def close(self) -> None:
        for worker in (*self.workers.values(), self.holder):
            worker.leave()
            worker.store.close()


@contextmanager
def in_reactor() -> Iterator[Any]:
    """Run a reactor in a thread; provide what makes calls there."""
    install()
    from twisted.internet import reactor as installed
    from twisted.internet.threads import blockingCallFromThread

    reactor: Any = installed
    use_monotonic_clock(reactor)

    def run(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return blockingCallFromThread(reactor, call, *args, **options)

    run.reactor = reactor  # type: ignore[attr-defined]  # like the one of the tests
    thread = threading.Thread(target=reactor.run, args=(False,), daemon=True)
    thread.start()
    try:
        yield run
    finally:
        reactor.callFromThread(reactor.stop)
        thread.join()


def fetch_ms() -> dict[str, dict[int, float]]:
    """Return the time to fetch an object, in milliseconds, by way and size.

    A separate process measures it, because a process can run only one reactor.
    """
    sizes = [str(size_bytes) for size_bytes in SIZES_BYTES]
    command = [sys.executable, "-m", "benchmarks.engine.transports", str(FETCHES), *sizes]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[float]] = json.loads(printed)
    return {way: dict(zip(SIZES_BYTES, each, strict=True)) for way, each in found.items()}


def timed_fetches(count: int, sizes_bytes: Sequence[int]) -> dict[str, list[float]]:
    """Fetch an object of each size by each way, so many times; return medians in milliseconds."""
    found: dict[str, list[float]] = {LINK: [], COPY: [], HTTP: []}
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-ways-")))
        memory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-ways-", dir="/dev/shm"))
        )
        run = stack.enter_context(in_reactor())
        fetches = stack.enter_context(closing(Fetches(run, path, memory)))
        for size_bytes in sizes_bytes:
            ref = fetches.put(ObjectId(f"of-{size_bytes}"), size_bytes)
            times: dict[str, list[float]] = {way: [] for way in found}
            for number in range(count + 1):
                for way, each in times.items():
                    spent_s = fetches.fetch_s(way, ref)
                    each += [spent_s] if number else []  # the first is a warm-up
            for way, each in times.items():
                found[way].append(statistics.median(each) * 1e3)
            fetches.holder.store.delete(ref.id)
    return found


def chosen_ways(size_bytes: int) -> dict[str, str]:
    """Return what the table chooses where each way is the best that is possible."""
    here = Store("host", 0, ("files:1",))
    others = {
        LINK: here, COPY: here._replace(places=("files:2",)), HTTP: here._replace(places=()),
    }  # fmt: skip
    return {
        best: object_choice(ObjectSituation(other, here, size_bytes)).way
        for best, other in others.items()
    }


# --- together -------------------------------------------------------------------------------------


def agreements(
    hops: Mapping[str, Mapping[str, float]], fetches: Mapping[str, Mapping[int, float]]
) -> dict[str, float]:
    """Return for each boundary whether the choice is the fastest way, or equal to it: 1 or 0."""
    way = chosen_channel()
    found = {
        f"agrees_{name}": float(us[way] <= NOISE * min(us.values())) for name, us in hops.items()
    }
    ways = [LINK, COPY, HTTP]
    for number, best in enumerate(ways):
        possible = ways[number:]  # where a link is possible, so are the slower ways
        found[f"agrees_{best}"] = float(
            all(
                fetches[chosen_ways(size)[best]][size]
                <= NOISE * min(fetches[way][size] for way in possible)
                for size in SIZES_BYTES
            )
        )
    return found


def in_prose(
    hops: Mapping[str, Mapping[str, float]], agreed: Mapping[str, float]
) -> dict[str, str]:
    """Return the figures in the prose of the page."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "channel": chosen_channel(),
        "idle": f"{hops['idle'][RING] / hops['idle'][SOCKET]:.2f}",
        "busy": f"{hops['busy'][RING] / hops['busy'][SOCKET]:.2f}",
        **{name: "yes" if value else "no" for name, value in agreed.items()},
    }


def _show(
    hops: Mapping[str, Mapping[str, float]], fetches: Mapping[str, Mapping[int, float]]
) -> None:
    rows = [[name, *(f"{us[way]:.0f}" for way in (SOCKET, RING))] for name, us in hops.items()]
    write_down("transports", "hops", table(["cores", SOCKET, RING], rows), {})
    ways = (LINK, COPY, HTTP)
    sizes = [[f"{size:,}", *(f"{fetches[way][size]:.2f}" for way in ways)] for size in SIZES_BYTES]
    chart = line_chart(
        "fetching an object", "KiB", "milliseconds",
        {way: [(size / 1024, ms) for size, ms in fetches[way].items() if size <= 1 << 24]
         for way in ways},
        by_doubling=True,
    )  # fmt: skip
    write_down("transports", "fetches", table(["bytes", *ways], sizes), {"transports": chart})


def measure() -> dict[str, float]:
    """Measure both, write the page, and return times, ratios, and whether the tables agree."""
    hops, fetches = hop_us(), fetch_ms()
    agreed = agreements(hops, fetches)
    _show(hops, fetches)
    write_figures("transports", in_prose(hops, agreed))
    found = {f"hop_us_{name}_{way}": us for name, ways in hops.items() for way, us in ways.items()}
    found |= {f"ring_to_socket_{name}": us[RING] / us[SOCKET] for name, us in hops.items()}
    for way, by_size in fetches.items():
        found |= {f"fetch_ms_{way}_{size}": ms for size, ms in by_size.items()}
    return found | agreed


if __name__ == "__main__":
    if len(sys.argv) > 1:
        count, *sizes = map(int, sys.argv[1:])
        print(json.dumps(timed_fetches(count, sizes)))
    else:
        for name, value in measure().items():
            print(f"{name:28} {value:12.3f}")
