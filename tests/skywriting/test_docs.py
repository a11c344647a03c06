"""Compares the pages on Skywriting with the language: grammar, functions, values of examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ciel.skywriting import standard
from ciel.skywriting.builtins import prelude
from ciel.skywriting.builtins.original import ORIGINAL
from ciel.skywriting.errors import SkywritingError, Source
from ciel.skywriting.syntax import lexer, printer, rules
from ciel.skywriting.syntax.grammar import parse
from ciel_tests.skywriting.script_host import ScriptHost

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs" / "skywriting"
TUTORIAL = DOCS / "tutorial"
PAGES = ("tutorial.md", "reference.md", "compatibility.md", "internals.md")
INNER = "__"  # what scripts are not meant to name


class Block(NamedTuple):
    """A block between fences. `line` is the number of its first line."""

    page: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, *kinds: str) -> Iterator[Block]:
    """Every fenced block of a page."""
    text = (DOCS / page).read_text()
    for found in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if found[1] in kinds:
            yield Block(page, text.count("\n", 0, found.start(2)) + 1, found[1], found[2])


def sections(page: str) -> dict[str, str]:
    """Return the text below each heading."""
    parts = re.split(r"^#+ (.*)$", (DOCS / page).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


# --- the grammar ----------------------------------------------------------------------------------


def productions(text: str) -> dict[str, str]:
    """Return the definition of each name of a grammar, without comments and layout."""
    plain = re.sub(r"\(\*.*?\*\)", "", text, flags=re.DOTALL)
    found: dict[str, str] = {}
    for name, body in re.findall(r"^(\w+)\s*=(.*?);\s*$", plain, re.DOTALL | re.MULTILINE):
        assert name not in found, f"{name} is defined twice"
        found[name] = " ".join(body.split())
    return found


@pytest.fixture(scope="module")
def grammar() -> dict[str, str]:
    found = productions((ROOT / "skywriting" / "grammar.txt").read_text())
    assert len(found) > 10
    return found


def test_the_reference_has_the_grammar(grammar: dict[str, str]) -> None:
    text = "".join(block.text for block in blocks("reference.md", "grammar"))
    assert productions(text) == grammar


def test_every_name_in_the_grammar_is_one_of_its_own(grammar: dict[str, str]) -> None:
    for name, body in grammar.items():
        used = re.findall(r"\b[a-z_]\w*\b", re.sub(r'"[^"]*"|\?[^?]*\?', "", body))
        assert set(used) <= set(grammar), name


def test_the_grammar_has_the_words_of_the_language(grammar: dict[str, str]) -> None:
    quoted = {word for body in grammar.values() for word in re.findall(r'"([^"]+)"', body)}
    known = {*lexer.KEYWORDS, *lexer.OPERATORS, lexer.DIV}
    assert known <= quoted
    assert {word for word in quoted if word.isalpha() and len(word) > 1} <= known


def test_the_reference_lists_the_words_that_cannot_be_names() -> None:
    listed = re.search(r"cannot be names:\n\n    (.*)\n", sections("reference.md")["Text"])
    assert listed is not None
    assert sorted(listed[1].split()) == sorted(lexer.KEYWORDS)


def test_the_reference_orders_operators_as_they_bind() -> None:
    found = [
        re.findall(r"`([^`]*)`", line.split(" | ")[0].replace(r"\|", "|"))
        for line in sections("reference.md")["Expressions"].splitlines()
        if line.startswith("| `")
    ]
    levels = [set(level[1:]) for level in rules.PRECEDENCE]
    assert [set(row) for row in found[2:-2]] == levels[-3:0:-1]


# --- built-in functions ---------------------------------------------------------------------------


def listed_functions() -> dict[str, bool]:
    """The names in the reference's tables, and whether they are marked as of the original."""
    text = (DOCS / "reference.md").read_text()
    part = text[text.index("\n## Built-in functions") : text.index("\n## Include")]
    found = {}
    for line in part.splitlines():
        if line.startswith(("| `", "| ○ `")):
            for name in re.findall(r"`(\w+)\b[^`]*`", line.split(" | ")[0]):
                found[name] = "○" in line
    return found


def test_the_reference_lists_every_built_in_function_and_no_other() -> None:
    known = {name for name in prelude.names(1) if not name.startswith(INNER)}
    listed = listed_functions()
    assert listed.keys() == known
    assert {name for name in listed if listed[name]} == {n for n in ORIGINAL if n in known}


def test_the_compatibility_page_lists_what_is_new() -> None:
    lines = (DOCS / "compatibility.md").read_text().splitlines()
    line = next(line for line in lines if "whose names a script may assign" in line)
    new = {name for name, is_original in listed_functions().items() if not is_original}
    assert set(re.findall(r"`(\w+)`", line)) == new


