"""The executors `java` and `cso`: call a class, or a function of a shared object.

Both, and `dotnet`, are executors of the original CIEL. ciel does not support `dotnet`: its executor
only explains this.

A loader program opens the inputs and outputs for the called code. Its standard input contains
strings that end in a NUL: first `IN,OUT,ARGS` (the number of each), then paths of inputs, paths of
outputs, and arguments. Its standard output goes to the same place as standard error. Arguments
(`args`):

- `java`: `class`, the name of a class with a method `invoke(InputStream[], OutputStream[],
  String[])`, and `lib`, a list of references to jars.
- `cso`: `entry_point`, the name of a function as `sdk/c/sw_task.h` declares it, and `lib`, a list
  of references to shared objects.

Both take `inputs`, a list of references; `argv`, a list of strings, numbers and references;
`files`, `env` and the options in `arguments`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ciel.core.ids import ObjectId
from ciel.core.tasks import Mentions
from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    ChildForm,
    Executor,
    InputPath,
    OutputPath,
    Run,
    Task,
)
from ciel.executors.arguments import (
    args_of,
    program_of,
    reference_list,
    require_output_count,
    required_text,
    words_of,
)
from ciel.executors.jvm import JAVA_SDK, Jvm, text_list

HOME = Path(__file__).parent
JAVA_SOURCE = JAVA_SDK.parent / "src" / "main" / "java" / "ciel" / "TaskLoader.java"
C_LOADER = HOME / "programs" / "ciel-cso"


class LoadedExecutor(Executor):
    """Runs a loader, which calls the loaded code; subclasses define its command line."""

    mentions = Mentions.NOTHING

    def begin(self, task: Task) -> Action:
        count = len(task.spec.outputs)
        require_output_count(task, count)
        args = args_of(task)
        libraries = [ref.id for ref in reference_list(args, "lib")]
        if not libraries:
            raise BadArgumentsError(f"{self.name} needs a list 'lib' of at least one reference")
        argv, files = self._loader(task, args, libraries)
        inputs = [InputPath(ref.id) for ref in reference_list(args, "inputs")]
        words = words_of(args, "argv")
        names: list[str | InputPath | OutputPath] = [f"{len(inputs)},{count},{len(words)}"]
        names += [*inputs, *[OutputPath(number) for number in range(count)], *words]
        return Run(program_of(args, argv, names=names, files=files))

    def _loader(
        self, task: Task, args: dict[str, Any], libraries: Sequence[ObjectId]
    ) -> tuple[list[str | InputPath], Mapping[str, ObjectId]]:
        """Return the loader's command line, and the files that it needs."""
        raise NotImplementedError


class JavaExecutor(LoadedExecutor):
    """Runs a class in a new JVM.

    The class path has the jars in the worker's directory `CIEL_JARS_DIR`, then the SDK, with the
    interface of the original's classes.
    """

    name = "java"

    def __init__(self, *, java: str = "java", options: Sequence[str] = ()) -> None:
        self._jvm = Jvm(java, text_list("options", options))
        self._loader_words: tuple[str, ...] = ()

    def missing(self, environ: Mapping[str, str]) -> str:
        if why := self._jvm.missing(environ):
            return why
        if JAVA_SDK.exists():
            self._loader_words = ("ciel.TaskLoader",)
        elif self._jvm.compiles(environ):
            self._loader_words = (str(JAVA_SOURCE),)  # compiled at each start, in half a second
        else:
            return (
                "its loader was not built, because javac was missing when ciel was installed: "
                "install a JDK on this host (Debian: default-jdk-headless)"
            )
        return ""

    def _loader(
        self, task: Task, args: dict[str, Any], libraries: Sequence[ObjectId]
    ) -> tuple[list[str | InputPath], Mapping[str, ObjectId]]:
        files = {f".jars/{n}.jar": library for n, library in enumerate(libraries)}
        class_path = [*self._jvm.jars, str(JAVA_SDK)]
        argv = self._jvm.command(class_path, task.spec.needs.memory_bytes)
        return [*argv, *self._loader_words, required_text(args, "class"), *files], files


class CsoExecutor(LoadedExecutor):
    """Runs a function of a shared object in a new process."""

    name = "cso"

    def __init__(self) -> None:
        self._path = str(C_LOADER)

    def missing(self, environ: Mapping[str, str]) -> str:
        self._path = environ.get("SW_C_LOADER_PATH") or str(C_LOADER)
        if Path(self._path).is_file():
            return ""
        if self._path == str(C_LOADER):
            return f"its loader {C_LOADER} does not exist: install ciel again, with a C compiler"
        return f"SW_C_LOADER_PATH names {self._path}, but this file does not exist"

    def _loader(
        self, task: Task, args: dict[str, Any], libraries: Sequence[ObjectId]
    ) -> tuple[list[str | InputPath], Mapping[str, ObjectId]]:
        loaded = [InputPath(library, executable=True) for library in libraries]
        return [self._path, required_text(args, "entry_point"), *loaded], {}


class DotnetExecutor(Executor):
    """Explains that dotnet is not supported: its loader was for a Mono of 2012."""

    name = "dotnet"

    def missing(self, environ: Mapping[str, str]) -> str:
        return (
            "ciel does not support dotnet: run the program itself by stdinout, env or proc, or add "
            "an executor with another name (docs/executors.md)"
        )

    def begin(self, task: Task) -> Action:
        raise BadArgumentsError(self.missing({}))

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        return ChildForm(keywords, 1, memoise=False, as_list=True)  # it will never run
