"""Measures key-value bases (KVB-2, KVB-4): LMDB in this process, and `ciel-kv` beside redis-server.

redis-benchmark asks both, in turns. Scans of one moment run beside eight writers.

    python -m benchmarks.storage.state
"""

from __future__ import annotations

import multiprocessing
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ciel.access.keys import Key
from ciel.state.bases.embedded import OFF, EmbeddedBase
from ciel.state.bases.remote import RemoteBase
from ciel.state.batches import Put

sys.path.append(str(Path(__file__).parents[2] / "tests" / "lib"))  # as for pytest

from ciel_tests.kv_daemons import KvDaemon
from ciel_tests.redis_server import REDIS, redis_server

VALUE: Final = b"x" * 100
KEYS: Final = 20_000
ROUNDS: Final = 3
REQUESTS: Final = {1: 20_000, 16: 60_000}
"""How many requests redis-benchmark sends, by its number of connections."""
SCANNED_ROWS: Final = 100_000
WRITERS: Final = 8
WRITING_S: Final = 4.0


def embedded(where: Path) -> dict[str, float]:
    """Measure LMDB in this process, without waiting for the disk."""
    keys = [b"user%08d" % (number * 7919 % KEYS) for number in range(KEYS)]
    with EmbeddedBase(where, OFF) as base:
        base.apply([Put(key, VALUE) for key in keys])
        gets = [_rate(lambda: [base.get(key) for key in keys], KEYS) for _ in range(ROUNDS)]
        puts = [
            _rate(lambda: [base.apply([Put(key, VALUE)]) for key in keys], KEYS)
            for _ in range(ROUNDS)
        ]
    return {
        "embedded_gets_per_s": statistics.median(gets),
        "embedded_puts_per_s": statistics.median(puts),
    }


def against_redis(where: Path) -> dict[str, float]:
    """Compare `ciel-kv` with redis-server; both hand writes to the operating system."""
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        daemon = stack.enter_context(KvDaemon(where, "--sync", "interval"))
        theirs = stack.enter_context(redis_server(where.parent, "--appendonly", "yes"))
        for _ in range(ROUNDS):
            for name, port, password in (
                ("redis", theirs, ""), ("ours", daemon.port, daemon.key.text())
            ):  # fmt: skip
                for clients, requests in REQUESTS.items():
                    for operation, rate in _ask(port, password, clients, requests).items():
                        found.setdefault(f"{name}_{operation}_{clients}", []).append(rate)
    rates = {name: statistics.median(values) for name, values in found.items()}
    ratios = {
        f"{operation}_ratio_{clients}": rates[f"ours_{operation}_{clients}"]
        / rates[f"redis_{operation}_{clients}"]
        for operation in ("get", "set")
        for clients in REQUESTS
    }
    return rates | ratios


def scans(where: Path) -> dict[str, float]:
    """Compare eight writers alone with the same beside a scan of one moment each second."""
    with KvDaemon(where, "--sync", "interval") as daemon:
        with daemon.base() as base:
            rows = [Put(b"row%08d" % number, b"%d" % number) for number in range(SCANNED_ROWS)]
            base.apply(rows)
        alone, _ = _write(daemon, scans_too=False)
        beside, scan_s = _write(daemon, scans_too=True)
    return {
        "writes_per_s": alone, "writes_beside_scans": beside / alone, "atomic_scan_s": scan_s,
    }  # fmt: skip


def _write(daemon: KvDaemon, *, scans_too: bool) -> tuple[float, float]:
    """Let processes write for a time; return their rate, and the duration of scans meanwhile."""
    processes = multiprocessing.get_context("fork")
    with processes.Pool(WRITERS + 1) as pool:
        until_s = time.time() + WRITING_S
        about = (daemon.port, daemon.key.text(), until_s)
        scanning = pool.apply_async(_scan_until, about) if scans_too else None
        counts = pool.starmap(_write_until, [(*about, number) for number in range(WRITERS)])
        return sum(counts) / WRITING_S, scanning.get() if scanning else 0.0


def _write_until(port: int, key: str, until_s: float, number: int) -> int:
    count = 0
    with RemoteBase("127.0.0.1", port, Key.from_text(key)) as base:
        while time.time() < until_s:
            row = (number + count * 7919) % SCANNED_ROWS
            base.apply([Put(b"row%08d" % row, b"%d" % count)])
            count += 1
    return count


def _scan_until(port: int, key: str, until_s: float) -> float:
    seconds: list[float] = []
    with RemoteBase("127.0.0.1", port, Key.from_text(key)) as base:
        while (began_s := time.time()) < until_s:
            with base.snapshot() as moment:
                assert sum(1 for _ in moment.rows(b"row", b"s")) == SCANNED_ROWS
            seconds.append(time.time() - began_s)
            threading.Event().wait(max(0.0, 1.0 - seconds[-1]))
    return statistics.median(seconds)


def _ask(port: int, password: str, clients: int, requests: int) -> dict[str, float]:
    """Return the rates that redis-benchmark reaches, by operation."""
    command = ["redis-benchmark", "-p", str(port), "-c", str(clients), "-n", str(requests),
               "-d", str(len(VALUE)), "-r", str(KEYS), "-t", "set,get", "-q"]  # fmt: skip
    command += ["-a", password] if password else []
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"(SET|GET): ([\d.]+) requests per second", shown)
    return {operation.lower(): float(rate) for operation, rate in found}


def _rate(call: Callable[[], object], count: int) -> float:
    began_s = time.perf_counter()
    call()
    return count / (time.perf_counter() - began_s)


def measure() -> dict[str, float]:
    """Measure everything; what needs a missing program is left out."""
    where = Path(tempfile.mkdtemp(prefix="ciel-bench-state-"))
    try:
        found = embedded(where / "embedded") | scans(where / "scans")
        if REDIS is not None and shutil.which("redis-benchmark"):
            found |= against_redis(where / "daemon")
        return found
    finally:
        shutil.rmtree(where, ignore_errors=True)


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:30} {value:12,.2f}")
