"""Checks the output of commands, of the doctor and of metrics about memory servers and volumes."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ciel.cli.commands import status
from ciel.cli.commands.memory.stats import render
from ciel.cli.doctor.memory import check_memory
from ciel.cli.output.watching import Redrawn
from ciel.master.memory_stats import REPORTED, families, server_row, summary, volume_row
from ciel.memory.volumes import Volumes
from ciel.net.exposition import render as exposed

MIB = 1 << 20


def volumes() -> Volumes:
    """Return a volume of 3 MiB on two servers, which lacks all second copies."""
    found = Volumes()
    for name in ("a", "b"):
        found.join(name, f"{name}:1", 8, {}, 0.0)
    found.create("v", 3, 2, 0.0)
    found.gone("b", 0.0)
    return found


def answer(**figures: int) -> dict[str, Any]:
    found = volumes()
    described = {"name": "v", "size_bytes": 3 * MIB, "copies": 1, "replicas": 2, "why": "",
                 "available": 3, "extents": 3}  # fmt: skip
    return {
        "servers": [server_row(found.servers["a"], figures)],
        "volumes": [{**described, **volume_row(found.volumes["v"])}],
    }


def test_servers_and_volumes_have_a_row_each() -> None:
    found = answer(
        used_bytes=2 * MIB, offer_max_bytes=8 * MIB, pages_read=512, pages_written=1, requests=9,
        refused=3, connections=2,
    )  # fmt: skip
    assert [line.split() for line in render(found).split("\n")] == [
        ["SERVER", "STATE", "OFFERED", "RESERVED", "USED", "LOCKED", "READ", "WRITTEN", "COPIED",
         "REQUESTS", "REFUSED", "CONNECTIONS"],
        ["a", "connected", "8MiB", "3MiB", "2MiB", "0", "512", "(2MiB)", "1", "(4KiB)", "0", "9",
         "3", "2"],
        ["VOLUME", "SIZE", "COPIES", "LACKING", "COPYING", "STATE"],
        ["v", "3MiB", "1", "of", "2", "3", "0", "available"],
    ]  # fmt: skip


def test_a_lower_offer_is_shown_with_the_highest() -> None:
    found = answer(offer_max_bytes=16 * MIB)
    assert "8MiB of 16MiB" in render(found)


def test_a_server_that_has_not_reported_yet_shows_zeros() -> None:
    row = server_row(volumes().servers["a"], {})
    assert {row[name] for name in REPORTED} == {0}


def test_a_terminal_shows_the_last_text_only(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    screen = Redrawn()
    screen.show("one\ntwo")
    screen.show("three")
    assert capfdbinary.readouterr().out == b"one\ntwo\n\x1b[2A\x1b[Jthree\n"


def test_a_file_gets_each_text(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    screen = Redrawn()
    screen.show("one")
    screen.show("two")
    assert capfdbinary.readouterr().out == b"one\ntwo\n"


# --- status and metrics ---------------------------------------------------------------------------


def test_the_status_has_a_line_for_memory_and_one_for_missing_copies() -> None:
    found = {
        "cluster_id": "c", "url": "http://h:1", "version": "1", "up_s": 1.0, "jobs": {},
        "tasks": {}, "workers": [], "memory": summary(volumes()),
    }  # fmt: skip
    assert status.render(found, "here").split("\n")[4:6] == [
        "memory: 1 server with 8MiB, 1 volume with 3MiB",
        "memory: 1 volume without all copies, see ciel memory stats",
    ]


def test_a_cluster_without_memory_servers_says_nothing_about_them() -> None:
    assert summary(Volumes()) == {}
    assert families(Volumes(), {}) == []


def test_metrics_of_servers_and_volumes_have_their_names() -> None:
    lines = exposed(families(volumes(), {"a": {"pages_read": 7}})).decode().split("\n")
    assert {line for line in lines if line and not line.startswith("#")} >= {
        'ciel_memory_offered_bytes{server="a"} 8388608',
        'ciel_memory_reserved_bytes{server="a"} 3145728',
        'ciel_memory_pages_read_total{server="a"} 7',
        'ciel_memory_refused_total{server="a"} 0',
        'ciel_volume_replicas{volume="v"} 2',
        'ciel_volume_copies{volume="v"} 1',
        'ciel_volume_incomplete_extents{volume="v"} 3',
        'ciel_volume_copying_extents{volume="v"} 0',
    }


# --- the doctor -----------------------------------------------------------------------------------


def findings(found: dict[str, Any], error: OSError | None = None) -> list[tuple[str, str, str]]:
    def connect(address: str) -> None:
        if error is not None:
            raise error

    return [(each.state, each.found, each.advice) for each in check_memory(found, connect)]


def test_the_doctor_finds_nothing_in_a_cluster_without_memory_servers() -> None:
    assert check_memory({"servers": [], "volumes": []}) == []


def test_the_doctor_finds_a_volume_that_lacks_copies() -> None:
    first, second = findings(answer())
    assert first == ("ok", "1 server with 8MiB, 1 volume", "")
    assert second == (
        "fault", "volume v has 1 of 2 copies of 3 MiB, and no other server has room for a copy",
        "start another server: ciel-memory --offer SIZE",
    )  # fmt: skip


def test_the_doctor_finds_no_fault_while_a_copy_is_made() -> None:
    found = answer()
    found["volumes"][0]["copying"] = 2
    what = "volume v has 1 of 2 copies of 3 MiB; a server gets a copy of 2 MiB now"
    assert findings(found)[1:] == [("note", what, "")]


def test_the_doctor_finds_a_volume_whose_pages_are_gone() -> None:
    found = answer()
    found["volumes"][0]["why"] = "memory server a is gone, which has its pages"
    ((state, what, advice),) = findings(found)[1:]
    assert (state, what) == ("fault", "volume v: memory server a is gone, which has its pages")
    assert advice.endswith("ciel memory remove v")


@pytest.mark.parametrize(
    "figures, what, advised",
    [
        ({"reserved_bytes": 8 * MIB}, "is full: 8MiB of 8MiB", "remove a volume"),
        (
            {"offer_max_bytes": 16 * MIB},
            "8MiB of 16MiB: its host is short",
            "fewer programs",
        ),
        ({"swap_bytes": MIB, "lockable_bytes": 8 * MIB}, "may be swapped out", "it with --lock"),
        ({"swap_bytes": MIB}, "may be swapped out", "its limit of 0 (ulimit -l; of a systemd"),
    ],
)
def test_the_doctor_notes_what_a_server_lacks(
    figures: dict[str, int], what: str, advised: str
) -> None:
    found = answer(offer_max_bytes=8 * MIB)
    found["volumes"].clear()
    found["servers"][0] |= figures
    ((state, said, advice),) = findings(found)[1:]
    assert state == "note"
    assert what in said
    assert advised in advice


def test_the_doctor_finds_a_server_that_this_host_does_not_reach() -> None:
    found = answer(offer_max_bytes=8 * MIB)
    found["volumes"].clear()
    ((state, said, advice),) = findings(found, ConnectionRefusedError(111, "refused"))[1:]
    assert (state, said) == ("fault", "this host cannot reach server a at a:1: [Errno 111] refused")
    assert "--advertise HOST:PORT" in advice
