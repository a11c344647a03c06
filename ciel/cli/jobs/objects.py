"""Finds the objects that users name on the command line."""

from __future__ import annotations

from typing import Any

from ciel.cli.parsing.options import require_text
from ciel.cli.parsing.selectors import SelectorError, read_task
from ciel.client.client import Client
from ciel.client.errors import QueryError, TaskFailedError
from ciel.core.errors import CielError
from ciel.core.refs import Failure, Reference
from ciel.wire.references import from_json


class NotThereError(CielError):
    """The content of an object cannot be read now."""


def content_of(facts: dict[str, Any]) -> Reference:
    """Return a reference to the content of an object; raises TaskFailedError, NotThereError."""
    ref: Reference = facts["reference"]
    object_id, state = facts["object"], facts["state"]
    if isinstance(ref, Failure):
        raise TaskFailedError(ref)
    if state == "there":
        return ref
    if state == "gone":
        raise NotThereError(
            f"{object_id} was deleted when no task needed it any more; submit the job with --keep "
            "to keep all outputs of its tasks"
        )
    by = f": task {facts['made_by']} of job {facts['job']} produces it" if facts["made_by"] else ""
    wait = f"; ciel job wait {facts['job']} waits for it" if facts["job"] else ""
    raise NotThereError(f"{object_id} does not exist yet{by}{wait}")


def find_object(client: Client, text: str) -> dict[str, Any]:
    """Return the master's description of an object, with its reference.

    Raises QueryError, UsageError.
    """
    require_text("OBJECT", text)
    try:
        found = client.ask("object", {"object": text})
    except QueryError:
        if (object_id := _output_of(client, text)) is None:
            raise
        found = client.ask("object", {"object": object_id})
    facts: dict[str, Any] = from_json(found)
    return facts


def _output_of(client: Client, text: str) -> str | None:
    """Return the first output of the task that JOB:TASK names; None if no task has that name."""
    try:
        selector = read_task(text)
    except SelectorError:
        return None
    if not isinstance(selector.tasks, str):
        return None
    try:
        task = client.ask("task", {"job": selector.job, "task": selector.tasks})
    except QueryError:
        return None
    return str(from_json(task["outputs"])[0].id)
