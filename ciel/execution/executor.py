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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from ciel.core.ids import ObjectId
from ciel.core.refs import Reference
from ciel.core.tasks import Mentions, TaskSpec
from ciel.execution.environment import Caller
from ciel.storage.interface import LEVELS


class BadArgumentsError(Exception):
    """The arguments of a task are not what its executor takes; the text is for its author. If
    another `executor` is named, it is that one's arguments, which stand in those of the task.
    """

    def __init__(self, text: str, executor: str = "") -> None:
        super().__init__(text)
        self.executor = executor


class InputPath(NamedTuple):
    """Stands for the path of an input, in a command line; `executable`: it is to be run, or loaded
    as a library.
    """

    object_id: ObjectId
    executable: bool = False


class OutputPath(NamedTuple):
    """Stands for the path of an output that a program writes itself; the file is there, empty."""

    number: int


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run, with a fresh scratch directory.

    `stdin`: inputs, concatenated in order (none: empty). `stdout`: the number of the output that it
    becomes; None: it goes where standard error goes. `files`: inputs to lie in the scratch
    directory, by relative name. `lists`: variables that name a text file with one path a line.
    `streams`: its outputs may be read while it writes them. `whole`: inputs that are still being
    made are waited for, not fed while they grow. `store`: where its outputs are to begin, of
    `storage.interface.LEVELS`; nothing: where that store begins them.

    `names`: texts and paths that are its standard input instead, each ended by a NUL. `preferred`:
    inputs that are better read where it runs than anywhere else, once it has. `delay_s`: how long
    waits before its start. `chunk_bytes`: what grows is fed in pieces of that size, but for the
    last. `traces`: it is logged when it had to wait for what grows. `parent`: the program that
    forks such programs, as `executors.programs.python_parent` does; only for those that talk.

    `cwd`: the working directory, an absolute path; "": the scratch directory. `env`: None unsets a
    variable. `executables`: those of `files` that may be executed; they are copies.
    """

    argv: tuple[str | InputPath, ...]
    stdin: tuple[ObjectId, ...] = ()
    stdout: int | None = None
    files: Mapping[str, ObjectId] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    lists: Mapping[str, tuple[InputPath | OutputPath, ...]] = field(default_factory=dict)
    streams: bool = False
    whole: bool = False
    store: str = ""
    names: tuple[str | InputPath | OutputPath, ...] = ()
    preferred: tuple[ObjectId, ...] = ()
    delay_s: float = 0.0
    chunk_bytes: int = 1
    traces: bool = False
    parent: Program | None = None
    cwd: str = ""
    executables: frozenset[str] = frozenset()


class ProgramExit(NamedTuple):
    """How a program ended: its exit status, or the signal that ended it."""

    status: int | None
    signal_number: int | None
    run_s: float
    stderr_tail: str

    def describe(self) -> str:
        """Say it in words, with the signal's name."""
        if self.signal_number is None:
            return f"ended with exit status {self.status}{_in_shells(self.status or 0)}"
        try:
            name = signal.Signals(self.signal_number).name
        except ValueError:
            name = f"signal {self.signal_number}"
        return f"was killed by {name}"


def _in_shells(status: int) -> str:
    """Say what an exit status means that a shell has made of a signal."""
    try:
        return f" (in a shell: {signal.Signals(status - 128).name})" if status > 128 else ""
    except ValueError:
        return ""


class Child(NamedTuple):
    """A task that the task creates, and those of its inputs that are no futures."""

    spec: TaskSpec
    known: tuple[Reference, ...]


