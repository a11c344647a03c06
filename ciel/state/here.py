"""The key-value base of the cluster that this process belongs to: `ciel.kv` (KVB-2).

A worker with a base puts its URL into the environment of its tasks, and the path of a file with the
key that opens it. A client asks its master.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ciel.access.errors import MalformedKeyError
from ciel.access.keys import Key
from ciel.execution.environment import KV_CLUSTER, KV_KEY_FILE, KV_URL
from ciel.python.sessions import current_or_none
from ciel.python.task_session import current_task
from ciel.state.errors import NoBaseError
from ciel.state.finding import open_base
from ciel.state.interface import Base
from ciel.state.keyvalues import KeyValues
from ciel.state.names import Names
from ciel.state.values import Values

_lock = threading.Lock()
_open: dict[tuple[int, str], Base] = {}


def kv(name: str, *, of_job: bool = False) -> KeyValues:
    """Return the rows of a name in the base of the cluster, within a task or a program with a
    client. Raises KvError.

    They belong to the cluster, and stay when jobs end. `of_job`: they belong to the job of this
    task, and are removed with it; raises NotInTaskError outside of tasks.
    """
    session = current_or_none()
    if of_job:
        return rows_here(name, current_task().job)
    if session is None or session.is_of_task:
        return rows_here(name)
    opened: KeyValues = session.kv(name)  # type: ignore[attr-defined]  # a client, above here
    return opened


def rows_here(name: str, job_id: str = "") -> KeyValues:
    """Return the rows of a name in the base that the environment names; raises KvError.

    `job_id`: the job that they belong to.
    """
    url = os.environ.get(KV_URL)
    if not url:
        raise NoBaseError("its worker was started without one: ciel-worker --kv URL")
    key = key_here()
    names = Names(name, os.environ.get(KV_CLUSTER, ""), job_id)
    return KeyValues(_base(url, key), names, Values(key), _uses.task_of, owns_base=False)


class _Uses:
    """The names for `once` that the running attempt has used."""

    def __init__(self) -> None:
        self._attempt: tuple[str, int] = "", 0
        self._names: set[str] = set()

    def task_of(self, name: str) -> str:
        """Return the id of the task. Raises ValueError if its attempt has used the name before, and
        NotInTaskError.
        """
        info = current_task()
        if self._attempt != (info.id, info.attempt):
            self._attempt, self._names = (info.id, info.attempt), set()
        if name in self._names:
            raise ValueError(
                f"once={name!r} was used before in this task, which may run several calls that a "
                "client has sent together; use a name that contains their arguments"
            )
        self._names.add(name)
        return info.id


_uses = _Uses()


def key_here() -> Key | None:
    """Return the key of the base, as the environment says; None if there is none."""
    path = os.environ.get(KV_KEY_FILE)
    if not path:
        return None
    try:
        return Key.from_text(Path(path).read_text().strip())
    except (OSError, MalformedKeyError) as error:
        raise NoBaseError(f"its key cannot be read: {error}") from None


def _base(url: str, key: Key | None) -> Base:
    """Return the base that all tasks of this process share."""
    with _lock:
        place = os.getpid(), url
        if place not in _open:
            _open[place] = open_base(url, key)
        return _open[place]
