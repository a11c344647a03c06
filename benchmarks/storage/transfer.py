"""Compares the HTTP transfer of a large object between two workers with a plain transfer.

The first variant uses a worker's HTTP server, fetcher and store: tickets, a checksum over every
byte, reserved space, a commit. In the plain variant, Twisted serves a file, and pycurl writes it to
a file, both with large buffers. Both variants use the same tmpfs on both ends, in alternation. The
additional cost of the first is mostly the checksum and the reserved space, some 50 ms each for 1
GiB. A third variant fetches into a store in memory that recycles freed memory.
"""

# Most of twisted.web has no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pycurl
from twisted.protocols.basic import LineReceiver
from twisted.web.server import Site
from twisted.web.static import File, NoRangeStaticProducer

from ciel.core.ids import ObjectId
from ciel.core.plans import HttpPlan
from ciel.core.refs import Concrete
from ciel.net.ticks import use_monotonic_clock
from ciel.shm.store import open_shm
from ciel.storage.files import open_disk
from ciel.testing.data_worker import DataWorker
from ciel.worker.state.orders import FetchObject

SIZE_BYTES = 1 << 30
PAIRS = 5
CHUNK_BYTES = 1 << 20
OBJECT = ObjectId("large")


@dataclass(frozen=True, slots=True)
class Measurement:
    """GB/s, as medians; `ratio` is the median of the ratios of pairs.

    CPU time is in seconds per GiB, of both ends together.
    """

    ours_gb_per_s: float
    shm_gb_per_s: float
    bare_gb_per_s: float
    ratio: float
    cpu_s_ours: float
    cpu_s_bare: float


class Part:
    """One end of a transfer, in a separate process.

    It prints a line when it is ready, and a line for each line that it receives.
    """

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "benchmarks.storage.transfer", *words]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ready = self._heard()

    def ask(self, line: str) -> list[float]:
        """Send a line to the process; return the time of the transfer and its CPU time so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return [float(word) for word in self._heard().split()]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _heard(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process of this benchmark has ended before its transfer")
        return line.strip()


def _say(*words: object) -> None:
    print(*words, flush=True)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# --- the parts ------------------------------------------------------------------------------------


class Lines(LineReceiver):
    """The lines that a process receives; an empty line only requests the CPU time."""

    delimiter = b"\n"

    def __init__(self, told: Callable[[str], object]) -> None:
        self._told = told

    def lineReceived(self, line: bytes) -> None:  # noqa: N802  # Twisted's name
        if line:
            self._told(line.decode())
        else:
            _say(0, _cpu_s())


def work(directory: str, store: str = "disk") -> None:
    """Run as a worker: print the address, and fetch for each line `HOLDER SIZE`."""
    from twisted.internet import reactor as installed
    from twisted.internet import stdio

    reactor: Any = installed
    use_monotonic_clock(reactor)

    def run(call: Any, *args: Any, **options: Any) -> Any:
        return call(*args, **options)

    run.reactor = reactor  # type: ignore[attr-defined]  # like the one of the tests

    class Worker(DataWorker):
        begun_s = 0.0

        def fetched(self, object_id: ObjectId, size_bytes: int) -> None:
            _say(time.perf_counter() - self.begun_s, _cpu_s())
            self.store.delete(object_id)

        def fetch_failed(
            self, object_id: ObjectId, losses: object, details: str, *, unreached: object = (),
            lacks_room: bool = False,
        ) -> None:  # fmt: skip
            raise SystemExit(details)

    opened = open_shm({}, Path(directory)) if store == "shm" else open_disk({}, Path(directory))
    worker = Worker(run, opened)

    def told(line: str) -> None:
        holder, size = line.split()
        ref = Concrete(OBJECT, int(size), frozenset((holder,)))
        worker.begun_s = time.perf_counter()
        worker.fetcher.fetch(FetchObject(ref, (HttpPlan(holder),)))

    stdio.StandardIO(Lines(told))
    _say(worker.netloc)
    reactor.run()
    opened.close()


def serve(directory: str) -> None:
    """Serve files as Twisted does."""
    from twisted.internet import reactor as installed
    from twisted.internet import stdio

    reactor: Any = installed
    NoRangeStaticProducer.bufferSize = CHUNK_BYTES
    stdio.StandardIO(Lines(_say))
    site: Any = Site(File(directory))
    port = reactor.listenTCP(0, site, interface="127.0.0.1")
    _say(f"127.0.0.1:{port.getHost().port}")
    reactor.run()


def load(directory: str) -> None:
    """Download the URL of each line into a file."""
    _say("ready")
    curl = pycurl.Curl()
    for line in sys.stdin:
        if not line.strip():
            _say(0, _cpu_s())
            continue
        path = Path(directory) / "copy"
        begun_s = time.perf_counter()
        with open(path, "wb", buffering=0) as file:
            curl.setopt(pycurl.URL, line.strip())
            curl.setopt(pycurl.BUFFERSIZE, CHUNK_BYTES)
            curl.setopt(pycurl.WRITEFUNCTION, file.write)
            curl.perform()
        _say(time.perf_counter() - begun_s, _cpu_s())
        path.unlink()


# --- together -------------------------------------------------------------------------------------


def _fill(directory: Path, size_bytes: int) -> None:
    piece = os.urandom(CHUNK_BYTES)
    with open_disk({}, directory) as store, store.begin(OBJECT) as writer:
        for _ in range(size_bytes // CHUNK_BYTES):
            writer.write(piece)
        writer.commit()


def measure(size_bytes: int = SIZE_BYTES, pairs: int = PAIRS) -> Measurement:
    """Measure both in alternation, so that changes of the machine's speed affect both."""
    with tempfile.TemporaryDirectory(prefix="bench-transfer-", dir="/dev/shm") as name:
        held = Path(name) / "held"
        _fill(held, size_bytes)
        parts = [
            Part("work", str(held)), Part("work", f"{name}/own"),
            Part("serve", str(held / "objects")), Part("load", name),
            Part("work", f"{name}/spilt", "shm"),
        ]  # fmt: skip
        try:
            return _measure(parts, size_bytes, pairs)
        finally:
            for part in parts:
                part.close()


