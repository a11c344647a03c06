"""`java2`: a JVM that talks, and is kept for the tasks of the same jars (ciel-interfaces, 1.12 and
6.8).

Keywords: `jar_lib`, a list of references to jars; `class_name`, a class to begin with, or
`object_ref`, a task that was serialized; `args`, a list of texts and numbers. The main class,
`com.asgow.ciel.executor.Java2Executor`, is in the bindings, which are among the jars, or lie in the
directory `CIEL_JARS_DIR` of the worker.

The Java side takes few kinds of references: what it could not read, or would misread, it is told as
a future. That is no loss: whatever comes back from it is known here by its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ciel.core.events import TaskFault
from ciel.core.refs import (
    REFERENCE_TYPES,
    Concrete,
    Future,
    Reference,
    Stream,
    Sweetheart,
    Value,
    locations_of,
)
from ciel.execution.attempt import Attempt
from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    ChildForm,
    Program,
    Talk,
    Task,
    output_count,
)
from ciel.executors.jvm import Jvm, text_list
from ciel.executors.proc import Conversation, ProcExecutor, waiting_form
from ciel.wire.calls import Call

MAIN_CLASS = "com.asgow.ciel.executor.Java2Executor"
PORT_MAX = 32767  # it reads ports as signed 16-bit numbers
_KEYS = ("jar_lib", "class_name", "object_ref", "args")


class Java2Executor(ProcExecutor):
    """Has a JVM run tasks, which may spawn others and wait for them."""

    name = "java2"

    def __init__(self, *, java: str = "java", options: Sequence[str] = ("-Xmx2048M",)) -> None:
        self._jvm = Jvm(java, text_list("options", options))

    def missing(self, environ: Mapping[str, str]) -> str:
        return self._jvm.missing(environ)

    def begin(self, task: Task) -> Action:
        arguments = task.arguments
        said: dict[str, Any] = {"proc_pargs": [], "proc_kwargs": {}}
        if (going_on := self.going_on(arguments, said)) is not None:
            return going_on
        jars = _jars(arguments)
        if not jars and not self._jvm.jars:
            raise BadArgumentsError(
                "'jar_lib' is empty, and CIEL_JARS_DIR of this worker names no directory with "
                f"jars: the bindings, with {MAIN_CLASS}, must be among them"
            )
        files = {f"jars/{number}.jar": jar.id for number, jar in enumerate(jars)}
        said |= {key: arguments[key] for key in (*_KEYS, "package_ref") if key in arguments}
        argv = self._jvm.command([*files, *self._jvm.jars], task.spec.needs.memory_bytes)
        # One with other jars would still have classes of theirs.
        kind = "\0".join([self.name, *[jar.id for jar in jars]])
        return Talk(Program((*argv, MAIN_CLASS), files=files), readable(said), kind)

    def converse(self, attempt: Attempt, say: Callable[[str, Any], None]) -> Conversation:
        return Java2Conversation(attempt, lambda method, args: say(method, readable(args)))

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        _jars(keywords)
        started = [keywords.get("class_name"), keywords.get("object_ref")]
        is_named = isinstance(started[0], str) and bool(started[0])
        if is_named == isinstance(started[1], REFERENCE_TYPES):
            raise BadArgumentsError("java2 needs either 'class_name' or a reference 'object_ref'")
        args = keywords.get("args")
        if args is not None and not isinstance(args, list):
            raise BadArgumentsError("'args' must be a list")
        n_outputs = output_count(keywords.get("n_outputs", 1))
        arguments = {key: keywords[key] for key in _KEYS if keywords.get(key) is not None}
        if n_outputs != 1:
            arguments["n_outputs"] = n_outputs
        return waiting_form(ChildForm(arguments, n_outputs, memoise=True, as_list=True), keywords)


class Java2Conversation(Conversation):
    """One task's calls. Every jar is opened as a sweetheart, which would draw all tasks to where
    the first of them ran; they go where their inputs are instead.
    """

    def __init__(self, attempt: Attempt, say: Callable[[str, Any], None]) -> None:
        super().__init__(attempt, say)
        self._has_called = False

    def called(self, calls: Iterable[Call]) -> None:
        self._has_called = True
        super().called(calls)

    def died(self, fault: TaskFault, how: str) -> TaskFault:
        if self._has_called or not how:
            return fault
        hint = f"are the bindings, with {MAIN_CLASS}, among its jars, or in CIEL_JARS_DIR there?"
        return TaskFault(fault.reason, f"{fault.details}; {hint}")

    def _input(self, args: dict[str, Any]) -> Reference | None:
        return super()._input({key: args[key] for key in args if key != "make_sweetheart"})


def readable(value: Any) -> Any:
    """Return what is to be said with every reference in it as the Java side can read it."""
    if isinstance(value, REFERENCE_TYPES):
        return value if _is_readable(value) else Future(value.id)
    if isinstance(value, dict):
        return {key: readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [readable(item) for item in value]
    return value


def _is_readable(ref: Reference) -> bool:
    if isinstance(ref, Concrete | Sweetheart):
        if ref.size_bytes is None:
            return False
    elif isinstance(ref, Stream):
        if not ref.locations:
            return False
    elif not isinstance(ref, Value | Future):
        return False
    places = set(locations_of(ref))
    if isinstance(ref, Sweetheart):
        places.add(ref.preferred)
    return all(_is_short(place) for place in places)


def _is_short(netloc: str) -> bool:
    host, _, port = netloc.rpartition(":")
    return ":" not in host and port.isdecimal() and int(port) <= PORT_MAX


def _jars(keywords: Mapping[str, Any]) -> list[Reference]:
    jars = keywords.get("jar_lib") or []
    if not isinstance(jars, list) or not all(isinstance(jar, REFERENCE_TYPES) for jar in jars):
        raise BadArgumentsError("'jar_lib' must be a list of references to jars")
    return jars
