"""What `ciel memory stats` prints."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ciel.cli.commands.memory.stats import render
from ciel.cli.output.watching import Redrawn
from ciel.master.memory_stats import REPORTED, server_row, volume_row
from ciel.memory.volumes import Volumes

MIB = 1 << 20


def volumes() -> Volumes:
    """Return a volume of 3 MiB on two servers, which lacks all second copies."""
    found = Volumes()
    for name in ("a", "b"):
        found.join(name, f"{name}:1", 8, 0.0)
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
        ["a", "here", "8MiB", "3MiB", "2MiB", "0", "512", "(2MiB)", "1", "(4KiB)", "0", "9", "3",
         "2"],
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
