"""What a script wants of the world: whoever runs it passes this in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ciel.core.refs import Reference

if TYPE_CHECKING:
    from ciel.skywriting.evaluation.code import Unit
    from ciel.skywriting.evaluation.values import Builtin, Closure


class SpawnedCall(NamedTuple):
    """A function, and the arguments to call it with in a task of its own. They are as they were
    when it was spawned: who keeps this for later writes it down (`continuation.encode_call`) first,
    or runs it before its spawner goes on.
    """

    function: Closure | Builtin
    arguments: list[Any]


class ReferenceFailedError(Exception):
    """What a reference stands for was not made; `details` tell the story of its producer."""

    def __init__(self, ref: Reference, reason: str, details: str) -> None:
        super().__init__(f"{ref.id} has failed ({reason}): {details}")
        self.ref = ref
        self.reason = reason
        self.details = details


class Host(Protocol):
    """What lies outside the language. Each of these does what it does at once, or not at all."""

    def read(self, ref: Reference) -> bytes | None:
        """Return the content of an object, None if it is not made yet. Raises
        ReferenceFailedError.
        """

    def decode(self, content: bytes) -> Any:
        """Read JSON, in which `__ref__` objects are references; raises ValueError."""

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
