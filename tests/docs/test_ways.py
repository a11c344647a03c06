"""Compares the ways through the code in ARCHITECTURE.md with the calls of real clusters."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ciel_tests import call_trace
from ciel_tests.call_trace import Call

ROW = re.compile(r"\| (client|master|worker) \| `([\w/]+\.py)` `([\w.]+)` \|")
ENTRIES_MAX = 3

TASK = """
import subprocess, sys
from ciel.cli.main import main

sys.argv = ["ciel", "submit", "--", "sort", "words"]
main()
"""
DEATH = """
import os, signal, time
from pathlib import Path
from ciel import Client, LocalCluster

started = Path("started").absolute()
program = f"echo $PPID >> {started}; [ $(wc -l < {started}) = 2 ] || sleep 60"
with LocalCluster(workers=2, slots=1) as cluster, Client(cluster) as client:
    with client.job() as job:
        ref = job.run(["sh", "-c", program])
        job.want([ref])
        while not started.exists() or not started.read_text():
            time.sleep(0.01)
        launcher = int(started.read_text())
        worker = int(Path(f"/proc/{launcher}/stat").read_text().split(")")[1].split()[1])
        os.kill(worker, signal.SIGKILL)
        job.read(ref, 60)
"""
OBJECT = """
from ciel import Client, LocalCluster

with LocalCluster(workers=2, slots=1) as cluster, Client(cluster) as client:
    with client.job() as job:
        made = job.run(["seq", "100000"])
        # Two readers at once on two workers with one slot each: one of them fetches the object.
        reads = [job.run(["sh", "-c", f"sleep 1; tail -{n}"], inputs=[made]) for n in (1, 2)]
        last = job.run(["sleep", "0.5"], inputs=reads)  # the object is deleted meanwhile
        job.want([last])
        job.read(last, 60)
"""


def way(title: str) -> list[Call]:
    """Return the calls of the table below the paragraph that starts with this title."""
    text = (call_trace.ROOT / "ARCHITECTURE.md").read_text()
    _, _, below = text.partition(f"**{title}**")
    table = below.partition("\n\n")[2].partition("\n\n")[0]
    rows = [Call(*match.groups()) for match in ROW.finditer(table)]
    assert len(rows) == table.count("\n") - 1, "a row that is not a call"
    return rows


@pytest.mark.parametrize(
    "title, script",
    [("A task", TASK), ("The death of a worker", DEATH), ("An object", OBJECT)],
)
def test_a_way_is_as_architecture_describes_it(title: str, script: str, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("b\na\n")
    subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, env=call_trace.environment(tmp_path), check=True, timeout=100,
    )  # fmt: skip
    left = iter(call_trace.calls(tmp_path))
    for step in way(title):
        assert step in left, f"{step} is not called, or not after the steps above it"


@pytest.mark.parametrize("title", ["A task", "The death of a worker", "An object"])
def test_a_way_enters_no_file_often(title: str) -> None:
    steps = way(title)
    entries = Counter(
        (step.process, step.file)
        for before, step in zip([None, *steps], steps, strict=False)
        if before is None or before.file != step.file
    )
    assert max(entries.values()) <= ENTRIES_MAX
