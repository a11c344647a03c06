"""A fork server: forks programs that run calls from a process with all modules loaded.

See docs/adr/0052; `ciel.worker.attempts.forkserver` sends its requests. The server forks each child
twice, so that the child is an orphan and the launcher becomes its parent. The child sends its
process id when its set-up is done. Then it waits for a signal, which means that the launcher has
adopted it. Until then the child has the tag of this process, and is killed when this process ends.
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

_REQUEST_BYTES = 1 << 20  # more than a socket accepts at once
_IDLE_S = 300.0
"""The server exits after this time without a request. Forked programs exit after a tenth of it."""
_ADOPTED = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


def serve() -> None:
    """Fork a program for each request. Returns in the forked programs only."""
    launcher = os.getppid()
    link = os.dup(0)
    _move(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir("/")  # the current one may be removed
    signal.pthread_sigmask(signal.SIG_BLOCK, [_ADOPTED])
    if len(os.listdir("/proc/self/task")) > 1 or len(os.listdir("/proc/self/fd")) > 5:
        # The fifth descriptor is the one that lists the directory.
        raise SystemExit("a process with other threads or open files cannot fork programs")
    gc.collect()
    gc.freeze()  # otherwise the first collection of each child would copy all memory pages
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
    """Return when packages were installed last, for each directory.

    The server ends if this changes, so that new programs see new packages.
    """
    directories = [*site.getsitepackages(), site.getusersitepackages()]
    return [os.stat(path).st_mtime_ns for path in directories if os.path.isdir(path)]


def _fork(launcher: int, link: int, wanted: list[Any]) -> int | None:
    """Return the process id of a child that waits; 0 if its set-up failed; None in the child."""
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
        except (
            BaseException
        ):  # the worker then starts the program by itself, which reports the error
            os._exit(1)
        return None
    os.close(writes_pid)
    os.close(reads_go)
    os.waitpid(between, 0)  # now its child is an orphan
    try:
        os.write(writes_go, b"1")
    except BrokenPipeError:
        pass
    pid = os.read(reads_pid, 4)
    os.close(writes_go)
    os.close(reads_pid)
    return int.from_bytes(pid, "little")


def _become(launcher: int, reads_go: int, writes_pid: int, wanted: list[Any]) -> None:
    """Set this child up as the requested program, and wait until the launcher has adopted it."""
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
    if os.getppid() != launcher:  # the launcher died before that took effect
        os._exit(1)
    os.write(writes_pid, os.getpid().to_bytes(4, "little"))
    os.close(reads_go)
    os.close(writes_pid)
    signal.sigwait([_ADOPTED])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [_ADOPTED])


def _move(number: int, to: int) -> None:
    os.dup2(number, to)
    os.close(number)
