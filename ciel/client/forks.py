"""What a forked child gets a copy of, and must leave to its parent.

The child has one thread, so nothing would come, and whoever held a lock when it was forked is not
there to release it. So what cannot be used there is told of every fork, and becomes something that
raises `ForkedError` at once, whatever is asked of it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, Protocol
from weakref import WeakSet

from ciel.client.errors import ForkedError


class Inherited(Protocol):
    """What is told in a forked child that it is a copy."""

    def forked(self) -> None:
        """Let go of what is the parent's, and disturb nobody."""


_inherited: WeakSet[Inherited] = WeakSet()


def tell_of_forks(owner: Inherited) -> None:
    """Have `forked` of an object called in every child that is forked from now on."""
    _inherited.add(owner)


def _forked() -> None:
    for owner in list(_inherited):
        owner.forked()
    _inherited.clear()


os.register_at_fork(after_in_child=_forked)


def forbid(owner: object, silent: Collection[str] = (), kept: Collection[str] = ()) -> None:
    """Have whatever is asked of an object raise ForkedError from now on, but for its attributes
    `kept`; methods that are `silent` do nothing.
    """
    parent_pid, kind = os.getppid(), type(owner)

    def refuse(self: object, name: str) -> Any:
        if name in kept:
            return object.__getattribute__(self, name)
        if name in silent:
            return lambda *args, **options: None
        raise ForkedError(parent_pid, os.getpid())

    owner.__class__ = type(kind.__name__, (kind,), {"__getattribute__": refuse})
