"""Measures a request between two daemons of an image, by message-passing buffers and by a socket.

Expected: by messages, a request or an answer is one line of the buffer, and three words that move
between two processors (lines given, lines taken, the bell): four lines and two fences in each
direction, below a microsecond. The rest is the same work as over a socket, two turns of an event
loop, and one more wake-up in each direction: the kernel wakes the thread that sleeps on the bell,
and that thread wakes the loop. This adds 10 to 20 us to the 150 to 300 us of a request, less than a
fifth. With fewer than four processors, the daemons and these threads wait for each other.

Both ways measure in alternation; the figures are medians.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REQUESTS = 2000
ROUNDS = 7
NAME = "4f2a:out:0"
GROUP = "benchmark"
IMAGE = {"capacity": "4MiB", "cores": "2", "block": "4096", "spill": "no"}
WAYS = {"socket": "no", "messages": "yes"}
_RETRY_S = 0.01


def measure(requests: int = REQUESTS, rounds: int = ROUNDS) -> dict[str, float]:
    """Return the time of a request by each way, in microseconds, and the ratio."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            found[way].append(one_round(way, requests))
    pairs = zip(found["messages"], found["socket"], strict=True)
    return {
        "socket_us": statistics.median(found["socket"]),
        "messages_us": statistics.median(found["messages"]),
        "messages_to_socket": statistics.median(mine / other for mine, other in pairs),
        "processors": float(len(os.sched_getaffinity(0))),
    }


def one_round(way: str, requests: int) -> float:
    """Let one daemon ask another one; return the time of a request in microseconds."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "benchmarks.engine.shmd_messages", way, place]
        serving = subprocess.Popen(
            [*command, "1", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert serving.stdout is not None
        serving.stdout.readline()  # it has the object
        done = subprocess.run(
            [*command, "0", str(requests)], check=True, stdout=subprocess.PIPE, text=True
        )
        serving.communicate()
    return float(done.stdout)


def main(way: str, place: str, core: str, requests: str) -> None:
    """Be one of the daemons: serve until standard input ends, or ask and print the time."""
    from twisted.internet import reactor as twisted_reactor

    from ciel.net.cores.connections import Cores
    from ciel.scc.store import open_scc
    from ciel.shm.daemon import Daemon
    from ciel.shm.layout import member_of_worker
    from ciel.storage.interface import ObjectStore

    reactor: Any = twisted_reactor
    own = Path(place, core)
    own.mkdir()
    instance = f"benchmark-{Path(place).name}"
    options = IMAGE | {"instance": instance, "core": core, "messages": WAYS[way]}
    store: ObjectStore = open_scc(options, own)
    message_core = store.message_core()
    cores = None if message_core is None else Cores(reactor, message_core)
    member = member_of_worker(f"core:{core}")
    daemon = Daemon(reactor, store, own, group=f"{GROUP}-{place}", member=member, cores=cores)
    left = int(requests)
    begun_s = 0.0

    def begin() -> None:
        """Ask once the daemons know each other; before that, they would use their sockets."""
        if cores is None or cores.names():
            ask()
        else:
            reactor.callLater(_RETRY_S, begin)

    def ask() -> None:
        daemon.ask("core:1", NAME).addCallback(answered)

    def answered(_: object) -> None:
        nonlocal left, begun_s
        begun_s = begun_s or time.perf_counter()  # the first one has opened the connection
        if left:
            left -= 1
            ask()
        else:
            print((time.perf_counter() - begun_s) / int(requests) * 1e6)
            reactor.stop()

    def wait_for_end() -> None:
        sys.stdin.read()
        reactor.callFromThread(reactor.stop)

    if left:
        reactor.callWhenRunning(begin)
    else:
        store.put(NAME, bytes(1000))
        store.checksum(NAME)
        print("ready", flush=True)
        reactor.callInThread(wait_for_end)
    reactor.run()
    daemon.close()
    if cores is not None:
        cores.close()
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else print(measure())
