"""Tests which device holds a path, according to /sys and /proc, of which the tests make up some."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ciel.storage.devices import Device, Kind, device_behind, device_of
from ciel.testing.c_programs import compiled


class System:
    """A /sys with some devices."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/dev/block").mkdir(parents=True)

    def add(self, number: str, place: str, **files: str) -> Path:
        """Add a device; `a__b="x"` creates its file a/b with content x."""
        directory = self.root / "sys/devices" / place
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in {"dev": number, **files}.items():
            file = directory / name.replace("__", "/")
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{text}\n")
        (self.root / "sys/dev/block" / number).symlink_to(directory)
        return directory

    def mount(self, path: str, what: str) -> None:
        """Make a path, whose file system has no device, the mount point of `what`."""
        minor = os.minor(os.stat(path).st_dev)
        mounts = self.root / "proc/self/mountinfo"
        mounts.parent.mkdir(parents=True)
        mounts.write_text(
            f"1 1 0:1 / /other rw - proc proc rw\n2 1 0:{minor} / {path} rw - {what}\n"
        )

    def behind(self, major: int, minor: int) -> Device:
        return device_behind(major, minor, system=self.root)


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


@pytest.mark.parametrize(
    "flag, kind", [("1", Kind.ROTATING), ("0", Kind.SOLID), ("?", Kind.UNKNOWN)]
)
def test_the_kind_of_a_disk_is_read_from_its_rotational_flag(
    system: System, flag: str, kind: Kind
) -> None:
    system.add("8:0", "sda", queue__rotational=flag)
    assert system.behind(8, 0) == (8, 0, kind)


def test_a_partition_counts_as_its_disk(system: System) -> None:
    system.add("8:16", "sdb", queue__rotational="1")
    system.add("8:18", "sdb/sdb2", partition="2")
    assert system.behind(8, 18) == (8, 16, Kind.ROTATING)


def test_a_mapped_device_counts_as_the_disk_below_it(system: System) -> None:
    carrier = system.add("259:0", "nvme0n1", queue__rotational="0")
    part = system.add("259:1", "nvme0n1/nvme0n1p1", partition="1")
    mapped = system.add("253:0", "dm-0", queue__rotational="0")
    (mapped / "slaves").mkdir()
    (mapped / "slaves/nvme0n1p1").symlink_to(part)
    assert carrier.exists()
    assert system.behind(253, 0) == (259, 0, Kind.SOLID)


def test_a_device_over_several_disks_counts_as_itself(system: System) -> None:
    mapped = system.add("9:0", "md0", queue__rotational="1")
    for name in ("sda", "sdb"):
        (mapped / "slaves" / name).mkdir(parents=True)
    assert system.behind(9, 0) == (9, 0, Kind.ROTATING)


def test_a_loop_device_counts_as_the_device_of_its_file(system: System) -> None:
    system.add("7:0", "loop0", loop__backing_file="/dev/shm", queue__rotational="1")
    system.mount("/dev/shm", "tmpfs tmpfs rw")
    assert system.behind(7, 0).kind is Kind.MEMORY


def test_a_loop_device_whose_file_is_hidden_counts_as_itself(system: System) -> None:
    system.add("7:0", "loop0", loop__backing_file="/nowhere (deleted)", queue__rotational="0")
    assert system.behind(7, 0) == (7, 0, Kind.SOLID)


def test_a_disk_of_compressed_memory_has_no_limit(system: System) -> None:
    system.add("253:0", "zram0", queue__rotational="0")
    assert not system.behind(253, 0).is_limited


def test_devices_in_a_circle_are_of_unknown_kind(system: System) -> None:
    first, second = system.add("253:0", "dm-0"), system.add("253:1", "dm-1")
    for mapped, carrier in (first, second), (second, first):
        (mapped / "slaves").mkdir()
        (mapped / "slaves" / carrier.name).symlink_to(carrier)
    assert system.behind(253, 0).kind is Kind.UNKNOWN


def test_without_sys_every_file_system_counts_as_a_device(tmp_path: Path) -> None:
    device = device_of(tmp_path, system=tmp_path)
    assert (device.kind, device.is_limited) == (Kind.UNKNOWN, True)


def test_an_overlay_counts_as_its_upper_layer(system: System) -> None:
    upper = system.root / "up per"
    upper.mkdir()
    escaped = str(upper).replace(" ", "\\040")
    system.mount("/dev/shm", f"overlay overlay rw,lowerdir=/l,upperdir={escaped},x=y")
    assert device_of("/dev/shm", system=system.root) == device_of(upper, system=system.root)


def test_a_path_in_memory_has_no_limit(tmp_path: Path) -> None:
    assert not device_of("/dev/shm").is_limited


def test_the_tools_in_c_find_the_same_device(tmp_path: Path) -> None:
    sources = ("tests/io_token.c", "tools/io_token.c", "tools/io_device.c")
    program = compiled("io_token", sources)
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file", Path("/"), Path("/dev/shm"), Path("/proc")):
        done = subprocess.run([program, "device", path], capture_output=True, text=True, check=True)
        device = device_of(path)
        assert done.stdout == f"{device.name} {int(not device.is_limited)}\n"
