"""Determines how much memory programs may use: the host's, or the limit of the control group."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
_V2_LIMIT, _V1_LIMIT = "memory.max", "memory.limit_in_bytes"


def memory_of_host(root: Path = Path("/")) -> int:
    """Return the number of bytes; 0 if it cannot be determined."""
    total = _TOTAL.search(_read(root / "proc/meminfo"))
    known = [int(total[1]) * 1024] if total is not None else []
    return min([*known, *_limits(root)], default=0)


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of this process's control groups, of version 1 or 2."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        kinds, _, place = rest.partition(":")
        if kinds == "":
            top, name = root / "sys/fs/cgroup", _V2_LIMIT
        elif "memory" in kinds.split(","):
            top, name = root / "sys/fs/cgroup/memory", _V1_LIMIT
        else:
            continue
        own = top / place.lstrip("/")
        for group in (own, *own.parents):
            limit = _read(group / name).strip()
            if limit.isdecimal():
                yield int(limit)
            if group == top:
                break


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
