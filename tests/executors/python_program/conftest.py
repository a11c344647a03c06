"""Tasks of the Python program, run without a worker: a fake channel answers their calls, and runs
the tasks that they spawn.
"""

from __future__ import annotations

import itertools
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, cast

import pytest

from ciel.executors.programs.python.bundle import Run
from ciel.executors.programs.python.functions import Functions
from ciel.executors.programs.python.objects.inputs import Cache
from ciel.executors.programs.python.program import Program
from ciel.python import calls, contents, failures, sessions
from ciel.python.packing import pack, unpack
from ciel.python.pickling import dumps


class FakeState:
    """Stands for the working directory and the environment of the program."""

    is_changed = False

    def move(self, directory: str, variables: dict[str, str | None]) -> None:
        assert (directory, variables) == ("", {})

    def scratch(self) -> str:
        return "/scratch"


class FakeTimer:
    """Shares only when a test calls `share`."""

    def __init__(self) -> None:
        self.watched: Any = None

    def watch(self, shareable: Any) -> None:
        self.watched = shareable


class FakeProgram:
    """Keeps what a task reports at its end."""

    def __init__(self, channel: FakeChannel) -> None:
        self.channel = channel
        self.cache = Cache()
        self.functions = Functions()
        self.timer = FakeTimer()
        self.state = FakeState()
        self.values: dict[int, bytes] | None = None
        self.leak = ""
        self.failure: tuple[str, Any] | None = None

    def use_directories(self, directories: tuple[str, ...]) -> None:
        pass

    def load(self, sent: calls.Function) -> Any:
        return self.functions.load(sent)

    def end(self, values: list[tuple[int, str]], leak: str = "") -> None:
        self.values = {number: b64decode(value) for number, value in values}
        self.leak = leak

    def fail(self, reason: str, report: Any) -> None:
        self.failure = (reason, report)


class FakeChannel:
    """Replaces the worker of a task.

    `slots`: how many slots are free for other tasks. When the task waits for items that it has
    spawned, this runs them, each in a separate program.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.lock = RLock()
        self.slots: int | None = 0
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[int, Path] = {}
        self._cluster = cluster
        self._made: list[Any] = []  # a spawned task's arguments, or the reference to an object
        self._waits: dict[str, Any] | None = None

    def named(self, method: str) -> list[dict[str, Any]]:
        """Return the arguments of all calls of a method."""
        return [arguments for name, arguments in self.sent if name == method]

    def flush(self) -> None:
        pass

    def notify(self, method: str, arguments: dict[str, Any]) -> None:
        self.sent.append((method, arguments))
        if method == "spawn" and "takes" not in arguments:
            self._made.append(arguments)
        elif method == "put":
            self._made.append(self._cluster.value_ref(b64decode(arguments["value"])))
        elif method == "tail_spawn":
            self._waits = arguments

    def request(self, method: str, arguments: dict[str, Any]) -> None:
        self.sent.append((method, arguments))

    def call(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.sent.append((method, arguments))
        answers: dict[str, Callable[[], dict[str, Any]]] = {
            "room": lambda: {"slots": self.slots},
            "task": lambda: {"id": "t", "attempt": 1, "name": "fake", "job": "j"},
            "look": lambda: {"refs": [self._known(item) for item in arguments["items"]]},
            "made": lambda: {"refs": [self._ref(item) for item in arguments["items"]]},
            "open_output": lambda: {"filename": str(self._file(arguments["index"]))},
            "open_ref_async": lambda: self._opened(arguments["ref"]),
        }
        return answers[method]()

    def _opened(self, ref: dict[str, Any]) -> dict[str, Any]:
        path = self._cluster.new_file()
        path.write_bytes(b64decode(self._known(ref)["__ref__"][2]))
        return {"filename": str(path), "done": True, "blocking": False}

    def _file(self, index: int) -> Path:
        path = self.files[index] = self._cluster.new_file()
        return path

    def next_start(self) -> tuple[dict[str, Any], dict[str, str]] | None:
        """Run the tasks that this one waits for, unless it has a timeout; then it continues."""
        assert self._waits is not None
        time.sleep(self._waits.get("timeout_s", 0))
        needed, others = self._waits["needed"], self._waits["others"]
        if not needed and ("timeout_s" not in self._waits or self._cluster.runs_during_timeouts):
            needed = others[:1]
        for item in needed:
            self._run(item)
        items = [*self._waits["needed"], *self._waits["others"]]
        refs = [self._known(item) for item in items]
        self._made.clear()
        return {"inputs": refs}, {}

    def _run(self, item: Any) -> None:
        self._cluster.run_future(self._ref(item)["__ref__"])

    def _resolved(self, request: dict[str, Any]) -> dict[str, Any]:
        inputs = request.get("inputs", [])
        for item in inputs:
            self._run(item)
        return {**request, "inputs": [self._known(item) for item in inputs]}

    def _known(self, item: Any) -> dict[str, Any]:
        """Return a reference, which is a future if the object is not there."""
        return self._cluster.latest(self._ref(item))

    def _ref(self, item: Any) -> dict[str, Any]:
        if isinstance(item, dict):
            return item
        made = self._made[item]
        if "__ref__" not in made:
            made = self._made[item] = self._cluster.future_of(self._resolved(made))
        return cast("dict[str, Any]", made)


class Task:
    """A bundle that has run."""

    def __init__(self, program: FakeProgram) -> None:
        self._program = program
        self.channel = program.channel

    @property
    def failure(self) -> tuple[str, Any]:
        assert self._program.failure is not None
        return self._program.failure

    @property
    def leak(self) -> str:
        return self._program.leak

    def raw(self, batch: int = 0) -> bytes:
        """Return the content of an output."""
        assert self._program.failure is None, self._program.failure
        assert self._program.values is not None
        if batch in self._program.values:
            return self._program.values[batch]
        return self.channel.files[batch].read_bytes()

    def outcomes(self, batch: int = 0) -> list[contents.Outcome]:
        return contents.decode(self.raw(batch)).outcomes

    def values(self, batch: int = 0) -> list[Any]:
        """Return the values of a batch's calls; exceptions stand for themselves."""
        return [value_of(outcome) for outcome in self.outcomes(batch)]

    @property
    def value(self) -> Any:
        """The value of the only call; raises its exception."""
        if self._program.failure is not None:
            raise failures.unpack_error(b64decode(self._program.failure[1]["error"]))
        (found,) = self.values()
        return found


