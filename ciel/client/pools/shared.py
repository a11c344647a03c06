"""Provides a client to libraries such as joblib and dask, whose users need not open one."""

from __future__ import annotations

import atexit
import os
import threading

from ciel.client.client import Client
from ciel.python.sessions import NoClientError, Session, current, leave

_lock = threading.Lock()
_own: tuple[int, Client] | None = None


def session_here() -> Session:
    """Return the session that was opened last, or else a client that all callers share.

    The first call opens that client, which starts a cluster if none is configured or running. It is
    closed when the program ends.
    """
    global _own
    try:
        return current()
    except NoClientError:
        pass
    with _lock:
        if _own is None or _own[0] != os.getpid():
            client = Client(name="shared")
            leave(client)  # `ciel.spawn` and so on must not use it
            atexit.register(client.close)
            _own = (os.getpid(), client)
        return _own[1]