def test_the_reference_lists_every_standard_include() -> None:
    listed = re.findall(
        r"^\| `\"(\w+)\"` \| (.*)", sections("reference.md")["Include"], re.MULTILINE
    )
    assert {name for name, _ in listed} == set(standard.NAMES)
    for name, described in listed:
        script = parse(Source(name, standard.text_of(name)))
        defined = {s.function.name for s in script.statements if hasattr(s, "function")}
        assert defined == set(re.findall(r"`(\w+)\(", described)), name


# --- scripts --------------------------------------------------------------------------------------

SHOWN = re.compile(r"^(return )?(\S.*);\s*// → (.*)$")
REFUSED = re.compile(r"^(\s*)(\S.*\S)\s+// error: (.*)$")
COLLECT = "shown_on_this_page"


def value_of(text: str) -> Any:
    return ScriptHost().run(text, env={"N": "10"})


EXAMPLES = [*blocks("reference.md", "skywriting"), *blocks("compatibility.md", "skywriting")]


@pytest.mark.parametrize("block", EXAMPLES, ids=str)
def test_an_example_gives_what_it_says(block: Block) -> None:
    lines = block.text.splitlines()
    head = [lines.pop(0)] if lines[0].startswith("#!") else []
    expected, kept, refused = [], [], []
    for number, line in enumerate(lines):
        if shown := SHOWN.match(line):
            expected.append(json.dumps(json.loads(shown[3]), ensure_ascii=False))
            kept.append(f"{COLLECT} += to_json({shown[2]});")  # as it is at this point
        elif error := REFUSED.match(line):
            lines[number] = error[1] + error[2]  # an error shows its line, comments and all
            refused.append((number, error[3]))
            kept.append("")
        else:
            kept.append(line)
    for number, pattern in refused:
        rest = [] if not lines[number].startswith(" ") else lines[number + 1 :]
        script = "\n".join([*head, f"{COLLECT} = [];", *kept[:number], lines[number], *rest])
        with pytest.raises(SkywritingError) as raised:
            value_of(script)
        assert pattern in str(raised.value)
    if not any(lines[number].startswith(" ") for number, _ in refused):
        found = value_of("\n".join([*head, f"{COLLECT} = [];", *kept, f"return {COLLECT};"]))
        assert found == expected
    assert expected or refused, "an example shows something"


def strange() -> str:
    return sections("compatibility.md")["Surprising rules that were kept"].replace(r"\|", "|")


def split_off(script: str) -> str:
    """A script that returns the expression at the end of this one."""
    found = re.fullmatch(r"(.*[;}/] )?(.*)", script)
    assert found is not None
    return f"{found[1] or ''}return {found[2]};"


def test_values_in_the_compatibility_page_are_what_they_are() -> None:
    found = re.findall(r"`([^`]+)` is `([^`]+)`", strange())
    assert len(found) > 15
    for script, value in found:
        given = value_of(split_off(script))
        shown = given if isinstance(given, str) else json.dumps(given)
        assert shown == value.strip('"'), script


def test_errors_in_the_compatibility_page_are_errors() -> None:
    found = re.findall(r"`([^`]+)` is an error", strange())
    assert len(found) > 8
    for script in found:
        with pytest.raises(SkywritingError):
            value_of(split_off(script))


def test_the_reference_shows_an_error_as_it_is() -> None:
    text = (TUTORIAL / "late.sw").read_text()
    with pytest.raises(SkywritingError) as raised:
        ScriptHost().run(text, name="late.sw")
    shown = next(b for b in blocks("reference.md", "text") if b.text.startswith("Error executing"))
    assert str(raised.value) + "\n" == shown.text


# --- the tutorial ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(TUTORIAL.glob("*.sw")), ids=lambda path: path.name)
def test_scripts_of_the_tutorial_are_laid_out_as_the_printer_does(path: Path) -> None:
    source = Source(path.name, path.read_text())
    if path.name == "wrong.sw":
        with pytest.raises(SkywritingError):
            parse(source)
    else:
        assert (printer.show(parse(source)) == source.text) is (path.name != "untidy.sw")


def test_pages_lead_to_what_is_there() -> None:
    for page in PAGES:
        text = (DOCS / page).read_text()
        anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in sections(page)}
        for target in re.findall(r"\]\(([^)]+)\)", text):
            file, _, anchor = target.partition("#")
            assert (DOCS / file).exists(), f"{page}: {target}"
            assert file or anchor in anchors, f"{page}: {target}"
