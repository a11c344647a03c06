"""Lends the store of a worker memory of other machines: asks the master for volumes.

The master removes the volumes of a worker that has gone. Threads ask, and wait until the reactor's
thread has the answer, or for `ANSWER_TIMEOUT_S`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from ciel.core.errors import CielError
from ciel.memory.master import VolumeOwner
from ciel.memory.space import Space
from ciel.net.ticks import DelayedCall
from ciel.storage.remote.memory import VOLUME_MIN_BYTES
from ciel.worker.disk_jobs import in_daemon_thread
from ciel.worker.master_session import MasterSession

log = Logger(__name__)  # compiled code cannot determine its own module

ANSWER_TIMEOUT_S: Final = 2.0
TIDY_S: Final = 10.0
"""The time between two calls of the function that removes empty volumes."""


class NoAnswerError(CielError):
    """The master has not answered, or the worker ends."""


class SpillVolumes:
    """The volumes of one worker; implements `storage.remote.memory.Lender`."""

    def __init__(self, reactor: Any, session: MasterSession, worker: str) -> None:
        self._reactor = reactor
        self._session = session
        self._worker = worker
        self._waiting: set[SimpleQueue[Any]] = set()
        self._has_removed_earlier = False
        self._is_without = False  # the log says that there is no memory
        self._is_closed = False
        self._lock = threading.Lock()
        self._tidy: Callable[[], None] = lambda: None
        self._due: DelayedCall | None = None

    def close(self) -> None:
        """Let all threads that wait for the master go on, with an error."""
        with self._lock:
            self._is_closed = True
            waiting = [*self._waiting]
        for answers in waiting:
            answers.put(NoAnswerError("the worker ends"))
        if self._due is not None and self._due.active():
            self._due.cancel()

    # --- volumes, in any other thread -------------------------------------------------------------

    def create(self, size_bytes: int) -> SpillSpace | None:
        name = f"spill-{self._worker}-{secrets.token_hex(4)}"
        try:
            self._remove_earlier()
            wanted = {"name": name, "size_bytes": size_bytes, "replicas": 1}
            volume = self.change("memory_create", wanted)
        except CielError as error:
            if size_bytes <= VOLUME_MIN_BYTES and not self._is_without:
                log.warn("objects that do not fit go to the disk: {error}", error=error)
                self._is_without = True
            return None
        self._is_without = False
        return SpillSpace(self, name, volume)

    def _remove_earlier(self) -> None:
        """Remove the volumes of an earlier process of this worker, once."""
        if not self._has_removed_earlier:
            for volume in self.ask("memory", {})["volumes"]:
                if volume["owner"] == f"worker {self._worker}":
                    self.change("memory_remove", {"name": volume["name"]})
            self._has_removed_earlier = True

    def remove(self, name: str) -> None:
        """Remove a volume."""
        try:
            self.change("memory_remove", {"name": name})
        except CielError as error:  # the master removes it when this worker has gone
            log.warn("a volume could not be removed: {error}", error=error)

    def change(self, topic: str, argument: Any) -> Any:
        """Ask the master, and return its answer; raises CielError."""
        answers: SimpleQueue[Any] = SimpleQueue()
        with self._lock:
            if self._is_closed:
                raise NoAnswerError("the worker ends")
            self._waiting.add(answers)
        self._reactor.callFromThread(self._ask, topic, argument, answers)
        try:
            answer = answers.get(timeout=ANSWER_TIMEOUT_S)
        except Empty:
            raise NoAnswerError(f"the master has not answered for {ANSWER_TIMEOUT_S:g} s") from None
        finally:
            with self._lock:
                self._waiting.discard(answers)
        if isinstance(answer, CielError):
            raise answer
        return answer

    def ask(self, topic: str, argument: Any = None) -> Any:
        """Send a query, which a worker does as a request; raises CielError."""
        return self.change(topic, argument)

    # --- in the reactor's thread ------------------------------------------------------------------

    def _ask(self, topic: str, argument: Any, answers: SimpleQueue[Any]) -> None:
        answered: Deferred[Any] = self._session.request(topic, argument)
        answered.addCallbacks(answers.put, lambda failure: answers.put(_error(failure.value)))

    def call_now_and_then(self, tidy: Callable[[], None]) -> None:
        self._tidy = tidy
        self._tidy_later()

    def _tidy_later(self) -> None:
        if not self._is_closed:
            self._due = self._reactor.callLater(TIDY_S, self._tidy_now)

    def _tidy_now(self) -> None:
        done = in_daemon_thread(self._reactor, self._tidy)
        done.addErrback(lambda failure: log.failure("volumes were not removed", failure))
        done.addCallback(lambda _: self._tidy_later())


class SpillSpace(Space):
    """The address space of a volume of this worker."""

    def __init__(self, volumes: SpillVolumes, name: str, volume: dict[str, Any]) -> None:
        super().__init__(VolumeOwner(volumes, name), volume["number"], volume["extents"], 1)
        self._volumes = volumes
        self._name = name

    def remove(self) -> None:
        """Close the space, and remove the volume."""
        self.close()
        self._volumes.remove(self._name)


def _error(error: BaseException) -> CielError:
    return error if isinstance(error, CielError) else CielError(str(error))
