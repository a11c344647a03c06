"""Limits the memory of running programs (see ADR 0018).

The worker counts the anonymous pages, resident and swapped out, of a program and of all processes
that it has started. Pages of files and of shared memory, such as a store's, do not count.
All processes that a program has started carry a tag of its launcher (see launcher.c), in whatever
session they are and whoever their parent is. If a launcher is among them, of a cluster that a task
has started, the processes with its tags count as well.

A check is cheap, and may count too much: pages that a program shares with its forks count twice. So
if several processes exceed a limit, a thread measures them before that is reported, which takes up
to 10 ms for each GiB.

A check takes 1.6 µs for each process on the host and 25 µs for each watched one. Checks take at
most a twentieth of the time, and so do the measurements of one program.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.net.ticks import DelayedCall
from ciel.worker.state.orders import Key

CHECK_S: Final = 0.05
_IDLE_FOR_EACH_BUSY = 19
_RLIMIT_LOCKS = 10  # carries the tag (see launcher.c); the resource module does not name it
_READ_BYTES = 64 << 10
_PARTS = re.compile(rb"^(PPid|RssAnon|VmSwap):\s+(\d+)", re.MULTILINE)
_SHARES = re.compile(rb"^(?:Pss_Anon|SwapPss):\s+(\d+)", re.MULTILINE)
_LAUNCHER = b"Name:\tciel-launcher\n"
_KCMP: Final = {"x86_64": 312, "aarch64": 272, "riscv64": 272}.get(os.uname().machine)
_KCMP_VM = 1
_libc = ctypes.CDLL(None)

log = Logger()

Tagged = dict[int, list[int]]
"""Processes by their tags."""


class _Process(NamedTuple):
    """A process, and an upper bound of its private memory."""

    pid: int
    parent: int
    own_bytes: int


class _Watched:
    """A program with a limit."""

    __slots__ = ("key", "limit_bytes", "measure_from_s", "pid", "tag")

    def __init__(self, key: Key, pid: int, tag: int, limit_bytes: int) -> None:
        self.key = key
        self.pid = pid
        self.tag = tag
        self.limit_bytes = limit_bytes
        self.measure_from_s = 0.0


class MemoryWatch:
    """Checks the memory of programs while any has a limit.

    Calls `exceeded` once for a program that exceeds its limit, with the memory that it has.
    """

    def __init__(self, reactor: Any, exceeded: Callable[[Key, int], None]) -> None:
        self._reactor = reactor
        self._exceeded = exceeded
        self._watched: dict[Key, _Watched] = {}
        self._due: DelayedCall | None = None

    def add(self, key: Key, pid: int, limit_bytes: int) -> None:
        """Start to check a program that the launcher has started."""
        tag = _tag(pid)
        if tag is None:
            return  # it has ended, which the launcher reports
        self._watched[key] = _Watched(key, pid, tag, limit_bytes)
        if self._due is None:
            self._due = self._reactor.callLater(CHECK_S, self._check)

    def remove(self, key: Key) -> None:
        """Stop checking; the attempt is over."""
        self._watched.pop(key, None)

    def close(self) -> None:
        self._watched.clear()
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _check(self) -> None:
        self._due = None
        if not self._watched:
            return
        start_s = time.monotonic()
        try:
            tagged = _tagged()
        except OSError as error:  # this process has no free descriptors
            log.warn("the memory of programs cannot be measured: {error}", error=error)
            tagged = {}
        for watched in list(self._watched.values()):
            if watched.pid in tagged.get(watched.tag, ()):  # else it has ended
                self._judge(watched, _processes(tagged, watched.tag))
        pause_s = max(CHECK_S, (time.monotonic() - start_s) * _IDLE_FOR_EACH_BUSY)
        self._due = self._reactor.callLater(pause_s, self._check)

    def _judge(self, watched: _Watched, processes: Sequence[_Process]) -> None:
        most_bytes = sum([process.own_bytes for process in processes])
        if most_bytes <= watched.limit_bytes:
            return
        if len(processes) == 1:
            self._report(watched, most_bytes)
        elif time.monotonic() >= watched.measure_from_s:
            self._measure(watched, processes)

    def _measure(self, watched: _Watched, processes: Sequence[_Process]) -> None:
        start_s = time.monotonic()
        watched.measure_from_s = float("inf")

        def measured(used_bytes: int) -> None:
            now_s = time.monotonic()
            watched.measure_from_s = now_s + (now_s - start_s) * _IDLE_FOR_EACH_BUSY
            if used_bytes > watched.limit_bytes:
                self._report(watched, used_bytes)

        deferToThread(_measured_bytes, processes).addCallback(measured).addErrback(
            lambda failure: log.failure("the memory of a program cannot be measured", failure)
        )

    def _report(self, watched: _Watched, used_bytes: int) -> None:
        if self._watched.get(watched.key) is watched:
            del self._watched[watched.key]
            self._exceeded(watched.key, used_bytes)


# --- reading /proc --------------------------------------------------------------------------------


def _tag(pid: int) -> int | None:
    """Return the tag of a process; None if it has none, is gone, or belongs to another user."""
    try:
        tag = resource.prlimit(pid, _RLIMIT_LOCKS)[0]
    except (ProcessLookupError, PermissionError):
        return None
    return None if tag == resource.RLIM_INFINITY else tag


def _tagged() -> Tagged:
    """Return the tagged processes of this host."""
    found: Tagged = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (tag := _tag(int(name))) is not None:
            found.setdefault(tag, []).append(int(name))
    return found


def _processes(tagged: Tagged, tag: int) -> list[_Process]:
    """Return the processes with a tag, and the processes that launchers among them have started."""
    found = []
    tags = [tag]
    for tag in tags:
        for pid in tagged.get(tag, ()):
            status = _read(pid, "status")
            parts = {name: int(value) for name, value in _PARTS.findall(status)}
            own_bytes = (parts.get(b"RssAnon", 0) + parts.get(b"VmSwap", 0)) * 1024
            found.append(_Process(pid, parts.get(b"PPid", 0), own_bytes))
            if status.startswith(_LAUNCHER):
                for child in _read(pid, f"task/{pid}/children").split():
                    other = _tag(int(child))
                    if other is not None and other not in tags:
                        tags.append(other)
    return found


def _measured_bytes(processes: Sequence[_Process]) -> int:
    """Return the memory of processes; a page that several of them share counts once.

    A process that was started by vfork shares all pages of its parent until it calls exec.
    """
    pids = {process.pid for process in processes}
    return sum(
        [
            _share_bytes(process)
            for process in processes
            if process.parent not in pids or not _is_one_memory(process.pid, process.parent)
        ]
    )


def _share_bytes(process: _Process) -> int:
    shares = _SHARES.findall(_read(process.pid, "smaps_rollup"))
    if not shares:  # it has ended, or runs as another user
        return process.own_bytes
    return sum([int(share) for share in shares]) * 1024


def _is_one_memory(pid: int, other: int) -> bool:
    if _KCMP is None:
        return False
    numbers = [ctypes.c_long(number) for number in (_KCMP, pid, other, _KCMP_VM, 0, 0)]
    return int(_libc.syscall(*numbers)) == 0


def _read(pid: int, name: str) -> bytes:
    """Read a file of a process; empty if the process is gone or the file cannot be read."""
    try:
        file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, _READ_BYTES)
    except OSError:
        return b""
    finally:
        os.close(file)
