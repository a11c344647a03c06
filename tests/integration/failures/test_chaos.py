"""Runs two short rows of the chaos driver as a user does: with real daemons, in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def test_a_killed_master_and_lost_answers_at_a_small_scale(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos", "--scale", "0.02", "M9", "M1"],
        cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True,
        timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Smaller than the rows say: scale 0.02." in done.stdout
    lines = {line.split(" | ")[0]: line for line in done.stdout.splitlines()}
    for figure in ("answers lost: 20;", "jobs beyond one for each key: 0;", "left behind: 0"):
        assert figure in lines["| M9"]
    for figure in ("wrong results: 0;", "tasks lost: 0;", "finished tasks that ran again: 0;"):
        assert figure in lines["| M1"]
    assert lines["| M9"].endswith("| met |"), done.stdout
    assert not [*tmp_path.iterdir()]
