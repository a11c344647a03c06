"""A virtual machine swaps to the memory of two servers: `make check-swap`. Shows NET-2 and NET-7.

The machine has less memory than its programs need, and a volume as its only disk. Its sorts must be
right, also when a server is killed. The same sorts then swap to the memory of nbdkit and to a
modelled disk, for comparison: the disk serves one request at a time, each in SEEK_MS.

Needs Debian's packages nbdkit, nbdkit-plugin-dev, qemu-system-x86 and busybox-static.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from ciel.testing.homes import Home, wait_for
from ciel.testing.memory.cluster import MemoryCluster
from ciel.testing.virtual_machines import (
    Guest,
    GuestError,
    Kernel,
    SilentGuestError,
    archive,
    kernel,
)

MEMORY_MIB: Final = 192
SORT_MIB: Final = int(os.environ.get("SORT_MIB", "400"))
SORTS: Final = 8  # at the same time, with as much memory together
VOLUME_MIB: Final = 2 * SORT_MIB
OFFER_MIB: Final = VOLUME_MIB + 64
SEEK_MS: Final = 6  # nbdkit takes whole numbers; the thesis had a disk of 6.5 ms
LIMIT_S: Final = 1800.0
MODULES: Final = (
    "virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci",
    "virtio_blk",
)  # fmt: skip


class Taken(NamedTuple):
    """How long a machine took for one sort, and for several at the same time, in seconds.

    A time may be a limit, at which the machine was stopped.
    """

    one_s: float
    several_s: float


GOALS: Final = Taken(2.0, 10.0)
"""How many times as fast as on the disk the sorts shall be; the thesis reached this."""


@contextmanager
def nbdkit(place: Path, *words: str) -> Iterator[str]:
    """Serve memory of nbdkit itself; yield the path of the socket."""
    socket = place / "nbdkit"
    command = ["nbdkit", "-f", "-U", str(socket), *words]
    with subprocess.Popen(command) as serving:
        try:
            wait_for(socket.exists, "nbdkit")
            yield str(socket)
        finally:
            serving.terminate()
    socket.unlink()


# --- the machine ----------------------------------------------------------------------------------


def build(place: Path, found: Kernel) -> None:
    """Write the kernel and the files of the machine."""
    source = Path(__file__).with_name("swap_sort.c")
    program = place / "swap_sort"
    flags = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static")
    subprocess.run(["cc", *flags, "-o", program, source], check=True)
    modules = {f"modules/{n}-{name}": found.module(name) for n, name in enumerate(MODULES)}
    files = {"bin/swap_sort": program.read_bytes(), **modules}
    shutil.copy(found.image, place / "kernel")
    (place / "initrd").write_bytes(archive(files))


def machine(place: Path, socket: str) -> Guest:
    """Boot a machine that swaps to the disk behind a socket."""
    disk = f"driver=nbd,node-name=disk,server.type=unix,server.path={socket}"
    guest = Guest(place, MEMORY_MIB, ("-blockdev", disk, "-device", "virtio-blk-pci,drive=disk"))
    try:
        guest.run("mkswap /dev/vda && swapon /dev/vda")
    except BaseException:
        guest.kill()
        raise
    return guest


def sort(guest: Guest, sizes_mib: Sequence[int], limit_s: float) -> float:
    """Sort in several processes at the same time; return how long that takes, at most the limit.

    Raises GuestError.
    """
    sorts = " ".join(f"swap_sort {mib} {seed} &" for seed, mib in enumerate(sizes_mib))
    waits = " && ".join(f"wait %{number}" for number in range(1, len(sizes_mib) + 1))
    begun_s = time.monotonic()
    try:
        guest.run(f"{sorts} {waits}", limit_s)
    except SilentGuestError:
        return limit_s
    return time.monotonic() - begun_s


def measure(place: Path, socket: str, what: str, limits: Taken) -> Taken:
    """Measure the sorts, each in a machine that has just booted, and is stopped at a limit."""
    found = []
    loads = ([SORT_MIB], [SORT_MIB // SORTS] * SORTS)
    for sizes_mib, limit_s in zip(loads, limits, strict=True):
        with machine(place, socket) as guest:
            taken_s = sort(guest, sizes_mib, limit_s)
            text = f"  {what}: {len(sizes_mib)} x {sizes_mib[0]} MiB "
            if taken_s == limit_s:
                print(f"{text}not sorted within {limit_s:.1f} s", flush=True)
            else:
                pages = int(guest.run("grep pswpout /proc/vmstat").split()[1])
                print(f"{text}sorted in {taken_s:.1f} s, {pages >> 8} MiB swapped out", flush=True)
                if pages >> 8 < SORT_MIB // 4:
                    raise GuestError("the machine has hardly swapped: set SORT_MIB")
            found.append(taken_s)
    return Taken(*found)


def kill_one(place: Path, cluster: MemoryCluster) -> None:
    """Sort, and kill a server meanwhile."""
    cluster.create("safe", VOLUME_MIB // 2, 2)
    with machine(place, cluster.export("safe").socket) as guest:
        killer = threading.Timer(5.0, cluster.kill, [next(iter(cluster.servers))])
        killer.start()
        try:
            taken_s = sort(guest, [SORT_MIB], LIMIT_S)
        finally:
            killer.cancel()
        if taken_s < 5.0:
            raise GuestError("the sort ended before the server was killed: set SORT_MIB")
        errors = guest.run("dmesg | grep -c 'I/O error' || true").split()[-1]
        if errors != "0":
            raise GuestError(f"the kernel has seen {errors} errors of the disk")
    print(f"  a server was killed: sorted in {taken_s:.1f} s, no error", flush=True)


def check(place: Path) -> None:
    """Run all scenes, and print the ratios."""
    build(place, kernel(place))
    (place / "home").mkdir()
    with ExitStack() as stack:
        cluster = MemoryCluster(Home(place / "home"), stack, f"{OFFER_MIB}MiB")
        print("the machine swaps to two memory servers", flush=True)
        unlimited = Taken(LIMIT_S, LIMIT_S)
        cluster.create("swap", VOLUME_MIB, 1)
        remote = measure(place, cluster.export("swap").socket, "remote memory", unlimited)
        print("with two replicas", flush=True)
        kill_one(place, cluster)
    print("the same machine, for comparison", flush=True)
    size = f"{VOLUME_MIB}M"
    with nbdkit(place, "memory", size) as socket:
        measure(place, socket, "memory of nbdkit", unlimited)
    limits = Taken(*[1.5 * goal * taken_s for goal, taken_s in zip(GOALS, remote, strict=True)])
    delays = (f"rdelay={SEEK_MS}ms", f"wdelay={SEEK_MS}ms")
    with nbdkit(place, "--threads", "1", "--filter=delay", "memory", size, *delays) as socket:
        disk = measure(place, socket, f"a disk of {SEEK_MS} ms", limits)
    for name, goal, ours_s, theirs_s in zip(Taken._fields, GOALS, remote, disk, strict=True):
        least = "at least " if theirs_s in limits else ""
        verdict = "met" if theirs_s / ours_s >= goal else "missed"
        what = name.removesuffix("_s")
        ratio = f"{least}{theirs_s / ours_s:.1f} x as fast as on the disk"
        print(f"{what}: {ratio} (goal {goal:g} x: {verdict})")


def main() -> int:
    """Run the check."""
    with tempfile.TemporaryDirectory(prefix="ciel-swap-") as directory:
        try:
            check(Path(directory))
        except (GuestError, AssertionError) as error:
            print(f"swap: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
