"""Provides hosts of namespaces to tests, which are skipped where there can be none."""

from __future__ import annotations

import pytest

from ciel.testing import hosts
from ciel.testing.hosts import ROOT, Host, HostsUnavailableError, TwoHosts

__all__ = ["ROOT", "Host", "Hosts", "TwoHosts"]


class Hosts(hosts.Hosts):
    """Hosts on one switch; skips the test if they cannot be made."""

    def __enter__(self) -> list[Host]:
        try:
            return super().__enter__()
        except HostsUnavailableError as error:
            pytest.skip(f"no hosts of their own here: {error}")
