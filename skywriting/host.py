"""The interface through which scripts read objects and create tasks."""

from __future__ import annotations

from typing import Any, Protocol

from ciel.core.refs import Reference
from ciel.skywriting.evaluation.code import Unit
from ciel.skywriting.evaluation.values import Reader, SpawnedCall


class Run:
    """A running script, or a running function of one. `depth`: how many calls are in progress."""

    __slots__ = ("depth", "host", "is_foreign")

    def __init__(self, host: Host) -> None:
        self.host = host
        self.depth = 0
        self.is_foreign = False


class Host(Reader, Protocol):
    """Reads objects and creates tasks for a script. A method does all its work at once, or none."""

    def encode(self, value: Any) -> str:
        """Return a plain value, which may contain references, as JSON; raises ValueError."""

    def spawn(self, call: SpawnedCall) -> Reference:
        """Create a task that calls a function; return the reference to its result."""

    def spawn_task(self, executor: str, keywords: dict[str, Any]) -> Reference | list[Reference]:
        """Create a task of any executor; return one reference or several, as the executor defines.
        Raises ScriptError.
        """

    def print(self, text: str) -> None:
        """Print a line for people."""

    def include(self, what: str | Reference) -> Unit | None:
        """Return a script to include: from the standard library by its name, from a URL, or from an
        object; None if that does not exist yet. Raises ScriptError and ReferenceFailedError.
        """

    def package(self, key: str) -> Reference | None:
        """Return an entry of the job's package; None if there is none."""
