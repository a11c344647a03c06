"""The content of a job file as values: tasks, arrays of them, and the tasks that they follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ciel.cli.submission.elements import Element
from ciel.core.tasks import Needs

SAME_NUMBER: Final = "{#}"
"""As the element of a `Source`: the one with the number of the element that names it."""


class Source(NamedTuple):
    """Runs of another task: `element` is the number of one, `SAME_NUMBER`, or "" for all."""

    task: str
    element: str

    def __str__(self) -> str:
        return f"{self.task}:{self.element}" if self.element else self.task


class Task(NamedTuple):
    """A task of a job file: one run, or one for each element.

    `after`: what ends before it starts; `stdin`: whose outputs it reads from standard input, in
    this order; `inputs`: whose output it finds in a file, by the name of the file; `files`: files
    of the client that it finds, by name. `out`: the file that gets its output, "" for none. `cwd`:
    "" for a private directory, None for the directory of the job. `line`: its line in the job file.
    """

    name: str
    command: Sequence[str]
    elements: Sequence[Element]
    is_array: bool
    after: Sequence[Source]
    stdin: Sequence[Source]
    inputs: Mapping[str, Source]
    files: Mapping[str, str]
    out: str
    needs: Needs
    env: Mapping[str, str]
    cwd: str | None
    line: int

    @property
    def sources(self) -> list[Source]:
        """All runs of other tasks that it needs."""
        return [*self.after, *self.stdin, *self.inputs.values()]


class JobFile(NamedTuple):
    """A checked job file; each of its `tasks` stands after the tasks that it needs.

    `max_fails`: the job ends when more runs have failed; -1 for never.
    """

    name: str
    tasks: Sequence[Task]
    max_fails: int
    keep: bool
    cwd: str | None
    env: Mapping[str, str]

    @property
    def run_count(self) -> int:
        """The number of runs of all tasks."""
        return sum(len(task.elements) for task in self.tasks)


class Fault(NamedTuple):
    """An error in a job file."""

    line: int
    text: str
