"""Tests programs that a fork server (the parent) forks, with a real launcher and reactor: whatever
happens to the parent, each program runs once, and its end is reported.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.launch import DEV_NULL, File, LaunchSpec, Limits, ProgramExited, ProgramFailed, Standard
from ciel.launch.messages import Descriptor
from ciel.net.ticks import Ticks
from ciel.testing.homes import wait_for
from ciel.worker.attempts import forkserver
from ciel.worker.attempts.forkserver import encode_fork
from ciel.worker.attempts.launching import Launching

End = ProgramExited | ProgramFailed

SERVE = """import sys
from ciel.executors.programs.python.fork_server import serve
if sys.argv[1:] == ["serve"]:
    serve()
exec(sys.argv[-1])
"""
WHO = "print(b'serve' in open('/proc/self/cmdline', 'rb').read().split(b'\\0'))"
"""A script that prints whether its process was forked."""


class Forked:
    """Runs Python scripts, and keeps the report of each end, by launch id."""

    def __init__(self, in_reactor: Any, directory: Path) -> None:
        self.in_reactor = in_reactor
        self.directory = directory
        self.parent = [sys.executable, "-c", SERVE, "serve"]
        reactor = in_reactor.reactor
        self.launching: Launching = in_reactor(Launching, reactor, Ticks(reactor), os.environ)
        self.ends: dict[int, End] = {}
        self._changed = threading.Condition()

    def start(self, script: str, signals: tuple[int, ...] = ()) -> int:
        def ended(event: End) -> None:
            with self._changed:
                assert event.launch_id not in self.ends
                self.ends[event.launch_id] = event
                self._changed.notify_all()

        def begin() -> int:
            spec = LaunchSpec(
                [sys.executable, "-c", SERVE, script],
                cwd=str(self.directory),
                stdout=File(str(self.directory / "printed"), append=True),
                stderr=Standard.STDOUT,
            )
            parent = LaunchSpec(self.parent, stdout=DEV_NULL, stderr=Standard.STDOUT)
            launch_id = self.launching.start(spec, ended, None, parent)
            for number in signals:
                self.launching.kill(launch_id, number)
            return launch_id

        launch_id: int = self.in_reactor(begin)
        return launch_id

    def wait(self, launch_id: int) -> ProgramExited:
        with self._changed:
            assert self._changed.wait_for(lambda: launch_id in self.ends, 20), self.ends
        event = self.ends[launch_id]
        assert isinstance(event, ProgramExited)
        return event

    def parent_pid(self) -> int:
        """Return the process id of the parent; 0 if there is none."""
        for pid in self._children():
            try:
                if os.readlink(f"/proc/{pid}/fd/1") != os.devnull:
                    continue
                if b"\0serve\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
            except OSError:
                continue
        return 0

    def wait_for_parent(self, launches: list[int]) -> None:
        """Wait until there is a parent, or until these launches have ended without one."""
        ids = set(launches)
        wait_for(lambda: self.parent_pid() or self.ends.keys() >= ids, "the parent")

    def _children(self) -> list[int]:
        launcher = self.launching._launcher.pid
        children = Path(f"/proc/{launcher}/task/{launcher}/children")
        return [int(pid) for pid in children.read_text().split()]

    def printed(self) -> list[str]:
        return (self.directory / "printed").read_text().split()


@pytest.fixture
def forked(in_reactor: Any, tmp_path: Path) -> Iterator[Forked]:
    forked = Forked(in_reactor, tmp_path)
    yield forked
    in_reactor(forked.launching.close)


def test_the_first_is_started_and_the_others_are_forked(forked: Forked) -> None:
    assert forked.wait(forked.start(WHO)).exit_status == 0
    assert not forked.parent_pid()
    for _ in range(3):
        assert forked.wait(forked.start(WHO)).exit_status == 0
    assert forked.printed() == ["False", "True", "True", "True"]
    assert forked.in_reactor(lambda: forked.launching.parent_count) == 1


def test_a_parent_that_is_killed_at_any_moment_costs_no_program(forked: Forked) -> None:
    dice = random.Random(49)
    script = "import os; os.write(1, b'{0}\\n'); sys.exit({0})"
    forked.wait(forked.start("pass"))
    for _ in range(25):
        began = [forked.start(script.format(n)) for n in (1, 2, 3)]
        forked.wait_for_parent(began)
        time.sleep(dice.choice([0, 0.001, 0.003, 0.01, 0.05, 0.06]))
        if pid := forked.parent_pid():
            os.kill(pid, signal.SIGKILL)
        assert [forked.wait(n).exit_status for n in began] == [1, 2, 3]
    assert sorted(forked.printed()) == ["1"] * 25 + ["2"] * 25 + ["3"] * 25


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_that_comes_before_the_process_is_not_lost(forked: Forked, number: int) -> None:
    forked.wait(forked.start("pass"))
    for _ in range(3):
        end = forked.wait(forked.start("import time; time.sleep(60)", (number,)))
        assert end.signal_name == signal.Signals(number).name


@pytest.mark.slow
def test_a_parent_that_hangs_is_replaced(forked: Forked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "SILENCE_MAX_S", 2.0)  # a busy host delays an answer
    forked.wait(forked.start(WHO))
    forked.wait(forked.start(WHO))
    hung = forked.parent_pid()
    assert hung  # a signal to process 0 would stop the tests
    os.kill(hung, signal.SIGSTOP)
    forked.wait(forked.start(WHO))
    forked.wait(forked.start(WHO))
    assert forked.printed() == ["False", "True", "False", "True"]
    assert forked.parent_pid() not in (0, hung)


@pytest.mark.slow
def test_a_parent_that_hangs_is_noticed_while_others_ask_it(
    forked: Forked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "SILENCE_MAX_S", 2.0)  # a busy host delays an answer
    forked.wait(forked.start("pass"))
    forked.wait(forked.start("pass"))
    hung = forked.parent_pid()
    assert hung  # a signal to process 0 would stop the tests
    os.kill(hung, signal.SIGSTOP)
    began = [forked.start("pass")]
    while began[0] not in forked.ends and len(began) < 100:
        time.sleep(0.1)
        began.append(forked.start("pass"))
    assert len(began) < 100
    assert [forked.wait(n).exit_status for n in began] == [0] * len(began)


def test_a_parent_that_cannot_begin_is_not_tried_again(forked: Forked) -> None:
    forked.parent = [sys.executable, "-c", "open('begun', 'a').write('1'); exit(1)"]
    forked.parent[2] = f"open({str(forked.directory / 'begun')!r}, 'a').write('1'); exit(1)"
    for _ in range(4):
        forked.wait(forked.start(WHO))
    assert forked.printed() == ["False"] * 4
    assert (forked.directory / "begun").read_text() == "1"


@pytest.mark.slow
def test_a_parent_that_has_nothing_to_do_with_it_costs_no_program(
    forked: Forked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "SILENCE_MAX_S", 2.0)  # a busy host delays an answer
    begun = forked.directory / "begun"
    forked.parent = ["sh", "-c", f"echo 1 >> {begun}; exec sleep 60"]
    for _ in range(3):
        forked.wait(forked.start(WHO))
    assert forked.printed() == ["False"] * 3
    assert begun.read_text() == "1\n", "another one would not answer either"


def test_when_the_launcher_dies_what_was_asked_for_has_an_end(forked: Forked) -> None:
    forked.wait(forked.start("pass"))
    for _ in range(5):
        launch_id = forked.start("import time; time.sleep(60)")
        os.kill(forked.launching._launcher.pid, signal.SIGKILL)
        assert forked.wait(launch_id).signal_name == "SIGKILL"
        assert forked.wait(forked.start("sys.exit(4)")).exit_status == 4


def test_what_a_parent_does_not_make_is_not_asked_of_it() -> None:
    usual: dict[str, Any] = {"stdout": File("out", append=True), "stderr": Standard.STDOUT}
    assert encode_fork(1, LaunchSpec(["x"], **usual)) is not None
    others: list[dict[str, Any]] = [
        {"stdin": Descriptor(0)},
        {"stdout": File("out")},
        {"stdout": Standard.INHERITED},
        {"stderr": DEV_NULL},
        {"limits": Limits(open_files=5)},
        {"at_most": 2},
        {"env": {"A": b"\xff"}},
        {"cwd": "a\0b"},
    ]
    for other in others:
        assert encode_fork(1, LaunchSpec(["x"], **(usual | other))) is None, other
