"""The conformance suite on a real Slurm, and what only Slurm can show."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.launchers.interface import Launcher, LauncherError, Phase, Site
from ciel.launchers.slurm import SlurmLauncher
from ciel.testing.homes import Home, wait_for
from ciel.testing.reach.launcher_suite import LauncherSuite
from ciel_tests.slurm import Slurm

pytestmark = pytest.mark.slow

OPTIONS = {"poll": 1.0, "share_access": "path", "worker_command": None}
WORDS = ["--partition=cpu", "--mem=300M"]


@pytest.fixture
def opened(in_slurm: Slurm, site: Site) -> Iterator[Callable[[], SlurmLauncher]]:
    """A function that opens the launcher; at the end, its allocations are cancelled."""

    def open_launcher() -> SlurmLauncher:
        return SlurmLauncher(site, OPTIONS, WORDS)

    yield open_launcher
    launcher = open_launcher()
    launcher.cancel([a.id for a in launcher.allocations()])
    wait_for(lambda: not in_slurm.jobs(), "the jobs to end", 60)


class TestSlurm(LauncherSuite):
    @pytest.fixture
    def launcher(self, opened: Callable[[], SlurmLauncher]) -> Launcher:
        return opened()

    @pytest.fixture
    def reopen(self, opened: Callable[[], SlurmLauncher]) -> Callable[[], Launcher]:
        return opened

    @pytest.fixture
    def joined(self, joined: Callable[[], set[str]]) -> Callable[[], set[str]]:
        return joined

    @pytest.fixture
    def end_worker(self, end_worker: Callable[[str], None]) -> Callable[[str], None]:
        return end_worker


def ended_reason(launcher: Launcher, name: str) -> str:
    """Wait for the end of an allocation, and return its reason."""
    reasons: list[str] = []

    def has_ended() -> bool:
        reasons[:] = [
            a.reason for a in launcher.allocations() if a.id == name and a.phase is Phase.ENDED
        ]
        return bool(reasons)

    wait_for(has_ended, f"{name} to end", 60)
    return reasons[0]


def test_a_wrong_partition_is_refused_with_the_words_of_slurm(in_slurm: Slurm, site: Site) -> None:
    launcher = SlurmLauncher(site, OPTIONS, ["--partition=nowhere"])
    with pytest.raises(LauncherError, match=r"^sbatch: .*Invalid partition name"):
        launcher.request(1)


def test_a_queued_job_says_why_it_waits(opened: Callable[[], SlurmLauncher], site: Site) -> None:
    launcher = SlurmLauncher(site, OPTIONS, ["--partition=down"])
    launcher.request(1)
    wait_for(
        lambda: [a.reason for a in launcher.allocations()] == ["PartitionDown"], "the reason", 30
    )


def test_a_worker_that_cannot_start_is_explained_by_its_log(
    opened: Callable[[], SlurmLauncher], site: Site
) -> None:
    options = OPTIONS | {"worker_command": "/nowhere/ciel-worker"}
    launcher = SlurmLauncher(site, options, WORDS)
    (name,) = launcher.request(1)
    reason = ended_reason(launcher, name)
    assert reason.startswith("has ended as FAILED with status 127")
    assert "/nowhere/ciel-worker: not found" in reason


def test_an_access_file_that_is_not_shared_is_named(
    opened: Callable[[], SlurmLauncher], site: Site, tmp_path: Path
) -> None:
    launcher = SlurmLauncher(site._replace(access_path=tmp_path / "gone.json"), OPTIONS, WORDS)
    (name,) = launcher.request(1)
    assert "share it, or use ciel up --share-access environment" in ended_reason(launcher, name)


def test_the_time_limit_of_the_cluster_is_that_of_the_job(
    opened: Callable[[], SlurmLauncher], in_slurm: Slurm, site: Site
) -> None:
    launcher = SlurmLauncher(site._replace(time_limit_s=120.0), OPTIONS, WORDS)
    launcher.request(1)
    assert in_slurm.run("squeue", "--noheader", "--array", "-o", "%l").split() == ["2:00"]


@pytest.mark.parametrize("share", ["path", "environment"])
def test_the_key_is_on_no_command_line_and_in_no_description_of_the_job(
    share: str, opened: Callable[[], SlurmLauncher], in_slurm: Slurm, site: Site, home: Home,
    joined: Callable[[], set[str]],
) -> None:  # fmt: skip
    launcher = SlurmLauncher(site, OPTIONS | {"share_access": share}, WORDS)
    (name,) = launcher.request(1)
    wait_for(lambda: joined() == {name}, "a worker to join", 60)
    key = site.access.key.text()
    shown = in_slurm.run("scontrol", "show", "job", "--details", name)
    script = in_slurm.run("scontrol", "write", "batch_script", name, "-")
    commands = list(home.processes().values())
    assert any("ciel-worker" in command for command in commands)
    for text in (shown, script, *commands):
        assert key not in text
    launcher.cancel([name])
    wait_for(lambda: not list(home.tmp.iterdir()), "the access file of the worker to go", 60)


def test_the_worker_has_the_cpus_and_the_memory_of_its_job(
    opened: Callable[[], SlurmLauncher], site: Site, home: Home, joined: Callable[[], set[str]]
) -> None:
    launcher = SlurmLauncher(site, OPTIONS, [*WORDS, "--cpus-per-task=2"])
    assert launcher.size.slots == 2
    (name,) = launcher.request(1)
    wait_for(lambda: joined() == {name}, "a worker to join", 60)
    shown = home.run("ciel", "worker", "list").stdout
    assert "0/300MiB" in shown
    assert shown.splitlines()[1].split()[2] == "2"