class ChildForm(NamedTuple):
    """What a spawn asks for, as the child's executor understands it. `as_list`: its maker is
    answered with a list of references even if there is one. `any_of`: references, which stand in
    the arguments, too, of which one is enough for it to run; it is given the others as futures.
    """

    arguments: dict[str, Any]
    n_outputs: int
    memoise: bool
    as_list: bool
    sees_errors: bool = False
    any_of: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Run a program."""

    program: Program


class Talk(NamedTuple):
    """Have a program talk with this executor: it gets the names of two FIFOs as its last arguments,
    then `start_task` with `arguments`. A program that is kept warm serves every task of the same
    `kind`; one that waits in the middle of a task (`fixed`) is gone on with instead. Its `files`
    are copies, as it outlives its task.
    """

    program: Program
    arguments: Mapping[str, Any]
    kind: str
    fixed: ObjectId | None = None
    encoded: bytes | None = None
    """The arguments as JSON, where there are such already."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The task is done: contents of outputs by number (others were made by its program), and its
    children.
    """

    contents: Mapping[int, bytes] = field(default_factory=dict)
    children: tuple[Child, ...] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """The task has failed: a word for programs, text for people (see `refs.Failure`)."""

    reason: str
    details: Any


Action = Run | Talk | Finish | Fail


class Task(NamedTuple):
    """A task as its executor sees it: its spec, its decoded arguments, its inputs as they are known
    now.

    `executors` are all there are on this worker, for the children of the task. `may_run_children`:
    its program may run some of these within itself, in no slot of their own. `attempt`: the number
    of this attempt, 0 for a child that its parent's worker began. `caller`: the directory and the
    environment that programs of its job take over from the client; None: none.
    """

    spec: TaskSpec
    arguments: dict[str, Any]
    inputs: Mapping[ObjectId, Reference]
    executors: Mapping[str, Executor]
    may_run_children: bool = False
    attempt: int = 1
    caller: Caller | None = None


OUTPUTS_MAX = 10_000


def store_level(value: Any) -> str:
    """Return where outputs are to begin; raises BadArgumentsError."""
    if value not in ("", None, *LEVELS):
        words = " or ".join(map(repr, LEVELS))
        raise BadArgumentsError(f"'store' must be {words}, not {value!r:.40}")
    return value or ""


def output_count(value: Any, least: int = 1) -> int:
    """Return a number of outputs that a spawn names; raises BadArgumentsError."""
    if type(value) is not int or not least <= value <= OUTPUTS_MAX:
        raise BadArgumentsError(
            f"the number of outputs must be {least} to {OUTPUTS_MAX}, not {value!r:.40}"
        )
    return value


def mentions_of(executors: Mapping[str, Executor], name: str) -> Mentions:
    """Say what the outputs of an executor's tasks may name; of an unknown one, anything."""
    known = executors.get(name)
    return Mentions.ANYTHING if known is None else known.mentions


def simple_form(executor: str, keywords: dict[str, Any]) -> ChildForm:
    """Return the form of a child as most executors have it (ciel-interfaces, 1.8): `args` is an
    object, of which `n_outputs` outputs are made, named by what is asked for, so that it is done
    once. What stands in `args` may also be given directly, as packages do.
    """
    args = keywords.get("args")
    if args is None:
        args = {key: value for key, value in keywords.items() if key not in ("args", "n_outputs")}
    if not isinstance(args, dict):
        raise BadArgumentsError(f"{executor} needs an object 'args'")
    n_outputs = output_count(keywords.get("n_outputs", 1))
    arguments = {"args": args} if n_outputs == 1 else {"args": args, "n_outputs": n_outputs}
    return ChildForm(arguments, n_outputs, memoise=True, as_list=True)


class Executor(ABC):
    """One kind of task."""

    name: str
    mentions: ClassVar[Mentions] = Mentions.ANYTHING
    talks: ClassVar[bool] = False
    """Its `begin` answers with `Talk`, and it is a `conversation.ConversingExecutor`, too."""
    wants_package: ClassVar[bool] = False
    """Its tasks may look things up in the package of their job: they get its `package_ref`."""

    def missing(self, environ: Mapping[str, str]) -> str:
        """Say in a sentence what this host lacks to run its tasks, and what to do about it; nothing
        if it can. Asked once, before any task, by a worker with its own environment; the only place
        in which an executor may look at the host, and keep what it finds.
        """
        return ""

    @abstractmethod
    def begin(self, task: Task) -> Action:
        """Say what is to be done; raises BadArgumentsError."""

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        """Say what is to be made of the keywords of a spawn; raises BadArgumentsError.

        By default as `simple_form` does.
        """
        return simple_form(self.name, keywords)

    def ended(self, task: Task, program_exit: ProgramExit) -> Action:
        """Say what became of the task whose program has ended: by default only exit status 0 is
        success.
        """
        if program_exit.status == 0:
            return Finish()
        return Fail("RUNTIME_EXCEPTION", program_exit.describe())
