"""Metrics in the text format of Prometheus, and the process metrics of every daemon.

A metric belongs to a *family*, which has one name, kind and help text. See ADR 0040.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_HELP_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})
_STARTED_AT_S: Final = time.time()

Labels = Mapping[str, str]


class Family(NamedTuple):
    """Metrics with one name.

    A counter only grows while its daemon runs, and its name ends in `_total`; a gauge may rise and
    fall. The name contains the unit: `_seconds`, `_bytes`.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: Iterable[tuple[Labels, float]]


def gauge(name: str, help: str, value: float) -> Family:
    """Make a gauge without labels."""
    return Family(name, "gauge", help, [({}, value)])


def counter(name: str, help: str, value: float) -> Family:
    """Make a counter without labels."""
    return Family(name, "counter", help, [({}, value)])


def render(families: Iterable[Family]) -> bytes:
    """Format families in the text format."""
    lines = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [f"{family.name}{_labels(at)} {_number(value)}" for at, value in family.samples]
    return ("\n".join(lines) + "\n").encode()


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = [f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()]
    return f"{{{','.join(pairs)}}}"


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if isinstance(value, int) else repr(float(value))


def process_families() -> list[Family]:
    """Return metrics of this process, under the names that Prometheus' own clients use."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    cpu_s = usage.ru_utime + usage.ru_stime
    files = len(os.listdir("/proc/self/fd"))
    limit: float = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        limit = math.inf
    resident = pages * resource.getpagesize()
    return [
        counter("process_cpu_seconds_total", "CPU time that this process has used.", cpu_s),
        gauge("process_resident_memory_bytes", "Resident memory of this process.", resident),
        gauge("process_open_fds", "Number of open file descriptors.", files),
        gauge("process_max_fds", "Maximum number of open file descriptors.", limit),
        gauge("process_start_time_seconds", "Start time since the epoch.", _STARTED_AT_S),
    ]
