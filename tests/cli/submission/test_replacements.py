import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciel.cli.submission.elements import Element, Template, substitute
from ciel.cli.submission.replacements import expand, replace
from ciel_tests.installed.languages import is_there

needs_parallel = pytest.mark.skipif(not is_there("parallel"), reason="parallel: missing")
STRINGS = ["{}", "{.}", "{/}", "{//}", "{/.}", "{#}", "a{}b{.}c", "{{}}", "{..}", "{ }", "{///}"]
NAMES = [
    "a.txt", "a.tar.gz", "d/e.f/g", "d.e/f", "/", "//", "///a", "a/", "a//b", "a//b//", "./a.b/",
    ".profile", "d/.profile", "..", "../..", "a.", "a..b", " ", " a . b ", "-n", "'", '"$x"', "*",
    "\\", "a\\n.b", "d/new\nline.txt", "new\nline", "\n", "a.\n", "{}", "{.}", "é.ü", "\t.\t",
]  # fmt: skip
names = st.text(st.sampled_from("ab./ -\n'\"$\\é*{}"), min_size=1, max_size=8)


def theirs(options: list[str], words: list[str], items: list[str]) -> list[str]:
    """Return the arguments that GNU parallel passes to a program, one list for all runs."""
    content = b"".join([item.encode() + b"\0" for item in items])
    argv = ["parallel", "-0", "-k", "-q", "-j1", *options, "printf", "%s\\0", *words]
    result = subprocess.run(argv, input=content, capture_output=True, check=True)
    return result.stdout.decode().split("\0")[:-1]


def ours(words: list[str], items: list[str]) -> list[str]:
    template = Template(["printf", *words])
    runs = [template.fill(Element(n, item))[0][1:] for n, item in enumerate(items, 1)]
    return [word for words in runs for word in words]


def is_comparable(name: str) -> bool:
    """A newline before a slash: parallel takes what follows the slash on each line for itself."""
    return "\n" not in name.rpartition("/")[0]


@needs_parallel
def test_replacement_strings_mean_what_they_mean_in_gnu_parallel() -> None:
    assert ours(STRINGS, NAMES) == theirs([], STRINGS, NAMES)


@needs_parallel
@settings(max_examples=3, deadline=None)
@given(st.lists(names.filter(is_comparable), min_size=10, max_size=20))
def test_odd_names_are_edited_as_in_gnu_parallel(items: list[str]) -> None:
    assert ours(STRINGS, items) == theirs([], STRINGS, items)


@needs_parallel
def test_values_of_a_line_are_named_as_in_gnu_parallel() -> None:
    words = [
        "{1}",
        "{2}",
        "{2.}",
        "{2/}",
        "{2//}",
        "{2/.}",
        "{-1}",
        "{-1/.}",
        "{3}",
        "{}",
        "x{.}y{2}{/}",
    ]
    lines = ["a,d/b.txt", "c.d/e,f"]
    found = []
    for number, line in enumerate(lines, 1):
        element = Element(number, line, None, tuple(line.split(",")))
        found += Template(["p", *words]).fill(element)[0][1:]
    assert found == theirs(["--colsep", ","], words, lines)


def test_a_name_with_a_newline_in_its_directory_has_the_right_parts() -> None:
    assert [replace(place, 1, "d\ne/f.g", ()) for place in ("{/}", "{//}", "{.}", "{/.}")] == [
        "f.g", "d\ne", "d\ne/f", "f",
    ]  # fmt: skip


def test_numbered_strings_stay_as_they_are_without_several_values() -> None:
    assert substitute("x{2} {1/}", Element(1, "a")) == "x{2} {1/}"
    assert substitute("{0}{1}{-3}{3}", Element(1, "a b", None, ("a", "b"))) == "{0}a"


def test_a_string_without_a_number_stands_for_all_values() -> None:
    values = ("a.x", "b.y")
    assert expand("<{.}>", 1, "a.x b.y", values) == ["<a", "b>"]
    assert expand("{#}{2}", 7, "a.x b.y", values) == ["7b.y"]
    assert expand("{1}{}", 7, "a.x b.y", values) == ["a.xa.x", "b.y"]


@given(st.text(), st.sampled_from(["{}", "{.}", "{/}", "{//}", "{/.}"]))
def test_what_an_element_brings_is_not_replaced_again(text: str, place: str) -> None:
    assert replace(f"<{place}>", 1, text, ()) == f"<{replace(place, 1, text, ())}>"
    assert replace("{1}{2}", 1, "", ("{2}", text)) == f"{{2}}{text}"
