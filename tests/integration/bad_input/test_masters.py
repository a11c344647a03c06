"""Tests listeners at the address of a master that are not a master, or another one: clients and
workers report them in one line. Also tests a master that sends malformed messages.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from ciel import __version__
from ciel.access.access_file import AccessFile
from ciel.access.keys import Key
from ciel.core.events import AssignTask
from ciel.core.ids import JobId
from ciel.testing.homes import Home, wait_for
from ciel.wire.descriptors import make_task
from ciel.wire.errors import WireError
from ciel.wire.frames import encode_frames
from ciel.wire.messages import encode
from ciel.wire.session import Session
from ciel_tests.clusters.peers import frame, shake_hands

CLUSTER_ID: Final = "0123456789abcdef"
KEY: Final = Key(bytes(range(32)))
MIB: Final = 1 << 20


class Listener:
    """Listens where a master should be, and applies `act` to each connection."""

    def __init__(self, act: Callable[[socket.socket], object]) -> None:
        self._act = act
        self._server = socket.create_server(("127.0.0.1", 0))
        self.netloc = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()
        for connection in self.connections:
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            connection.settimeout(10)
            self.connections.append(connection)
            try:
                self._act(connection)
            except (OSError, WireError):
                connection.close()

    def write_access(self, home: Home, key: Key = KEY) -> str:
        """Write an access file that names this listener as the master."""
        path = home.path / "its" / "access.json"
        AccessFile(
            f"http://{self.netloc}", self.netloc, CLUSTER_ID, key, os.getpid(), 1
        ).write(path)  # fmt: skip
        return str(path)


def acceptor(key: Key = KEY, cluster_id: str = CLUSTER_ID) -> Callable[[socket.socket], None]:
    """Accept a connection as a master does."""

    def accept(connection: socket.socket) -> None:
        session = Session.acceptor(key.derive, software="0.1", cluster_id=cluster_id)
        try:
            shake_hands(connection, session)
        finally:
            connection.sendall(session.data_to_send())
            connection.shutdown(socket.SHUT_WR)

    return accept


def say(data: bytes) -> Callable[[socket.socket], None]:
    def act(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    return act


def say_without_end(connection: socket.socket) -> None:
    for _ in range(1024):
        connection.sendall(bytes(MIB))


OTHER_VERSION: Final = encode_frames(
    [(["hello", 99, "9.9", "submit", CLUSTER_ID, "0" * 64, {}], b"")]
)
ELSE: Final = "no master at IT: another program listens there"
REFUSED: Final = "connection to the master at IT refused:"

# The listener, what a client reports, and what a worker reports (nothing if it retries).
LISTENERS: Final[dict[str, tuple[Callable[[socket.socket], object], str, str]]] = {
    "an HTTP server": (
        say(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        f"{ELSE} (an HTTP server); the address is from --access (HOME/its/access.json)",
        "",
    ),
    "somebody who hangs up": (
        socket.socket.close,
        "no master at IT: it closed the connection: it is about to end, or it is not a master; "
        "the address is from --access (HOME/its/access.json)",
        "",
    ),
    "somebody else": (
        say(b"SSH-2.0-OpenSSH_9.2\r\n"),
        f"{ELSE} (not a frame: it begins with byte 83); "
        "the address is from --access (HOME/its/access.json)",
        "",
    ),
    "somebody who never stops": (
        say_without_end,
        f"{ELSE} (frame header: not JSON: Expecting value at character 0); "
        "the address is from --access (HOME/its/access.json)",
        "",
    ),
    "a master of another version": (
        say(OTHER_VERSION),
        f"{REFUSED} the accepting side speaks protocol 99 (ciel 9.9), the connecting side "
        f"protocol 1 (ciel {__version__}); install the same version on both",
        "this worker was refused: the accepting side speaks protocol 99 (ciel 9.9), the "
        f"connecting side protocol 1 (ciel {__version__}); install the same version on both",
    ),
    "a master with another key": (
        acceptor(Key(bytes(32))),
        f"{REFUSED} the submit key does not match cluster {CLUSTER_ID}; "
        "if its key was rotated, copy its access file again",
        f"this worker was refused: the worker key does not match cluster {CLUSTER_ID}; "
        "if its key was rotated, copy its access file again",
    ),
    "the master of another cluster": (
        acceptor(cluster_id="another"),
        f"{REFUSED} the accepting side is cluster another, the connecting side looks for "
        f"{CLUSTER_ID}",
        "this worker was refused: the accepting side is cluster another, the connecting side "
        f"looks for {CLUSTER_ID}",
    ),
}


@pytest.mark.slow
def test_a_listener_that_is_not_the_master_is_reported(tmp_path: Path) -> None:
    """Workers connect to all listeners at the same time."""
    with ExitStack() as stack:
        homes, listeners, accesses, workers = {}, {}, {}, {}
        for name, (act, _, _) in LISTENERS.items():
            (tmp_path / name).mkdir()
            home = homes[name] = Home(tmp_path / name)
            listeners[name] = stack.enter_context(Listener(act))
            accesses[name] = listeners[name].write_access(home)
            options = ("--access", accesses[name], "--log", "worker.log")
            workers[name] = home.start("ciel-worker", *options)
        for name, (_, client_is_told, worker_is_told) in LISTENERS.items():
            home, listener, worker = homes[name], listeners[name], workers[name]
            done = home.run("ciel", "status", "--access", accesses[name])
            assert (done.returncode, done.stdout) == (3, "")
            said = done.stderr.replace(str(home.path), "HOME").replace(listener.netloc, "IT")
            assert said == f"ciel: {client_is_told}\n"
            if not worker_is_told:
                wait_for(lambda it=listener: len(it.connections) > 3, "the worker to come again")  # type: ignore[misc]  # the default binds now
                worker.terminate()
            _, said = worker.communicate(timeout=20)
            assert worker.returncode == (3 if worker_is_told else 0)
            assert said == (f"ciel-worker: {worker_is_told}\n" if worker_is_told else "")
            log = (home.path / "worker.log").read_text()
            assert "Traceback" not in log
            assert log.count("no connection to") == (0 if worker_is_told else 1)


def drip(connection: socket.socket) -> None:
    for byte in OTHER_VERSION:
        connection.sendall(bytes((byte,)))
        time.sleep(0.3)


@pytest.fixture(scope="module", autouse=True)
def waiting(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[tuple[str, subprocess.Popen[str]]]]:
    """Start two commands that wait while the tests of this file run.

    One has connected to a listener that sends nothing, and one to a listener that sends slowly.
    """
    home = Home(tmp_path_factory.mktemp("waiting"))
    with Listener(lambda connection: None) as silent, Listener(drip) as slow:
        waiting = []
        for listener in (silent, slow):
            words = ("status", "--access", listener.write_access(home))
            waiting.append((listener.netloc, home.start("timeout", "15", "ciel", *words)))
            wait_for(lambda it=listener: it.connections, "a connection")  # type: ignore[misc]  # the default binds now
        yield waiting


def test_an_address_without_a_listener_is_reported(home: Home) -> None:
    with Listener(lambda connection: None) as listener:
        access = listener.write_access(home)
    for words, said in (
        (
            ["--access", access],
            "127.0.0.1:PORT: nothing listens there; the address is from --access",
        ),
        (
            ["--access", access, "-m", "no-such-host.invalid:1"],
            "no-such-host.invalid:1: Name or service not known; the address is from --master",
        ),
    ):  # fmt: skip
        done = home.run("ciel", "status", *words)
        plain = re.sub(r":\d{4,5}\b", ":PORT", done.stderr)
        assert (done.returncode, done.stdout) == (3, "")
        assert plain.startswith(f"ciel: no master at {said}")
        assert plain.count("\n") == 1


# --- a malformed master ---------------------------------------------------------------------------


class Master:
    """A hand-made master, to which one worker connects repeatedly."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(15)
        self.netloc = f"127.0.0.1:{self.server.getsockname()[1]}"

    def accept(self) -> tuple[socket.socket, Session]:
        connection, _ = self.server.accept()
        connection.settimeout(10)
        session = Session.acceptor(KEY.derive, software="0.1", cluster_id=CLUSTER_ID)
        shake_hands(connection, session)
        return connection, session

    @staticmethod
    def hear(connection: socket.socket, session: Session) -> list[Any]:
        """Return the next record, except heartbeats and reports about the store."""
        while True:
            for fields, _ in session.receive(connection.recv(65536)):
                if fields[0] not in ("alive", "stores", "listed"):
                    return list(fields)


