"""What commands do, without sockets: slices, limits, a full base, and what the daemon counts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ciel.access.keys import Key, Role
from ciel.state.bases.wire import pack_steps
from ciel.state.batches import Delete, Increment, Put, Step
from ciel.state.errors import BaseFullError
from ciel.state.server import sessions
from ciel.state.server.buffered import BufferedRows
from ciel.state.server.command import SLICE_STEPS
from ciel.state.server.layers import Layers
from ciel.state.server.limits import DEFAULT, KvLimits
from ciel.state.server.resp import NULL_ARRAY, OK, QUEUED, Failure
from ciel.state.server.sessions import Server, Session

KEY = Key(b"k" * 32)


class Client:
    """A connection that is authenticated."""

    def __init__(self, server: Server, role: Role | None = Role.KV) -> None:
        self.server = server
        self.session: Session = server.open(may_use_password=True)
        self.session.role = role

    def __call__(self, *words: bytes | str | int) -> Any:
        return self.server.execute(
            self.session,
            [word if isinstance(word, bytes) else str(word).encode() for word in words],
        )

    def batch(self, *steps: Step, number: int = 0) -> Any:
        client = b"client" if number else b""
        return self(b"CIEL.BATCH", client, number, 60, *pack_steps(steps))

    def code(self, *words: bytes | str | int) -> str:
        """Return the code of an error."""
        reply = self(*words)
        assert isinstance(reply, Failure), reply
        return reply.code


class Base:
    """A server, and the calls of its thread."""

    def __init__(self, where: Path, limits: KvLimits = DEFAULT, **options: Any) -> None:
        self.calls: list[Any] = []
        self.rows = BufferedRows(where, self._now_us, self.calls.append, **options)
        self.server = Server(self.rows, KEY.derive, limits, clock=count().__next__)
        self.client = Client(self.server)

    def _now_us(self) -> int:
        return self.server.now_us if hasattr(self, "server") else 0

    def commit(self) -> None:
        self.rows.checkpoint()
        self.end_commit()

    def end_commit(self) -> None:
        assert self.rows._committer is not None
        self.rows._committer.join()
        while self.calls:
            self.calls.pop()()


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Base]:
    base = Base(tmp_path / "base")
    yield base
    base.rows.close()


def finish(slices: Any) -> tuple[int, Any]:
    """Carry out slices; return their number, and the reply."""
    for number in count(1):
        try:
            next(slices)
        except StopIteration as end:
            return number, end.value
    raise AssertionError


# --- commands that concern all rows ---------------------------------------------------------------


def test_keys_are_found_in_slices_between_which_others_are_served(base: Base) -> None:
    client, other = base.client, Client(base.server)
    keys = [b"%05d" % number for number in range(10 * SLICE_STEPS)]
    client("MSET", *[part for key in keys for part in (key, b"v")])
    base.commit()
    slices = client("KEYS", "*")
    next(slices)
    assert other("DEL", keys[-1], keys[5000]) == 2
    assert other("SET", "99999", "new") is OK
    assert other("FLUSHALL") is OK
    number, found = finish(slices)
    assert found == keys  # as of the moment of the command
    assert number == pytest.approx(len(keys) / SLICE_STEPS, abs=2)
    assert client("KEYS", "*") == []
    assert base.rows.snapshots == 0


def test_slices_are_shorter_if_rows_are_large(base: Base) -> None:
    for number in range(40):
        base.client("SET", number, bytes(409_600))  # a hundred pages
    slices = base.client("KEYS", "*")
    number, found = finish(slices)
    assert number >= 3
    assert len(found) == 40


def test_keys_of_a_few_rows_are_found_at_once(base: Base) -> None:
    base.client("MSET", "a", 1, "b", 2)
    assert base.client("KEYS", "[ab]") == [b"a", b"b"]
    assert base.client.code("KEYS") == "ERR"


def test_keys_within_a_transaction_are_those_of_its_moment(base: Base) -> None:
    client, other = base.client, Client(base.server)
    client("MSET", *[part for n in range(2 * SLICE_STEPS) for part in (b"%05d" % n, b"v")])
    client("MULTI")
    client("SET", "new", 1)
    assert client("KEYS", "*w") is QUEUED
    client("DEL", "new")
    slices = client("EXEC")
    other("SET", "www", 1)
    assert finish(slices)[1] == [OK, [b"new"], 1]


def test_too_many_keys_are_refused(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ciel.state.server.values._KEYS_MAX", SLICE_STEPS + 10)
    base.client("MSET", *[part for n in range(2 * SLICE_STEPS) for part in (b"%05d" % n, b"v")])
    _, reply = finish(base.client("KEYS", "*"))
    assert reply == Failure("ERR", "more than 1,010 keys: use SCAN")
    assert base.rows.snapshots == 0


def test_slices_end_with_their_connection(base: Base) -> None:
    base.client("MSET", *[part for n in range(3 * SLICE_STEPS) for part in (b"%05d" % n, b"v")])
    slices = base.client("KEYS", "*")
    next(slices)
    assert base.rows.snapshots == 1
    slices.close()
    assert base.rows.snapshots == 0


def test_scan_reads_a_bounded_number_of_rows(base: Base) -> None:
    base.client("MSET", *[part for n in range(3 * SLICE_STEPS) for part in (b"%05d" % n, b"v")])
    cursor, keys = base.client("SCAN", 0, "COUNT", 1_000_000)
    assert cursor != b"0"
    assert len(keys) == SLICE_STEPS


def refuse_to_read(*_: object) -> Iterator[Any]:
    raise AssertionError("rows are read")


def test_dbsize_and_flushall_read_no_rows(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    client = base.client
    client("MSET", *[part for n in range(500) for part in (n, b"v")])
    client("HSET", "hash", "field", 1)
    base.commit()
    client("DEL", 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Layers, "range", refuse_to_read)
        assert client("DBSIZE") == 499
        client("MULTI")
        for words in (("SET", "new", 1), ("DBSIZE",), ("FLUSHALL",), ("SET", 1, 1), ("DBSIZE",)):
            client(*words)
        assert client("EXEC") == [OK, 500, OK, OK, 1]
        assert client("DBSIZE") == 1
    assert client("KEYS", "*") == [b"1"]
    base.commit()
    assert client("KEYS", "*") == [b"1"]
    assert client("HGETALL", "hash") == {}


def test_flushall_is_seen_as_a_whole(base: Base) -> None:
    client, other = base.client, Client(base.server)
    client.batch(Put(b"a", b"1"), Increment(b"n"), number=1)
    client("HSET", "hash", "field", 1)
    base.commit()
    client("HSET", "hash2", "field", 1)
    other("WATCH", "a", "none")
    other("MULTI")
    other("SET", "b", 1)
    number = other.server.execute(Client(base.server).session, [b"CIEL.SNAPSHOT"])
    assert isinstance(number, int)
    client("FLUSHALL")
    assert other("EXEC") is NULL_ARRAY
    assert client("MGET", "a", "n") == [None, None]
    assert client("TYPE", "hash") == client("TYPE", "hash2")
    assert base.rows.layers.size.bytes == 0
    client("HSET", "hash", "other", 1)
    assert client("HGETALL", "hash") == {b"other": b"1"}
    assert client.batch(Put(b"a", b"1"), Increment(b"n"), number=1) == [None, 1]
    assert client("GET", "a") is None  # the batch was carried out already


def test_flushall_leaves_watches_of_missing_keys_alone(base: Base) -> None:
    client, other = base.client, Client(base.server)
    client("SET", "a", 1)
    other("WATCH", "none")
    other("MULTI")
    client("FLUSHALL")
    assert other("EXEC") == []


def test_flushall_is_reported_to_watches_of_prefixes(base: Base) -> None:
    base.client("CIEL.WATCH", "some/")
    base.client("FLUSHALL")
    assert [push.parts for _, push in base.server.take_pushes()] == [[b"ciel.changed", b"some/"]]


def test_elements_of_removed_hashes_are_removed_later(base: Base) -> None:
    client = base.client
    for number in range(5):
        client("HSET", number, *[part for n in range(10) for part in (n, b"v")])
    client("DEL", *range(5))
    base.commit()
    base.server.sweep()
    base.server.sweep()
    assert base.rows.layers.size == (0, 0, 0)


# --- limits ---------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Base]:
    base = Base(tmp_path / "base", KvLimits(value_bytes=100, output_bytes=1 << 20))
    yield base
    base.rows.close()


def test_large_values_are_refused(small: Base) -> None:
    client, fits, large = small.client, b"v" * 100, b"v" * 101
    assert client("SET", "a", fits) is OK
    assert client("SET", "a", fits, "EX", 100) is OK
    for words in (
        ("SET", "a", large), ("SET", "a", large, "EX", 5), ("MSET", "a", large),
        ("APPEND", "a", "x"), ("HSET", "h", "f", large), ("SETEX", "a", 5, large),
        ("GETSET", "a", large),
    ):  # fmt: skip
        assert client.code(*words) == "LIMIT"
    assert client.batch(Put(b"b", fits)) == [None]
    results = [None] * 100  # these are kept for a repeated request, and are no value of the client
    assert client.batch(*[Put(b"b", fits)] * 100, number=1) == results
    assert client.batch(Put(b"c", b"1"), Put(b"b", large)).code == "LIMIT"
    assert client("GET", "a") == fits
    assert client("GET", "c") is None


def test_large_replies_are_refused_before_they_are_made(small: Base) -> None:
    client = small.client
    client("SET", "a", b"v" * 100)
    client("HSET", "h", *[part for n in range(6000) for part in (n, b"v" * 100)])
    snapshot = client("CIEL.SNAPSHOT")
    names = ["a"] * 6000  # half a megabyte is the limit
    assert client.code("MGET", *names) == "LIMIT"
    assert client.code("CIEL.GET", snapshot, *names) == "LIMIT"
    assert client.code("HGETALL", "h") == client.code("HVALS", "h") == "LIMIT"
    assert client.code("HMGET", "h", *range(6000)) == "LIMIT"
    assert len(client("MGET", *names[:5000])) == 5000


def test_large_replies_of_a_transaction_are_left_out(small: Base) -> None:
    client = small.client
    client("SET", "a", b"v" * 100)
    client("MULTI")
    for _ in range(3):
        client("MGET", *["a"] * 2500)
    client("SET", "b", 1)
    *replies, last = client("EXEC")
    assert [isinstance(reply, list) for reply in replies] == [True, True, False]
    assert replies[2].code == "LIMIT"
    assert last is OK


def test_transaction_with_too_many_commands_is_refused(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "QUEUE_MAX", 3)
    client = base.client
    client("MULTI")
    for number in range(3):
        assert client("SET", number, 1) is QUEUED
    assert client.code("SET", 3, 1) == "LIMIT"
    assert client.code("EXEC") == "EXECABORT"
    assert client("DBSIZE") == 0


def test_transaction_with_too_many_bytes_is_refused(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "QUEUE_MAX_BYTES", 1000)
    client = base.client
    for _ in range(2):
        client("MULTI")
        assert client("SET", "a", bytes(900)) is QUEUED
        assert client.code("SET", "a", bytes(100)) == "LIMIT"
        assert client.code("EXEC") == "EXECABORT"
    assert client("DBSIZE") == 0


def test_batch_with_too_many_bytes_is_refused(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ciel.state.batches.check.__defaults__", (1000,))
    reply = base.client.batch(Put(b"a", bytes(600)), Put(b"b", bytes(600)))
    assert reply.code == "LIMIT"
    assert base.client("DBSIZE") == 0


def test_watches_are_limited(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "WATCHES_MAX", 2)
    client = base.client
    assert client("WATCH", "a", "b") is OK
    assert client.code("WATCH", "c") == "LIMIT"
    assert client("CIEL.WATCH", "a") is OK
    assert client("CIEL.WATCH", "b") is OK
    assert client.code("CIEL.WATCH", "c") == "LIMIT"
    other = Client(base.server)
    assert other.code("WATCH", bytes(481)) == other.code("CIEL.WATCH", bytes(481)) == "LIMIT"


def test_snapshots_are_limited(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ciel.state.server.buffered.SNAPSHOTS_MAX", sessions.SNAPSHOTS_MAX + 1)
    client, other = base.client, Client(base.server)
    for _ in range(sessions.SNAPSHOTS_MAX):
        client("CIEL.SNAPSHOT")
    assert "a connection has at most 16" in client("CIEL.SNAPSHOT").text
    last = other("CIEL.SNAPSHOT")
    assert "at most 17 snapshots at a time" in other("CIEL.SNAPSHOT").text
    base.server.close(client.session)
    assert isinstance(other("CIEL.SNAPSHOT"), int)
    assert other("CIEL.DROP", last) is OK
    assert base.rows.snapshots == 1


def test_unused_snapshots_end(base: Base) -> None:
    snapshot = base.client("CIEL.SNAPSHOT")
    base.server.now_us = sessions.SNAPSHOT_IDLE_US
    base.server.sweep()
    assert base.client("CIEL.GET", snapshot, "a") == [None]
    base.server.now_us += sessions.SNAPSHOT_IDLE_US + 1
    base.server.sweep()
    assert base.client.code("CIEL.GET", snapshot, "a") == "SNAPSHOT"
    assert base.rows.snapshots == 0


def test_oldest_cursors_end(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "CURSORS_MAX", 2)
    base.client("MSET", "a", 1, "b", 2)
    cursors = [base.client("SCAN", 0, "COUNT", 1)[0] for _ in range(3)]
    assert base.client.code("SCAN", cursors[0]) == "ERR"
    assert base.client("SCAN", cursors[1]) == [b"0", [b"b"]]


def test_keys_and_fields_are_limited(base: Base) -> None:
    client = base.client
    for key in (b"", bytes(481), b"\xffx"):
        assert client.code("SET", key, 1) == "ERR"
    assert client.code("HSET", "h", bytes(481), 1) == "ERR"
    assert client.code("CIEL.BATCH", bytes(257), 1, 60, "P", "a", 1, "") == "ERR"
    assert client("DBSIZE") == 0


# --- a full base ----------------------------------------------------------------------------------


def test_full_base_refuses_to_grow_and_does_all_else(tmp_path: Path) -> None:
    base = Base(tmp_path / "base", capacity_bytes=10_000)
    client = base.client
    stored = [client("SET", number, bytes(1000)) for number in range(20)].count(OK)
    assert stored == 9
    assert "the base is full: its rows have 9," in client("SET", "more", bytes(1000)).text
    for words in (("SET", "more", bytes(1000)), ("APPEND", 0, bytes(1000)),
                  ("HSET", "h", "f", bytes(1000)), ("MSET", "x", bytes(1000))):  # fmt: skip
        assert client.code(*words) == "OOM"
    refused: list[Step] = [Put(b"more", bytes(1000)), Delete(b"0")]
    assert client.batch(Put(b"0", b""), *refused, Put(b"x", bytes(999))).code == "OOM"
    client("MULTI")
    client("SET", "small", 1)
    client("SET", "large", bytes(1000))
    assert client.code("EXEC") == "OOM"
    assert client("DBSIZE") == stored
    assert client("GET", 0) == bytes(1000)
    assert client("EXPIRE", 1, 100) == 1
    assert client("SET", 1, b"other" * 200) is OK  # as large as before
    assert client.batch(*refused, number=1) == [None, None]  # not larger as a whole
    assert client("DEL", 2) == 1
    assert client("SET", "more2", bytes(900)) is OK
    assert client("FLUSHALL") is OK
    assert client("SET", "more", bytes(1000)) is OK
    base.rows.close()


def test_base_whose_commit_found_no_room_goes_on_when_there_is_room(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciel.state.server.buffered.RETRY_S", 0.0)
    client = base.client
    client("MSET", "a", 1, "b", 2)

    def fail(*_: object) -> None:
        raise BaseFullError("the base", "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(base.rows, "_commit", fail)
        base.commit()
    assert "could not be committed: the disk is full" in client("SET", "c", 3).text
    assert client("DEL", "a") == 1
    assert client("GET", "b") == b"2"
    assert metrics(base)["ciel_kv_full"] == 1
    assert info(base)["rdb_last_bgsave_status"] == "err"
    base.server.sweep()
    base.end_commit()
    assert client("SET", "c", 3) is OK
    assert metrics(base)["ciel_kv_full"] == 0


def test_refused_batch_of_a_full_base_may_be_tried_again(tmp_path: Path) -> None:
    base = Base(tmp_path / "base", capacity_bytes=10_000)
    client = base.client
    client("SET", "a", bytes(9_000))
    assert client.batch(Increment(b"n"), Put(b"b", bytes(2_000)), number=1).code == "OOM"
    client("DEL", "a")
    assert client.batch(Increment(b"n"), Put(b"b", bytes(2_000)), number=1) == [1, None]
    base.rows.close()


# --- what is counted ------------------------------------------------------------------------------


def info(base: Base, *sections: str) -> dict[str, str]:
    lines = base.client("INFO", *sections).split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def metrics(base: Base) -> dict[str, float]:
    return {
        family.name + "".join(f"/{value}" for value in labels.values()): value
        for family in base.server.metrics.families()
        for labels, value in family.samples
    }


def test_commands_are_counted_by_name_with_their_errors(base: Base) -> None:
    client = base.client
    for words in (("SET", "a", "x"), ("INCR", "a"), ("SET", "a"), ("get", "a"), ("LPUSH", "a", 1)):
        client(*words)
    client("MULTI")
    client("INCR", "a")
    client("EXEC")
    found = info(base, "commandstats", "errorstats")
    assert found["cmdstat_set"] == "calls=2,usec=2000000,usec_per_call=1000000.00," + (
        "rejected_calls=1,failed_calls=0"
    )
    assert "rejected_calls=0,failed_calls=2" in found["cmdstat_incr"]
    assert "cmdstat_del" not in found
    assert found["errorstat_ERR"] == "count=4"
    assert info(base)["total_commands_processed"] == "10"
    counted = metrics(base)
    assert counted["ciel_kv_commands_total/set"] == 2
    assert counted["ciel_kv_command_errors_total/incr"] == 2
    assert counted["ciel_kv_commands_total/unknown"] == 1
    assert counted["ciel_kv_errors_total/ERR"] == 4


def test_refused_passwords_are_counted(base: Base) -> None:
    stranger = Client(base.server, role=None)
    assert stranger.code("GET", "a") == "NOAUTH"
    assert stranger.code("AUTH", "wrong") == "WRONGPASS"
    assert stranger.code("HELLO", 3, "AUTH", "default", "wrong") == "WRONGPASS"
    stranger("CIEL.AUTH", "kv", bytes(32))
    assert stranger.code("CIEL.PROVE", bytes(32)) == "WRONGPASS"
    assert stranger("AUTH", (KEY.derive(Role.READ) or KEY).text()) is OK
    assert stranger.code("SET", "a", 1) == "NOPERM"
    assert info(base)["acl_access_denied_auth"] == "3"
    assert metrics(base)["ciel_kv_passwords_refused_total"] == 3


def test_rows_commits_snapshots_and_watches_are_counted(base: Base) -> None:
    client = base.client
    base.server.now_us = 5_000_000
    client("MSET", "a", 1, "b", bytes(100))
    client("EXPIRE", "a", 10)
    client("CIEL.WATCH", "p")
    client("WATCH", "a")
    client("CIEL.SNAPSHOT")
    before = metrics(base)
    assert (before["ciel_kv_rows"], before["ciel_kv_rows_ending"]) == (2, 1)
    assert before["ciel_kv_bytes"] == 1 + 2 + 1 + 101 + 2 * 16
    assert before["ciel_kv_log_bytes"] > 150
    assert (before["ciel_kv_snapshots"], before["ciel_kv_watches"]) == (1, 2)
    assert before["ciel_kv_full"] == 0
    found = info(base)
    assert found["db0"] == "keys=2,expires=1,avg_ttl=0"
    assert found["rdb_changes_since_last_save"] == "2"
    assert found["role"] == "master"
    base.commit()
    after = metrics(base)
    assert after["ciel_kv_commits_total"] == 1
    assert after["ciel_kv_commit_seconds_total"] > 0
    assert after["ciel_kv_durable_timestamp_seconds"] == 5
    assert after["ciel_kv_log_bytes"] < 50
    assert info(base)["rdb_changes_since_last_save"] == "0"
    base.server.now_us = 60_000_000
    base.server.sweep()
    assert metrics(base)["ciel_kv_rows_ended_total"] == 1
    assert info(base)["db0"] == "keys=1,expires=0,avg_ttl=0"


def test_info_has_the_sections_that_a_client_asks_for(base: Base) -> None:
    assert base.client("INFO", "keyspace") == "# Keyspace\r\n"
    text = base.client("INFO", "SERVER", "cluster")
    assert text.startswith("# Server\r\nredis_version:7.")
    assert text.endswith("\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n")
    assert "# Commandstats" not in base.client("INFO")
    for name in ("all", "everything"):
        assert "# Commandstats" in base.client("INFO", name)
    assert "# Stats" in base.client("INFO", "default")
    reader = Client(base.server, Role.READ)
    assert "# Server" in reader("INFO")
