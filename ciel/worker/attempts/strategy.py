"""The interface between the life cycle of attempts and the two ways to run a program.

A batch program runs to its end, and its exit status decides the outcome of the task. An interactive
program converses with this worker while it runs, and may serve several tasks in succession.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ciel.core.events import TaskFault
from ciel.core.offers.resources import Given
from ciel.execution.executor import Action, Executor, Task
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.state.orders import Key, StartAttempt


class Strategy(Protocol):
    """One way to run programs."""

    def start(
        self,
        order: StartAttempt,
        task: Task,
        executor: Executor,
        action: Action,
        level: str = "",
    ) -> None:
        """Start an attempt with the action that its executor has returned.

        The end of the attempt is reported exactly once, also if it cannot be started. `level`: the
        store level for its outputs, if the worker overrides the level that the task requests.
        """

    def make_way(self, given: Given) -> None:
        """End the idle programs that may still use these indices of resources."""

    def close(self) -> None:
        """Release everything that is open; programs end with the launcher."""


class RunningAttempt(Protocol):
    """An attempt that a strategy has started, as the life cycle sees it."""

    @property
    def key(self) -> Key: ...

    @property
    def order(self) -> StartAttempt: ...

    @property
    def task(self) -> Task: ...

    @property
    def executor(self) -> Executor: ...

    @property
    def strategy(self) -> Strategy: ...

    @property
    def argv(self) -> Sequence[str]:
        """The command, for the text of a fault; empty if the text names the program otherwise."""

    @property
    def level(self) -> str:
        """The level of the store that its outputs are written to; empty: the default one."""

    @property
    def scratch(self) -> Scratch | None:
        """Its private files, if there are any."""

    @property
    def partial_output(self) -> str | None:
        """The path of the standard output of a program that has not succeeded, if it is a file."""

    @property
    def exit_status(self) -> int | None:
        """How its program ended; see `nodes.Ending`."""

    @property
    def is_repeatable(self) -> bool:
        """Whether it may run again: it was not cancelled, and no effect of it was reported."""

    @property
    def interrupted(self) -> Sequence[Key]:
        """Outer attempts, which its program ran as well, and which end because the program did."""

    def kill(self, *, force: bool) -> None:
        """Send SIGTERM, or SIGKILL by `force`, to its program, since the attempt was cancelled."""

    def recall(self) -> None:
        """Give it up if its program has not been started yet."""

    def stop(self, fault: TaskFault) -> None:
        """Kill its program, and let it fail with this fault."""

    def settle(self, event: Any) -> None:
        """Process the end of its program; all processes of the program have ended."""

    def clean_up(self, *, files_kept: bool = False) -> None:
        """Remove what an ended attempt leaves.

        These are uncommitted outputs, and its private files unless they were retained.
        """

    def abandon(self) -> None:
        """Release everything that is open, without reporting; the worker is closing."""
