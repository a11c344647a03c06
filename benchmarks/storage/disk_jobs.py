"""Measures the best number of concurrent disk jobs (CIB-41).

Several processes start at once, and each loads a file: all of them without a limit, one or two at a
time by a semaphore, or as many as an adaptive limit allows.

The disk is a model that all processes share (`modelled_disk.c`): 105 MB/s, and 8 ms more for a
request that does not follow the previous one in the same file; each request is a mebibyte. The
model is ten times as fast as that.
`ON_REAL_DISK=1` also loads from the disk of the temporary directory. The benchmark rewrites the
plot and the table of each disk that it has measured, in docs/measured/disk-jobs.md.
"""

from __future__ import annotations

import os
import secrets
import selectors
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product

from benchmarks.plots import line_chart, write_down
from benchmarks.plots import table as markdown
from ciel.core.admission import Admission, Policy
from ciel.storage.devices import Kind, device_of
from ciel.testing.c_programs import compiled

SCALE = 10.0
REQUESTS = 32  # of each load
LOADS = (1, 2, 4, 8, 16, 24, 32, 48)
RUNS = 3
REAL_LOADS = (1, 2, 4, 8, 16)
REAL_BYTES = 32 << 20
POLICIES = ("off", "1", "2", "adaptive")
MIB = 1 << 20
NAMES = {"off": "no limit", "1": "one at a time", "2": "two at a time", "adaptive": "adaptive"}

Curves = dict[str, list[tuple[float, float]]]
Rates = dict[tuple[str, int], list[float]]


class Loaders:
    """Processes that each load a file on request."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        pipe = subprocess.PIPE
        self._running = [subprocess.Popen(c, stdin=pipe, stdout=pipe) for c in commands]
        self._answers = selectors.DefaultSelector()
        for number, process in enumerate(self._running):
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError("a loader cannot reach its disk")
            self._answers.register(process.stdout, selectors.EVENT_READ, number)

    def __enter__(self) -> Loaders:
        return self

    def __exit__(self, *error: object) -> None:
        self._answers.close()
        for process in self._running:
            process.communicate()

    def start_load(self, number: int) -> None:
        """Make one process start its load."""
        pipe = self._running[number].stdin
        assert pipe is not None
        pipe.write(b"\n")
        pipe.flush()

    def done(self) -> Iterator[int]:
        """Yield the number of each process when its load is done, until all are done."""
        left = len(self._running)
        while left:
            for key, _ in self._answers.select():
                self._answers.unregister(key.fileobj)
                if self._running[key.data].wait():
                    raise RuntimeError("a load has failed")
                left -= 1
                yield key.data


def rate_of(loaders: Loaders, sizes: list[int], policy: str, *, is_rotating: bool) -> float:
    """Start all loads at once; return the bytes per second.

    If the policy is a number, the processes limit themselves by a semaphore. This function applies
    the adaptive limit, as a worker does.
    """
    chosen = Policy(adapts=True) if policy == "adaptive" else Policy()
    admission: Admission[int] = Admission(chosen, is_rotating=is_rotating)

    def start(numbers: list[int]) -> None:
        for number in numbers:
            admission.started(number, time.monotonic())
            loaders.start_load(number)

    started_s = time.monotonic()
    for number, size_bytes in enumerate(sizes):
        start(admission.request(number, size_bytes, started_s))
    for number in loaders.done():
        start(admission.end(number, time.monotonic()))
    return sum(sizes) / (time.monotonic() - started_s)


def _limit(policy: str) -> str:
    return policy if policy.isdecimal() else "0"


def modelling_program() -> str:
    """Compile `modelled_disk`; return its path."""
    sources = ("../benchmarks/storage/modelled_disk.c", "tools/io_token.c", "tools/io_device.c")
    return str(compiled("modelled_disk", sources))


def modelled(
    loads: Sequence[int], policies: Sequence[str], requests: int = REQUESTS, runs: int = RUNS
) -> Curves:
    """Measure on the model; return the medians of some runs.

    The unit is bytes per second of the disk that is modelled, not of the faster model.
    """
    program, device = modelling_program(), f"0-{secrets.randbits(60)}"
    rates: Rates = {}
    with tempfile.TemporaryDirectory(prefix="modelled-disk-", dir="/dev/shm") as directory:
        for run, count, policy in product(range(runs), loads, policies):
            model = f"{directory}/{run}-{count}-{policy}"
            commands = [
                    [program, "model", model, str(number + 1), str(requests), str(SCALE),
                     _limit(policy), device]
                    for number in range(count)
                ]  # fmt: skip
            with Loaders(commands) as loaders:
                sizes = [requests * MIB] * count
                rate = rate_of(loaders, sizes, policy, is_rotating=True) / SCALE
            rates.setdefault((policy, count), []).append(rate)
    return _medians(rates)


def _medians(rates: Rates) -> Curves:
    curves: Curves = {}
    for (policy, count), found in rates.items():
        curves.setdefault(policy, []).append((count, statistics.median(found)))
    return curves


@contextmanager
def files(
    count: int,
    size_bytes: int,
    place: str | None = None,
    content: Callable[[int], bytes] = os.urandom,
) -> Iterator[list[str]]:
    """Create files on the disk of a directory: by default, of the directory for temporary files."""
    with tempfile.TemporaryDirectory(prefix="ciel-disk-", dir=place) as directory:
        paths = [f"{directory}/{number}" for number in range(count)]
        for path in paths:
            with open(path, "wb") as file:
                for _ in range(size_bytes // MIB):
                    file.write(content(MIB))
                os.fsync(file.fileno())
        yield paths


def forget(path: str) -> None:
    """Make the kernel drop the cached pages of a file."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def real(loads: Sequence[int], policies: Sequence[str], size_bytes: int = REAL_BYTES) -> Curves:
    """Measure on the disk of the temporary directory; return the median of some runs."""
    program, place = modelling_program(), device_of(tempfile.gettempdir())
    rates: Rates = {}
    with files(max(loads), size_bytes) as paths:
        for _, count, policy in product(range(RUNS), loads, policies):
            for path in paths[:count]:
                forget(path)
            commands = [
                [program, "real", path, "0", "0", "0", _limit(policy), place.name]
                for path in paths[:count]
            ]
            sizes, rotates = [size_bytes] * count, place.kind is Kind.ROTATING
            with Loaders(commands) as loaders:
                rate = rate_of(loaders, sizes, policy, is_rotating=rotates)
            rates.setdefault((policy, count), []).append(rate)
    return _medians(rates)


