"""Makes objects raise `ForkedError` in a forked child.

The child has only one thread. Messages would never arrive, and a lock that another thread held
during the fork would never be released. So objects that cannot be used in a child register here,
and any use of their copies there raises `ForkedError` at once.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, Protocol
from weakref import WeakSet

from ciel.client.errors import ForkedError


class Inherited(Protocol):
    """An object that must not be used in a forked child."""

    def forked(self) -> None:
        """Close what this copy in the child shares with the parent."""


_inherited: WeakSet[Inherited] = WeakSet()


def register_fork(owner: Inherited) -> None:
    """Call the object's `forked` method in every child that is forked later."""
    _inherited.add(owner)


def _forked() -> None:
    for owner in list(_inherited):
        owner.forked()
    _inherited.clear()


os.register_at_fork(after_in_child=_forked)


def forbid(owner: object, silent: Collection[str] = (), kept: Collection[str] = ()) -> None:
    """Make each use of an object raise ForkedError.

    The attributes `kept` stay usable; the methods in `silent` do nothing.
    """
    parent_pid, kind = os.getppid(), type(owner)

    def refuse(self: object, name: str) -> Any:
        if name in kept:
            return object.__getattribute__(self, name)
        if name in silent:
            return lambda *args, **options: None
        raise ForkedError(parent_pid, os.getpid())

    owner.__class__ = type(kind.__name__, (kind,), {"__getattribute__": refuse})
