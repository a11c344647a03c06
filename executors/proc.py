"""The executor `proc`: runs an interactive program that exchanges JSON over two pipes.

The program may be in any language (docs/programs.md). `conversation` answers its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ciel.core.refs import REFERENCE_TYPES, Fixed
from ciel.execution.attempt import Attempt
from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    ChildForm,
    Executor,
    InputPath,
    Program,
    Talk,
    Task,
    output_count,
    store_level,
)
from ciel.executors.arguments import any_dependencies, extra_dependencies
from ciel.executors.conversation import Conversation

_FORM_KEYS = ("command", "proc_pargs", "proc_kwargs", "store")


class ProcExecutor(Executor):
    """Runs an interactive program, which may write any number of outputs, and spawn tasks."""

    name = "proc"
    talks: ClassVar[bool] = True
    wants_package: ClassVar[bool] = True
    _latest: tuple[Any, Program, str] | None = None  # a command, its program and its kind

    def begin(self, task: Task) -> Action:
        arguments = task.arguments
        pargs = arguments.get("proc_pargs", [])
        kwargs = arguments.get("proc_kwargs", {})
        if not isinstance(pargs, list) or not isinstance(kwargs, dict):
            raise BadArgumentsError("'proc_pargs' must be a list, 'proc_kwargs' an object")
        message: dict[str, Any] = {"proc_pargs": pargs, "proc_kwargs": kwargs}
        store_level(arguments.get("store"))
        if (continuation := self.continuation(arguments, message)) is not None:
            return continuation
        message["command"] = command = arguments.get("command")
        if self._latest is None or self._latest[0] != command:  # most tasks have the same
            argv = command_line(command)
            words = [item if isinstance(item, str) else f"\0{item.object_id}" for item in argv]
            self._latest = (command, Program(argv), "\0".join([self.name, *words]))
        _, program, kind = self._latest
        encoded = task.spec.payload if arguments.keys() == message.keys() else None
        return Talk(program, message, kind, encoded=encoded)

    def continuation(self, arguments: Mapping[str, Any], message: dict[str, Any]) -> Talk | None:
        """Return the action to continue a suspended process, if the task is its continuation."""
        fixed = arguments.get("fixed")
        if not isinstance(fixed, Fixed):
            return None
        return Talk(Program(()), {"id": fixed.id} | message, self.name, fixed.id)

    def converse(self, attempt: Attempt, say: Callable[[str, Any], None]) -> Conversation:
        """Start the conversation with a program that was sent `start_task`."""
        return Conversation(attempt, say)

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        forced = keywords.get("force_n_outputs")
        more = output_count(keywords.get("n_extra_outputs", 0), 0)
        n_outputs = output_count(forced, 0) if forced is not None else 1 + more
        command_line(keywords.get("command"))
        store_level(keywords.get("store"))
        arguments = {key: keywords[key] for key in _FORM_KEYS if keywords.get(key) is not None}
        return with_dependencies(
            ChildForm(arguments, n_outputs, memoise=False, as_list=False), keywords
        )


def with_dependencies(form: ChildForm, keywords: Mapping[str, Any]) -> ChildForm:
    """Return a form with the additional dependencies that the keywords of a spawn contain."""
    arguments = dict(form.arguments)
    if dependencies := extra_dependencies(keywords):
        arguments["extra_dependencies"] = dependencies
    choice = any_dependencies(keywords)
    if choice:
        arguments["any_dependencies"] = choice
    return form._replace(arguments=arguments, any_of=tuple(choice))


def command_line(command: Any) -> tuple[str | InputPath, ...]:
    """Parse a command: a program's name, a reference to one, or a list that starts with either."""
    items = command if isinstance(command, list) else [command]
    if command is None or not items:
        raise BadArgumentsError(
            "'command' must name a program: a string, a reference, or a list with its arguments"
        )
    argv: list[str | InputPath] = []
    for number, item in enumerate(items):
        if isinstance(item, str) and item and "\0" not in item:
            argv.append(item)
        elif isinstance(item, REFERENCE_TYPES):
            argv.append(InputPath(item.id, executable=number == 0))
        else:
            raise BadArgumentsError(
                f"'command' contains {item!r:.40}, which is neither a string nor a reference"
            )
    return tuple(argv)
