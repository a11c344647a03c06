"""Measures `ciel-kv` beside redis-server and etcd with YCSB, workloads A and F (KVM-4).

A: half of the operations read a record, half update a field. F: half read a record, half read it
and then update a field. A record has ten fields of 100 bytes. YCSB runs 16 clients, threads of one
Java process; `ycsb/` has their bindings, since YCSB's own one for Redis is not on Maven Central.
The benchmark rewrites the tables of docs/measured/state.md.

Expected: a client of Redis reads a record by one HGETALL and updates a field by one HSET.

    python -m benchmarks.storage.ycsb
"""

from __future__ import annotations

import json
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.engine.control import cpu_s
from benchmarks.plots import table, write_down
from benchmarks.storage.state_clients import etcd, machine, redis

sys.path.append(str(Path(__file__).parents[2] / "tests" / "lib"))  # as for pytest

from ciel_tests.etcd_server import ETCD
from ciel_tests.kv_daemons import KvDaemon
from ciel_tests.redis_server import REDIS

BINDINGS: Final = Path(__file__).with_name("ycsb")
WORKLOADS: Final = {
    "A": {"readproportion": 0.5, "updateproportion": 0.5},
    "F": {"readproportion": 0.5, "readmodifywriteproportion": 0.5, "updateproportion": 0},
}
OPERATIONS: Final = {"A": ("READ", "UPDATE"), "F": ("READ", "READ-MODIFY-WRITE")}
CLIENTS: Final = 16
RECORDS: Final = 10_000
SECONDS: Final = 10
OPERATIONS_MAX: Final = 100_000_000
"""More than any server carries out in that time."""
ROUNDS: Final = 3
LIST_THEM: Final = "org.apache.maven.plugins:maven-dependency-plugin:build-classpath"
"""The goal of Maven that fetches the dependencies of a project and writes their class path."""
FETCH_S: Final = 900
YCSB_S: Final = 300
"""YCSB ends after `SECONDS` itself; then it waits for its clients."""

Properties = Mapping[str, object]
Java = Sequence[str]
"""The words of a command that runs a class, which follows."""


class Server(NamedTuple):
    """A server: the class of its binding, the properties of that, and its process."""

    binding: str
    properties: Properties
    pid: int


class Latency(NamedTuple):
    """The latency of one operation, in us."""

    mean: float
    p95: float
    p99: float


class Run(NamedTuple):
    """One run of a workload. The CPU times are of one request; F has three for two operations."""

    per_s: float
    client_cpu_us: float
    server_cpu_us: float
    latencies: dict[str, Latency]


Runs = Mapping[tuple[str, str], Sequence[Run]]
"""The runs of each server and workload."""


# --- YCSB -----------------------------------------------------------------------------------------


def check_programs() -> None:
    """Raise SystemExit if a program is missing."""
    there = {name: shutil.which(name) for name in ("mvn", "java", "javac")}
    there["redis-server"] = REDIS
    if missing := [name for name, path in there.items() if path is None]:
        raise SystemExit(
            f"YCSB cannot run: {', '.join(missing)} not found. "
            "`apt-get install maven default-jdk-headless redis-server`"
        )


