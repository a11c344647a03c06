"""The executor `java2`: runs tasks in an interactive JVM, which serves tasks with the same jars.

It takes the same keywords as in the original CIEL: `jar_lib`, a list of references to jars;
`class_name`, the class to start with, or `object_ref`, a serialized task; `args`, a list of strings
and numbers. `n_outputs`, `package_ref`, and the keywords of all interactive programs are read too.
The main class, `com.asgow.ciel.executor.Java2Executor`, is in the SDK (`sdk/java`). It runs classes
for the SDK, and classes for the original CIEL. The SDK comes last on the class path: if the
original's bindings are among the jars, or in the directory `CIEL_JARS_DIR` of the worker, its main
class is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ciel.core.refs import REFERENCE_TYPES, Reference
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
from ciel.executors.conversation import Conversation
from ciel.executors.jvm import JAVA_SDK, Jvm, text_list
from ciel.executors.proc import ProcExecutor, with_dependencies
from ciel.original.java2_calls import MAIN_CLASS, Java2Conversation, readable

_KEYS = ("jar_lib", "class_name", "object_ref", "args")


class Java2Executor(ProcExecutor):
    """Runs tasks in a JVM; the tasks may spawn other tasks and wait for their results."""

    name = "java2"

    def __init__(self, *, java: str = "java", options: Sequence[str] = ("-Xmx2048M",)) -> None:
        self._jvm = Jvm(java, text_list("options", options))
        self._has_sdk = False

    def missing(self, environ: Mapping[str, str]) -> str:
        self._has_sdk = JAVA_SDK.is_file()
        return self._jvm.missing(environ)

    def begin(self, task: Task) -> Action:
        arguments = task.arguments
        message: dict[str, Any] = {"proc_pargs": [], "proc_kwargs": {}}
        if (continuation := self.continuation(arguments, message)) is not None:
            return continuation
        jars = _jars(arguments)
        if not jars and not self._jvm.jars:
            raise BadArgumentsError(
                "'jar_lib' is empty, and CIEL_JARS_DIR of this worker does not name a directory "
                "with jars: send the jar with the class, or set CIEL_JARS_DIR"
            )
        files = {f"jars/{number}.jar": jar.id for number, jar in enumerate(jars)}
        message |= {key: arguments[key] for key in (*_KEYS, "package_ref") if key in arguments}
        argv = self._jvm.command(
            [*files, *self._jvm.jars, str(JAVA_SDK)], task.spec.needs.memory_bytes
        )
        # A JVM that has loaded other jars would still have their classes.
        reuse_key = "\0".join([self.name, *[jar.id for jar in jars]])
        return Talk(Program((*argv, MAIN_CLASS), files=files), readable(message), reuse_key)

    def converse(self, attempt: Attempt, say: Callable[[str, Any], None]) -> Conversation:
        return Java2Conversation(
            attempt, lambda method, args: say(method, readable(args)), has_sdk=self._has_sdk
        )

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        _jars(keywords)
        class_name, object_ref = keywords.get("class_name"), keywords.get("object_ref")
        has_class = isinstance(class_name, str) and bool(class_name)
        if has_class == isinstance(object_ref, REFERENCE_TYPES):
            raise BadArgumentsError("java2 needs either 'class_name' or a reference 'object_ref'")
        args = keywords.get("args")
        if args is not None and not isinstance(args, list):
            raise BadArgumentsError("'args' must be a list")
        n_outputs = output_count(keywords.get("n_outputs", 1))
        arguments = {key: keywords[key] for key in _KEYS if keywords.get(key) is not None}
        if n_outputs != 1:
            arguments["n_outputs"] = n_outputs
        return with_dependencies(
            ChildForm(arguments, n_outputs, memoise=True, as_list=True), keywords
        )


def _jars(keywords: Mapping[str, Any]) -> list[Reference]:
    jars = keywords.get("jar_lib") or []
    if not isinstance(jars, list) or not all(isinstance(jar, REFERENCE_TYPES) for jar in jars):
        raise BadArgumentsError("'jar_lib' must be a list of references to jars")
    return jars
