"""Runs the package in the README of the original CIEL on every kind of cluster."""

import json
from pathlib import Path

from ciel.testing.homes import HandCluster, Home

EXAMPLES = Path(__file__).parents[3] / "examples"
HELLO = str(EXAMPLES / "hello.pack")


def test_hello_on_an_embedded_cluster(home: Home) -> None:
    done = home.run("ciel", "run", HELLO)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["Hello, world!\n"]
    home.expect_nothing_left()


def test_hello_on_a_cluster_started_by_hand(lasting_cluster: HandCluster) -> None:
    done = lasting_cluster.home.run("ciel", "run", HELLO)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["Hello, world!\n"]
    assert done.stderr == ""  # the command started no cluster


def test_an_array_runs_on_both_workers_in_order(lasting_cluster: HandCluster) -> None:
    done = lasting_cluster.home.run(
        "ciel", "submit", "--array", "1-100", "--", "sh", "-c", "echo {} $CIEL_WORKER"
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == [str(number) for number in range(1, 101)]
    assert len({row[1] for row in rows}) == 2


def test_large_objects_move_between_workers(lasting_cluster: HandCluster) -> None:
    """Each of two tasks produces 3 MB; the last task reads both, on whichever worker it runs."""
    program = (
        "from ciel import Client\n"
        "with Client() as client, client.job('large') as job:\n"
        "    parts = [job.run(['seq', str(n), str(n + 400000)]) for n in (1, 2)]\n"
        "    print(job.read(job.run(['wc', '-c'], inputs=parts)).decode().strip())\n"
    )
    done = lasting_cluster.home.run("python", "-c", program)
    assert done.returncode == 0, done.stderr
    expected = sum(len(f"{n}\n") for start in (1, 2) for n in range(start, start + 400001))
    assert done.stdout.strip() == str(expected)
