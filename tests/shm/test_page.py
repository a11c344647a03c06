"""The page about the protocol, the daemon, and the client in C have the same constants."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from ciel.shm import messages
from ciel.shm.daemon import CONNECTIONS_MAX
from ciel.shm.messages import Code, Decoder, Load, Ok
from ciel.shm.requests import DEADLINE_S, REQUESTS_MAX, SLOW_MAX, WRITES_MAX
from ciel.storage.segments import SEGMENT_MIN_BYTES
from ciel.storage.shelf import NAMED_BIT

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "protocol" / "shmd.md").read_text()
C: Final = (ROOT / "executors" / "sdk" / "c" / "shmdc.c").read_text()
HEADER: Final = (ROOT / "executors" / "sdk" / "c" / "shmdc.h").read_text()
KINDS: Final = {1: "load", 2: "write", 3: "commit", 4: "OK", 5: "fail", 6: "abandon"}


def table(head: str) -> list[list[str]]:
    """Return the cells of the rows below a header of the page."""
    rows = PAGE.partition(head)[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def constants(text: str) -> dict[str, int]:
    """Return the constants of a source in C that are plain numbers or shifts."""
    found = re.findall(r"\b([A-Z_]+) = (\d+)(?: << (\d+))?\b", text)
    return {name: int(number) << int(shift or 0) for name, number, shift in found}


def widths(text: str) -> list[int]:
    """Return the numbers in parentheses."""
    return [int(width.replace(",", "")) for width in re.findall(r"\(([\d,]+)\)", text)]


@pytest.mark.requirement("CIB-10", "CIB-11")
def test_the_table_of_kinds_is_that_of_the_code() -> None:
    rows = table("| kind | | numbers | texts (most bytes) | flags |")
    assert {int(kind): name for kind, name, *_ in rows} == KINDS
    for kind, _, numbers, texts, flags in rows:
        fields, limits = messages._FIELDS[int(kind)]
        assert widths(numbers) == [struct_width(code) for code in fields.format.lstrip(">")]
        assert widths(texts) == list(limits), kind
        bits = sum(int(bit) for bit in re.findall(r"(\d): ", flags))
        assert bits == messages._FLAGS.get(int(kind), 0)


def struct_width(code: str) -> int:
    return {"H": 2, "I": 4, "Q": 8}[code]


@pytest.mark.requirement("CIB-10")
def test_the_table_of_codes_is_that_of_both_languages() -> None:
    told = {int(code): text for code, text in table("| code | |")}
    statuses = constants(HEADER)
    assert list(told) == [code.value for code in Code]
    for code in Code:
        assert statuses[f"SHMDC_{code.name}"] == code.value
        assert told[code].startswith(code.name.lower().replace("_", " ").replace("timeout", "time"))


def test_the_limits_of_the_page_are_those_of_the_code() -> None:
    for text in (
        f"at most {messages.FRAME_MAX_BYTES:,}\n1 byte    version: {messages.VERSION}\n",
        f"busy: {REQUESTS_MAX} requests of this connection wait, or it has {WRITES_MAX} files open",
        f"A\ntime-out of 0 means {DEADLINE_S:.0f} s; the maximum is an hour",
        f"A daemon serves {CONNECTIONS_MAX} connections at a time",
        f"less\n  than {SEGMENT_MIN_BYTES:,} bytes or the sticky bit (mode {NAMED_BIT:05o})",
    ):
        assert text in PAGE
    assert SLOW_MAX == 4
    assert "copies run in threads, four at a time" in PAGE
    assert messages.TIMEOUT_MAX_MS == 3600 * 1000


def test_the_constants_in_c_are_those_of_python() -> None:
    found = constants(C)
    for name in (
        "VERSION", "FRAME_MAX_BYTES", "NAME_MAX_BYTES", "PATH_MAX_BYTES", "REASON_MAX_BYTES",
        "TIMEOUT_MAX_MS",
    ):  # fmt: skip
        assert found[name] == getattr(messages, name), name
    assert found["NAMED_MIN_BYTES"] == SEGMENT_MIN_BYTES
    assert "enum kind { LOAD = 1, WRITE, COMMIT, OK, FAIL, ABANDON };" in C
    assert (found["RECURSIVE"], found["DESCRIBED"], found["ONLY_MAPPED"]) == (1, 2, 1)


@pytest.mark.requirement("CIB-10")
def test_the_bytes_on_the_page_are_the_messages_that_it_describes() -> None:
    lines = re.findall(r"^(?:[0-9a-f]{2}[ |]*)+$", PAGE, re.MULTILINE)
    (decoded,) = [Decoder().feed(bytes.fromhex(re.sub("[ |]", "", "".join(lines))))]
    assert decoded == [
        Load(7, "4f2a:out:0", timeout_ms=30_000),
        Ok(7, "/dev/shm/x", 11, "99fc"),
    ]
