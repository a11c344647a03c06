"""The main loop of the program of the executor `python`: runs calls of functions, task by task."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from ciel.executors.programs.python.bundle import Run
from ciel.executors.programs.python.channel import connect
from ciel.executors.programs.python.multiprocessing_patch import patch
from ciel.executors.programs.python.process_state import WrongDirectoryError
from ciel.executors.programs.python.program import Program
from ciel.python.packing import UnpackedError

FRAME_SLOTS = 270_000
"""The size of a frame's stack in slots of 8 bytes: a little more than 2 MiB.

Python allocates 4 MiB for it, and does not touch this memory.
"""
STACK_BYTES = 128 << 20
"""The size of the C stack, on which functions wait on top of each other."""

THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that limit the threads of numerical libraries to the slots of the task."""


def main() -> None:
    """Set this process up, then run the tasks that the worker sends."""
    import faulthandler
    import resource

    faulthandler.enable()  # the traceback of a crash becomes part of the task's error
    for name in ("CIEL_JOB", "CIEL_TASK", "CIEL_ATTEMPT"):
        os.environ.pop(name, None)  # the process serves other tasks, too
    for name in THREAD_COUNTS:  # otherwise each library would use all cores
        os.environ.setdefault(name, os.environ.get("CIEL_SLOTS", "1"))
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
    for file in (sys.stdout, sys.stderr):
        file.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]  # both are files
    patch()
    program = Program(connect())
    _with_large_frame(lambda: serve(program))


def serve(program: Program) -> None:
    """Run tasks until the worker has sent the last one."""
    while (started := program.channel.next_start()) is not None:
        program.timer.begin_task()
        try:
            Run(program, *started).run()
        except UnpackedError as error:
            program.fail("BAD_ARGUMENTS", str(error))
        except WrongDirectoryError as error:
            program.fail("PROGRAM_NOT_STARTED", str(error))
        except Exception as error:  # exceptions of functions are outcomes, so this is a bug of ciel
            program.crash(error)
    program.timer.close()


def _with_large_frame(call: Callable[[], None]) -> None:
    """Call a function from a frame that claims to need a large stack.

    So Python allocates the frames behind it in one piece. Otherwise it would allocate and free a
    small piece each time a recursion crosses the end of a piece. That takes longer than the rest of
    a small call.
    """
    call()


_with_large_frame.__code__ = _with_large_frame.__code__.replace(co_stacksize=FRAME_SLOTS)
