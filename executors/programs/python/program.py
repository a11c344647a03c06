"""The state that the program of the executor `python` keeps from task to task."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from ciel.executors.programs.python.channel import Channel
from ciel.executors.programs.python.evaluation.share_timer import ShareTimer
from ciel.executors.programs.python.functions import Functions, Loaded
from ciel.executors.programs.python.leaks import Leaks
from ciel.executors.programs.python.modules import UserModules
from ciel.executors.programs.python.objects.inputs import Cache
from ciel.executors.programs.python.process_state import ProcessState
from ciel.python.calls import Function


class Program:
    """A process that runs task after task."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.cache = Cache()
        self.functions = Functions()
        self.timer = ShareTimer()
        self.state = ProcessState()
        self._leaks = Leaks()
        self._modules = UserModules()
        self._is_forked = False
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """Detach a child that a function has forked: it must not send messages to the worker."""
        self._is_forked = True
        self.channel.detach()

    def use_directories(self, directories: tuple[str, ...]) -> None:
        """Import modules from the directories of the client, as their files are now."""
        if self._modules.refresh(directories):
            self.functions.clear()

    def load(self, sent: Function) -> Loaded:
        """Load a function; raises any error of the modules that it imports."""
        loaded = self.functions.load(sent)
        self._modules.note()
        return loaded

    # --- the end of a task ------------------------------------------------------------------------

    def end(self, values: list[tuple[int, str]], leak: str = "") -> None:
        """Report that a task has ended, with the contents of its outputs.

        `leak`: what its calls have left behind and cannot be undone.
        """
        leak = self._close() or leak
        arguments: dict[str, Any] = {"keep_process": "no" if leak else "may_keep"}
        if values:
            arguments["values"] = values
        if cached := self.cache.keys():
            arguments["soft_cache_keys"] = cached
        self.channel.notify("exit", arguments)
        self._exit_after(leak)

    def fail(self, reason: str, report: Any) -> None:
        """Report that a task has failed."""
        leak = self._close()
        self.channel.notify("error", {"report": report, "reason": reason})
        self.channel.notify("exit", {"keep_process": "may_keep"})
        self._exit_after(leak)

    def crash(self, error: Exception) -> None:
        """Report that a task has failed because of a bug in this program, and exit."""
        import traceback

        text = "".join(traceback.format_exception(error))
        self.fail(
            "RUNTIME_ERROR",
            f"the program that runs calls has failed because of a bug in ciel:\n{text}",
        )
        self._exit_after("a program that has failed")

    def _close(self) -> str:
        """Release the state of the task; return the leak that cannot be undone, if any."""
        self.timer.end_task()
        self.functions.end_task()
        if self._is_forked:
            os._exit(0)  # the program that forked us reports the end
        self._leaks.own_threads = self.timer.thread_count
        self.state.close()
        leak = self._leaks.clear()
        if leak:
            os.write(2, f"ciel: the task has left {leak}, so its program ends\n".encode())
        return leak

    def _exit_after(self, leak: str) -> None:
        if leak:
            self.channel.flush()
            _clean_up_libraries()
            os._exit(0)  # other threads may still run


def _clean_up_libraries() -> None:
    """Let libraries remove resources that outlive processes, such as named semaphores.

    Kill child processes, as the worker would; then call the exit functions of libraries, and stop
    the resource trackers. If all this takes too long, the worker kills this program.
    """
    import atexit
    import signal
    from pathlib import Path

    modules = [sys.modules[name] for name in sys.modules if name.endswith(".resource_tracker")]
    trackers = [getattr(module, "_resource_tracker", None) for module in modules]
    tracker_pids = {getattr(tracker, "_pid", None) for tracker in trackers}
    with suppress(OSError):
        for listed in Path("/proc/self/task").glob("*/children"):
            for pid in map(int, listed.read_text().split()):
                if pid not in tracker_pids:
                    os.kill(pid, signal.SIGKILL)
    with suppress(Exception):
        atexit._run_exitfuncs()
    for tracker in trackers:
        with suppress(Exception):
            tracker._stop()  # type: ignore[union-attr]  # or there is none
