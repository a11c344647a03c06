"""Reads how much memory this host and this process have, and how long tasks wait for memory."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")
_AMOUNT: Final = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_STALLED: Final = re.compile(r"^(some|full) avg10=(\d+(?:\.\d+)?) ", re.MULTILINE)


class HostMemory(NamedTuple):
    """The memory of a host. Of a value that the kernel does not tell, it is 0.

    `some_percent`: of the last ten seconds, the part in which a task waited for memory;
    `full_percent`: in which all tasks did.
    """

    total_bytes: int
    available_bytes: int
    swap_bytes: int
    some_percent: float
    full_percent: float


def read_host(proc: Path = PROC) -> HostMemory:
    """Read the memory of this host. `proc`: the directory with the kernel's files."""
    amounts = _amounts(proc / "meminfo")
    stalled = dict(_STALLED.findall(_text(proc / "pressure/memory")))
    return HostMemory(
        amounts.get("MemTotal", 0), amounts.get("MemAvailable", 0), amounts.get("SwapTotal", 0),
        float(stalled.get("some", 0)), float(stalled.get("full", 0)),
    )  # fmt: skip


def locked_bytes() -> int:
    """Return how much memory of this process cannot be swapped out."""
    return _amounts(PROC / "self/status").get("VmLck", 0)


def lockable_bytes(wanted_bytes: int) -> int:
    """Return how much of some memory this process may lock."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY or os.geteuid() == 0:
        return wanted_bytes
    return min(limit, wanted_bytes)


def _amounts(path: Path) -> dict[str, int]:
    return {name: int(kib) << 10 for name, kib in _AMOUNT.findall(_text(path))}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:  # a kernel without this file
        return ""
