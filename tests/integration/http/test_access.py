"""Tests access control and where keys may appear (test_routes covers access over HTTP)."""

import json

import pytest

from ciel.access.keys import Key
from ciel.testing.homes import HandCluster, wait_for


@pytest.mark.slow
def test_a_worker_with_a_wrong_key_is_refused_and_both_sides_say_so(
    lasting_cluster: HandCluster,
) -> None:
    home = lasting_cluster.home
    stranger = json.loads(lasting_cluster.access.read_text())
    stranger["key"] = Key.new().text()
    path = home.path / "wrong.json"
    path.write_text(json.dumps(stranger))
    path.chmod(0o600)
    done = home.run("ciel-worker", "--access", str(path))
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ciel-worker:")]
    assert "key" in line
    assert "refused" in line
    assert "Traceback" not in done.stderr
    wait_for(lambda: "does not match" in lasting_cluster.log("master"), "the master's line")


def test_an_access_file_that_other_users_can_read_is_refused(
    lasting_cluster: HandCluster,
) -> None:
    home = lasting_cluster.home
    lasting_cluster.access.chmod(0o644)
    done = home.run("ciel", "status")
    assert done.returncode == 3
    assert "chmod" in done.stderr
    assert "Traceback" not in done.stderr
    lasting_cluster.access.chmod(0o600)


def test_the_key_is_in_no_log_and_in_no_environment(lasting_cluster: HandCluster) -> None:
    home = lasting_cluster.home
    done = home.run("ciel", "submit", "--", "env")
    assert done.returncode == 0
    everything = done.stdout + done.stderr
    everything += "".join(path.read_text() for path in home.path.glob("*.log"))
    everything += "".join(home.processes().values())
    assert lasting_cluster.key not in everything
    assert "CIEL_ACCESS" not in done.stdout
