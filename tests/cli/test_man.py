"""Manual pages, as they are made from the parsers of all commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ciel.cli.commands.help.man import all_pages, main
from ciel.cli.parsing.grammar import programs

MACROS = {"TH", "SH", "SS", "B", "br", "TP", "PP", "nf", "fi"}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return dict(all_pages(programs()))


def shown(page: str) -> str:
    """Return a page without what roff takes for its own."""
    return page.replace("\\-", "-").replace("\\&", "").replace("\\fB", "").replace("\\fR", "")


def test_every_program_and_command_has_a_page(pages: dict[str, str]) -> None:
    assert {"ciel.1", "ciel-submit.1", "ciel-job.1", "ciel-worker.1", "sw-job.1"} <= pages.keys()
    found = programs()
    commands = ["-".join(command.words) for command in found[0].verbs]
    assert len(pages) == len({*commands, *("-".join(program.words) for program in found)})


def test_a_page_tells_of_all_options_of_all_verbs(pages: dict[str, str]) -> None:
    for command in programs()[0].verbs:
        page = shown(pages[f"{'-'.join(command.words)}.1"])
        for part in command.with_verbs():
            assert " ".join(part.words) in page
            for option in part.options:
                assert f"{', '.join(option.names[:1])}" in page
                assert option.summary in page


def test_no_line_is_taken_for_a_macro_that_is_none(pages: dict[str, str]) -> None:
    for page in pages.values():
        for line in page.splitlines():
            if line[:1] in (".", "'"):
                assert re.match(r"\.(\w+)", line), line
                assert line[1:].split(" ")[0] in MACROS


def test_a_backslash_of_a_summary_is_shown_as_one(pages: dict[str, str]) -> None:
    for page in pages.values():
        assert not re.search(r"\\(?![-&e>]|f[BR])", page)


def test_the_pages_are_written_where_it_is_said(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], pages: dict[str, str]
) -> None:
    place = tmp_path / "share/man1"
    assert main("man", ["--out", str(place)]) == 0
    assert {path.name for path in place.iterdir()} == pages.keys()
    assert (place / "ciel-job.1").read_text() == pages["ciel-job.1"]
    assert f"{len(pages)} pages in {place}".encode() in capfdbinary.readouterr().out
