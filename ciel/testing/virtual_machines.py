"""Virtual machines for checks: each boots Debian's kernel with programs of ours, and nothing else.

Needs Debian's packages qemu-system-x86 and busybox-static. The kernel comes from KERNEL, from
/boot, or from Debian's package of the kernel for clouds, which is downloaded. qemu emulates the
processors, since KVM does not work on each host that has it; ACCELERATION=kvm uses it.
"""

from __future__ import annotations

import gzip
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

BOOT_S: Final = 120.0
COMMAND_S: Final = 60.0
ACCELERATION: Final = os.environ.get("ACCELERATION", "tcg")
INIT: Final = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mkdir -p /dev/shm
/bin/busybox mount -t tmpfs shm /dev/shm
/bin/busybox --install -s /bin
export PATH=/bin
for module in /modules/*; do [ -e "$module" ] && insmod "$module"; done
[ -e /setup ] && . /setup
exec </dev/ttyS0 >/dev/ttyS0 2>&1 # from now on: what arrives while nothing has it open is lost
stty -echo -onlcr
echo '=== 0'
while read -r line; do eval "$line"; done
"""


class GuestError(Exception):
    """A machine does not answer, or a command has failed in it."""


class SilentGuestError(GuestError):
    """A machine does not answer in time."""


class Guest:
    """A virtual machine, whose shell reads commands from its serial line."""

    def __init__(self, place: Path, memory_mib: int, devices: Sequence[str]) -> None:
        """`place` has the files `kernel` and `initrd`; `devices`: further options of qemu.

        The machine has two processors: for a single one, qemu emulates atomic operations by several
        ordinary ones, and two machines that share memory would break each other's locks.
        """
        self._process = subprocess.Popen(
            ["qemu-system-x86_64", "-accel", ACCELERATION, "-cpu", "max", "-smp", "2",
             "-m", f"{memory_mib}",
             "-net", "none", "-no-reboot", "-display", "none", "-monitor", "none",
             "-serial", "stdio", "-kernel", place / "kernel", "-initrd", place / "initrd",
             "-append", "console=ttyS0 quiet panic=-1", *devices],
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
                text = f"a machine was silent for {timeout_s:g} s: {self._pending!r}"
                raise SilentGuestError(text)
            piece = os.read(self._process.stdout.fileno(), 65536)
            if not piece:
                raise GuestError(f"a machine has ended: {self._pending!r}")
            self._pending += piece.decode(errors="replace")
        line, _, self._pending = self._pending.partition("\n")
        return line.rstrip("\r")

    def run(self, command: str, timeout_s: float = COMMAND_S) -> str:
        """Run a command that must succeed; return its output."""
        self.begin(command)
        return self.finish(command, timeout_s)

    def finish(self, command: str, timeout_s: float = COMMAND_S) -> str:
        """Wait for the end of a command that must succeed; return its output."""
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


def entry(name: str, mode: int, content: bytes = b"") -> bytes:
    """Return an entry of an archive in the format `newc` of cpio."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
    head += bytes(-len(head) % 4)
    return head + content + bytes(-len(content) % 4)


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return an initial file system with busybox, and these programs and files.

    It loads the modules in the directory `modules`, in the order of their names, and runs the lines
    of the file `setup`.
    """
    busybox = shutil.which("busybox")
    if busybox is None or shutil.which("qemu-system-x86_64") is None:
        raise GuestError("install qemu-system-x86 and busybox-static")
    files = {"init": INIT.encode(), "bin/busybox": Path(busybox).read_bytes(), **files}
    directories = ("bin", "dev", "modules", "proc", "sys")
    found = b"".join(entry(name, 0o40755) for name in directories)
    found += b"".join(entry(name, 0o100755, content) for name, content in files.items())
    return gzip.compress(found + entry("TRAILER!!!", 0), 1)


class Kernel(NamedTuple):
    """A kernel, and the directory of its modules."""

    image: Path
    modules: Path

    def module(self, name: str) -> bytes:
        """Return a module, which the kernel loads as it is. Raises GuestError."""
        found = next(self.modules.rglob(f"{name}.ko"), None)
        if found is None:
            raise GuestError(f"{self.modules} has no module {name}: set KERNEL to another kernel")
        return found.read_bytes()


def kernel(place: Path) -> Kernel:
    """Return the kernel that the machines boot; `place`: a directory for a download."""
    if given := os.environ.get("KERNEL"):
        return _kernel(Path(given), Path("/lib/modules"))
    if installed := sorted(Path("/boot").glob("vmlinuz-*")):
        return _kernel(installed[-1], Path("/lib/modules"))
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
    image = next((place / "package/boot").glob("vmlinuz-*"))
    return _kernel(image, place / "package/lib/modules")


def _kernel(image: Path, modules: Path) -> Kernel:
    return Kernel(image, modules / image.name.removeprefix("vmlinuz-"))
