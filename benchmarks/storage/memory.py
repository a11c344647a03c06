"""Measures remote memory: a volume on two memory servers, against nbdkit's own memory (NET-7).

fio reads and writes both over NBD and a UNIX socket, in turns. The CPU time of a page has three
steps: the plug-in's code in nbdkit (client), the system calls of nbdkit and of the server (wire),
and the server's code (server). For nbdkit they are the difference to nbdkit with its own memory.
The comment in `ciel/memory/server/server.h` states their expected cost.

`direct` reads without NBD and nbdkit, by the library in C, over a UNIX socket and over TCP.

    python -m benchmarks.storage.memory [KIND ...]
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.engine.control import TICKS_PER_S
from benchmarks.plots import bar_chart, table, write_down
from ciel.memory import local
from ciel.memory.page_server import EXTENT_BYTES, TOKEN_BYTES, Holding, PageServer, Role
from ciel.memory.space import Space
from ciel.memory.volumes import Place
from ciel.testing.homes import Home, wait_for
from ciel.testing.memory.cluster import MemoryCluster

SIZE_MIB: Final = 256
ROUNDS: Final = 3
SECONDS: Final = 4
PAGE: Final = 4096
KINDS: Final = {
    "latency": ("randread", "4k", 1),
    "deep": ("randread", "4k", 16),
    "reads": ("read", "1M", 4),
    "writes": ("write", "1M", 4),
}
TITLES: Final = {
    "latency": "reads of 4 KiB, depth 1",
    "deep": "reads of 4 KiB, depth 16",
    "reads": "reads of 1 MiB",
    "writes": "writes of 1 MiB",
}
DIRECT: Final = "direct"
DIRECT_ROUNDS: Final = 25
DIRECT_READS: Final = 1_500
DIRECT_EXTENTS: Final = 16


class Cpu(NamedTuple):
    """The CPU time of processes, in seconds."""

    user: float
    system: float

    @classmethod
    def of(cls, pids: Sequence[int]) -> Cpu:
        rows = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        return cls(*[sum(int(row[field]) for row in rows) / TICKS_PER_S for field in (11, 12)])

    def since(self, earlier: Cpu, pages: float) -> Cpu:
        """Return the time of a page since an earlier time, in microseconds."""
        return Cpu(*[(now - then) / pages * 1e6 for now, then in zip(self, earlier, strict=True)])


class Exported(NamedTuple):
    """A volume: its URI, and the processes that serve it."""

    uri: str
    nbdkit: int
    servers: Sequence[int] = ()


class Run(NamedTuple):
    """One run of fio, and the CPU time of a page in nbdkit and in the servers."""

    bytes_per_s: float
    latency_us: float
    nbdkit: Cpu
    servers: Cpu


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program within the block."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def cluster(home: str) -> Iterator[Exported]:
    """Run a cluster with two memory servers that export a volume."""
    with ExitStack() as stack:
        running = MemoryCluster(Home(Path(home)), stack, "512MiB")
        running.create("v", SIZE_MIB, 1)
        exported = running.export("v")
        servers = [each.pid for each in running.servers.values()]
        yield Exported(exported.uri, exported.nbdkit, servers)


@contextmanager
def floor(home: str) -> Iterator[Exported]:
    """Run nbdkit with its own memory."""
    path, nbdkit = f"{home}/floor", shutil.which("nbdkit") or "nbdkit"
    words = (nbdkit, "--foreground", "--unix", path, "memory", f"{SIZE_MIB}M")
    with started(*words) as process:
        wait_for(lambda: os.path.exists(path), "nbdkit")
        yield Exported(f"nbd+unix:///?socket={path}", process.pid)


def fio(exported: Exported, kind: str) -> Run:
    """Run fio for some seconds."""
    access, block, depth = KINDS[kind]
    before = Cpu.of([exported.nbdkit]), Cpu.of(exported.servers)
    done = subprocess.run(
        ["fio", "--name=x", "--ioengine=nbd", f"--uri={exported.uri}", f"--rw={access}",
         f"--bs={block}", f"--iodepth={depth}", f"--size={SIZE_MIB}M",
         "--time_based", f"--runtime={SECONDS}", "--output-format=json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: Any = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    side = found["write" if access == "write" else "read"]
    pages = side["io_bytes"] / PAGE
    return Run(
        side["bw_bytes"], side["clat_ns"]["mean"] / 1e3,
        Cpu.of([exported.nbdkit]).since(before[0], pages),
        Cpu.of(exported.servers).since(before[1], pages),
    )  # fmt: skip


def measure(kinds: Sequence[str] = (*KINDS, DIRECT)) -> dict[str, float]:
    """Measure each kind of access in turns with nbdkit's memory; return ratios and times."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="ciel-bench-") as home, ExitStack() as stack:
        if any(kind in KINDS for kind in kinds):
            ours, theirs = stack.enter_context(cluster(home)), stack.enter_context(floor(home))
            fio(ours, "writes")
            fio(theirs, "writes")  # all pages exist
        for kind in kinds:
            if kind in KINDS:
                pairs = [(fio(ours, kind), fio(theirs, kind)) for _ in range(ROUNDS)]
                found |= {f"{kind}_{name}": value for name, value in _rows(kind, pairs)}
    return found | (direct() if DIRECT in kinds else {})


