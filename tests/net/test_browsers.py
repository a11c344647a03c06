"""Tests the link that a browser uses once to get a cookie, with which it can only read pages."""

from __future__ import annotations

import pytest

from ciel.access.browser_sessions import COOKIE, SESSION_S, SESSIONS_MAX, BrowserSessions
from ciel.access.errors import AccessDeniedError
from ciel.access.keys import Key, Role
from ciel.access.tickets import make_ticket
from ciel.net.authorisation import Authorisation

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
def authorisation(clock: Clock) -> Authorisation:
    authorisation = Authorisation(KEY.derive, now_s=clock)
    authorisation.serve_as(PLACE)
    authorisation.browsers = BrowserSessions("/control/browse")
    return authorisation


def ticket(now_s: float = 1000.0, target: str = ENTER) -> str:
    assert READ is not None
    return make_ticket(READ, "GET", PLACE, target, now_s).partition(" ")[2]


def enters(authorisation: Authorisation, proof: str, *, is_local: bool = True) -> bool:
    return authorisation.admit_browser("GET", f"{ENTER}?ticket=x", "", proof, is_local=is_local)


def cookie_of(authorisation: Authorisation, now_s: float = 1000.0) -> str:
    assert authorisation.browsers is not None
    return authorisation.browsers.open(now_s).partition(";")[0]


def test_a_link_works_once_and_soon(authorisation: Authorisation, clock: Clock) -> None:
    link = ticket()
    assert enters(authorisation, link)
    with pytest.raises(AccessDeniedError):
        enters(authorisation, link)
    late = ticket()
    clock.now_s += 61.0
    with pytest.raises(AccessDeniedError):
        enters(authorisation, late)


@pytest.mark.parametrize("proof", ["", "x", "read:1000.000:00:00", ticket(target=PAGE)])
def test_what_is_no_ticket_for_the_entrance_is_refused(
    authorisation: Authorisation, proof: str
) -> None:
    with pytest.raises(AccessDeniedError):
        enters(authorisation, proof)


def test_another_host_is_not_let_in(authorisation: Authorisation) -> None:
    cookie = cookie_of(authorisation)
    assert not enters(authorisation, ticket(), is_local=False)
    assert not authorisation.admit_browser("GET", PAGE, cookie, "", is_local=False)


def test_a_cookie_permits_to_read_pages_and_nothing_else(authorisation: Authorisation) -> None:
    cookie = f"other=1; {cookie_of(authorisation)}"
    assert authorisation.admit_browser("GET", f"{PAGE}?first=2", cookie, "", is_local=True)
    assert authorisation.admit_browser("HEAD", PAGE, cookie, "", is_local=True)
    for method, target in (("POST", PAGE), ("GET", "/api/v1/jobs"), ("GET", "/control/browser/x")):
        assert not authorisation.admit_browser(method, target, cookie, "", is_local=True)
    for wrong in ("", COOKIE, f"{COOKIE}=", f"{COOKIE}=x", "x=" + cookie_of(authorisation)[12:]):
        assert not authorisation.admit_browser("GET", PAGE, wrong, "", is_local=True)


def test_a_session_ends_and_the_oldest_makes_room(
    authorisation: Authorisation, clock: Clock
) -> None:
    first = cookie_of(authorisation)
    clock.now_s += SESSION_S + 1.0
    assert not authorisation.admit_browser("GET", PAGE, first, "", is_local=True)
    cookies = [cookie_of(authorisation, clock.now_s) for _ in range(SESSIONS_MAX + 1)]
    are_good = [
        authorisation.admit_browser("GET", PAGE, each, "", is_local=True) for each in cookies
    ]
    assert are_good == [False] + [True] * SESSIONS_MAX


def test_a_daemon_without_pages_has_no_entrance() -> None:
    authorisation = Authorisation(KEY.derive)
    authorisation.serve_as(PLACE)
    assert not authorisation.admit_browser("GET", ENTER, "", ticket(), is_local=True)
