"""`skypy`: scripts in a Python with continuations of its own (ciel-interfaces, 6.9).

The interpreter is a stub, `stub.py` in the directory that `CIEL_SKYPY_BASE` names, run by PyPy with
that directory and the SDK's on its path. ciel brings neither, but an example of a stub. Keywords:
`pyfile_ref`, the script, and `coro_ref`, a coroutine that was left, or `entry_point`, a function of
it, with `entry_args`; `export_json`, `run_fixed`; and `n_extra_outputs`, beyond the one that every
task has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ciel.core.refs import REFERENCE_TYPES
from ciel.execution.executor import Action, BadArgumentsError, ChildForm, Task, output_count
from ciel.executors import sdk
from ciel.executors.language import LanguageExecutor
from ciel.executors.proc import waiting_form

_PASSED = ("coro_ref", "entry_point", "entry_args", "export_json", "run_fixed")


class SkypyExecutor(LanguageExecutor):
    """Has the stub run a script, or go on with one."""

    def __init__(
        self, *, command: Sequence[str] = ("pypy3",), env: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name="skypy", command=command, env=env)

    def missing(self, environ: Mapping[str, str]) -> str:
        base = environ.get("CIEL_SKYPY_BASE")
        if not base:
            return (
                "it runs with an interpreter that ciel does not bring: set CIEL_SKYPY_BASE to the "
                "directory of its stub.py; or use the executor python"
            )
        self._command = (*self._command[:1], f"{base}/stub.py")
        self._env.setdefault("PYTHONPATH", os.pathsep.join([base, *sdk.__path__]))
        return super().missing(environ)

    def begin(self, task: Task) -> Action:
        arguments = task.arguments
        said: dict[str, Any] = {"proc_pargs": [], "proc_kwargs": {}}
        if (going_on := self.going_on(arguments, said)) is not None:
            return going_on
        spec = task.spec
        said |= {key: arguments[key] for key in (*_PASSED, "package_ref") if key in arguments}
        said |= {
            "py_ref": arguments.get("pyfile_ref"),
            "export_json": arguments.get("export_json", False),
            "run_fixed": arguments.get("run_fixed", False),
            "extra_outputs": list(range(1, len(spec.outputs))),
            # Its outputs are those of a task that has left off.
            "is_continuation": not spec.outputs[0].startswith(spec.id),
            "ret_output": 0,
        }
        return self.talk(self._command, said)

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        if not isinstance(keywords.get("pyfile_ref"), REFERENCE_TYPES):
            raise BadArgumentsError("skypy needs its script, a reference 'pyfile_ref'")
        if keywords.get("coro_ref") is None and not isinstance(keywords.get("entry_point"), str):
            raise BadArgumentsError(
                "skypy needs 'coro_ref', or the name of a function under 'entry_point'"
            )
        more = output_count(keywords.get("n_extra_outputs", 0), 0)
        arguments = {
            key: keywords[key] for key in ("pyfile_ref", *_PASSED) if keywords.get(key) is not None
        }
        form = ChildForm(arguments, 1 + more, memoise=False, as_list=False)
        return waiting_form(form, keywords)