def _rows(kind: str, pairs: Sequence[tuple[Run, Run]]) -> Iterator[tuple[str, float]]:
    median = statistics.median
    field = "latency_us" if kind == "latency" else "bytes_per_s"
    yield "ratio", median(getattr(ours, field) / getattr(theirs, field) for ours, theirs in pairs)
    yield field, median(getattr(ours, field) for ours, _ in pairs)
    yield f"floor_{field}", median(getattr(theirs, field) for _, theirs in pairs)
    yield "server_cpu_us", median(sum(ours.servers) for ours, _ in pairs)
    yield "engine_cpu_us", median(sum(ours.nbdkit) - sum(theirs.nbdkit) for ours, theirs in pairs)
    yield "step_client_us", median(ours.nbdkit.user - theirs.nbdkit.user for ours, theirs in pairs)
    yield (
        "step_wire_us",
        median(
            ours.nbdkit.system - theirs.nbdkit.system + ours.servers.system
            for ours, theirs in pairs
        ),
    )
    yield "step_server_us", median(ours.servers.user for ours, _ in pairs)


def record(found: dict[str, float]) -> None:
    """Write the steps of a page into docs/measured/remote-memory.md, as a table and a plot."""
    steps = ("client", "wire", "server")
    bars = {
        title: {step: max(found[f"{kind}_step_{step}_us"], 0.0) for step in steps}
        for kind, title in TITLES.items()
    }
    rows = [[title, *(f"{bars[title][step]:.1f}" for step in steps)] for title in bars]
    chart = bar_chart(
        "Steps of a page: code of the client, system calls, code of the server",
        "CPU time of a page of 4 KiB, in microseconds",
        bars,
    )
    text = f"{table(['kind', *steps], rows)}\n\n![Steps of a page](remote-memory-steps.svg)"
    write_down("remote-memory", "steps", text, {"remote-memory-steps": chart})


# --- without NBD ----------------------------------------------------------------------------------


class _DirectOwner:
    """The owner of a volume on one server in this process; implements `companion.Owner`."""

    def __init__(self, pages: PageServer, listening: socket.socket) -> None:
        self._pages = pages
        self._listening = listening
        pages.listen(listening)

    def place(self, extent: int) -> tuple[Place, int]:
        return Place(1, "here", ""), 0

    def connect(self, server: int, session: int) -> socket.socket:
        token = os.urandom(TOKEN_BYTES)
        self._pages.allow(token, 5.0)
        connected = socket.socket(self._listening.family)
        connected.connect(self._listening.getsockname())
        connected.sendall(token + struct.pack("<Q", session))
        return connected


@contextmanager
def _direct_space(listening: socket.socket) -> Iterator[Space]:
    """Open a space over one server in this process, all of whose pages exist."""
    pages = PageServer(DIRECT_EXTENTS * EXTENT_BYTES)
    try:
        pages.lease(time.monotonic() + 3600)
        pages.hold(Holding(1, extent, 1, Role.PRIMARY) for extent in range(DIRECT_EXTENTS))
        with listening:
            space = Space(_DirectOwner(pages, listening), 1, DIRECT_EXTENTS, 1)
            for extent in range(DIRECT_EXTENTS):
                space.write(extent * EXTENT_BYTES, os.urandom(EXTENT_BYTES))
            yield space
            space.close()
    finally:
        pages.close()


def direct() -> dict[str, float]:
    """Measure reads of one page and of 1 MiB by the library, over both kinds of sockets in turns.

    The CPU time includes both ends and Python.
    """
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        spaces = {
            "unix": stack.enter_context(_direct_space(local.listen()[0])),
            "tcp": stack.enter_context(_direct_space(socket.create_server(("127.0.0.1", 0)))),
        }
        for name in [*spaces] * DIRECT_ROUNDS:
            space = spaces[name]
            begun_s, cpu_s = time.perf_counter(), time.process_time()
            for number in range(DIRECT_READS):
                space.read(number * 7919 % (DIRECT_EXTENTS * 256) * PAGE, PAGE)
            took_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
            found.setdefault(f"direct_{name}_us", []).append(took_s / DIRECT_READS * 1e6)
            found.setdefault(f"direct_{name}_cpu_us", []).append(cpu_s / DIRECT_READS * 1e6)
            begun_s = time.perf_counter()
            for extent in range(DIRECT_EXTENTS):
                space.read(extent * EXTENT_BYTES, EXTENT_BYTES)
            rate = DIRECT_EXTENTS * EXTENT_BYTES / (time.perf_counter() - begun_s)
            found.setdefault(f"direct_{name}_bytes_per_s", []).append(rate)
    return {name: statistics.median(values) for name, values in found.items()}


if __name__ == "__main__":
    measured = measure(sys.argv[1:] or (*KINDS, DIRECT))
    if not sys.argv[1:]:
        record(measured)
    for key, value in measured.items():
        print(f"{key:28} {value:16.2f}")
