"""Tickets: HMACs that authorise one HTTP request, between workers and from clients to workers.

A ticket does not contain the key, so it may be sent over plain HTTP. An intercepted ticket cannot
be used later, twice, for another request, or at another worker.
"""

import secrets
from collections import OrderedDict
from math import inf
from typing import Final

from ciel.access.errors import AccessDeniedError
from ciel.access.keys import Key, KeyForRole, Role, matches

TICKET_SCHEME: Final = "Ciel-Ticket"
TICKET_WINDOW_S: Final = 60.0
"""How far the time of issue may differ from this host's clock."""

TICKETS_REMEMBERED_MAX: Final = 100_000
"""How many used tickets are stored: about 20 MB. Above 800 requests a second the window shrinks."""

TICKET_LENGTH_MAX: Final = 256
_NONCE_BYTES = 16


def make_ticket(key: Key, method: str, netloc: str, target: str, now_s: float) -> str:
    """Return the value of the `Authorization` header for one request.

    `netloc` is the server's address as registered at the master, `target` the exact path with its
    query, `now_s` the wall-clock time since the epoch.
    """
    issued = f"{now_s:.3f}"
    nonce = secrets.token_hex(_NONCE_BYTES)
    mac = _mac(key, method, netloc, target, issued, nonce).hex()
    return f"{TICKET_SCHEME} {key.role}:{issued}:{nonce}:{mac}"


class TicketCheck:
    """Accepts each ticket once. Each listener has its own `TicketCheck`; `netloc` is its address.

    It stores a limited number of used tickets. When full, it drops the oldest one, and from then on
    refuses all tickets that were issued before it. So the window shrinks, but a replay is never
    accepted.
    """

    def __init__(
        self, key_for_role: KeyForRole, netloc: str, remembered_max: int = TICKETS_REMEMBERED_MAX
    ) -> None:
        self._key_for_role = key_for_role
        self._netloc = netloc
        self._remembered_max = remembered_max
        self._seen: OrderedDict[str, float] = OrderedDict()  # nonce -> when issued
        self._floor_s = -inf

    def admit(self, header: str, method: str, target: str, now_s: float) -> Role:
        """Return the role that a ticket proves, or raise `AccessDeniedError`."""
        scheme, _, ticket = header.partition(" ")
        parts = ticket.split(":")
        if scheme != TICKET_SCHEME or len(header) > TICKET_LENGTH_MAX or len(parts) != 4:
            raise AccessDeniedError("not a ticket")
        role_text, issued, nonce, mac_text = parts
        try:
            role, issued_s, offered = Role(role_text), float(issued), bytes.fromhex(mac_text)
        except ValueError:
            raise AccessDeniedError("not a ticket") from None
        key = self._key_for_role(role)
        # Check the MAC first, so that forged tickets are not stored, and get no other error.
        if key is None or not matches(
            _mac(key, method, self._netloc, target, issued, nonce), offered
        ):
            raise AccessDeniedError(
                "the ticket is not for this request, or was issued with another key"
            )
        if not abs(now_s - issued_s) <= TICKET_WINDOW_S:
            raise AccessDeniedError(
                f"the ticket is {now_s - issued_s:.0f} s old; clocks may differ by "
                f"{TICKET_WINDOW_S:.0f} s"
            )
        if nonce in self._seen or issued_s <= self._floor_s:
            raise AccessDeniedError("the ticket was used before")
        self._remember(nonce, issued_s, now_s)
        return role

    def _remember(self, nonce: str, issued_s: float, now_s: float) -> None:
        self._seen[nonce] = issued_s
        while self._seen:
            oldest = next(iter(self._seen.values()))
            if now_s - oldest <= TICKET_WINDOW_S and len(self._seen) <= self._remembered_max:
                return
            self._seen.popitem(last=False)
            self._floor_s = max(self._floor_s, oldest)


def _mac(key: Key, method: str, netloc: str, target: str, issued: str, nonce: str) -> bytes:
    fields = (key.role, method, netloc, target, issued, nonce)
    return key.mac("ticket", *(field.encode("utf-8", "surrogatepass") for field in fields))
