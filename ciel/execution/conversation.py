"""The interface of executors whose programs exchange calls with their worker while they run.

Such an executor answers `begin` with `Talk`. The worker starts the program, or reuses an idle one,
and has the executor create a conversation, which answers the calls of one task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from ciel.core.events import TaskFault
from ciel.execution.attempt import Attempt
from ciel.wire.calls import Call

Say = Callable[[str, Any], None]
"""Sends the program a reply: the name of a method, and its arguments."""


class Over(NamedTuple):
    """How a conversation ended.

    `fault`: why the task has failed; None if it succeeded. `keep`: whether the program can serve
    further tasks (`no`, `may_keep`), or must stay since its task continues in it (`must_keep`).
    `soft_keys`: the objects that it has in memory, as sets of object ids.
    """

    fault: tuple[str, Any] | None
    keep: str = "no"
    soft_keys: tuple[frozenset[str], ...] = ()


class Conversation(Protocol):
    """The calls of one task, from `start_task` to `exit` or `error`."""

    over: Over | None
    """Set once the conversation has ended; it sends nothing after that."""

    @property
    def subject(self) -> str:
        """The name of the part that fails, for messages; empty: they name the program's command."""

    def called(self, calls: Iterable[Call]) -> None:
        """Answer calls of the program, in their order."""

    def died(self, fault: TaskFault, how: str, *, was_ended: bool = False) -> TaskFault:
        """Return the fault of a task whose program ended before the conversation did.

        `how`: a text that says how the program ended. `was_ended`: the worker killed the program,
        on behalf of this task.
        """


class ConversingExecutor(Protocol):
    """The additional interface of an executor with `talks`."""

    def converse(self, attempt: Attempt, say: Say) -> Conversation:
        """Create the conversation of an attempt whose program is sent `start_task` next.

        The conversation turns the program's calls into requests to `attempt`.
        """
