"""Checks copies of an array that one task produces and four read, on one host with a store in
memory: it is stored once, copied once by its producer (not at all with `ciel.empty`), and by no
reader.

The evidence is what the kernel counts for programs and daemons: bytes read and written by system
calls, and peaks of memory. The array that is created in the store has 1 GiB, which takes 1.5 s; the
plain one has 64 MiB, or 1 GiB with CIEL_LONG=1. `make arrays` prints the counts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pytest

import ciel
from ciel.testing.homes import processes_below

pytestmark = pytest.mark.slow

IS_LONG = os.environ.get("CIEL_LONG") == "1"
GIB, SHORT_BYTES = 1 << 30, 64 << 20
INSTANCE = f"arrays-{os.getpid()}"  # of the store
READERS = 4
SMALL_BYTES = 16 << 20
"""Room for buffers, pickles and modules, but not for a copy."""

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Use(NamedTuple):
    """Bytes that a process has read and written by system calls, its private memory, and its peak
    memory, mapped pages of the store included.
    """

    read_bytes: int
    written_bytes: int
    own_bytes: int
    peak_bytes: int


def use_of(pid: int) -> Use:
    counted = Path(f"/proc/{pid}/io").read_text()
    status = Path(f"/proc/{pid}/status").read_text()
    io = [int(re.findall(rf"{name}: (\d+)", counted)[0]) for name in ("rchar", "wchar")]
    memory = [int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) for name in ("RssAnon", "VmHWM")]
    return Use(*io, *(kib << 10 for kib in memory))


class Watch:
    """Measures what processes use from now on."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        for pid in pids.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the peak
        self._before = {name: use_of(pid) for name, pid in pids.items()}

    def used(self) -> dict[str, Use]:
        """Return the increase since the start; for the peak, the excess over the initial private
        memory.
        """
        found = {}
        for name, pid in self._pids.items():
            before, now = self._before[name], use_of(pid)
            found[name] = Use(
                now.read_bytes - before.read_bytes, now.written_bytes - before.written_bytes,
                now.own_bytes - before.own_bytes, now.peak_bytes - before.own_bytes,
            )  # fmt: skip
        return found


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    store = f"shm:capacity=4GiB,instance={INSTANCE}"
    directory = tmp_path_factory.mktemp("arrays")
    options: Any = {"store": store, "directory": directory}
    with (
        # With verification the worker also reads the array for its checksum, twice.
        ciel.LocalCluster(workers=1, slots=2, verify="never", **options) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


def segments() -> dict[str, int]:
    """Return the sizes in memory of the large files of the cluster's store, by inode."""
    found = {}
    for path in Path(f"/dev/shm/ciel-{INSTANCE}").glob("**/*"):
        try:
            size_bytes = path.stat().st_blocks * 512
        except OSError:
            continue  # it has just been deleted
        if size_bytes > SMALL_BYTES and path.is_file():
            found[str(path.stat().st_ino)] = size_bytes
    return found


def make_in_store(count: int) -> Any:
    made = ciel.empty(count, "float64")
    made.fill(1)
    return made


def make_plainly(count: int) -> Any:
    return np.ones(count)


def add_up(array: Any) -> tuple[float, int]:
    return float(array.sum()), os.getpid()


def meet() -> int:
    """Run in both programs at the same time."""
    import time

    time.sleep(0.2)
    return os.getpid()


def pid_of(_: Any) -> int:
    return os.getpid()


@pytest.mark.parametrize(
    "make, copies, array_bytes",
    [(make_plainly, 1, GIB if IS_LONG else SHORT_BYTES), (make_in_store, 0, GIB)],
)
def test_an_array_is_copied_at_most_by_its_producer(
    client: ciel.Client, make: Any, copies: int, array_bytes: int
) -> None:
    count = array_bytes // 8
    programs = set(client.gather([client.submit(meet) for _ in range(2)]))
    client.gather([client.submit(add_up, np.ones(10)) for _ in range(8)])  # so that numpy is loaded
    daemons = {
        pid: command
        for pid, command in processes_below(os.getpid()).items()
        if "ciel.cli" in command
    }
    named = {f"program {n}": pid for n, pid in enumerate(sorted(programs))}
    named |= {re.findall(r"ciel\.cli\.(\w+)", line)[0]: pid for pid, line in daemons.items()}
    before = segments()
    watch = Watch(named)
    array = client.submit(make, count)
    ciel.wait([array])
    made = watch.used()
    watch = Watch(named)
    found = client.gather([client.submit(add_up, array) for _ in range(READERS)])
    read = watch.used()
    stored = [size for name, size in segments().items() if name not in before]
    tell(f"{make.__name__}: {array_bytes >> 20} MiB", made, read, stored)
    assert [total for total, _ in found] == [count] * READERS
    assert {pid for _, pid in found} <= programs  # all of them were watched

    written = [use.written_bytes for use in made.values() if use.written_bytes > SMALL_BYTES]
    assert len(written) == copies
    assert sum(written) < copies * array_bytes + SMALL_BYTES
    assert max(use.read_bytes for use in made.values()) < SMALL_BYTES
    # No process ever held two copies, private and mapped pages together.
    assert max(use.peak_bytes for use in made.values()) < array_bytes * 3 // 2
    for name, use in read.items():
        assert use.read_bytes + use.written_bytes < SMALL_BYTES, name
        assert use.own_bytes < SMALL_BYTES, name
        assert use.peak_bytes < array_bytes * 3 // 2, name
    assert len(stored) <= 1
    assert sum(stored) <= array_bytes + SMALL_BYTES


def tell(name: str, made: dict[str, Use], read: dict[str, Use], stored: list[int]) -> None:
    print(f"\n{name}; stored: {[size >> 20 for size in stored]} MiB")
    print(f"{'MiB':>22} {'read':>6} {'written':>8} {'own':>6} {'peak':>6}")
    for what, uses in (("made", made), ("read 4 times", read)):
        for process, use in uses.items():
            r, w, own, peak = (size >> 20 for size in use)
            print(f"{what:>12} {process:>9} {r:6} {w:8} {own:6} {peak:6}")
