"""Decides what a client sends again to a master that does not know its session."""

from __future__ import annotations

from collections.abc import Sequence

from ciel.core.events import Message, ReleaseObjects, WantObjects
from ciel.core.ids import ObjectId


def to_repeat(messages: Sequence[Message]) -> list[Message]:
    """Return unconfirmed messages in their order, without releases that a later want takes back.

    A release from which no object is left stays, and has no effect.

    The master's predecessor may have processed all these messages, and the job may have ended with
    the object. Then the repeated release would delete it, and an ended job wants no object again.
    """
    wanted: set[ObjectId] = set()
    found: list[Message] = []
    for message in reversed(messages):
        if isinstance(message, WantObjects):
            wanted.update(message.objects)
        elif isinstance(message, ReleaseObjects) and not message.for_good:
            objects = tuple([o for o in message.objects if o not in wanted])
            message = message._replace(objects=objects)
        found.append(message)
    return found[::-1]
