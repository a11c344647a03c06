"""The interface of executors: pure translators from a task to what is to be done, and from its end
to its outcome.

An executor opens no file and starts no process: it names inputs, and the worker gives them paths.
It is asked once when a task begins, and once more when the program that it asked for has ended:

    begin(task) ──▶ Finish | Fail | Run(program) ──▶ ended(task, exit) ──▶ Finish | Fail

A third-party executor is a subclass, registered under its name in the entry-point group
`ciel.executors`.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from ciel.core.ids import ObjectId
from ciel.core.refs import Reference
from ciel.core.tasks import Mentions, TaskSpec


class BadArgumentsError(Exception):
    """The arguments of a task are not what its executor takes; the text is for its author."""


class InputPath(NamedTuple):
    """Stands for the path of an input, in a command line; `executable`: it is to be run."""

    object_id: ObjectId
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run, in a fresh scratch directory.

    `stdin`: inputs, concatenated in order (none: empty). `stdout`: the number of the output that it
    becomes. `files`: inputs to lie in the scratch directory, by relative name.
    """

    argv: tuple[str | InputPath, ...]
    stdin: tuple[ObjectId, ...] = ()
    stdout: int | None = None
    files: Mapping[str, ObjectId] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


class ProgramExit(NamedTuple):
    """How a program ended: its exit status, or the signal that ended it."""

    status: int | None
    signal_number: int | None
    run_s: float
    stderr_tail: str

    def describe(self) -> str:
        """Say it in words, with the signal's name."""
        if self.signal_number is None:
            return f"ended with exit status {self.status}"
        try:
            name = signal.Signals(self.signal_number).name
        except ValueError:
            name = f"signal {self.signal_number}"
        return f"was killed by {name}"


class Child(NamedTuple):
    """A task that the task creates, and those of its inputs that are no futures."""

    spec: TaskSpec
    known: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Run a program."""

    program: Program


@dataclass(frozen=True, slots=True)
class Finish:
    """The task is done: contents of outputs by number (others were made by its program), and its
    children.
    """

    contents: Mapping[int, bytes] = field(default_factory=dict)
    children: tuple[Child, ...] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """The task has failed: a word for programs, text for people."""

    reason: str
    details: str


Action = Run | Finish | Fail


class Task(NamedTuple):
    """A task as its executor sees it: its spec, its decoded arguments, its inputs as they are known
    now.

    `mentions_of` says of an executor's name what the outputs of its tasks may name (for children).
    """

    spec: TaskSpec
    arguments: dict[str, Any]
    inputs: Mapping[ObjectId, Reference]
    mentions_of: Callable[[str], Mentions]


class Executor(ABC):
    """One kind of task."""

    name: ClassVar[str]
    mentions: ClassVar[Mentions] = Mentions.ANYTHING

    @abstractmethod
    def begin(self, task: Task) -> Action:
        """Say what is to be done; raises BadArgumentsError."""

    def ended(self, task: Task, program_exit: ProgramExit) -> Action:
        """Say what became of the task whose program has ended: by default only exit status 0 is
        success.
        """
        if program_exit.status == 0:
            return Finish()
        return Fail("RUNTIME_EXCEPTION", program_exit.describe())
