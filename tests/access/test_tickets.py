import pytest

from ciel.access.errors import AccessDeniedError
from ciel.access.keys import Key, Role
from ciel.access.tickets import TICKET_WINDOW_S, TicketCheck, make_ticket

CLUSTER = Key(bytes(range(32)))
NETLOC = "w1:9000"
NOW_S = 1_700_000_000.0


def gate(remembered_max: int = 100) -> TicketCheck:
    return TicketCheck(CLUSTER.derive, NETLOC, remembered_max)


def ticket(target: str = "/data/a", now_s: float = NOW_S, role: Role = Role.WORKER) -> str:
    key = CLUSTER.derive(role)
    assert key is not None
    return make_ticket(key, "GET", NETLOC, target, now_s)


@pytest.mark.parametrize("role", Role)
def test_ticket_admits_the_role_that_made_it(role: Role) -> None:
    assert gate().admit(ticket(role=role), "GET", "/data/a", NOW_S) is role


def test_ticket_does_not_contain_the_key() -> None:
    assert CLUSTER.text() not in ticket(role=Role.ADMIN)


def test_a_ticket_can_be_used_once() -> None:
    door, once = gate(), ticket()
    door.admit(once, "GET", "/data/a", NOW_S)
    with pytest.raises(AccessDeniedError, match="used before"):
        door.admit(once, "GET", "/data/a", NOW_S)


@pytest.mark.parametrize(
    "netloc, method, target",
    [
        (NETLOC, "POST", "/data/a"),
        (NETLOC, "GET", "/data/b"),
        (NETLOC, "GET", "/data/a?x"),
        ("w2:9000", "GET", "/data/a"),
    ],
)
def test_ticket_is_for_one_request_at_one_worker(netloc: str, method: str, target: str) -> None:
    with pytest.raises(AccessDeniedError, match="not for this request"):
        TicketCheck(CLUSTER.derive, netloc).admit(ticket(), method, target, NOW_S)


def test_ticket_of_another_key_is_refused() -> None:
    stranger = make_ticket(Key.new(), "GET", NETLOC, "/data/a", NOW_S)
    with pytest.raises(AccessDeniedError):
        gate().admit(stranger, "GET", "/data/a", NOW_S)


def test_role_in_a_ticket_cannot_be_changed() -> None:
    promoted = ticket(role=Role.READ).replace("read:", "submit:")
    with pytest.raises(AccessDeniedError):
        gate().admit(promoted, "GET", "/data/a", NOW_S)


@pytest.mark.parametrize("skew_s", [-TICKET_WINDOW_S, TICKET_WINDOW_S])
def test_clocks_may_differ_by_the_time_window(skew_s: float) -> None:
    gate().admit(ticket(), "GET", "/data/a", NOW_S + skew_s)


@pytest.mark.parametrize("skew_s", [-TICKET_WINDOW_S - 1, TICKET_WINDOW_S + 1])
def test_clocks_may_not_differ_by_more_than_the_time_window(skew_s: float) -> None:
    with pytest.raises(AccessDeniedError, match="old"):
        gate().admit(ticket(), "GET", "/data/a", NOW_S + skew_s)


def test_full_memory_shrinks_the_window_and_never_forgets_a_replay() -> None:
    door = gate(remembered_max=10)
    used = [ticket(now_s=NOW_S + i) for i in range(20)]
    for one in used:
        door.admit(one, "GET", "/data/a", NOW_S + 20)
    for one in used:
        with pytest.raises(AccessDeniedError, match="used before"):
            door.admit(one, "GET", "/data/a", NOW_S + 20)
    door.admit(ticket(now_s=NOW_S + 20), "GET", "/data/a", NOW_S + 20)


def test_setting_the_clock_back_does_not_revive_a_ticket() -> None:
    door, once = gate(), ticket()
    door.admit(once, "GET", "/data/a", NOW_S)
    later_s = NOW_S + 2 * TICKET_WINDOW_S
    door.admit(ticket(now_s=later_s), "GET", "/data/a", later_s)
    with pytest.raises(AccessDeniedError, match="used before"):
        door.admit(once, "GET", "/data/a", NOW_S)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Ciel-Ticket",
        "Ciel-Ticket x",
        "Ciel-Ticket :::",
        "Ciel-Ticket worker:nan:00:00",
        "Ciel-Ticket worker:inf:00:00",
        "Ciel-Ticket worker:1:00:zz",
        "Ciel-Ticket king:1:00:00",
        "Ciel-Ticket worker:1:\ud800:00",
        "Ciel-Ticket worker:1:" + "0" * 10_000 + ":00",
        "Bearer " + CLUSTER.text(),
    ],
)
def test_an_invalid_ticket_is_refused(header: str) -> None:
    with pytest.raises(AccessDeniedError):
        gate().admit(header, "GET", "/data/a", NOW_S)
