"""Tests how pages are read and run: a wrong example is named with its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ciel.testing.homes import Home
from ciel_tests.documents.pages import Block, Page, commands, matches, steps


def page(*lines: str) -> Page:
    return Page("page.md", "\n".join([*lines, ""]))


def test_a_page_is_split_into_blocks() -> None:
    found = page("# Title", "<!-- not run: minutes -->", "```sh", "make", "```", "```c a.c", "```")
    assert found.blocks == [Block(4, "sh", "", "minutes", "make\n"), Block(7, "c", "a.c", "", "")]


@pytest.mark.parametrize(
    "lines, mistake",
    [
        (["```", "a", "```"], "a block must say what it is; '' needs the name of its file"),
        (["```java", "a", "```"], "a block must say what it is; 'java' needs the name of its file"),
        (["```text", "$ ls", "```"], "this is a command: '$ ' (write ```console or ```sh)"),
        (["```json", "{,}", "```"], "this is not json: Expecting property name"),
        (["<!-- not run: later -->", "```sh", "ls", "```"], "'not run' takes one of these reasons"),
    ],
)
def test_a_block_that_would_not_be_run_is_a_mistake(lines: list[str], mistake: str) -> None:
    (found,) = page(*lines).mistakes()
    assert found.startswith(f"page.md:{lines.index(lines[-3]) + 2}: {mistake}")


@pytest.mark.parametrize(
    "lines",
    [
        ["- an item", "  ```sh", "  ls", "  ```"],
        ["```console", "$ ls", "```", "```output", "a", "```"],
        ["```sh", "ls"],
    ],
)
def test_a_block_that_would_not_be_found_is_a_mistake(lines: list[str]) -> None:
    assert page(*lines).mistakes() != []


def test_blocks_that_other_tests_check_are_accepted() -> None:
    assert page("```grammar", "a = b ;", "```").mistakes(["grammar"]) == []


@pytest.mark.parametrize(
    "shown, printed, does",
    [
        ("a\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a…\n", "a\nb\n", True),
        ("a ... c\n", "a b c\n", True),
        ("a.c\n", "abc\n", False),
    ],
)
def test_dots_stand_for_any_text(shown: str, printed: str, does: bool) -> None:
    assert matches(shown, printed) is does


def test_a_console_block_has_commands_input_and_output() -> None:
    text = "$ one\n1\n2\n$ ciel sw\nsw> f(\n...  1);\n3\n"
    assert list(steps(Block(7, "console", "", "", text))) == [
        (7, "one", "", "1\n2\n"),
        (10, "ciel sw", "f(;\n 1);\n", "3\n"),
    ]


def test_commands_of_a_script_may_have_several_lines() -> None:
    text = "one\n\nfor i in 1 2; do\n  two\ndone\ncat <<X\nthree\nX\nfour \\\n  five\n"
    found = [(step.line, step.command) for step in commands(Block(1, "sh", "", "", text))]
    assert found == [
        (1, "one"),
        (3, "for i in 1 2; do\n  two\ndone"),
        (6, "cat <<X\nthree\nX"),
        (9, "four \\\n  five"),
    ]


def test_examples_of_a_page_share_files_and_variables(tmp_path: Path) -> None:
    lines = [
        *("```sh", "mkdir sub", "cd sub", "export A=b", "```"),
        *("```text note", "hello", "```"),
        *("```console", "$ cat note; echo $A", "hello", "b", "```"),
        *("```python", "x = 1", "```", "```python", "print(x)", "```", "```output", "1", "```"),
    ]
    assert page(*lines).run(Home(tmp_path), tmp_path) == []


def test_a_wrong_example_is_named_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("hello\n")
    lines = [
        *("<!-- files: note -->", "```sh", "true", "false", "```"),
        *("```text note", "good-bye", "```"),
        *("```console", "$ echo a", "b", "```"),
        *("```python", "raise ValueError(3)", "```"),
        *("```python", "print(1)", "```", "```output", "2", "```"),
        *("```sh", "exit", "```"),
    ]
    failures = page(*lines).run(Home(tmp_path), tmp_path)
    places = [failure.partition(": ")[0].removeprefix("page.md:") for failure in failures]
    assert places == ["4", "7", "10", "14", "17", "23"]
    assert 'script.py", line 14, in <module>' in failures[3]
    assert "has ended the shell" in failures[5]
