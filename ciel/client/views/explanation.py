"""Explains why a task runs, waits, or does not run: `client.explain(future)`."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ciel.client.errors import QueryError
from ciel.core.refs import REFERENCE_TYPES, Failure, Reference, Value, locations_of
from ciel.execution.report import visible, visible_text
from ciel.wire.references import from_json

Ask = Callable[[str, Any], Any]
"""Queries the master: see `Client.ask`."""


@dataclass(frozen=True)
class Explanation:
    """The state of the task that produces a result, and the reasons for it.

    `state`: `unsent`, `waiting` (for inputs), `runnable` (no worker has room), `assigned` (it waits
    on a worker), `running`, `done`, `failed`, `cancelled`, `dormant` (its outputs are not wanted).
    `why`: the reasons, as lines. `story`: the history of the task, as lines. `str` returns the
    whole explanation as a text.
    """

    name: str
    state: str
    why: tuple[str, ...]
    story: tuple[str, ...] = ()
    task: str = ""
    job: int = 0
    attempt: int = 0
    worker: str = ""
    inputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self._lines())

    def __repr__(self) -> str:
        return f"<ciel.Explanation {self.name}: {self.state}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __rich__(self) -> Any:
        from rich.text import Text

        lines = [Text(text, style=style) for text, style in self._lines()]
        return Text("\n").join(lines)

    def _lines(self) -> Iterator[tuple[str, str]]:
        where = f" on worker {self.worker}" if self.worker else ""
        attempt = f", attempt {self.attempt}" if self.attempt > 1 else ""
        yield f"{visible(self.name)} is {self.state}{where}{attempt}", "bold"
        yield from _part("why:", self.why)
        yield from _part("what happened:", self.story)
        yield from _part("what it reads:", self.inputs)


def _part(heading: str, texts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if texts:
        yield heading, "dim"
    for text in texts:
        for line in visible_text(text).split("\n"):
            yield f"  {line}", ""


def explain(ask: Ask, relocated: Callable[[str], str], future: Any) -> Explanation:
    """See `Client.explain`. `relocated` replaces paths of a cluster's scratch directories."""
    if isinstance(future, REFERENCE_TYPES):
        return _queried(ask, relocated, future.id, "", ())
    if not hasattr(future, "__ciel_future__"):
        raise TypeError(f"explain takes a future or a reference, not {future!r:.80}")
    name = str(getattr(future, "name", ""))
    if future.cancelled():
        return Explanation(name, "cancelled", ("this program cancelled it",))
    here = _known_here(future)
    if not future.done():
        future.calls.expedite(future)
    lot = future.lot
    has_failed = bool(future.done() and future.exception() is not None)
    if lot is None:
        return Explanation(name, "unsent", here or ("the client has not sent its call yet",))
    if len(lot.functions) > 1:
        here = (*here, f"its task produces the results of {len(lot.functions)} calls")
    return _queried(ask, relocated, lot.id, name, here, has_failed=has_failed)


def _known_here(future: Any) -> tuple[str, ...]:
    if not future.done():
        return ()
    error = future.exception()
    if error is None:
        return ("its value exists",)
    why = f"it has failed: {traceback.format_exception_only(error)[0].strip()}"
    return (why, *map(str, getattr(error, "__notes__", ())))


def _queried(
    ask: Ask,
    relocated: Callable[[str], str],
    object_id: str,
    name: str,
    here: tuple[str, ...],
    *,
    has_failed: bool = False,
) -> Explanation:
    try:
        answer = ask("task", {"object": object_id})
    except QueryError as error:
        if here:  # the master may have removed a task whose result the client has
            return Explanation(name, "done", here)
        return Explanation(name or object_id, "unknown", (error.reason,))
    why, story = [[relocated(text) for text in answer[key]] for key in ("why", "story")]
    state = "running" if answer["runs"] else answer["state"]
    if has_failed:
        state = "failed"  # the program has succeeded: the error of the function is its result
        why = []  # the master's reasons repeat the error, or describe the program
        story = story if len(story) > 1 else []
    inputs = [_reading(ref) for ref in from_json(answer["inputs"])]
    left_out = answer["inputs_count"] - len(inputs)
    more = [f"and {left_out} more"] if left_out else []
    return Explanation(
        name=name or answer["name"] or answer["task"],
        state=state,
        why=(*here, *why),
        story=tuple(story),
        task=answer["task"],
        job=answer["job"],
        attempt=answer["attempt"],
        worker=answer["worker"] or "",
        inputs=(*inputs, *more),
    )


def _reading(ref: Reference) -> str:
    """Describe an input: whether it exists, and where."""
    if isinstance(ref, Failure):
        return f"{ref.id}: failed, {ref.reason}"
    if isinstance(ref, Value):
        return f"{ref.id}: exists, {len(ref.content)} bytes"
    if places := sorted(locations_of(ref)):
        size_bytes = getattr(ref, "size_bytes", None)
        size = "" if size_bytes is None else f", {size_bytes} bytes"
        return f"{ref.id}: exists{size}, at {' '.join(places)}"
    return f"{ref.id}: expected"
