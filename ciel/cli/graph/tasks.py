"""Reads the tasks of a job, and the objects that they read and write, from the master."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from sys import intern
from typing import Any, NamedTuple

from ciel.client.client import Client


class GraphObject(NamedTuple):
    """An object of a graph.

    `state` is `there` (stored), `growing`, `failed`, `expected`, or `gone` (deleted because nothing
    needed it). `maker`: the task that produces it. `wanted`: it is a result of the job.
    """

    id: str
    state: str
    size_bytes: int | None
    maker: str | None
    wanted: bool


class TaskNode(NamedTuple):
    """A task with its inputs and outputs.

    `attempt`: the number of its latest attempt. `at`: the location of its first output, if there
    is exactly one. `takes_over`: outputs that its parent delegated to it. `why`: the reasons for
    its failure. `story`: the events of its attempts. The last two are lines of text.
    """

    number: int
    name: str
    id: str
    state: str
    executor: str
    parent: str | None
    attempt: int
    worker: str | None
    at: str | None
    inputs: tuple[GraphObject, ...]
    outputs: tuple[GraphObject, ...]
    takes_over: tuple[str, ...]
    why: tuple[str, ...]
    story: tuple[str, ...]

    @property
    def label(self) -> str:
        return self.name or f"{self.executor} {self.id.removeprefix('root:')[:8]}"


def read_tasks(client: Client, job_id: str) -> Iterator[TaskNode]:
    """Yield the tasks of a job in the order of their creation; fetches them page by page."""
    makers: dict[str, list[str]] = {}  # by object: the tasks read so far that declare it as output
    for row in _rows(client, job_id):
        takes_over = []
        for object_id, *_ in row["outputs"]:
            before = makers.setdefault(object_id, [])
            if row["parent"] in before:
                takes_over.append(object_id)
            before.append(row["task"])
        yield _read_task(row, takes_over)


def _rows(client: Client, job_id: str) -> Iterator[dict[str, Any]]:
    """Yield the master's row of each task; joins the parts of a row that spans several pages."""
    whole: dict[str, Any] | None = None
    first = None
    while True:
        page = client.ask("graph", {"job": job_id, "first": first})
        for row in page["tasks"]:
            if whole is not None and whole["task"] == row["task"]:
                row["inputs"] = whole["inputs"] + row["inputs"]
                row["outputs"] = whole["outputs"] + row["outputs"]
            elif whole is not None:
                yield whole
            whole = row
        first = page["next"]
        if first is None:
            break
    if whole is not None:
        yield whole


def _read_task(row: dict[str, Any], takes_over: Iterable[str]) -> TaskNode:
    """Read a row of the master's answer; equal strings of different tasks share their memory."""
    return TaskNode(
        row["number"], row["name"], intern(row["task"]), intern(row["state"]),
        intern(row["executor"]), row["parent"] and intern(row["parent"]), row["attempt"],
        row["worker"] and intern(row["worker"]), row["at"] and intern(row["at"]),
        tuple([_read_object(fields) for fields in row["inputs"]]),
        tuple([_read_object(fields) for fields in row["outputs"]]),
        tuple(takes_over), tuple(row["why"]), tuple(row["story"]),
    )  # fmt: skip


def _read_object(fields: list[Any]) -> GraphObject:
    object_id, state, size_bytes, maker, wanted = fields
    return GraphObject(
        intern(object_id), intern(state), size_bytes, maker and intern(maker), wanted
    )
