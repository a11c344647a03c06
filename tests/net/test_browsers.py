"""A link that works once becomes a cookie, with which a browser reads pages and nothing else."""

from __future__ import annotations

import pytest

from ciel.access.browser_sessions import COOKIE, SESSION_S, SESSIONS_MAX, BrowserSessions
from ciel.access.errors import AccessDeniedError
from ciel.access.keys import Key, Role
from ciel.access.tickets import make_ticket
from ciel.net.gate import Gate

KEY = Key(bytes(range(32)))
READ = KEY.derive(Role.READ)
PLACE = "127.0.0.1:9000"
PAGE = "/control/browse/job/1"
ENTER = "/control/browse/enter"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> Gate:
    gate = Gate(KEY.derive, now_s=clock)
    gate.serve_as(PLACE)
    gate.browsers = BrowserSessions("/control/browse")
    return gate


def ticket(now_s: float = 1000.0, target: str = ENTER) -> str:
    assert READ is not None
    return make_ticket(READ, "GET", PLACE, target, now_s).partition(" ")[2]


def enters(gate: Gate, proof: str, *, is_local: bool = True) -> bool:
    return gate.admit_browser("GET", f"{ENTER}?ticket=x", "", proof, is_local=is_local)


def cookie_of(gate: Gate, now_s: float = 1000.0) -> str:
    assert gate.browsers is not None
    return gate.browsers.open(now_s).partition(";")[0]


def test_a_link_works_once_and_soon(gate: Gate, clock: Clock) -> None:
    link = ticket()
    assert enters(gate, link)
    with pytest.raises(AccessDeniedError):
        enters(gate, link)
    late = ticket()
    clock.now_s += 61.0
    with pytest.raises(AccessDeniedError):
        enters(gate, late)


@pytest.mark.parametrize("proof", ["", "x", "read:1000.000:00:00", ticket(target=PAGE)])
def test_what_is_no_ticket_for_the_entrance_is_refused(gate: Gate, proof: str) -> None:
    with pytest.raises(AccessDeniedError):
        enters(gate, proof)


def test_another_host_is_not_let_in(gate: Gate) -> None:
    cookie = cookie_of(gate)
    assert not enters(gate, ticket(), is_local=False)
    assert not gate.admit_browser("GET", PAGE, cookie, "", is_local=False)


def test_a_cookie_permits_to_read_pages_and_nothing_else(gate: Gate) -> None:
    cookie = f"other=1; {cookie_of(gate)}"
    assert gate.admit_browser("GET", f"{PAGE}?first=2", cookie, "", is_local=True)
    assert gate.admit_browser("HEAD", PAGE, cookie, "", is_local=True)
    for method, target in (("POST", PAGE), ("GET", "/api/v1/jobs"), ("GET", "/control/browser/x")):
        assert not gate.admit_browser(method, target, cookie, "", is_local=True)
    for wrong in ("", COOKIE, f"{COOKIE}=", f"{COOKIE}=x", "x=" + cookie_of(gate)[12:]):
        assert not gate.admit_browser("GET", PAGE, wrong, "", is_local=True)


def test_a_session_ends_and_the_oldest_makes_room(gate: Gate, clock: Clock) -> None:
    first = cookie_of(gate)
    clock.now_s += SESSION_S + 1.0
    assert not gate.admit_browser("GET", PAGE, first, "", is_local=True)
    cookies = [cookie_of(gate, clock.now_s) for _ in range(SESSIONS_MAX + 1)]
    are_good = [gate.admit_browser("GET", PAGE, each, "", is_local=True) for each in cookies]
    assert are_good == [False] + [True] * SESSIONS_MAX


def test_a_daemon_without_pages_has_no_entrance() -> None:
    gate = Gate(KEY.derive)
    gate.serve_as(PLACE)
    assert not gate.admit_browser("GET", ENTER, "", ticket(), is_local=True)
