"""Measures how soon results arrive (C4, C5).

It measures the first result and all results of a map, and the result of a client's first call while
another client keeps the cluster busy.
"""

from __future__ import annotations

import math
import threading
import time

import ciel

SLOTS = 2
CALLS, CALL_S = 10_000, 0.05
LONG_CALLS, LONG_S = 100, 0.5
ROWS = 400
"""Calls of the map that is read to its end: all 10,000 would take four minutes."""


def work(seconds: float) -> float:
    """Sleep for the given time."""
    threading.Event().wait(seconds)
    return seconds


def first_of_a_map_s(client: ciel.Client) -> float:
    """Return the time until the first result of a long map."""
    begun_s = time.perf_counter()
    results = client.map(work, [CALL_S] * CALLS)
    next(results)
    took_s = time.perf_counter() - begun_s
    results.close()  # type: ignore[attr-defined]  # a generator
    return took_s


def map_to_ideal(client: ciel.Client) -> float:
    """Return the duration of a map, relative to the total time of its calls on all slots."""
    begun_s = time.perf_counter()
    assert len(list(client.map(work, [CALL_S] * ROWS))) == ROWS
    return (time.perf_counter() - begun_s) / (math.ceil(ROWS / SLOTS) * CALL_S)


def first_of_another_s(cluster: ciel.LocalCluster) -> float:
    """Return the time of a client's first call while another client has many calls."""
    with ciel.Client(cluster) as busy, ciel.Client(cluster) as other:
        futures = [busy.submit(work, LONG_S) for _ in range(LONG_CALLS)]
        futures[0].result()
        threading.Event().wait(LONG_S / 10)  # both slots are executing a call
        begun_s = time.perf_counter()
        other.submit(abs, -1).result()
        return time.perf_counter() - begun_s


def measure() -> dict[str, float]:
    """Measure each figure on a new cluster.

    A client that closes kills the processes of its calls, and a new process takes longer to start
    than the measured call.
    """
    with ciel.LocalCluster(workers=1, slots=SLOTS) as cluster:
        found = {"other_s": first_of_another_s(cluster)}
    for key, timed in (("first_s", first_of_a_map_s), ("map_to_ideal", map_to_ideal)):
        with ciel.LocalCluster(workers=1, slots=SLOTS) as cluster, ciel.Client(cluster) as client:
            list(client.map(abs, range(2 * SLOTS)))  # the processes have started
            found[key] = timed(client)
    return found


if __name__ == "__main__":
    for key, value in measure().items():
        print(f"{key:14} {value:10.3f}")
