"""`make check-fuse`: runs three file-system testers on the mount, if they are installed.

fio (Debian) writes, and reads back with checksums. fsx (`cargo install fsx`) compares random
operations on one file with a model. pjdfstest (also a crate) checks the POSIX rules of each call.
It creates a directory for each of its cases, but a mount of shmfs has no directories. So it needs a
change: its two calls of `tempdir_in` must return the directory that they get. `PJDFSTEST` is the
path of the changed program. Only cases that create neither directories nor special files count. No
package contains fsstress. The command exits with status 1 if a tester fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ciel.testing.shm_mounts import can_mount, mounted
from ciel.testing.shm_tools import fresh_image

FIO = (
    "fio", "--name=verify", "--size=64m", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1",
    "--ioengine=psync", "--thread", "--numjobs=2", "--output-format=terse",
)  # fmt: skip
FIO_KINDS = (
    ("--rw=randwrite", "--bs=4k"),
    ("--rw=write", "--bs=1m"),
    ("--rw=randrw", "--bsrange=512-64k"),
)
FSX_SEEDS = (1, 2, 3)
FSX_STEPS = 20_000
# No holes: fallocate only reserves space and extends files.
FSX_SETTINGS = """
flen = 262144
[weights]
close_open = 1
invalidate = 1
fsync = 1
fdatasync = 1
posix_fallocate = 1
sendfile = 1
posix_fadvise = 1
copy_file_range = 1
"""
PJD_GROUPS = (
    "unlink", "link", "rename", "open", "truncate", "ftruncate", "posix_fallocate", "utimensat",
    "chmod", "chown",
)  # fmt: skip
PJD_SETTINGS = """
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""
PJD_REFUSED = ("EPERM", "code: 1,", "ENOSPC")
"""The errors of cases that create unsupported files, or a file of 2 GiB."""


def main() -> int:
    """Run the installed testers; return the exit status."""
    if not can_mount():
        print("shmfs cannot be mounted here: `ciel shmfs mount DIR` says why", file=sys.stderr)
        return 1
    failed = 0
    for options in ((), ("--writeback",)):
        with (
            tempfile.TemporaryDirectory(prefix="fuse-testers-") as place,
            tempfile.TemporaryDirectory(prefix="fuse-testers-") as aside,
            fresh_image("--blocks=65536", "--block-size=4KiB") as image,
        ):
            print(f"mounted with {' '.join(options) or 'no options'}")
            with mounted(image, Path(place), "--allow-other", *options):
                for name, command in _commands(Path(aside)):
                    failed += not _passes(name, command, Path(place))
                if os.environ.get("PJDFSTEST"):
                    failed += not _pjdfstest(os.environ["PJDFSTEST"], Path(place), Path(aside))
            image.assert_clean()
    return failed > 0


def _commands(aside: Path) -> list[tuple[str, Sequence[str]]]:
    settings = aside / "fsx.toml"
    settings.write_text(FSX_SETTINGS)
    fio = [(f"fio {' '.join(kind)}", (*FIO, *kind)) for kind in FIO_KINDS]
    fsx = [
        (f"fsx seed {seed}", ("fsx", "-f", str(settings), f"-N{FSX_STEPS}", f"-S{seed}", "fsx"))
        for seed in FSX_SEEDS
    ]
    return [*fio, *fsx]


def _passes(name: str, command: Sequence[str], place: Path) -> bool:
    if shutil.which(command[0]) is None:
        print(f"  {name}: {command[0]} is not installed")
        return True
    ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    print(f"  {name}: {'passed' if ended.returncode == 0 else 'FAILED'}", flush=True)
    if ended.returncode:
        print(ended.stdout[-4000:], ended.stderr[-4000:])
    for path in place.iterdir():
        os.unlink(path)
    return ended.returncode == 0


def _pjdfstest(program: str, place: Path, aside: Path) -> bool:
    settings = aside / "pjdfstest.toml"
    settings.write_text(PJD_SETTINGS)

    def ends(pattern: str) -> list[tuple[str, str, str]]:
        """Return name, result and reason of the cases that a pattern finds."""
        for path in place.iterdir():
            path.unlink()
        command = [program, "-c", str(settings), "-p", str(place), "--", pattern]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        text = re.sub(r"\x1b\[[0-9;]*m", "", ended.stdout + ended.stderr)
        cases = re.findall(r"^(\S+::\S+) +(ok|FAILED)$(?:\n(\s.*))?", text, re.MULTILINE)
        return [case for case in cases if case[0].startswith(pattern)]

    passed, failed = 0, []
    for group in PJD_GROUPS:
        for case, end, _ in ends(f"{group}::"):
            if end == "FAILED":  # leftovers of another case may have disturbed it: run it alone
                found = {name: (end, reason) for name, end, reason in ends(case)}
                end, reason = found.get(case, ("FAILED", "it was not found alone"))
                if end == "FAILED" and not any(word in reason for word in PJD_REFUSED):
                    failed.append(f"{case}: {reason.strip()}")
            passed += end == "ok"
    print(f"  pjdfstest: {passed} cases passed, {len(failed)} FAILED", *failed, sep="\n    ")
    return not failed


if __name__ == "__main__":
    sys.exit(main())
