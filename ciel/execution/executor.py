"""The interface of executors, which translate tasks into actions and program exits into outcomes.

An executor opens no file and starts no process: it names inputs, and the worker provides their
paths. The worker calls it when a task starts, and again when the requested program has ended:

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
from ciel.core.offers.resources import Given
from ciel.core.refs import Reference
from ciel.core.tasks import Mentions, TaskSpec
from ciel.execution.environment import Caller
from ciel.storage.interface import LEVELS


class BadArgumentsError(Exception):
    """A task's arguments are invalid for its executor; the text is for the task's author.

    `executor`: the executor whose arguments are invalid, if they are nested in those of the task.
    """

    def __init__(self, text: str, executor: str = "") -> None:
        super().__init__(text)
        self.executor = executor


class InputPath(NamedTuple):
    """A placeholder for the path of an input in a command line.

    `executable`: the program runs the input, or loads it as a library.
    """

    object_id: ObjectId
    executable: bool = False


class OutputPath(NamedTuple):
    """A placeholder for the path of an output that a program writes itself.

    The file exists and is empty.
    """

    number: int


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run, with a new scratch directory.

    `stdin`: inputs, concatenated in order (none: empty). `stdout`: the number of the output that
    standard output becomes; None: it goes to the same place as standard error. `files`: inputs to
    place in the scratch directory, by relative name. `lists`: variables that name a text file with
    one path a line. `streams`: its outputs may be read while it writes them. `whole`: wait for
    inputs that are still being produced, instead of feeding them while they grow. `store`: the
    level of `storage.interface.LEVELS` in which its outputs start; empty: the store's default.

    `names`: texts and paths for its standard input in place of `stdin`, each ended by a NUL.
    `preferred`: inputs whose later readers should run on the same worker. `delay_s`: how long to
    wait before the start. `chunk_bytes`: growing inputs are fed in pieces of this size, except for
    the last. `traces`: log when the program had to wait for a growing input. `parent`: the program
    that forks such programs, as `executors.programs.python.fork_server` does; only for interactive
    programs.

    `cwd`: the working directory, an absolute path; "": the scratch directory. `env`: None unsets a
    variable. `executables`: the members of `files` that may be executed; they are copies.
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
        """Describe the end in words, with the signal's name."""
        if self.signal_number is None:
            return f"ended with exit status {self.status}{_in_shells(self.status or 0)}"
        try:
            name = signal.Signals(self.signal_number).name
        except ValueError:
            name = f"signal {self.signal_number}"
        return f"was killed by {name}"


def _in_shells(status: int) -> str:
    """Name the signal that a shell reports by this exit status; empty if there is none."""
    try:
        return f" (in a shell: {signal.Signals(status - 128).name})" if status > 128 else ""
    except ValueError:
        return ""


class Child(NamedTuple):
    """A child task, and the references of its inputs that are not futures."""

    spec: TaskSpec
    known: tuple[Reference, ...]


class ChildForm(NamedTuple):
    """The arguments of a spawn as the child's executor interprets them.

    `as_list`: the parent gets a list of references even if there is only one. `any_of`: references,
    also contained in the arguments, of which one must be available before the child runs; it may
    get the rest as futures. `apart`: inputs of which the child may read only parts.
    """

    arguments: dict[str, Any]
    n_outputs: int
    memoise: bool
    as_list: bool
    sees_errors: bool = False
    any_of: tuple[Reference, ...] = ()
    apart: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Run a program."""

    program: Program


class Talk(NamedTuple):
    """Run an interactive program, which holds a conversation with this executor.

    The program gets the names of two FIFOs as its last arguments, then `start_task` with
    `arguments`. A program that stays running serves every task of the same `kind`. If `fixed` is
    given, a process that is suspended in the middle of a task continues instead. The `files` of
    such programs are copies, since a program may outlive its task.
    """

    program: Program
    arguments: Mapping[str, Any]
    kind: str
    fixed: ObjectId | None = None
    encoded: bytes | None = None
    """The arguments as JSON, if they are already encoded."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The task succeeded.

    `contents`: the outputs by number, except those that its program wrote. `children`: the tasks
    that it creates.
    """

    contents: Mapping[int, bytes] = field(default_factory=dict)
    children: tuple[Child, ...] = ()


@dataclass(frozen=True, slots=True)
class Fail:
    """The task failed: a reason code for programs, and a text for people (see `refs.Failure`)."""

    reason: str
    details: Any


Action = Run | Talk | Finish | Fail


class Task(NamedTuple):
    """A task as its executor sees it.

    `inputs`: the current references of its inputs. `executors`: all executors of this worker, for
    the children of the task. `may_run_children`: its program may run children inline, which take no
    slot. `attempt`: the number of this attempt; 0 for a child that its parent's worker started.
    `taken`: the numbers of the outputs that children of an earlier attempt produce.
    `caller`: the directory and environment that programs of its job get from the client; None: the
    worker's. `given`: the indices of the resources that it has.
    """

    spec: TaskSpec
    arguments: dict[str, Any]
    inputs: Mapping[ObjectId, Reference]
    executors: Mapping[str, Executor]
    may_run_children: bool = False
    attempt: int = 1
    caller: Caller | None = None
    taken: tuple[int, ...] = ()
    given: Given = ()


OUTPUTS_MAX = 10_000


def store_level(value: Any) -> str:
    """Return the store level for outputs; raises BadArgumentsError."""
    if value not in ("", None, *LEVELS):
        words = " or ".join(map(repr, LEVELS))
        raise BadArgumentsError(f"'store' must be {words}, not {value!r:.40}")
    return value or ""


def output_count(value: Any, least: int = 1) -> int:
    """Check the number of outputs of a spawn and return it; raises BadArgumentsError."""
    if type(value) is not int or not least <= value <= OUTPUTS_MAX:
        raise BadArgumentsError(
            f"the number of outputs must be {least} to {OUTPUTS_MAX}, not {value!r:.40}"
        )
    return value


def mentions_of(executors: Mapping[str, Executor], name: str) -> Mentions:
    """Return what outputs of an executor's tasks may refer to; anything if it is unknown."""
    known = executors.get(name)
    return Mentions.ANYTHING if known is None else known.mentions


def simple_form(executor: str, keywords: dict[str, Any]) -> ChildForm:
    """Return the form of a child for most executors, as the original CIEL names it.

    `args` is an object from which the child produces `n_outputs` outputs. Their names derive from
    the arguments, so equal children run once. Members of `args` may also be given directly, as in
    packages.
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
    """Whether `begin` returns `Talk`; then it is a `conversation.ConversingExecutor`, too."""
    wants_package: ClassVar[bool] = False
    """Whether its tasks get the `package_ref` of their job, to look up entries of its package."""

    def missing(self, environ: Mapping[str, str]) -> str:
        """Return what this host lacks to run its tasks, and what to do; empty if it lacks nothing.

        The result is a sentence. A worker calls this once, before any task, with its own
        environment. Only here may an executor inspect the host, and keep the results.
        """
        return ""

    @abstractmethod
    def begin(self, task: Task) -> Action:
        """Translate a task into an action; raises BadArgumentsError."""

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        """Translate the keywords of a spawn into a child's form; raises BadArgumentsError.

        The default is `simple_form`.
        """
        return simple_form(self.name, keywords)

    def ended(self, task: Task, program_exit: ProgramExit) -> Action:
        """Return the outcome of a task whose program has ended.

        By default only exit status 0 is a success.
        """
        if program_exit.status == 0:
            return Finish()
        return Fail("RUNTIME_EXCEPTION", program_exit.describe())
