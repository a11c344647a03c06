"""The tables that choose transports: a case for each row, which notices if the row is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ciel.core.refs import INLINE_MAX_BYTES
from ciel.core.transports import (
    AUTO,
    CONTROL_ROWS,
    COPY,
    CORES_MIN,
    HTTP,
    LINK,
    MEMORY,
    OBJECT_ROWS,
    RING,
    SOCKET,
    TCP,
    VALUE,
    ControlRow,
    ControlSituation,
    End,
    ObjectRow,
    ObjectSituation,
    Store,
    channel_alone,
    control_choice,
    object_choice,
    read_end,
)

BIG = End(AUTO, ("mpb", RING), CORES_MIN)
SMALL = BIG._replace(cores=CORES_MIN - 1)


def by_hand(wish: str, *, cores: int = CORES_MIN) -> End:
    return End(wish, () if wish == SOCKET else (wish,), cores)


CONTROL: list[tuple[int, End, End, bool, str, str]] = [
    (0, BIG, BIG, False, TCP, "over the network"),
    (0, by_hand(RING), by_hand(RING), False, TCP, "over the network"),
    (1, by_hand(RING), by_hand("mpb"), True, SOCKET, "and the worker with --channel mpb"),
    (1, by_hand(SOCKET), by_hand(RING), True, SOCKET, "and the worker with --channel ring"),
    (2, BIG, by_hand(SOCKET), True, SOCKET, "--channel socket was given"),
    (2, by_hand(SOCKET), BIG, True, SOCKET, "--channel socket was given"),
    (3, BIG, by_hand("pigeon"), True, SOCKET, "has such a channel"),
    (4, SMALL, by_hand(RING), True, RING, "--channel ring was given"),
    (4, by_hand("mpb"), BIG, True, "mpb", "--channel mpb was given"),
    (5, SMALL, SMALL, True, SOCKET, f"needs {CORES_MIN} cores; they may use {CORES_MIN - 1}"),
    (5, BIG, SMALL, True, SOCKET, f"they may use {CORES_MIN - 1}"),
    (5, BIG, BIG._replace(cores=0), True, SOCKET, "they may use 0"),
    (6, BIG._replace(polls=False), BIG, True, SOCKET, "--spin 0 was given"),
    (6, BIG, BIG._replace(polls=False), True, SOCKET, "--spin 0 was given"),
    (7, BIG, BIG._replace(kinds=()), True, SOCKET, "cannot open a ring"),
    (8, BIG, BIG, True, RING, "and can poll shared memory"),
]  # fmt: skip

HOST = Store("h1", 1000, ("files:1", "files:2"))
CORE = Store("h1", 1000, ("image:b:1:2", "files:2"))
OBJECTS: list[tuple[int, Store, Store, int | None, str, str]] = [
    (0, HOST, HOST._replace(host="h2"), INLINE_MAX_BYTES, VALUE, "within its reference"),
    (1, CORE, CORE, INLINE_MAX_BYTES + 1, MEMORY, "cores of one image"),
    (1, CORE, CORE._replace(host="another kernel"), None, MEMORY, "cores of one image"),
    (2, HOST, HOST._replace(host="h2"), None, HTTP, "do not share a host"),
    (2, Store("h1"), Store("h2"), None, HTTP, "do not share a host"),
    (3, HOST, HOST._replace(user=1001), None, HTTP, "different users"),
    (4, HOST._replace(places=()), HOST, None, HTTP, "does not share its store"),
    (4, Store("h1"), Store("h1", places=()), None, HTTP, "does not share its store"),
    (5, HOST, HOST, None, LINK, "on one file system"),
    (5, HOST._replace(places=("files:2",)), HOST, None, LINK, "on one file system"),
    (5, HOST, HOST._replace(places=("files:3", "files:1")), None, LINK, "on one file system"),
    (6, HOST, CORE, None, COPY, "a link is impossible"),
    (6, CORE, CORE._replace(places=("image:b:1:3",)), None, COPY, "a link is impossible"),
    (7, Store("h1"), Store("h1"), None, LINK, "both workers are on one host"),
    (7, HOST, Store("h1", 1000), None, LINK, "both workers are on one host"),
]


def control_mistakes(rows: Sequence[ControlRow] = CONTROL_ROWS) -> list[int]:
    """Return the rows that decide one of their cases wrongly."""
    found = []
    for row, master, worker, is_local, way, reason in CONTROL:
        choice = control_choice(ControlSituation(master, worker, is_local), rows)
        if choice.way != way or not choice.reason.endswith(reason):
            found.append(row)
    return found


def object_mistakes(rows: Sequence[ObjectRow] = OBJECT_ROWS) -> list[int]:
    found = []
    for row, source, taker, size_bytes, way, reason in OBJECTS:
        choice = object_choice(ObjectSituation(source, taker, size_bytes), rows)
        if choice.way != way or not choice.reason.endswith(reason):
            found.append(row)
    return found


@pytest.mark.requirement("CIB-53")
def test_each_case_is_decided_as_the_tables_say() -> None:
    assert control_mistakes() == []
    assert object_mistakes() == []


@pytest.mark.requirement("CIB-53")
@pytest.mark.parametrize("number", range(len(CONTROL_ROWS)))
def test_a_fault_in_a_row_for_messages_is_noticed(number: int) -> None:
    row = CONTROL_ROWS[number]
    faults = [row._replace(way=RING if row.way == SOCKET else SOCKET)]
    if number < len(CONTROL_ROWS) - 1:
        faults.append(row._replace(applies=lambda s: False))
    for fault in faults:
        rows = (*CONTROL_ROWS[:number], fault, *CONTROL_ROWS[number + 1 :])
        assert number in control_mistakes(rows)


@pytest.mark.requirement("CIB-53")
@pytest.mark.parametrize("number", range(len(OBJECT_ROWS)))
def test_a_fault_in_a_row_for_objects_is_noticed(number: int) -> None:
    row = OBJECT_ROWS[number]
    faults = [row._replace(way=COPY if row.way == HTTP else HTTP)]
    if number < len(OBJECT_ROWS) - 1:
        faults.append(row._replace(applies=lambda s: False))
    for fault in faults:
        rows = (*OBJECT_ROWS[:number], fault, *OBJECT_ROWS[number + 1 :])
        assert number in object_mistakes(rows)


def test_a_hello_describes_an_end_completely() -> None:
    for end in (BIG, SMALL, by_hand(SOCKET), by_hand("mpb"), BIG._replace(polls=False)):
        assert read_end(end.described()) == end


def test_a_peer_of_an_earlier_version_has_chosen_its_channel() -> None:
    assert read_end({"channels": []}) == End(SOCKET)
    assert read_end({"channels": ["mpb"]}) == End("mpb", ("mpb",))
    assert read_end({"channels": 3, "channel": [], "cores": "4", "polls": 0}) == End(SOCKET)


def test_programs_get_a_ring_where_the_daemon_itself_polls() -> None:
    assert channel_alone(BIG) == RING
    assert channel_alone(SMALL) == channel_alone(by_hand(SOCKET)) == SOCKET
    assert channel_alone(by_hand(RING, cores=1)) == RING
