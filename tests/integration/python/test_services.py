"""Runs services on a real cluster: order, `async` methods, replicas, failures, callers in tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import ciel
from ciel.access.keys import Key, Role
from ciel.client.connection.connection import open_connection
from ciel.client.connection.dialing import Dialer
from ciel.client.errors import AccessRefusedError
from ciel.client.services.classes import NotInServiceError
from ciel.core.events import Ask
from ciel.python.options import OptionError
from ciel.testing.homes import wait_for

pytestmark = pytest.mark.slow

WITHIN_S = 30.0


@ciel.service(restarts=2)
class Counter:
    def __init__(self, start: int) -> None:
        info = ciel.current_service()
        self.n: int = info.load(start)
        self.seen: list[int] = []

    def add(self, by: int = 1) -> int:
        self.n += by
        return self.n

    def note(self, number: int) -> list[int]:
        self.seen.append(number)
        return self.seen

    def save(self) -> None:
        ciel.current_service().save(self.n)

    def me(self) -> tuple[int, int, int]:
        return os.getpid(), ciel.current_service().replica, ciel.current_service().restarts

    def fail(self) -> None:
        raise LookupError("nothing here")

    def end(self) -> None:
        os._exit(3)

    def length(self, content: bytes) -> bytes:
        return content * 2

    def odd(self) -> Any:
        return threading.Lock()


class Room:
    """A service without a decorator, with `async` methods."""

    def __init__(self) -> None:
        self.door = asyncio.Event()
        self.was_stopped = False

    async def wait(self) -> str:
        try:
            await self.door.wait()
        except asyncio.CancelledError:
            self.was_stopped = True
            raise
        return "open"

    async def open(self) -> None:
        self.door.set()

    def stopped(self) -> bool:
        return self.was_stopped


@pytest.fixture(scope="module")
def client() -> Iterator[ciel.Client]:
    with ciel.LocalCluster(workers=1, slots=3, kv=True) as cluster, ciel.Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def counter(client: ciel.Client) -> Any:
    return client.start(Counter, 5)


def test_calls_run_in_the_order_of_their_caller(counter: Any) -> None:
    calls = [counter.note(number) for number in range(300)]
    assert calls[-1].result(WITHIN_S) == list(range(300))
    assert calls[0].result(0) == [0]


def test_futures_of_calls_work_as_those_of_tasks(client: ciel.Client, counter: Any) -> None:
    first = counter.add(0).result(WITHIN_S)
    calls = [counter.add() for _ in range(3)]
    done, waiting = client.wait(calls, timeout=WITHIN_S)
    assert (done, waiting) == (set(calls), set())
    assert client.gather(calls) == [first + 1, first + 2, first + 3]
    assert client.submit(abs, calls[0]).result(WITHIN_S) == first + 1
    assert counter.add(client.submit(abs, -2)).result(WITHIN_S) == first + 5

    async def awaited() -> Any:
        return await counter.add(0)

    assert asyncio.run(awaited()) == first + 5
    assert counter.length(b"x" * 3_000_000).result(WITHIN_S) == b"x" * 6_000_000


def test_an_exception_keeps_its_type_and_its_traceback(counter: Any) -> None:
    with pytest.raises(LookupError, match="nothing here") as raised:
        counter.fail().result(WITHIN_S)
    assert "in fail" in str(raised.value.__cause__)
    assert "in the call Counter.fail" in str(raised.value.__notes__)
    with pytest.raises(ciel.PackingError, match=r"the result of Counter\.odd"):
        counter.odd().result(WITHIN_S)
    with pytest.raises(ciel.PackingError, match=r"the arguments of Counter\.add"):
        counter.add(threading.Lock())
    with pytest.raises(AttributeError, match="no method 'missing'"):
        counter.missing  # noqa: B018  # raises


def test_a_handle_can_be_sent_to_a_task(client: ciel.Client, counter: Any) -> None:
    def use(service: Any) -> list[int]:
        return [service.add().result() for _ in range(3)]

    before = counter.add(0).result(WITHIN_S)
    found = client.submit(use, counter).result(WITHIN_S)
    assert found == [before + 1, before + 2, before + 3]


def test_async_methods_run_beside_each_other_and_can_be_cancelled(client: ciel.Client) -> None:
    room = client.start(Room)
    waiting, cancelled = room.wait(), room.wait()
    assert not room.stopped().result(WITHIN_S)
    assert not waiting.done()
    assert cancelled.cancel()
    wait_for(lambda: room.stopped().result(WITHIN_S), "the end of the cancelled call")
    room.open().result(WITHIN_S)
    assert waiting.result(WITHIN_S) == "open"
    client.stop(room)


def test_a_killed_replica_is_restarted_with_its_state_and_says_which_calls_may_have_run(
    client: ciel.Client, counter: Any
) -> None:
    counter.save().result(WITHIN_S)
    saved = counter.add(0).result(WITHIN_S)
    counter.add(100).result(WITHIN_S)
    pid, replica, restarts = counter.me().result(WITHIN_S)
    assert (replica, restarts) == (0, 0)
    os.kill(pid, signal.SIGKILL)
    assert counter.options(retry=True).add().result(WITHIN_S) == saved + 1
    assert counter.me().result(WITHIN_S)[1:] == (0, 1)
    with pytest.raises(ciel.ServiceError, match="may have run") as raised:
        counter.end().result(WITHIN_S)
    assert raised.value.may_have_run
    assert not raised.value.is_over
    assert counter.add(0).result(WITHIN_S) == saved
    with pytest.raises(ciel.ServiceError):
        counter.end().result(WITHIN_S)
    with pytest.raises(ciel.ServiceError, match="attempt 3 of 3") as raised:
        counter.add().result(WITHIN_S)  # it has been restarted as often as permitted
    assert raised.value.is_over


def test_replicas_share_the_calls_and_a_name_finds_a_detached_service(
    client: ciel.Client,
) -> None:
    with pytest.raises(OptionError, match="detached"):
        client.start(Counter, 0, detached=True)
    other = ciel.Client(client.cluster)
    pair = other.start(Counter, 0, replicas=2, name="pair", detached=True)
    assert {pair.me().result(WITHIN_S)[1] for _ in range(4)} == {0, 1}
    assert pair.replica(1).me().result(WITHIN_S)[1] == 1
    with pytest.raises(IndexError):
        pair.replica(2)
    other.close()
    found = client.service("pair")
    assert found.replica(0).add(7).result(WITHIN_S) == 7
    with pytest.raises(ciel.ServiceError, match="runs already"):
        client.start(Counter, 0, name="pair", detached=True)
    job = client.ask("service", {"job": "service pair"})["job"]
    rows = client.ask("tasks", {"job": job})["tasks"]
    assert all(row["service"].startswith("127.0.0.1:") for row in rows)
    _refuses_strangers(client, rows[0])
    waiting = found.add()
    assert waiting.result(WITHIN_S) in (1, 8)
    client.stop(found)
    with pytest.raises(ciel.ServiceError, match="it was stopped"):
        found.add()
    with pytest.raises(ciel.ServiceError, match="no service 'pair'"):
        client.service("pair")


def _refuses_strangers(client: ciel.Client, row: dict[str, Any]) -> None:
    """A replica answers nobody without the key, and goes on."""
    address, cluster_id = row["service"], client.location.cluster_id
    host, port = address.split(":")
    about = {"caller": "x" * 32, "instance": f"{row['task']} {row['attempt']}"}
    own = client.location.key.derive(Role.SERVICE)
    assert own is not None
    for key, role in (
        (Key(b"w" * 32, Role.SERVICE), Role.SERVICE),
        (client.location.key, Role.READ),
        (client.location.key, Role.SUBMIT),
    ):
        with pytest.raises(AccessRefusedError):
            Dialer(address, key, role, cluster_id, about).dial(5.0)
    with pytest.raises(AccessRefusedError, match="another replica"):
        Dialer(address, own, Role.SERVICE, cluster_id, {**about, "instance": "x 1"}).dial(5.0, 0)
    _is_refused_other_questions(client, own)
    for garbage in (b"\x00" * 5000, b"\xff" * 9, b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection((host, int(port)), 5.0) as channel:
            channel.sendall(garbage)
            while channel.recv(4096):
                pass
    line = Dialer(address, own, Role.SERVICE, cluster_id, about).dial(5.0, 0)
    line.channel.setblocking(True)
    line.channel.sendall(line.session.send([(["call", 1, "add", 0, 1], b"not a pickle")]))
    line.channel.sendall(line.session.send([(["nonsense", 1], b"")]))
    line.channel.settimeout(5.0)
    while line.channel.recv(4096):
        pass
    line.channel.close()


def _is_refused_other_questions(client: ciel.Client, key: Key) -> None:
    """The key that tasks have for services asks the master about nothing else."""
    lost: list[Exception] = []
    where = client.location
    connection = open_connection(
        where.control, key, lambda messages: None, lost.append,
        role=Role.SERVICE, cluster_id=where.cluster_id,
    )  # fmt: skip
    connection.send(Ask(1, "status", None))
    wait_for(lambda: lost, "the end of the connection")
    assert "only about services" in str(lost[0])


def test_wrong_options_are_refused_where_they_are_written() -> None:
    with pytest.raises(OptionError, match="use 'restarts'"):
        ciel.service(retries=1)
    with pytest.raises(OptionError, match="restarts: it must be a whole number"):
        ciel.service(restarts=-1)
    with pytest.raises(OptionError, match="it needs a class"):
        ciel.service(len)  # type: ignore[call-overload]  # the point of the test
    with pytest.raises(NotInServiceError):
        ciel.current_service()