def table(curves: Curves) -> str:
    """Return curves as a Markdown table, in MB/s."""
    loads = [int(count) for count, _ in next(iter(curves.values()))]
    rows = [
        [str(count), *(f"{points[row][1] / 1e6:,.0f}" for points in curves.values())]
        for row, count in enumerate(loads)
    ]
    return markdown(["loads at once", *(NAMES.get(policy, policy) for policy in curves)], rows)


def show(name: str, title: str, curves: Curves) -> None:
    """Draw a plot, and write the table into the text between the marks of that name."""
    megabytes = {
        NAMES.get(p, p): [(n, rate / 1e6) for n, rate in points] for p, points in curves.items()
    }
    chart = line_chart(title, "loads at once", "MB/s", megabytes, by_doubling=True)
    write_down("disk-jobs", name, table(curves), {name: chart})


def measure() -> dict[str, float]:
    """Measure, write the page, and return each policy's rate as a ratio to the rate of one load.

    For `off` it is the highest ratio over all numbers of loads, and should be low. For every other
    policy it is the lowest ratio, and should be high.
    """
    curves = modelled(LOADS, POLICIES)
    show("disk-jobs", "A modelled disk of 105 MB/s and 8 ms", curves)
    if os.environ.get("ON_REAL_DISK") == "1":
        found = real(REAL_LOADS, (*POLICIES[:3], "4", "adaptive"))
        show("disk-jobs-here", "The disk of the machine that measured", found)
    # for a single load, all limits are equal
    alone = statistics.median(points[0][1] for points in curves.values())
    crowded = {p: [rate for n, rate in points if n > 1] for p, points in curves.items()}
    return {
        "alone_mb_per_s": alone / 1e6,
        "unlimited_to_alone": max(crowded["off"]) / alone,
        "one_to_alone": min(crowded["1"]) / alone,
        "two_to_alone": min(crowded["2"]) / alone,
        "adaptive_to_alone": min(crowded["adaptive"]) / alone,
        "adaptive_48_to_alone": crowded["adaptive"][-1] / alone,
    }


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:22} {value:8.3f}")