def _measure(parts: list[Part], size_bytes: int, pairs: int) -> Measurement:
    holder, fetcher, server, client, in_memory = parts
    ours, bare, into_memory = [], [], []
    cpu_s = {"ours": 0.0, "bare": 0.0}
    for number in range(pairs + 1):
        before = [part.ask("")[1] for part in parts]
        ours_s = fetcher.ask(f"{holder.ready} {size_bytes}")[0]
        bare_s = client.ask(f"http://{server.ready}/{OBJECT}")[0]
        used = [part.ask("")[1] - had for part, had in zip(parts, before, strict=True)]
        into_memory_s = in_memory.ask(f"{holder.ready} {size_bytes}")[0]
        if number:  # the first pair warms up both
            ours.append(ours_s)
            bare.append(bare_s)
            into_memory.append(into_memory_s)
            cpu_s["ours"] += used[0] + used[1]
            cpu_s["bare"] += used[2] + used[3]
    gib = size_bytes * pairs / (1 << 30)
    return Measurement(
        ours_gb_per_s=size_bytes / statistics.median(ours) / 1e9,
        shm_gb_per_s=size_bytes / statistics.median(into_memory) / 1e9,
        bare_gb_per_s=size_bytes / statistics.median(bare) / 1e9,
        ratio=statistics.median(theirs / our for our, theirs in zip(ours, bare, strict=True)),
        cpu_s_ours=cpu_s["ours"] / gib,
        cpu_s_bare=cpu_s["bare"] / gib,
    )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        {"work": work, "serve": serve, "load": load}[sys.argv[1]](*sys.argv[2:])
    else:
        print(measure(*[int(word) << 20 for word in sys.argv[1:]]))
