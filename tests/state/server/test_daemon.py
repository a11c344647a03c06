"""Real `ciel-kv` daemons: their options, what they refuse, and their metrics."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ciel.access.access_file import AccessFile
from ciel.access.keys import Key, Role, bearer_header
from ciel.state.bases.redis import RedisBase
from ciel.state.batches import Delete, Put
from ciel.state.errors import BaseFullError, LimitError
from ciel_tests.kv_daemons import KvDaemon, Process
from ciel_tests.redis_server import REDIS, redis_server


def connect(daemon: KvDaemon) -> Any:
    return redis.Redis(port=daemon.port, password=daemon.key.text(), retry=Retry(NoBackoff(), 0))


def logged(daemon: KvDaemon, pattern: str) -> str:
    found = re.search(pattern, daemon.log.read_text())
    assert found is not None, daemon.log.read_text()
    return found[1]


@pytest.mark.slow
def test_daemon_carries_out_a_batch_of_a_million_rows(tmp_path: Path) -> None:
    with KvDaemon(tmp_path / "base", "--sync", "off") as daemon, closing(daemon.base(120)) as base:
        base.apply([Put(b"%d" % number, b"v") for number in range(1_000_000)])
        assert base.read([b"0", b"999999", b"1000000"]) == [b"v", b"v", None]


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--capacity", "1KiB"], "--capacity is from 1MiB to 16TiB"),
        (["--value-max", "65MiB"], "--value-max is at most 64MiB"),
        (["--output-max", "100MiB"], "must have room for a value"),
        (["--clients-max", "0"], "not a number from 1"),
        (["--http", "nowhere"], "nowhere"),
    ],
)
def test_options_without_sense_are_refused(tmp_path: Path, options: list[str], reason: str) -> None:
    command = [sys.executable, "-m", "ciel.cli.daemons.kv", "--path", str(tmp_path / "base")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert reason in done.stderr


def test_clients_get_the_errors_of_the_interface(tmp_path: Path) -> None:
    options = ("--capacity", "1MiB", "--value-max", "300KiB", "--sync", "off")
    with KvDaemon(tmp_path / "base", *options) as daemon, daemon.base() as base:
        value = bytes(300 << 10)
        with pytest.raises(LimitError, match="a value has at most 307,200 bytes"):
            base.apply([Put(b"a", value + b"x")])
        base.apply([Put(b"%d" % number, value) for number in range(3)])
        with pytest.raises(BaseFullError, match=r"is full: its rows have 921,6.*deletes"):
            base.apply([Put(b"more", value)])
        assert base.get(b"0") == value
        assert [key for key, _ in base.scan()] == [b"0", b"1", b"2"]
        daemon.kill()
        daemon.start()
        with pytest.raises(BaseFullError):
            base.apply([Put(b"more", value)])
        with connect(daemon) as client, pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("more", value)
        base.apply([Delete(b"0")])
        base.apply([Put(b"more", value)])


@pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")
def test_full_redis_is_full(tmp_path: Path) -> None:
    with redis_server(tmp_path) as port, RedisBase(f"redis://127.0.0.1:{port}") as base:
        redis.Redis(port=port).config_set("maxmemory", 1)
        with pytest.raises(BaseFullError, match=r"is full: .*used memory > 'maxmemory'"):
            base.apply([Put(b"a", b"1")])


WITH_FEW_FILES = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
runpy.run_module("ciel.cli.daemons.kv", run_name="__main__")
"""


def spawn_with_few_files(arguments: list[str], environment: dict[str, str]) -> Process:
    return subprocess.Popen([sys.executable, "-c", WITH_FEW_FILES, *arguments], env=environment)


