"""The time of a call to a service, beside a ray actor and a bare socket, in turns.

    python -m benchmarks.reach.services --ray /path/of/an/environment/with/ray/bin/python

Each round makes calls one after the other; then it makes 100 calls at a time, and reads their
results together. `add(1)` returns a number. Without an interpreter that has ray, the benchmark
leaves that column out.

A synchronous call should cost this: one pickle of arguments and one of the result, two frames, one
`send` and one `recv` on each side, one `epoll_wait` in the replica, and two wake-ups. So it takes
a round trip of the bare socket, and the time of some 60 lines of Python on both sides.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import ciel

SYNCHRONOUS = 1000
PIPELINED = 10_000
AT_ONCE = 100

RAY = """
import sys, time, ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)

@ray.remote(num_cpus=1)
class Counter:
    def __init__(self):
        self.n = 0

    def add(self, by):
        self.n += by
        return self.n

counter = Counter.remote()
ray.get(counter.add.remote(1))
print("ready", flush=True)
for line in sys.stdin:
    kind, count, at_once = line.split()
    count, at_once = int(count), int(at_once)
    started_s = time.perf_counter()
    if kind == "synchronous":
        for _ in range(count):
            ray.get(counter.add.remote(1))
    else:
        for _ in range(count // at_once):
            ray.get([counter.add.remote(1) for _ in range(at_once)])
    print((time.perf_counter() - started_s) / count, flush=True)
"""


@ciel.service
class Counter:
    """The class that runs as a service of ciel and as an actor of ray."""

    def __init__(self) -> None:
        self.n = 0

    def add(self, by: int) -> int:
        self.n += by
        return self.n


Measure = Callable[[str, int], float]
"""Makes so many calls of a kind; returns the seconds for each."""


def of_ciel(stack: ExitStack) -> Measure:
    """Start a service in a cluster of one slot."""
    client = stack.enter_context(ciel.Client(ciel.LocalCluster(workers=1, slots=1)))
    counter = client.start(Counter)
    counter.add(1).result(timeout=60)

    def measure(kind: str, count: int) -> float:
        started_s = time.perf_counter()
        if kind == "synchronous":
            for _ in range(count):
                counter.add(1).result()
        else:
            for _ in range(count // AT_ONCE):
                calls = [counter.add(1) for _ in range(AT_ONCE)]
                for call in calls:
                    call.result()
        return (time.perf_counter() - started_s) / count

    return measure


def of_ray(stack: ExitStack, python: str) -> Measure:
    """Start an actor, in a process of another interpreter."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([python, "-c", RAY], stdin=pipe, stdout=pipe, text=True)
    stack.callback(process.wait)
    assert process.stdin is not None
    assert process.stdout is not None
    asked, told = stack.enter_context(process.stdin), stack.enter_context(process.stdout)
    while (line := told.readline()) != "ready\n":
        if not line:
            raise SystemExit(f"{python} has no ray that starts")

    def measure(kind: str, count: int) -> float:
        print(kind, count, AT_ONCE, file=asked, flush=True)
        return float(told.readline())

    return measure


def of_socket(stack: ExitStack) -> Measure:
    """Measure the floor of a synchronous call: a process that sends back what it reads."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    if (pid := os.fork()) == 0:
        channel, _ = listener.accept()
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := channel.recv(65536):
            channel.sendall(data)
        os._exit(0)
    stack.callback(os.waitpid, pid, 0)
    channel = stack.enter_context(socket.create_connection(listener.getsockname()))
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def measure(kind: str, count: int) -> float:
        at_once = 1 if kind == "synchronous" else AT_ONCE
        started_s = time.perf_counter()
        for _ in range(count // at_once):
            channel.sendall(b"x" * 100 * at_once)
            left = 100 * at_once
            while left:
                left -= len(channel.recv(65536))
        return (time.perf_counter() - started_s) / count

    return measure


def main() -> None:
    """Print the medians of all rounds, and the ratio to ray."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ray", metavar="PYTHON", help="an interpreter that has ray")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with ExitStack() as stack:
        sides = {"socket": of_socket(stack), "ciel": of_ciel(stack)}
        if options.ray:
            sides["ray"] = of_ray(stack, options.ray)
        else:
            print("ray is left out: --ray PYTHON names an interpreter that has it", file=sys.stderr)
        for kind, count in (("synchronous", SYNCHRONOUS), ("pipelined", PIPELINED)):
            times: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(options.rounds + 1):
                for name, measure in sides.items():
                    times[name].append(measure(kind, count))
            found = {name: statistics.median(rounds[1:]) * 1e6 for name, rounds in times.items()}
            best = {name: min(rounds[1:]) * 1e6 for name, rounds in times.items()}
            text = ", ".join(
                f"{name} {us:.1f} us (best {best[name]:.1f})" for name, us in found.items()
            )
            ratio = f"; ray/ciel {found['ray'] / found['ciel']:.1f}" if "ray" in found else ""
            print(f"{kind}: {text}{ratio}", flush=True)


if __name__ == "__main__":
    main()
