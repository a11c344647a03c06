"""The functions that a script of the executor `skypy` can call.

If a function needs an object that does not exist yet, this module interrupts it, and a continuation
task starts when the object exists. Current versions of PyPy cannot save a coroutine, so this module
saves only the references that `spawn` returned. The continuation calls the function again, and
`spawn` returns the same references. So the function must be deterministic.
"""

from __future__ import annotations

import json
import pickle

import ciel_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

# the arguments of a task that its continuation also gets
KEPT = ("entry_point", "entry_args", "export_json", "run_fixed")


class Interrupted(BaseException):
    """The function cannot continue yet. Scripts that catch every `Exception` do not catch this."""


class Script:
    """A call of a function, and its saved state when it is interrupted."""

    def __init__(self, task: ciel_task.Task) -> None:
        self.task = task
        coro = task.private.get("coro_ref")
        saved = json.loads(task.read(coro)) if coro else {"spawned": [], "needed": []}
        self.spawned, self.needed = (
            [ciel_task.Ref(array) for array in saved[key]] for key in ("spawned", "needed")
        )
        self.again = iter(list(self.spawned))

    def run(self) -> None:
        """Call the function, and publish its result."""
        told = self.task.private
        names: dict[str, Any] = {"__name__": "script"}
        exec(compile(self.task.read(told["py_ref"]), "script", "exec"), names)
        try:
            result = names[told["entry_point"]](*told.get("entry_args", ()))
        except Interrupted:
            self.continue_later()
        else:
            encoded = json.dumps(result).encode() if told["export_json"] else pickle.dumps(result)
            self.task.publish(told["ret_output"], encoded)

    def continue_later(self) -> None:
        """Delegate to a continuation that starts when all objects needed so far exist."""
        told = self.task.private
        lists = {"spawned": self.spawned, "needed": self.needed}
        saved = {key: [ref.array for ref in refs] for key, refs in lists.items()}
        coro = self.task.publish(self.task.allocate("coro"), json.dumps(saved).encode())
        kept = {key: told.get(key) for key in KEPT}
        self.task.tail_spawn(
            "skypy", **kept, pyfile_ref=told["py_ref"], coro_ref=coro,
            n_extra_outputs=len(told["extra_outputs"]), extra_dependencies=self.needed,
        )  # fmt: skip


current: Script


def spawn(name: str, *args: Any) -> ciel_task.Ref:
    """Create a task that calls another function of the script; return a reference to its result.

    If the function was interrupted after this call, return the same reference again.
    """
    ref = next(current.again, None)
    if ref is None:
        script = current.task.private["py_ref"]
        ref = current.task.spawn("skypy", pyfile_ref=script, entry_point=name, entry_args=args)
        current.spawned.append(ref)
    return ref


def deref(ref: ciel_task.Ref) -> Any:
    """Return the result of a function."""
    with deref_as_raw_file(ref) as file:
        return pickle.load(file)


def deref_as_raw_file(ref: ciel_task.Ref) -> BinaryIO:
    """Open any object for reading."""
    if ref not in current.needed:
        current.needed.append(ref)
    opened = current.task.call("open_ref", ref=ref)
    if "filename" not in opened:
        raise Interrupted
    return open(opened["filename"], "rb")


def open_output(index: int) -> BinaryIO:
    """Open an extra output for writing, in a `with` block; they are numbered from 1."""
    output: BinaryIO = current.task.open_output(index)
    return output


def run(task: ciel_task.Task) -> None:
    """Run a task of the executor."""
    global current
    current = Script(task)
    current.run()
