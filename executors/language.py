"""Executors for languages: `ocaml`, `haskell`, and those that a configuration or entry point adds.

Each is defined by a few settings. Their programs use the protocol of `proc`.


    [executors.julia]                                 # in the configuration of each worker
    command = ["julia", "/opt/ciel/task.jl"]

A task runs the command, in which `{binary}` is replaced by the words of the task's `binary`, as for
OCaml and Haskell. `start_task` contains all keywords of the task's spawn. A program that requests
it stays running for further tasks with the same command. The reply to a spawn is a list of
`n_outputs` references (default: one).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    ChildForm,
    Program,
    Talk,
    Task,
    output_count,
)
from ciel.executors.jvm import text_list
from ciel.executors.proc import ProcExecutor, with_dependencies

BINARY = "{binary}"
_NOT_SENT = ("n_outputs", "extra_dependencies", "any_dependencies", "package_ref")


class LanguageExecutor(ProcExecutor):
    """An executor for one language.

    `path`: directories to search for its program before those in the worker's PATH; `~` is the
    worker's home directory. `memoise`: equal tasks of a job run once.
    """

    def __init__(
        self,
        *,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        path: Sequence[str] = (),
        memoise: bool = False,
    ) -> None:
        self.name = name
        self._command = text_list("command", command)
        if not self._command:
            raise TypeError("'command' must begin with a program's name")
        self._env = dict(env or {})
        if not all(isinstance(value, str) for value in self._env.values()):
            raise TypeError("'env' must be a table of strings")
        self._path = text_list("path", path)
        self._memoise = memoise

    def missing(self, environ: Mapping[str, str]) -> str:
        home = environ.get("HOME", "")
        places = [place.replace("~", home, 1) for place in self._path if home or place[:1] != "~"]
        search = os.pathsep.join([*places, environ.get("PATH", os.defpath)])
        if places:
            self._env["PATH"] = search
        program = self._command[0]
        if program == BINARY or shutil.which(program, path=search) is not None:
            return ""
        return (
            f"this host has no program {program!r}: install it, or set its path in "
            f"[executors.{self.name}] of the configuration"
        )

    def begin(self, task: Task) -> Action:
        arguments = task.arguments
        message: dict[str, Any] = {"proc_pargs": [], "proc_kwargs": {}}
        if (continuation := self.continuation(arguments, message)) is not None:
            return continuation
        message |= {key: arguments[key] for key in arguments if key not in _NOT_SENT}
        return self.talk(self._argv(arguments), message)

    def talk(self, argv: Sequence[str], message: Mapping[str, Any]) -> Talk:
        """Return the action to run an interactive program; it serves all tasks with its command."""
        kind = "\0".join([self.name, *argv])
        return Talk(Program(tuple(argv), env=self._env), message, kind)

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        n_outputs = output_count(keywords.get("n_outputs", 1))
        arguments = {key: value for key, value in keywords.items() if value is not None}
        if n_outputs == 1:
            arguments.pop("n_outputs", None)
        for reserved in ("fixed", "package_ref"):
            if reserved in arguments:
                raise BadArgumentsError(f"{reserved!r} cannot be passed to a task of {self.name}")
        self._argv(arguments)
        return with_dependencies(
            ChildForm(arguments, n_outputs, self._memoise, as_list=True), keywords
        )

    def _argv(self, arguments: Mapping[str, Any]) -> list[str]:
        if BINARY not in self._command:
            return [*self._command]
        binary = arguments.get("binary")
        if not isinstance(binary, str) or not binary.split() or "\0" in binary:
            raise BadArgumentsError(
                f"{self.name} needs 'binary', a program and its arguments in one string"
            )
        start = self._command.index(BINARY)
        return [*self._command[:start], *binary.split(), *self._command[start + 1 :]]


def ocaml(
    *, command: Sequence[str] = (BINARY,), env: Mapping[str, str] | None = None,
    path: Sequence[str] = (), memoise: bool = True,
) -> LanguageExecutor:  # fmt: skip
    """Create the executor `ocaml`. Its keywords: `binary`, `fn_ref` (a closure), `args`."""
    return LanguageExecutor(name="ocaml", command=command, env=env, path=path, memoise=memoise)


def haskell(
    *, command: Sequence[str] = (BINARY,), env: Mapping[str, str] | None = None,
    path: Sequence[str] = ("~/.cabal/bin",), memoise: bool = True,
) -> LanguageExecutor:  # fmt: skip
    """Create the executor `haskell`, whose programs cabal has installed."""
    return LanguageExecutor(name="haskell", command=command, env=env, path=path, memoise=memoise)
