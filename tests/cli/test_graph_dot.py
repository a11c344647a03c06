"""A graph as DOT: what stands in it, and that nothing in a name can break it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.cli.graph.dot import draw_dot
from ciel.cli.graph.tasks import GraphObject, TaskNode
from ciel.core.tasks import TaskState


def thing(object_id: str, maker: str | None, wanted: bool = False) -> GraphObject:
    return GraphObject(object_id, "there", 2048, maker, wanted)


def task(
    name: str, *inputs: GraphObject, parent: str | None = None, state: str = "done",
    wanted: bool = False,
    takes_over: tuple[str, ...] = (),
) -> TaskNode:  # fmt: skip
    output = thing(takes_over[0] if takes_over else f"{name}:0", name, wanted)
    return TaskNode(
        1, name, name, state, "proc", parent, 1, None, None, inputs, (output,), takes_over, (), ()
    )  # fmt: skip


SMALL = [
    task("root", thing("data", None)),
    task("look", parent="root"),
    task("join", thing("look:0", "look"), parent="root", takes_over=("root:0",), wanted=True),
]

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
        ('"object data"', '"root"', '"2KiB"'),
        ('"root"', '"look"', "spawns"),
        ('"root"', '"join"', "delegates"),
        ('"look"', '"join"', '"2KiB"'),
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


def test_a_task_without_a_name_is_called_by_executor_and_id() -> None:
    text = "".join(draw_dot("job", [task("root:0123456789")._replace(name="")]))
    assert 'label="proc 01234567\\n' in text
