"""Checks that each command, verb and option that a sentence of a document names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.cli.parsing.grammar import Command, programs

ROOT = Path(__file__).parents[2]
PAGES = [
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("e[dx]*/**/*.md")]
    if path.name != "CHANGELOG.md" and path.parent.name != "adr"  # these describe the past
]
PASS_ON = ("submit", "run", "java", "sw-job", "sw")
"""Commands whose words after the first argument belong to a program."""
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`((?:ciel|ciel-master|ciel-worker|sw-job) [^`]+)`")


@pytest.fixture(scope="module")
def commands() -> dict[tuple[str, ...], Command]:
    return {each.words: each for program in programs() for each in program.with_verbs()}


def named(path: Path) -> Iterator[tuple[int, str]]:
    text = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), path.read_text())
    for found in _NAMED.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found[1]


def unknown(commands: dict[tuple[str, ...], Command], text: str) -> Iterator[str]:
    """Yield the words that should be verbs or options but are not."""
    words = re.split(r"[\s\[\]|]+", text.partition("&&")[0].partition(";")[0])
    length = max(n for n in range(len(words) + 1) if tuple(words[:n]) in commands)
    command, rest = commands[tuple(words[:length])], words[length:]
    if not command.parser and not command.words[0].startswith("ciel-"):
        yield from [word for word in rest[:1] if re.fullmatch("[a-z]+", word)]
    known = {name: option for option in command.options for name in option.names}
    while rest:
        name = rest.pop(0).partition("=")[0].rstrip("…,")
        if name.startswith("--") and len(name) > 2:
            if name not in known and name != "--help":
                yield name
            elif name in known and known[name].value:
                del rest[:1]
        elif command.words[-1] in PASS_ON and not name.startswith("-"):
            return


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_named_in_a_document_exist(
    commands: dict[tuple[str, ...], Command], path: Path
) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: `{text}`: there is no {word}"
        for line, text in named(path)
        for word in unknown(commands, text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text, words",
    [
        ("ciel jab list", ["jab"]),
        ("ciel job lost", ["lost"]),
        ("ciel job list --al", ["--al"]),
        ("ciel submit --name --x sort --reverse", []),
        ("ciel submit --sorted sort", ["--sorted"]),
        ("ciel-worker --advertise HOST:0", []),
    ],
)
def test_a_word_that_no_command_has_is_found(
    commands: dict[tuple[str, ...], Command], text: str, words: list[str]
) -> None:
    assert list(unknown(commands, text)) == words
