"""Every base passes the conformance suite (KVB-2 to KVB-4)."""

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import redis

from ciel.state.bases.embedded import ALWAYS, OFF, EmbeddedBase
from ciel.state.bases.etcd import BATCH_BYTES, STEPS_MAX, EtcdBase
from ciel.state.bases.memory import MemoryBase
from ciel.state.bases.redis import RedisBase
from ciel.state.interface import Base, Capabilities
from ciel.testing.state.suite import KvSuite
from ciel_tests.etcd_server import ETCD, etcd_server
from ciel_tests.kv_daemons import KvDaemon
from ciel_tests.redis_server import REDIS, redis_server


@pytest.mark.requirement("KVB-4")
class TestMemoryBase(KvSuite):
    capabilities = Capabilities(is_durable=False, is_shared=False)

    def make_base(self, where: Path) -> Base:
        return MemoryBase()


@pytest.mark.requirement("KVB-2", "KVB-4")
class TestEmbeddedBase(KvSuite):
    capabilities = Capabilities()

    def make_base(self, where: Path) -> Base:
        return EmbeddedBase(where, OFF)


class TestSyncedEmbeddedBase(KvSuite):
    capabilities = Capabilities()
    rows_many = 400

    def make_base(self, where: Path) -> Base:
        return EmbeddedBase(where, ALWAYS)


@pytest.mark.requirement("KVB-2", "KVB-4")
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


class OfServer(KvSuite):
    """Tests of one server for all: each test begins with an empty base."""

    server: ClassVar[int]

    @pytest.fixture(autouse=True)
    def _empty(self) -> None:
        self.flush()

    @abstractmethod
    def flush(self) -> None:
        """Remove all rows of the server."""


@pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")
class TestRedisBase(OfServer):
    capabilities = Capabilities(is_ordered=False, has_atomic_scan=False, is_durable=False)
    rows_many = 400

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with redis_server(tmp_path_factory.mktemp("redis")) as cls.server:
            yield

    def make_base(self, where: Path) -> Base:
        return RedisBase(f"redis://127.0.0.1:{self.server}")

    def flush(self) -> None:
        redis.Redis(port=self.server).flushall()


@pytest.mark.skipif(ETCD is None, reason="etcd is not installed")
class TestEtcdBase(OfServer):
    capabilities = Capabilities(steps_max=STEPS_MAX, batch_max_bytes=BATCH_BYTES)
    rows_many = 400

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with etcd_server(tmp_path_factory.mktemp("etcd")) as cls.server:
            yield

    def make_base(self, where: Path) -> Base:
        return EtcdBase("127.0.0.1", self.server)

    def flush(self) -> None:
        with EtcdBase("127.0.0.1", self.server) as base:
            base.call("kv/deleterange", {"key": "AA==", "range_end": "AA=="})


class TestSyncedRemoteBase(TestRemoteBase):
    rows_many = 400
    sync = "always"
