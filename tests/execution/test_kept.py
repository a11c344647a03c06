"""Tests the limits on kept files of failed attempts, which are also deleted when the device fills
up.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ciel.execution.kept import KEPT_ATTEMPTS_MAX, KEPT_BYTES_MAX, KeptAttempts
from ciel_tests.clusters.mounts import on_mount

MIB = 1 << 20


def make(kept: KeptAttempts, name: str, size_bytes: int = 10) -> None:
    (kept.path / name / "scratch").mkdir(parents=True)
    (kept.path / name / "scratch" / "left").write_bytes(os.urandom(size_bytes))


def names(kept: KeptAttempts) -> list[str]:
    return sorted(entry.name for entry in kept.path.iterdir())


def test_the_oldest_attempt_is_deleted_when_there_are_too_many(tmp_path: Path) -> None:
    kept = KeptAttempts(tmp_path, attempts_max=3)
    for name in "edcba":
        make(kept, name)
        assert kept.admit(name) == ""
    assert names(kept) == ["a", "b", "c"]


def test_the_oldest_attempts_are_deleted_when_they_take_too_many_bytes(tmp_path: Path) -> None:
    kept = KeptAttempts(tmp_path, bytes_max=3 * MIB + MIB // 2)
    for name in "edcba":
        make(kept, name, MIB)
        assert kept.admit(name) == ""
    assert names(kept) == ["a", "b", "c"]
    make(kept, "f", 2 * MIB)
    assert kept.admit("f") == ""
    assert names(kept) == ["a", "f"]


def test_an_attempt_that_exceeds_the_limit_alone_is_not_kept(tmp_path: Path) -> None:
    kept = KeptAttempts(tmp_path, bytes_max=2 * MIB)
    make(kept, "before")
    assert kept.admit("before") == ""
    make(kept, "large", 3 * MIB)
    why_not = re.sub("they take 3[0-9]{6} bytes", "they take N bytes", kept.admit("large"))
    assert why_not == "they take N bytes; the limit for all retained files is 2097152"
    assert names(kept) == ["before"]


def test_attempts_kept_by_an_earlier_worker_count_by_their_age(tmp_path: Path) -> None:
    before = KeptAttempts(tmp_path)
    for age, name in enumerate("bca"):
        make(before, name)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    kept = KeptAttempts(tmp_path, attempts_max=3)
    make(kept, "d")
    assert kept.admit("d") == ""
    assert names(kept) == ["b", "c", "d"]


def test_a_missing_directory_counts_as_empty(tmp_path: Path) -> None:
    kept = KeptAttempts(tmp_path / "absent")
    kept.make_room()
    assert not kept.path.exists()


def test_a_removed_directory_counts_as_empty(tmp_path: Path) -> None:
    kept = KeptAttempts(tmp_path / "kept", attempts_max=1)
    for name in ("a", "b"):
        make(kept, name)
        assert kept.admit(name) == ""
        shutil.rmtree(kept.path)
        kept.make_room()
    make(kept, "c")
    assert kept.admit("c") == ""


def test_the_limits_are_as_documented() -> None:
    assert (KEPT_ATTEMPTS_MAX, KEPT_BYTES_MAX) == (100, 1 << 30)


ON_A_SMALL_DEVICE = """
import os, sys
from pathlib import Path
from ciel.execution.kept import KeptAttempts

device = Path(sys.argv[1])
kept = KeptAttempts(device / "kept")
for name in ("a", "b", "c"):
    (kept.path / name).mkdir(parents=True)
    (kept.path / name / "left").write_bytes(bytes(4 << 20))
    assert kept.admit(name) == ""
if sys.argv[2] == "bytes":
    (device / "other").write_bytes(bytes(15 << 20))
else:
    for number in range(40):
        (device / str(number)).touch()
print(*sorted(entry.name for entry in kept.path.iterdir()), flush=True)
kept.make_room()
print(*sorted(entry.name for entry in kept.path.iterdir()), flush=True)
for entry in device.iterdir():
    if entry.name != "kept":
        entry.unlink()
(kept.path / "d").mkdir()
print(kept.admit("d") or "kept")
"""


@pytest.mark.parametrize("what", ["bytes", "files"])
def test_kept_attempts_are_deleted_when_the_device_fills_up(tmp_path: Path, what: str) -> None:
    mount = ["-t", "tmpfs", "-o", "size=32m,nr_inodes=50", "none"]
    command = [sys.executable, "-c", ON_A_SMALL_DEVICE, str(tmp_path), what]
    done = subprocess.run(
        on_mount(mount, tmp_path, command), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "a b c\nb c\nkept\n", done.stderr
