"""Writes the graph of a job in DOT, the language of Graphviz.

The graph contains every task, and every object that a task reads. Pure. It writes tasks one by one,
so that memory does not grow with the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ciel.cli.graph.tasks import GraphObject, TaskNode
from ciel.cli.output.tables import size_text
from ciel.execution.report import visible, visible_text

_LOOKS: Final = {
    "done": 'color="#2f8f4e"',
    "failed": 'color="#b42318", penwidth=2.4, peripheries=2',
    "assigned": 'color="#0b62d0", penwidth=1.8',
    "runnable": 'color="#5b9bf0"',
    "waiting": 'color="#c58a00", style="rounded,dashed"',
    "dormant": 'color="#a3acb6", style="rounded,dotted"',
    "cancelled": 'color="#4a525b", style="rounded,diagonals"',
}


def draw_dot(title: str, tasks: Iterable[TaskNode]) -> Iterator[str]:
    """Yield a digraph in parts."""
    yield f"digraph {_quoted(visible(title))} {{\n"
    yield f"  label={_quoted(visible(title))}; labelloc=t;\n"
    yield '  graph [fontname="sans-serif"]; edge [fontname="sans-serif", fontsize=9];\n'
    yield '  node [shape=box, style=rounded, fontname="sans-serif", fontsize=11];\n'
    for task in tasks:
        yield from _task(task)
    yield "}\n"


def _task(task: TaskNode) -> Iterator[str]:
    node = _quoted(task.id)
    again = f", attempt {task.attempt}" if task.attempt > 1 else ""
    label = f"{visible(task.label)}\n{task.state}, {visible(task.executor)}{again}"
    about = visible_text("\n".join([task.id, *task.why, *task.story]))
    yield f"  {node} [label={_quoted(label)}, tooltip={_quoted(about)}, {_LOOKS[task.state]}];\n"
    if task.parent is not None:
        verb = "delegates" if task.takes_over else "spawns"
        look = f'style={"bold" if task.takes_over else "dotted"}, color="#8250df"'
        yield f"  {_quoted(task.parent)} -> {node} [{look}, label={verb}];\n"
    for item in task.inputs:
        size = "" if item.size_bytes is None else size_text(item.size_bytes)
        yield (
            f"  {_source(item)} -> {node} [label={_quoted(size)}, "
            f"tooltip={_quoted(f'{item.id}: {item.state}')}];\n"
        )
        if item.maker is None:
            yield f"  {_source(item)} [shape=note, style=solid, label={_quoted(item.id)}];\n"


def _source(item: GraphObject) -> str:
    """Return the node of the task that produces an object, or of the object if no task does."""
    return _quoted(f"object {item.id}" if item.maker is None else item.maker)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
