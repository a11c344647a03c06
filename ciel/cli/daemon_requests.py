"""Sends HTTP requests to the daemons of a cluster, with the key of the cluster."""

from __future__ import annotations

import time
from typing import Final

from ciel.access.keys import Role
from ciel.access.settings import MasterLocation
from ciel.access.tickets import make_ticket
from ciel.cli.outcome import UsageError
from ciel.client.data.worker_http import BadAnswerError, connect, refusal

TIMEOUT_S: Final = 20.0


def ask_daemon(
    location: MasterLocation, netloc: str, method: str, target: str, body: bytes = b"",
    *, timeout_s: float = TIMEOUT_S,
) -> bytes:  # fmt: skip
    """Send a request with a ticket; return the answer.

    Raises UsageError without the cluster's admin key, and errors of the connection and the daemon.
    """
    key = location.key
    if key.role is not Role.ADMIN:
        raise UsageError(
            f"{location.origin} has only a key that is restricted to one role; this command needs "
            "the cluster's admin key"
        )
    connection = connect(netloc, timeout_s)
    try:
        headers = {"Authorization": make_ticket(key, method, netloc, target, time.time())}
        connection.request(method, target, body, headers | {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise refusal(answer)
        return answer.read()
    except TimeoutError:
        raise BadAnswerError(f"no answer within {timeout_s:g} s") from None
    finally:
        connection.close()
