"""An image in one file, as in memory that several kernels map: clients live by their heartbeats."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import fields_of, wait_for
from ciel.testing.shm_tools import TOOL_DIRECTORY

ROOT = Path(__file__).parents[2]
SOURCES = (
    "tests/two_kernels.c", "tools/device_image.c", "tools/files.c", "tools/options.c",
    "tools/printing.c", "tools/asking.c", "src/device.c", "src/mpb.c", "src/mpb_pieces.c",
    "src/rcce.c", "src/port.c", "src/superblock.c", "src/lock.c", "src/log.c", "src/fat.c",
    "src/inode.c", "src/directory.c", "src/file.c", "src/client.c", "src/copy.c", "src/check.c",
    "src/shmfs.c",
)  # fmt: skip
MIB = 1 << 20


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "two_kernels"
    include = ["-Iscc/include", "-Iscc/src", "-Iscc/tools", "-Iexecutors/sdk/c"]
    sources = [*(f"scc/{name}" for name in SOURCES), "executors/sdk/c/ciel_table.c"]
    flags = ["-std=c11", "-O1", "-D_GNU_SOURCE", "-pthread"]
    subprocess.run(["cc", *flags, *include, "-o", path, *sources], cwd=ROOT, check=True)
    return path


class Device:
    """A file in memory that stands for a device."""

    def __init__(self, path: Path, program: Path) -> None:
        self.path = path
        self.environ = {**os.environ, "SHMFS_NAME": str(path), "LC_ALL": "C"}
        self._program = program

    def run(self, tool: str, *words: str) -> tuple[int, str]:
        """Run a tool; return its status and all that it prints."""
        argv: list[str | Path] = [
            self._program if tool == "two_kernels" else TOOL_DIRECTORY / tool,
            *words,
        ]
        done = subprocess.run(
            argv, env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def churn(self, seed: int) -> subprocess.Popen[str]:
        """Start a client that changes the image until it is killed; it has begun on return."""
        log = self._program.with_name(f"churn{seed}.log")
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [self._program, "churn", str(seed)], env=self.environ, text=True, stdout=file,
                stderr=subprocess.PIPE,
            )  # fmt: skip
        wait_for(lambda: log.stat().st_size, "its first commit")
        return process


@pytest.fixture
def device(program: Path) -> Iterator[Device]:
    path = Path(f"/dev/shm/ciel-device-{os.getpid()}")
    with open(path, "wb") as file:
        file.truncate(40 * MIB)
    yield Device(path, program)
    path.unlink()


@pytest.mark.requirement("CIB-21")
def test_the_tools_use_an_image_in_one_file(device: Device, tmp_path: Path) -> None:
    assert device.run("shminit", "--blocks=20") == (0, "")
    (tmp_path / "file").write_text("content")
    assert device.run("shmld", str(tmp_path / "file")) == (0, "")
    assert device.run("shmst", "file", "-") == (0, "content")
    assert device.run("shmlist")[1].split()[-1] == "file"
    assert device.run("shmfsck", "--sweep") == (
        0, f"0 dead clients swept\n{device.path} is clean\n",
    )  # fmt: skip
    assert device.run("shmrm", "file") == (0, "")


@pytest.mark.parametrize("blocks, told", [
    (20, "already; --force replaces it"), (1000, "is too small: the image takes 10"),
])  # fmt: skip
def test_an_image_that_cannot_be_made_changes_nothing(
    device: Device, blocks: int, told: str
) -> None:
    assert device.run("shminit", "--blocks=10") == (0, "")
    status, text = device.run("shminit", f"--blocks={blocks}")
    assert (status, told in text) == (1, True), text
    assert device.run("shmfsck")[0] == 0
    assert device.run("shminit", "--blocks=20", "--force") == (0, "")


@pytest.mark.parametrize("size_bytes, told", [
    (0, "is too small for an image"), (5000, "is too small for an image"),
    (MIB, "there is no image in"),
])  # fmt: skip
def test_a_file_without_an_image_is_refused(device: Device, size_bytes: int, told: str) -> None:
    device.path.write_bytes(b"x" * size_bytes)
    status, text = device.run("shmlist")
    assert (status, told in text) == (1, True), text


def test_places_outside_of_the_file_are_refused(device: Device) -> None:
    assert device.run("shminit", "--blocks=10") == (0, "")
    content = device.path.read_bytes()
    for at in (8, 16, 24):
        changed = bytearray(content)
        changed[at : at + 8] = (1 << 40).to_bytes(8, "little")
        device.path.write_bytes(changed)
        assert device.run("shmlist")[0] == 1
    device.path.write_bytes(content[: 2 * MIB])
    assert device.run("shmlist")[0] == 1


@pytest.mark.requirement("CIB-30")
@pytest.mark.slow
def test_a_client_lives_as_long_as_its_heart_beats(device: Device) -> None:
    assert device.run("shminit", "--blocks=500", "--block-size=64KiB") == (0, "")
    with device.churn(1) as one, device.churn(2) as other:
        for _ in range(3):
            assert device.run("shmfsck", "--sweep")[1].startswith("0 dead clients swept\n")
        one.kill()
        swept = device.run("shmfsck", "--sweep")[1]
        assert swept.startswith("1 dead client swept\n")
        assert other.poll() is None
        other.kill()
    assert device.run("shmfsck", "--sweep")[1].startswith("1 dead client swept\n")
    status, text = device.run("two_kernels", "verify")
    assert (status, "files are right" in text) == (0, True), text


@pytest.mark.slow
def test_a_client_that_stood_still_for_too_long_ends_itself(device: Device) -> None:
    """Others may have cleaned up after it meanwhile. Its heartbeats notice late: they have no time
    while another thread runs. It stops between two changes: one that stops within a store may
    damage the image (ADR 101).
    """
    assert device.run("shminit", "--blocks=500", "--block-size=64KiB") == (0, "")
    with device.churn(1) as process:
        process.send_signal(signal.SIGUSR1)
        wait_for(lambda: fields_of(Path(f"/proc/{process.pid}"))[0] == "T", "it to stop")
        assert device.run("shmfsck", "--sweep")[1].startswith("1 dead client swept\n")
        for thread in map(int, os.listdir(f"/proc/{process.pid}/task")):
            os.sched_setaffinity(thread, {0})
            if thread != process.pid:
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: process.poll() is not None, "its end")
        assert process.returncode == 1
        assert process.stderr is not None
        assert "this process stood still for so long" in process.stderr.read()
    assert device.run("shmfsck")[0] == 0
