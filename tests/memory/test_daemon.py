"""The memory server daemon, without a master."""

from __future__ import annotations

import pytest

from ciel.cli.daemons.addresses import require_reachable
from ciel.cli.daemons.errors import DaemonError


def test_a_daemon_that_other_hosts_cannot_reach_says_what_it_is() -> None:
    why = r"cannot reach this memory server: it listens on 127\.0\.0\.1"
    with pytest.raises(DaemonError, match=why):
        require_reachable("127.0.0.1", "http://192.0.2.1:8000", "memory server")
