"""Measures remote memory: a volume on two memory servers, against nbdkit's own memory (NET-7).

fio reads and writes both over NBD and a UNIX socket, in turns. Expected cost of a page: a round
trip over loopback to a memory server (10 us) besides the one to nbdkit (25 us), and 1 us for
checksums.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.engine.control import cpu_s
from ciel.testing.homes import wait_for

SIZE: Final = "256MiB"
ROUNDS: Final = 3
SECONDS: Final = 4
PAGE: Final = 4096
BIN: Final = Path(sys.executable).parent
KINDS: Final = {
    "latency": ("randread", "4k", 1),
    "deep": ("randread", "4k", 16),
    "reads": ("read", "1M", 4),
    "writes": ("write", "1M", 4),
}


@contextmanager
def started(*words: str, environ: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a program within the block."""
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def cluster(home: str) -> Iterator[tuple[str, list[int]]]:
    """Run a cluster with two memory servers; yield the URI of a volume and the servers' pids."""
    environ = dict(os.environ, HOME=home, XDG_STATE_HOME=f"{home}/state", XDG_RUNTIME_DIR=home)

    def ciel(*words: str) -> str:
        done = subprocess.run(
            [str(BIN / "ciel"), *words], env=environ, check=True, capture_output=True, text=True
        )
        return done.stdout

    ciel("up", "--workers", "1", "--listen", "127.0.0.1:0")
    try:
        with ExitStack() as stack:
            server = (str(BIN / "ciel-memory"), "--offer", "512MiB", "--log")
            servers = [
                stack.enter_context(started(*server, f"{home}/{n}.log", environ=environ))
                for n in range(2)
            ]
            wait_for(
                lambda: len(json.loads(ciel("memory", "list", "--json"))["servers"]) == 2, "servers"
            )
            ciel("memory", "create", "v", "--size", SIZE, "--replicas", "1")
            export = (str(BIN / "ciel"), "memory", "export", "v", "--socket", f"{home}/v", "--json")
            serving = stack.enter_context(started(*export, environ=environ))
            assert serving.stdout is not None
            yield json.loads(serving.stdout.readline())["uri"], [each.pid for each in servers]
    finally:
        ciel("down")


def fio(uri: str, kind: str) -> dict[str, float]:
    """Run fio for some seconds; return the rate in bytes and the mean latency."""
    access, block, depth = KINDS[kind]
    done = subprocess.run(
        ["fio", "--name=x", "--ioengine=nbd", f"--uri={uri}", f"--rw={access}", f"--bs={block}",
         f"--iodepth={depth}", f"--size={SIZE.removesuffix('iB')}", "--time_based",
         f"--runtime={SECONDS}", "--output-format=json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: Any = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    side = found["write" if access == "write" else "read"]
    return {"bytes_per_s": side["bw_bytes"], "latency_us": side["clat_ns"]["mean"] / 1e3}


def measure() -> dict[str, float]:
    """Measure each kind of access in turns with nbdkit's memory; return ratios and times."""
    with tempfile.TemporaryDirectory(prefix="ciel-bench-") as home, ExitStack() as stack:
        uri, servers = stack.enter_context(cluster(home))
        nbdkit = shutil.which("nbdkit") or "nbdkit"
        floor = f"{home}/floor"
        stack.enter_context(
            started(nbdkit, "--foreground", "--unix", floor, "memory", SIZE.removesuffix("iB"))
        )
        wait_for(lambda: os.path.exists(floor), "nbdkit")
        fio(uri, "writes")
        fio(f"nbd+unix:///?socket={floor}", "writes")  # all pages exist
        found: dict[str, float] = {}
        for kind in KINDS:
            pairs = []
            for _ in range(ROUNDS):
                before = sum(map(cpu_s, servers))
                ours = fio(uri, kind)
                used_s = sum(map(cpu_s, servers)) - before
                theirs = fio(f"nbd+unix:///?socket={floor}", kind)
                pages = ours["bytes_per_s"] * SECONDS / PAGE
                pairs.append((ours, theirs, used_s / pages * 1e6))
            field = "latency_us" if kind == "latency" else "bytes_per_s"
            ratios = [ours[field] / theirs[field] for ours, theirs, _ in pairs]
            found[f"{kind}_ratio"] = statistics.median(ratios)
            found[f"{kind}_{field}"] = statistics.median(ours[field] for ours, _, _ in pairs)
            found[f"{kind}_server_cpu_us"] = statistics.median(cpu for _, _, cpu in pairs)
    return found


if __name__ == "__main__":
    for key, value in measure().items():
        print(f"{key:24} {value:14.2f}")
