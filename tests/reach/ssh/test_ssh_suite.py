"""The conformance suite over a real server of ssh, and what only ssh can show."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.launchers.interface import Launcher, Phase, Site
from ciel.launchers.ssh import SshLauncher
from ciel.testing.homes import Home, wait_for
from ciel.testing.reach.launcher_suite import LauncherSuite
from ciel_tests.sshd import Sshd

pytestmark = pytest.mark.slow

Open = Callable[..., SshLauncher]


@pytest.fixture
def opened(
    sshd: Sshd, site: Site, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """A function that opens the launcher with a host and options of ssh."""
    monkeypatch.setenv("HOME", home.environ["HOME"])  # its processes belong to the home
    launchers = []

    def open_launcher(
        host: str = "", words: list[str] | None = None, command: str | None = None
    ) -> SshLauncher:
        hosts = tmp_path / "hosts.txt"
        hosts.write_text(f"{host or sshd.host} workers=2 slots=1\n")
        options = {"hosts": str(hosts), "worker_command": command}
        launchers.append(SshLauncher(site, options, sshd.options if words is None else words))
        return launchers[-1]

    yield open_launcher
    for launcher in launchers:
        launcher.close()


class TestSsh(LauncherSuite):
    keeps_allocations = False

    @pytest.fixture
    def launcher(self, opened: Open) -> Launcher:
        return opened()

    @pytest.fixture
    def reopen(self, opened: Open) -> Callable[[], Launcher]:
        return opened

    @pytest.fixture
    def joined(self, joined: Callable[[], set[str]]) -> Callable[[], set[str]]:
        return joined

    @pytest.fixture
    def end_worker(self, end_worker: Callable[[str], None]) -> Callable[[str], None]:
        return end_worker


def failure(launcher: SshLauncher) -> str:
    """Ask for a worker that cannot come; return the reason."""
    launcher.request(1)
    reasons: list[str] = []

    def has_failed() -> bool:
        reasons[:] = [a.reason for a in launcher.allocations() if a.phase is Phase.ENDED]
        return bool(reasons)

    wait_for(has_failed, "the connection to fail", 30)
    return reasons[0]


def test_a_host_that_does_not_listen_is_named(opened: Open) -> None:
    reason = failure(opened("127.0.0.1:9"))
    assert "cannot connect to 127.0.0.1: " in reason
    assert "Connection refused" in reason


def test_a_host_without_ciel_is_named_with_the_way_to_repair_it(opened: Open) -> None:
    reason = failure(opened(command="ciel-worker-of-another-name"))
    assert "has no ciel-worker-of-another-name in the PATH that ssh sets there" in reason
    assert "--worker-command" in reason


def test_a_wrong_key_of_the_host_is_refused(opened: Open, sshd: Sshd) -> None:
    known = sshd.directory / "known_hosts"
    other = (sshd.directory / "user_key.pub").read_text()
    known.write_text(f"[127.0.0.1]:{sshd.port} {other}")
    assert "the key of the host is unknown or has changed" in failure(opened())


def test_a_host_that_accepts_no_key_of_the_user_is_named(opened: Open, sshd: Sshd) -> None:
    (sshd.directory / "authorized_keys").write_text("")
    reason = failure(opened())
    assert "Permission denied" in reason
    assert "ssh-copy-id" in reason


def test_the_key_is_on_no_command_line(
    opened: Open, site: Site, home: Home, joined: Callable[[], set[str]]
) -> None:
    launcher = opened()
    (name,) = launcher.request(1)
    wait_for(lambda: launcher.allocations() and joined() == {name}, "a worker to join", 60)
    commands = home.processes().values()
    assert any("ciel-worker" in command for command in commands)
    for command in commands:
        assert site.access.key.text() not in command


def test_a_worker_ends_when_its_connection_is_killed(
    opened: Open, home: Home, joined: Callable[[], set[str]]
) -> None:
    launcher = opened()
    (name,) = launcher.request(1)
    wait_for(lambda: launcher.allocations() and joined() == {name}, "a worker to join", 60)
    for pid, command in home.processes().items():
        if command.startswith("ssh "):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not joined(), "the worker to leave", 60)