def test_daemon_accepts_as_many_clients_as_it_may_open_files(tmp_path: Path) -> None:
    options = ("--sync", "off")
    with KvDaemon(tmp_path / "base", *options, spawn=spawn_with_few_files) as daemon:
        assert logged(daemon, r"--clients-max is (\d+), and not 10000") == "16"
        clients = [connect(daemon) for _ in range(16)]
        assert all(client.ping() for client in clients)
        reached = pytest.raises(redis.RedisError, match="max number of clients reached: 16")
        with connect(daemon) as other, reached:
            other.ping()
        clients.pop().close()
        assert clients[0].ping()
        for client in clients:
            client.close()


# --- metrics --------------------------------------------------------------------------------------


def get(address: str, key: Key | None, path: str = "/metrics", method: str = "GET") -> Any:
    headers = {"Authorization": bearer_header(key)} if key else {}
    with closing(http.client.HTTPConnection(address, timeout=30)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_metrics_of_a_base_without_a_cluster_need_its_password(tmp_path: Path) -> None:
    options = ("--http", "127.0.0.1:0", "--sync", "off")
    with KvDaemon(tmp_path / "base", *options) as daemon:
        with connect(daemon) as client:
            client.set("a", 1)
        address = logged(daemon, r"metrics are at http://(.*)/metrics")
        for key in (None, Key(bytes(32), Role.KV), Key(bytes(32)), Key(bytes(32), Role.READ)):
            assert get(address, key)[0] == 401
        status, text = get(address, daemon.key)
        assert status == 200
        assert '\nciel_kv_commands_total{command="set"} 1\n' in text
        assert "\nciel_kv_rows 1\n" in text
        assert "\nprocess_resident_memory_bytes " in text
        assert "a" not in re.findall(r'="(.*?)"', text)  # no key, and no value
        assert get(address, daemon.key, method="POST")[0] == 405
        assert get(address, daemon.key, "/")[0] == 404


def test_metrics_of_a_cluster_are_for_those_who_may_read(tmp_path: Path) -> None:
    key, where = Key(b"k" * 32), tmp_path / "state" / "access.json"
    AccessFile("http://127.0.0.1:1", "127.0.0.1:1", "c", key, 1, 1).write(where)
    options = ("--http", "127.0.0.1:0", "--access", str(where))
    with KvDaemon(tmp_path / "base", *options) as daemon:
        address = logged(daemon, r"metrics are at http://(.*)/metrics")
        statuses = {role: get(address, key.derive(role))[0] for role in Role}
        for of_tasks in (Role.KV, Role.SERVICE):
            assert statuses.pop(of_tasks) == 403  # tasks have these keys
        assert set(statuses.values()) == {200}


def listening_sockets(pid: int) -> int:
    own = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == "0A" and f"socket:[{row[9]}]" in own for row in rows)


def test_no_port_for_metrics_is_opened_by_itself(tmp_path: Path) -> None:
    with KvDaemon(tmp_path / "base") as daemon:
        assert listening_sockets(daemon.pid) == 1


def test_clients_of_redis_read_info(tmp_path: Path) -> None:
    with KvDaemon(tmp_path / "base", "--sync", "off") as daemon, connect(daemon) as client:
        client.mset({"a": 1, "b": 2})
        found = client.info()
        assert found["tcp_port"] == daemon.port
        assert found["db0"] == {"keys": 2, "expires": 0, "avg_ttl": 0}
        assert found["used_memory_rss"] > 1 << 20
        assert found["aof_current_size"] > 0
        assert client.info("commandstats")["cmdstat_mset"]["calls"] == 1


def test_remote_base_reads_no_reply_that_is_too_large(tmp_path: Path) -> None:
    options = ("--output-max", "3MiB", "--value-max", "1MiB", "--sync", "off")
    with KvDaemon(tmp_path / "base", *options) as daemon, daemon.base() as base:
        for key in (b"a", b"b"):
            base.apply([Put(key, bytes(1 << 20))])
        with pytest.raises(LimitError, match="a reply has at most 1,572,864 bytes"):
            base.read([b"a", b"b"])
        assert base.read([b"a"]) == [bytes(1 << 20)]
        assert len(list(base.scan())) == 2
