"""A host for scripts in memory: keeps objects and tasks, and records all calls.

    host = ScriptHost()
    assert host.run("f = function(x) { return x + 1; }; return *spawn(f, [1]);") == 2

A task runs when its output is needed. An object that a test withholds exists when the test settles
it, or lets it fail:

    ref = host.withhold()
    task = host.begin("return *argv[0];", argv=[ref])
    assert task.awaited == [ref]
    host.settle(ref, "5")
    assert host.finish(task) == 5
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from hashlib import blake2b
from typing import Any

from ciel.core.errors import CielError
from ciel.core.ids import ObjectId, child_id
from ciel.core.refs import Future, Reference, Value
from ciel.skywriting import continuation, script, standard
from ciel.skywriting.errors import ReferenceFailedError, ScriptError, SkywritingError, SourceError
from ciel.skywriting.evaluation import showing
from ciel.skywriting.evaluation.code import Unit
from ciel.skywriting.evaluation.values import SpawnedCall
from ciel.wire import codec
from ciel.wire.errors import WireError
from ciel.wire.references import from_json, to_json


class Stops(Enum):
    """When a script stops for an object."""

    NEVER = auto()  # the host produces missing objects while the script waits
    NEEDED = auto()  # if the object does not exist
    ALWAYS = auto()  # unless the script was started or resumed with this object


class StillWaitingError(AssertionError):
    """A script needs an object that the test withholds."""

    def __init__(self, task: ScriptTask) -> None:
        super().__init__(f"{task.label} waits for {[ref.id for ref in task.awaited]}")
        self.task = task


Fake = Callable[[dict[str, Any]], Iterable[bytes | str | None]]
"""A fake executor: returns the contents of the outputs for the keywords of a spawn; None for an
output that fails.
"""


class ScriptHost:
    """The host of all scripts of a test. It records their actions in `printed`, `included`, `calls`
    and `tasks`, in order.

    Stopped scripts and spawned calls are encoded and decoded, as in a cluster; `continuations` has
    the encoded scripts.
    """

    def __init__(
        self, stops: Stops = Stops.NEEDED, executors: dict[str, Fake] | None = None
    ) -> None:
        self.stops = stops
        self.executors = executors or {}
        self.package: dict[str, Reference] = {}
        self.web: dict[str, str] = {}  # texts of scripts, by URL
        self.printed: list[str] = []
        self.included: list[str] = []
        self.calls: dict[str, str] = {}  # by id of the result: function and arguments
        self.tasks: list[tuple[str, dict[str, Any]]] = []  # executor and keywords
        self.continuations: list[str] = []
        self.reads: dict[str, int] = {}  # of existing objects, by id
        self._contents: dict[str, bytes | ReferenceFailedError] = {}
        self._makers: dict[str, ScriptTask | Callable[[], None]] = {}
        self._units: dict[str, Unit] = {}
        self._numbers = 0

    # --- objects ----------------------------------------------------------------------------------

    def put(self, content: bytes | str) -> Reference:
        """Return a reference to a new object with this content."""
        data = content.encode() if isinstance(content, str) else content
        ref = self.withhold()
        self.settle(ref, data)
        return Value.of(ref.id, data)

    def withhold(self) -> Future:
        """Return a reference to an object that does not exist yet."""
        self._numbers += 1
        return Future(ObjectId(f"test:{self._numbers}"))

    def settle(self, ref: Reference, content: bytes | str) -> None:
        """Create a withheld object."""
        assert ref.id not in self._contents, "it is there already"
        self._contents[ref.id] = content.encode() if isinstance(content, str) else content

    def fail(self, ref: Reference, reason: str = "RUNTIME_ERROR", details: str = "") -> None:
        """Let a withheld object fail."""
        assert ref.id not in self._contents, "it is there already"
        self._contents[ref.id] = ReferenceFailedError(ref, reason, details)

    def is_settled(self, ref: Reference) -> bool:
        return ref.id in self._contents

    def content(self, ref: Reference) -> bytes:
        """Return an object's content; run its task first if necessary. Raises
        ReferenceFailedError.
        """
        if not self._make([ref.id]):
            raise StillWaitingError(self._task_behind(ref.id))
        found = self._contents[ref.id]
        if isinstance(found, ReferenceFailedError):
            raise found
        return found

    def value(self, ref: Reference) -> Any:
        """Return the value of an object's JSON."""
        return decoded(self.content(ref))

    # --- scripts ----------------------------------------------------------------------------------

    def run(self, text: str, **how: Any) -> Any:
        """Run a script to its end. Raises ScriptError, SourceError or StillWaitingError."""
        return self.finish(self.begin(text, **how))

    def begin(
        self,
        text: str,
        *,
        name: str = "test.sw",
        env: dict[str, Any] | None = None,
        argv: Iterable[Any] = (),
    ) -> ScriptTask:
        """Run a script to its first stop."""
        unit = self._unit({"text": text, "name": name})
        task = ScriptTask(self, f"root:{len(self._makers)}", name)
        task.go(lambda: script.start(unit, env or {}, list(argv), task))
        return task

    def finish(self, task: ScriptTask) -> Any:
        """Run a script and all tasks that it needs to the end."""
        if not self._make([task.output]):
            raise StillWaitingError(task)
        if task.error is not None:
            raise task.error
        assert task.finished is not None
        return task.finished.value

    def exhaust(self) -> None:
        """Run all tasks, needed or not, as far as possible."""
        known = 0
        while known < len(self._makers):
            known = len(self._makers)
            self._make(list(self._makers))

    def executed(self) -> list[str]:
        """Return the tasks of other executors, sorted, so that runs in another order compare
        equal.
        """
        return sorted(showing.original([executor, keywords]) for executor, keywords in self.tasks)

    def _make(self, wanted: list[str]) -> bool:
        """Produce objects, and everything that they need; return whether all of them exist."""
        path = list(reversed(wanted))
        tried: set[tuple[str, int]] = set()
        while path:
            maker = self._makers.get(path[-1])
            if path[-1] in self._contents or maker is None:
                path.pop()
            elif not isinstance(maker, ScriptTask):
                maker()
            elif maker.can_go_on:
                maker.go_on()
            else:
                missing = [ref.id for ref in maker.awaited if ref.id not in self._contents]
                attempt = (path[-1], maker.steps)
                if attempt in tried:  # its inputs cannot be produced
                    path.pop()
                else:
                    tried.add(attempt)
                    path += reversed(missing)
        return all(each in self._contents for each in wanted)

    def _task_behind(self, object_id: str) -> ScriptTask:
        maker = self._makers.get(object_id)
        if isinstance(maker, ScriptTask):
            return maker
        return ScriptTask(self, object_id, f"the reader of {object_id}")

    def _unit(self, origin: Any) -> Unit:
        """Load a script by its origin, for a continuation or an include."""
        key = encoded(origin)
        if key not in self._units:
            if "std" in origin:
                name = f"{origin['std']}.sw"
                text = standard.text_of(origin["std"])
            elif "ref" in origin:
                name = origin["ref"].id
                text = self.content(origin["ref"]).decode()
            else:
                text, name = origin["text"], origin["name"]
            self._units[key] = script.load(text, name, origin)
        return self._units[key]


