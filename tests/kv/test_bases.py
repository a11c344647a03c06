"""Every base passes the conformance suite (KVB-2 to KVB-4)."""

from pathlib import Path

from ciel.kv.embedded import ALWAYS, OFF, EmbeddedBase
from ciel.kv.interface import Base, Capabilities
from ciel.kv.memory import MemoryBase
from ciel.testing.kv.suite import KvSuite


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
