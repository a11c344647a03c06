"""Runs long arrays of `ciel submit` in full length."""

import os
import re
import subprocess
import time
from itertools import islice
from pathlib import Path

import pytest

from ciel.client import Client
from ciel.testing.homes import HandCluster
from ciel.wire.descriptors import read_summary

LINES = 100_000
FLAT_KIB = 8 << 10  # much less than 40,000 elements would take

pytestmark = pytest.mark.timeout(1200)


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)[0])


def peak_kib_of_submit(cluster: HandCluster, count: int) -> int:
    """Run an array; return the peak memory of the command."""
    process = cluster.home.start(
        "ciel", "submit", "--array", f"1-{count}", "--", "true", stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.communicate()
    assert process.returncode == 0
    return usage.ru_maxrss


def test_every_line_is_printed_in_order_although_a_worker_is_killed(cluster: HandCluster) -> None:
    home = cluster.home
    with (home.path / "lines").open("w") as file:
        file.writelines(f"line {number} of many\n" for number in range(LINES))
    with (home.path / "errors").open("w") as errors:
        process = home.start(
            "ciel", "submit", "--each-line", "lines", "--", "echo", "{}", stderr=errors
        )
    assert process.stdout is not None
    written = iter(process.stdout)
    for number, line in enumerate(islice(written, LINES // 2)):
        assert line == f"line {number} of many\n"
    cluster.workers[0].kill()
    for number, line in enumerate(written, LINES // 2):
        assert line == f"line {number} of many\n"
    assert number == LINES - 1
    assert process.wait(20) == 0, (home.path / "errors").read_text()
    process.stdout.close()


def test_the_results_of_a_long_array_are_handed_over(cluster: HandCluster) -> None:
    started_s = time.monotonic()
    peak_kib_of_submit(cluster, 12_000)
    assert time.monotonic() - started_s < 200
    with Client(environ=cluster.home.environ) as client:
        job = read_summary(client.ask("job", {"job": "last"})["summary"])
        objects = client.ask("status")["objects"]
    assert (job.state, job.counts, job.handed_over) == ("completed", {"done": 12_000}, 12_000)
    assert objects == 0


def test_memory_does_not_grow_with_the_number_of_elements(cluster: HandCluster) -> None:
    few_kib = peak_kib_of_submit(cluster, 20_000)
    master_few_kib = resident_kib(cluster.master.pid)
    many_kib = peak_kib_of_submit(cluster, 60_000)
    assert many_kib < few_kib + FLAT_KIB
    assert resident_kib(cluster.master.pid) < master_few_kib + FLAT_KIB
