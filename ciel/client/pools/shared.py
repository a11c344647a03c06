"""Whose tasks the calls become of those that name no client, such as joblib and dask."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

from ciel.python.sessions import NoClientError, Session, current, leave

if TYPE_CHECKING:
    from ciel.client import Client

_lock = threading.Lock()
_own: tuple[int, Client] | None = None


def session_here() -> Session:
    """Return the innermost session. Where there is none, a client that all share who ask here: it
    is opened when it is first asked for (with a cluster of its own, if none is named or up), and
    closed when the program ends.
    """
    global _own
    try:
        return current()
    except NoClientError:
        pass
    with _lock:
        if _own is None or _own[0] != os.getpid():
            from ciel.client import Client

            client = Client(name="shared")
            leave(client)  # `spawn` and the like do not find it
            atexit.register(client.close)
            _own = (os.getpid(), client)
        return _own[1]
