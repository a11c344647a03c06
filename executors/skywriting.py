"""The executor `swi`: runs a Skywriting script, or a continuation of one.

Arguments, most with the names of the original CIEL: `swfile_ref` (or `sw_file_ref`), the script,
with `start_env` and `start_args`; or `cont_ref`, a continuation; or `cont_text`, a small
continuation. `sw_file_name` is the display name of the script. `session_ref`, which may be null:
the state after an earlier entry at a prompt. With it, the task has a second output, the state after
this entry. One program that stays running serves all scripts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

from ciel.core.refs import INLINE_MAX_BYTES, REFERENCE_TYPES
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
from ciel.executors.arguments import any_dependencies, extra_dependencies
from ciel.executors.nested import NestedConversation
from ciel.executors.proc import ProcExecutor

_PROGRAM = Program((sys.executable, "-P", "-m", "ciel.executors.programs.skywriting"))
_SENT = ("start_env", "start_args", "package_ref", "sw_file_name")


class SwiExecutor(ProcExecutor):
    """Runs scripts in a program, which may also run scripts that they spawn inline."""

    name = "swi"
    wants_package: ClassVar[bool] = True

    def begin(self, task: Task) -> Action:
        arguments = task.arguments
        message: dict[str, Any] = {key: arguments[key] for key in _SENT if key in arguments}
        message |= {"proc_pargs": [], "proc_kwargs": {}, "ret_output": 0}
        key, script = _script(arguments)
        message[{"cont_ref": "cont"}.get(key, key)] = script
        if "session_ref" in arguments:
            message["session"] = {"ref": arguments["session_ref"]}
        if task.inputs:
            message["inputs"] = list(task.inputs.values())
        message["may_run_children"] = task.may_run_children
        return Talk(_PROGRAM, message, self.name)

    def converse(self, attempt: Attempt, say: Callable[[str, Any], None]) -> NestedConversation:
        return NestedConversation(attempt, say)

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        key, script = _script(keywords)
        arguments = {key: script}
        env, args = keywords.get("start_env"), keywords.get("start_args")
        if env is not None:
            if not isinstance(env, dict) or not all(isinstance(v, str) for v in env.values()):
                raise BadArgumentsError("'start_env' must be an object whose values are strings")
            arguments["start_env"] = env
        if args is not None:
            if not isinstance(args, list):
                raise BadArgumentsError("'start_args' must be a list")
            arguments["start_args"] = args
        if isinstance(keywords.get("sw_file_name"), str):
            arguments["sw_file_name"] = keywords["sw_file_name"]
        n_outputs = 1
        if "session_ref" in keywords:
            session = arguments["session_ref"] = keywords["session_ref"]
            if session is not None and not isinstance(session, REFERENCE_TYPES):
                raise BadArgumentsError("'session_ref' must be a reference, or null")
            n_outputs = 2
        if output_count(keywords.get("n_outputs", n_outputs)) != n_outputs:
            raise BadArgumentsError(
                f"swi produces {n_outputs} output(s) with these arguments: remove 'n_outputs'"
            )
        if dependencies := extra_dependencies(keywords):
            arguments["extra_dependencies"] = dependencies
        if choice := any_dependencies(keywords):
            arguments["any_dependencies"] = choice
        return ChildForm(
            arguments, n_outputs, memoise=False, as_list=False, sees_errors=True,
            any_of=tuple(choice),
        )  # fmt: skip


def _script(arguments: dict[str, Any]) -> tuple[str, Any]:
    """Return the key under which the program gets the script or continuation, and its value."""
    for key in ("swfile_ref", "sw_file_ref", "cont_ref"):
        if arguments.get(key) is not None:
            if not isinstance(arguments[key], REFERENCE_TYPES):
                raise BadArgumentsError(f"{key!r} must be a reference")
            return key.replace("sw_file", "swfile"), arguments[key]
    text = arguments.get("cont_text")
    if not isinstance(text, str):
        raise BadArgumentsError(
            "the script is missing: pass a script ('sw_file_ref') or a continuation ('cont_ref')"
        )
    if len(text) > INLINE_MAX_BYTES:
        raise BadArgumentsError(
            "'cont_text' is too long: store it as an object, and pass 'cont_ref'"
        )
    return "cont_text", text
