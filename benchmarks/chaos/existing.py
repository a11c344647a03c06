"""Rows that tests of the project measure at full size already: these rows run these tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Final

from benchmarks.chaos.cluster import PATIENCE_S
from benchmarks.chaos.rows import CannotRunError, Figure, Findings, Note, Setting, row
from benchmarks.chaos.table import ROOT

TESTS_MAX_S: Final = 800


def run_tests(setting: Setting, *tests: str) -> Findings:
    """Run tests by their ids; the figures count the tests that passed and failed."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
        f"--timeout={PATIENCE_S:.0f}", f"--basetemp={setting.directory}/tests", *tests,
    ]  # fmt: skip
    environ = {name: value for name, value in os.environ.items() if name != "TEST_SESSION"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=TESTS_MAX_S
    )
    counts = {
        kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)
    }
    if done.returncode == 4 or not counts:
        raise RuntimeError(f"the tests did not run: {(done.stdout + done.stderr)[-400:]}")
    if counts.get("skipped") and not counts.get("passed"):
        raise CannotRunError(f"its tests are skipped here: {done.stdout[-200:]}")
    yield Figure("tests passed", counts.get("passed", 0), "", 1, at_most=False)
    yield Figure("tests failed", counts.get("failed", 0) + counts.get("error", 0), "", 0)
    for line in re.findall(r"^FAILED (.*)", done.stdout, re.MULTILINE):
        yield Note(line[:200])


@row(
    "W5",
    "1,000 programs end by SIGSEGV, with exit status 3, or write nothing, 10 MB or no UTF-8",
    "each is reported as what it was, with the end of its standard error",
    "1,000 of 1,000 right; slots, descriptors and memory as before (test_greedy_programs)",
)
def _misbehaving_programs(setting: Setting) -> Findings:
    yield from run_tests(
        setting, "tests/integration/bad_input/test_greedy_programs.py",
        "tests/executors/test_python_inputs.py", "tests/worker/interactive/test_ends.py",
    )  # fmt: skip


@row(
    "M8",
    "messages are lost, repeated and reordered, processes crash, disks tear writes",
    "the invariants G1 to G6 hold after each step, and the jobs end after the last fault",
    "0 violations in 1,000 seeds each with and without crashes of the master (the simulator)",
    limit_s=1800,
)
def _simulated_messages(setting: Setting) -> Findings:
    seeds, violations, tasks, took_s = setting.count(1000, 20), 0, 0, 0.0
    for scenario in ("any", "crashes"):
        command = [sys.executable, "-m", "ciel.testing.simulator", "--keep-going"]
        done = subprocess.run(
            [*command, "--scenario", scenario, "--seeds", f"1-{seeds}"],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        found = re.search(r"\d+ seeds in ([\d.]+) s .* (\d+) failed; (\d+) tasks", done.stdout)
        if found is None:
            raise RuntimeError(f"the simulator failed: {done.stdout[-300:]}{done.stderr[-300:]}")
        took_s += float(found[1])
        violations += int(found[2])
        tasks += int(found[3])
    yield Figure("seeds", 2 * seeds, "", 2 * seeds, at_most=False)
    yield Figure("violations", violations, "", 0)
    yield Figure("simulated tasks", tasks)
    yield Figure("seeds a second", 2 * seeds / took_s)


@row(
    "M11",
    "a program, a worker or a client of another version connects",
    "it is refused with one message that names both versions",
    "both versions named, on both sides (test_session, test_python_trouble)",
)
def _version_skew(setting: Setting) -> Findings:
    yield from run_tests(
        setting,
        "tests/wire/test_session.py::test_version_mismatch_names_both_versions_on_both_sides",
        "tests/wire/test_session.py::test_an_initiator_also_refuses_another_version",
        "tests/integration/python/test_trouble.py::test_calls_of_another_version_are_refused_in_one_line",
    )
