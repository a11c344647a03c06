"""A modelled rotating disk, on which the kernel has an ext4 file system.

nbdkit keeps the blocks in compressed memory and delays reads (`rotating_filter.c`); nbdfuse shows
them to the kernel as a file, and a loop device is over that file. So files are read through the
kernel's own cache, read-ahead and block layer, on kernels without a client of NBD, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("unshare", "nbdkit", "nbdfuse", "losetup", "mkfs.ext4", "cc")
HEADER = Path("/usr/include/nbdkit-filter.h")
SOURCE = Path(__file__).with_name("rotating_filter.c")
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-fPIC", "-shared", "-pthread")
STOPS_WITHIN_S = 60
# The shell is the first process of its namespaces. When it ends, so do the mounts and servers.
SCRIPT = """
set -e
read -r pid _ < /proc/self/stat
nbdfuse -P served device/disk [ nbdkit --filter="$PWD/rotating.so" \
    memory "$1" allocator=zstd scale="$2" seeks="$PWD/seeks" ] &
until [ -e served ]; do kill -0 $!; sleep 0.02; done
loop=$(losetup --find --show --direct-io=on device/disk)
trap 'losetup --detach "$loop" 2> /dev/null || :' EXIT
echo 128 > "/sys/block/${loop#/dev/}/queue/read_ahead_kb"  # the kernel's default for disks
mkfs.ext4 -q -b 4096 "$loop"  # as on disks that are large
mount "$loop" files
losetup --detach "$loop"  # after the unmount
echo "$pid"
read -r _ || :
umount files
umount device
"""


class NoModelledDiskError(Exception):
    """This machine cannot model a disk; the text has the reason."""


def _check() -> None:
    """Raise NoModelledDiskError if a program, a header or a right is missing."""
    if os.geteuid() != 0:
        raise NoModelledDiskError("only root can mount a file system; run the benchmark as root")
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    lacking += [str(path) for path in (HEADER, Path("/dev/fuse")) if not path.exists()]
    if lacking:
        raise NoModelledDiskError(
            f"{', '.join(lacking)} not found; install nbdkit, nbdkit-plugin-dev and libnbd-bin"
        )


@dataclass(frozen=True)
class RotatingDisk:
    """A mounted disk. `files`: the directory of its file system."""

    files: str
    _seeks: Path

    def seek_count(self) -> int:
        """Return how often the disk has had to seek for a read."""
        return int.from_bytes(self._seeks.read_bytes(), sys.byteorder)


@contextmanager
def rotating_disk(size_bytes: int, scale: float) -> Iterator[RotatingDisk]:
    """Mount a disk of 105 MB/s and seeks of 8 ms, `scale` times as fast.

    When this process ends in any way, so do the mount and its servers. Raises NoModelledDiskError.
    """
    _check()
    with tempfile.TemporaryDirectory(prefix="ciel-rotating-") as directory:
        library = str(Path(directory, "rotating.so"))
        subprocess.run(["cc", *FLAGS, "-o", library, str(SOURCE)], check=True)
        for name in ("device", "files"):
            Path(directory, name).mkdir()
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT,
                   "rotating", str(size_bytes), str(scale)]  # fmt: skip
        with (
            open(f"{directory}/errors", "w+") as errors,
            subprocess.Popen(
                command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True,
            ) as process,
        ):  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            if not (pid := process.stdout.readline().strip()):
                raise NoModelledDiskError(f"it cannot be mounted: {Path(errors.name).read_text()}")
            try:
                yield RotatingDisk(f"/proc/{pid}/root{directory}/files", Path(directory, "seeks"))
            finally:
                process.stdin.close()
                process.wait(STOPS_WITHIN_S)