def built(where: Path) -> Java:
    """Fetch YCSB and clients of the servers with Maven, and compile the bindings.

    Return the command that runs a class; raises SystemExit if Maven fetches nothing.
    """
    listing, classes = where / "class-path", where / "classes"
    fetched = subprocess.run(
        ["mvn", "-B", "-q", "-f", str(BINDINGS / "pom.xml"), LIST_THEM,
         f"-Dmdep.outputFile={listing}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=FETCH_S,
    )  # fmt: skip
    if fetched.returncode:
        why = re.findall(r"ERROR\S* (.+)", fetched.stdout)
        raise SystemExit(
            f"YCSB cannot run: Maven did not get the dependencies of {BINDINGS / 'pom.xml'}, for "
            f"which it needs Maven Central the first time. {why[0] if why else fetched.stdout}"
        )
    libraries = listing.read_text()
    subprocess.run(
        ["javac", "-cp", libraries, "-d", str(classes), *map(str, BINDINGS.glob("*.java"))],
        check=True,
    )
    return "java", "-XX:-UsePerfData", f"-Djava.io.tmpdir={where}", "-cp", f"{classes}:{libraries}"


def ycsb(java: Java, server: Server, phase: str, properties: Properties) -> str:
    """Run YCSB; return what it prints. Raises SystemExit if an operation fails."""
    options = {"workload": "site.ycsb.workloads.CoreWorkload", "recordcount": RECORDS,
               "operationcount": OPERATIONS_MAX, "scanproportion": 0, "insertproportion": 0,
               "requestdistribution": "zipfian",
               **server.properties, **properties}  # fmt: skip
    command = [*java, "site.ycsb.Client", phase, "-db", server.binding, "-threads", str(CLIENTS)]
    for name, value in options.items():
        command += ["-p", f"{name}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=YCSB_S)
    failed = re.findall(r"\[(.+-FAILED|CLEANUP-FAILED)\], Operations, \d+", done.stdout)
    if done.returncode or failed or "Return=ERROR" in done.stdout or "[OVERALL]" not in done.stdout:
        raise SystemExit(f"YCSB failed with {server.binding}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def run(java: Java, server: Server, workload: str) -> Run:
    """Run a workload for some seconds."""
    cpu, children = cpu_s(server.pid), resource.getrusage(resource.RUSAGE_CHILDREN)
    properties = {**WORKLOADS[workload], "maxexecutiontime": SECONDS}
    text = ycsb(java, server, "-t", properties)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    client_s = used.ru_utime + used.ru_stime - children.ru_utime - children.ru_stime
    names = OPERATIONS[workload]
    requests = sum(_figure(text, name, "Operations") for name in names)  # READ counts all reads
    latencies = {
        name: Latency(
            _figure(text, name, "AverageLatency(us)"),
            _figure(text, name, "95thPercentileLatency(us)"),
            _figure(text, name, "99thPercentileLatency(us)"),
        )
        for name in names
    }
    return Run(
        _figure(text, "OVERALL", "Throughput(ops/sec)"),
        client_s / requests * 1e6,
        (cpu_s(server.pid) - cpu) / requests * 1e6,
        latencies,
    )


def _figure(text: str, operation: str, name: str) -> float:
    found = re.search(rf"^\[{operation}\], {re.escape(name)}, ([\d.E]+)", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"YCSB did not print {name} of {operation}:\n{text}")
    return float(found[1])


# --- servers --------------------------------------------------------------------------------------


@contextmanager
def servers(where: Path) -> Iterator[dict[str, Server]]:
    """Run the servers, all with their data on the same disk. Each follows its peer."""
    with ExitStack() as stack:
        found = {}
        for theirs, ours in (("everysec", ("interval", "off")), ("always", ("always",))):
            home = where / f"redis-{theirs}"
            port, pid = stack.enter_context(redis(home, "--appendfsync", theirs))
            found[f"Redis, {theirs}"] = _of_redis(port, "", pid)
            for sync in ours:
                daemon = stack.enter_context(KvDaemon(where / f"ciel-kv-{sync}", "--sync", sync))
                found[f"ciel-kv, {sync}"] = _of_redis(daemon.port, daemon.key.text(), daemon.pid)
        if ETCD is not None:
            port, pid = stack.enter_context(etcd(where / "etcd"))
            endpoint = f"http://127.0.0.1:{port}"
            found["etcd, off"] = Server("EtcdBinding", {"etcd.endpoint": endpoint}, pid)
        yield found


def _of_redis(port: int, password: str, pid: int) -> Server:
    return Server("RedisBinding", {"redis.port": port, "redis.password": password}, pid)


PEERS: Final = {
    "ciel-kv, interval": "Redis, everysec",
    "ciel-kv, off": "Redis, everysec",
    "ciel-kv, always": "Redis, always",
    "etcd, off": "Redis, everysec",
}
"""The Redis that each server is compared with."""


# --- results --------------------------------------------------------------------------------------


def measured() -> Runs:
    """Run all workloads on all servers, in turns."""
    check_programs()
    runs: dict[tuple[str, str], list[Run]] = {}
    where = Path(tempfile.mkdtemp(prefix="ciel-bench-ycsb-"))
    try:
        java = built(where)
        with servers(where) as found:
            for server in found.values():
                ycsb(java, server, "-load", {})
            for _, workload, (name, server) in product(range(ROUNDS), WORKLOADS, found.items()):
                runs.setdefault((name, workload), []).append(run(java, server, workload))
    finally:
        shutil.rmtree(where, ignore_errors=True)
    return runs


def _median(runs: Sequence[Run], name: str) -> float:
    values: list[float] = [getattr(each, name) for each in runs]
    return statistics.median(values)


def _ratio(runs: Runs, name: str, workload: str) -> float:
    """Return the rate of a server to that of its peer, the median of the rounds."""
    pairs = zip(runs[name, workload], runs[PEERS[name], workload], strict=True)
    return statistics.median(own.per_s / peer.per_s for own, peer in pairs)


def _row(runs: Runs, name: str, workload: str) -> list[str]:
    """Return the cells of a server: rate, ratio to Redis, latencies and CPU times."""
    own = runs[name, workload]
    ratio = f"{_ratio(runs, name, workload):.2f} x" if name in PEERS else ""
    cells = [f"{_median(own, 'per_s'):,.0f} /s", ratio]
    for operation in OPERATIONS[workload]:
        rounds = [each.latencies[operation] for each in own]
        medians = (statistics.median(values) for values in zip(*rounds, strict=True))
        cells.append(", ".join(f"{value:,.0f}" for value in medians))
    cells += [f"{_median(own, f'{side}_cpu_us'):,.0f}" for side in ("client", "server")]
    return [name, *cells]


def show(runs: Runs, about: str) -> None:
    """Write the tables of the page."""
    names = list(dict.fromkeys(name for name, _ in runs))
    text = [f"{about}. Latencies (mean, 95th, 99th percentile) and CPU times of a request in us:"]
    for workload, operations in OPERATIONS.items():
        first, second = (operation.lower().replace("-", ", ") for operation in operations)
        head = [f"workload {workload}", "rate", "to Redis", first, second, "CPU of YCSB",
                "of the server"]  # fmt: skip
        text.append(table(head, [_row(runs, name, workload) for name in names]))
    write_down("state", "ycsb", "\n\n".join(text), {})


def measure() -> dict[str, float]:
    """Measure, write the page, and return the rates, and the ratios to Redis."""
    about = machine()
    runs = measured()
    show(runs, about)
    found: dict[str, float] = {}
    for name, workload in runs:
        word = "_".join(name.lower().replace("-", "").split(", ")) + f"_{workload.lower()}"
        found[f"{word}_per_s"] = _median(runs[name, workload], "per_s")
        if name in PEERS:
            found[f"{word}_ratio"] = _ratio(runs, name, workload)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
