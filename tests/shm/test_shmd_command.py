"""`ciel shmd`: the daemon of a block store as a command and as a service of systemd."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from ciel.shm.client import ShmdClient
from ciel.testing.homes import BIN
from ciel_tests.clusters.block_stores import BlockStores
from ciel_tests.documents.schemas import Schemas

UNIT = Path(__file__).parents[2] / "contrib" / "ciel-shmd@.service"


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a daemon by SIGTERM; return its output and its errors."""
    process.send_signal(signal.SIGTERM)
    out, said = process.communicate(timeout=20)
    assert process.returncode == 0, said
    return out, said


@pytest.mark.requirement("CIB-10")
def test_it_serves_until_a_signal_and_leaves_nothing(stores: BlockStores, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = stores.begin("a", "--json", "--log", str(log))
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    Schemas().check("shmd", ready)
    assert ready == {"directory": str(tmp_path / "a"), "socket": str(tmp_path / "a/shmd/socket")}
    path = stores.client("a").write("unfinished")
    assert Path(path).exists()
    del stores.daemons["a"]
    assert end(process) == ("", "")
    assert not Path(path).exists()
    assert not (tmp_path / "a" / "shmd").exists()
    assert f"serves {tmp_path / 'a'}" in log.read_text()


def test_a_second_one_says_that_there_is_one(stores: BlockStores) -> None:
    stores.start("a")
    first = stores.daemons["a"]
    second = stores.begin("a")
    _, said = second.communicate(timeout=20)
    stores.daemons["a"] = first
    assert second.returncode == 1
    assert "already has a daemon; a block store has only one" in said


@pytest.mark.parametrize(
    "options, status, words",
    [
        (["--capacity", "much"], 2, "much"),
        (["--capacity", "16MiB", "--group"], 2, "--group"),
        (["--log", "/proc/none/log"], 1, "cannot log to /proc/none/log"),
    ],
)
def test_a_wrong_option_is_reported_in_one_line(
    tmp_path: Path, options: list[str], status: int, words: str
) -> None:
    command = [str(BIN / "ciel"), "shmd", str(tmp_path / "a"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40)
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.requirement("CIB-10")
def test_the_unit_of_systemd_starts_it_and_learns_when_it_serves(tmp_path: Path) -> None:
    unit = ConfigParser(interpolation=None, delimiters=("=",))
    unit.read(UNIT)
    service = unit["Service"]
    assert service["Type"] == "notify"
    directory = tmp_path / "objects"
    command = [word.replace("%f", str(directory)) for word in shlex.split(service["ExecStart"])]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(20)
        environ = os.environ | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
        }
        process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert notified.recv(1000).startswith(b"READY=1\nSTATUS=serves ")
            with ShmdClient(directory, timeout_s=20) as client:
                assert client.write("x")
        finally:
            out, _ = end(process)
    assert out == f"{directory / 'shmd/socket'}\n"
