"""Records which functions of ciel are called, in order, in all processes of a command and its
cluster.

Python imports `sitecustomize` from `PYTHONPATH` when it starts; ours writes each call of a function
to a file of its process. Only uncompiled functions can be traced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
TRACER = """
import os, sys, threading, time

place, root = os.environ["CIEL_TRACE"], os.environ["CIEL_TRACE_ROOT"]
files = {}


def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root):
        pid = os.getpid()
        if pid not in files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            files[pid] = os.open(f"{place}/{pid}", flags, 0o600)
            module = sys.orig_argv[3] if "-m" in sys.orig_argv else "client"
            os.write(files[pid], f"{module}\\n".encode())
        path = code.co_filename[len(root) :]
        os.write(files[pid], f"{time.monotonic_ns()} {path} {code.co_qualname}\\n".encode())


threading.setprofile(note)
sys.setprofile(note)
"""


class Call(NamedTuple):
    """One call: in a client, a master or a worker; the file is relative to the component."""

    process: str
    file: str
    function: str


def environment(place: Path) -> dict[str, str]:
    """Return an environment whose Python processes are traced; their calls go to `place`."""
    (place / "tracer").mkdir()
    (place / "tracer/sitecustomize.py").write_text(TRACER)
    (place / "calls").mkdir()
    traced = {"CIEL_TRACE": str(place / "calls"), "CIEL_TRACE_ROOT": f"{ROOT}/", "CIEL_PURE": "1"}
    return os.environ | traced | {"PYTHONPATH": str(place / "tracer")}


def calls(place: Path) -> list[Call]:
    """Return the calls of all processes, in order."""
    found: list[tuple[int, Call]] = []
    for path in (place / "calls").iterdir():
        module, *lines = path.read_text().splitlines()
        process = module.rpartition(".")[2]
        for line in lines:
            if line.count(" ") >= 2:  # a process that was killed may have written half a line
                time_ns, file, function = line.split(" ", 2)
                found.append((int(time_ns), Call(process, file.removeprefix("ciel/"), function)))
    return [call for _, call in sorted(found)]
