"""The program behind `python`: runs calls of functions, a task after the other, and stays warm."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ciel.executors.programs.python.bundle import Run
from ciel.executors.programs.python.channel import Channel, connect
from ciel.executors.programs.python.evaluation.share_timer import Clock
from ciel.executors.programs.python.functions import Functions, Loaded
from ciel.executors.programs.python.leaks import Modules, Traces
from ciel.executors.programs.python.multiprocessing_patch import let_processes_have_code
from ciel.executors.programs.python.objects.inputs import Kept
from ciel.executors.programs.python.process_state import Surroundings, WrongDirectoryError
from ciel.python.calls import Function
from ciel.python.packing import UnpackedError

FRAME_SLOTS = 270_000
"""Of 8 bytes, a little more than 2 MiB: Python takes 4 MiB for that, and touches none of it."""
STACK_BYTES = 128 << 20
"""So much room there is for functions that wait above each other."""

THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What says to libraries of numbers how many threads to have: as many as the task has slots."""


class Program:
    """What is kept from task to task."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.kept = Kept()
        self.functions = Functions()
        self.clock = Clock()
        self.surroundings = Surroundings()
        self._traces = Traces()
        self._modules = Modules()
        self._is_forked = False
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """In a child that a function has forked: it is none of ours."""
        self._is_forked = True
        self.channel.cut()

    def serve(self) -> None:
        """Run tasks until there are no more."""
        while (started := self.channel.next_start()) is not None:
            self.clock.begin()
            try:
                Run(self, *started).run()
            except UnpackedError as error:
                self.fail("BAD_ARGUMENTS", str(error))
            except WrongDirectoryError as error:
                self.fail("PROGRAM_NOT_STARTED", str(error))
            except Exception as error:  # what functions raise is an outcome: this is ours
                self._fail_badly(error)
        self.clock.close()

    def add_places(self, places: tuple[str, ...]) -> None:
        """Have modules be found where the caller has found them, as they are there now."""
        if self._modules.refresh(places):
            self.functions.clear()

    def load(self, sent: Function) -> Loaded:
        """Load a function, and keep it; raises whatever is raised by what it imports."""
        loaded = self.functions.load(sent)
        self._modules.look()
        return loaded

    # --- the end of a task ------------------------------------------------------------------------

    def end(self, values: list[tuple[int, str]], left: str = "") -> None:
        """Say that a task is done, and what its outputs hold. `left`: what cannot be undone of what
        it has left behind.
        """
        left = self._close() or left
        told: dict[str, Any] = {"keep_process": "no" if left else "may_keep"}
        if values:
            told["values"] = values
        if held := self.kept.keys():
            told["soft_cache_keys"] = held
        self.channel.tell("exit", told)
        self._leave(left)

    def fail(self, reason: str, report: Any) -> None:
        """Say that a task has failed."""
        left = self._close()
        self.channel.tell("error", {"report": report, "reason": reason})
        self.channel.tell("exit", {"keep_process": "may_keep"})
        self._leave(left)

    def _fail_badly(self, error: Exception) -> None:
        import traceback

        told = "".join(traceback.format_exception(error))
        self.fail(
            "RUNTIME_ERROR", f"the program that runs calls has failed, by a bug of ciel:\n{told}"
        )
        self._leave("a program that has failed")

    def _close(self) -> str:
        """End what was there for the task; return what it has left behind."""
        self.clock.end()
        self.functions.end_task()
        if self._is_forked:
            os._exit(0)  # what forked us goes on by itself
        self._traces.own_threads = self.clock.thread_count
        self.surroundings.close()
        left = self._traces.clear()
        if left:
            os.write(2, f"ciel: the task has left {left}: its program ends\n".encode())
        return left

    def _leave(self, left: str) -> None:
        if left:
            self.channel.flush()
            _let_libraries_clean()
            os._exit(0)  # whatever still runs here


def _let_libraries_clean() -> None:
    """Have libraries remove what outlives processes, such as named semaphores: what they do at the
    end of a program, and then what their trackers do. Other processes that are left end before, as
    they will be killed in any case. The worker kills this program if that takes too long.
    """
    import atexit
    import signal
    from pathlib import Path

    modules = [sys.modules[name] for name in sys.modules if name.endswith(".resource_tracker")]
    trackers = [getattr(module, "_resource_tracker", None) for module in modules]
    stay = {getattr(tracker, "_pid", None) for tracker in trackers}
    with suppress(OSError):
        for listed in Path("/proc/self/task").glob("*/children"):
            for pid in map(int, listed.read_text().split()):
                if pid not in stay:
                    os.kill(pid, signal.SIGKILL)
    with suppress(Exception):
        atexit._run_exitfuncs()
    for tracker in trackers:
        with suppress(Exception):
            tracker._stop()  # type: ignore[union-attr]  # or there is none


def main() -> None:
    """Run calls, as a worker tells."""
    import faulthandler
    import resource

    faulthandler.enable()  # what it writes as it dies becomes part of the error
    for name in ("CIEL_JOB", "CIEL_TASK", "CIEL_ATTEMPT"):
        os.environ.pop(name, None)  # it serves others, too
    for name in THREAD_COUNTS:  # else each of them would take all cores
        os.environ.setdefault(name, os.environ.get("CIEL_SLOTS", "1"))
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
    for file in (sys.stdout, sys.stderr):
        file.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]  # both are files
    let_processes_have_code()
    _with_room(Program(connect()).serve)


def _with_room(call: Callable[[], None]) -> None:
    """Call something from a frame that is very large, as far as Python knows: what is called lies
    behind it in one piece of memory. Pieces are small otherwise, and each is given back and taken
    anew when a recursion goes out and in; that costs more than all else that a small work does.
    """
    call()


_with_room.__code__ = _with_room.__code__.replace(co_stacksize=FRAME_SLOTS)
