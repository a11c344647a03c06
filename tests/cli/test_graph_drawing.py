"""A graph as SVG and as DOT: what stands in them, and that nothing in a name can break them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.cli.graph_dot import draw_dot
from ciel.cli.graph_drawing import Heading, columns, draw_svg, shorten
from ciel.cli.graph_outline import Box, Kind, Outline, Port, Task, Thing
from ciel.cli.graph_style import SHAPES, STYLE
from ciel.core.tasks import TaskState

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>\"'&amp;\x00\x1b[31m\ud800\u202e\n]]>\\"


def thing(object_id: str, maker: str | None, wanted: bool = False) -> Thing:
    return Thing(object_id, "there", 2048, maker, wanted)


def task(
    name: str, *inputs: Thing, parent: str | None = None, state: str = "done", wanted: bool = False,
    takes_over: tuple[str, ...] = (),
) -> Task:  # fmt: skip
    output = thing(takes_over[0] if takes_over else f"{name}:0", name, wanted)
    return Task(
        1, name, name, state, "proc", parent, 1, None, None, inputs, (output,), takes_over, (), ()
    )  # fmt: skip


SMALL = [
    task("root", thing("data", None)),
    task("look", parent="root"),
    task("join", thing("look:0", "look"), parent="root", takes_over=("root:0",), wanted=True),
]


def boxes(tasks: Iterable[Task]) -> list[Box]:
    outline = Outline()
    for each in tasks:
        outline.add(each)
    return outline.boxes(100, 100)


def drawn(found: Iterable[Box], title: str = "job 1") -> ElementTree.Element:
    return ElementTree.fromstring("".join(draw_svg(Heading(title, "done"), list(found))))


def texts(tree: ElementTree.Element, tag: str = "text") -> list[str]:
    return [element.text or "" for element in tree.iter(f"{SVG}{tag}")]


# --- SVG ------------------------------------------------------------------------------------------


def outlined(tree: ElementTree.Element) -> list[str]:
    """Tell what is drawn, in order: boxes and texts with their places, and lines."""
    lines = []
    for element in tree.iter():
        tag, style = element.tag.removeprefix(SVG), element.get("class", "")
        x, y = element.get("x"), element.get("y")
        if tag == "text":
            lines.append(f"{x} {y} {element.text}")
        elif tag == "rect" and style == "card":
            lines.append(f"box {x} {y} {element.get('width')} {element.get('height')}")
        elif style.startswith("line"):
            lines.append(f"{style} {element.get('d')}")
    return lines


def test_a_small_graph() -> None:
    tree = drawn(boxes(SMALL))
    assert (tree.tag, tree.get("viewBox")) == (f"{SVG}svg", "0 0 814 593")
    assert outlined(tree) == [
        "36 50 job 1",
        "36 72 done",
        "60 98 done",
        "128.4 98 given",
        "line M179.4 94h40",
        "227.4 98 is read by",
        "line spawn M311.4 94h40",
        "359.4 98 created",
        "line delegate M423.6 94h40",
        "471.6 98 handed outputs over to",
        "652.8 98 a result of the job",
        "line spawn M393 316V372",
        "line delegate M458 316C458 344 452 345 452 373V435C452 464 431 465 431 494",
        "line M390 435V494",
        "line M430 202V253",
        "box 339 254 157 62",
        "375 274 root",
        "375 291 done · proc",
        "393 306 spawns",
        "458 306 delegates",
        "box 317 373 119 62",
        "353 393 look",
        "353 410 done · proc",
        "390 425 2.0 KiB",
        "box 326 495 119 62",
        "362 515 join",
        "362 532 done · proc",
        "398 547 2.0 KiB",
        "box 341 140 152 62",
        "377 160 object data",
        "377 177 given to the job",
        "430 192 2.0 KiB",
    ]


def test_every_state_has_a_shape_and_colours_in_light_and_dark() -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme:dark)")
    assert set(SHAPES) == {*map(str, TaskState), "given"}
    assert len({SHAPES[state] for state in SHAPES}) == len(SHAPES) - 1  # one shape, full and hollow
    for state in map(str, TaskState):
        assert f".{state} .band" in light
        assert f".{state} .band" in dark


@pytest.mark.parametrize("state", [str(state) for state in TaskState])
def test_a_state_is_said_in_words_too(state: str) -> None:
    tree = drawn(boxes([task("t", state=state)]))
    assert [element.get("class") for element in tree.iter(f"{SVG}g")].count(state) == 2
    assert texts(tree)[2:] == [state, "t", f"{state} · proc"]


def test_only_what_is_there_stands_in_the_legend() -> None:
    assert texts(drawn(boxes([task("t")])))[2] == "done"
    legend = texts(drawn(boxes(SMALL)))[2:8]
    assert legend == [
        "done", "given", "is read by", "created", "handed outputs over to", "a result of the job"
    ]  # fmt: skip


def test_whatever_a_name_holds_is_text() -> None:
    tree = drawn([Box(HOSTILE, HOSTILE, {"done": 1}, (), HOSTILE)], HOSTILE)
    assert [element for element in tree.iter() if "script" in element.tag] == []
    about = texts(tree, "title")[1]
    assert about.startswith("</text><script>alert(1)</script>\"'&amp;\\x00\\x1b[31m\\ud800\\u202e")
    assert any(text.startswith("</text><script>") for text in texts(tree))


@given(st.text())
def test_any_text_makes_a_document(text: str) -> None:
    port = Port(Kind.OBJECT, text, True, (), text)
    drawn([Box(text, text, {"done": 1}, (port,), text)], text)


def test_a_box_tells_all_of_its_task_when_it_is_pointed_at() -> None:
    story = task("t")._replace(story=("1.0 s ago: attempt 1 failed on w1: <why>",))
    assert "1.0 s ago: attempt 1 failed on w1: <why>" in texts(drawn(boxes([story])), "title")[1]


def test_lines_begin_and_end_at_their_boxes() -> None:
    tree = drawn(boxes(SMALL))
    bottoms, tops = set(), set()
    for element in tree.iter(f"{SVG}rect"):
        if element.get("class") == "card":
            tops.add(int(element.get("y", "")))
            bottoms.add(int(element.get("y", "")) + int(element.get("height", "")))
    lines = [e for e in tree.iter() if e.get("class", "").startswith("line")]
    for line in lines[3:]:  # behind those of the legend
        numbers = [int(number) for number in re.findall(r"\d+", line.get("d", ""))]
        assert numbers[1] in bottoms
        assert numbers[-1] + 1 in tops


def test_a_graph_without_tasks_is_a_page_that_says_so() -> None:
    assert texts(drawn([])) == ["job 1", "done"]


def test_long_texts_keep_their_beginning_and_their_end() -> None:
    assert shorten("a" * 20 + "z" * 20, 20) == "aaaaaaaaaaaaa…zzzzzz"
    assert shorten("short", 20) == "short"
    wide = shorten("\u6f22" * 20, 20)
    assert columns(wide) <= 20
    assert wide.count("\u6f22") >= 8
    assert columns("e\u0301\u6f22") == 3


# --- DOT ------------------------------------------------------------------------------------------

TOKEN = re.compile(
    r'\s*("(?:[^"\\]|\\.)*"|->|[A-Za-z_][A-Za-z_0-9]*|-?[0-9.]+|[{}\[\];,=])', re.DOTALL
)


def statements(text: str) -> list[list[str]]:
    """Take a digraph to its statements; AssertionError where it breaks the grammar of DOT."""
    tokens, at = [], 0
    while text[at:].strip():
        match = TOKEN.match(text, at)
        assert match, text[at : at + 80]
        tokens.append(match[1])
        at = match.end()
    assert tokens[0] == "digraph"
    assert tokens[2] == "{"
    assert tokens[-1] == "}"
    found: list[list[str]] = [[]]
    for token in tokens[3:-1]:
        if token == ";":
            found.append([])
        else:
            found[-1].append(token)
    assert found.pop() == []
    for statement in found:
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', "q", " ".join(statement))
        name = r"(?:q|\w+)"
        settings = rf"\[ {name} = [\w.]+(?: , {name} = [\w.]+)* \]"
        assert re.fullmatch(rf"{name} = {name}|{name}(?: -> {name})?(?: {settings})?", bare), bare
    return found


def test_dot_has_every_task_and_what_leads_where() -> None:
    found = statements("".join(draw_dot("job 1", SMALL)))
    edges = [(s[0], s[2], s[s.index("label") + 2]) for s in found if "->" in s]
    assert edges == [
        ('"object data"', '"root"', '"2.0 KiB"'),
        ('"root"', '"look"', "spawns"),
        ('"root"', '"join"', "delegates"),
        ('"look"', '"join"', '"2.0 KiB"'),
    ]
    nodes = [s[0] for s in found if s[1] == "[" and s[0].startswith('"')]
    assert nodes == ['"root"', '"object data"', '"look"', '"join"']


@given(st.text())
def test_dot_takes_any_name(name: str) -> None:
    named = [each._replace(name=name, executor=name, why=(name,)) for each in SMALL]
    statements("".join(draw_dot(name, named)))


@pytest.mark.parametrize("state", [str(state) for state in TaskState])
def test_dot_tells_the_state(state: str) -> None:
    text = "".join(draw_dot("job", [task("t", state=state)]))
    assert f'label="t\\n{state}, proc"' in text
    statements(text)
