"""Plants faults of an installation, one at a time, and checks the findings of `ciel doctor`."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ciel.access.access_file import AccessFile
from ciel.access.keys import Key
from ciel.access.paths import point_current
from ciel.cli.doctor import host as doctor_host
from ciel.testing.homes import HandCluster, Home

Typed = Callable[..., tuple[int, str, str]]
Finding = dict[str, str]
DEAD_PID = 1 << 22  # higher than any process id of the kernel


def found_by(out: str) -> list[Finding]:
    findings: list[Finding] = json.loads(out)
    return findings


def faults(findings: list[Finding]) -> list[Finding]:
    assert {finding["state"] for finding in findings} <= {"ok", "note", "fault"}
    found = [finding for finding in findings if finding["state"] == "fault"]
    assert all(finding["advice"] for finding in found)
    return found


@pytest.fixture(scope="module")
def of_this_machine(tmp_path_factory: pytest.TempPathFactory, typed: Typed) -> set[str]:
    """Return the checks that find a fault on this machine before a fault is planted."""
    home = Home(tmp_path_factory.mktemp("sound"))
    _, out, _ = typed(home, "doctor", "--json", "--listen", "127.0.0.1:0")
    return {finding["check"] for finding in faults(found_by(out))}


@pytest.fixture
def expect(home: Home, typed: Typed, of_this_machine: set[str]) -> Callable[..., None]:
    """Run the doctor in the home, and expect one fault more than this machine has."""

    def ask(check: str, said: str, advised: str, *words: str, out: str | None = None) -> None:
        if out is None:
            status, out, err = typed(home, "doctor", "--json", *words)
            assert status == 1
            assert "to repair" in err
        planted = [one for one in faults(found_by(out)) if one["check"] not in of_this_machine]
        assert {one["check"] for one in planted} == {check}
        assert said in planted[0]["found"]
        assert advised in planted[0]["advice"]

    return ask


@pytest.fixture
def free_address() -> str:
    """Return an address without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def access_file_at(path: Path, address: str, pid: int | None = None) -> None:
    url = f"http://{address}"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    AccessFile(url, address, "c1", Key.new(), pid or os.getpid(), 1).write(path)


# --- this computer --------------------------------------------------------------------------------


def test_an_unknown_setting(home: Home, expect: Callable[..., None]) -> None:
    path = home.path / "config/ciel/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text('master = "127.0.0.1:1"\nmaste = "x"\n')
    expect("settings", "config.toml line 2: unknown setting 'maste'", "correct it")


def test_a_master_with_an_invalid_address(home: Home, expect: Callable[..., None]) -> None:
    expect("settings", "--master: 'http://[' is not a master", "correct it", "--master", "http://[")
    home.environ["CIEL_MASTER"] = "http://h:x"
    expect("settings", "CIEL_MASTER: 'http://h:x' is not a master", "correct it")


def test_an_unknown_store(home: Home, expect: Callable[..., None], free_address: str) -> None:
    home.environ["CIEL_STORE"] = "dsik"
    expect("store", "CIEL_STORE=dsik", "set it to: disk, scc, shm", "--listen", free_address)


def test_a_state_directory_that_cannot_be_created(
    home: Home, expect: Callable[..., None], free_address: str
) -> None:
    (home.path / "file").touch()
    home.environ["XDG_STATE_HOME"] = str(home.path / "file/state")
    expect("state", "Not a directory", "XDG_STATE_HOME", "--listen", free_address)


@pytest.mark.parametrize(
    "damage, said, advised",
    [
        (lambda path: path.chmod(0o644), "other users can access it (mode 0644)", "chmod go= "),
        (lambda path: path.write_text("{"), "not JSON", "rm "),
    ],
)
def test_a_key_file_that_is_not_safe(
    home: Home,
    expect: Callable[..., None],
    free_address: str,
    damage: Callable[[Path], object],
    said: str,
    advised: str,
) -> None:
    path = home.path / "state/ciel/localhost_1/access.json"
    access_file_at(path, "127.0.0.1:1")
    damage(path)
    expect("keys", said, advised, "--listen", free_address)


def test_a_missing_temporary_directory(
    home: Home, expect: Callable[..., None], free_address: str
) -> None:
    home.environ["TMPDIR"] = str(home.path / "nowhere")
    expect("temporary", "which does not exist", "mkdir", "--listen", free_address)


@pytest.mark.parametrize("store, state", [("shm:capacity=1GiB", "fault"), ("disk", "note")])
def test_shared_memory_that_cannot_be_used(
    home: Home, typed: Typed, free_address: str, store: str, state: str
) -> None:
    home.environ["CIEL_STORE"] = store
    with mock.patch.object(doctor_host, "SHARED_MEMORY", home.path / "nowhere"):
        _, out, _ = typed(home, "doctor", "--json", "--listen", free_address)
    (found,) = [one for one in found_by(out) if one["check"] == "shared memory"]
    assert (found["state"], "cannot be used" in found["found"]) == (state, True)
    assert "--shm-size" in found["advice"]


