import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.access import access_file
from ciel.client.jobs.client import JobClient
from ciel.launchers.interface import Site
from ciel.testing.homes import HandCluster, Home
from ciel_tests.slurm import Slurm, why_no_slurm
from ciel_tests.sshd import Sshd, why_no_sshd


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    path = tmp_path / "home"
    path.mkdir()
    home = Home(path)
    yield home
    home.expect_nothing_left()


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if reason := why_no_slurm():
        pytest.skip(reason)
    found = Slurm(tmp_path_factory.mktemp("slurm"))
    yield found
    found.close()


@pytest.fixture
def in_slurm(slurm: Slurm, home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """Let this process and the home use Slurm; expect that no job is left."""
    home.environ |= {name: value for name, value in slurm.environ.items() if name != "PATH"}
    home.environ["PATH"] += f":{slurm.environ['PATH']}"
    for name, value in home.environ.items():
        monkeypatch.setenv(name, value)
    yield slurm
    assert slurm.jobs() == []


@pytest.fixture
def sshd(tmp_path: Path, home: Home) -> Iterator[Sshd]:
    if reason := why_no_sshd():
        pytest.skip(reason)
    found = Sshd(tmp_path / "sshd", home.environ)
    yield found
    found.close()


@pytest.fixture
def master(home: Home) -> Iterator[HandCluster]:
    """A master without workers."""
    cluster = HandCluster.start(home, 0)
    yield cluster
    cluster.master.terminate()
    cluster.master.communicate(timeout=20)


@pytest.fixture
def site(master: HandCluster) -> Site:
    return Site(access_file.read(master.access), master.access, master.home.path)


@pytest.fixture
def joined(master: HandCluster) -> Iterator[Callable[[], set[str]]]:
    """A function that asks the master for the allocations of its workers."""
    client = JobClient(access=str(master.access), environ=master.home.environ)
    yield lambda: {row["allocation"] for row in client.ask("workers") if row["allocation"]}
    client.close()


@pytest.fixture
def end_worker(home: Home) -> Callable[[str], None]:
    """A function that ends the worker of an allocation by SIGTERM."""

    def end(allocation: str) -> None:
        (pid,) = [
            pid
            for pid, command in home.processes().items()
            if f"--allocation {allocation}" in command and not command.startswith(("ssh", "sh "))
        ]
        os.kill(pid, signal.SIGTERM)

    return end
