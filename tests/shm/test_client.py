"""A client program whose daemon is slow, stopped, wrong or gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.shm.client import ShmdClient
from ciel.shm.errors import (
    DaemonGoneError,
    MessageError,
    RequestFailedError,
    RequestTimeoutError,
    ShmdError,
)
from ciel.shm.messages import Code, Fail, Load, Message, Ok, encode
from ciel_tests.clusters.puppet_daemon import Puppet


@pytest.fixture
def client(puppet: Puppet) -> Iterator[ShmdClient]:
    with ShmdClient(puppet.directory, timeout_s=20) as client:
        yield client


def ok(message: Message, path: str = "/p") -> bytes:
    return encode(Ok(message.number, path))


def test_an_answer_to_an_earlier_request_is_not_taken_for_ours(
    puppet: Puppet, client: ShmdClient
) -> None:
    puppet.script = lambda message: encode(Ok(message.number + 5, "/wrong")) + ok(message, "/right")
    assert client.load("x") == "/right"


def test_an_answer_may_come_in_pieces(puppet: Puppet, client: ShmdClient) -> None:
    halves: list[bytes] = []

    def script(message: Message) -> bytes:
        raw = ok(message, "/whole")
        halves.append(raw)
        return raw[:5]

    puppet.script = script
    with pytest.raises(RequestTimeoutError):
        client.load("x", timeout_s=0.05)
    puppet.script = lambda message: ok(message, "/whole")
    assert client.load("x") == "/whole"  # over another connection


def test_who_does_not_answer_is_given_up_in_time(puppet: Puppet, client: ShmdClient) -> None:
    begun_s = time.monotonic()
    with pytest.raises(RequestTimeoutError, match=r"within 0.1 s: it may be stopped"):
        client.load("x", timeout_s=0.1)
    assert time.monotonic() - begun_s < 10
    (heard,) = puppet.heard
    assert isinstance(heard, Load)
    assert heard.timeout_ms == 100


def test_a_daemon_that_says_it_took_too_long_is_quoted(puppet: Puppet, client: ShmdClient) -> None:
    puppet.script = lambda message: encode(
        Fail(message.number, Code.TIMEOUT, "x", "waiting for its peers (s1: silent)")
    )
    with pytest.raises(RequestTimeoutError, match=r"waiting for its peers \(s1: silent\)"):
        client.load("x")


def test_a_failure_has_its_code_and_reason(puppet: Puppet, client: ShmdClient) -> None:
    puppet.script = lambda message: encode(Fail(message.number, Code.NO_SPACE, "x", "no space"))
    with pytest.raises(RequestFailedError, match="x: no space") as failed:
        client.write("x")
    assert failed.value.code is Code.NO_SPACE


@pytest.mark.parametrize("method", ["load", "write"])
def test_a_request_that_changes_nothing_is_sent_again_once(
    puppet: Puppet, client: ShmdClient, method: str
) -> None:
    puppet.script = lambda message: ok(message) if len(puppet.heard) > 1 else None
    assert getattr(client, method)("x") == "/p"
    puppet.heard.clear()
    puppet.script = lambda message: None
    with pytest.raises(DaemonGoneError, match="ended the connection"):
        getattr(client, method)("x")
    assert len(puppet.heard) == 2


def test_a_commit_is_sent_once(puppet: Puppet, client: ShmdClient) -> None:
    puppet.script = lambda message: None
    with pytest.raises(DaemonGoneError):
        client.commit("/p", "x")
    assert len(puppet.heard) == 1


@pytest.mark.parametrize("garbage", [b"\xff" * 50, encode(Load(1, "x"))[:4] + b"\0" * 30])
def test_a_daemon_that_talks_nonsense_is_left(
    puppet: Puppet, client: ShmdClient, garbage: bytes
) -> None:
    puppet.script = lambda message: garbage
    with pytest.raises(DaemonGoneError, match="invalid SHMD message"):
        client.load("x")
    puppet.script = ok
    assert client.load("x") == "/p"


def test_where_no_daemon_is_that_is_said(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        with (
            ShmdClient(directory) as client,
            pytest.raises(DaemonGoneError, match="no daemon serves"),
        ):
            client.load("x")


def test_what_no_message_can_hold_is_not_sent(puppet: Puppet, client: ShmdClient) -> None:
    with pytest.raises(ShmdError) as failed:
        client.load("x" * 1000)
    assert isinstance(failed.value, MessageError)
    assert puppet.heard == []
    puppet.script = ok
    assert client.load("x") == "/p"


def test_threads_take_turns(puppet: Puppet, client: ShmdClient) -> None:
    puppet.script = lambda message: (
        ok(message, f"/{message.name}") if isinstance(message, Load) else None
    )
    got: list[bool] = []

    def ask(name: str) -> None:
        got.append(all(client.load(name) == f"/{name}" for _ in range(50)))

    threads = [threading.Thread(target=ask, args=(f"n{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert got == [True] * 4
