"""Programs in C that use a volume by `ciel_memory.h`, with real page servers."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.memory import space
from ciel.memory.companion import Companion
from ciel.memory.page_server import EXTENT_BYTES
from ciel.memory.volumes import CODECS
from ciel_tests.clusters.memory import Nodes, OwnerOfVolume

SOURCES = Path(space.__file__).parent
FILES = ("ciel_memory.c", "page_client.c", "page_cache.c", "codecs.c", "checksum.c")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "space_driver"
    flags = ["-std=c11", "-O1", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread"]
    sources = [Path(__file__).with_name("space_driver.c"), *[SOURCES / name for name in FILES]]
    subprocess.run(["cc", *flags, f"-I{SOURCES}", "-o", path, *sources], check=True)
    return path


@pytest.fixture(params=CODECS)
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    nodes = Nodes()
    nodes.join("a")
    nodes.create("v", extents=2, replicas=1, compress=request.param)
    yield nodes
    nodes.close()


class Driver:
    """A running program, with a companion in this process."""

    def __init__(self, program: Path, nodes: Nodes, timeout_s: float, cache_pages: int) -> None:
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            volume = nodes.volumes.volumes["v"]
            options = f"{timeout_s} {cache_pages} {volume.compress}"
            described = f"{theirs.fileno()} {volume.number} 2 1 {options}"
            self.process = subprocess.Popen(
                [program], env=os.environ | {"CIEL_MEMORY": described}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[theirs.fileno()],
            )  # fmt: skip
            self.companion = Companion(OwnerOfVolume(nodes, "v"), own)
        self.begun = self._line()

    def says(self, request: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{request}\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def end(self) -> None:
        self.process.communicate(timeout=20)
        assert self.process.returncode == 0
        self.companion.join(20)
        assert not self.companion.is_alive()


@pytest.fixture(params=[0, 8])
def driver(request: pytest.FixtureRequest, program: Path, nodes: Nodes) -> Iterator[Driver]:
    """A program, without a cache or with one of some pages."""
    driver = Driver(program, nodes, 5.0, request.param)
    yield driver
    driver.end()


def test_a_program_reads_what_it_has_written(driver: Driver) -> None:
    assert driver.begun == f"{2 * EXTENT_BYTES} 1 1"  # the second call of open fails
    assert driver.says(f"write {EXTENT_BYTES - 3} hello") == "done"
    assert driver.says(f"read {EXTENT_BYTES - 3} 5") == "read hello"
    assert driver.says(f"trim {EXTENT_BYTES - 4096} 8192") == "done"
    assert driver.says(f"read {EXTENT_BYTES - 3} 5") == "read "


def test_threads_of_a_program_use_sessions_of_their_own(driver: Driver) -> None:
    assert driver.says("threads") == "0 wrong"


@pytest.mark.parametrize(
    "request_", [f"write {2 * EXTENT_BYTES - 2} abc", f"read 0 {2 * EXTENT_BYTES + 1}",
                 f"read {2**64 - 1} 2", f"trim {2 * EXTENT_BYTES} 1"],
)  # fmt: skip
def test_bytes_outside_the_volume_are_refused(driver: Driver, request_: str) -> None:
    assert driver.says(request_) == "EINVAL "
    assert driver.says("write 0 intact") == "done"


def test_pages_of_a_dead_server_are_an_error_that_names_it(program: Path, nodes: Nodes) -> None:
    driver = Driver(program, nodes, 0.5, 0)
    assert driver.says("write 0 here") == "done"
    nodes.kill("a")
    assert driver.says("read 0 4").startswith("EIO memory server a is gone")
    driver.end()


def test_a_program_without_a_volume_is_told_so(program: Path) -> None:
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "No such file or directory\n")
