"""The executor `skypy`: runs scripts in a Python interpreter with continuations.

It takes the same keywords as in the original CIEL. PyPy runs a stub, `stub.py` in the directory
`CIEL_SKYPY_BASE`, with that directory and the SDK on its path. ciel includes neither PyPy nor a
stub, except an example of a stub. Keywords: `pyfile_ref`, the script; `coro_ref`, a suspended
coroutine, or `entry_point`, a function of the script, with `entry_args`; `export_json`,
`run_fixed`; and `n_extra_outputs`, in addition to the one output of every task.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ciel.core.refs import REFERENCE_TYPES
from ciel.execution.executor import Action, BadArgumentsError, ChildForm, Task, output_count
from ciel.executors import sdk
from ciel.executors.language import LanguageExecutor
from ciel.executors.proc import with_dependencies

_PASSED = ("coro_ref", "entry_point", "entry_args", "export_json", "run_fixed")


class SkypyExecutor(LanguageExecutor):
    """Runs a script in the stub, or continues one."""

    def __init__(
        self, *, command: Sequence[str] = ("pypy3",), env: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name="skypy", command=command, env=env)

    def missing(self, environ: Mapping[str, str]) -> str:
        base = environ.get("CIEL_SKYPY_BASE")
        if not base:
            return (
                "it needs an interpreter that is not part of ciel: set CIEL_SKYPY_BASE to the "
                "directory of its stub.py; or use the executor python"
            )
        self._command = (*self._command[:1], f"{base}/stub.py")
        self._env.setdefault("PYTHONPATH", os.pathsep.join([base, *sdk.__path__]))
        return super().missing(environ)

    def begin(self, task: Task) -> Action:
        arguments = task.arguments
        message: dict[str, Any] = {"proc_pargs": [], "proc_kwargs": {}}
        if (continuation := self.continuation(arguments, message)) is not None:
            return continuation
        spec = task.spec
        message |= {key: arguments[key] for key in (*_PASSED, "package_ref") if key in arguments}
        message |= {
            "py_ref": arguments.get("pyfile_ref"),
            "export_json": arguments.get("export_json", False),
            "run_fixed": arguments.get("run_fixed", False),
            "extra_outputs": list(range(1, len(spec.outputs))),
            # A continuation has the outputs of the task that was suspended.
            "is_continuation": not spec.outputs[0].startswith(spec.id),
            "ret_output": 0,
        }
        return self.talk(self._command, message)

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        if not isinstance(keywords.get("pyfile_ref"), REFERENCE_TYPES):
            raise BadArgumentsError("skypy needs 'pyfile_ref', a reference to its script")
        if keywords.get("coro_ref") is None and not isinstance(keywords.get("entry_point"), str):
            raise BadArgumentsError(
                "skypy needs 'coro_ref', or the name of a function under 'entry_point'"
            )
        more = output_count(keywords.get("n_extra_outputs", 0), 0)
        arguments = {
            key: keywords[key] for key in ("pyfile_ref", *_PASSED) if keywords.get(key) is not None
        }
        form = ChildForm(arguments, 1 + more, memoise=False, as_list=False)
        return with_dependencies(form, keywords)
