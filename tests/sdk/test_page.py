"""`docs/programs.md`: the programs on it, the conversation, and the list of calls."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ciel.executors.conversation import Conversation
from ciel.testing.stand_in import StandIn

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "programs.md").read_text()
EXAMPLES = ROOT / "examples" / "proc"

Start = Callable[..., StandIn]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(
    "language, name",
    [
        ("python", "wordcount.py"),
        ("c", "wordcount.c"),
        ("perl", "wordcount.pl"),
        ("json", "wordcount.pack"),
    ],
)
def test_the_programs_on_the_page_are_the_examples(language: str, name: str) -> None:
    assert blocks(language) == [(EXAMPLES / name).read_text()]


def test_the_conversation_takes_place(programs: Start, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one two three")
    (conversation,) = blocks("conversation")
    program = programs(sys.executable, str(EXAMPLES / "wordcount.py"))
    for line in conversation.replace("TEXT", str(tmp_path / "text")).splitlines():
        method, args = json.loads(line[3:])
        if line.startswith("W> "):
            program.say(method, args)
        else:
            assert program.hear() == (method, args)
    assert program.silence()
    assert (program.status(), program.errors()) == (0, "")


def test_every_call_is_listed() -> None:
    _, _, after = PAGE.partition("## What a program says")
    table, _, _ = after.partition("\n## ")
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(Conversation.METHODS)
