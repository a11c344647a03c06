"""Measures Skywriting scripts on a cluster.

The scripts are a recursion with a task for every call, a thousand dereferences in sequence, and a
script that returns "hello", with its whole command.

Expected cost of a call of fib in addition to the 70 us of the control plane: 30 us in the script,
20 to name its task, and 50 for its frames to and from the worker; two slots share that.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ciel.client.client import Client
from ciel.client.cluster import LocalCluster
from ciel.core.ids import ObjectId
from ciel.core.refs import Value

N = 15
ROUNDS = 5
DEREFERENCES = 1000
MANY = 10_000
HELLOS = 9
FIB = """
function fib(n) {
    if (n < 2) { return n; }
    one = spawn(fib, [n - 1]);
    other = spawn(fib, [n - 2]);
    return *one + *other;
}
return fib(int(argv[0]));
"""
SEQUENCE = """
function next(n) { return n + 1; }
n = 0;
for (i in range(int(argv[0]))) { n = *spawn(next, [n]) + 0; }
return n;
"""


def run(client: Client, text: str, number: int) -> tuple[float, str, int]:
    """Run a script; return its duration, its value, and the number of tasks."""
    script = Value.of(ObjectId(f"bench:{len(text)}"), text.encode())  # an id belongs to one text
    with client.job("script") as job:
        started_s = time.monotonic()
        arguments = {"swfile_ref": script, "start_args": [str(number)], "start_env": {}}
        value = job.read(job.add("swi", arguments)[0], 120).decode()
        elapsed_s = time.monotonic() - started_s
        job.close()
        job.wait(30)
        assert job.summary is not None
        return elapsed_s, value, sum(job.summary.counts.values())


def fib(client: Client) -> tuple[float, float]:
    """Return tasks per second, and the number of tasks of a run."""
    run(client, FIB, N)
    rates, counts = [], []
    for _ in range(ROUNDS):
        elapsed_s, value, tasks = run(client, FIB, N)
        assert value == "610", value
        rates.append(tasks / elapsed_s)
        counts.append(tasks)
    return statistics.median(rates), statistics.median(counts)


def dereferences(client: Client) -> float:
    """Return the time of one dereference, in seconds."""
    run(client, SEQUENCE, 100)
    nothing_s = run(client, SEQUENCE, 1)[0]
    times = [run(client, SEQUENCE, DEREFERENCES)[0] for _ in range(ROUNDS)]
    return (statistics.median(times) - nothing_s) / DEREFERENCES


def growth(client: Client) -> float:
    """Return the time of the last 1,000 of 10,000 dereferences, relative to the first 1,000.

    The times are those at which the master received their messages. The result is the median of
    some runs.
    """
    ratios = []
    for _ in range(ROUNDS):
        first = client.ask("trace", {})["next"]
        run(client, SEQUENCE, MANY)
        ends_s: list[float] = []
        while first is not None:
            page = client.ask("trace", {"jobs": client.job_ids, "first": first})
            ended = page["fields"].index("ended_at_s")
            ends_s += [span[ended] for span in page["spans"]]
            first = page["next"]
        ends_s.sort()
        assert len(ends_s) > MANY, len(ends_s)
        first_s = ends_s[DEREFERENCES] - ends_s[0]
        ratios.append((ends_s[-1] - ends_s[-1 - DEREFERENCES]) / first_s)
    return statistics.median(ratios)


def hello() -> dict[str, float]:
    """Return the duration of the whole command on a running cluster."""
    folder = Path(sys.executable).parent
    times = []
    with tempfile.TemporaryDirectory(prefix="ciel-bench-") as directory:
        environ = {"PATH": os.environ["PATH"], "HOME": directory, "XDG_STATE_HOME": directory}
        (script := Path(directory) / "hello.sw").write_text('return "hello";\n')
        subprocess.run([folder / "ciel", "up"], env=environ, check=True, capture_output=True)
        try:
            command = [folder / "sw-job", script]
            for _ in range(HELLOS):
                started_s = time.perf_counter()
                done = subprocess.run(command, env=environ, check=True, capture_output=True)
                times.append(time.perf_counter() - started_s)
                assert done.stdout == b'"hello"\n', done.stdout
        finally:
            subprocess.run(
                [folder / "ciel", "down", "--force"], env=environ, check=True, capture_output=True
            )
    return {"hello_s": statistics.median(times), "hello_first_s": times[0]}


def measure() -> dict[str, float]:
    """Measure everything."""
    results: dict[str, float] = {}
    with LocalCluster(workers=1, slots=2) as cluster, Client(cluster) as client:
        results["fib_tasks_per_s"], results["fib_tasks"] = fib(client)
        results["deref_us"] = dereferences(client) * 1e6
        results["deref_last_to_first"] = growth(client)
    with LocalCluster(workers=1, slots=2, delegates=False) as cluster, Client(cluster) as client:
        results["fib_tasks_per_s_off"], results["fib_tasks_off"] = fib(client)
        results["deref_us_off"] = dereferences(client) * 1e6
    return results | hello()


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:24} {value:12.3f}")
