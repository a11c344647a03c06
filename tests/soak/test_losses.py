"""Runs calls for hours while workers die at random: every result is right, and no round takes
long.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator

import pytest

import ciel
from ciel.client.cluster import LocalCluster

ROUNDS = int(os.environ.get("CIEL_ROUNDS", "500"))
ROUND_MAX_S = 30.0
CALLS = 96

pytestmark = pytest.mark.timeout(int(ROUNDS * ROUND_MAX_S))


def make(number: int, round_number: int) -> bytes:
    time.sleep(0.003)
    return bytes([number, round_number % 256]) * 100_000


def look(content: bytes) -> tuple[int, int, int]:
    time.sleep(0.01)
    return content[0], content[1], len(content)


@pytest.fixture(params=["shm:capacity=400MiB", "scc:capacity=512MiB"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(workers=2, slots=1, store=request.param) as cluster:
        yield cluster


def restart_at_random(cluster: LocalCluster, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 4)):
        time.sleep(chance.uniform(0.0, 0.3))
        cluster.restart(chance.randrange(2))


def test_every_result_is_right_whenever_workers_die(cluster: LocalCluster) -> None:
    chance = random.Random(20261123)
    with ciel.Client(cluster) as client:
        for round_number in range(ROUNDS):
            started_s = time.monotonic()
            killer = threading.Thread(target=restart_at_random, args=(cluster, chance))
            made = [client.submit(make, number, round_number) for number in range(CALLS)]
            if chance.random() < 0.5:
                ciel.wait(made)
            killer.start()
            readers = [client.submit(look, result) for result in made]
            found = [reader.result(timeout=ROUND_MAX_S) for reader in readers]
            killer.join()
            took_s = time.monotonic() - started_s
            expected = [(number, round_number % 256, 200_000) for number in range(CALLS)]
            assert found == expected, f"round {round_number}"
            assert took_s < ROUND_MAX_S, f"round {round_number} took {took_s:.1f} s"
