"""Tests with which directory, environment and open files each call starts.

Each test runs a separate process, since these belong to the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from ciel_tests import planted_fault


def printed(script: str, **variables: str) -> str:
    """Run a script with a new `ProcessState` and `Leaks`; return its output."""
    start = """\
    import os, sys
    import ciel_tests.planted_fault  # plants one for `.ci/faults`
    from ciel.executors.programs.python.leaks import Leaks
    from ciel.executors.programs.python.process_state import ProcessState

    leaks, state = Leaks(), ProcessState()
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(start) + dedent(script)],
        env=os.environ | variables | {"PYTHONPATH": str(Path(planted_fault.__file__).parents[1])},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


def test_a_call_sees_the_variables_of_its_client_only() -> None:
    script = """
    state.move("", {"OURS": None, "THEIRS": "1"})
    print(os.environ.get("OURS"), os.environ.get("THEIRS"))
    state.move("", {})
    print(os.environ.get("OURS"), os.environ.get("THEIRS"))
    """
    assert printed(script, OURS="0") == "None 1\n0 None\n"


def test_variables_that_a_call_sets_or_deletes_are_restored() -> None:
    script = """
    state.move("", {})
    del os.environ["OURS"]
    print(state.is_changed)
    os.environ["MORE"] = "1"
    state.restore()
    print(os.environ.get("OURS"), os.environ.get("MORE"))
    """
    assert printed(script, OURS="0") == "True\n0 None\n"


def test_standard_output_that_a_call_replaces_is_restored() -> None:
    script = """
    import io
    sys.stdout = io.StringIO()
    assert leaks.clear() == ""
    print("here")
    """
    assert printed(script) == "here\n"


def test_timers_and_the_recursion_limit_of_a_call_are_undone() -> None:
    script = """
    import signal
    usual = sys.getrecursionlimit()
    signal.setitimer(signal.ITIMER_REAL, 1000)
    sys.setrecursionlimit(usual + 7)
    assert leaks.clear() == ""
    print(signal.getitimer(signal.ITIMER_REAL)[0], sys.getrecursionlimit() == usual)
    """
    assert printed(script) == "0.0 True\n"


def test_a_thread_and_a_child_process_that_stay_are_reported() -> None:
    script = """
    import subprocess, threading
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="mine")
    thread.start()
    print(leaks.clear())
    over.set()
    thread.join()
    child = subprocess.Popen(["sleep", "60"])
    print(leaks.clear())
    child.kill()
    child.wait()
    print(leaks.clear() == "")
    """
    assert printed(script) == "threads running (mine)\nprocesses running\nTrue\n"
