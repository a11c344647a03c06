"""Tests names of jobs, tasks and objects that cannot exist, at the limits and beyond them: every
command reports in one line that it is unknown, and ends with status 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from ciel.core.ids import ID_MAX_LENGTH
from ciel.testing.homes import HandCluster

NAMES: Final[dict[str, str | bytes]] = {
    "nothing": "",
    "here": ".",
    "above": "../x",
    "a path": "/etc/passwd",
    "the longest id": "a" * ID_MAX_LENGTH,
    "one more": "a" * (ID_MAX_LENGTH + 1),
    "as long as a word may be": "x" * 100_000,
    "digits without end": "9" * 5000,
    "a task's digits without end": "last:" + "9" * 5000,
    "none": "0",
    "negative": "-1",
    "a range to nowhere": "1-",
    "a range without end": "1-" + "9" * 30,
    "a range backwards": "5-1",
    "a range without steps": "1-5:0",
    "nobody": "999999999",
    "a gap": "1,,2",
    "two lines": "a\nb",
    "a control sequence": "\x1b[2J",
    "no letter": "☃",
    "no text": b"\xff\xfe",
    "percent": "%00",
    "what streams are called": ".producer:x",
}
COMMANDS: Final = (
    "job info",
    "job wait",
    "job output",
    "job log",
    "job cancel",
    "job retry",
    "job rm",
    "job graph",
    "task list",
    "task info",
    "task explain",
    "object info",
    "object get",
    "object rm",
)
LINE_MAX_LENGTH: Final = 400


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_name_is_reported_in_one_line(
    lasting_cluster: HandCluster, typed: Callable[..., tuple[int, str, str]], command: str
) -> None:
    for kind, name in NAMES.items():
        status, out, said = typed(lasting_cluster.home, *command.split(), name)
        assert (status, out) == (2, ""), kind
        assert said.startswith("ciel"), kind
        line = said.removesuffix("\n")
        assert line.isprintable(), kind
        assert len(line) <= LINE_MAX_LENGTH, kind
        assert "a bug in ciel" not in line, kind