def value_of(outcome: contents.Outcome) -> Any:
    """Return the value of an outcome, or its exception."""
    if outcome.kind == contents.ERROR:
        return failures.unpack_error(bytes(outcome.packed.head))
    return unpack(outcome.packed.head, outcome.packed.buffers)


class Cluster:
    """Runs bundles. `slots`: how many free slots it reports to each task."""

    def __init__(self, directory: Path) -> None:
        self.slots: int | None = 0
        self.runs_during_timeouts = False
        self.ran: list[str] = []  # the names of spawned tasks, in the order in which they ran
        self._directory = directory
        self._numbers = itertools.count()
        self._futures: dict[str, dict[str, Any]] = {}
        self._known: dict[str, dict[str, Any]] = {}

    def new_file(self) -> Path:
        path = self._directory / f"file{next(self._numbers)}"
        path.touch()
        return path

    def value_ref(self, content: bytes) -> dict[str, Any]:
        name = f"object{next(self._numbers)}"
        ref = {"__ref__": ["val", name, b64encode(content).decode()]}
        self._known[name] = ref
        return ref

    def future_of(self, request: dict[str, Any]) -> dict[str, Any]:
        name = f"future{next(self._numbers)}"
        self._futures[name] = request
        return {"__ref__": ["f2", name]}

    def latest(self, ref: dict[str, Any]) -> dict[str, Any]:
        return self._known.get(ref["__ref__"][1], ref)

    def run_future(self, array: list[Any]) -> None:
        request = self._futures.pop(array[1], None)
        if request is not None:
            made = self.run_spawned(request)["__ref__"]
            self._known[array[1]] = {"__ref__": [made[0], array[1], *made[2:]]}

    def run_spawned(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a task and return the reference to its output."""
        self.ran.append(request["name"])
        task = self._run({"calls": request["calls"], "inputs": request.get("inputs", [])})
        if task._program.failure is not None:
            reason, report = task._program.failure
            return {"__ref__": ["err", f"object{next(self._numbers)}", reason, report]}
        return self.value_ref(task.raw())

    def run(
        self, *batches: Sequence[Any], inputs: Sequence[Any] = (), attempt: int = 1, **options: Any
    ) -> Task:
        """Run a bundle; `inputs` are references, or contents of objects."""
        refs = [self.value_ref(each) if isinstance(each, bytes) else each for each in inputs]
        packed = b64encode(calls.pack_bundle(bundle_of(*batches, **options))).decode()
        return self._run({"calls": packed, "inputs": refs, "attempt": attempt})

    def _run(self, start: dict[str, Any]) -> Task:
        channel = FakeChannel(self)
        channel.slots = self.slots
        program = FakeProgram(channel)
        Run(cast(Program, program), start, {}).run()
        return Task(program)

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Task:
        """Run a bundle of one call."""
        return self.run([(function, *args)], **options)

    def share(self) -> bool:
        """Have the task that runs now share, as the timer would; return whether it has more."""
        session: Any = sessions.of_task()
        sharing = session._host._sharing
        with sharing.lock:
            return bool(sharing.share())


def bundle_of(*batches: Sequence[Any], **options: Any) -> calls.Bundle:
    """Make a bundle of batches of calls: (function, argument, …), or a `calls.Call`."""
    functions: list[calls.Function] = []

    def call_of(row: Any) -> calls.Call:
        if isinstance(row, calls.Call):
            return row
        function, *args = row
        functions.append(calls.function_of(dumps(function)))
        packed = pack((tuple(args), {}))
        return calls.Call(len(functions) - 1, packed, name=function.__name__)

    made = tuple([tuple([call_of(row) for row in batch]) for batch in batches])
    return calls.Bundle(calls.VERSION, (), tuple(functions), made)._replace(**options)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)
