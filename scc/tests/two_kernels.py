"""Two virtual machines share the memory of one image of shmfs: `make check-two-kernels`.

Each machine runs a kernel of its own, as the cores of the SCC did. Both have a PCI device whose
memory is the same file of the host (`ivshmem-plain`). They share nothing else: no files, no
processes, no clock. The tools, and `two_kernels.c`, run in both.

`ciel.testing.virtual_machines` says what this needs. Shows CIB-21, CIB-30 and POOL-3.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow

from ciel.python import arrow_tables
from ciel.scc.tests import guest_jobs
from ciel.testing.virtual_machines import Guest, GuestError, archive, kernel

ROOT: Final = Path(__file__).resolve().parents[2]
TOOLS: Final = ("shminit", "shmld", "shmlist", "shmst", "shmrm", "shmdf", "shmfsck")
LIBRARY: Final = (
    "port", "superblock", "lock", "log", "fat", "inode", "directory", "file", "client", "copy",
    "check", "shmfs", "mpb", "mpb_pieces", "rcce", "device",
)  # fmt: skip
SHARED: Final = (
    "device_image", "files", "options", "printing", "asking", "loading", "io_token", "io_device",
)  # fmt: skip
FLAGS: Final = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-static")
MEMORY_MIB: Final = 64
KILLS: Final = int(os.environ.get("KILLS", "5"))
SETUP: Final = """
for device in /sys/bus/pci/devices/*; do
    [ "$(cat $device/device)" = 0x1110 ] && export SHMFS_NAME=$device/resource2
done
"""


def build(place: Path, *flags: str) -> dict[str, bytes]:
    """Compile the tools, and the program with `flags`; return their files."""
    sources = [ROOT / f"scc/src/{name}.c" for name in LIBRARY]
    sources += [ROOT / f"scc/tools/{name}.c" for name in SHARED]
    if "-DPORT_FLUSHING" in flags:
        sources.append(ROOT / "scc/src/flushing.c")
    include = [f"-I{ROOT}/{name}" for name in ("scc/include", "scc/src", "scc/tools",
                                                "executors/sdk/c")]  # fmt: skip
    mains = {name: [ROOT / f"scc/tools/{name}.c"] for name in TOOLS}
    mains["two_kernels"] = [
        ROOT / "scc/tests/two_kernels.c", ROOT / "executors/sdk/c/ciel_table.c",
    ]  # fmt: skip
    found = {}
    for name, main in mains.items():
        program = place / name
        own = flags if name == "two_kernels" else ()  # only coherent memory can be read unlocked
        subprocess.run(
            ["cc", *FLAGS, *own, *include, "-pthread", "-o", program, *main, *sources], check=True
        )
        found[f"bin/{name}"] = program.read_bytes()
    return found


def a_table(rows: int) -> bytes:
    """Return an object with a table of Arrow, in three chunks."""
    numbers = pyarrow.array(range(rows))
    table = pyarrow.table({"n": numbers, "text": pyarrow.array(["x"] * rows)})
    chunks = [table.slice(start, rows // 3 + 1) for start in range(0, rows, rows // 3 + 1)]
    return b"".join(map(bytes, arrow_tables.encode(pyarrow.concat_tables(chunks), 0.0)))


# --- the scenes -----------------------------------------------------------------------------------

ROWS: Final = 30_000


def share_files(one: Guest, other: Guest) -> None:
    """Let one machine commit files, and the other machine read them in place."""
    one.run("shminit --blocks 1500 --block-size 32KiB")
    one.run("shmld table init")
    expect(other.run("two_kernels table table"), f"{ROWS} rows, sum {sum(range(ROWS))}")
    expect(other.run("shmst init - | cmp - /init && echo the same"), "the same")
    other.run("shmrm init")
    expect([line.split()[-1] for line in one.run("shmlist").splitlines()], ["table"])


def work_together(one: Guest, other: Guest) -> None:
    """Both machines change the image at the same time."""
    for number, guest in enumerate((one, other), 1):
        guest.begin(f"two_kernels churn {number} & sleep 5; kill $!; wait $!; true")
    for guest in (one, other):
        commits = 0
        while not (line := guest.line()).startswith("=== "):
            commits += line.startswith("committed")
        print(f"  {commits} commits")
        if not commits:
            raise GuestError("a machine has committed nothing")
    expect(one.run("shmfsck --sweep").splitlines()[0], "2 dead clients swept")
    for guest in (one, other):
        guest.run("two_kernels verify && shmfsck")


def survive(place: Path, memory: Path, other: Guest, chance: random.Random, seed: int) -> None:
    """Kill a machine at a random moment; let the other machine recover the image."""
    committed: list[str] = []
    with machine(place, memory) as one:
        one.begin(f"two_kernels churn {seed}")
        other.begin("two_kernels churn 500 & sleep 4; kill $!; wait $!; true")
        until_s = time.monotonic() + chance.uniform(0.5, 3.0)
        while time.monotonic() < until_s:
            committed.append(one.line().removeprefix("committed "))
    while not other.line().startswith("=== "):
        pass
    swept = other.run("shmfsck --sweep").splitlines()
    expect(swept[0], "2 dead clients swept")
    right = other.run("two_kernels verify")
    names = {line.split()[-1] for line in other.run("shmlist").splitlines()}
    for name in committed[-10:]:
        if name not in names:
            raise GuestError(f"{name} was committed, and is not there")
    print(f"  killed after {len(committed)} commits; {right}, {swept[1].split()[-1]}")
    for name in names - {"table"}:
        other.run(f"shmrm {name}")


def expect(found: object, expected: object) -> None:
    """Raise GuestError if two values differ."""
    if found != expected:
        raise GuestError(f"expected {expected!r}, but found {found!r}")


def machine(place: Path, memory: Path) -> Guest:
    """Boot a machine that has the memory."""
    device = f"memory-backend-file,id=m,size={MEMORY_MIB}M,share=on,mem-path={memory}"
    return Guest(place, 256, ("-object", device, "-device", "ivshmem-plain,memdev=m"))


@contextmanager
def shared_memory(size_mib: int = MEMORY_MIB) -> Iterator[Path]:
    """Yield a file in memory for the device of both machines."""
    descriptor, path = tempfile.mkstemp(prefix="ciel-two-kernels-", dir="/dev/shm")
    os.truncate(descriptor, size_mib << 20)
    os.close(descriptor)
    try:
        yield Path(path)
    finally:
        os.unlink(path)


def check(place: Path, *flags: str) -> None:
    """Run all scenes with one build of the program."""
    files = {"setup": SETUP.encode(), "table": a_table(ROWS), **build(place, *flags)}
    (place / "initrd").write_bytes(archive(files))
    chance = random.Random(os.environ.get("SEED"))
    with shared_memory() as memory, machine(place, memory) as other:
        with machine(place, memory) as one:
            print("one machine commits, the other one reads in place")
            share_files(one, other)
            print("both change the image")
            work_together(one, other)
        print("one machine is killed")
        for seed in range(10, 10 + KILLS):
            survive(place, memory, other, chance, seed)
        expect(other.run("two_kernels table table"), f"{ROWS} rows, sum {sum(range(ROWS))}")


def main() -> int:
    """Run the check with two builds: coherent memory, and memory whose caches are flushed."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        found = kernel(place)
        shutil.copy(found.image, place / "kernel")
        try:
            for flags in ((), ("-DPORT_FLUSHING",)):
                print(" ".join(flags) or "coherent")
                check(place, *flags)
            print("two machines run jobs together")
            jobs = place / "jobs"
            jobs.mkdir()
            shutil.copy(found.image, jobs / "kernel")
            guest_jobs.prepare(jobs, found, SETUP)
            with shared_memory(guest_jobs.IMAGE_MIB) as memory:
                guest_jobs.work_together(jobs, memory)
        except GuestError as error:
            print(f"two kernels: {error}", file=sys.stderr)
            return 1
    print("two kernels share an image, and one survives the other")
    return 0


if __name__ == "__main__":
    sys.exit(main())
