"""What a script wants of the world: whoever runs it passes this in."""

from __future__ import annotations

from typing import Any, Protocol

from ciel.core.refs import Reference
from ciel.skywriting.evaluation.code import Unit
from ciel.skywriting.evaluation.values import Reader, SpawnedCall


class Run:
    """A script, or a function of it, that runs. `depth`: how many calls are in progress."""

    __slots__ = ("depth", "host", "is_foreign")

    def __init__(self, host: Host) -> None:
        self.host = host
        self.depth = 0
        self.is_foreign = False


class Host(Reader, Protocol):
    """What lies outside the language. Each of these does what it does at once, or not at all."""

    def encode(self, value: Any) -> str:
        """Write a plain value, in which there may be references, as JSON; raises ValueError."""

    def spawn(self, call: SpawnedCall) -> Reference:
        """Create a task that calls a function; return what it will give."""

    def spawn_task(self, executor: str, keywords: dict[str, Any]) -> Reference | list[Reference]:
        """Create a task of any executor; return what it will make, as its executor replies. Raises
        ScriptError.
        """

    def print(self, text: str) -> None:
        """Show a line to people."""

    def include(self, what: str | Reference) -> Unit | None:
        """Return a script to be run in place: of the standard library by its name, from a URL, or
        from an object; None if that is not made yet. Raises ScriptError, ReferenceFailedError.
        """

    def package(self, key: str) -> Reference | None:
        """Look something up in the package of the job."""
