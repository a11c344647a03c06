"""The UNIX socket of a memory server, for clients on its host."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ciel.memory import local
from ciel.memory.local import LocalAddress, LocalAddressError
from ciel.memory.master import VolumeOwner

TOKEN = bytes(range(32))


class Server:
    """A server at both of its sockets, which takes connections and no requests."""

    def __init__(self) -> None:
        self.nearby, self.address = local.listen()
        self.tcp = socket.create_server(("127.0.0.1", 0))

    def close(self) -> None:
        self.nearby.close()
        self.tcp.close()


class Master:
    """Answers `memory_connect` as a master does that has got this local address."""

    def __init__(self, server: Server, address: LocalAddress | None) -> None:
        self._port = server.tcp.getsockname()[1]
        self._address = address

    def ask(self, topic: str, argument: Any = None) -> Any:
        raise NotImplementedError

    def change(self, topic: str, argument: Any) -> Any:
        address = None if self._address is None else self._address._asdict()
        return {"address": f"127.0.0.1:{self._port}", "token": TOKEN.hex(), "local": address}


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def family(server: Server, address: LocalAddress | None) -> socket.AddressFamily:
    """Connect as a client does; return which of the sockets got the token."""
    with VolumeOwner(Master(server, address), "v").connect(0, 5) as connected:
        listening = server.nearby if connected.family == socket.AF_UNIX else server.tcp
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.recv(100) == TOKEN + (5).to_bytes(8, "little")
        assert connected.gettimeout() is None
        return connected.family


def test_a_client_on_the_host_uses_the_unix_socket(server: Server) -> None:
    assert family(server, server.address) == socket.AF_UNIX


def test_a_client_elsewhere_uses_tcp(server: Server) -> None:
    for address in (
        None,  # an earlier version of the server
        server.address._replace(name="ciel-memory-gone"),  # another network namespace
        server.address._replace(boot="another host"),
    ):
        assert family(server, address) == socket.AF_INET


def test_another_users_process_at_the_name_gets_no_token(server: Server) -> None:
    assert family(server, server.address._replace(user=os.geteuid() + 1)) == socket.AF_INET
    accepted, _ = server.nearby.accept()
    with accepted:
        assert accepted.recv(100) == b""


def test_names_cannot_be_guessed() -> None:
    sockets, addresses = zip(*[local.listen() for _ in range(3)], strict=True)
    assert len({address.name for address in addresses}) == 3
    assert all(len(address.name.rpartition("-")[2]) == 32 for address in addresses)
    for each in sockets:
        each.close()


@pytest.mark.parametrize(
    "value",
    [
        5, "unix:@x", {}, {"name": "x", "user": 0}, {"name": "", "user": 0, "boot": "b"},
        {"name": "x" * 101, "user": 0, "boot": "b"}, {"name": "x", "user": -1, "boot": "b"},
        {"name": "x", "user": 1 << 32, "boot": "b"}, {"name": "x\n", "user": 0, "boot": "b"},
        {"name": "x", "user": "0", "boot": "b"}, {"name": "x", "user": 0, "boot": "é"},
    ],
)  # fmt: skip
def test_a_malformed_address_is_refused(value: Any) -> None:
    with pytest.raises(LocalAddressError):
        LocalAddress.parse(value)


def test_an_address_is_sent_as_a_dictionary() -> None:
    address = LocalAddress("name", 1000, "boot")
    assert LocalAddress.parse(address._asdict()) == address
    assert LocalAddress.parse(None) is None
