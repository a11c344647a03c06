"""Cores that share an image ask each other for space (CIB-52).

    /dev/shm/ciel-scc-<instance>/space-<core>.<incarnation>    the socket of a core

A core moves only the objects that it has. So a core that needs space first asks its neighbour, if
the objects there were used longer ago. The answer says how many bytes that core has freed, and when
it used its next object last. The answer to a question about 0 bytes says only the latter. All times
are of the monotonic clock, which the processes of a host share.

The tools and the mount ask in the same way, in C (`tools/asking.c`). They have no objects that
cores could move. Cores that have messages ask each other by these (`ciel.net.cores.space`), since
sockets do not reach another kernel.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

from ciel.storage.errors import StorageError
from ciel.storage.interface import NEVER_S, Answer, AskNeighbours

_PREFIX = "space-"
_QUESTION = struct.Struct("<Qd")  # the wanted bytes; only objects that were last used before
_ANSWER = struct.Struct("<Qd")  # the freed bytes; when the next object was used last
ASK_S = 10.0
"""How long a core waits for an answer: the time to move a gibibyte to a slow disk."""
_WAITING_MAX = 64


class AskBySocket:
    """Asks the cores of this kernel, at their sockets in the directory of the instance."""

    def __init__(self, directory: str, own: str) -> None:
        self._directory = directory
        self._own = own

    def others(self) -> list[str]:
        names = os.listdir(self._directory)
        return [name for name in names if name.startswith(_PREFIX) and name != self._own]

    def question(self, other: str, wanted_bytes: int, before_s: float) -> Answer:
        """There is a connection for each question, since a core answers one connection at a
        time.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.settimeout(ASK_S)
            try:
                asking.connect(f"{self._directory}/{other}")
                asking.send(_QUESTION.pack(wanted_bytes, before_s))
                return Answer(*_ANSWER.unpack(asking.recv(_ANSWER.size)))
            except ConnectionRefusedError:  # its process has died
                with suppress(OSError):
                    os.unlink(f"{self._directory}/{other}")
            except (OSError, struct.error):  # it ends now, or takes too long
                pass
        return Answer(0, NEVER_S)


class Neighbours:
    """Asks the cores of the same image for space, and answers their questions at a socket."""

    def __init__(self, hold_fd: int, name: str) -> None:
        """`hold_fd`: the directory of the instance, which stays open meanwhile."""
        self._directory = f"/proc/self/fd/{hold_fd}"  # so that the address is short enough
        self._own = f"{_PREFIX}{name}"
        self._way: AskNeighbours = AskBySocket(self._directory, self._own)
        self.free: Callable[[int, float], Answer] | None = None
        self._listening: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def serve(self, free: Callable[[int, float], Answer]) -> None:
        """Answer other cores, in a thread, with what `free` returns. Raises OSError."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with suppress(FileNotFoundError):  # of an earlier process of this core
                os.unlink(f"{self._directory}/{self._own}")
            listening.bind(f"{self._directory}/{self._own}")
            listening.listen(_WAITING_MAX)
        except OSError:
            listening.close()
            raise
        self._listening, self.free = listening, free
        self._thread = threading.Thread(
            target=self._answer_all, args=(listening, free), name="ciel-space", daemon=True
        )
        self._thread.start()

    def ask_by(self, way: AskNeighbours) -> None:
        """Ask other cores in another way from now on."""
        self._way = way

    def ask(self, wanted_bytes: int, before_s: float) -> Answer:
        """Let other cores free this much, from the objects that were last used before some time,
        the oldest first.
        """
        way, freed_bytes = self._way, 0
        oldest = {other: way.question(other, 0, before_s).next_s for other in way.others()}
        while freed_bytes < wanted_bytes and oldest:
            other = min(oldest, key=oldest.__getitem__)
            first_s = oldest.pop(other)
            if first_s >= before_s:
                return Answer(freed_bytes, first_s)
            until_s = min([before_s, *oldest.values()])
            answer = way.question(other, wanted_bytes - freed_bytes, until_s)
            freed_bytes += answer.freed_bytes
            if answer.next_s > first_s:  # else its objects cannot move now
                oldest[other] = answer.next_s
        return Answer(freed_bytes, min(oldest.values(), default=NEVER_S))

    def _answer_all(self, listening: socket.socket, free: Callable[[int, float], Answer]) -> None:
        while True:
            try:
                asking, _ = listening.accept()
            except OSError:  # closed
                return
            with asking, suppress(OSError, StorageError, struct.error):
                asking.settimeout(ASK_S)
                question = _QUESTION.unpack(asking.recv(_QUESTION.size))
                asking.send(_ANSWER.pack(*free(*question)))

    def close(self) -> None:
        """Answer no more, when the answer under way has ended."""
        listening, self._listening = self._listening, None
        if listening is None:
            return
        with suppress(OSError):
            os.unlink(f"{self._directory}/{self._own}")
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        if self._thread is not None:
            self._thread.join()
