"""Starts the program behind `python`, in whatever interpreter a task names: one that cannot run
tasks says why, in one line for each of them. Nothing here needs more than Python 3.6.
"""

import sys

_PROGRAM = "ciel.executors.programs.python"


def _why_not(expected: str) -> "str | None":  # older interpreters read this
    """Say why this interpreter cannot run tasks of a worker of this version; None if it can."""
    try:
        import ciel

        found = ciel.__version__
        if found != expected:
            return f"it has ciel {found}, the worker has ciel {expected}: both must be the same"
        __import__(_PROGRAM)
        __import__("cloudpickle")
    except Exception as error:  # of whatever is there under that name
        return f"{type(error).__name__}: {error}; install ciel {expected} there"
    return None


def _refuse(why: str) -> None:
    """Answer every task with the reason."""
    import json
    import struct

    version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    text = f"{sys.executable} ({version}) cannot run tasks: {why}, or name another by 'python='"
    said = b""
    for call in (
        ["error", {"report": text, "reason": "BAD_ARGUMENTS"}],
        ["exit", {"keep_process": "may_keep"}],
    ):
        payload = json.dumps(call).encode("ascii")
        said += struct.pack(">I", len(payload)) + payload
    with open(sys.argv[-3], "wb", 0) as writes, open(sys.argv[-1], "rb") as reads:
        while True:
            length = reads.read(4)
            if len(length) < 4:
                return
            call = json.loads(reads.read(struct.unpack(">I", length)[0]).decode("utf-8"))
            if call[0] == "die":
                return
            if call[0] == "start_task":
                writes.write(said)


def _start() -> None:
    import os

    if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
        del sys.path[0]  # our neighbours are no modules of users
    why = _why_not(sys.argv[1])
    if why is None:
        sys.modules[_PROGRAM].main()
    else:
        _refuse(why)


if __name__ == "__main__":
    _start()
