"""The editors' files know the words of the language, and colour a script as it is read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ciel.skywriting.builtins import prelude
from ciel.skywriting.builtins.original import ORIGINAL
from ciel.skywriting.errors import Source
from ciel.skywriting.syntax import lexer
from ciel.skywriting.syntax.grammar import parse
from ciel.testing.homes import BIN

EDITORS = Path(__file__).parent.parent.parent / "editors"
VSCODE = EDITORS / "vscode"
VIM = EDITORS / "vim"
OPERATOR_WORD = "div"
INNER = "__"  # what scripts are not meant to name

SAMPLE = r"""#!skywriting 2
// a comment
include "stdinout";
function f(a, b) { return a div 2.5e3 + b.len; }
/* two
lines */ x = spawn(f, ['it\'s', "a\q"]);
div = lambda n: !n && true;
values = values({"k": null});
for (k, v in env) { x += *print(k) }
y = (a)div b;
"""

Span = tuple[int, str, str]
"""A line (from 1), a text in it, and the kind of that text."""


def built_ins() -> set[str]:
    return {name for name in prelude.names(1) if not name.startswith(INNER)}


# --- VS Code --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grammar() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VSCODE / "syntaxes/skywriting.tmLanguage.json").read_text())
    return found


class Colours(NamedTuple):
    """Applies the parts of a TextMate grammar that ours uses.

    It reads a line at a time. Of all patterns that match in the line, the earliest match wins.
    """

    grammar: dict[str, Any]

    def patterns(self, rules: list[Any]) -> Iterator[dict[str, Any]]:
        for rule in rules:
            if "include" in rule:
                inner = self.grammar["repository"][rule["include"].removeprefix("#")]
                yield from self.patterns(inner["patterns"])
            else:
                yield rule

    def read(self, text: str) -> Iterator[tuple[int, str, str]]:
        """Yield line, text and scope of everything that has one."""
        inside: list[dict[str, Any]] = []
        for number, line in enumerate(text.splitlines(), 1):
            position = 0
            while position <= len(line):
                rules = list(
                    self.patterns((inside[-1] if inside else self.grammar).get("patterns", []))
                )
                if inside:
                    rules.insert(
                        0, {"match": inside[-1]["end"], "name": inside[-1]["name"], "is_end": True}
                    )
                found = [
                    (match.start(), order, match, rule)
                    for order, rule in enumerate(rules)
                    if (match := self.pattern(rule, number).search(line, position))
                ]
                if not found:
                    break
                start, _, match, rule = min(found, key=lambda one: one[:2])
                if inside and start > position:
                    yield number, line[position:start], inside[-1]["name"]
                for group, capture in rule.get("captures", {}).items():
                    yield number, match[int(group)], capture["name"]
                if "name" in rule:
                    yield number, match[0].strip(), rule["name"]
                if rule.get("is_end"):
                    inside.pop()
                elif "begin" in rule:
                    inside.append(rule)
                position = match.end() if match.end() > position else position + 1

    def pattern(self, rule: dict[str, Any], number: int) -> re.Pattern[str]:
        text = rule.get("match") or rule["begin"]
        return re.compile(text if number == 1 else text.replace(r"\A", "(?!)"))


def test_vscode_colours_a_script_as_it_is_read(grammar: dict[str, Any]) -> None:
    found = {
        (line, text, scope.removesuffix(".skywriting"))
        for line, text, scope in Colours(grammar).read(SAMPLE)
    }
    expected = {
        (1, "#!skywriting 2", "comment.line.shebang"),
        (2, "// a comment", "comment.line.double-slash"),
        (3, "include", "keyword.control"),
        (3, "stdinout", "string.quoted.double"),
        (4, "function", "storage.type.function"),
        (4, "f", "entity.name.function"),
        (4, "return", "keyword.control"),
        (4, "div", "keyword.operator.word"),
        (4, "2.5e3", "constant.numeric"),
        (4, "len", "variable.other.property"),
        (6, "*/", "comment.block"),
        (6, "spawn", "support.function"),
        (6, "f", "variable.other"),
        (6, r"\'", "constant.character.escape"),
        (6, r"\q", "invalid.illegal.escape"),
        (6, "it", "string.quoted.single"),
        (7, "div", "variable.other"),
        (7, "lambda", "storage.type.function"),
        (7, "!", "keyword.operator.logical"),
        (7, "&&", "keyword.operator.logical"),
        (7, "true", "constant.language"),
        (8, "values", "variable.other"),
        (8, "values", "support.function.modern"),
        (8, "null", "constant.language"),
        (9, "in", "keyword.control"),
        (9, "env", "variable.language"),
        (9, "+=", "keyword.operator.assignment"),
        (9, "print", "support.function"),
        (10, "div", "keyword.operator.word"),
    }
    assert expected - found == set()
    assert not [each for each in found if each[0] in (5, 7) and each[2].startswith("support")]


def words(grammar: dict[str, Any], scope: str) -> set[str]:
    """All words that patterns of a scope list."""
    found: set[str] = set()
    for rule in grammar["repository"]["names"]["patterns"]:
        if rule.get("name", "").startswith(scope):
            found.update(re.findall(r"\w+", re.sub(r"\\[bs]|\?[:=]", " ", rule["match"])))
    return found


def test_vscode_knows_the_words_of_the_language(grammar: dict[str, Any]) -> None:
    keywords = words(grammar, "keyword.control") | words(grammar, "storage.type")
    constants = words(grammar, "constant.language")
    assert keywords | constants - {"null"} == set(lexer.KEYWORDS)
    functions = words(grammar, "support.function")
    assert functions | {"null"} == built_ins()
    patterns = {
        rule.get("name"): rule["match"] for rule in grammar["repository"]["names"]["patterns"]
    }
    always = set(re.findall(r"\w+", patterns["support.function.skywriting"].replace(r"\b", " ")))
    assert always == {name for name in ORIGINAL if not name.startswith(INNER)}


def test_vscode_finds_the_files_of_its_extension() -> None:
    package = json.loads((VSCODE / "package.json").read_text())
    contributed = package["contributes"]
    files = [each["path"] for kind in ("grammars", "snippets") for each in contributed[kind]]
    files += [each["configuration"] for each in contributed["languages"]]
    for file in files:
        json.loads((VSCODE / file).read_text())
    assert {each["language"] for each in contributed["grammars"]} == {"skywriting"}
    assert re.match(contributed["languages"][0]["firstLine"], "#!/usr/bin/env sw-job")


def test_vscode_snippets_are_scripts() -> None:
    snippets = json.loads((VSCODE / "snippets/skywriting.json").read_text())
    for name, snippet in snippets.items():
        text = "\n".join(snippet["body"])
        text = re.sub(r"\$\{\d:([^}]*)\}", r"\1", text)
        parse(Source(name, re.sub(r"\$\d", "x;", text)))


def check(path: Path) -> str:
    """What `ciel sw check` says of a script with an error in its second line."""
    path.write_text("x = 1;\ny = x[0;\n")
    done = subprocess.run(
        [BIN / "ciel", "sw", "check", path], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1, done.stderr
    return done.stdout


def test_vscode_reads_what_the_check_says(tmp_path: Path) -> None:
    path = tmp_path / "a.sw"
    package = json.loads((VSCODE / "package.json").read_text())
    first, second = package["contributes"]["problemMatchers"][0]["pattern"]
    told = check(path).splitlines()
    what = re.match(first["regexp"], told[0])
    place = re.match(second["regexp"], told[1])
    assert what is not None
    assert what[first["severity"]] == "error"
    assert place is not None
    assert (place[second["file"]], place[second["line"]]) == (str(path), "2")
    assert place[second["column"]] == "8"
    assert sum(bool(re.match(first["regexp"], line)) for line in told) == 1


# --- Vim ------------------------------------------------------------------------------------------


def vim_words(*groups: str) -> set[str]:
    text = (VIM / "syntax/skywriting.vim").read_text()
    return {
        word
        for group in groups
        for line in re.findall(rf"^syntax keyword skywriting{group} (.*)$", text, re.MULTILINE)
        for word in line.split()
    }


def test_vim_knows_the_words_of_the_language() -> None:
    keywords = vim_words("Conditional", "Repeat", "Statement", "Include", "Keyword", "Boolean")
    assert keywords == set(lexer.KEYWORDS)
    assert vim_words("Builtin") == {name for name in ORIGINAL if not name.startswith(INNER)}
    modern = re.search(
        r"skywritingModern \"\\<\\%\((.*?)\\\)", (VIM / "syntax/skywriting.vim").read_text()
    )
    assert modern is not None
    assert vim_words("Builtin", "Constant") | set(modern[1].split(r"\|")) == built_ins()


def run_vim(path: Path, *commands: str) -> str:
    """Edit a file with nothing but our folder, and return what the commands echo."""
    if shutil.which("vim") is None:
        pytest.skip("no vim (Debian: vim)")
    done = subprocess.run(
        ["vim", "-N", "-u", "NONE", "-i", "NONE", "-n", "-es", "--cmd", f"set rtp^={VIM}",
         "--cmd", "filetype plugin indent on | syntax on", str(path),
         "-c", "redir! > /dev/stdout", *(f"-c{command}" for command in commands), "-c", "qa!"],
        capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return done.stdout


def test_vim_colours_a_script_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sample.sw"
    path.write_text(SAMPLE)
    expected = [
        (1, "#!skywriting", "Shebang"), (2, "comment", "Comment"), (3, "include", "Include"),
        (3, "stdinout", "String"), (4, "function", "Keyword"), (4, "f(", "Name"),
        (4, "return", "Statement"), (4, "div", "WordOperator"), (4, "2.5e3", "Number"),
        (5, "two", "Comment"), (6, "lines", "Comment"), (6, "spawn", "Builtin"),
        (6, r"\'", "Escape"), (6, r"\q", "BadEscape"), (6, "s'", "String"), (7, "div", ""),
        (7, "lambda", "Keyword"), (7, "!", "Operator"), (7, "true", "Boolean"), (8, "values ", ""),
        (8, "values(", "Modern"), (8, "null", "Constant"), (9, "in env", "Repeat"),
        (9, "env", "Variable"), (9, "print", "Builtin"), (10, "div", "WordOperator"),
    ]  # fmt: skip
    lines = SAMPLE.splitlines()
    asked = [
        f"echo synIDattr(synID({line}, {lines[line - 1].index(text) + 1}, 1), 'name')"
        for line, text, _ in expected
    ]
    script = tmp_path / "ask.vim"
    script.write_text("\n".join(asked))
    told = run_vim(path, f"source {script}").splitlines()[1:]
    assert [
        (line, text, name.removeprefix("skywriting"))
        for (line, text, _), name in zip(expected, told, strict=True)
    ] == expected


TIDY = """\
function f(a) {
    if (a > 1) {
        return [
            1,
            "} // {",
        ];
    } else {
        x = g({
            "k": 1,
        });
    }
    return a; // {
}
y = 1;
"""


def test_vim_indents_as_the_printer_does(tmp_path: Path) -> None:
    path = tmp_path / "flat.sw"
    path.write_text("\n".join(line.strip() for line in TIDY.splitlines()) + "\n")
    run_vim(path, "normal gg=G", "w")
    assert path.read_text() == TIDY


def test_vim_goes_to_what_the_check_says(tmp_path: Path) -> None:
    path, told = tmp_path / "a.sw", tmp_path / "told"
    told.write_text(check(path))
    shown = run_vim(
        path, f"cgetfile {told}",
        "echo map(filter(getqflist(), 'v:val.valid'), "
        "'[bufname(v:val.bufnr), v:val.lnum, v:val.col, v:val.type]')",
    )  # fmt: skip
    assert f"[['{path}', 2, 8, 'E']]" in shown
