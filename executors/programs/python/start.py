"""Starts the program of the executor `python`, in any interpreter that a task names.

An interpreter that cannot run tasks fails each task with the reason. So this file runs with Python
3.6 or later.
"""

import sys

_PROGRAM = "ciel.executors.programs.python.main"
_OLDEST = (3, 11)
"""The `requires-python` of ciel."""


def _why_not(expected: str) -> "str | None":  # quoted, since older interpreters read this
    """Return why this interpreter cannot run tasks for a worker of this version; None if it can."""
    if sys.version_info < _OLDEST:
        return f"ciel needs {_python(_OLDEST)} or later; name another interpreter by 'python='"
    try:
        import ciel

        found = ciel.__version__
        if found != expected:
            why = f"it has ciel {found}, but the worker has ciel {expected}"
            return f"{why}; install the same version, or name another interpreter by 'python='"
        __import__(_PROGRAM)
        __import__("ciel.python.pickling")
    except Exception as error:  # any module may have that name
        why = f"{type(error).__name__}: {error}"
        return f"{why}; install ciel {expected} for it, or name another interpreter by 'python='"
    return None


def _differs(task: dict) -> "str | None":  # type: ignore[type-arg]  # as above
    """Return a reason if another version of Python packed a call; None: the same, or unknown."""
    import base64
    import pickle

    if sys.version_info < _OLDEST or "calls" not in task:
        return None
    try:
        version = pickle.loads(base64.b64decode(task["calls"]))[0]  # see `ciel.python.calls`
        if version[:2] == sys.version_info[:2]:
            return None
    except Exception:  # the argument is not a bundle
        return None
    return f"the call was packed by {_python(version)}; name such an interpreter by 'python='"


def _reject_tasks(why: str) -> None:
    """Fail each task with the reason."""
    import json
    import struct

    with open(sys.argv[-3], "wb", 0) as writes, open(sys.argv[-1], "rb") as reads:
        while True:
            length = reads.read(4)
            if len(length) < 4:
                return
            call = json.loads(reads.read(struct.unpack(">I", length)[0]).decode("utf-8"))
            if call[0] == "die":
                return
            if call[0] != "start_task":
                continue
            here = f"{sys.executable} ({_python(sys.version_info)}) cannot run tasks"
            text = f"{here}: {_differs(call[1]) or why}"
            for message in (
                ["error", {"report": text, "reason": "BAD_ARGUMENTS"}],
                ["exit", {"keep_process": "may_keep"}],
            ):
                payload = json.dumps(message).encode("ascii")
                writes.write(struct.pack(">I", len(payload)) + payload)


def _python(version: tuple) -> str:  # type: ignore[type-arg]  # as above
    return f"Python {version[0]}.{version[1]}"


def _start() -> None:
    import os

    if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
        del sys.path[0]  # users must not import the modules beside this file
    why = _why_not(sys.argv[1])
    if sys.argv[2:] == ["--preloaded"]:
        if why is not None:
            raise SystemExit(why)
        from ciel.executors.programs.python import fork_server

        fork_server.serve()
    if why is None:
        sys.modules[_PROGRAM].main()
    else:
        _reject_tasks(why)


if __name__ == "__main__":
    _start()