def order(ordinal: int, executor: str, arguments: dict[str, Any]) -> tuple[list[Any], bytes]:
    spec, _ = make_task(
        job=JobId("j"), parent="j", ordinal=ordinal, executor=executor, arguments=arguments
    )
    fields, payload = encode(AssignTask(spec, 1, ()))
    return list(fields), payload


@pytest.mark.slow
def test_a_master_that_sends_malformed_messages_does_no_harm(home: Home) -> None:
    """The worker reports the reason, joins again, and runs valid tasks."""
    good, payload = order(1, "stdinout", {"args": {"command_line": ["echo", "well"]}})
    bad_id = list(good)
    bad_id[1] = "../x"
    nonsense = {
        "a header too deep": (frame(b"[" * 99_999), "JSON is nested too deeply"),
        "a client's words": (frame([["watch", "j", 0]]), "is not expected here"),
        "a path to be deleted": (frame([["drop", ["../x"], 0, 0]]), "is not an id"),
        "a path to be run": (frame([[*bad_id, len(payload)]], payload), "is not an id"),
    }
    master = Master()
    path = home.path / "its" / "access.json"
    AccessFile(f"http://{master.netloc}", master.netloc, CLUSTER_ID, KEY, os.getpid(), 1).write(
        path
    )
    log = home.path / "worker.log"
    worker = home.start(
        "ciel-worker", "--access", str(path), "--slots", "1", "--log", str(log)
    )  # fmt: skip
    with master.server:
        for data, reason in nonsense.values():
            connection, session = master.accept()
            with connection:
                connection.sendall(data)
                with pytest.raises(WireError, match=reason):
                    master.hear(connection, session)
        connection, session = master.accept()
        with connection:
            connection.sendall(session.send([order(2, "cobol", {})]))
            assert "has no executor 'cobol'" in str(master.hear(connection, session))
            for text in (b"", b"[]", b'{"args":{"command_line":["a\\u0000"]}}', b"[" * 999):
                connection.sendall(session.send([(good, text)]))
                assert "BAD_ARGUMENTS" in str(master.hear(connection, session))
            connection.sendall(session.send([(good, payload)]))
            assert master.hear(connection, session)[3][0][2] == "d2VsbAo="  # "well\n"
    worker.terminate()
    _, said = worker.communicate(timeout=20)
    assert (worker.returncode, said) == (0, "")
    assert "Traceback" not in log.read_text()


def test_a_listener_that_never_answers_is_given_up_in_time(
    waiting: list[tuple[str, subprocess.Popen[str]]],
) -> None:
    for netloc, process in waiting:
        _, said = process.communicate(timeout=20)
        assert process.returncode == 3
        assert said.startswith(
            f"ciel: no master at {netloc}: it does not answer: it hangs, or it is not a master; "
        )
