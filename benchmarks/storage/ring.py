"""Compares control messages over shared memory with sockets.

The figures are no-op tasks per second, and the time per hop of a chain.

Three clusters run at once and alternate, a few hundred milliseconds each: sockets, rings, and rings
that poll before they sleep. Every ratio compares two measurements next to each other in time. Two
clusters with the same options differ by up to 5 % for their whole life (because of the addresses of
their memory and the hashes of their names), so five sets of clusters run nine rounds each, and the
result is the median of all rounds.

Expected cost: the bytes and their processing are the same. For a hop through the master, a ring
without polling saves the copies into and out of the kernel (2 us), and spends as much on checks
before each wait. With polling it saves the time of two wake-ups, 20 to 30 us each on two virtual
cores, and again as much on the side that notifies. So a hop of 100 us may halve; a hop that is
mostly interpreter, such as ours, gains as much time, but a smaller fraction.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.engine.talkers import chain as program_chain
from benchmarks.engine.talkers import program
from ciel.client.client import Client
from ciel.client.cluster import LocalCluster
from ciel.core.tasks import Mentions

SETS = 5
ROUNDS = 9
HOPS = 100
TASKS = 2_000
SPIN_US = 300
WAYS = {
    "socket": ("--channel", "socket"),
    "ring": ("--channel", "ring", "--spin", "0"),
    "polling": ("--channel", "ring", "--spin", str(SPIN_US)),
}
Measure = Callable[[Client], float]


def no_ops(client: Client) -> float:
    """Run independent no-ops in the worker's own process; return the seconds per task."""
    with client.job("no-ops") as job:
        started_s = time.monotonic()
        arguments: dict[str, Any] = {"args": {"inputs": []}}
        refs = [job.add("sync", arguments, mentions=Mentions.INPUTS)[0] for _ in range(TASKS)]
        job.want(refs)
        job.close()
        job.wait(120)
        return (time.monotonic() - started_s) / TASKS


def chain(client: Client) -> float:
    """Run no-ops that each need the previous one; return the seconds per hop.

    They list no inputs: a list of the previous one, which lists the one before it, would soon be
    stored in a file. The time to create a file in a file system (ext4 needs more than a millisecond
    after many deletions) is not part of this comparison.
    """
    with client.job("chain") as job:
        needed: list[Any] = []
        for _ in range(HOPS):
            arguments = {"args": {"inputs": []}, "after": needed}
            needed = job.add("sync", arguments, mentions=Mentions.INPUTS)
        started_s = time.monotonic()
        job.result(needed[0], 120)
        return (time.monotonic() - started_s) / HOPS


def in_turns(clients: dict[str, Client], what: Measure) -> dict[str, list[float]]:
    """Measure all clusters in alternation, ROUNDS times.

    The order is forwards and backwards in turn, so that no cluster is always first.
    """
    found: dict[str, list[float]] = {name: [] for name in clients}
    for client in clients.values():
        what(client)  # warm-up
    for number in range(ROUNDS):
        names = list(clients) if number % 2 else list(reversed(clients))
        for name in names:
            found[name].append(what(clients[name]))
    return found


def figures(label: str, found: dict[str, list[float]]) -> dict[str, float]:
    """Return the medians in microseconds, and the medians of the ratios to sockets."""
    result = {f"{label}_us_{name}": statistics.median(v) * 1e6 for name, v in found.items()}
    for name in ("ring", "polling"):
        ratios = [mine / theirs for mine, theirs in zip(found[name], found["socket"], strict=True)]
        result[f"{label}_ratio_{name}"] = statistics.median(ratios)
    return result


def compared(delegates: bool, what: dict[str, Measure]) -> dict[str, float]:
    """Measure some workloads on sets of clusters that differ only in their transport."""
    found = {label: {name: list[float]() for name in WAYS} for label in what}
    for _ in range(SETS):
        with ExitStack() as stack:
            clients = {}
            for name, switches in WAYS.items():
                cluster = stack.enter_context(
                    LocalCluster(workers=1, slots=1, delegates=delegates, switches=switches)
                )
                clients[name] = stack.enter_context(Client(cluster))
            for label, measure_it in what.items():
                for name, seconds in in_turns(clients, measure_it).items():
                    found[label][name] += seconds
    results: dict[str, float] = {}
    for label, times in found.items():
        results |= figures(label, times)
    return results


def measure() -> dict[str, float]:
    """Measure everything; all ratios are of times, except for the rates."""
    results = compared(False, {"hop": chain})
    with program() as command:
        by_programs: Measure = lambda client: program_chain(client, command, HOPS)  # noqa: E731
        results |= compared(True, {"task": no_ops, "program_hop": by_programs})
    for name in ("ring", "polling"):
        results[f"rate_ratio_{name}"] = 1 / results.pop(f"task_ratio_{name}")
    return results


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:28} {value:12.3f}")