@pytest.mark.slow
def test_limits_that_are_too_low(home: Home, of_this_machine: set[str], free_address: str) -> None:
    limits = "ulimit -n 300 -f 2048 -v 4000000"
    ended = home.run("bash", "-c", f"{limits} && exec ciel doctor --json --listen {free_address}")
    assert ended.returncode == 1, ended.stderr
    found = {one["check"]: one for one in faults(found_by(ended.stdout))}
    planted = {
        "open files": "at most 300", "file size": "at most 2MiB", "address space": "at most 3.8GiB"
    }  # fmt: skip
    assert found.keys() - of_this_machine == planted.keys()
    for check, said in planted.items():
        assert said in found[check]["found"]
        assert "ulimit" in found[check]["advice"]


@pytest.mark.slow
def test_a_library_that_cannot_be_loaded(
    home: Home, expect: Callable[..., None], free_address: str
) -> None:
    (home.path / "xxhash.py").write_text("raise ImportError('wrong ELF class')\n")
    home.environ["PYTHONPATH"] = str(home.path)
    ended = home.run("ciel", "doctor", "--json", "--listen", free_address)
    assert ended.returncode == 1, ended.stderr
    advice = "-m pip install --force-reinstall xxhash"
    expect("libraries", "xxhash cannot be loaded: wrong ELF class", advice, out=ended.stdout)


def test_a_missing_launcher(tmp_path: Path) -> None:
    found = list(doctor_host.check_software(tmp_path / "ciel-launcher"))
    (launcher,) = [one for one in found if one.check == "launcher"]
    assert "is missing" in launcher.found
    assert "C compiler" in launcher.advice


def test_a_cluster_that_was_interrupted(
    home: Home, expect: Callable[..., None], free_address: str
) -> None:
    path = home.path / "state/ciel/localhost_1/access.json"
    access_file_at(path, "127.0.0.1:1", DEAD_PID)
    point_current(home.environ, path)
    advised = f"its logs are in {path.parent}; `ciel up`"
    expect("crash", f"process {DEAD_PID} has ended", advised, "--listen", free_address)


def test_an_address_that_another_program_uses(home: Home, expect: Callable[..., None]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        expect("address", "is taken by another program", "ciel up --listen", "--listen", address)


# --- the cluster ----------------------------------------------------------------------------------


def test_a_master_that_does_not_run(
    home: Home, expect: Callable[..., None], free_address: str
) -> None:
    access = home.path / "access.json"
    access_file_at(access, free_address)
    expect(
        "master", "nothing listens there", "start the master on its host", "--access", str(access)
    )


def test_a_missing_key_file(home: Home, expect: Callable[..., None]) -> None:
    home.environ["CIEL_ACCESS"] = str(home.path / "nowhere.json")
    expect("master", "no such file", "copy the master's access file")


def test_a_key_of_another_cluster(
    home: Home, expect: Callable[..., None], lasting_cluster: HandCluster
) -> None:
    access = home.path / "access.json"
    fields = json.loads(lasting_cluster.access.read_text()) | {"key": Key.new().text()}
    access.touch(0o600)
    access.write_text(json.dumps(fields))
    expect("master", "key", "copy the master's access file again", "--access", str(access))


@pytest.fixture
def cluster_home(home: Home, lasting_cluster: HandCluster) -> Home:
    home.environ["CIEL_ACCESS"] = str(lasting_cluster.access)
    return home


def test_clocks_that_differ(cluster_home: Home, expect: Callable[..., None]) -> None:
    with mock.patch("time.time", return_value=time.time() + 3600):
        expect("clocks", " s behind this host's clock", "timedatectl set-ntp true")


def test_versions_that_differ(cluster_home: Home, expect: Callable[..., None]) -> None:
    with mock.patch("ciel.__version__", "99.0"):
        expect("versions", "this command has 99.0, the master has", "the same version everywhere")


@pytest.mark.slow
def test_a_cluster_without_workers_and_then_with_an_unreachable_one(
    home: Home, expect: Callable[..., None]
) -> None:
    cluster = HandCluster.start(home, workers=0)
    try:
        advised = f"ciel-worker --master {cluster.url}"
        expect("workers", "the cluster has no worker: nothing can run", advised)
        cluster.start_worker()
        (netloc,) = cluster.netlocs()
        with mock.patch("socket.create_connection", unreachable(netloc)):
            expect("addresses", f" at {netloc}: timed out", "--advertise")
    finally:
        cluster.stop()


def unreachable(netloc: str) -> Callable[..., socket.socket]:
    """Return a function that connects to any address except this one."""
    connect = socket.create_connection

    def connect_unless(address: tuple[str, int], *args: Any, **named: Any) -> socket.socket:
        if f"{address[0]}:{address[1]}" == netloc:
            raise TimeoutError("timed out")
        return connect(address, *args, **named)

    return connect_unless


def test_an_installation_without_faults(
    cluster_home: Home, typed: Typed, of_this_machine: set[str]
) -> None:
    status, out, err = typed(cluster_home, "doctor")
    lines = out.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "note", "→", *(["FAULT"] * bool(status))}
    assert status == bool(of_this_machine), err
    for said in ("libraries", "open files", "master", "clocks", "workers"):
        assert any(f"  {said} " in line for line in lines)
