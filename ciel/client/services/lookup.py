"""Finds the replicas of services at the master, for clients and for tasks.

A task has a key of the role `service` (see `execution.environment`), with which it may ask the
master about services only. A replica reports its address over the same connection.
"""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Any, Final, Protocol

from ciel.access.errors import MalformedKeyError
from ciel.access.keys import Key, Role
from ciel.client.connection.connection import Connection, open_connection
from ciel.client.errors import ClientError, QueryError
from ciel.client.locks import ForkSafeCondition
from ciel.client.services.classes import ServiceError
from ciel.core.events import Answer, Ask, Message, ServiceOpened
from ciel.core.ids import TaskId
from ciel.execution.environment import CLUSTER, MASTER, SERVICE_KEY_FILE
from ciel.python import sessions

TOPIC: Final = "service"
_ANSWER_S: Final = 30.0


class Lookup(Protocol):
    """Finds replicas. `key`: what proves to replicas that this process may call them."""

    key: Key
    cluster_id: str

    def find(self, service: str) -> dict[str, Any]:
        """Return the master's answer about a service, by its job. Raises ClientError."""


class ClientLookup:
    """Asks the master over the connection of a client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.cluster_id: str = client.location.cluster_id
        key = client.location.key.derive(Role.SERVICE)
        if key is None:
            raise ServiceError(
                f"a key for the role {client.location.key.role} cannot call services; use the "
                "cluster's access file, or one with a key for the role submit"
            )
        self.key: Key = key

    def find(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = self._client.ask(TOPIC, {"job": service})
        return found


class TaskLookup:
    """Asks the master over a connection of this process, which runs tasks."""

    def __init__(self) -> None:
        self.key = key_here()
        self.cluster_id = os.environ.get(CLUSTER, "")
        self._changed = ForkSafeCondition()
        self._count = 0
        self._answers: dict[int, Answer | None] = {}
        self._opened: ServiceOpened | None = None
        self._lost: ClientError | None = None
        self._connection: Connection | None = None
        self._opening = threading.Lock()

    def find(self, service: str) -> dict[str, Any]:
        connection = self._connected()
        with self._changed:
            self._count += 1
            number = self._count
            self._answers[number] = None
        connection.send(Ask(number, TOPIC, {"job": service}))

        def has_come() -> bool:
            if self._lost is not None:
                raise self._lost
            return self._answers[number] is not None

        try:
            if not self._changed.wait_for(has_come, _ANSWER_S):
                raise ServiceError(f"the master did not answer within {_ANSWER_S:g} s")
        finally:
            answer = self._answers.pop(number)
        assert answer is not None  # it was waited for
        if answer.error:
            raise QueryError(TOPIC, answer.error)
        found: dict[str, Any] = answer.value
        return found

    def report(self, task: str, attempt: int, address: str) -> None:
        """Report that this process is a replica, to this master and to its successors."""
        self._opened = ServiceOpened(TaskId(task), attempt, address)
        self._connected().send(self._opened)

    def close(self) -> None:
        """Close the connection, as at the end of a replica."""
        with self._opening:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> Connection:
        with self._opening:
            if self._connection is None:
                self._lost = None
                self._connection = open_connection(
                    os.environ[MASTER], self.key, self._deliver, self._on_lost,
                    role=Role.SERVICE, cluster_id=self.cluster_id, about={"kind": "service"},
                    start_again=lambda: ((), [self._opened] if self._opened else ()),
                    absence_max_s=math.inf,
                )  # fmt: skip
            return self._connection

    def _deliver(self, messages: list[Message]) -> None:
        with self._changed:
            for message in messages:
                if isinstance(message, Answer) and message.number in self._answers:
                    self._answers[message.number] = message
            self._changed.notify_all()

    def _on_lost(self, error: ClientError) -> None:
        with self._changed:
            self._lost, self._connection = error, None
            self._changed.notify_all()


def key_here() -> Key:
    """Return the key for services in the environment of a task; raises ServiceError."""
    path = os.environ.get(SERVICE_KEY_FILE)
    if not path or MASTER not in os.environ:
        raise ServiceError(
            "services can be used only by a program with an open client, and in tasks whose worker "
            "has the key of its cluster (a worker with a key for the role worker has none)"
        )
    try:
        return Key.from_text(Path(path).read_text().strip())
    except (OSError, MalformedKeyError) as error:
        raise ServiceError(f"the key for services cannot be read: {error}") from None


_here: TaskLookup | None = None
_lock = threading.Lock()


def task_lookup() -> TaskLookup:
    """Return the lookup that all tasks of this process share; raises ServiceError."""
    global _here
    with _lock:
        if _here is None:
            _here = TaskLookup()
        return _here


def _forget() -> None:
    global _here, _lock
    _here, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def lookup_here() -> Lookup:
    """Return how this process finds replicas; raises ServiceError."""
    session = sessions.current_or_none()
    if session is None or session.is_of_task:
        return task_lookup()
    found: Lookup = session.services.lookup  # type: ignore[attr-defined]  # a client, above here
    return found