class ScriptTask:
    """A running script, or a function of one; also the `host.Host` that it calls."""

    def __init__(self, world: ScriptHost, task_id: str, label: str) -> None:
        self.id = task_id
        self.label = label
        self.output = ObjectId(f"{task_id}:out:0")
        self.finished: script.Finished | None = None
        self.error: SkywritingError | None = None
        self.awaited: list[Reference] = []
        self.steps = 0  # how often it was started or resumed
        self._any_of: list[Reference] = []
        self._world = world
        self._children = 0
        self._written: str | None = None
        self._known: frozenset[str] = frozenset()
        world._makers[self.output] = self

    # --- how it runs ------------------------------------------------------------------------------

    def spawned(self, written: str) -> None:
        """Set the encoded call, which starts when its result is needed."""
        self._written = written

    @property
    def can_go_on(self) -> bool:
        """Whether it has not ended, and has its inputs."""
        if self._written is None:
            return False
        if self._any_of and not any(map(self._world.is_settled, self._any_of)):
            return False
        return all(map(self._world.is_settled, self.awaited)) or bool(self._any_of)

    def go_on(self) -> None:
        """Decode its continuation, and run it to its next stop."""
        assert self._written is not None
        written, self._written = self._written, None
        self._known = frozenset([ref.id for ref in self.awaited])
        self.awaited, self._any_of = [], []
        read = continuation.decode(decoded(written.encode()), self._world._unit)
        call, stopped = read.call, read.stopped
        if call is not None:
            self.go(lambda: script.call(call, self))
        else:
            assert stopped is not None
            self.go(lambda: stopped.resume(self))

    def go(self, step: Callable[[], script.Outcome]) -> None:
        """Take one step."""
        self.steps += 1
        try:
            with script.roomy():
                outcome = step()
            if isinstance(outcome, script.Finished):
                self._world.settle(Future(self.output), encoded(outcome.value))
        except (ScriptError, SourceError) as error:
            self.error = error
            self._world.fail(Future(self.output), "RUNTIME_ERROR", str(error))
            return
        if isinstance(outcome, script.Finished):
            self.finished = outcome
            return
        value, all_of, any_of = continuation.encode(outcome)
        self._written = encoded(value)
        self._world.continuations.append(self._written)
        self.awaited, self._any_of = all_of or any_of, any_of
        assert self.awaited, "it stopped for nothing"

    # --- as the host of a script-------------------------------------------------------------------

    def read(self, ref: Reference) -> bytes | None:
        world = self._world
        if world.stops is Stops.ALWAYS and ref.id not in self._known:
            return None
        if world.stops is Stops.NEVER:
            world._make([ref.id])
        found = world._contents.get(ref.id)
        if isinstance(found, ReferenceFailedError):
            raise found
        if found is not None:
            world.reads[ref.id] = world.reads.get(ref.id, 0) + 1
        return found

    def decode(self, content: bytes) -> Any:
        return decoded(content)

    def encode(self, value: Any) -> str:
        return encoded(value)

    def _child(self, what: str) -> str:
        """Return the id of a child, which depends on its parent and its number, but not on
        stops.
        """
        self._children += 1
        digest = blake2b(what.encode(), digest_size=16).hexdigest()
        return child_id(self.id, self._children, digest)

    def spawn(self, call: SpawnedCall) -> Reference:
        label = showing.original([call.function, *call.arguments])
        child = ScriptTask(self._world, self._child(label), label)
        child.spawned(encoded(continuation.encode_call(call).value))
        self._world.calls[child.output] = label
        return Future(child.output)

    def spawn_task(self, executor: str, keywords: dict[str, Any]) -> list[Reference]:
        world = self._world
        try:
            written = encoded(keywords)
        except ValueError as error:
            raise ScriptError(f"{executor}: {error}") from None
        name = self._child(f"{executor} {showing.original(keywords)}")
        world.tasks.append((executor, decoded(written.encode())))
        count = keywords.get("n_outputs", 1)
        outputs: list[Reference] = [Future(ObjectId(f"{name}:out:{i}")) for i in range(count)]
        fake = world.executors.get(executor)
        if fake is not None:
            given, chosen = decoded(written.encode()), fake

            def make() -> None:
                for output, content in zip(outputs, chosen(given), strict=True):
                    if content is None:
                        world.fail(output, "RUNTIME_EXCEPTION", "exit status 1")
                    else:
                        world.settle(output, content)

            world._makers.update({output.id: make for output in outputs})
        return outputs

    def print(self, text: str) -> None:
        self._world.printed.append(text)

    def include(self, what: str | Reference) -> Unit | None:
        world = self._world
        if not isinstance(what, str):
            origin: Any = {"ref": what}
            if self.read(what) is None:
                return None
        elif what in world.web:
            origin = {"text": world.web[what], "name": what}
        else:
            origin = {"std": what}
        name = what if isinstance(what, str) else str(what.id)
        try:
            unit = world._unit(origin)
        except SourceError as error:
            raise ScriptError(f"{name} is not a script:\n{error}") from None
        world.included.append(name)
        return unit

    def package(self, key: str) -> Reference | None:
        return self._world.package.get(key)


def encoded(value: Any) -> str:
    """Write JSON, with references in it; raises ValueError."""
    try:
        return codec.encode(to_json(value)).decode()
    except (WireError, RecursionError) as error:
        raise ValueError(str(error)) from None


def decoded(content: bytes) -> Any:
    """Read JSON, with references in it; raises ValueError."""
    try:
        return from_json(codec.decode(content))
    except (WireError, CielError) as error:
        raise ValueError(str(error)) from None
