"""Starts daemons by fork from a process that has imported them, which takes a tenth of the time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable


class Child:
    """A process of the nursery, as `subprocess.Popen` describes one."""

    def __init__(self, pid: int, ended: Callable[[int], int | None]) -> None:
        self.pid = pid
        self._ended = ended
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._ended(self.pid)
        return self._status

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        deadline_s = time.monotonic() + (60.0 if timeout is None else timeout)
        while (status := self.poll()) is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        return status


class Nursery:
    """Starts `ciel-kv` daemons, in a `with`."""

    def __enter__(self) -> Nursery:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from ciel_tests.nursery import serve; serve()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(20)

    def spawn(self, arguments: list[str], environment: dict[str, str]) -> Child:
        """Start a daemon."""
        return Child(int(self._ask([arguments, environment])), self._ended)

    def _ended(self, pid: int) -> int | None:
        answer = self._ask(pid)
        return None if answer == "None" else int(answer)

    def _ask(self, question: object) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


def serve() -> None:
    """Start daemons, and reap them, as the lines of standard input say."""
    import twisted.internet.epollreactor

    assert twisted.internet.epollreactor
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            pid, status = os.waitpid(asked, os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if not answer:
                _become(*asked)
        print(answer, flush=True)


def _become(arguments: list[str], environment: dict[str, str]) -> None:
    """Be a daemon until it ends."""
    import ciel.cli.daemons.kv

    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    signal.set_wakeup_fd(-1)
    os.environ.update(environment)
    sys.argv = ["ciel-kv", *arguments]
    os._exit(ciel.cli.daemons.kv.main())
