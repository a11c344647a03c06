"""Tests the proxy that drops replies: the request has arrived whenever a reply is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from benchmarks.chaos.proxy import Proxy

Server = tuple[tuple[str, int], list[bytes]]


@pytest.fixture
def server() -> Iterator[Server]:
    """Serve connections: each sends one request, and gets it back."""
    listener = socket.create_server(("127.0.0.1", 0))
    requests: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                requests.append(peer.recv(1000))
                peer.sendall(b"answer to " + requests[-1])

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname(), requests
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def ask(address: tuple[str, int], request: bytes) -> bytes:
    with socket.create_connection(address, 10) as connection:
        connection.sendall(request)
        answer = b""
        while data := connection.recv(1000):
            answer += data
        return answer


def test_replies_pass_or_are_lost(server: Server) -> None:
    address, requests = server
    with Proxy(address) as proxy:
        assert ask(proxy.address, b"one") == b"answer to one"
        proxy.loses_replies = True
        assert ask(proxy.address, b"two") == b""
        proxy.loses_replies = False
        assert ask(proxy.address, b"three") == b"answer to three"
    assert requests == [b"one", b"two", b"three"]
    assert proxy.lost_count == 1
