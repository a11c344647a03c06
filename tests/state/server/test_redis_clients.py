"""Clients of Redis use `ciel-kv` unchanged, and get the replies that Redis gives."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ciel.state.bases.replies import Replies, ReplyError, pack_command
from ciel_tests.kv_daemons import KvDaemon
from ciel_tests.redis_server import REDIS, redis_server

needs_redis = pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvDaemon]:
    with KvDaemon(tmp_path_factory.mktemp("kv") / "base", "--sync", "off") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: KvDaemon) -> Iterator[redis.Redis]:
    client = connect(daemon, password=daemon.key.text())
    client.flushdb()
    yield client
    client.close()


def connect(daemon: KvDaemon, **options: Any) -> redis.Redis:
    return redis.Redis(port=daemon.port, retry=Retry(NoBackoff(), 0), **options)


def run(daemon: KvDaemon, *command: str, input_: str = "") -> str:
    program = shutil.which(command[0])
    if program is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(
        [program, "-p", str(daemon.port), "-a", daemon.key.text(), *command[1:]],
        capture_output=True, check=True, text=True, input=input_, timeout=60,
    )  # fmt: skip
    return done.stdout


def test_redis_cli(daemon: KvDaemon) -> None:
    lines = """
        flushall\n set a 1\n incrby a 41\n get a\n mset b 2 c 3\n mget a b none\n setnx a 1
        del a b\n multi\n set x 1\n incr x\n exec\n scan 0\n lpush l 1\n get\n hset h f v
        get h\n ttl x
    """
    replies = run(daemon, "redis-cli", "--no-auth-warning", "--no-raw", input_=lines).splitlines()
    shown = "\n".join(line.strip() for line in replies)
    assert '(integer) 42\n"42"' in shown
    assert '1) "42"\n2) "2"\n3) (nil)' in shown
    assert "QUEUED\n1) OK\n2) (integer) 2" in shown
    assert "(error) ERR unknown command 'LPUSH'" in shown
    assert "(error) ERR wrong number of arguments for 'get' command" in shown
    assert "(error) WRONGTYPE" in shown


def test_redis_benchmark(daemon: KvDaemon) -> None:
    options = ("-t", "ping,set,get,incr,mset,hset,zadd", "-n", "500", "-c", "8", "-r", "50", "-q")
    shown = run(daemon, "redis-benchmark", *options)
    assert shown.count("requests per second") == 8  # ping has two forms
    shown = run(daemon, "redis-benchmark", "-t", "set,get", "-n", "500", "-P", "16", "-q")
    assert shown.count("requests per second") == 2


def test_redis_py(client: Any) -> None:
    assert client.set("a", 1)
    assert client.incr("a", 5) == 6
    assert client.mget("a", "b") == [b"6", None]
    assert client.set("a", 2, nx=True) is None
    client.hset("h", mapping={"f": "1", "g": "2"})
    assert client.hgetall("h") == {b"f": b"1", b"g": b"2"}
    client.zadd("z", {"one": 1, "two": 2.5})
    assert client.zrangebyscore("z", 1, 3, withscores=True) == [(b"one", 1.0), (b"two", 2.5)]
    client.mset({f"k{number}": number for number in range(500)})
    assert len(list(client.scan_iter("k*", count=7))) == 500
    assert client.dbsize() == 503
    with pytest.raises(redis.ResponseError, match="unknown command 'SADD'"):
        client.sadd("s", 1)


def test_redis_py_transaction_is_refused_after_a_change(client: Any) -> None:
    def double(pipe: Any) -> None:
        value = int(pipe.get("n"))
        if pipe.get("first") is None:
            client.set("first", 1)
            client.incr("n")  # another client
        pipe.multi()
        pipe.set("n", 2 * value)

    client.set("n", 5)
    client.transaction(double, "n")
    assert client.get("n") == b"12"
    with client.pipeline() as pipe:
        pipe.watch("n")
        pipe.multi()
        pipe.set("n", 0)
        client.set("n", 1)
        with pytest.raises(redis.WatchError):
            pipe.execute()


def test_wrong_passwords_are_refused(daemon: KvDaemon) -> None:
    for password in ("x", "kv-" + "0" * 64, "0" * 64):
        with pytest.raises(redis.AuthenticationError):
            connect(daemon, password=password).ping()
    with pytest.raises(redis.AuthenticationError, match="Authentication required"):
        connect(daemon, protocol=2).get("a")


# --- the same commands, to Redis ------------------------------------------------------------------

_KEYS = [b"a", b"b", b"c", b"h", b"z"]
_FIELDS = [b"f", b"g", b"1"]
_VALUES = [b"", b"0", b"7", b"-3", b"text", b"9223372036854775807", b"1.5", b"v" * 200]
_SCORES = [b"0", b"1", b"-1", b"2.5", b"1e3", b"inf", b"(1", b"x"]
_NUMBERS = [b"0", b"1", b"-1", b"5", b"100000", b"x", b""]
_FORMS = {
    "k": _KEYS, "f": _FIELDS, "v": _VALUES, "s": _SCORES, "n": _NUMBERS,
}  # fmt: skip
_COMMANDS = """
GET k|SET k v|SET k v NX|SET k v XX GET|SET k v KEEPTTL|SET k v EX n|SET k v PX 100000|SET k v XX NX
SETNX k v|GETSET k v|GETDEL k|MGET k k k|MSET k v k v|MSET k v k|MSETNX k v k v|INCR k|DECR k
INCRBY k n|DECRBY k n|APPEND k v|STRLEN k|DEL k|DEL k k|UNLINK k|EXISTS k k k|TYPE k|EXPIRE k n
PERSIST k|TTL k|HSET k f v|HSET k f v f v|HSET k f|HSETNX k f v|HGET k f|HMGET k f f|HGETALL k
HDEL k f|HDEL k f f|HEXISTS k f|HLEN k|HINCRBY k f n|ZADD k s f|ZADD k NX s f|ZADD k XX CH s f
ZADD k s f s f|ZREM k f|ZREM k f f|ZSCORE k f|ZCARD k|ZRANGE k n n|ZRANGE k n n WITHSCORES
ZRANGEBYSCORE k s s|ZRANGEBYSCORE k s s WITHSCORES|ZRANGEBYSCORE k s s LIMIT n n
KEYS *|KEYS [a-c]|DBSIZE|FLUSHDB|SELECT 0|ECHO v|PING|PING v|MULTI|EXEC|DISCARD|WATCH k|UNWATCH
GET|GET k k|SET k|NONSENSE k
"""


def random_command(random: Random) -> list[bytes]:
    form = random.choice([line for line in _COMMANDS.replace("\n", "|").split("|") if line])
    return [
        random.choice(_FORMS[word]) if word in _FORMS else word.encode() for word in form.split()
    ]


def reply_of(own: socket.socket, replies: Replies, command: list[bytes]) -> Any:
    own.sendall(pack_command(command))
    try:
        return simplified(command[0], replies.next())
    except ReplyError as error:
        return error.code


def simplified(name: bytes, reply: Any) -> Any:
    """Return a reply without what clients must not rely on: the order of keys and fields."""
    if isinstance(reply, ReplyError):
        return reply.code
    if name in (b"KEYS",) and isinstance(reply, list):
        return sorted(reply)
    if name == b"HGETALL" and isinstance(reply, list):
        return sorted(zip(reply[::2], reply[1::2], strict=True))
    if name == b"EXEC" and isinstance(reply, list):
        return [sorted(map(repr, part)) if isinstance(part, list) else simplified(b"", part)
                for part in reply]  # fmt: skip
    return reply


@needs_redis
@pytest.mark.parametrize("seed", range(8))
def test_replies_are_those_of_redis(daemon: KvDaemon, tmp_path: Path, seed: int) -> None:
    with redis_server(tmp_path) as port:
        ours = socket.create_connection(("127.0.0.1", daemon.port))
        theirs = socket.create_connection(("127.0.0.1", port))
        with ours, theirs:
            own, other = Replies(ours), Replies(theirs)
            reply_of(ours, own, [b"AUTH", daemon.key.text().encode()])
            random = Random(seed)
            for command in [[b"FLUSHALL"]] + [random_command(random) for _ in range(3000)]:
                assert reply_of(ours, own, command) == reply_of(theirs, other, command), command
