"""Actions of puppets: programs that follow or violate the protocol as a test wants."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ciel.core.ids import ObjectId
from ciel.core.refs import Fixed, Future
from ciel.executors.proc import ProcExecutor
from ciel.testing.homes import wait_for
from ciel_tests.scenes.one_worker import Talker

EXECUTORS = {"proc": ProcExecutor()}
IS_LONG = os.environ.get("CIEL_LONG") == "1"
OPEN = ("ow", "or")
START = (*OPEN, "h")
TEXT = b64encode(b"text").decode()
SAY = f's["publish_string",{{"index":0,"str":"{TEXT}"}}]'
PUBLISH = f"a{SAY[1:]}"
EXIT = 's["exit",{"keep_process":"no"}]'
KEEP = 's["exit",{"keep_process":"may_keep"}]'
GOOD = (PUBLISH, EXIT)
WELL = b"text"
STAY = "z60000"
Start = Callable[..., Talker]


def pid_of(path: Path) -> int:
    """Wait for the process id that a puppet writes."""
    wait_for(path.exists, f"{path.name}")
    return int(path.read_text())


PID = """def run(task):
    task.soft_cache_keys = [(task.args[1:], "kept")]
    task.publish(0, str(os.getpid()).encode())
    while task.args and not os.path.exists(task.args[0]):
        time.sleep(0.002)
"""
WAITS = """def run(task):
    pid = os.getpid()
    task.block_on(task.args[0])
    task.publish(0, f"{pid} {os.getpid()} {task.read(task.args[0])!r}".encode())
"""


def waiting(worker: Talker) -> tuple[Any, Fixed]:
    """Run a program that waits in its process for `x`; return its continuation, and the process."""
    key = worker.python(WAITS, Future(ObjectId("x")))
    (fixed,) = worker.good(key)
    assert isinstance(fixed, Fixed)
    return worker.child(key).spec, fixed


SETTLED_S = 10.0
"""How long a worker on a busy machine may take to notice the end of a program; usually it takes 2 s
at most."""
FRAME = b"\0\0\0\x20" + b'["exit", {"keep_process": "no"}]'
