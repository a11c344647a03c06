"""Every base passes the conformance suite (KVB-2 to KVB-4)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.state.bases.embedded import ALWAYS, OFF, EmbeddedBase
from ciel.state.bases.memory import MemoryBase
from ciel.state.interface import Base, Capabilities
from ciel.testing.state.suite import KvSuite
from ciel_tests.kv_daemons import KvDaemon


class TestMemoryBase(KvSuite):
    capabilities = Capabilities(is_durable=False, is_shared=False)

    def make_base(self, where: Path) -> Base:
        return MemoryBase()


class TestEmbeddedBase(KvSuite):
    capabilities = Capabilities()

    def make_base(self, where: Path) -> Base:
        return EmbeddedBase(where, OFF)


class TestSyncedEmbeddedBase(KvSuite):
    capabilities = Capabilities()
    rows_many = 400

    def make_base(self, where: Path) -> Base:
        return EmbeddedBase(where, ALWAYS)


class TestRemoteBase(KvSuite):
    capabilities = Capabilities()
    rows_many = 1000
    sync = "off"

    @pytest.fixture(autouse=True)
    def _daemons(self) -> Iterator[None]:
        self.daemons: dict[Path, KvDaemon] = {}
        yield
        for daemon in self.daemons.values():
            daemon.end()

    def make_base(self, where: Path) -> Base:
        if where not in self.daemons:
            self.daemons[where] = KvDaemon(where, "--sync", self.sync)
        return self.daemons[where].base()


class TestSyncedRemoteBase(TestRemoteBase):
    rows_many = 400
    sync = "always"
