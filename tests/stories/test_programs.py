"""Checks the messages that the user of an ordinary program sees when it fails, or when the command
line is wrong.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ciel_tests.clusters.stories import GOLDEN, Stage

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "failures.md"

HUNGRY = "#!/usr/bin/perl\nprint STDERR qq(begun\\n);\n$x = 'x' x $_ for 99 << 20;\nsleep 60;\n"
CHATTY = "#!/bin/sh\nseq 2000 >&2\nprintf 'red \\033[31mred\\033[0m \\007 \\377\\n' >&2\nexit 1\n"

STORIES: dict[str, dict[str, Any]] = {
    # --- failures of programs
    "exit-status": {"submit": "-- sh -c 'echo begun; echo no such word: xyzzy >&2; exit 3'"},
    "signal": {"submit": "-- sh -c 'kill -SEGV $$'"},
    "killed-by-others": {"submit": "-- sh -c 'kill -KILL $$'"},
    "much-said": {"submit": "-- ./chatty", "chatty": CHATTY},
    "time-limit": {"submit": "--timeout 0.2 -- sleep 60"},
    "memory-limit": {"submit": "--memory 32MiB -- ./hungry", "hungry": HUNGRY},
    "store-full": {"submit": "-- head -c 40000000 /dev/zero"},
    "output-removed": {"submit": "-- sh -c 'rm $(readlink /proc/$$/fd/1)'"},
    "retries-used-up": {"submit": "--retries 1 -- false"},
    "some-of-an-array": {"submit": "--array 1-5 -- sh -c 'test {} -lt 4'"},
    # --- programs that cannot start
    "missing-program": {"submit": "-- no-such-program"},
    "missing-path": {"submit": "-- ./absent"},
    "not-executable": {"submit": "-- ./words.txt", "words.txt": "a b c\n"},
    "bad-interpreter": {"submit": "-- ./script", "script": "#!/no/such\n"},
    "no-interpreter": {"submit": "-- ./script", "script": "echo hi\n"},
    "directory": {"submit": "-- /tmp"},
    "missing-file": {"submit": "--scratch -- cat words.txt", "words.txt": "a b c\n"},
    "too-many-slots": {"submit": "--slots 99 -- true"},
    "too-much-memory": {"submit": "--memory 4000TiB -- true"},
    # --- wrong command lines
    "unsent-file": {"submit": "--in absent.txt -- cat absent.txt"},
    "no-program": {"submit": "--retries 2"},
    "unknown-command": {"type": "ciel sumbit -- true"},
    "unknown-job": {"type": "ciel job info 4711"},
    "nobody-listens": {"type": "ciel status --master http://127.0.0.1:1"},
}


def test_every_golden_text_belongs_to_a_story() -> None:
    told = "".join([path.read_text() for path in Path(__file__).parent.glob("test_*.py")])
    names = [path.stem for path in GOLDEN.iterdir()]
    assert [name for name in names if f'"{name}"' not in told] == []
    assert len(names) >= 40


@pytest.mark.parametrize("name", STORIES)
def test_the_user_of_a_program_sees_the_golden_text(stage: Stage, name: str) -> None:
    story = dict(STORIES[name])
    command = story.pop("type", None) or f"ciel submit {story.pop('submit')}"
    stage.add(story)
    stage.tell(command).expect(name)


def test_the_page_shows_golden_texts() -> None:
    told = "\n".join([path.read_text() for path in GOLDEN.iterdir()])
    shown = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(shown) >= 5
    assert [block for block in shown if block not in told] == []


def test_the_page_has_every_failure_reason_of_the_protocol() -> None:
    protocol = (DOCS / "protocol/control.md").read_text()
    rows = re.findall(r"^\| (`[A-Z_`, ]+`) \| (?:worker|master|both) \|", protocol, re.MULTILINE)
    words = re.findall(r"`[A-Z_]+`", " ".join(rows))
    assert len(words) > 15
    assert [word for word in words if word not in PAGE.read_text()] == []
