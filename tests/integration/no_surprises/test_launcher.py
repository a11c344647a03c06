"""Tests programs that signal the process that started them."""

from __future__ import annotations

import time

import pytest

from ciel.testing.homes import Home

pytestmark = pytest.mark.slow

UP = "ciel up --listen 127.0.0.1:0 --workers 1 --slots 1 >&2 || exit; "
DOWN = "; status=$?; ciel down >&2; exit $status"
LATE_S = 60.0  # the program would sleep much longer


@pytest.mark.parametrize(
    "number, why", [("STOP", "it ran longer than its limit"), ("KILL", "was killed by SIGKILL")]
)
def test_a_program_that_signals_its_launcher_leaves_the_worker_usable(
    home: Home, number: str, why: str
) -> None:
    script = (
        f"ciel submit --timeout 3 -- sh -c 'kill -{number} $PPID; sleep 600'; "
        "ciel submit -- echo usable"
    )
    begun_s = time.monotonic()
    done = home.run("sh", "-c", UP + script + DOWN)
    assert done.stdout.split() == ["usable"], done.stderr
    assert time.monotonic() - begun_s < LATE_S
    assert why in done.stderr
    assert not home.processes()
