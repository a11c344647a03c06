"""Tests `docs/programs.md`: the conversation that it shows, and its list of calls."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from ciel.executors.conversation import Conversation
from ciel.testing.stand_in import StandIn

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "programs.md").read_text()
EXAMPLES = ROOT / "examples" / "proc"

Start = Callable[..., StandIn]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_documented_conversation_takes_place(programs: Start, tmp_path: Path) -> None:
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
    _, _, after = PAGE.partition("### Messages from the program")
    table, _, _ = after.partition("\n### ")
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(Conversation.METHODS)
