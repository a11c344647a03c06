"""The preloaded parent: forks programs that run calls, each as if it had just been started
(docs/adr/0052). `ciel.worker.attempts.forkserver` is its other end.

A child is forked twice, so that it is an orphan and comes to the launcher, and says its number when
that has happened and it is all that it should be. Until the launcher has adopted it, it waits: it
bears the tag of this process, and is killed when that ends.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import site
import sys
from typing import Any

_REQUEST_BYTES = 1 << 20  # what a socket takes at once is less
_IDLE_S = 300.0
"""So long it stays when nothing is wanted: ten times as long as what it forked."""
_ADOPTED = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


def serve() -> None:
    """Fork a program for each request; returns in these only."""
    launcher = os.getppid()
    link = os.dup(0)
    _move(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir("/")  # where we began may be removed
    signal.pthread_sigmask(signal.SIG_BLOCK, [_ADOPTED])
    if len(os.listdir("/proc/self/task")) > 1 or len(os.listdir("/proc/self/fd")) > 5:
        raise SystemExit("a process with threads or files of others is no parent")  # 5: one lists
    gc.collect()
    gc.freeze()  # else the first collection of each child copied all that it never uses
    installed = _installed()
    while True:
        ready, _, _ = select.select([link], [], [], _IDLE_S)
        request = os.read(link, _REQUEST_BYTES) if ready else b""
        if not request or _installed() != installed:
            raise SystemExit
        launch_id, *wanted = json.loads(request)
        pid = _fork(launcher, link, wanted)
        if pid is None:
            return
        os.write(link, json.dumps([launch_id, pid]).encode())


def _installed() -> list[int]:
    """Return what changes when something is installed: children are to see that as others do."""
    places = [*site.getsitepackages(), site.getusersitepackages()]
    return [os.stat(place).st_mtime_ns for place in places if os.path.isdir(place)]


def _fork(launcher: int, link: int, wanted: list[Any]) -> int | None:
    """Return the number of a child that waits, 0 if none came to that; None: in this child."""
    reads_pid, writes_pid = os.pipe()
    reads_go, writes_go = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            if os.fork():
                os._exit(0)
            for number in (link, reads_pid, writes_go):
                os.close(number)
            _become(launcher, reads_go, writes_pid, wanted)
        except BaseException:  # an ordinary start will say more
            os._exit(1)
        return None
    os.close(writes_pid)
    os.close(reads_go)
    os.waitpid(between, 0)  # its child is an orphan now
    try:
        os.write(writes_go, b"1")
    except BrokenPipeError:
        pass
    said = os.read(reads_pid, 4)
    os.close(writes_go)
    os.close(reads_pid)
    return int.from_bytes(said, "little")


def _become(launcher: int, reads_go: int, writes_pid: int, wanted: list[Any]) -> None:
    """Be what was wanted, and wait until the launcher knows."""
    argv, directory, stdout, stderr, environ = wanted
    os.setsid()
    os.chdir(directory)
    for path, number in ((stdout, 1), (stderr, 2)):
        _move(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY, 0o666), number)
    for name, value in environ.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.argv = argv[1:]
    sys.orig_argv = argv
    importlib.invalidate_caches()
    if not os.read(reads_go, 1):
        os._exit(1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it died before that took effect
        os._exit(1)
    os.write(writes_pid, os.getpid().to_bytes(4, "little"))
    os.close(reads_go)
    os.close(writes_pid)
    signal.sigwait([_ADOPTED])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [_ADOPTED])


def _move(number: int, to: int) -> None:
    os.dup2(number, to)
    os.close(number)
