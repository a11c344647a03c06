"""Tests that the port of a master that has ended is kept for the next one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ciel.client.cluster.daemons import reserve_port


def listening(port: int, *, is_reserved: bool = False) -> socket.socket:
    """Listen as a daemon does; raises OSError if the port is taken."""
    found = socket.socket()
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_reserved:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind(("127.0.0.1", port))
        found.listen()
    except OSError:
        found.close()
        raise
    return found


def linger(listener: socket.socket) -> None:
    """Leave a connection in TIME_WAIT at the port of a listener."""
    client = socket.create_connection(listener.getsockname())
    listener.accept()[0].close()
    client.close()


@pytest.fixture(params=[False, True], ids=["new", "used before"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Return the port of a master that has ended, which is reserved."""
    first = listening(0)
    port: int = first.getsockname()[1]
    if request.param:
        linger(first)
        first.close()
        first = listening(port)
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    keeper = reserve_port(f"127.0.0.1:{port}")
    assert keeper is not None
    linger(first)
    first.close()
    with keeper:
        yield port


def test_another_program_cannot_take_the_port(port: int) -> None:
    for _ in range(2):
        with pytest.raises(OSError, match="in use"):
            listening(port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_each_next_master_has_the_port(port: int) -> None:
    for _ in range(3):
        with listening(port, is_reserved=True) as master:
            linger(master)
            with pytest.raises(OSError, match="in use"):
                listening(port)


def test_the_port_is_free_after_the_end() -> None:
    with listening(0) as first:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port = first.getsockname()[1]
        keeper = reserve_port(f"127.0.0.1:{port}")
        assert keeper is not None
    keeper.close()
    listening(port).close()


def test_a_port_that_another_program_has_is_not_reserved() -> None:
    with listening(0) as other:
        assert reserve_port(f"127.0.0.1:{other.getsockname()[1]}") is None
