"""Checks that the references of a task's inputs fit into one message to a worker."""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.failures import size_text
from ciel.core.refs import Reference, Value

INPUTS_WEIGHED_FROM = 1000
"""Fewer inputs fit into a message, however much of them travels by value."""
INPUTS_MAX_BYTES = 15 * 1024 * 1024
"""Of what a task is told of its inputs. The worker tells its program in one call, which may have
16 MiB (`wire.limits`), with the rest of its arguments."""
_INPUT_BYTES = 40  # of one, its name and content apart


def why_too_large(inputs: Iterable[Reference]) -> str:
    """Say why a task cannot be told of its inputs in one message; empty if it can."""
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
        f"its {count} inputs, {by_value} of which are small objects that travel by value, are "
        f"{size_text(size_bytes)} in one message, which may have "
        f"{size_text(INPUTS_MAX_BYTES)}: put small objects together into larger ones, or have "
        "several tasks read a part of them each"
    )
