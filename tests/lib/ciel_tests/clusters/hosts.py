"""Provides hosts of namespaces to tests, which are skipped where there can be none."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from ciel.testing import hosts
from ciel.testing.homes import wait_for
from ciel.testing.hosts import ROOT, Host, HostsUnavailableError

__all__ = ["ROOT", "Host", "Hosts", "TwoHosts"]


class Hosts(hosts.Hosts):
    """Hosts on one switch; skips the test if they cannot be made."""

    def __enter__(self) -> list[Host]:
        try:
            return super().__enter__()
        except HostsUnavailableError as error:
            pytest.skip(f"no hosts of their own here: {error}")


class TwoHosts:
    """A master on the first host, and access to it on both; the test starts the workers."""

    def __init__(self, here: Host, there: Host) -> None:
        listen = ("--listen", f"{here.address}:0", "--new-key")
        here.start("ciel-master", *listen, "--log", "master.log")
        wait_for(lambda: [*here.path.glob("state/ciel/*/access.json")], "the access file")
        (access,) = here.path.glob("state/ciel/*/access.json")
        here.environ["CIEL_MASTER"] = str(json.loads(access.read_text())["url"])
        shutil.copy2(access, there.path / "carried.json")
        there.environ["CIEL_ACCESS"] = str(there.inside / "carried.json")

    def start_worker(self, host: Host) -> None:
        own = ("--listen", f"{host.address}:0", "--slots", "1", "--spool", "spool")
        host.start("ciel-worker", *own, "--log", "worker.log")
        wait_for(partial(_has_joined, host.path / "worker.log"), "a worker")


def _has_joined(log: Path) -> bool:
    return log.exists() and "joined the master" in log.read_text()
