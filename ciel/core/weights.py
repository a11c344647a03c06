"""Checks that the references of a task's inputs fit into one message to a worker."""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.graph.failures import size_text
from ciel.core.refs import Reference, Value

INPUTS_WEIGHED_FROM = 1000
"""Fewer inputs always fit into a message, even if all of them have inline content."""
INPUTS_MAX_BYTES = 15 * 1024 * 1024
"""The maximum size of the references of a task's inputs. The worker sends them to its program in
one call of at most 16 MiB (`wire.limits`), together with the task's arguments."""
_INPUT_BYTES = 40  # the size of one reference without its id and content


def why_too_large(inputs: Iterable[Reference]) -> str:
    """Explain why the references of a task's inputs do not fit into one message.

    Return "" if they fit.
    """
    count = size_bytes = by_value = 0
    for ref in inputs:
        count += 1
        size_bytes += _INPUT_BYTES + len(ref.id)
        if isinstance(ref, Value):
            size_bytes += len(ref.encoded)
            by_value += 1
    if size_bytes <= INPUTS_MAX_BYTES:
        return ""
    return (
        f"the references of its {count} inputs, {by_value} of which are small objects with inline "
        f"content, take {size_text(size_bytes)} in one message, which may have at most "
        f"{size_text(INPUTS_MAX_BYTES)}: put small objects together into larger ones, or divide "
        "the inputs among several tasks"
    )
