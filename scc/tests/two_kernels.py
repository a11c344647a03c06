"""Two virtual machines share the memory of one image of shmfs: `make check-two-kernels`.

Each machine runs a kernel of its own, as the cores of the SCC did. Both have a PCI device whose
memory is the same file of the host (`ivshmem-plain`). They share nothing else: no files, no
processes, no clock. The tools, and `two_kernels.c`, run in both.

Needs Debian's packages qemu-system-x86 and busybox-static. The kernel comes from KERNEL, from
/boot, or from Debian's package of the kernel for clouds, which is downloaded.
"""

from __future__ import annotations

import gzip
import os
import random
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyarrow

from ciel.python import arrow_tables

ROOT: Final = Path(__file__).parents[2]
TOOLS: Final = ("shminit", "shmld", "shmlist", "shmst", "shmrm", "shmdf", "shmfsck")
LIBRARY: Final = (
    "port", "superblock", "lock", "log", "fat", "inode", "directory", "file", "client", "copy",
    "check", "shmfs",
)  # fmt: skip
SHARED: Final = ("device", "files", "options", "printing", "loading", "io_token", "io_device")
FLAGS: Final = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-static")
MEMORY_MIB: Final = 64
BOOT_S: Final = 120.0
COMMAND_S: Final = 60.0
KILLS: Final = int(os.environ.get("KILLS", "5"))
INIT: Final = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin
for device in /sys/bus/pci/devices/*; do
    [ "$(cat $device/vendor)" = 0x1af4 ] && export SHMFS_NAME=$device/resource2
done
stty -echo -onlcr </dev/ttyS0
echo '=== 0' >/dev/ttyS0
while read -r line; do eval "$line"; done </dev/ttyS0 >/dev/ttyS0 2>&1
"""


class GuestError(Exception):
    """A machine does not answer, or a command has failed in it."""


class Guest:
    """A virtual machine, whose shell reads commands from its serial line."""

    def __init__(self, place: Path, memory: Path) -> None:
        device = f"memory-backend-file,id=m,size={MEMORY_MIB}M,share=on,mem-path={memory}"
        self._process = subprocess.Popen(
            ["qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "256", "-net", "none",
             "-no-reboot", "-display", "none", "-monitor", "none", "-serial", "stdio",
             "-kernel", place / "kernel", "-initrd", place / "initrd",
             "-append", "console=ttyS0 quiet panic=-1",
             "-object", device, "-device", "ivshmem-plain,memdev=m"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._pending = ""
        while not self.line(BOOT_S).endswith("=== 0"):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.kill()

    def begin(self, command: str) -> None:
        """Start a command in the foreground."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}; echo '=== '$?\n".encode())
        self._process.stdin.flush()

    def line(self, timeout_s: float = COMMAND_S) -> str:
        """Return the next line that the machine prints."""
        until_s = time.monotonic() + timeout_s
        assert self._process.stdout is not None
        while "\n" not in self._pending:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not select.select([self._process.stdout], [], [], left_s)[0]:
                raise GuestError(f"a machine was silent for {timeout_s:g} s: {self._pending!r}")
            piece = os.read(self._process.stdout.fileno(), 65536)
            if not piece:
                raise GuestError(f"a machine has ended: {self._pending!r}")
            self._pending += piece.decode(errors="replace")
        line, _, self._pending = self._pending.partition("\n")
        return line.rstrip("\r")

    def run(self, command: str, timeout_s: float = COMMAND_S) -> str:
        """Run a command that must succeed; return what it prints."""
        self.begin(command)
        printed = []
        while not (line := self.line(timeout_s)).startswith("=== "):
            printed.append(line)
        text = "\n".join(printed)
        if line != "=== 0":
            raise GuestError(f"{command} ended with status {line[4:]}: {text}")
        return text

    def kill(self) -> None:
        """End the machine at once, as a power cut does."""
        self._process.kill()
        self._process.communicate()


# --- the machines' files --------------------------------------------------------------------------


def entry(name: str, mode: int, content: bytes = b"") -> bytes:
    """Return an entry of an archive in the format `newc` of cpio."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
    head += bytes(-len(head) % 4)
    return head + content + bytes(-len(content) % 4)


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return an initial file system with these programs and files."""
    found = b"".join(entry(name, 0o40755) for name in ("bin", "dev", "proc", "sys"))
    found += b"".join(entry(name, 0o100755, content) for name, content in files.items())
    return gzip.compress(found + entry("TRAILER!!!", 0), 1)


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


def kernel(place: Path) -> Path:
    """Return the kernel that the machines boot."""
    if given := os.environ.get("KERNEL"):
        return Path(given)
    if installed := sorted(Path("/boot").glob("vmlinuz-*")):
        return installed[-1]
    names = subprocess.run(
        ["apt-cache", "depends", "linux-image-cloud-amd64"], capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    found = re.search(r"Depends: (linux-image-\S+)", names)
    if found is None:
        raise GuestError("there is no kernel: set KERNEL, or run apt-get update")
    subprocess.run(["apt-get", "download", "-qq", found[1]], cwd=place, check=True)
    (package,) = place.glob("linux-image-*.deb")
    subprocess.run(["dpkg", "-x", package, place / "package"], check=True)
    return next((place / "package/boot").glob("vmlinuz-*"))


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
    with Guest(place, memory) as one:
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


@contextmanager
def shared_memory() -> Iterator[Path]:
    """Yield a file in memory for the device of both machines."""
    descriptor, path = tempfile.mkstemp(prefix="ciel-two-kernels-", dir="/dev/shm")
    os.truncate(descriptor, MEMORY_MIB << 20)
    os.close(descriptor)
    try:
        yield Path(path)
    finally:
        os.unlink(path)


def check(place: Path, *flags: str) -> None:
    """Run all scenes with one build of the program."""
    busybox = shutil.which("busybox")
    if busybox is None or shutil.which("qemu-system-x86_64") is None:
        raise GuestError("install qemu-system-x86 and busybox-static")
    files = {"init": INIT.encode(), "bin/busybox": Path(busybox).read_bytes(),
             "table": a_table(ROWS)}  # fmt: skip
    (place / "initrd").write_bytes(archive(files | build(place, *flags)))
    chance = random.Random(os.environ.get("SEED"))
    with shared_memory() as memory, Guest(place, memory) as other:
        with Guest(place, memory) as one:
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
        shutil.copy(kernel(place), place / "kernel")
        try:
            for flags in ((), ("-DPORT_FLUSHING",)):
                print(" ".join(flags) or "coherent")
                check(place, *flags)
        except GuestError as error:
            print(f"two kernels: {error}", file=sys.stderr)
            return 1
    print("two kernels share an image, and one survives the other")
    return 0


if __name__ == "__main__":
    sys.exit(main())
